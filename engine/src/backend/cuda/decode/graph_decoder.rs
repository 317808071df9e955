//! Decoding on the GPU without the host, for methods that do nothing during decoding. A whole step is
//! captured as a CUDA graph once and replayed. The next token is selected on the GPU; only it and the most
//! attended slot per head are downloaded.
//!
//! ```text
//! host   embedding, slots of all layers | ................................................. | next token, or top-k
//! GPU                                  | 8 launches a layer, logits, top-k: one CUDA graph |
//! ```
//!
//! The host assigns slots and positions as always, but does not have the rows of the answer's tokens, which
//! nothing on the host reads.

use std::sync::Arc;

use kept_cuda::{
    Buffer, Candidates, CapturedGraph, DecodeScratch, Device, DeviceError, GpuCache,
    MOST_CANDIDATES, StepLayer,
};
use kept_kernels::Scale;
use kept_models::{GpuModel, GpuRope, GpuStep, Model, RopeTable};

use super::plan::DecodePlan;
use super::slot_table::{SlotTable, upload_rows};
use crate::EngineError;
use crate::backend::{DecodeBackend, DeviceRows, StepOutput};
use crate::compact::CompactCache;
use crate::decode::{AfterLayer, LayerAttention, Probabilities};
use crate::shape::{gpu_attention_scale, head_shape};

/// Buffers and parameters of a captured step.
struct Work {
    gpu: Arc<GpuModel>,
    rope: GpuRope,
    layers: Vec<StepLayer>,
    step: GpuStep,
    attend: DecodeScratch,
    candidates: Candidates,
    /// `[2, MOST_CANDIDATES]`: bits of the largest logits and their tokens; then `[layers, q_heads, 2]`: bits
    /// of the largest probability of each query head, and of its slot as an f32.
    outcome: Buffer<u32>,
    scale: Scale<'static>,
    q_heads: usize,
    /// Number of most likely tokens to select.
    most: usize,
}

impl Work {
    /// Submits one step with the current inputs.
    fn run(device: &Device, work: &mut Self) -> Result<(), DeviceError> {
        let Self {
            gpu,
            rope,
            layers,
            step,
            attend,
            candidates,
            outcome,
            scale,
            q_heads,
            most,
        } = work;
        gpu.step(device, step, layers, rope, |layer, rows, queries, out| {
            let first = 2 * MOST_CANDIDATES + 2 * layer * *q_heads;
            let mut best = outcome.share(first..first + 2 * *q_heads);
            rows.attend(device, *scale, queries, attend, out, &mut best)
        })?;
        if *most == 0 {
            return Ok(());
        }
        let mut logits = outcome.share(0..MOST_CANDIDATES);
        let mut tokens = outcome.share(MOST_CANDIDATES..2 * MOST_CANDIDATES);
        device.largest(step.logits(), *most, candidates, &mut logits, &mut tokens)
    }
}

/// A step before and after capture.
enum Step {
    /// Runs launch by launch: once, so that the driver has loaded everything before capture.
    New(Work),
    CapturedGraph(CapturedGraph<Work>),
}

/// The GPU cache and all device buffers of the decode loop.
pub(super) struct GraphDecoder<'m> {
    model: &'m Model,
    device: Device,
    rows: GpuCache,
    slot_table: SlotTable,
    /// `None` only after a GPU error.
    step: Option<Step>,
    /// Handles to the step's buffers.
    residual: Buffer<f32>,
    logits: Buffer<f32>,
    outcome: Buffer<u32>,
    /// `[width]`: the token's embedding.
    embedded: Vec<f32>,
    /// As `logits`, on the host.
    host_logits: Vec<f32>,
    /// As `outcome`, on the host.
    host_outcome: Vec<u32>,
    /// `[MOST_CANDIDATES]`
    top_k_logits: Vec<f32>,
    /// Number of most likely tokens that the last step selected.
    most: Option<usize>,
    q_heads: usize,
    bytes: u64,
}

/// The error for an object that already failed.
fn failed(device: &Device, what: &str, reason: &str) -> DeviceError {
    DeviceError::Failed {
        device: device.facts().name.clone(),
        what: what.to_owned(),
        reason: reason.to_owned(),
    }
}

impl<'m> GraphDecoder<'m> {
    /// Prepares decoding with `gpu_plan` over `cache`: takes over the rows that are on the GPU, or uploads
    /// the host's rows.
    pub(super) fn new(
        device: &Device,
        model: &'m Model,
        rope: &RopeTable,
        cache: &mut CompactCache,
        gpu_plan: &DecodePlan,
    ) -> Result<Self, EngineError> {
        let rows = cache.on_gpu.take();
        let upload = rows.is_none();
        assert!(
            !upload || cache.bytes_on_gpu() == 0,
            "rows in device memory come with the cache"
        );
        let mut graph_decoder = Self::allocate(device, model, rope, gpu_plan, rows)?;
        if upload {
            for (layer, cached) in cache.layers.iter().enumerate() {
                upload_rows(&mut graph_decoder.rows, layer, cached)?;
            }
        }
        Ok(graph_decoder)
    }

