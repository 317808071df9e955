//! One chunk in one layer: the chunk attends to the kept rows and itself, then the method's decode step runs
//! for each of its tokens.

mod probabilities;

use std::ops::Range;

use kept_kernels::{HeadShape, LastRows, PrefillAttention, RowStore, Stop, window_scores};
use kept_models::{Model, RopeTable};
use kept_policies::{Evict, Pos, Row, StepObservation};

use super::ring::Ring;
use crate::backend::{Backend, HostAttention, HostLayer};
use crate::compact::CompactLayer;
use crate::plan::{StreamPlan, TILE};
use crate::shape::attention_scale;
use crate::{EngineError, HeadPeak};

/// Parameters of a chunk in a layer.
pub(super) struct Chunk<'a> {
    pub(super) model: &'a Model,
    /// The layer's rotation; `None` for a layer without RoPE.
    pub(super) rope: Option<&'a RopeTable>,
    pub(super) layer: usize,
    /// Position of the chunk's first token in the text.
    pub(super) first: Pos,
    /// Rows whose output is needed.
    pub(super) needed: Range<usize>,
    pub(super) stop: &'a Stop,
}

/// Scratch of one KV head.
struct Head {
    /// One head: kept rows by rank, then the chunk's rows; all rotated.
    keys: RowStore,
    /// As `keys`.
    values: RowStore,
    /// `[chunk, group, head_dim]`, rotated.
    queries: Vec<f32>,
    /// `[group, chunk]`
    log_sum_exp: Vec<f32>,
    /// `[TILE, group, columns]`: attention of each token of a tile.
    seen: Vec<f32>,
    /// Rows before the chunk.
    live: usize,
    /// `[slots]`: the row of each slot in `keys`; unused if the method merges (then `places`).
    columns: Vec<u32>,
    /// Slots that were filled since probabilities were gathered.
    filled: Vec<usize>,
    /// `[entries]`: positions of the rows before the chunk, by rank.
    places: Vec<Pos>,
}

impl Head {
    /// `[columns]`: the probabilities of one token and query head; `at` is the token in its tile times the group's
    /// size, plus the query head in its group.
    fn seen(&self, at: usize) -> &[f32] {
        let columns = self.keys.capacity(0);
        &self.seen[at * columns..][..columns]
    }
}

/// All buffers of one chunk in one layer, allocated once.
pub(super) struct ChunkScratch<'a> {
    shape: HeadShape,
    reads_probabilities: bool,
    /// Tokens of this chunk.
    count: usize,
    /// `[chunk, q_heads, head_dim]`, before RoPE.
    q: Vec<f32>,
    /// `[chunk, kv_heads, head_dim]`, before RoPE.
    k: Vec<f32>,
    /// `[chunk, kv_heads, head_dim]`
    v: Vec<f32>,
    /// `[chunk, q_heads, head_dim]`
    attention: Vec<f32>,
    /// `[kv_heads]`
    heads: Vec<Head>,
    /// `[group, TILE]`: `log_sum_exp` of a tile.
    known: Vec<f32>,
    /// `[gathered, q_heads, stride]`: probabilities of some tokens by slot. If the method merges, the first `[kv_heads,
    /// stride]` are one token's group means by entry.
    step: Vec<f32>,
    gathered: usize,
    stride: usize,
    /// `[kv_heads]`
    evict: Vec<Option<Row>>,
    /// Attention of one head at a time.
    one_head: Box<dyn HostAttention + 'a>,
}

impl<'a> ChunkScratch<'a> {
    pub(super) fn new(plan: &StreamPlan, backend: &dyn Backend<'a>) -> Self {
        let shape = plan.heads;
        let (group, dim) = (shape.group(), shape.head_dim);
        let looking = |floats: usize| {
            if plan.row_plan.needs_probabilities {
                floats
            } else {
                0
            }
        };
        let store = || RowStore::uniform(1, plan.columns(), dim);
        let tile = TILE.min(plan.chunk);
        let head = || Head {
            keys: store(),
            values: store(),
            queries: vec![0.0; plan.chunk * group * dim],
            log_sum_exp: vec![0.0; looking(group * plan.chunk)],
            seen: vec![0.0; looking(tile * group * plan.columns())],
            live: 0,
            columns: vec![0; looking(plan.stride())],
            filled: Vec::with_capacity(plan.gathered()),
            places: Vec::with_capacity(looking(plan.entries)),
        };
        Self {
            shape,
            reads_probabilities: plan.row_plan.needs_probabilities,
            count: 0,
            q: vec![0.0; plan.chunk * shape.q_heads * dim],
            k: vec![0.0; plan.chunk * shape.kv_heads * dim],
            v: vec![0.0; plan.chunk * shape.kv_heads * dim],
            attention: vec![0.0; plan.chunk * shape.q_heads * dim],
            heads: (0..shape.kv_heads).map(|_| head()).collect(),
            known: vec![0.0; looking(group * tile)],
            step: vec![0.0; looking(plan.gathered() * shape.q_heads * plan.stride())],
            gathered: plan.gathered(),
            stride: plan.stride(),
            evict: vec![None; shape.kv_heads],
            one_head: backend.host_attention(plan),
        }
    }

