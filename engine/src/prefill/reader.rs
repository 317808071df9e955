//! One prefill, layer by layer: [`Reader::read`] runs every token through a layer in chunks (`chunk.rs`),
//! [`Reader::cut`] keeps the rows that a method selects (`cut.rs`). Several methods may select from the same
//! layer independently.

mod chunk;
mod cut;

use std::time::{Duration, Instant};

use kept_cuda::GpuCache;
use kept_kernels::{HeadShape, RowStore, Stop};
use kept_models::{GpuModel, Model, RopeTable};
use kept_policies::{WeightedWindow, Window};

use super::Reconstructed;
use super::gpu::GpuReading;
use super::prefix::{FEW_ROWS, Learned, Prefix};
use super::progress::ReadingProgress;
use super::reconstruction::{ReconstructionPass, RepeatedLayer};
use super::scratch::Scratch;
use super::token_dropping::SurvivingTokens;
use crate::gathered_rope::GatheredRope;
use crate::plan::PrefillPlan;
use crate::shape::head_shape;
use crate::vault::HostRows;
use crate::{EngineError, MemoryLedger, Watch};

/// The input of a prefill, common to all methods.
#[derive(Clone, Copy)]
pub(super) struct Read<'a> {
    pub(super) model: &'a Model,
    /// `[n]`
    pub(super) ids: &'a [u32],
    pub(super) rope: &'a RopeTable,
    pub(super) every_row: bool,
}

/// State of a prefill: the residual stream, the current layer and all buffers.
pub(super) struct Reader<'a> {
    of: Read<'a>,
    /// One entry per method; exactly one if tokens are dropped or the document is reconstructed.
    sizes: &'a [PrefillPlan],
    heads: HeadShape,
    /// `[layer_input_tokens, width]`: residual stream of the tokens that enter the layer.
    residual: Vec<f32>,
    /// Rows of the residual stream, on host or device.
    entered: usize,
    /// Positions of these rows.
    alive: SurvivingTokens,
    /// `[chunk]`: rotations, if row indices differ from positions.
    gathered_rope: Option<GatheredRope>,
    /// The reconstruction pass, if the method needs one.
    reconstruction: Option<ReconstructionPass<'a>>,
    /// `[kv_heads, n]`: scores of the reconstruction or of the method, if the vault has or will store them.
    known_scores: Vec<f32>,
    /// Whether `known_scores` are the method's scores of the current layer.
    scored: bool,
    /// What is read from and written to the vault.
    prefix: &'a mut Prefix,
    scratch: Scratch,
    /// On a GPU, replaces `residual` and most of `scratch`.
    gpu: Option<GpuReading<'a>>,
    /// Whether all rows of the current layer are on the host.
    whole: bool,
    /// `[methods]`: the tokens that deeper layers may still keep, of methods that evict tokens for good
    /// ([`Selection::candidates`](kept_policies::Selection::candidates)).
    candidates: Vec<Option<Vec<u32>>>,
    /// Measurements of the current layer that the scratch holds now: the next method may need the same.
    held: Held,
    /// Number of last rows of the prompt whose log-sum-exp, computed by this layer's attention, is in the
    /// scratch.
    attended: usize,
    /// Copy of the keys before RoPE for one of several methods: the others need the rotated keys.
    raw_keys: Option<RowStore>,
    progress: &'a mut ReadingProgress,
    /// Largest size of a layer pass so far, in bytes.
    largest_pass: u64,
    /// Device bytes of the reconstruction pass.
    staged: u64,
}

/// A global layer: one that methods compact.
#[derive(Debug, Clone, Copy)]
pub(super) struct GlobalLayer {
    /// Index among all layers of the model.
    pub(super) in_model: usize,
    /// Index among the global layers, as policies count.
    pub(super) in_policy: usize,
}

/// One layer's prefill and the measurements that methods request from it.
struct LayerTask {
    /// Index among all layers of the model.
    layer: usize,
    last_layer: bool,
    /// Tokens that enter the layer.
    n: usize,
    /// How many of them are in the prefix.
    prefix: usize,
    column_sums: bool,
    /// Whether scores of the reconstruction are requested.
    reconstruction: bool,
    /// The first token of the observation window.
    window_from: usize,
}

/// The requests whose results the scratch holds.
#[derive(Default)]
struct Held {
    window: Option<Window>,
    weighted_window: Option<WeightedWindow>,
    low_attention: Option<usize>,
}

