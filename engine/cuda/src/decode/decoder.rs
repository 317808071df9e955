//! Decoding on the GPU. A whole step is captured as a CUDA graph once and replayed. The next token is selected on the
//! GPU; only it and the most attended slot per head are downloaded.
//!
//! ```text
//! host   embedding, slots of all layers | ................................. | next token, or top-k | method
//! GPU                                  | all layers, logits, top-k: one CUDA graph |
//! ```
//!
//! The host assigns slots and positions as always. If the method changes rows while it answers, all probabilities and
//! the new rows are downloaded too: the method works on the host's copy of the rows, and its changes are uploaded.
//! Otherwise nothing on the host reads the rows of the answer's tokens, and it does not have them.

use std::sync::Arc;

use kept_cuda::{
    Buffer, Candidates, CapturedGraph, DecodeOutput, Device, DeviceError, GpuCache, MAX_CANDIDATES,
    StepLayer, StepScratch,
};
use kept_engine::backend::{
    AfterLayer, DecodeBackend, DeviceRows, LayerAttention, PartTime, Probabilities, StepOutput,
    head_shape,
};
use kept_engine::{CompactCache, EngineError};
use kept_kernels::Scale;
use kept_models::{Model, RopeTable};

use super::observed::Observed;
use super::plan::DecodePlan;
use super::slot_table::{SlotTable, upload_rows};
use crate::model::{GpuModel, GpuRope, GpuStep, StepPart, attention_scale};

/// How often a part of a step is replayed to time it: the host's launch and wait are then a small share.
const REPLAYS: usize = 10;

/// Buffers and parameters of a captured step.
struct Work {
    gpu: Arc<GpuModel>,
    rope: GpuRope,
    layers: Vec<StepLayer>,
    step: GpuStep,
    attend: StepScratch,
    candidates: Candidates,
    /// `[2, MAX_CANDIDATES]`: bits of the largest logits and their tokens; then `[layers, q_heads, 2]`: bits
    /// of the largest probability of each query head, and of its slot or entry as an f32.
    outcome: Buffer<u32>,
    /// `[layers, q_heads, stride]`: all probabilities, if the method reads them.
    probabilities: Option<Buffer<f32>>,
    scale: Scale<'static>,
    q_heads: usize,
    /// Number of most likely tokens to select.
    top_k: usize,
    /// The part to time, launched alone.
    only: Option<StepPart>,
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
            probabilities,
            scale,
            q_heads,
            top_k,
            only,
        } = work;
        let of_layer = (probabilities.as_ref()).map_or(0, |all| all.len() / layers.len());
        gpu.step(
            device,
            step,
            layers,
            rope,
            *only,
            |layer, rows, queries, out| {
                let first = 2 * MAX_CANDIDATES + 2 * layer * *q_heads;
                let own = layer * of_layer..(layer + 1) * of_layer;
                let mut probabilities = probabilities.as_ref().map(|all| all.share(own));
                let output = DecodeOutput {
                    out,
                    best: &mut outcome.share(first..first + 2 * *q_heads),
                    probabilities: probabilities.as_mut(),
                };
                let angles = rope.of_layer(layer);
                rows.attend(device, *scale, angles, queries, attend, output)
            },
        )?;
        if *top_k == 0 || only.is_some() {
            return Ok(());
        }
        let mut logits = outcome.share(0..MAX_CANDIDATES);
        let mut tokens = outcome.share(MAX_CANDIDATES..2 * MAX_CANDIDATES);
        device.largest(step.logits(), *top_k, candidates, &mut logits, &mut tokens)
    }
}

/// A step before and after capture.
enum Step {
    /// Runs launch by launch: once, so that the driver has loaded everything before capture.
    New(Work),
    CapturedGraph(CapturedGraph<Work>),
}

/// The GPU cache and all device buffers of the decode loop.
pub(crate) struct CudaDecoder<'m> {
    model: &'m Model,
    /// Counts all buffers but the rows.
    device: Device,
    rows: GpuCache,
    slot_table: SlotTable,
    /// `None` only after a GPU error.
    step: Option<Step>,
    /// Set if the method changes rows.
    observed: Option<Observed>,
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
    /// `[MAX_CANDIDATES]`
    top_k_logits: Vec<f32>,
    /// Number of most likely tokens that the last step selected.
    top_k: Option<usize>,
    q_heads: usize,
}

/// The rows that an earlier prefill or answer left on the GPU.
fn own_rows(rows: DeviceRows) -> GpuCache {
    *rows.downcast().expect("rows of this backend")
}