    /// Computes q, k and v of a chunk's rows of the residual stream.
    pub(super) fn project(
        &mut self,
        pass: &mut dyn HostLayer,
        rows: &[f32],
        count: usize,
        stop: &Stop,
    ) -> Result<(), EngineError> {
        let HeadShape {
            q_heads,
            kv_heads,
            head_dim,
        } = self.shape;
        self.count = count;
        let q = &mut self.q[..self.count * q_heads * head_dim];
        let k = &mut self.k[..self.count * kv_heads * head_dim];
        let v = &mut self.v[..self.count * kv_heads * head_dim];
        pass.project(rows, [q, k, v], stop)
    }

    /// Attention of the chunk over the rows of `kept` and itself.
    pub(super) fn attend(
        &mut self,
        chunk: &Chunk<'_>,
        kept: &CompactLayer,
    ) -> Result<(), EngineError> {
        for (head, scratch) in self.heads.iter_mut().enumerate() {
            scratch.live = kept.copy_ranked(head, &mut scratch.keys, &mut scratch.values);
            if self.reads_probabilities {
                scratch.places.clear();
                if kept.classes.is_some() {
                    scratch.places.extend_from_slice(kept.attended(head))
                } else {
                    kept.copy_ranks(head, &mut scratch.columns)
                }
            }
        }
        self.attend_all(chunk, None)
    }

    /// Adds the most attended token of each query head for the chunk's last token, before the chunk is appended to `kept`.
    pub(super) fn attend_last(
        &self,
        chunk: &Chunk<'_>,
        kept: &CompactLayer,
        peaks: &mut Vec<HeadPeak>,
    ) -> Result<(), EngineError> {
        let (group, dim) = (self.shape.group(), self.shape.head_dim);
        for (head, scratch) in self.heads.iter().enumerate() {
            let tokens = scratch.live + self.count;
            let task = LastRows {
                shape: HeadShape::new(group, 1, dim),
                scale: attention_scale(chunk.model, chunk.layer).of_heads(head * group, group),
                queries: &scratch.queries[..self.count * group * dim],
                keys: &scratch.keys,
                tokens,
            };
            let mut probabilities = vec![0.0; group * tokens];
            window_scores(&task.newest(1).window(), &mut probabilities, chunk.stop)?;
            let before = match kept.classes.is_some() {
                true => kept.attended(head).to_vec(),
                false => kept.kept(head),
            };
            let position = |row: usize| match row.checked_sub(scratch.live) {
                Some(in_chunk) => Pos(chunk.first.0 + in_chunk as u32),
                None => before[row],
            };
            let by_query = probabilities.chunks_exact(tokens);
            peaks.extend(by_query.map(|probabilities| HeadPeak::of(probabilities, position)));
        }
        Ok(())
    }

    /// Attention of the chunk over a ring and itself.
    pub(super) fn attend_ring(
        &mut self,
        chunk: &Chunk<'_>,
        ring: &Ring,
    ) -> Result<(), EngineError> {
        for (head, scratch) in self.heads.iter_mut().enumerate() {
            for row in 0..ring.rows {
                ring.keys.read(head, row, scratch.keys.row_mut(0, row));
                ring.values.read(head, row, scratch.values.row_mut(0, row));
            }
            scratch.live = ring.rows;
        }
        self.attend_all(chunk, Some(ring.window))
    }

    /// Appends the chunk to the heads' kept rows (by rank, before RoPE), rotates all rows and runs attention.
    fn attend_all(&mut self, chunk: &Chunk<'_>, window: Option<usize>) -> Result<(), EngineError> {
        let HeadShape {
            q_heads,
            kv_heads,
            head_dim: dim,
        } = self.shape;
        let group = self.shape.group();
        let one = HeadShape::new(group, 1, dim);
        // A method that reads probabilities needs every row's log-sum-exp.
        let reads_probabilities = self.reads_probabilities && window.is_none();
        let needed = if reads_probabilities {
            0..self.count
        } else {
            chunk.needed.clone()
        };
        for (head, scratch) in self.heads.iter_mut().enumerate() {
            let (live, end) = (scratch.live, scratch.live + self.count);
            for row in 0..self.count {
                let from = (row * kv_heads + head) * dim;
                let to = live + row;
                scratch
                    .keys
                    .row_mut(0, to)
                    .copy_from_slice(&self.k[from..][..dim]);
                scratch
                    .values
                    .row_mut(0, to)
                    .copy_from_slice(&self.v[from..][..dim]);
                let from = (row * q_heads + head * group) * dim;
                scratch.queries[row * group * dim..][..group * dim]
                    .copy_from_slice(&self.q[from..][..group * dim]);
            }
            if let Some(rope) = chunk.rope {
                rope.rotate_rows(&mut scratch.keys.head_mut(0)[..end * dim], 1, 0);
                let queries = &mut scratch.queries[..self.count * group * dim];
                rope.rotate_queries(queries, group, live);
            }
            if needed.is_empty() {
                continue;
            }
            let width = group * dim;
            let task = PrefillAttention {
                shape: one,
                scale: attention_scale(chunk.model, chunk.layer).of_heads(head * group, group),
                window,
                queries: &scratch.queries[needed.start * width..needed.end * width],
                first: live + needed.start,
                keys: &scratch.keys,
                values: &scratch.values,
            };
            // The outputs are stored head by head; [`ChunkScratch::finish`] reorders them.
            let out = &mut self.attention[head * needed.len() * width..][..needed.len() * width];
            let known = reads_probabilities.then(|| &mut scratch.log_sum_exp[..group * self.count]);
            self.one_head
                .attend(&task, 0..end, out, known, chunk.stop)?;
        }
        Ok(())
    }

