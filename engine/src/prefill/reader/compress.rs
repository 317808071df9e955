//! Measurement and selection in a layer after its prefill.

use kept_kernels::Stop;
use kept_policies::{
    LowAttention, Method, Observation, ObservationWindow, Pos, Select, Selection, Softmax,
};

use super::{GlobalLayer, Reader};
use crate::backend::{GatherTask, Keep, LastRows, LayerRowsAccess, RowAccess};
use crate::compact::CompactLayer;
use crate::observe::Pool;
use crate::plan::LayerKeeps;
use crate::prefill::check::check;
use crate::votes::HeadPeak;
use crate::{EngineError, Event};

/// The window of the last token alone.
const LAST_TOKEN: ObservationWindow = ObservationWindow {
    rows: 1,
    softmax: Softmax::All,
};

impl Reader<'_> {
    /// Keeps what the current layer, which the method does not compress, needs during decode: as many of the last positions
    /// as its window, or its state. This is the same for every method.
    pub(in crate::prefill) fn keep_uncompressed(
        &mut self,
        keeps: LayerKeeps,
        method_index: usize,
    ) -> Result<CompactLayer, EngineError> {
        match keeps {
            LayerKeeps::Window(window) => {
                let plan = &self.plans[method_index];
                let ring = self.backend.keep(Keep::Window(plan, window))?;
                self.progress.add_layer(None, &ring);
                Ok(ring)
            }
            LayerKeeps::State(_) => self.backend.keep(Keep::State),
            LayerKeeps::Nothing | LayerKeeps::Compressed(_) => Ok(CompactLayer::without_rows()),
        }
    }

    /// Measures what method number `method_index` needs of the current layer and compresses the layer with the
    /// method's selection.
    pub(in crate::prefill) fn compress_layer(
        &mut self,
        layer: GlobalLayer,
        method_index: usize,
        method: &dyn Method,
        select: &mut dyn Select,
        stop: &Stop,
    ) -> Result<CompactLayer, EngineError> {
        let index = layer.in_policy;
        let name = method.name();
        let _span = tracing::debug_span!("selecting", layer = index, method = name).entered();
        self.measure(layer, method_index, stop)?;
        self.score_query_agnostic(layer, method)?;
        let selection = self.select(layer, method_index, select)?;
        let compact = self.backend.keep(Keep::Selection(GatherTask {
            layer: layer.in_model,
            in_policy: index,
            plan: &self.plans[method_index],
            rope: self.input.rope,
            selection: &selection,
            positions: self.surviving.positions(),
        }))?;
        self.drop_tokens(index, method_index, selection.surviving_tokens)?;
        self.candidates[method_index] = selection.candidates;
        self.progress.add_layer(Some(index), &compact);
        Ok(compact)
    }

    /// Runs method number `method_index` on the measurements of `layer`.
    fn select(
        &mut self,
        layer: GlobalLayer,
        method_index: usize,
        select: &mut dyn Select,
    ) -> Result<Selection, EngineError> {
        let (index, plan) = (layer.in_policy, &self.plans[method_index]);
        let (n, budget, needs) = (
            plan.layer_input_tokens(index),
            plan.row_plan.rows[index],
            plan.needs[index],
        );
        let access = RowAccess {
            layer: layer.in_model,
            tokens: n,
            copies: needs.copies,
            computations: needs.rows,
            // Methods that re-assign positions see keys as they will be stored.
            before_rope: plan.reassigns_positions(),
            shared: self.plans.len() > 1,
        };
        self.backend.prepare_rows(access, self.input.rope)?;
        let rows = self.backend.rows(access);
        let observation = self.observation(index, method_index, Some(&*rows));
        let selection = select.select(&plan.row_plan, &observation);
        rows.check()?;
        check(&selection.retention, n, budget, plan.table);
        Ok(selection)
    }

    /// Finds the most attended token of each query head for the last token, whose output is the answer's first token. Goes
    /// before the method's measurements, which use the same buffer.
    pub(in crate::prefill) fn attend_last(
        &mut self,
        layer: GlobalLayer,
        stop: &Stop,
    ) -> Result<(), EngineError> {
        let tokens = self.plans[0].layer_input_tokens(layer.in_policy);
        let measurements = &mut self.measurements;
        (self.backend).observe(LastRows::Window(LAST_TOKEN), tokens, measurements, stop)?;
        let positions = self.surviving.positions();
        let heads = self.measurements.window_scores.chunks_exact(tokens);
        let position = |row| Pos(positions.map_or(row as u32, |positions| positions[row]));
        let peaks = heads.map(|probabilities| HeadPeak::of(probabilities, position));
        self.last_attended.extend(peaks);
        Ok(())
    }

    /// Removes all rows but `surviving`, if given, from the residual stream: they do not enter the next layer.
    /// `index` is the current layer's index as policies count.
    fn drop_tokens(
        &mut self,
        index: usize,
        method_index: usize,
        surviving: Option<Vec<u32>>,
    ) -> Result<(), EngineError> {
        let plan = &self.plans[method_index];
        let n = plan.layer_input_tokens(index);
        let left = surviving.as_ref().map_or(n, Vec::len);
        let last = index + 1 == plan.row_plan.rows.len();
        assert!(
            last || plan.layer_input_tokens(index + 1) == left,
            "as many tokens enter the next layer as the method announced"
        );
        let Some(surviving) = surviving else {
            return Ok(());
        };
        self.backend.retain_rows(&surviving, n)?;
        self.layer_rows = surviving.len();
        self.surviving.retain(&surviving);
        Ok(())
    }

    /// Computes the method's query-agnostic scores, if the vault waits for them.
    fn score_query_agnostic(
        &mut self,
        layer: GlobalLayer,
        method: &dyn Method,
    ) -> Result<(), EngineError> {
        let index = layer.in_policy;
        let needs = self.plans[0].needs[index];
        let Some(score_cache) = needs.score_cache else {
            return Ok(());
        };
        if !self.prefix.awaits_scores(score_cache) {
            return Ok(());
        }
        let scorer = method
            .scorer()
            .expect("a method with a score cache has a scorer");
        let n = self.plans[0].layer_input_tokens(index);
        let rows = self.backend.rows(RowAccess {
            layer: layer.in_model,
            tokens: n,
            copies: false,
            computations: true,
            before_rope: false,
            shared: false,
        });
        let observation = self.observation(index, 0, Some(&*rows));
        let scores = scorer.score(&self.plans[0].row_plan, &observation);
        rows.check()?;
        drop(rows);
        self.prefix.write_scores(&scores);
        for (known, head) in self.known_scores.chunks_exact_mut(n).zip(&scores) {
            known[..head.len()].copy_from_slice(head);
        }
        self.scored = true;
        Ok(())
    }

    /// Reads every layer and passes its measurements to the only method. Keeps no rows.
    pub(in crate::prefill) fn run_score_pass(
        &mut self,
        select: &mut dyn Select,
        watch: &mut dyn FnMut(Event<'_>),
        stop: &Stop,
    ) -> Result<(), EngineError> {
        let plan = &self.plans[0];
        for (in_model, &keeps) in plan.keeps.iter().enumerate() {
            self.read(in_model, watch, stop)?;
            let LayerKeeps::Compressed(in_policy) = keeps else {
                continue;
            };
            let needs = plan.needs[in_policy];
            assert!(
                !needs.rows && !needs.copies,
                "a score pass needs no access to rows"
            );
            let layer = GlobalLayer {
                in_model,
                in_policy,
            };
            self.measure(layer, 0, stop)?;
            select.score_pass(&plan.row_plan, &self.observation(in_policy, 0, None));
        }
        Ok(())
    }

    /// The measurements of `layer` for method number `method_index`, with access to `rows`.
    fn observation<'o>(
        &'o self,
        layer: usize,
        method_index: usize,
        rows: Option<&'o dyn LayerRowsAccess>,
    ) -> Observation<'o> {
        let (plan, measurements) = (&self.plans[method_index], &self.measurements);
        let (needs, measured) = (plan.needs[layer], &measurements.measured);
        let copies = rows.and_then(|rows| rows.copies());
        assert!(
            copies.is_none() || plan.layer_rows() == plan.tokens(),
            "methods that read copies of keys and values do not use the reconstruction pass"
        );
        let reconstruction = self.reconstruction.as_ref();
        Observation {
            layer,
            tokens: plan.layer_input_tokens(layer),
            kv_heads: self.heads.kv_heads,
            group: self.heads.group(),
            observation_window: (needs.observation_window)
                .map(|_| measurements.window_scores.as_slice()),
            column_sums: (needs.column_sums).then_some(measurements.column_sums.as_slice()),
            weighted_window: needs
                .weighted_window
                .map(|_| measured.weighted_window.as_slice()),
            low_attention: needs.low_attention.map(|rows| LowAttention {
                rows,
                bits: &measured.bits,
            }),
            expected_queries: needs
                .expected_queries
                .and_then(|request| measured.found(request)),
            reconstruction: (needs.reconstruction.and(reconstruction))
                .map(|r| r.scores.as_slice())
                .or(
                    (needs.reconstruction.is_some() && !self.known_scores.is_empty())
                        .then_some(&self.known_scores),
                ),
            cached_scores: (needs.score_cache.is_some() && self.scored)
                .then_some(&self.known_scores),
            keys: copies.map(|[keys, _]| keys),
            values: copies.map(|[_, values]| values),
            rows: rows.and_then(|rows| rows.computations()),
            threads: &Pool,
        }
    }

    /// Measures the attention of the last queries of `layer` for method number `method_index`. A weighted window is
    /// restricted to the method's candidates, if it has named them.
    fn measure(
        &mut self,
        layer: GlobalLayer,
        method_index: usize,
        stop: &Stop,
    ) -> Result<(), EngineError> {
        let plan = &self.plans[method_index];
        let needs = plan.needs[layer.in_policy];
        let tokens = plan.layer_input_tokens(layer.in_policy);
        let (backend, measurements) = (&mut self.backend, &mut self.measurements);
        if let Some(request) = needs.expected_queries.filter(|_| !self.scored) {
            let rope = self.input.rope.of_layer(layer.in_model);
            measurements.measured.finish(request, rope);
        }
        if let Some(window) = needs.weighted_window
            && self.measured.weighted_window != Some(window)
        {
            let candidates = self.candidates[method_index].as_deref();
            let what = LastRows::WeightedWindow(window, candidates);
            backend.observe(what, tokens, measurements, stop)?;
            // The next method may use other tokens.
            self.measured.weighted_window = candidates.is_none().then_some(window);
        }
        if let Some(rows) = needs.low_attention
            && self.measured.low_attention != Some(rows)
        {
            backend.observe(LastRows::LowAttention(rows), tokens, measurements, stop)?;
            self.measured.low_attention = Some(rows);
        }
        if let Some(window) = needs.observation_window
            && self.measured.window != Some(window)
        {
            backend.observe(LastRows::Window(window), tokens, measurements, stop)?;
            self.measured.window = Some(window);
        }
        Ok(())
    }
}