/// The largest probability of a query head in a layer, and its slot or entry, of an outcome on the host.
fn most_attended(outcome: &[u32], head: usize) -> (f32, usize) {
    let at = 2 * (MAX_CANDIDATES + head);
    let [probability, slot] = [0, 1].map(|i| f32::from_bits(outcome[at + i]));
    (probability, slot as usize)
}

impl<'m> CudaDecoder<'m> {
    /// Prepares decoding with `gpu_plan` over `cache`: takes over the rows that are on the GPU, or uploads
    /// the host's rows.
    pub(crate) fn new(
        gpu: &Arc<GpuModel>,
        model: &'m Model,
        rope: &RopeTable,
        cache: &mut CompactCache,
        gpu_plan: &DecodePlan,
    ) -> Result<Self, EngineError> {
        let rows = cache.on_gpu.take().map(own_rows);
        let upload = rows.is_none();
        assert!(
            !upload || cache.bytes_on_gpu() == 0,
            "rows in device memory come with the cache"
        );
        assert!(
            upload || !gpu_plan.reads_probabilities,
            "a method that changes rows was given a cache of one that does not"
        );
        let device = gpu.device();
        let mut decoder = Self::allocate(device, gpu, model, rope, gpu_plan, rows)?;
        if upload {
            for (layer, cached) in cache.layers.iter().enumerate() {
                upload_rows(&mut decoder.rows, layer, cached)?;
            }
        }
        Ok(decoder)
    }

    /// Allocates everything on `device`: the GPU or a dry run of it. The rows are `rows`, or newly
    /// allocated.
    pub(super) fn allocate(
        device: &Device,
        gpu: &Arc<GpuModel>,
        model: &'m Model,
        rope: &RopeTable,
        gpu_plan: &DecodePlan,
        rows: Option<GpuCache>,
    ) -> Result<Self, DeviceError> {
        let device = &device.counting();
        let (config, shape) = (model.config(), head_shape(model));
        let layers = gpu_plan.layers.len();
        let mut rows = match rows {
            Some(rows) => rows,
            None => GpuCache::new(device, shape, &gpu_plan.layers)?,
        };
        let observed = || Observed::new(device, shape, gpu_plan);
        let observed = gpu_plan.reads_probabilities.then(observed).transpose()?;
        if observed.is_some() {
            rows.prepare_changes()?;
        }
        let outcome = 2 * (MAX_CANDIDATES + layers * shape.q_heads);
        let (max_rows, max_entries) = (gpu_plan.max_rows, gpu_plan.max_entries);
        let work = Work {
            gpu: gpu.clone(),
            rope: GpuRope::new(device, rope)?,
            layers: rows.step_layers(rope.positions(), observed.as_ref().map(|o| &o.rows)),
            step: GpuStep::new(device, config)?,
            attend: StepScratch::new(device, shape, max_rows, max_entries)?,
            candidates: Candidates::new(device, config.vocab)?,
            outcome: device.zeros(outcome)?,
            probabilities: observed.as_ref().map(|o| o.probabilities.clone()),
            scale: attention_scale(config),
            q_heads: shape.q_heads,
            top_k: 0,
            only: None,
        };
        Ok(Self {
            model,
            device: device.clone(),
            embedded: vec![0.0; config.width],
            host_logits: vec![0.0; config.vocab],
            residual: work.step.residual().clone(),
            logits: work.step.logits().clone(),
            outcome: work.outcome.clone(),
            host_outcome: vec![0; outcome],
            top_k_logits: vec![0.0; MAX_CANDIDATES],
            top_k: None,
            q_heads: shape.q_heads,
            slot_table: SlotTable::new(layers, shape.kv_heads),
            step: Some(Step::New(work)),
            observed,
            rows,
        })
    }

    /// Takes the step's buffers, dropping a captured graph.
    fn take_work(&mut self) -> Result<Work, DeviceError> {
        match self.step.take() {
            Some(Step::New(work)) => Ok(work),
            Some(Step::CapturedGraph(captured_graph)) => Ok(captured_graph.into_work()),
            None => {
                let gpu = &self.device.properties().name;
                Err(DeviceError::failed(gpu, "a token", "an earlier one failed"))
            }
        }
    }