    /// The rest of the layer, for the needed rows.
    pub(super) fn finish(
        &mut self,
        chunk: &Chunk<'_>,
        pass: &mut dyn HostLayer,
        rows: &mut [f32],
    ) -> Result<(), EngineError> {
        let needed = chunk.needed.clone();
        if needed.is_empty() {
            return Ok(());
        }
        let (group, dim) = (self.shape.group(), self.shape.head_dim);
        let (part, row) = (group * dim, self.shape.q_heads * dim);
        let reads_probabilities =
            self.reads_probabilities && chunk.model.config().kinds[chunk.layer].window().is_none();
        let (held, skip) = if reads_probabilities {
            (self.count, needed.start)
        } else {
            (needed.len(), 0)
        };
        // The queries' buffer is free now and takes the outputs in the layer's order.
        for (head, out) in self.attention.chunks_exact(held * part).enumerate() {
            if head == self.heads.len() {
                break;
            }
            for r in 0..needed.len() {
                self.q[r * row + head * part..][..part]
                    .copy_from_slice(&out[(skip + r) * part..][..part]);
            }
        }
        let width = rows.len() / self.count;
        let rows = &mut rows[needed.start * width..needed.end * width];
        pass.finish(&self.q[..needed.len() * row], rows, chunk.stop)
    }

    /// Appends the chunk's tokens one by one, running the method's decode step (which may evict a row) after
    /// each.
    pub(super) fn append_and_evict(
        &mut self,
        chunk: &Chunk<'_>,
        own: usize,
        kept: &mut CompactLayer,
        mut evictor: Option<&mut (dyn Evict + 'static)>,
    ) -> Result<(), EngineError> {
        let width = self.shape.kv_heads * self.shape.head_dim;
        for first in (0..self.count).step_by(TILE) {
            let count = TILE.min(self.count - first);
            if self.reads_probabilities {
                self.compute_probabilities(chunk, first, count)?;
            }
            chunk.stop.check()?;
            for row in first..first + count {
                let position = Pos(chunk.first.0 + row as u32);
                if self.reads_probabilities && kept.classes.is_none() {
                    if (row - first).is_multiple_of(self.gathered) {
                        self.gather_probabilities(kept, row - first, first + count - row);
                    }
                    for (head, scratch) in self.heads.iter_mut().enumerate() {
                        let slot = kept.next_slot(head);
                        scratch.columns[slot] = (scratch.live + row) as u32;
                        scratch.filled.push(slot);
                    }
                }
                let at = row * width..(row + 1) * width;
                kept.append(&self.k[at.clone()], &self.v[at], position);
                let Some(evictor) = evictor.as_deref_mut() else {
                    continue;
                };
                if kept.classes.is_some() {
                    self.copy_entry_probabilities(chunk, kept, row - first);
                    let seen = &self.step[..self.heads.len() * self.stride];
                    kept.step_classes(own, evictor, seen, self.stride);
                    // One head's step may take 0.1 ms.
                    chunk.stop.check()?;
                    continue;
                }
                let (group, stride) = (self.shape.group(), self.stride);
                let probabilities = match self.reads_probabilities {
                    true => self.probabilities_of(row - first),
                    false => 0..0,
                };
                self.evict.fill(None);
                let step = StepObservation {
                    layer: own,
                    rows: &kept.rows,
                    firsts: kept.keys.first_rows(),
                    positions: &kept.positions,
                    newest: &kept.newest,
                    group,
                    probabilities: &self.step[probabilities],
                    stride,
                };
                evictor.step(&step, &mut self.evict);
                kept.evict(&self.evict);
            }
        }
        Ok(())
    }

    /// Adds the chunk to the ring.
    pub(super) fn push_to_ring(&mut self, ring: &mut Ring) {
        let width = self.shape.kv_heads * self.shape.head_dim;
        ring.push(&self.k[..self.count * width], &self.v[..self.count * width]);
    }
}
