//! The attention of a chunk's tokens to every slot, for the method's decode step.

use std::ops::Range;

use kept_kernels::threads::for_each_pair;
use kept_kernels::{HeadShape, LastRows, row_probabilities};

use super::{Chunk, ChunkScratch};
use crate::EngineError;
use crate::compact::CompactLayer;
use crate::shape::attention_scale;

impl ChunkScratch<'_> {
    /// Attention of each of the chunk's rows `first..first + count`, in every head.
    pub(super) fn compute_probabilities(
        &mut self,
        chunk: &Chunk<'_>,
        first: usize,
        count: usize,
    ) -> Result<(), EngineError> {
        let (group, dim) = (self.shape.group(), self.shape.head_dim);
        for (head, scratch) in self.heads.iter_mut().enumerate() {
            let known = &mut self.known[..group * count];
            for (member, known) in known.chunks_exact_mut(count).enumerate() {
                let at = member * self.count + first;
                known.copy_from_slice(&scratch.log_sum_exp[at..at + count]);
            }
            let columns = scratch.keys.capacity(0);
            let task = LastRows {
                shape: HeadShape::new(group, 1, dim),
                scale: attention_scale(chunk.model, chunk.layer).of_heads(head * group, group),
                queries: &scratch.queries[first * group * dim..(first + count) * group * dim],
                keys: &scratch.keys,
                tokens: scratch.live + first + count,
            };
            let seen = &mut scratch.seen[..count * group * columns];
            row_probabilities(&task, known, columns, seen, chunk.stop)?;
        }
        Ok(())
    }

    /// Writes the attention of the tile's rows from `first` on, at most `rows`, to every filled slot into `step`.
    pub(super) fn gather_probabilities(&mut self, kept: &CompactLayer, first: usize, rows: usize) {
        let (group, stride, kv_heads) = (self.shape.group(), self.stride, self.heads.len());
        let heads = &mut self.heads;
        heads.iter_mut().for_each(|head| head.filled.clear());
        let parts = self.step.chunks_mut(group * stride);
        let mut parts: Vec<&mut [f32]> = parts.take(rows.min(self.gathered) * kv_heads).collect();
        let mut nothing = vec![(); parts.len()];
        for_each_pair(&mut parts, &mut nothing, |i, step, ()| {
            let (row, head) = (first + i / kv_heads, i % kv_heads);
            let slots = &heads[head].columns[..kept.rows[head]];
            for (member, step) in step.chunks_mut(stride).enumerate() {
                let seen = heads[head].seen(row * group + member);
                for (step, &column) in step.iter_mut().zip(slots) {
                    *step = seen[column as usize];
                }
            }
        });
    }

    /// The range of `step` with the probabilities of the tile's row `row`, after it was appended: those of slots that
    /// were filled since they were gathered are replaced.
    pub(super) fn probabilities_of(&mut self, row: usize) -> Range<usize> {
        let (group, stride) = (self.shape.group(), self.stride);
        let one = self.shape.q_heads * stride;
        let range = row % self.gathered * one..(row % self.gathered + 1) * one;
        let step = self.step[range.clone()].chunks_mut(stride);
        for (q_head, step) in step.enumerate() {
            let head = &self.heads[q_head / group];
            let seen = head.seen(row * group + q_head % group);
            for &slot in &head.filled {
                step[slot] = seen[head.columns[slot] as usize];
            }
        }
        range
    }

    /// Writes the attention of the tile's row `row` to every entry, in order of position, into `step
    /// [kv_heads, stride]`: a merging method uses group means. Both lists of positions ascend.
    pub(super) fn copy_entry_probabilities(
        &mut self,
        chunk: &Chunk<'_>,
        kept: &CompactLayer,
        row: usize,
    ) {
        let group = self.shape.group();
        for (head, scratch) in self.heads.iter_mut().enumerate() {
            let columns = scratch.keys.capacity(0);
            let end = scratch.live + self.count;
            let seen = &mut scratch.seen[row * group * columns..][..group * columns];
            let (mean, others) = seen.split_at_mut(columns);
            let mean = &mut mean[..end];
            let share = 1.0 / group as f32;
            mean.iter_mut().for_each(|m| *m *= share);
            for seen in others.chunks_exact(columns) {
                mean.iter_mut().zip(seen).for_each(|(m, p)| *m += p * share);
            }
            let step = &mut self.step[head * self.stride..][..self.stride];
            let mut rank = 0;
            for (step, &position) in step.iter_mut().zip(kept.attended(head)) {
                let column = match position.0.checked_sub(chunk.first.0) {
                    Some(in_chunk) => scratch.live + in_chunk as usize,
                    None => {
                        while scratch.places[rank] != position {
                            rank += 1;
                        }
                        rank
                    }
                };
                *step = mean[column];
            }
        }
    }
}
