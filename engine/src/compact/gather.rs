//! Construction of the compact cache: kept rows are copied, or merged if the method merges, values of evicted
//! tokens are added, and each row is then rounded once to the cache's type.

use kept_kernels::{CacheType, RowStore, mean_row};
use kept_models::RopeTable;
use kept_policies::{Pos, Positions, Retention, ValueMerge};

use super::CompactLayer;
use crate::plan::PrefillPlan;

/// First tokens of a prompt, whose rows stay f16 in every quantised cache type: they are attention sinks.
const F16_SINKS: usize = 4;
/// Rows of a head that stay f16 in a quantised cache, in addition to the answer's: those of the first tokens,
/// and the newest kept ones.
pub const F16_ROWS: usize = 64 + F16_SINKS;

/// Whether a token is one of the first, which stay f16 as long as they are kept.
pub(super) fn is_first(position: Pos) -> bool {
    (position.0 as usize) < F16_SINKS
}

/// How a layer's rows are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowStorage {
    /// The cache's type.
    pub(crate) kind: CacheType,
    /// Whether rows are replaced one by one during decoding.
    pub(crate) replaces_rows: bool,
}

impl RowStorage {
    /// In f32, as computed.
    pub(crate) const F32: Self = Self {
        kind: CacheType::F32,
        replaces_rows: false,
    };
}

impl CompactLayer {
    /// An empty layer with `slots` slots whose rows are replaced once all slots are filled; positions are
    /// re-assigned.
    pub(crate) fn empty(kv_heads: usize, head_dim: usize, slots: usize, kind: CacheType) -> Self {
        let narrow = if kind.is_quantised() {
            slots.saturating_sub(F16_ROWS + 1)
        } else {
            0
        };
        let (slots, narrow) = (vec![slots; kv_heads], vec![narrow; kv_heads]);
        let store = || RowStore::stored(kind, head_dim, &slots, &narrow, true);
        Self::unfilled(store, Positions::Reassigned)
    }
}

/// Input of the construction of a compact layer.
pub struct Gather<'a> {
    /// The full keys of the layer, `tokens` rows in every head; `values` likewise.
    pub(crate) keys: &'a RowStore,
    pub(crate) values: &'a RowStore,
    pub(crate) tokens: usize,
    /// The method's selection.
    pub(crate) retention: &'a Retention,
    /// `[kv_heads]`: capacity in slots.
    pub(crate) capacities: &'a [usize],
    pub(crate) positions: Positions,
    pub(crate) storage: RowStorage,
    /// `[tokens]`: position of each row; `None` if row i has position i.
    pub(crate) row_positions: Option<&'a [u32]>,
    /// RoPE to undo on the keys, each at its row index.
    pub(crate) unrotate: Option<&'a RopeTable>,
    /// Values of evicted tokens to add to kept ones.
    pub(crate) value_merges: &'a [ValueMerge],
    /// `[groups, head_dim]`: weighted sum of each group of `value_merges` ([`group_merges`]), if already
    /// computed.
    pub(crate) merge_sums: Option<&'a [f32]>,
    /// Whether the rows of classes are already merged, each at its centre's row.
    pub(crate) merged: bool,
}

impl<'a> Gather<'a> {
    /// The rows of a layer's full `keys` and `values` (`tokens` rows each) selected by `retention`, as f32, with a
    /// capacity of `capacities[h]` rows in KV head h.
    pub fn new(
        keys: &'a RowStore,
        values: &'a RowStore,
        tokens: usize,
        retention: &'a Retention,
        capacities: &'a [usize],
        positions: Positions,
    ) -> Self {
        Self {
            keys,
            values,
            tokens,
            retention,
            capacities,
            positions,
            storage: RowStorage::F32,
            row_positions: None,
            unrotate: None,
            value_merges: &[],
            merge_sums: None,
            merged: false,
        }
    }
}

/// Input of the construction of a sliding-window layer from its last rows, as many as its window. The rows are
/// replaced with every token, so they are f16 if the cache type is quantised.
pub struct RingGather<'a> {
    /// The full keys of the layer, `tokens` rows in every head; `values` likewise.
    pub(crate) keys: &'a RowStore,
    pub(crate) values: &'a RowStore,
    pub(crate) tokens: usize,
    /// Attention window in positions, including the token's own.
    pub(crate) window: usize,
    /// Tokens that may follow. The capacity allows for them, up to the window.
    pub(crate) max_new_tokens: usize,
    /// The cache's type.
    pub(crate) cache: CacheType,
}

impl<'a> RingGather<'a> {
    /// From the rows of a prefill with this plan.
    pub fn new(
        keys: &'a RowStore,
        values: &'a RowStore,
        plan: &PrefillPlan,
        window: usize,
    ) -> Self {
        Self {
            keys,
            values,
            tokens: plan.tokens(),
            window,
            max_new_tokens: plan.max_new_tokens(),
            cache: plan.cache,
        }
    }

