//! Eviction during decode: what a method sees after a step, and what it decides.

use crate::{ClassHead, Pos, Row, Snapshot};

/// One layer's cache after one decode step, for a method that evicts during decode.
///
/// After `select`, slot i of a head holds its i-th kept position. A new token takes the slot evicted last, or the next
/// free slot. A method may therefore keep its own data per slot.
#[derive(Debug, Clone, Copy)]
pub struct StepObservation<'a> {
    /// The layer, from 0.
    pub layer: usize,
    /// Filled slots per KV head, including the new token's.
    pub rows: &'a [usize],
    /// `[kv_heads]` or longer: index of each KV head's first slot in `positions`. Heads may have different capacities.
    pub firsts: &'a [usize],
    /// `[slots of all heads]`: the position in each slot.
    pub positions: &'a [Pos],
    /// `[kv_heads]`: the slot of the new token.
    pub newest: &'a [usize],
    /// Query heads per KV head.
    pub group: usize,
    /// `[q_heads, stride]`: softmax probability of each filled slot at this step, including the new token's.
    pub probabilities: &'a [f32],
    /// Row stride of `probabilities`.
    pub stride: usize,
}

impl StepObservation<'_> {
    /// Positions of the filled slots of KV head `head`.
    pub fn positions(&self, head: usize) -> &[Pos] {
        &self.positions[self.firsts[head]..][..self.rows[head]]
    }

    /// Probabilities of the filled slots of KV head `head` in query head `member` of its group.
    pub fn probabilities(&self, head: usize, member: usize) -> &[f32] {
        &self.probabilities[(head * self.group + member) * self.stride..][..self.rows[head]]
    }

    /// Adds the group's mean probability of every filled slot of KV head `head` to `sums`.
    pub fn add_mean(&self, head: usize, sums: &mut [f32]) {
        let share = 1.0 / self.group as f32;
        for member in 0..self.group {
            let seen = self.probabilities(head, member);
            sums.iter_mut().zip(seen).for_each(|(s, p)| *s += p * share);
        }
    }
}

/// A merge of the value of a slot evicted during decode: `weight` times its value is added to another slot's value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DecodeValueMerge {
    /// The KV head.
    pub head: usize,
    /// The evicted slot.
    pub from: Row,
    /// The slot that receives the share.
    pub to: Row,
    /// Factor of the evicted value.
    pub weight: f32,
}

/// `[kv_heads]`: the slot that each head evicts after a step, if any.
pub type Evictions = [Option<Row>];

/// The state of one answer, for methods that evict during decode. No function may allocate: they run once per layer and
/// token.
///
/// Only [`Evict::step`] is called for every layer and token; the others are for methods that evict many rows at once,
/// merge, or read a text token by token.
pub trait Evict: Send {
    /// Called after a generated token was appended and attended: sets the slot that each KV head evicts if it holds
    /// more than [`RowPlan::decode_rows`](crate::RowPlan::decode_rows).
    fn step(&mut self, _step: &StepObservation<'_>, _evict: &mut Evictions) {}

    /// Called after [`Evict::step`], for methods that evict many rows at once: clears the flag of every evicted slot
    /// and returns whether it evicted any. `keep` has the layout of [`StepObservation::positions`]. The remaining slots
    /// are compacted in their order.
    fn evict_many(&mut self, _step: &StepObservation<'_>, _keep: &mut [bool]) -> bool {
        false
    }

    /// Called after [`Evict::step`]: merges of the evicted slots' values into other slots.
    fn value_merges(&self) -> &[DecodeValueMerge] {
        &[]
    }

    /// `[kv_heads]`: the heads that decide instead of [`Evict::step`] if the method merges tokens
    /// ([`RowPlan::table`](crate::RowPlan::table)). Heads are independent, so each may run on its own thread.
    fn class_heads(&mut self, _layer: usize) -> &mut [Box<dyn ClassHead>] {
        &mut []
    }

    /// Saves or restores the statistics collected since the start. With these numbers another instance for the same
    /// plan makes the same decisions.
    fn snapshot(&mut self, _through: &mut dyn Snapshot) {}
}
