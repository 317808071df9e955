//! Measurement and selection in a layer after its prefill.

use kept_kernels::{Normalise, RowStore, Stop, Stopped, WindowScores, window_scores};
use kept_models::RopeTable;
use kept_policies::{
    LowAttention, Method, Needs, Observation, Pos, PromptRows, Retention, Select, Selection,
    Softmax, Window,
};

use super::{GlobalLayer, Reader};
use crate::compact::{CompactLayer, Gather, RingGather};
use crate::decode::capacity_of;
use crate::observe::{HostRows, LastQueries, Pool, host_rows, ramp_weights};
use crate::plan::LayerKeeps;
use crate::prefill::check::check;
use crate::prefill::gpu::GpuRows;
use crate::shape::attention_scale;
use crate::{EngineError, Watch};

impl Reader<'_> {
    /// Copies the rows `slots` of the current layer to the GPU cache, into the places of `slot_table`.
    fn copy_to_gpu_cache(
        &mut self,
        slot_table: &CompactLayer,
        slots: &[Vec<u32>],
    ) -> Result<(), EngineError> {
        let capacity = capacity_of(slot_table)?;
        let gpu = self.gpu.as_mut().expect("rows that stay on a GPU");
        Ok(gpu.copy_to_cache(&capacity, &slot_table.keys, slots)?)
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
        let all = self.sizes;
        let sizes = &all[which];
        let n = sizes.tokens();
        if !sizes.rows_on_gpu {
            let last = n.saturating_sub(window) as u32..n as u32;
            let last = vec![last.map(Pos).collect(); self.heads.kv_heads];
            self.download_kept(&Retention::Keep(last), n, true)?;
        }
        let scratch = &mut self.scratch;
        let gather = RingGather {
            keys: &scratch.keys,
            values: &scratch.values,
            tokens: n,
            window,
            max_new_tokens: sizes.max_new_tokens(),
            cache: sizes.cache,
        };
        let ring = if sizes.rows_on_gpu {
            let mut slots = Vec::new();
            let ring = gather.slot_table(&mut slots);
            self.copy_to_gpu_cache(&ring, &slots)?;
            ring
        } else {
            gather.layer(&mut scratch.gathered)
        };
        self.progress.add_layer(None, &ring);
        Ok(ring)
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
        let all = self.sizes;
        let sizes = &all[which];
        let needs = sizes.needs[index];
        if needs.copies {
            self.download_all(sizes.layer_input_tokens(index))?;
        }
        self.measure(layer, which, stop)?;
        self.score_query_agnostic(layer, method)?;
        // On a GPU, computations on rows need no copies on the host.
        let looks = needs.copies || (needs.rows && self.gpu.is_none());
        // A method that reads keys and re-assigns positions sees keys as they will be stored: before RoPE.
        let raw = looks && sizes.reassigns_positions();
        if raw {
            let rope = self.of.rope.of_layer(layer.in_model);
            match all.len() {
                // A single method: the rotated keys are not needed again.
                1 => unrotate_all(&mut self.scratch.keys, rope),
                _ => {
                    let keys = self.raw_keys.insert(self.scratch.keys.clone());
                    unrotate_all(keys, rope);
                }
            }
        }
        let selection = self.select(layer, which, raw, select)?;
        let compact = self.gather(layer, which, raw, &selection)?;
        let retention = (self.alive).at_positions(selection.retention, self.heads.kv_heads);
        self.drop_tokens(index, which, selection.surviving_tokens)?;
        self.candidates[which] = selection.candidates;
        self.progress.add_layer(Some(index), &compact);
        Ok((compact, retention))
    }

    /// Runs method number `which` on the measurements of `layer`. With `raw`, it sees host keys before RoPE.
    fn select(
        &self,
        layer: GlobalLayer,
        which: usize,
        raw: bool,
        select: &mut dyn Select,
    ) -> Result<Selection, EngineError> {
        let (index, sizes) = (layer.in_policy, &self.sizes[which]);
        let (n, budget, needs) = (
            sizes.layer_input_tokens(index),
            sizes.row_plan.rows[index],
            sizes.needs[index],
        );
        let before_rope = sizes.reassigns_positions();
        let raw_keys = self.raw_keys.as_ref().filter(|_| raw);
        let keys = raw_keys.unwrap_or(&self.scratch.keys);
        let on_gpu = self.rows_on_gpu(layer.in_model, before_rope, &needs);
        let on_host = host_rows(keys, &self.scratch.values);
        let rows = Rows {
            copies: needs.copies.then_some(keys),
            computations: needs.rows.then_some(prompt_rows(&on_gpu, &on_host)),
        };
        let observation = self.observation(index, which, rows);
        let selection = select.select(&sizes.row_plan, &observation);
        on_gpu.map_or(Ok(()), GpuRows::check)?;
        check(&selection.retention, n, budget, sizes.table);
        Ok(selection)
    }

    /// Builds the compact layer of a selection: its rows stay on the GPU, or are gathered on the host, from keys
    /// before RoPE if `raw`.
    fn gather(
        &mut self,
        layer: GlobalLayer,
        which: usize,
        raw: bool,
        selection: &Selection,
    ) -> Result<CompactLayer, EngineError> {
        let (index, all) = (layer.in_policy, self.sizes);
        let sizes = &all[which];
        let (n, table) = (sizes.layer_input_tokens(index), sizes.table);
        let (retention, value_merges) = (&selection.retention, &selection.value_merges);
        let before_rope = sizes.reassigns_positions();
        let value_sums = match &mut self.gpu {
            Some(gpu) if !value_merges.is_empty() => Some(gpu.download_value_sums(value_merges)?),
            _ => None,
        };
        let copied = (value_merges.is_empty() || value_sums.is_some()) && table.is_none();
        let stays = sizes.rows_on_gpu;
        assert!(copied || !stays, "only copies stay on a GPU");
        let merged = match (retention, &mut self.gpu) {
            (Retention::Merge(heads), Some(gpu)) => {
                let (keys, values) = (&mut self.scratch.keys, &mut self.scratch.values);
                // The merged rows overwrite tokens' own rows, so a later method must download those again.
                self.whole = false;
                Some(gpu.download_merged(heads, layer.in_model, before_rope, keys, values)?)
            }
            _ => None,
        };
        if !stays && merged.is_none() {
            self.download_kept(retention, n, copied)?;
        }
        let raw_keys = self.raw_keys.as_ref().filter(|_| raw);
        let keys = raw_keys.unwrap_or(&self.scratch.keys);
        let rope = self.of.rope.of_layer(layer.in_model);
        let gather = Gather {
            keys,
            values: &self.scratch.values,
            tokens: n,
            retention,
            capacities: &sizes.head_capacities(index, retention),
            positions: sizes.row_plan.positions,
            stored: sizes.stored(),
            places: self.alive.positions(),
            // Methods that re-assign positions store keys before RoPE.
            unrotate: rope.filter(|_| before_rope && !raw && merged.is_none()),
            value_merges,
            left: value_sums.as_deref(),
            merged: merged.is_some(),
        };
        if stays {
            let mut slots = Vec::new();
            let slot_table = gather.slot_table(&mut slots);
            self.copy_to_gpu_cache(&slot_table, &slots)?;
            return Ok(slot_table);
        }
        let compact = gather.layer(&mut self.scratch.gathered);
        Ok(match (table, &merged) {
            (Some(table), Some(lengths)) => {
                let length = |head: usize, entry: usize, _| lengths[head][entry];
                compact.with_lengths(length, retention, table)
            }
            (Some(table), None) => compact.with_table(keys, retention, table),
            (None, _) => compact,
        })
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
        let width = self.of.model.config().width;
        if let Some(gpu) = &mut self.gpu {
            self.residual = gpu.download_residual(0..n)?;
        }
        self.alive.retain(&surviving, &mut self.residual, width);
        self.entered = self.residual.len() / width;
        if let Some(gpu) = &mut self.gpu {
            gpu.upload_residual(&std::mem::take(&mut self.residual))?;
        }
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
        let on_gpu = self.rows_on_gpu(layer.in_model, false, &needs);
        let on_host = host_rows(&self.scratch.keys, &self.scratch.values);
        let rows = Rows {
            copies: None,
            computations: Some(prompt_rows(&on_gpu, &on_host)),
        };
        let scores = scorer.score(&self.sizes[0].row_plan, &self.observation(index, 0, rows));
        on_gpu.map_or(Ok(()), GpuRows::check)?;
        self.prefix.write_scores(&scores);
        let n = self.sizes[0].layer_input_tokens(index);
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
        let (sizes, scratch) = (&self.sizes[which], &self.scratch);
        let (needs, measured) = (sizes.needs[layer], &scratch.measured);
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
        let scratch = &mut self.scratch;
        let last = LastQueries {
            shape: self.heads,
            scale: attention_scale(self.of.model),
            queries: &scratch.window_queries,
            keys: &scratch.keys,
            tokens: sizes.layer_input_tokens(layer.in_policy),
            log_sum_exp: &scratch.log_sum_exp[..self.heads.q_heads * self.attended],
        };
        let (measured, tokens) = (&mut scratch.measured, last.tokens);
        let floats = self.heads.q_heads * tokens;
        if let Some(future) = needs.future.filter(|_| !self.scored) {
            let rotated = self.of.rope.of_layer(layer.in_model).is_some();
            measured.finish(future, rotated.then_some(self.of.rope));
        }
        if let Some(weighted_window) = needs.weighted_window
            && self.held.weighted_window != Some(weighted_window)
        {
            let out = &mut measured.weighted_window;
            let among = self.candidates[which].as_deref();
            match (&mut self.gpu, among) {
                (Some(gpu), _) => {
                    out.resize(floats, 0.0);
                    let weights = ramp_weights(weighted_window);
                    gpu.weighted_window(weighted_window, &weights, tokens, out)?;
                }
                (None, Some(among)) => last.ramp_among(weighted_window, among, out, stop)?,
                (None, None) => last.weighted_window(weighted_window, out, stop)?,
            }
            // The next method may use other tokens.
            let restricted = self.gpu.is_none() && among.is_some();
            self.held.weighted_window = (!restricted).then_some(weighted_window);
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
            let out = &mut scratch.window_scores;
            out.resize(floats, 0.0);
            match &mut self.gpu {
                Some(gpu) => gpu.window(window, tokens, out)?,
                None => host_window(&last, window, out, stop)?,
            }
            self.held.window = Some(window);
        }
        Ok(())
    }
}

/// Attention of the observation window into `out [q_heads, tokens]`, computed on the host.
fn host_window(
    last: &LastQueries<'_>,
    window: Window,
    out: &mut [f32],
    stop: &Stop,
) -> Result<(), Stopped> {
    let task = WindowScores {
        shape: last.shape,
        scale: last.scale,
        queries: last.last(window.rows),
        keys: last.keys,
        tokens: last.tokens,
        normalise: match window.softmax {
            Softmax::All => Normalise::All,
            Softmax::Prefix => Normalise::Prefix,
        },
        row_weights: None,
        log_sum_exp: last.log_sum_exp,
    };
    window_scores(&task, out, stop)
}

/// A method's access to rows.
#[derive(Default)]
struct Rows<'o> {
    /// The keys; the method then also sees the values.
    copies: Option<&'o RowStore>,
    /// Computations on the rows.
    computations: Option<&'o dyn PromptRows>,
}

/// Computations on the GPU if it has the rows, otherwise on the host.
fn prompt_rows<'o>(
    on_gpu: &'o Option<GpuRows<'_>>,
    on_host: &'o HostRows<'_>,
) -> &'o dyn PromptRows {
    match on_gpu {
        Some(on_gpu) => on_gpu,
        None => on_host,
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