    /// Builds the layer; `gathered` as in [`Gather::layer`].
    pub fn layer(&self, gathered: &mut Vec<f32>) -> CompactLayer {
        self.build(|gather| gather.layer(gathered))
    }

    /// Builds the layer without rows: see [`Gather::slot_table`].
    pub fn slot_table(&self, slots: &mut Vec<Vec<u32>>) -> CompactLayer {
        self.build(|gather| gather.slot_table(slots))
    }

    fn build(&self, layer: impl FnOnce(&Gather<'_>) -> CompactLayer) -> CompactLayer {
        let first = self.tokens.saturating_sub(self.window) as u32;
        let last: Vec<Pos> = (first..self.tokens as u32).map(Pos).collect();
        let kv_heads = self.keys.kv_heads();
        let capacity = self.window.min(self.tokens + self.max_new_tokens);
        let (keys, values, n) = (self.keys, self.values, self.tokens);
        let retention = Retention::Keep(vec![last; kv_heads]);
        let capacities = vec![capacity; kv_heads];
        let gather = Gather {
            storage: RowStorage {
                kind: self.cache.wide(),
                ..RowStorage::F32
            },
            ..Gather::new(
                keys,
                values,
                n,
                &retention,
                &capacities,
                Positions::Original,
            )
        };
        CompactLayer {
            window: Some(self.window),
            ..layer(&gather)
        }
    }
}

/// Groups consecutive merges with the same target tokens, so that the targets are updated once per group.
pub fn group_merges(value_merges: &[ValueMerge]) -> impl Iterator<Item = &[ValueMerge]> {
    let target = |merge: &ValueMerge| (merge.head, merge.first, merge.count);
    value_merges.chunk_by(move |one, next| target(one) == target(next))
}

/// One KV head's keys or values.
enum Side {
    Keys,
    Values,
}

impl Gather<'_> {
    /// Builds the layer. `gathered` is scratch for one head's rows before rounding; unused if no rounding or
    /// no computation is needed.
    pub fn layer(&self, gathered: &mut Vec<f32>) -> CompactLayer {
        self.build(RowStore::stored, |layer, head, kept, order| {
            self.fill(Side::Keys, head, kept, order, &mut layer.keys, gathered);
            self.fill(Side::Values, head, kept, order, &mut layer.values, gathered);
        })
    }

    /// Builds the layer without rows, for copies that are stored on a GPU: `slots[h][i]` becomes the row for
    /// slot i of head h.
    pub fn slot_table(&self, slots: &mut Vec<Vec<u32>>) -> CompactLayer {
        debug_assert!(
            self.unrotate.is_none() && self.value_merges.is_empty(),
            "rows that are more than copies"
        );
        slots.clear();
        self.build(RowStore::without_data, |_, _, kept, order| {
            slots.push(order.iter().map(|&rank| kept[rank]).collect());
        })
    }

    /// Builds the layer with stores made by `store`. `fill` receives each head's kept rows and the rank of
    /// each slot's row.
    fn build(
        &self,
        store: fn(CacheType, usize, &[usize], &[usize], bool) -> RowStore,
        mut fill: impl FnMut(&mut CompactLayer, usize, &[u32], &[usize]),
    ) -> CompactLayer {
        let kv_heads = self.keys.kv_heads();
        let all: Vec<u32> = match self.retention {
            Retention::Everything => (0..self.tokens as u32).collect(),
            Retention::Keep(_) | Retention::Merge(_) => Vec::new(),
        };
        let kept = |head: usize| -> Vec<u32> {
            match self.retention {
                Retention::Everything => all.clone(),
                Retention::Keep(heads) => heads[head].iter().map(|p| p.0).collect(),
                Retention::Merge(heads) => heads[head].centres.iter().map(|p| p.0).collect(),
            }
        };
        let narrow: Vec<usize> = if self.storage.kind.is_quantised() {
            (0..kv_heads)
                .map(|head| kept(head).len().saturating_sub(F16_ROWS))
                .collect()
        } else {
            vec![0; kv_heads]
        };
        let RowStorage {
            kind,
            replaces_rows,
        } = self.storage;
        let dim = self.keys.head_dim();
        let store = || store(kind, dim, self.capacities, &narrow, replaces_rows);
        let mut layer = CompactLayer::unfilled(store, self.positions);
        for head in 0..kv_heads {
            let kept = kept(head);
            debug_assert!(
                kept.windows(2).all(|pair| pair[0] < pair[1]),
                "positions ascend"
            );
            // Quantised rows come first, because narrow physical rows do.
            let mut order: Vec<usize> = (0..kept.len()).collect();
            if kind.is_quantised() {
                let first = |row: &&u32| is_first(Pos(self.position_of(**row)));
                let sinks_kept = kept.iter().take_while(first).count();
                order.rotate_left(sinks_kept);
                order[narrow[head]..].sort_unstable();
            }
            // A method that replaces rows relies on slots in text order, so only the physical rows are
            // reordered.
            if replaces_rows && kind.is_quantised() {
                layer.keys.assign_physical_rows(head, &order);
                layer.values.assign_physical_rows(head, &order);
                order = (0..kept.len()).collect();
            }
            fill(&mut layer, head, &kept, &order);
            layer.rows[head] = kept.len();
            let first = layer.keys.first_row(head);
            for (slot, &rank) in order.iter().enumerate() {
                layer.positions[first + slot] = Pos(self.position_of(kept[rank]));
                if self.positions == Positions::Reassigned {
                    layer.ranks[first + slot] = rank as u32;
                }
            }
        }
        layer
    }