    /// Allocates everything on `device`: the GPU or a dry run of it. The rows are `rows`, or newly
    /// allocated.
    pub(super) fn allocate(
        device: &Device,
        model: &'m Model,
        rope: &RopeTable,
        gpu_plan: &DecodePlan,
        rows: Option<GpuCache>,
    ) -> Result<Self, DeviceError> {
        let (config, shape) = (model.config(), head_shape(model));
        let layers = gpu_plan.layers.len();
        let mut rows = match rows {
            Some(rows) => rows,
            None => GpuCache::new(device, shape, &gpu_plan.layers)?,
        };
        let outcome = 2 * (MOST_CANDIDATES + layers * shape.q_heads);
        let work = Work {
            gpu: model.shared_gpu().expect("a model on a GPU"),
            rope: GpuRope::new(device, rope)?,
            layers: rows.step_layers(rope.positions()),
            step: GpuStep::new(device, config)?,
            attend: DecodeScratch::new(device, shape, gpu_plan.max_rows, false)?,
            candidates: Candidates::new(device, config.vocab)?,
            outcome: device.zeros(outcome)?,
            scale: gpu_attention_scale(model),
            q_heads: shape.q_heads,
            most: 0,
        };
        let whole = |buffer: &Buffer<f32>| buffer.share(0..buffer.len());
        Ok(Self {
            model,
            device: device.clone(),
            embedded: vec![0.0; config.width],
            host_logits: vec![0.0; config.vocab],
            bytes: rows.bytes()
                + work.rope.bytes()
                + work.step.bytes()
                + work.attend.bytes()
                + work.candidates.bytes()
                + work.outcome.bytes(),
            residual: whole(work.step.residual()),
            logits: whole(work.step.logits()),
            outcome: work.outcome.share(0..outcome),
            host_outcome: vec![0; outcome],
            top_k_logits: vec![0.0; MOST_CANDIDATES],
            most: None,
            q_heads: shape.q_heads,
            slot_table: SlotTable::new(layers, shape.kv_heads),
            step: Some(Step::New(work)),
            rows,
        })
    }

    /// Takes the step's buffers, dropping a captured graph.
    fn take_work(&mut self) -> Result<Work, DeviceError> {
        match self.step.take() {
            Some(Step::New(work)) => Ok(work),
            Some(Step::CapturedGraph(captured_graph)) => Ok(captured_graph.into_work()),
            None => Err(failed(&self.device, "a token", "an earlier one failed")),
        }
    }

    /// Runs a token through the model. Selects the `most` most likely next tokens; with 0, the caller needs all
    /// logits.
    fn run(
        &mut self,
        token: u32,
        cache: &mut CompactCache,
        most: usize,
    ) -> Result<(), DeviceError> {
        self.model.embed(&[token], &mut self.embedded);
        self.residual.write(0, &self.embedded)?;
        self.slot_table.assign_slots(cache, &mut self.rows)?;
        self.rows
            .stage_position((cache.next.0 - cache.window_rope_origin.0) as usize);
        self.rows.send()?;
        for layer in 0..cache.layers.len() {
            self.rows.quantise_old_rows(layer)?;
        }
        match &self.step {
            Some(Step::CapturedGraph(captured_graph)) if self.most == Some(most) => {
                captured_graph.run()?
            }
            _ => {
                let mut work = self.take_work()?;
                let has_run = self.most == Some(most);
                work.most = most;
                self.most = Some(most);
                self.step = Some(if has_run {
                    let captured_graph = CapturedGraph::new(&self.device, work, Work::run)?;
                    captured_graph.run()?;
                    Step::CapturedGraph(captured_graph)
                } else {
                    Work::run(&self.device, &mut work)?;
                    Step::New(work)
                });
            }
        }
        self.outcome.read(0, &mut self.host_outcome)
    }

    /// The most likely tokens after the last one, in descending order, with their logits.
    fn top_k(&mut self) -> (&mut [f32], &[u32]) {
        let (logits, rest) = self.host_outcome.split_at(MOST_CANDIDATES);
        for (logit, bits) in self.top_k_logits.iter_mut().zip(logits) {
            *logit = f32::from_bits(*bits);
        }
        let most = self.most.unwrap_or(0);
        (&mut self.top_k_logits[..most], &rest[..most])
    }

    /// The largest probability of a query head in a layer, and its slot.
    fn most_attended(&self, layer: usize, q_head: usize) -> (f32, usize) {
        let at = 2 * (MOST_CANDIDATES + layer * self.q_heads + q_head);
        let [probability, slot] = [0, 1].map(|i| f32::from_bits(self.host_outcome[at + i]));
        (probability, slot as usize)
    }
}

impl DecodeBackend for GraphDecoder<'_> {
    fn logits_of(&mut self, hidden: &[f32]) -> Result<&mut [f32], EngineError> {
        self.residual.write(0, hidden)?;
        let mut work = self.take_work()?;
        let gpu = work.gpu.clone();
        gpu.last_logits(&mut work.step)?;
        self.step = Some(Step::New(work));
        self.logits.read(0, &mut self.host_logits)?;
        Ok(&mut self.host_logits)
    }

    fn step(
        &mut self,
        token: u32,
        cache: &mut CompactCache,
        after: &mut AfterLayer<'_>,
        top_k: Option<usize>,
    ) -> Result<StepOutput<'_>, EngineError> {
        self.run(token, cache, top_k.unwrap_or(0))?;
        for (layer, cached) in cache.layers.iter_mut().enumerate() {
            let most = |q_head: usize, _| self.most_attended(layer, q_head);
            let attention = LayerAttention {
                probabilities: Probabilities::NONE,
                most: &most,
            };
            after.layer(cached, &attention, &mut |_| ());
        }
        if top_k.is_some() {
            let (logits, tokens) = self.top_k();
            return Ok(StepOutput::TopK(logits, tokens));
        }
        self.logits.read(0, &mut self.host_logits)?;
        Ok(StepOutput::Logits(&mut self.host_logits))
    }

    fn host_bytes(&self) -> u64 {
        (size_of_val(self.embedded.as_slice()) + size_of_val(self.host_logits.as_slice())) as u64
    }

    fn device_bytes(&self) -> u64 {
        self.bytes
    }

    fn into_rows(self: Box<Self>) -> Option<DeviceRows> {
        Some(self.rows)
    }
}