impl<'a> Reader<'a> {
    /// Allocates everything. `sizes` has one entry per method.
    ///
    /// # Errors
    /// [`EngineError::Gpu`] if the GPU has too little memory.
    pub(super) fn new(
        of: Read<'a>,
        sizes: &'a [PrefillPlan],
        prefix: &'a mut Prefix,
        progress: &'a mut ReadingProgress,
    ) -> Result<Self, EngineError> {
        assert!(
            sizes.len() == 1 || !sizes.iter().any(PrefillPlan::needs_own_reading),
            "a method that changes prefill cannot share it with other methods"
        );
        let Read {
            model, ids, rope, ..
        } = of;
        let (heads, first) = (head_shape(model), &sizes[0]);
        let mut residual = vec![0.0f32; first.residual()];
        model.embed(&ids[prefix.known()..], &mut residual);
        let known_scores = if prefix.has_scores() {
            vec![0.0; heads.kv_heads * ids.len()]
        } else {
            Vec::new()
        };
        let reconstruction = (first.reconstruction_plan.as_ref())
            .map(|plan| ReconstructionPass::new(model, ids, rope, first, plan, heads));
        let mut gpu = (model.gpu())
            .map(|gpu| GpuReading::new(gpu, model, rope, sizes))
            .transpose()?;
        if let Some(gpu) = &mut gpu {
            gpu.upload_residual(&std::mem::take(&mut residual))?;
        }
        let staged = match (model.gpu(), &first.reconstruction_plan) {
            (Some(gpu), Some(plan)) => ReconstructionPass::gpu_bytes(gpu, model, first, plan)?,
            _ => 0,
        };
        Ok(Self {
            of,
            sizes,
            heads,
            entered: first.residual() / model.config().width,
            residual,
            alive: SurvivingTokens::default(),
            gathered_rope: first
                .drops_tokens()
                .then(|| GatheredRope::new(rope, first.chunk)),
            reconstruction,
            known_scores,
            scored: false,
            prefix,
            scratch: Scratch::new(sizes, heads),
            whole: gpu.is_none(),
            gpu,
            candidates: vec![None; sizes.len()],
            held: Held::default(),
            attended: 0,
            raw_keys: None,
            progress,
            largest_pass: 0,
            staged,
        })
    }

    /// KV heads of a layer.
    pub(super) fn kv_heads(&self) -> usize {
        self.heads.kv_heads
    }

