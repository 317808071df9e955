//! How kept rows come into the compact cache: copied, merged where the method merges, with what evicted tokens leave to them; then stored
//! in the cache's type, each rounded once.

use kept_kernels::{CacheType, RowStore, mean_row};
use kept_models::RopeTable;
use kept_policies::{Pos, Positions, Retention, ValueMerge};

use super::CompactLayer;

/// First tokens of a prompt whose rows no quantised cache type rounds: attention rests on them.
const EXACT_FIRST: usize = 4;
/// Rows of a head that stay f16 in a cache of a quantised type, besides the room for the answer: those of the first tokens, and else the
/// newest that are kept.
pub(crate) const EXACT: usize = 64 + EXACT_FIRST;

/// Whether a token is one of the first, which stay f16 as long as they are kept.
pub(super) fn is_first(position: Pos) -> bool {
    (position.0 as usize) < EXACT_FIRST
}

/// How a layer's rows are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stored {
    /// The cache's type.
    pub(crate) kind: CacheType,
    /// Whether rows are replaced one by one from now on.
    pub(crate) replaced: bool,
}

impl Stored {
    /// As they are computed.
    pub(crate) const F32: Self = Self {
        kind: CacheType::F32,
        replaced: false,
    };
}

impl CompactLayer {
    /// A layer without tokens, whose rows are replaced once its `slots` are full; positions are re-assigned.
    pub(crate) fn empty(kv_heads: usize, head_dim: usize, slots: usize, kind: CacheType) -> Self {
        let narrow = match kind.is_quantised() {
            true => slots.saturating_sub(EXACT + 1),
            false => 0,
        };
        let slots = vec![slots; kv_heads];
        let store = || RowStore::stored(kind, head_dim, &slots, &vec![narrow; kv_heads], true);
        let all = slots.iter().sum();
        Self {
            keys: store(),
            values: store(),
            rows: vec![0; kv_heads],
            positions: vec![Pos(0); all],
            ranks: vec![0; all],
            hole: vec![None; kv_heads],
            classes: None,
            window: None,
        }
    }
}

/// What is kept of a layer, and how.
pub(crate) struct Gather<'a> {
    /// All keys and values of the layer, `tokens` rows in every head.
    pub(crate) keys: &'a RowStore,
    pub(crate) values: &'a RowStore,
    pub(crate) tokens: usize,
    /// What is kept of these.
    pub(crate) retention: &'a Retention,
    /// `[kv_heads]`: slots.
    pub(crate) capacities: &'a [usize],
    pub(crate) positions: Positions,
    pub(crate) stored: Stored,
    /// `[tokens]`: where each row stands in the text; nothing where row i stands at i.
    pub(crate) places: Option<&'a [u32]>,
    /// Rotation that is taken off the keys, each at its row's number.
    pub(crate) unrotate: Option<&'a RopeTable>,
    /// What evicted tokens leave to the values of kept ones.
    pub(crate) value_merges: &'a [ValueMerge],
    /// `[groups, head_dim]`: what each group of `value_merges` comes to ([`together`]), where these are added up already.
    pub(crate) left: Option<&'a [f32]>,
    /// Whether the rows of classes are merged already, each in its centre's place.
    pub(crate) merged: bool,
}

/// Neighbours that go leave theirs to the same tokens: together, so that these are passed once for all of them.
pub(crate) fn together(value_merges: &[ValueMerge]) -> impl Iterator<Item = &[ValueMerge]> {
    let to = |spread: &ValueMerge| (spread.head, spread.first, spread.count);
    value_merges.chunk_by(move |one, next| to(one) == to(next))
}

/// One kv head's keys or values.
enum Side {
    Keys,
    Values,
}

