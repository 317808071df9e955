//! Measurement and selection in a layer after its prefill.

use kept_kernels::{Normalise, RowStore, Stop, WindowScores, window_scores};
use kept_models::RopeTable;
use kept_policies::{
    HostRows, LowAttention, Needs, Observation, Policy, Pos, Positions, PromptRows, Retention,
    Softmax,
};

use super::Reader;
use crate::EngineError;
use crate::compact::{CompactLayer, Gather};
use crate::decode::capacity_of;
use crate::observe::{LastQueries, host_rows, ramp_weights};
use crate::prefill::check::check;
use crate::prefill::gpu::GpuRows;
use crate::shape::attention_scale;

impl Reader<'_> {
    /// Copies the rows `slots` of the current layer to the GPU cache, into the places of `slot_table`.
    fn keep_there(
        &mut self,
        slot_table: &CompactLayer,
        slots: &[Vec<u32>],
    ) -> Result<(), EngineError> {
        let capacity = capacity_of(slot_table)?;
        let gpu = self.gpu.as_mut().expect("rows that stay on a GPU");
        Ok(gpu.keep(&capacity, (&slot_table.keys, slots))?)
    }

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
        let (n, max_new_tokens, cache) = {
            let sizes = &self.sizes[which];
            (sizes.tokens, sizes.max_new_tokens, sizes.cache)
        };
        let ring = if self.sizes[which].rows_on_gpu {
            let rows = (&self.scratch.keys, &self.scratch.values);
            let mut slots = Vec::new();
            let ring =
                CompactLayer::ring_slots(rows, n, (window, max_new_tokens), cache, &mut slots);
            self.keep_there(&ring, &slots)?;
            ring
        } else {
            let last = n.saturating_sub(window) as u32..n as u32;
            let last = vec![last.map(Pos).collect(); self.heads.kv_heads];
            self.bring_kept(&Retention::Keep(last), n, true)?;
            let scratch = &mut self.scratch;
            let rows = (&scratch.keys, &scratch.values);
            CompactLayer::ring(
                rows,
                n,
                window,
                max_new_tokens,
                cache,
                &mut scratch.gathered,
            )
        };
        self.progress.cut(None, &ring);
        Ok(ring)
    }

    /// Measures what method number `which` needs of the current layer and compacts the layer with the
    /// method's selection. The layer is `model_layer` of the model and `layer` of the method.
    pub(in crate::prefill) fn cut(
        &mut self,
        (model_layer, layer): (usize, usize),
        which: usize,
        policy: &mut dyn Policy,
        stop: &Stop,
    ) -> Result<(CompactLayer, Retention), EngineError> {
        let _span = tracing::debug_span!("selecting", layer, method = policy.name()).entered();
        let all = self.sizes;
        let sizes = &all[which];
        let (n, positions) = (sizes.layer_input_tokens[layer], sizes.positions);
        let rope = self.of.rope.of_layer(model_layer);
        let needs = sizes.needs[layer];
        // On a GPU, computations on rows need no copies on the host.
        let looks = needs.copies || (needs.rows && self.gpu.is_none());
        // A method that reads keys and re-assigns positions sees keys as they will be stored: before RoPE.
        let before_rope = positions == Positions::Reassigned;
        let raw = looks && before_rope;
        if needs.copies {
            self.bring_all(n)?;
        }
        self.measure(layer, which, rope.is_some(), policy.among(), stop)?;
        self.score_query_agnostic((model_layer, layer), policy)?;
        if raw {
            match self.sizes.len() {
                // A single method: the rotated keys are not needed again.
                1 => unrotate_all(&mut self.scratch.keys, rope),
                _ => {
                    let keys = self.raw_keys.insert(self.scratch.keys.clone());
                    unrotate_all(keys, rope);
                }
            }
        }
        let keys = match &self.raw_keys {
            Some(keys) if raw => keys,
            _ => &self.scratch.keys,
        };
        let there = self.rows_on_gpu(model_layer, before_rope, &needs);
        let here = host_rows(keys, &self.scratch.values);
        let rows = Rows {
            copies: needs.copies.then_some(keys),
            asked: needs.rows.then_some(asked(&there, &here)),
        };
        let observation = self.observation(layer, which, rows);
        let retention = policy.select(&observation, sizes.rows[layer]);
        let value_merges = policy.value_merges(&observation, &retention);
        let passed = policy.surviving_tokens(&observation);
        there.map_or(Ok(()), GpuRows::check)?;
        check(&retention, n, sizes.rows[layer], sizes.tables[layer]);
        let left = match &mut self.gpu {
            Some(gpu) if !value_merges.is_empty() => Some(gpu.bring_left(&value_merges)?),
            _ => None,
        };
        let copied = (value_merges.is_empty() || left.is_some()) && sizes.tables[layer].is_none();
        let stays = sizes.rows_on_gpu;
        assert!(copied || !stays, "only copies stay on a GPU");
        let merged = match (&retention, &mut self.gpu) {
            (Retention::Merge(heads), Some(gpu)) => {
                let (keys, values) = (&mut self.scratch.keys, &mut self.scratch.values);
                // The merged rows overwrite tokens' own rows, so a later method must download those again.
                self.whole = false;
                Some(gpu.bring_merged(heads, (model_layer, before_rope), keys, values)?)
            }
            _ => None,
        };
        if !stays && merged.is_none() {
            self.bring_kept(&retention, n, copied)?;
        }
        let keys = match &self.raw_keys {
            Some(keys) if raw => keys,
            _ => &self.scratch.keys,
        };
        let gather = Gather {
            keys,
            values: &self.scratch.values,
            tokens: n,
            retention: &retention,
            capacities: &sizes.head_capacities(layer, &retention),
            positions,
            stored: sizes.stored(layer),
            places: self.alive.positions(),
            // Methods that re-assign positions store keys before RoPE.
            unrotate: rope.filter(|_| before_rope && !raw && merged.is_none()),
            value_merges: &value_merges,
            left: left.as_deref(),
            merged: merged.is_some(),
        };
        let compact = if stays {
            let mut slots = Vec::new();
            let slot_table = gather.slot_table(&mut slots);
            self.keep_there(&slot_table, &slots)?;
            slot_table
        } else {
            let compact = gather.layer(&mut self.scratch.gathered);
            match (sizes.tables[layer], &merged) {
                (Some(table), Some(lengths)) => {
                    let length = |head: usize, entry: usize, _| lengths[head][entry];
                    compact.with_lengths(length, &retention, table)
                }
                (Some(table), None) => compact.with_table(keys, &retention, table),
                (None, _) => compact,
            }
        };
        let retention = self.alive.at_positions(retention, self.heads.kv_heads);
        let layer_input_tokens = passed.as_ref().map_or(n, Vec::len);
        let announced = sizes.layer_input_tokens.get(layer + 1);
        assert!(
            announced.is_none_or(|&next| next == layer_input_tokens),
            "as many tokens enter the next layer as the method announced"
        );
        if let Some(passed) = passed {
            let width = self.of.model.config().width;
            if let Some(gpu) = &mut self.gpu {
                self.residual = gpu.bring_residual(0..n)?;
            }
            self.alive
                .surviving_tokens(&passed, &mut self.residual, width);
            self.entered = self.residual.len() / width;
            if let Some(gpu) = &mut self.gpu {
                gpu.write_residual(&std::mem::take(&mut self.residual))?;
            }
        }
        self.progress.cut(Some(layer), &compact);
        Ok((compact, retention))
    }

    /// Computes the method's query-agnostic scores, if the vault waits for them.
    fn score_query_agnostic(
        &mut self,
        (model_layer, layer): (usize, usize),
        policy: &dyn Policy,
    ) -> Result<(), EngineError> {
        let needs = self.sizes[0].needs[layer];
        let Some(score_cache) = needs.score_cache else {
            return Ok(());
        };
        if !self.prefix.awaits(score_cache) {
            return Ok(());
        }
        let ranks = policy
            .cacheable_scorer()
            .expect("a method with a score cache has a scorer for it");
        let there = self.rows_on_gpu(model_layer, false, &needs);
        let here = host_rows(&self.scratch.keys, &self.scratch.values);
        let rows = Rows {
            copies: None,
            asked: Some(asked(&there, &here)),
        };
        let scores = ranks.token_scores(&self.observation(layer, 0, rows));
        there.map_or(Ok(()), GpuRows::check)?;
        self.prefix.end_scored(&scores);
        let n = self.sizes[0].layer_input_tokens[layer];
        for (known, head) in self.known_scores.chunks_exact_mut(n).zip(&scores) {
            known[..head.len()].copy_from_slice(head);
        }
        self.scored = true;
        Ok(())
    }

    /// The current layer's rows on the GPU, if the model is on a GPU and the method computes on rows.
    fn rows_on_gpu(&self, model_layer: usize, raw: bool, needs: &Needs) -> Option<GpuRows<'_>> {
        let gpu = self.gpu.as_ref().filter(|_| needs.rows);
        gpu.map(|gpu| gpu.rows(model_layer, raw))
    }

    /// Measures what the only method needs of the current layer (`model_layer` of the model, `layer` of the
    /// method) and passes it to the method. Keeps no rows.
    pub(in crate::prefill) fn score_pass(
        &mut self,
        (model_layer, layer): (usize, usize),
        policy: &mut dyn Policy,
        stop: &Stop,
    ) -> Result<(), EngineError> {
        let rotated = self.of.rope.of_layer(model_layer).is_some();
        let needs = self.sizes[0].needs[layer];
        assert!(
            !needs.rows && !needs.copies,
            "a score pass needs no access to rows"
        );
        self.measure(layer, 0, rotated, policy.among(), stop)?;
        policy.score_pass(&self.observation(layer, 0, Rows::default()));
        Ok(())
    }

    /// The measurements of `layer` for method number `which`, with access to `rows`.
    fn observation<'o>(&'o self, layer: usize, which: usize, rows: Rows<'o>) -> Observation<'o> {
        let (sizes, scratch) = (&self.sizes[which], &self.scratch);
        let (needs, measured) = (sizes.needs[layer], &scratch.measured);
        assert!(
            rows.copies.is_none() || sizes.layer_rows() == sizes.tokens,
            "methods that read copies of keys and values do not use the reconstruction pass"
        );
        let reconstruction = self.reconstruction.as_ref();
        Observation {
            layer,
            tokens: sizes.layer_input_tokens[layer],
            kv_heads: self.heads.kv_heads,
            group: self.heads.group(),
            window: (needs.window).map(|_| scratch.window_scores.as_slice()),
            column_sums: (needs.column_sums).then_some(scratch.column_sums.as_slice()),
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
            keys: rows.copies.map(RowStore::as_slice),
            values: rows.copies.map(|_| scratch.values.as_slice()),
            rows: rows.asked,
        }
    }

    /// Measures the attention of the last queries of `layer` for method number `which`. `rotated` says
    /// whether the layer has RoPE. A weighted window is restricted to the tokens `among`, if given.
    fn measure(
        &mut self,
        layer: usize,
        which: usize,
        rotated: bool,
        among: Option<&[u32]>,
        stop: &Stop,
    ) -> Result<(), EngineError> {
        let all = self.sizes;
        let sizes = &all[which];
        let needs = sizes.needs[layer];
        let scratch = &mut self.scratch;
        let last = LastQueries {
            shape: self.heads,
            scale: attention_scale(self.of.model),
            queries: &scratch.window_queries,
            keys: &scratch.keys,
            tokens: sizes.layer_input_tokens[layer],
            log_sum_exp: &scratch.log_sum_exp[..self.heads.q_heads * self.attended],
        };
        let (measured, tokens) = (&mut scratch.measured, last.tokens);
        let floats = self.heads.q_heads * tokens;
        if let Some(future) = needs.future.filter(|_| !self.scored) {
            measured.finish(future, rotated.then_some(self.of.rope));
        }
        if let Some(weighted_window) = needs.weighted_window
            && self.held.weighted_window != Some(weighted_window)
        {
            self.held.weighted_window = Some(weighted_window);
            match (&mut self.gpu, among) {
                (Some(gpu), _) => {
                    measured.weighted_window.resize(floats, 0.0);
                    gpu.weighted_window(
                        weighted_window,
                        &ramp_weights(weighted_window),
                        tokens,
                        &mut measured.weighted_window,
                    )?;
                }
                (None, Some(among)) => {
                    // The next method may use other tokens.
                    self.held.weighted_window = None;
                    last.ramp_among(weighted_window, among, &mut measured.weighted_window, stop)?;
                }
                (None, None) => {
                    last.weighted_window(weighted_window, &mut measured.weighted_window, stop)?
                }
            }
        }
        if let Some(rows) = needs.low_attention
            && self.held.low_attention != Some(rows)
        {
            match &mut self.gpu {
                Some(gpu) => gpu.low_attention(rows, tokens, &mut measured.bits)?,
                None => last.low_attention(rows, &mut measured.bits, stop)?,
            }
            self.held.low_attention = Some(rows);
        }
        if let Some(window) = needs.window
            && self.held.window != Some(window)
        {
            scratch.window_scores.resize(floats, 0.0);
            self.held.window = Some(window);
            if let Some(gpu) = &mut self.gpu {
                gpu.window(window, tokens, &mut scratch.window_scores)?;
                return Ok(());
            }
            let task = WindowScores {
                shape: self.heads,
                scale: last.scale,
                queries: last.last(window.rows),
                keys: &scratch.keys,
                tokens: last.tokens,
                normalise: match window.softmax {
                    Softmax::All => Normalise::All,
                    Softmax::Prefix => Normalise::Prefix,
                },
                row_weights: None,
                log_sum_exp: last.log_sum_exp,
            };
            window_scores(&task, &mut scratch.window_scores, stop)?;
        }
        Ok(())
    }
}

/// A method's access to rows.
#[derive(Default)]
struct Rows<'o> {
    /// The keys; the method then also sees the values.
    copies: Option<&'o RowStore>,
    /// Computations on the rows.
    asked: Option<&'o dyn PromptRows>,
}

/// Computations on the GPU if it has the rows, otherwise on the host.
fn asked<'o>(there: &'o Option<GpuRows<'_>>, here: &'o HostRows<'_>) -> &'o dyn PromptRows {
    match there {
        Some(there) => there,
        None => here,
    }
}

/// Undoes RoPE for all keys of a prompt: row i of every head has position i.
fn unrotate_all(keys: &mut RowStore, rope: Option<&RopeTable>) {
    let Some(rope) = rope else { return };
    for head in 0..keys.kv_heads() {
        for position in 0..keys.capacity(head) {
            rope.unrotate_at(keys.row_mut(head, position), position);
        }
    }
}
