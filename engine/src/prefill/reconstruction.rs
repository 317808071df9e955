//! The reconstruction pass (KVzip): the document's repetition runs as a second residual stream, chunk by
//! chunk, through the layer that the prompt was just read in.
//!
//! A chunk's rows see the prompt up to the document's end and one another. Their keys and values are
//! therefore written to the layer's own buffers directly after the document, in place of the question's rows,
//! which are saved and restored.
//!
//! ```text
//! keys of a layer    template document | question         after the prompt was read
//!                    template document | repetition 0     attention of repetition 0; its probabilities over
//!                    template document | repetition 1     ...         [sinks, chunk 0, repetition 0]
//!                    template document | question         restored
//! ```

use std::ops::Range;

use kept_kernels::{HeadShape, LastRows, PrefillAttention, RowStore, Stop, window_maxima};
use kept_models::{Model, RopeTable};

use crate::EngineError;
use crate::backend::{HostBuffers, HostView};
use crate::gathered_rope::GatheredRope;
use crate::plan::{PrefillPlan, ReconstructionPlan, Segment};
use crate::shape::attention_scale;

/// A layer of the pass and what it computes.
#[derive(Debug, Clone, Copy)]
pub(super) struct RepeatedLayer {
    /// Index among all layers of the model.
    pub(super) layer: usize,
    /// Attention scores of its rows; not in layers that no method compacts.
    pub(super) scores: bool,
    /// The layer's output; not in the last layer, unless requested.
    pub(super) outputs: bool,
}

/// State of the reconstruction pass.
pub(crate) struct ReconstructionPass<'a> {
    plan: &'a ReconstructionPlan,
    model: &'a Model,
    rope: &'a RopeTable,
    heads: HeadShape,
    /// Tokens of the prompt.
    tokens: usize,
    /// Rows that run through a layer together.
    chunk: usize,
    /// `[rows, width]`: the residual streams of all chunks' repetitions.
    residual: Vec<f32>,
    /// Rotations: row i of a repetition has the position i after the document's end.
    gathered_rope: GatheredRope,
    /// Saved keys and values of the rows after the document.
    saved: [RowStore; 2],
    /// `[sinks + chunk + reconstruction]` rows per KV head: the keys over which a chunk's probabilities are
    /// taken.
    seen: RowStore,
    /// `[q_heads, chunk]`: maximum probability over the rows of one step.
    maxima: Vec<f32>,
    /// `[kv_heads, n]`: maximum probability over all rows and the GQA group.
    pub(super) scores: Vec<f32>,
    /// Whether attention has seen the document's rows of the current layer; the rows after the document change
    /// with every chunk.
    begun: bool,
}

impl<'a> ReconstructionPass<'a> {
    /// Allocates everything.
    pub(super) fn new(
        model: &'a Model,
        ids: &[u32],
        rope: &'a RopeTable,
        prefill: &PrefillPlan,
        plan: &'a ReconstructionPlan,
        heads: HeadShape,
    ) -> Self {
        let (end, longest) = (plan.document.end, plan.longest());
        let mut residual = vec![0.0; prefill.repetition_residual()];
        model.embed(&plan.ids(ids), &mut residual);
        let rows = |rows| RowStore::uniform(heads.kv_heads, rows, heads.head_dim);
        let after = ids.len() - end;
        Self {
            plan,
            model,
            rope,
            heads,
            tokens: ids.len(),
            chunk: prefill.chunk,
            residual,
            gathered_rope: GatheredRope::new(rope, longest),
            saved: [rows(after), rows(after)],
            seen: rows(plan.sinks + plan.chunk + longest),
            maxima: Vec::with_capacity(heads.q_heads * plan.chunk),
            scores: vec![0.0; heads.kv_heads * ids.len()],
            begun: false,
        }
    }

    /// Floats of everything except residual stream, keys and values.
    pub(crate) fn floats(
        plan: &ReconstructionPlan,
        heads: HeadShape,
        tokens: usize,
        pairs: usize,
    ) -> usize {
        GatheredRope::floats(plan.longest(), pairs)
            + heads.q_heads * plan.chunk
            + heads.kv_heads * tokens
    }

    /// Rows per KV head of the pass's own buffers: one of keys, two of saved rows.
    pub(crate) fn rows(plan: &ReconstructionPlan, tokens: usize) -> usize {
        plan.sinks + plan.chunk + plan.longest() + 2 * (tokens - plan.document.end)
    }

    /// Bytes of the residual stream.
    pub(super) fn residual_bytes(&self) -> u64 {
        size_of_val(self.residual.as_slice()) as u64
    }

    /// Bytes of its key and value buffers.
    pub(super) fn store_bytes(&self) -> u64 {
        let saved = self.saved.iter().map(RowStore::bytes).sum::<usize>();
        (self.seen.bytes() + saved) as u64
    }

    /// `[rows, width]`: the last layer's output, if it was computed.
    pub(super) fn into_residual(self) -> Vec<f32> {
        self.residual
    }

    /// Runs every chunk's repetition through the layer whose keys and values of the prompt are in `view`,
    /// and computes scores. `report` receives the number of rows after each step.
    pub(super) fn read(
        &mut self,
        layer: RepeatedLayer,
        mut view: HostView<'_>,
        stop: &Stop,
        report: &mut dyn FnMut(usize),
    ) -> Result<(), EngineError> {
        let end = self.plan.document.end;
        if let Some(rope) = self.rope.of_layer(layer.layer) {
            self.gathered_rope
                .set_positions(rope, end..end + self.plan.longest());
        }
        self.scores.fill(0.0);
        self.begun = false;
        self.save_rows(view.buffers, end);
        for segment in self.plan.segments() {
            self.copy_seen_keys(view.buffers, &segment);
            for first in (0..segment.rows.len()).step_by(self.chunk) {
                let count = self.chunk.min(segment.rows.len() - first);
                let rows = first..first + count;
                self.read_rows(layer, &mut view, &segment, rows, stop)?;
                report(count);
            }
        }
        self.restore_rows(view.buffers, end);
        Ok(())
    }