    /// Runs a token through the model. Selects the `top_k` most likely next tokens; with 0, the caller needs all
    /// logits.
    fn run(
        &mut self,
        token: u32,
        cache: &mut CompactCache,
        top_k: usize,
    ) -> Result<(), DeviceError> {
        self.model.embed(&[token], &mut self.embedded);
        self.residual.write(0, &self.embedded)?;
        self.slot_table.assign_slots(cache, &mut self.rows)?;
        self.rows
            .send((cache.next.0 - cache.window_rope_origin.0) as usize)?;
        match &self.step {
            Some(Step::CapturedGraph(captured_graph)) if self.top_k == Some(top_k) => {
                captured_graph.run()?
            }
            _ => {
                let mut work = self.take_work()?;
                let has_run = self.top_k == Some(top_k);
                work.top_k = top_k;
                self.top_k = Some(top_k);
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
        self.outcome.read(0, &mut self.host_outcome)?;
        match &mut self.observed {
            Some(observed) => observed.download(&self.slot_table, cache),
            None => Ok(()),
        }
    }

    /// The most likely tokens after the last one, in descending order, with their logits.
    fn top_k(&mut self) -> (&mut [f32], &[u32]) {
        let (logits, rest) = self.host_outcome.split_at(MAX_CANDIDATES);
        for (logit, bits) in self.top_k_logits.iter_mut().zip(logits) {
            *logit = f32::from_bits(*bits);
        }
        let k = self.top_k.unwrap_or(0);
        (&mut self.top_k_logits[..k], &rest[..k])
    }
}

impl DecodePlan {
    /// Device bytes for decoding, without the weights, with rotations of `positions` positions.
    pub(crate) fn bytes(
        &self,
        gpu: &Arc<GpuModel>,
        model: &Model,
        positions: usize,
    ) -> Result<u64, DeviceError> {
        // A RoPE table has the same size for every position.
        let a_position = RopeTable::new(model.config(), 1);
        let taken = gpu.device().measure_allocations(|device| {
            CudaDecoder::allocate(device, gpu, model, &a_position, self, None).map(drop)
        })?;
        Ok(taken + (positions.max(1) as u64 - 1) * a_position.bytes())
    }
}

impl DecodeBackend for CudaDecoder<'_> {
    fn max_top_k(&self) -> usize {
        MAX_CANDIDATES
    }

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
        let (q_heads, outcome) = (self.q_heads, &self.host_outcome);
        for (layer, cached) in cache.layers.iter_mut().enumerate() {
            // If all probabilities are NaN, the kernel writes a slot that does not exist: clamp it, so that it stays
            // in range.
            let most = |q_head: usize, rows: usize| {
                let (probability, slot) = most_attended(outcome, layer * q_heads + q_head);
                (probability, slot.min(rows - 1))
            };
            let Some(observed) = &mut self.observed else {
                let attention = LayerAttention {
                    probabilities: Probabilities::NONE,
                    most_attended: &most,
                };
                after.layer(cached, &attention, &mut |_| ());
                continue;
            };
            let mut changed = std::mem::take(&mut observed.changed);
            let attention = LayerAttention {
                probabilities: observed.probabilities(layer, q_heads),
                most_attended: &most,
            };
            after.layer(cached, &attention, &mut |change| changed.push(change));
            observed.changed = changed;
            observed.pass_changes(layer, cached, &mut self.slot_table, &mut self.rows)?;
        }
        if top_k.is_some() {
            let (logits, tokens) = self.top_k();
            return Ok(StepOutput::TopK(logits, tokens));
        }
        self.logits.read(0, &mut self.host_logits)?;
        Ok(StepOutput::Logits(&mut self.host_logits))
    }

    fn part_times(&mut self, cache: &CompactCache) -> Result<Vec<PartTime>, EngineError> {
        let mut work = self.take_work()?;
        let gpu = work.gpu.clone();
        let mut times = Vec::new();
        for (part, name) in StepPart::ALL {
            let layers = cache.layers.len();
            let attends = part == StepPart::Attention;
            let rows = if attends { cache.kv_bytes() } else { 0 };
            work.only = Some(part);
            let graph = CapturedGraph::new(&self.device, work, Work::run)?;
            let replay = || (0..REPLAYS).try_for_each(|_| graph.run());
            let seconds = self.device.seconds(replay)?;
            work = graph.into_work();
            times.push(PartTime {
                part: name,
                times: if part.is_of_layers() { layers } else { 1 },
                seconds: seconds / REPLAYS as f64,
                bytes: gpu.part_bytes(part) + rows,
            });
        }
        Ok(times)
    }

    fn host_bytes(&self) -> u64 {
        (size_of_val(self.embedded.as_slice()) + size_of_val(self.host_logits.as_slice())) as u64
    }

    fn device_bytes(&self) -> u64 {
        self.device.held() + self.rows.bytes()
    }

    fn into_rows(self: Box<Self>) -> Option<DeviceRows> {
        Some(Box::new(self.rows))
    }
}
