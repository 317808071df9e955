//! An answer that a GPU writes by itself, for methods that have nothing to do while it is written: a token's whole step is recorded
//! once and run again, the next token is chosen there, and only it comes back, with where each head looked.
//!
//! ```text
//! host   embedding, slots of all layers | ................................................. | the next token, or the likeliest ones
//! GPU                                  | 8 launches a layer, logits, choice: one CUDA graph |
//! ```
//!
//! The host keeps the books as ever (which slot is whose), but not the rows of the answer's own tokens: nobody looks at them there.

use std::sync::Arc;

use kept_cuda::{
    Buffer, Candidates, CapturedGraph, DecodeScratch, Device, DeviceError, GpuCache,
    MOST_CANDIDATES, StepLayer,
};
use kept_kernels::Scale;
use kept_models::{GpuModel, GpuRope, GpuStep, Model, RopeTable};

use super::gpu_plan::GpuDecodePlan;
use super::slot_table::{SlotTable, send_rows};
use crate::EngineError;
use crate::compact::CompactCache;
use crate::shape::{attention_scale, head_shape};

/// Everything that a recorded step works on.
struct Work {
    gpu: Arc<GpuModel>,
    rope: GpuRope,
    layers: Vec<StepLayer>,
    step: GpuStep,
    attend: DecodeScratch,
    candidates: Candidates,
    /// `[2, MOST_CANDIDATES]`: bits of the largest logits and their tokens; then `[layers, q_heads, 2]`: bits of the largest probability of each
    /// query head, and of its slot as a number.
    outcome: Buffer<u32>,
    scale: Scale,
    q_heads: usize,
    /// How many of the likeliest tokens are looked for.
    most: usize,
}

impl Work {
    /// One step, of what was told.
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
        gpu.step(device, step, (layers, rope), |layer, rows, queries, out| {
            let first = 2 * MOST_CANDIDATES + 2 * layer * *q_heads;
            let mut best = outcome.share(first..first + 2 * *q_heads);
            rows.attend(device, (*scale, queries), attend, (out, &mut best))
        })?;
        if *most == 0 {
            return Ok(());
        }
        let mut logits = outcome.share(0..MOST_CANDIDATES);
        let mut tokens = outcome.share(MOST_CANDIDATES..2 * MOST_CANDIDATES);
        let found = (&mut logits, &mut tokens);
        device.largest(step.logits(), *most, candidates, found)
    }
}

/// A step before it is recorded, and after.
enum Step {
    /// Run launch by launch: once, so that the driver has everything at hand that it is to record.
    New(Work),
    CapturedGraph(CapturedGraph<Work>),
}

/// The cache on a GPU, and all buffers of the decode loop.
pub(super) struct GraphDecoder {
    device: Device,
    rows: GpuCache,
    slot_table: SlotTable,
    /// `None` after an error of the GPU only.
    step: Option<Step>,
    /// The step's buffers, under names of their own.
    residual: Buffer<f32>,
    logits: Buffer<f32>,
    outcome: Buffer<u32>,
    /// As `outcome`, on the host.
    outcome_here: Vec<u32>,
    /// `[MOST_CANDIDATES]`
    likeliest: Vec<f32>,
    /// How many of the likeliest tokens the last step looked for.
    most: Option<usize>,
    q_heads: usize,
    bytes: u64,
}

/// What became of something that met an error before.
fn failed(device: &Device, what: &str, reason: &str) -> DeviceError {
    DeviceError::Failed {
        device: device.facts().name.clone(),
        what: what.to_owned(),
        reason: reason.to_owned(),
    }
}

impl GraphDecoder {
    /// Answers over `cache` on the GPU that has the model's weights, where it has `gpu_plan`: over the rows that lie there, which it takes
    /// over, or over a copy of the host's.
    pub(super) fn new(
        device: &Device,
        model: &Model,
        rope: &RopeTable,
        cache: &mut CompactCache,
        gpu_plan: &GpuDecodePlan,
    ) -> Result<Self, EngineError> {
        let there = cache.on_gpu.take();
        let copied = there.is_none();
        if copied && cache.bytes_on_gpu() > 0 {
            // Whoever took the rows over met an error, and they are gone.
            return Err(failed(device, "an answer", "an earlier try failed").into());
        }
        let mut graph_decoder = Self::on(device, model, rope, gpu_plan, there)?;
        if copied {
            for (layer, cached) in cache.layers.iter().enumerate() {
                send_rows(&mut graph_decoder.rows, layer, cached)?;
            }
        }
        Ok(graph_decoder)
    }

