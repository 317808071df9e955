//! What a step of decode does after each layer: votes are counted, and the method evicts rows.

use kept_policies::{Evict, Pos, Row, StepObservation};

use crate::compact::{Changed, CompactLayer};
use crate::evictions::EvictionRecorder;
use crate::votes::Votes;

/// Attention probabilities of a token in a layer, by slot, or by entry where tokens share rows.
#[derive(Clone, Copy)]
pub struct Probabilities<'a> {
    /// `[q_heads, stride]`; elements past a head's rows are stale.
    pub values: &'a [f32],
    /// Elements from one query head to the next.
    pub stride: usize,
}

impl Probabilities<'_> {
    /// Of a step that reads none.
    pub const NONE: Probabilities<'static> = Probabilities {
        values: &[],
        stride: 0,
    };
}

/// Attention of a token in a layer.
pub struct LayerAttention<'a> {
    /// All probabilities, if the method reads them.
    pub probabilities: Probabilities<'a>,
    /// The largest probability of a query head over its first `rows` slots or entries, and its index.
    pub most_attended: &'a dyn Fn(usize, usize) -> (f32, usize),
}

/// What happens with a layer after the attention of a token: votes are counted and the method evicts rows.
pub struct AfterLayer<'s> {
    evictor: Option<&'s mut (dyn Evict + 'static)>,
    votes: Option<&'s mut Votes>,
    scratch: &'s mut EvictionScratch,
    record: Option<&'s mut EvictionRecorder>,
    q_heads: usize,
    /// Layers of the method so far.
    compressed_layers: usize,
}

/// A method's choice of rows to evict from a layer after a token.
pub(crate) struct EvictionScratch {
    /// `[kv_heads]`: one row of each head, if any.
    evict: Vec<Option<Row>>,
    /// `[slots of the largest layer]`: whether each row stays.
    keep: Vec<bool>,
}

impl EvictionScratch {
    pub(crate) fn new(kv_heads: usize, max_rows: usize) -> Self {
        Self {
            evict: vec![None; kv_heads],
            keep: vec![true; kv_heads * max_rows],
        }
    }

    /// Bytes for `kv_heads` heads of up to `max_rows` rows.
    pub(crate) fn bytes_for(kv_heads: usize, max_rows: usize) -> u64 {
        (kv_heads * max_rows * size_of::<bool>()) as u64
    }

    /// Memory in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.keep.len() as u64
    }
}

impl<'s> AfterLayer<'s> {
    /// What happens in the layers of one step of a model with `q_heads` query heads per layer.
    pub(crate) fn new(
        evictor: Option<&'s mut (dyn Evict + 'static)>,
        votes: Option<&'s mut Votes>,
        scratch: &'s mut EvictionScratch,
        record: Option<&'s mut EvictionRecorder>,
        q_heads: usize,
    ) -> Self {
        Self {
            evictor,
            votes,
            scratch,
            record,
            q_heads,
            compressed_layers: 0,
        }
    }

    /// Runs on one layer; called for every layer in turn. `changed` receives every change except single evictions.
    pub fn layer(
        &mut self,
        cached: &mut CompactLayer,
        attention: &LayerAttention<'_>,
        changed: &mut dyn FnMut(Changed),
    ) {
        let compressed_layer = cached.window().is_none().then_some(self.compressed_layers);
        if let Some(votes) = self.votes.as_deref_mut() {
            let group = self.q_heads / cached.kv_heads();
            for q_head in 0..self.q_heads {
                let head = q_head / group;
                let positions = cached.attended(head);
                let (probability, place) = (attention.most_attended)(q_head, positions.len());
                let slot = compressed_layer.map(|layer| (layer, head));
                votes.count(slot, positions[place], probability);
            }
        }
        let Some(layer) = compressed_layer else {
            return;
        };
        self.compressed_layers += 1;
        self.evict(cached, layer, attention.probabilities, changed);
    }

    /// Runs the method, if it evicts, on a layer after a token: it selects rows by the token's attention. `layer` is the
    /// index among the method's layers.
    fn evict(
        &mut self,
        cached: &mut CompactLayer,
        layer: usize,
        Probabilities { values, stride }: Probabilities<'_>,
        changed: &mut dyn FnMut(Changed),
    ) {
        let Some(evictor) = self.evictor.as_deref_mut() else {
            return;
        };
        let mut lost = |position: Pos| {
            if let Some(record) = self.record.as_deref_mut() {
                record.lose(position);
            }
        };
        if cached.classes.is_some() {
            cached.step_classes_reporting(layer, evictor, values, stride, changed, &mut lost);
            return;
        }
        let EvictionScratch { evict, keep } = &mut *self.scratch;
        evict.fill(None);
        let step = StepObservation {
            layer,
            rows: &cached.rows,
            firsts: cached.keys.first_rows(),
            positions: &cached.positions,
            newest: &cached.newest,
            group: values.len() / stride / cached.kv_heads(),
            probabilities: values,
            stride,
        };
        evictor.step(&step, evict);
        keep.fill(true);
        let evicted_many = evictor.evict_many(&step, keep);
        cached.merge_values(evictor.value_merges());
        for merge in evictor.value_merges() {
            changed(Changed::Row(merge.head, merge.to));
        }
        for (head, row) in evict.iter().enumerate() {
            let first = cached.keys.first_row(head);
            let goes = |slot: &usize| {
                *row == Some(Row(*slot as u32)) || (evicted_many && !keep[first + *slot])
            };
            let slots = cached.live_slots(head).filter(goes);
            slots.for_each(|slot| lost(cached.positions[first + slot]));
        }
        cached.evict(evict);
        if evicted_many {
            cached.evict_many(keep);
            changed(Changed::Rows);
        }
    }
}
