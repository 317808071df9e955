//! One prefill, layer by layer: [`Reader::read`] runs every token through a layer in chunks, [`Reader::compress_layer`]
//! keeps the rows that a method selects (`compress.rs`). Several methods may select from the same layer independently.

mod compress;

use std::ops::Range;
use std::time::{Duration, Instant};

use kept_kernels::{HeadShape, Stop};
use kept_policies::{ObservationWindow, WeightedWindow};

use super::input::PrefillTask;
use super::prefix::{MeasuredForVault, Prefix};
use super::progress::ReadingProgress;
use super::reconstruction::{ReconstructionPass, RepeatedLayer};
use super::token_dropping::SurvivingTokens;
use crate::backend::{self, Chunk, DeviceRows, LayerMeasurements, PrefillBackend, PrefillInput};
use crate::plan::{FEW_ROWS, PrefillPlan};
use crate::shape::head_shape;
use crate::votes::HeadPeak;
use crate::{EngineError, Event, MemoryLedger, Segment};

/// Output of the reconstruction pass: the document repeated in chunks. Every chunk is read directly after the
/// document, independently of the other chunks.
pub struct Reconstructed {
    /// The chunks and the rows of each chunk.
    pub segments: Vec<Segment>,
    /// `[rows]`: token ids.
    pub ids: Vec<u32>,
    /// `[rows, width]`: the last layer's output, before the final norm.
    pub hidden: Vec<f32>,
}

/// State of a prefill: the current layer and its measurements.
pub(super) struct Reader<'a> {
    input: PrefillTask<'a>,
    /// One entry per method; exactly one if tokens are dropped or the document is reconstructed.
    pub(super) plans: &'a [PrefillPlan],
    pub(super) heads: HeadShape,
    /// The residual stream, the layer's keys and values, and all scratch buffers.
    backend: Box<dyn PrefillBackend + 'a>,
    /// Rows of the residual stream.
    layer_rows: usize,
    /// Positions of these rows.
    surviving: SurvivingTokens,
    /// The reconstruction pass, if the method needs one.
    reconstruction: Option<ReconstructionPass<'a>>,
    /// `[kv_heads, n]`: scores of the reconstruction or of the method, if the vault has or will store them.
    known_scores: Vec<f32>,
    /// Whether `known_scores` are the method's scores of the current layer.
    scored: bool,
    /// What is read from and written to the vault.
    prefix: &'a mut Prefix,
    measurements: LayerMeasurements,
    /// `[methods]`: the tokens that deeper layers may still keep, of methods that evict tokens for good
    /// ([`Selection::candidates`](kept_policies::Selection::candidates)).
    candidates: Vec<Option<Vec<u32>>>,
    /// Measurements of the current layer that are computed: the next method may need the same.
    measured: DoneMeasurements,
    /// What the last token attended to in the layers so far, of a prefill for one method.
    last_attended: Vec<HeadPeak>,
    progress: &'a mut ReadingProgress,
}