    /// Everything in memory of `device`, which is the GPU or stands for it; the rows are those that lie there already, or room for some.
    pub(super) fn on(
        device: &Device,
        model: &Model,
        rope: &RopeTable,
        gpu_plan: &GpuDecodePlan,
        there: Option<GpuCache>,
    ) -> Result<Self, DeviceError> {
        let (config, shape) = (model.config(), head_shape(model));
        let layers = gpu_plan.layers.len();
        let mut rows = match there {
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
            scale: attention_scale(model),
            q_heads: shape.q_heads,
            most: 0,
        };
        let whole = |buffer: &Buffer<f32>| buffer.share(0..buffer.len());
        Ok(Self {
            device: device.clone(),
            bytes: rows.bytes()
                + work.rope.bytes()
                + work.step.bytes()
                + work.attend.bytes()
                + work.candidates.bytes()
                + work.outcome.bytes(),
            residual: whole(work.step.residual()),
            logits: whole(work.step.logits()),
            outcome: work.outcome.share(0..outcome),
            outcome_here: vec![0; outcome],
            likeliest: vec![0.0; MOST_CANDIDATES],
            most: None,
            q_heads: shape.q_heads,
            slot_table: SlotTable::new(layers, shape.kv_heads),
            step: Some(Step::New(work)),
            rows,
        })
    }

    /// Bytes on the GPU, the weights' apart.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The step's own work, not recorded any more.
    fn work(&mut self) -> Result<Work, DeviceError> {
        match self.step.take() {
            Some(Step::New(work)) => Ok(work),
            Some(Step::CapturedGraph(captured_graph)) => Ok(captured_graph.into_work()),
            None => Err(failed(&self.device, "a token", "an earlier one failed")),
        }
    }

    /// The rows, those of the answer's own tokens included.
    pub(super) fn into_rows(self) -> GpuCache {
        self.rows
    }

    /// Runs a token, whose embedding is `embedded [width]`, through the model. The `most` likeliest next tokens are looked for; 0 where all logits
    /// are wanted.
    pub(super) fn run(
        &mut self,
        cache: &mut CompactCache,
        embedded: &[f32],
        most: usize,
    ) -> Result<(), DeviceError> {
        self.residual.write(0, embedded)?;
        self.slot_table.tell(cache, &mut self.rows)?;
        self.rows
            .tell_place((cache.next.0 - cache.turned_from.0) as usize);
        self.rows.send()?;
        for layer in 0..cache.layers.len() {
            self.rows.age(layer)?;
        }
        match &self.step {
            Some(Step::CapturedGraph(captured_graph)) if self.most == Some(most) => {
                captured_graph.run()?
            }
            _ => {
                let mut work = self.work()?;
                let has_run = self.most == Some(most);
                work.most = most;
                self.most = Some(most);
                self.step = Some(match has_run {
                    true => {
                        let captured_graph = CapturedGraph::new(&self.device, work, Work::run)?;
                        captured_graph.run()?;
                        Step::CapturedGraph(captured_graph)
                    }
                    false => {
                        Work::run(&self.device, &mut work)?;
                        Step::New(work)
                    }
                });
            }
        }
        self.outcome.read(0, &mut self.outcome_here)
    }

    /// The likeliest tokens after the last one, in their order, and their logits.
    pub(super) fn likeliest(&mut self) -> (&mut [f32], &[u32]) {
        let (logits, rest) = self.outcome_here.split_at(MOST_CANDIDATES);
        for (logit, bits) in self.likeliest.iter_mut().zip(logits) {
            *logit = f32::from_bits(*bits);
        }
        let most = self.most.unwrap_or(0);
        (&mut self.likeliest[..most], &rest[..most])
    }

    /// All logits `[vocab]` after the last token.
    pub(super) fn logits(&self, logits: &mut [f32]) -> Result<(), DeviceError> {
        self.logits.read(0, logits)
    }

    /// The largest probability of a query head in a layer, and the slot that got it.
    pub(super) fn best(&self, layer: usize, q_head: usize) -> (f32, usize) {
        let at = 2 * (MOST_CANDIDATES + layer * self.q_heads + q_head);
        let [probability, slot] = [0, 1].map(|i| f32::from_bits(self.outcome_here[at + i]));
        (probability, slot as usize)
    }

    /// Logits `[vocab]` of a row `[width]` after the last layer.
    pub(super) fn logits_of(
        &mut self,
        hidden: &[f32],
        logits: &mut [f32],
    ) -> Result<(), DeviceError> {
        self.residual.write(0, hidden)?;
        let mut work = self.work()?;
        let gpu = work.gpu.clone();
        gpu.last_logits(&mut work.step)?;
        self.step = Some(Step::New(work));
        self.logits.read(0, logits)
    }
}