    /// Runs `rows` of one chunk's repetition through the layer, after the rows before them.
    fn read_rows(
        &mut self,
        layer: RepeatedLayer,
        view: &mut HostView<'_>,
        segment: &Segment,
        rows: Range<usize>,
        stop: &Stop,
    ) -> Result<(), EngineError> {
        let (heads, end, count) = (self.heads, self.plan.document.end, rows.len());
        let width = self.model.config().width;
        let scratch = &mut *view.buffers;
        let q = &mut scratch.q[..count * heads.q_heads * heads.head_dim];
        let k = &mut scratch.k[..count * heads.kv_heads * heads.head_dim];
        let v = &mut scratch.v[..count * heads.kv_heads * heads.head_dim];
        let at = segment.rows.start + rows.start;
        let stream = at * width..(at + count) * width;
        let rows_of_stream = &self.residual[stream.clone()];
        view.layer
            .project(rows_of_stream, [&mut *q, &mut *k, &mut *v], stop)?;
        if let Some(rope) = self.rope.of_layer(layer.layer) {
            (self.gathered_rope).rotate_queries(rope, q, heads.q_heads, rows.clone());
            self.gathered_rope.rotate(k, heads.kv_heads, rows.clone());
        }
        scratch.keys.copy_in(end + rows.start, k);
        scratch.values.copy_in(end + rows.start, v);
        if layer.scores {
            self.score(layer.layer, q, k, segment, &rows, stop)?;
        }
        if layer.outputs {
            let out = &mut scratch.attention[..q.len()];
            let task = PrefillAttention {
                shape: heads,
                scale: attention_scale(self.model, layer.layer),
                window: self.model.config().kinds[layer.layer].window(),
                queries: q,
                first: end + rows.start,
                keys: &scratch.keys,
                values: &scratch.values,
            };
            let from = if std::mem::replace(&mut self.begun, true) {
                end + rows.start
            } else {
                0
            };
            view.attention
                .attend(&task, from..end + rows.end, out, None, stop)?;
            view.layer.finish(out, &mut self.residual[stream], stop)?;
        }
        Ok(())
    }

    /// Scores of `rows` of a chunk's repetition, given their queries and keys.
    fn score(
        &mut self,
        layer: usize,
        q: &[f32],
        k: &[f32],
        segment: &Segment,
        rows: &Range<usize>,
        stop: &Stop,
    ) -> Result<(), EngineError> {
        let heads = self.heads;
        let ahead = self.plan.sinks.min(segment.chunk.start);
        let own = ahead + segment.chunk.len();
        self.seen.copy_in(own + rows.start, k);
        let columns = ahead..own;
        self.maxima.clear();
        self.maxima.resize(heads.q_heads * columns.len(), 0.0);
        let rows = LastRows {
            shape: heads,
            scale: attention_scale(self.model, layer),
            queries: q,
            keys: &self.seen,
            tokens: own + rows.end,
        };
        window_maxima(&rows.window(), columns, &mut self.maxima, stop)?;
        let of_heads = self.maxima.chunks_exact(segment.chunk.len());
        for (head, maxima) in of_heads.enumerate() {
            let scores = &mut self.scores[head / heads.group() * self.tokens..][..self.tokens];
            let scores = scores[segment.chunk.clone()].iter_mut();
            scores.zip(maxima).for_each(|(s, p)| *s = s.max(*p));
        }
        Ok(())
    }

    /// Copies the keys that precede the repetition in a chunk's probabilities: the prompt's sinks and the
    /// chunk's own keys.
    fn copy_seen_keys(&mut self, scratch: &HostBuffers, segment: &Segment) {
        let dim = self.heads.head_dim;
        let ahead = self.plan.sinks.min(segment.chunk.start);
        for head in 0..self.heads.kv_heads {
            let keys = scratch.keys.head(head);
            let seen = self.seen.head_mut(head);
            seen[..ahead * dim].copy_from_slice(&keys[..ahead * dim]);
            let chunk = segment.chunk.start * dim..segment.chunk.end * dim;
            seen[ahead * dim..][..chunk.len()].copy_from_slice(&keys[chunk]);
        }
    }

    /// Saves the rows after the document, which ends at row `end`.
    fn save_rows(&mut self, scratch: &HostBuffers, end: usize) {
        let part = end * self.heads.head_dim..self.tokens * self.heads.head_dim;
        for head in 0..self.heads.kv_heads {
            let [keys, values] = &mut self.saved;
            keys.head_mut(head)
                .copy_from_slice(&scratch.keys.head(head)[part.clone()]);
            values
                .head_mut(head)
                .copy_from_slice(&scratch.values.head(head)[part.clone()]);
        }
    }

    /// Restores the rows after the document.
    fn restore_rows(&self, scratch: &mut HostBuffers, end: usize) {
        let part = end * self.heads.head_dim..self.tokens * self.heads.head_dim;
        for head in 0..self.heads.kv_heads {
            let [keys, values] = &self.saved;
            scratch.keys.head_mut(head)[part.clone()].copy_from_slice(keys.head(head));
            scratch.values.head_mut(head)[part.clone()].copy_from_slice(values.head(head));
        }
    }
}