/// What a prefill leaves after its last layer.
pub(super) struct ReadEnd {
    /// Memory of the prefill itself.
    pub(super) ledger: MemoryLedger,
    /// The kept rows of all layers, if they stayed on the GPU.
    pub(super) cache: Option<DeviceRows>,
    /// The last layer's output: of the last row, `[width]`, or of every row if requested, `[n, width]`.
    pub(super) hidden: Vec<f32>,
    /// What the last token attended to, of a prefill for one method.
    pub(super) last_attended: Vec<HeadPeak>,
    /// The output of the reconstruction pass, if there was one and every row was requested.
    pub(super) repeated: Option<Reconstructed>,
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

/// The requests of the current layer whose results are in the measurements.
#[derive(Default)]
struct DoneMeasurements {
    window: Option<ObservationWindow>,
    weighted_window: Option<WeightedWindow>,
    low_attention: Option<usize>,
}

impl<'a> Reader<'a> {
    /// Allocates everything. `plans` has one entry per method.
    ///
    /// # Errors
    /// [`EngineError::Gpu`] if the GPU has too little memory.
    pub(super) fn new(
        input: PrefillTask<'a>,
        plans: &'a [PrefillPlan],
        prefix: &'a mut Prefix,
        progress: &'a mut ReadingProgress,
    ) -> Result<Self, EngineError> {
        assert!(
            plans.len() == 1 || !plans.iter().any(PrefillPlan::needs_own_reading),
            "a method that changes prefill cannot share it with other methods"
        );
        let PrefillTask {
            model, ids, rope, ..
        } = input;
        let (heads, first) = (head_shape(model), &plans[0]);
        let mut residual = vec![0.0f32; first.residual()];
        model.embed(&ids[prefix.known()..], &mut residual);
        let known_scores = if prefix.has_scores() {
            vec![0.0; heads.kv_heads * ids.len()]
        } else {
            Vec::new()
        };
        let backend_input = PrefillInput {
            rope,
            plans,
            ids: &ids[prefix.known()..],
            residual,
        };
        Ok(Self {
            input,
            plans,
            heads,
            backend: backend::of(model).prefill(backend_input)?,
            layer_rows: first.residual() / model.config().width,
            surviving: SurvivingTokens::default(),
            reconstruction: (first.reconstruction_plan.as_ref())
                .map(|plan| ReconstructionPass::new(model, ids, rope, first, plan, heads)),
            known_scores,
            scored: false,
            prefix,
            measurements: LayerMeasurements::new(plans),
            candidates: vec![None; plans.len()],
            measured: DoneMeasurements::default(),
            last_attended: Vec::new(),
            progress,
        })
    }