impl Gather<'_> {
    /// The layer. `gathered` is for rows of one head before they are rounded; where none are, it stays as it is.
    pub(crate) fn layer(&self, gathered: &mut Vec<f32>) -> CompactLayer {
        self.made(RowStore::stored, |layer, head, kept, order| {
            self.fill(Side::Keys, head, kept, order, &mut layer.keys, gathered);
            self.fill(Side::Values, head, kept, order, &mut layer.values, gathered);
        })
    }

    /// The layer without its rows, which lie elsewhere and are copies: `slots[h][i]` becomes the row that slot i of head h is to have there.
    pub(crate) fn slot_table(&self, slots: &mut Vec<Vec<u32>>) -> CompactLayer {
        debug_assert!(
            self.unrotate.is_none() && self.value_merges.is_empty(),
            "rows that are more than copies"
        );
        slots.clear();
        self.made(RowStore::placed, |_, _, kept, order| {
            slots.push(order.iter().map(|&rank| kept[rank]).collect());
        })
    }

    /// The layer in stores that `store` makes; `fill` is told which rows each head keeps, and the rank of the one in each slot.
    fn made(
        &self,
        store: fn(CacheType, usize, &[usize], &[usize], bool) -> RowStore,
        mut fill: impl FnMut(&mut CompactLayer, usize, &[u32], &[usize]),
    ) -> CompactLayer {
        let kv_heads = self.keys.kv_heads();
        let slots = self.capacities.iter().sum();
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
        let narrow: Vec<usize> = match self.stored.kind.is_quantised() {
            true => (0..kv_heads)
                .map(|head| kept(head).len().saturating_sub(EXACT))
                .collect(),
            false => vec![0; kv_heads],
        };
        let Stored { kind, replaced, .. } = self.stored;
        let dim = self.keys.head_dim();
        let store = || store(kind, dim, self.capacities, &narrow, replaced);
        let mut layer = CompactLayer {
            keys: store(),
            values: store(),
            rows: vec![0; kv_heads],
            positions: vec![Pos(0); slots],
            ranks: match self.positions {
                Positions::Original => Vec::new(),
                Positions::Reassigned => vec![0; slots],
            },
            hole: vec![None; kv_heads],
            classes: None,
            window: None,
        };
        for head in 0..kv_heads {
            let kept = kept(head);
            debug_assert!(
                kept.windows(2).all(|pair| pair[0] < pair[1]),
                "positions ascend"
            );
            // Rows that are rounded come first, as their places do.
            let mut order: Vec<usize> = (0..kept.len()).collect();
            if kind.is_quantised() {
                let first = |row: &&u32| is_first(Pos(self.place(**row)));
                let firsts = kept.iter().take_while(first).count();
                order.rotate_left(firsts);
                order[narrow[head]..].sort_unstable();
            }
            // A method that replaces rows counts on their order: then only their places change.
            if replaced && kind.is_quantised() {
                layer.keys.arrange(head, &order);
                layer.values.arrange(head, &order);
                order = (0..kept.len()).collect();
            }
            fill(&mut layer, head, &kept, &order);
            layer.rows[head] = kept.len();
            let first = layer.keys.first_row(head);
            for (slot, &rank) in order.iter().enumerate() {
                layer.positions[first + slot] = Pos(self.place(kept[rank]));
                if self.positions == Positions::Reassigned {
                    layer.ranks[first + slot] = rank as u32;
                }
            }
        }
        layer
    }

    /// Where a row stands in the text.
    fn place(&self, row: u32) -> u32 {
        self.places.map_or(row, |places| places[row as usize])
    }

    /// The `kept` rows of one head into `target`: slot i takes the one of rank `order[i]`.
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
        if self.leaves_as_they_are(&side, head) {
            let source = self.side(&side);
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

    /// All rows of the layer's keys or values.
    fn side(&self, side: &Side) -> &RowStore {
        match side {
            Side::Keys => self.keys,
            Side::Values => self.values,
        }
    }

    /// Whether kept rows of a head are copies: nothing is merged, unrotated or added.
    fn leaves_as_they_are(&self, side: &Side, head: usize) -> bool {
        let added = match side {
            Side::Keys => self.unrotate.is_some(),
            Side::Values => self.value_merges.iter().any(|spread| spread.head == head),
        };
        !added && (self.merged || !matches!(self.retention, Retention::Merge(_)))
    }

    /// The `kept` rows of one head as they are before they are rounded, `[kept, head_dim]`.
    fn compute(&self, side: &Side, head: usize, kept: &[u32], rows: &mut [f32]) {
        let source = self.side(side);
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
                let groups = together(self.value_merges).enumerate();
                for (number, value_merges) in
                    groups.filter(|(_, value_merges)| value_merges[0].head == head)
                {
                    match self.left {
                        Some(left) => sum.copy_from_slice(&left[number * dim..][..dim]),
                        None => {
                            sum.fill(0.0);
                            for spread in value_merges {
                                let value = source.row(head, spread.from.0 as usize);
                                let both = sum.iter_mut().zip(value);
                                both.for_each(|(sum, x)| *sum += spread.weight * x);
                            }
                        }
                    }
                    let ValueMerge { first, count, .. } = value_merges[0];
                    for row in rows[first * dim..][..count * dim].chunks_exact_mut(dim) {
                        row.iter_mut().zip(&sum).for_each(|(x, left)| *x += left);
                    }
                }
            }
        }
    }
}
