//! Measurement and selection in a layer after its prefill.

use kept_kernels::Stop;
use kept_policies::{LowAttention, Method, Observation, PromptRows, Retention, Select, Selection};

use super::{GlobalLayer, Reader};
use crate::backend::{GatherTask, RowAccess};
use crate::compact::CompactLayer;
use crate::observe::Pool;
use crate::plan::LayerKeeps;
use crate::prefill::check::check;
use crate::{EngineError, Watch};

impl Reader<'_> {
    /// Keeps the last positions of the current sliding-window layer, as many as its window, for method number
    /// `which`. This is the same for every method.
    ///
    /// # Errors
    /// [`EngineError::Gpu`].
    pub(in crate::prefill) fn keep_window(
        &mut self,
        window: usize,
        which: usize,
    ) -> Result<CompactLayer, EngineError> {
        let ring = self.backend.gather_window(&self.sizes[which], window)?;
        self.progress.add_layer(None, &ring);
        Ok(ring)
    }

    /// Keeps the state of the current recurrent layer. This is the same for every method.
    ///
    /// # Errors
    /// [`EngineError::Gpu`].
    pub(in crate::prefill) fn keep_state(&mut self) -> Result<CompactLayer, EngineError> {
        self.backend.keep_state()
    }

    /// Measures what method number `which` needs of the current layer and compacts the layer with the
    /// method's selection.
    pub(in crate::prefill) fn cut(
        &mut self,
        layer: GlobalLayer,
        which: usize,
        method: &dyn Method,
        select: &mut dyn Select,
        stop: &Stop,
    ) -> Result<(CompactLayer, Retention), EngineError> {
        let index = layer.in_policy;
        let name = method.name();
        let _span = tracing::debug_span!("selecting", layer = index, method = name).entered();
        self.measure(layer, which, stop)?;
        self.score_query_agnostic(layer, method)?;
        let selection = self.select(layer, which, select)?;
        let compact = self.backend.gather(&GatherTask {
            layer: layer.in_model,
            in_policy: index,
            plan: &self.sizes[which],
            rope: self.of.rope,
            selection: &selection,
            positions: self.alive.positions(),
        })?;
        let retention = (self.alive).at_positions(selection.retention, self.heads.kv_heads);
        self.drop_tokens(index, which, selection.surviving_tokens)?;
        self.candidates[which] = selection.candidates;
        self.progress.add_layer(Some(index), &compact);
        Ok((compact, retention))
    }

    /// Runs method number `which` on the measurements of `layer`.
    fn select(
        &mut self,
        layer: GlobalLayer,
        which: usize,
        select: &mut dyn Select,
    ) -> Result<Selection, EngineError> {
        let (index, sizes) = (layer.in_policy, &self.sizes[which]);
        let (n, budget, needs) = (
            sizes.layer_input_tokens(index),
            sizes.row_plan.rows[index],
            sizes.needs[index],
        );
        let access = RowAccess {
            layer: layer.in_model,
            tokens: n,
            copies: needs.copies,
            computations: needs.rows,
            // Methods that re-assign positions see keys as they will be stored.
            before_rope: sizes.reassigns_positions(),
            shared: self.sizes.len() > 1,
        };
        self.backend.prepare_rows(access, self.of.rope)?;
        let computations =
            (needs.rows).then(|| self.backend.rows(layer.in_model, access.before_rope));
        let rows = Rows {
            copies: needs.copies.then(|| self.backend.copies()),
            computations: computations.as_ref().map(|rows| rows.rows()),
        };
        let observation = self.observation(index, which, rows);
        let selection = select.select(&sizes.row_plan, &observation);
        computations.map_or(Ok(()), |rows| rows.check())?;
        check(&selection.retention, n, budget, sizes.table);
        Ok(selection)
    }

    /// Removes all rows but `surviving`, if given, from the residual stream: they do not enter the next layer.
    /// `index` is the current layer's index as policies count.
    fn drop_tokens(
        &mut self,
        index: usize,
        which: usize,
        surviving: Option<Vec<u32>>,
    ) -> Result<(), EngineError> {
        let sizes = &self.sizes[which];
        let n = sizes.layer_input_tokens(index);
        let left = surviving.as_ref().map_or(n, Vec::len);
        let last = index + 1 == sizes.row_plan.rows.len();
        assert!(
            last || sizes.layer_input_tokens(index + 1) == left,
            "as many tokens enter the next layer as the method announced"
        );
        let Some(surviving) = surviving else {
            return Ok(());
        };
        self.backend.retain_rows(&surviving, n)?;
        self.entered = surviving.len();
        self.alive.retain(&surviving);
        Ok(())
    }

    /// Computes the method's query-agnostic scores, if the vault waits for them.
    fn score_query_agnostic(
        &mut self,
        layer: GlobalLayer,
        method: &dyn Method,
    ) -> Result<(), EngineError> {
        let index = layer.in_policy;
        let needs = self.sizes[0].needs[index];
        let Some(score_cache) = needs.score_cache else {
            return Ok(());
        };
        if !self.prefix.awaits_scores(score_cache) {
            return Ok(());
        }
        let scorer = method
            .scorer()
            .expect("a method with a score cache has a scorer");
        let computations = self.backend.rows(layer.in_model, false);
        let rows = Rows {
            copies: None,
            computations: Some(computations.rows()),
        };
        let scores = scorer.score(&self.sizes[0].row_plan, &self.observation(index, 0, rows));
        computations.check()?;
        drop(computations);
        self.prefix.write_scores(&scores);
        let n = self.sizes[0].layer_input_tokens(index);
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
        watch: &mut dyn Watch,
        stop: &Stop,
    ) -> Result<(), EngineError> {
        let sizes = &self.sizes()[0];
        for (in_model, &keeps) in sizes.keeps.iter().enumerate() {
            self.read(in_model, watch, stop)?;
            let LayerKeeps::Cut(in_policy) = keeps else {
                continue;
            };
            let needs = sizes.needs[in_policy];
            assert!(
                !needs.rows && !needs.copies,
                "a score pass needs no access to rows"
            );
            let layer = GlobalLayer {
                in_model,
                in_policy,
            };
            self.measure(layer, 0, stop)?;
            select.score_pass(
                &sizes.row_plan,
                &self.observation(in_policy, 0, Rows::default()),
            );
        }
        self.end();
        Ok(())
    }

    /// The measurements of `layer` for method number `which`, with access to `rows`.
    fn observation<'o>(&'o self, layer: usize, which: usize, rows: Rows<'o>) -> Observation<'o> {
        let (sizes, measurements) = (&self.sizes[which], &self.measurements);
        let (needs, measured) = (sizes.needs[layer], &measurements.measured);
        assert!(
            rows.copies.is_none() || sizes.layer_rows() == sizes.tokens(),
            "methods that read copies of keys and values do not use the reconstruction pass"
        );
        let reconstruction = self.reconstruction.as_ref();
        Observation {
            layer,
            tokens: sizes.layer_input_tokens(layer),
            kv_heads: self.heads.kv_heads,
            group: self.heads.group(),
            window: (needs.window).map(|_| measurements.window_scores.as_slice()),
            column_sums: (needs.column_sums).then_some(measurements.column_sums.as_slice()),
            weighted_window: needs
                .weighted_window
                .map(|_| measured.weighted_window.as_slice()),
            low_attention: needs.low_attention.map(|rows| LowAttention {
                rows,
                bits: &measured.bits,
            }),
            future: needs.future.and_then(|future| measured.found(future)),
            reconstruction: (needs.reconstruction.and(reconstruction))
                .map(|r| r.scores.as_slice())
                .or(
                    (needs.reconstruction.is_some() && !self.known_scores.is_empty())
                        .then_some(&self.known_scores),
                ),
            scored: (needs.score_cache.is_some() && self.scored).then_some(&self.known_scores),
            keys: rows.copies.map(|[keys, _]| keys),
            values: rows.copies.map(|[_, values]| values),
            rows: rows.computations,
            threads: &Pool,
        }
    }

    /// Measures the attention of the last queries of `layer` for method number `which`. A weighted window is
    /// restricted to the method's candidates, if it has named them.
    fn measure(
        &mut self,
        layer: GlobalLayer,
        which: usize,
        stop: &Stop,
    ) -> Result<(), EngineError> {
        let sizes = &self.sizes[which];
        let needs = sizes.needs[layer.in_policy];
        let tokens = sizes.layer_input_tokens(layer.in_policy);
        let (backend, measurements) = (&mut self.backend, &mut self.measurements);
        if let Some(future) = needs.future.filter(|_| !self.scored) {
            let rotated = self.of.rope.of_layer(layer.in_model).is_some();
            let rope = rotated.then_some(self.of.rope);
            measurements.measured.finish(future, rope);
        }
        if let Some(window) = needs.weighted_window
            && self.held.weighted_window != Some(window)
        {
            let among = self.candidates[which].as_deref();
            backend.weighted_window(window, among, tokens, measurements, stop)?;
            // The next method may use other tokens.
            self.held.weighted_window = among.is_none().then_some(window);
        }
        if let Some(rows) = needs.low_attention
            && self.held.low_attention != Some(rows)
        {
            backend.low_attention(rows, tokens, measurements, stop)?;
            self.held.low_attention = Some(rows);
        }
        if let Some(window) = needs.window
            && self.held.window != Some(window)
        {
            backend.window(window, tokens, measurements, stop)?;
            self.held.window = Some(window);
        }
        Ok(())
    }
}

/// A method's access to rows.
#[derive(Default)]
struct Rows<'o> {
    /// `[kv_heads, rows, head_dim]`: keys and values.
    copies: Option<[&'o [f32]; 2]>,
    /// Computations on the rows.
    computations: Option<&'o dyn PromptRows>,
}