    /// Runs the tokens without known rows through `layer`: computes keys, values, the layer's output and the
    /// requested measurements. Returns the time spent measuring.
    ///
    /// # Errors
    /// [`EngineError::Stopped`]; [`EngineError::Vault`] if known rows cannot be read.
    pub(super) fn read(
        &mut self,
        layer: usize,
        watch: &mut dyn FnMut(Event<'_>),
        stop: &Stop,
    ) -> Result<Duration, EngineError> {
        let task = self.begin_layer(layer);
        self.load_known(&task, stop)?;
        stop.check()?;
        if self.input.model.config().kinds[layer]
            .kv_source_layer()
            .is_some()
        {
            return self.read_sharing(&task, watch, stop);
        }
        let measuring = self.read_prefix(&task, watch, stop)?;
        self.end_prefix(&task, stop);
        Ok(measuring + self.read_rest(&task, watch, stop)?)
    }

    /// Runs the tokens whose output is needed through a layer that has no keys of its own.
    fn read_sharing(
        &mut self,
        task: &LayerTask,
        watch: &mut dyn FnMut(Event<'_>),
        stop: &Stop,
    ) -> Result<Duration, EngineError> {
        self.end_prefix(task, stop);
        self.prefix.end_turns(self.backend.state(), stop);
        let first = match self.input.every_row {
            true => self.prefix.known(),
            false => task.n - 1,
        };
        let rows = task.n - first;
        self.progress
            .add_rows(task.n - self.prefix.known() - rows, watch);
        let at_once = self.plans[0].chunk.min(rows);
        self.backend.prepare(task.layer, at_once, rows <= FEW_ROWS);
        self.read_rows(task, first..task.n, watch, stop)
    }

    /// Resets the measurements for `layer`.
    fn begin_layer(&mut self, layer: usize) -> LayerTask {
        let plan = &self.plans[0];
        let n = plan.entering_in(layer);
        let needs = || self.plans.iter().map(|plan| plan.needs_in(layer));
        let task = LayerTask {
            layer,
            last_layer: layer + 1 == plan.keeps.len(),
            n,
            // A prefill that drops tokens uses no vault: all entering tokens then count as the prefix.
            prefix: self.prefix.tokens.min(n),
            column_sums: needs().any(|needs| needs.column_sums),
            reconstruction: needs().any(|needs| needs.reconstruction.is_some()),
            window_from: n - needs().map(|needs| needs.query_rows()).fold(1, usize::max),
        };
        let measurements = &mut self.measurements;
        measurements.measured.start(
            self.heads,
            self.plans
                .iter()
                .filter_map(|s| s.needs_in(layer).expected_queries),
        );
        measurements.window_queries.clear();
        self.measured = DoneMeasurements::default();
        measurements.column_sums.clear();
        if task.column_sums {
            measurements.column_sums.resize(self.heads.q_heads * n, 0.0);
        }
        task
    }

    /// Loads the known tokens' rows and measurements of the layer from the vault.
    fn load_known(&mut self, task: &LayerTask, stop: &Stop) -> Result<(), EngineError> {
        let layer = task.layer;
        let (prefix, measurements) = (&mut *self.prefix, &mut self.measurements);
        self.backend.load_prefix(layer, prefix, stop)?;
        prefix.append_queries(task.window_from, &mut measurements.window_queries);
        if task.column_sums {
            prefix.fill_column_sums(&mut measurements.column_sums, task.n);
        }
        for request in (self.plans.iter()).filter_map(|plan| plan.needs_in(layer).expected_queries)
        {
            prefix.fill_query_sums(request, &mut measurements.measured);
        }
        self.scored = false;
        if prefix.knows_reconstruction() {
            prefix.fill_reconstruction(&mut self.known_scores, task.n);
        }
        if let Some(score_cache) = self.plans[0].needs_in(layer).score_cache {
            self.scored = prefix.fill_scores(score_cache, &mut self.known_scores, task.n);
        }
        self.backend.begin_layer(measurements)
    }

    /// Runs the prefix's tokens without known rows through the layer, then the reconstruction pass, if any.
    fn read_prefix(
        &mut self,
        task: &LayerTask,
        watch: &mut dyn FnMut(Event<'_>),
        stop: &Stop,
    ) -> Result<Duration, EngineError> {
        let (known, prefix) = (self.prefix.known(), task.prefix);
        let repeats = self.reconstruction.is_some();
        let rows = if repeats {
            prefix
        } else {
            prefix.saturating_sub(known)
        };
        let at_once = self.plans[0].chunk.min(rows);
        self.backend.prepare(task.layer, at_once, false);
        let mut measuring = self.read_rows(task, known..prefix, watch, stop)?;
        let column_sums = repeats || self.prefix.writes_document();
        let read = known.min(prefix)..prefix;
        self.backend
            .collect(read, column_sums, &mut self.measurements)?;
        if let Some(reconstruction) = &mut self.reconstruction {
            let started = Instant::now();
            let layer = RepeatedLayer {
                layer: task.layer,
                scores: task.reconstruction,
                outputs: !task.last_layer || self.input.every_row,
            };
            let mut report = |rows| self.progress.add_rows(rows, watch);
            let view = self.backend.on_host(prefix)?;
            reconstruction.read(layer, view, stop, &mut report)?;
            measuring += started.elapsed();
        }
        Ok(measuring)
    }

    /// Runs the tokens after the prefix through the layer: each turn by itself, then the rest.
    fn read_rest(
        &mut self,
        task: &LayerTask,
        watch: &mut dyn FnMut(Event<'_>),
        stop: &Stop,
    ) -> Result<Duration, EngineError> {
        let rest = task.prefix.max(self.prefix.known())..task.n;
        let mut measuring = Duration::ZERO;
        let mut prepared = None;
        let mut first = rest.start;
        while first < rest.end {
            let section = first..self.prefix.section_end(first, task.n);
            first = section.end;
            // The choice depends only on the number of rows, so an answer does not depend on what was just read.
            let few = section.len() <= FEW_ROWS;
            if prepared != Some(few) {
                let most = if few { FEW_ROWS } else { self.plans[0].chunk };
                let at_once = most.min(task.n - section.start);
                self.backend.prepare(task.layer, at_once, few);
                prepared = Some(few);
            }
            if first == task.n {
                self.prefix.end_turns(self.backend.state(), stop);
            }
            measuring += self.read_rows(task, section, watch, stop)?;
        }
        self.backend.collect(rest, true, &mut self.measurements)?;
        Ok(measuring)
    }

    /// Runs the tokens `rows` through a layer, chunk by chunk. All earlier tokens have passed it or have known rows.
    /// Returns the time spent measuring.
    fn read_rows(
        &mut self,
        task: &LayerTask,
        rows: Range<usize>,
        watch: &mut dyn FnMut(Event<'_>),
        stop: &Stop,
    ) -> Result<Duration, EngineError> {
        let chunk = self.plans[0].chunk;
        let mut measuring = Duration::ZERO;
        for first in rows.clone().step_by(chunk) {
            let rows = first..rows.end.min(first + chunk);
            measuring += self.read_chunk(task, rows, watch, stop)?;
        }
        Ok(measuring)
    }

    fn read_chunk(
        &mut self,
        task: &LayerTask,
        rows: Range<usize>,
        watch: &mut dyn FnMut(Event<'_>),
        stop: &Stop,
    ) -> Result<Duration, EngineError> {
        stop.check()?;
        let (first, count) = (rows.start, rows.len());
        // A chunk ends at the end of the prefix or turn.
        let (known, prefix) = (self.prefix.known(), self.prefix.tokens);
        let section = self.prefix.section_end(rows.end, task.n);
        let next = section.min(rows.end + self.plans[0].chunk);
        let surviving = self.surviving.positions();
        let config = self.input.model.config();
        let sharing = config.kinds[task.layer].kv_source_layer().is_some();
        let chunk = Chunk {
            layer: task.layer,
            first,
            at: first - known,
            count,
            next: rows.end - known..next.max(rows.end) - known,
            positions: surviving.map(|positions| &positions[rows.clone()]),
            window: config.attention_window(task.layer),
            // Only the last row of the last layer's output is needed; the layers after the last one with keys of its own
            // see only this row.
            needed: if config.is_last_with_kv(task.layer) && !self.input.every_row {
                usize::from(rows.end == task.n)
            } else {
                count
            },
            observed: rows.end - task.window_from.clamp(first, rows.end),
            column_sums: task.column_sums,
            rounds: self.prefix.rounds(first),
            writes: self.prefix.writes(first) && !sharing,
            ends_prefix: rows.end == prefix || !self.prefix.writes(rows.end),
        };
        let (backend, measurements) = (&mut self.backend, &mut self.measurements);
        let mut measuring = backend.project(&chunk, measurements, stop)?;
        if self.prefix.wants_queries(&rows) && !sharing {
            self.prefix.store_queries(first, backend.queries(count)?);
        }
        measuring += backend.attend(&chunk, measurements, self.prefix, stop)?;
        self.progress.add_rows(count, watch);
        Ok(measuring)
    }

    /// Writes the prefix's measurements of the layer to the vault.
    fn end_prefix(&mut self, task: &LayerTask, stop: &Stop) {
        let measured = MeasuredForVault {
            tokens: task.n,
            column_sums: &self.measurements.column_sums,
            buffers: &self.measurements.measured,
            reconstruction: (self.reconstruction.as_ref()).map_or(&[], |r| r.scores.as_slice()),
            state: self.backend.state(),
        };
        self.prefix.end_layer(task.layer, &measured, stop);
    }

    /// Ends the prefill after the last layer, and completes the document's vault.
    pub(super) fn end(self) -> Result<ReadEnd, EngineError> {
        self.prefix.end(self.input.ids);
        let plan = &self.plans[0];
        let first = match self.input.every_row {
            true => 0,
            false => self.layer_rows - 1,
        };
        let end = self.backend.end(first..self.layer_rows)?;
        let reconstruction = self.reconstruction.as_ref();
        let own = reconstruction.map_or(0, ReconstructionPass::store_bytes);
        // The allocated size: dropping tokens does not shrink the buffer.
        let residual = (plan.residual() * size_of::<f32>()) as u64;
        let ledger = MemoryLedger {
            gpu: end.memory.device,
            layer_tiles: plan.tiles_bytes(self.input.model),
            layer_kv: end.memory.layer_kv + own,
            residual: residual + reconstruction.map_or(0, ReconstructionPass::residual_bytes),
            activations: end.memory.activations + self.measurements.bytes(),
            vault: self.prefix.buffers,
            ..MemoryLedger::default()
        };
        let segments = plan.reconstruction_plan.as_ref();
        let repeated = (segments.filter(|_| self.input.every_row)).zip(self.reconstruction);
        Ok(ReadEnd {
            ledger,
            cache: end.cache,
            hidden: end.residual,
            last_attended: self.last_attended,
            repeated: repeated.map(|(plan, rows)| Reconstructed {
                segments: plan.segments().collect(),
                ids: plan.ids(self.input.ids),
                hidden: rows.into_residual(),
            }),
        })
    }
}