    /// Position of a row.
    fn position_of(&self, row: u32) -> u32 {
        self.row_positions
            .map_or(row, |positions| positions[row as usize])
    }

    /// Writes the `kept` rows of one head to `target`: slot i gets the row of rank `order[i]`.
    fn fill(
        &self,
        side: Side,
        head: usize,
        kept: &[u32],
        order: &[usize],
        target: &mut RowStore,
        gathered: &mut Vec<f32>,
    ) {
        let dim = target.head_dim();
        if target.cache_type() == CacheType::F32 {
            return self.compute(
                &side,
                head,
                kept,
                &mut target.head_mut(head)[..kept.len() * dim],
            );
        }
        if self.is_plain_copy(&side, head) {
            let source = self.source(&side);
            for (slot, &rank) in order.iter().enumerate() {
                target.write(head, slot, source.row(head, kept[rank] as usize));
            }
            return;
        }
        gathered.clear();
        gathered.resize(kept.len() * dim, 0.0);
        self.compute(&side, head, kept, gathered);
        for (slot, &rank) in order.iter().enumerate() {
            target.write(head, slot, &gathered[rank * dim..][..dim]);
        }
    }

    /// The layer's full keys or values.
    fn source(&self, side: &Side) -> &RowStore {
        match side {
            Side::Keys => self.keys,
            Side::Values => self.values,
        }
    }

    /// Whether a head's kept rows are plain copies: not merged, unrotated or added to.
    fn is_plain_copy(&self, side: &Side, head: usize) -> bool {
        let added = match side {
            Side::Keys => self.unrotate.is_some(),
            Side::Values => self.value_merges.iter().any(|merge| merge.head == head),
        };
        !added && (self.merged || !matches!(self.retention, Retention::Merge(_)))
    }

    /// Computes the `kept` rows of one head before rounding, `[kept, head_dim]`.
    fn compute(&self, side: &Side, head: usize, kept: &[u32], rows: &mut [f32]) {
        let source = self.source(side);
        let dim = source.head_dim();
        for (row, &from) in rows.chunks_exact_mut(dim).zip(kept) {
            row.copy_from_slice(source.row(head, from as usize));
        }
        if let Retention::Merge(heads) = self.retention
            && !self.merged
        {
            let unit = matches!(side, Side::Keys);
            for (class, members) in heads[head].members().into_iter().enumerate() {
                if members.len() > 1 {
                    let members = members
                        .iter()
                        .map(|&(pos, weight)| (pos.0 as usize, weight));
                    mean_row(source, head, members, unit, &mut rows[class * dim..][..dim]);
                }
            }
        }
        match side {
            Side::Keys => {
                if let Some(rope) = self.unrotate {
                    for (row, &at) in rows.chunks_exact_mut(dim).zip(kept) {
                        rope.unrotate_at(row, at as usize);
                    }
                }
            }
            Side::Values => {
                let mut sum = vec![0.0; dim];
                let groups = group_merges(self.value_merges).enumerate();
                for (number, group) in groups.filter(|(_, group)| group[0].head == head) {
                    match self.merge_sums {
                        Some(sums) => sum.copy_from_slice(&sums[number * dim..][..dim]),
                        None => {
                            sum.fill(0.0);
                            for merge in group {
                                let value = source.row(head, merge.from.0 as usize);
                                let both = sum.iter_mut().zip(value);
                                both.for_each(|(sum, x)| *sum += merge.weight * x);
                            }
                        }
                    }
                    let ValueMerge { first, count, .. } = group[0];
                    for row in rows[first * dim..][..count * dim].chunks_exact_mut(dim) {
                        row.iter_mut().zip(&sum).for_each(|(x, added)| *x += added);
                    }
                }
            }
        }
    }
}