    /// The sizes of all methods.
    pub(super) fn sizes(&self) -> &'a [PrefillPlan] {
        self.sizes
    }

    /// Runs the tokens without known rows through `layer`: computes keys, values, the layer's output and the
    /// requested measurements. Returns the time spent measuring.
    ///
    /// # Errors
    /// [`EngineError::Stopped`]; [`EngineError::Vault`] if known rows cannot be read.
    pub(super) fn read(
        &mut self,
        layer: usize,
        watch: &mut dyn Watch,
        stop: &Stop,
    ) -> Result<Duration, EngineError> {
        let task = self.begin_layer(layer);
        self.load_known(&task, stop)?;
        stop.check()?;
        let measuring = self.read_prefix(&task, watch, stop)?;
        self.end_prefix(&task, stop);
        Ok(measuring + self.read_rest(&task, watch, stop)?)
    }

    /// Resets the measurements for `layer`.
    fn begin_layer(&mut self, layer: usize) -> LayerTask {
        let sizes = &self.sizes[0];
        let n = sizes.entering_in(layer);
        let needs = || self.sizes.iter().map(|sizes| sizes.needs_in(layer));
        let task = LayerTask {
            layer,
            last_layer: layer + 1 == sizes.keeps.len(),
            n,
            // A prefill that drops tokens uses no vault: all entering tokens then count as the prefix.
            prefix: self.prefix.tokens().min(n),
            column_sums: needs().any(|needs| needs.column_sums),
            reconstruction: needs().any(|needs| needs.reconstruction.is_some()),
            window_from: n - needs().map(|needs| needs.query_rows()).max().unwrap_or(0),
        };
        let scratch = &mut self.scratch;
        scratch.measured.start(
            self.heads,
            self.sizes.iter().filter_map(|s| s.needs_in(layer).future),
        );
        scratch.window_queries.clear();
        self.held = Held::default();
        self.whole = self.gpu.is_none();
        if task.column_sums {
            scratch.column_sums.clear();
            scratch.column_sums.resize(self.heads.q_heads * n, 0.0);
        }
        task
    }

    /// Runs the prefix's tokens without known rows through the layer, then the reconstruction pass, if any.
    fn read_prefix(
        &mut self,
        task: &LayerTask,
        watch: &mut dyn Watch,
        stop: &Stop,
    ) -> Result<Duration, EngineError> {
        let (model, chunk) = (self.of.model, self.sizes[0].chunk);
        let (known, prefix) = (self.prefix.known(), task.prefix);
        let mut measuring = Duration::ZERO;
        // The layer's weights are rearranged on first use.
        let mut pass = None;
        let at_once = chunk.min(match self.reconstruction {
            Some(_) => prefix,
            None => prefix.saturating_sub(known),
        });
        for first in (known..prefix).step_by(chunk) {
            let rows = first..prefix.min(first + chunk);
            if self.gpu.is_some() {
                self.read_chunk_on_gpu(task, rows, watch, stop)?;
                continue;
            }
            let pass = match &mut pass {
                Some(pass) => pass,
                none => none.insert(model.layer_pass(task.layer, at_once)?),
            };
            measuring += self.read_chunk(task, pass, rows, watch, stop)?;
        }
        self.download_query_sums(&(known.min(prefix)..prefix))?;
        if self.reconstruction.is_some() {
            self.download_rows(prefix)?;
        }
        if self.reconstruction.is_some() || self.prefix.writes() {
            self.download_column_sums()?;
        }
        if let Some(reconstruction) = &mut self.reconstruction {
            let pass = match &mut pass {
                Some(pass) => pass,
                none => none.insert(model.layer_pass(task.layer, at_once)?),
            };
            let started = Instant::now();
            let layer = RepeatedLayer {
                layer: task.layer,
                scores: task.reconstruction,
                outputs: !task.last_layer || self.of.every_row,
            };
            let mut report = |rows| self.progress.add_rows(rows, watch);
            reconstruction.read(layer, pass, &mut self.scratch, stop, &mut report)?;
            measuring += started.elapsed();
        }
        let tiles = pass.map_or(0, |pass| pass.bytes());
        self.largest_pass = self.largest_pass.max(tiles);
        Ok(measuring)
    }

    /// Runs the tokens after the prefix through the layer.
    fn read_rest(
        &mut self,
        task: &LayerTask,
        watch: &mut dyn Watch,
        stop: &Stop,
    ) -> Result<Duration, EngineError> {
        let (model, chunk) = (self.of.model, self.sizes[0].chunk);
        let (prefix, n) = (task.prefix, task.n);
        let rest = n - prefix;
        let mut measuring = Duration::ZERO;
        if self.gpu.is_some() {
            for first in (prefix..n).step_by(chunk) {
                let rows = first..n.min(first + chunk);
                self.read_chunk_on_gpu(task, rows, watch, stop)?;
            }
            self.download_query_sums(&(prefix..n))?;
            self.download_column_sums()?;
        } else if rest > 0 {
            // The choice depends only on `rest`, so an answer does not depend on whether the prefix was just
            // read.
            let mut pass = if rest <= FEW_ROWS {
                model.layer_pass_mapped(task.layer, rest)
            } else {
                model.layer_pass(task.layer, chunk.min(rest))?
            };
            for first in (prefix..n).step_by(chunk) {
                let rows = first..n.min(first + chunk);
                measuring += self.read_chunk(task, &mut pass, rows, watch, stop)?;
            }
            self.largest_pass = self.largest_pass.max(pass.bytes());
        }
        Ok(measuring)
    }

    /// Loads the known tokens' rows and measurements of the layer from the vault.
    fn load_known(&mut self, task: &LayerTask, stop: &Stop) -> Result<(), EngineError> {
        let layer = task.layer;
        let scratch = &mut self.scratch;
        let prefix = &mut *self.prefix;
        match &mut self.gpu {
            Some(gpu) => match gpu.finish_prefetch()? {
                Some((vault, numbers)) => prefix.begin_prefetched_layer(vault, numbers),
                None => {
                    let mut rows = gpu.known_rows();
                    prefix.begin_layer(layer, &mut rows, stop)?;
                    rows.outcome?;
                }
            },
            None => {
                let mut rows = HostRows {
                    keys: &mut scratch.keys,
                    values: &mut scratch.values,
                    space: &mut scratch.packed,
                };
                prefix.begin_layer(layer, &mut rows, stop)?;
            }
        }
        prefix.append_queries(task.window_from, &mut scratch.window_queries);
        if task.column_sums {
            prefix.fill_column_sums(&mut scratch.column_sums, task.n);
        }
        for future in (self.sizes.iter()).filter_map(|sizes| sizes.needs_in(layer).future) {
            prefix.fill_query_sums(future, &mut scratch.measured);
        }
        self.scored = false;
        if prefix.knows_reconstruction() {
            prefix.fill_reconstruction(&mut self.known_scores, task.n);
        }
        if let Some(score_cache) = self.sizes[0].needs_in(layer).score_cache {
            self.scored = prefix.fill_scores(score_cache, &mut self.known_scores, task.n);
        }
        if let Some(gpu) = &mut self.gpu {
            let sums = if task.column_sums {
                scratch.column_sums.as_slice()
            } else {
                &[]
            };
            gpu.begin_layer(sums, &scratch.window_queries)?;
            if gpu.prefetches()
                && !task.last_layer
                && let Some(vault) = prefix.take_vault()
            {
                gpu.start_prefetch(vault, layer + 1, prefix.known())?;
            }
        }
        Ok(())
    }

    /// Writes the prefix's part of the layer to the vault.
    fn end_prefix(&mut self, task: &LayerTask, stop: &Stop) {
        let scratch = &self.scratch;
        let learned = Learned {
            // A GPU wrote them chunk by chunk.
            rows: (self.gpu.is_none()).then_some((&scratch.keys, &scratch.values)),
            tokens: task.n,
            column_sums: &scratch.column_sums,
            measured: &scratch.measured,
            reconstruction: (self.reconstruction.as_ref()).map_or(&[], |r| r.scores.as_slice()),
        };
        self.prefix.end_layer(task.layer, &learned, stop);
    }

    /// Memory of the prefill itself.
    pub(super) fn ledger(&self) -> MemoryLedger {
        let scratch = &self.scratch;
        let reconstruction = self.reconstruction.as_ref();
        let own = reconstruction.map_or(0, ReconstructionPass::store_bytes);
        let raw_keys = self.raw_keys.as_ref().map_or(0, RowStore::bytes);
        // The allocated size: dropping tokens does not shrink the buffer.
        let residual = (self.sizes[0].residual() * size_of::<f32>()) as u64;
        let weights = self.of.model.gpu().map_or(0, GpuModel::bytes);
        MemoryLedger {
            gpu: weights + self.gpu.as_ref().map_or(0, GpuReading::bytes) + self.staged,
            layer_tiles: self.sizes[0].tiles_bytes(self.of.model),
            layer_kv: (scratch.keys.bytes() + scratch.values.bytes() + raw_keys) as u64 + own,
            residual: residual + reconstruction.map_or(0, ReconstructionPass::residual_bytes),
            activations: scratch.bytes() + self.largest_pass,
            vault: self.prefix.buffer_bytes(),
            ..MemoryLedger::default()
        }
    }

    /// The kept rows of all layers, if they stayed on the GPU.
    pub(super) fn take_cache(&mut self) -> Option<GpuCache> {
        self.gpu.as_mut().and_then(GpuReading::take_cache)
    }

    /// Completes the document's vault after the last layer.
    pub(super) fn end(&mut self) {
        self.prefix.end(self.of.ids);
    }

    /// The last layer's output: of the last row, `[width]`, or of every row if requested, `[n, width]`; and
    /// the output of the reconstruction pass if requested.
    ///
    /// # Errors
    /// [`EngineError::Gpu`].
    pub(super) fn into_output(mut self) -> Result<(Vec<f32>, Option<Reconstructed>), EngineError> {
        let width = self.of.model.config().width;
        let last = self.entered - 1..self.entered;
        let hidden = match (&mut self.gpu, self.of.every_row) {
            (Some(gpu), true) => gpu.download_residual(0..self.entered)?,
            (Some(gpu), false) => gpu.download_residual(last)?,
            (None, true) => self.residual,
            (None, false) => self.residual[self.residual.len() - width..].to_vec(),
        };
        let plan = self.sizes[0]
            .reconstruction_plan
            .as_ref()
            .filter(|_| self.of.every_row);
        let repeated = plan
            .zip(self.reconstruction)
            .map(|(plan, rows)| Reconstructed {
                segments: plan.segments().collect(),
                ids: plan.ids(self.of.ids),
                hidden: rows.into_residual(),
            });
        Ok((hidden, repeated))
    }
}
