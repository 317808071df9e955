//! A layer whose rows are shared by several tokens: attention over classes, merging and dropping. The tables are
//! [`Classes`]; the decisions are in `policies/src/methods/ems_decode.rs`, the attention is in
//! `kernels/src/classes.rs`.

use kept_kernels::threads::for_each_pair;
use kept_kernels::{
    ClassAttention, ClassScratch, HeadShape, RankRotation, RowStore, Scale, class_attention,
    row_norm,
};
use kept_policies::{
    ClassChange, ClassHead, ClassRows, ClassStep, ClassTable, Evict, Pos, Retention, Row,
};

use super::{Changed, Classes, CompactLayer};

/// Minimum number of floats in a head's keys for which several threads pay off.
const WORTH_SHARING: usize = 1 << 14;

/// The stored rows of one KV head, for a merging method.
struct StoredRows<'a> {
    keys: &'a RowStore,
    values: &'a RowStore,
    head: usize,
}

impl ClassRows for StoredRows<'_> {
    fn keys_alike(&self, one: Row, others: &[u32], cosines: &mut [f32]) {
        self.keys
            .cosines(self.head, one.0 as usize, others, cosines);
    }

    fn values_alike(&self, one: Row, others: &[u32], cosines: &mut [f32]) {
        self.values
            .cosines(self.head, one.0 as usize, others, cosines);
    }
}

impl CompactLayer {
    /// Adds class tables to a layer that was gathered from `keys` and `retention`. `table.entries` is the
    /// capacity per head.
    pub fn with_table(self, keys: &RowStore, retention: &Retention, table: ClassTable) -> Self {
        let norm =
            |head: usize, _: usize, position: Pos| row_norm(keys.row(head, position.0 as usize));
        self.with_norms(norm, retention, table)
    }

    /// [`CompactLayer::with_table`], where `norm` returns the norm of an entry's key by head, entry index
    /// and position.
    pub fn with_norms(
        mut self,
        norm: impl Fn(usize, usize, Pos) -> f32,
        retention: &Retention,
        table: ClassTable,
    ) -> Self {
        let kv_heads = self.kv_heads();
        let slots = kv_heads * table.entries;
        let mut classes = Classes {
            capacity: table.entries,
            elements: table.elements,
            entries: vec![0; kv_heads],
            classes: vec![0; slots],
            norms: vec![0.0; slots],
            positions: vec![Pos(0); slots],
            direction: vec![false; self.positions.len()],
            shared: matches!(retention, Retention::Merge(_)),
            changes: vec![ClassChange::default(); kv_heads],
        };
        for head in 0..kv_heads {
            let Retention::Merge(heads) = retention else {
                for row in 0..self.rows[head] {
                    classes.push(head, row as u32, 1.0, self.positions_of(head)[row]);
                }
                continue;
            };
            let kept = &heads[head];
            let members = kept.members();
            for (row, _) in members.iter().enumerate().filter(|(_, m)| m.len() > 1) {
                classes.direction[self.keys.first_row(head) + row] = true;
            }
            for (number, entry) in kept.entries.iter().enumerate() {
                let norm = match members[entry.class as usize].len() {
                    1 => 1.0,
                    _ => norm(head, number, entry.pos),
                };
                classes.push(head, entry.class, norm, entry.pos);
            }
        }
        self.classes = Some(classes);
        self
    }

    /// Whether tokens share rows, so that attention uses the class table.
    pub fn is_shared(&self) -> bool {
        self.classes.as_ref().is_some_and(|c| c.shared)
    }

    /// Tokens of one KV head that take part in attention, in order of position: `(position, centre of its
    /// class)`. Without a class table, each kept row is its own centre.
    pub fn entries(&self, head: usize) -> Vec<(Pos, Pos)> {
        match &self.classes {
            None => self.kept(head).into_iter().map(|p| (p, p)).collect(),
            Some(table) => {
                let rows = table.classes_of(head).iter();
                let centres = rows.map(|&row| self.positions_of(head)[row as usize]);
                let positions = table.positions_of(head).iter().copied();
                positions.zip(centres).collect()
            }
        }
    }

    /// Key and value of each entry's class in one KV head, each `[head_dim]`; the key is scaled to the
    /// entry's norm.
    pub fn expanded(&self, head: usize) -> Vec<(Vec<f32>, Vec<f32>)> {
        let row = |row: usize, norm: f32| {
            let dim = self.keys.head_dim();
            let (mut key, mut value) = (vec![0.0; dim], vec![0.0; dim]);
            self.keys.read(head, row, &mut key);
            self.values.read(head, row, &mut value);
            key.iter_mut().for_each(|x| *x *= norm);
            (key, value)
        };
        match &self.classes {
            None => (0..self.rows[head]).map(|r| row(r, 1.0)).collect(),
            Some(table) => {
                let norms = &table.norms[head * table.capacity..];
                let entries = table.classes_of(head).iter().zip(norms);
                entries.map(|(&class, &l)| row(class as usize, l)).collect()
            }
        }
    }

    /// Copies key and value of each entry's class in one KV head to the first rows of the only head of `keys`
    /// and `values`; the key is scaled to the entry's norm. Returns the number of entries.
    pub(crate) fn copy_entries(
        &self,
        head: usize,
        keys: &mut RowStore,
        values: &mut RowStore,
    ) -> usize {
        let table = self.classes.as_ref().expect("a layer with a table");
        let norms = &table.norms[head * table.capacity..];
        let classes = table.classes_of(head);
        for (entry, (&class, &norm)) in classes.iter().zip(norms).enumerate() {
            let key = keys.row_mut(0, entry);
            self.keys.read(head, class as usize, key);
            key.iter_mut().for_each(|x| *x *= norm);
            self.values
                .read(head, class as usize, values.row_mut(0, entry));
        }
        classes.len()
    }

    /// Classes and norms of the entries of one KV head, if the layer has a table.
    pub fn table_of(&self, head: usize) -> Option<(&[u32], &[f32])> {
        let table = self.classes.as_ref()?;
        let own = head * table.capacity..head * table.capacity + table.entries[head];
        Some((&table.classes[own.clone()], &table.norms[own]))
    }

    /// Positions of the rows or entries that the attention of one KV head runs over, in the order of its
    /// probabilities.
    pub(crate) fn attended(&self, head: usize) -> &[Pos] {
        match &self.classes {
            Some(table) if table.shared => table.positions_of(head),
            _ => self.positions_of(head),
        }
    }

    /// Rank of the newest token of one KV head in attention.
    pub fn last_rank(&self, head: usize) -> usize {
        match &self.classes {
            Some(table) => table.entries[head] - 1,
            None => self.live_rows(head) - 1,
        }
    }

    /// Adds the new token to the table, as an entry of its own row.
    pub(crate) fn add_entry(&mut self, head: usize, slot: usize, position: Pos) {
        let first = self.keys.first_row(head);
        if let Some(table) = &mut self.classes {
            table.direction[first + slot] = false;
            table.push(head, slot as u32, 1.0, position);
        }
    }

    /// Attention of `query` (`[q_heads, head_dim]`, rotated) over the entries of a layer with a table. Keys
    /// stored before RoPE are rotated by `rotation` to their ranks. The probabilities are in `scratch`
    /// afterwards.
    pub fn attend_by_table(
        &self,
        query: &[f32],
        scale: Scale<'_>,
        rotation: Option<RankRotation<'_>>,
        scratch: &mut ClassScratch,
        out: &mut [f32],
    ) {
        let table = self.classes.as_ref().expect("a layer with a table");
        let head_dim = self.keys.head_dim();
        let task = ClassAttention {
            shape: HeadShape::new(query.len() / head_dim, self.kv_heads(), head_dim),
            scale,
            query,
            keys: &self.keys,
            values: &self.values,
            rows: &self.rows,
            classes: &table.classes,
            norms: &table.norms,
            entries: &table.entries,
            capacity: table.capacity,
            rotation,
        };
        class_attention(&task, scratch, out);
    }

    /// Runs `evictor` on the classes of a layer with a table after a step. `probabilities` of the entries are
    /// `[q_heads, stride]`, or the group means `[kv_heads, stride]`. Allocates nothing.
    pub fn step_classes(
        &mut self,
        layer: usize,
        evictor: &mut dyn Evict,
        probabilities: &[f32],
        stride: usize,
    ) {
        let (changed, lost) = (&mut |_| (), &mut |_| ());
        self.step_classes_reporting(layer, evictor, probabilities, stride, changed, lost);
    }

    /// [`CompactLayer::step_classes`]; `changed` receives every change, `lost` the position of each token that leaves its
    /// class.
    pub(crate) fn step_classes_reporting(
        &mut self,
        layer: usize,
        evictor: &mut dyn Evict,
        probabilities: &[f32],
        stride: usize,
        changed: &mut dyn FnMut(Changed),
        lost: &mut dyn FnMut(Pos),
    ) {
        let kv_heads = self.kv_heads();
        let group = probabilities.len() / stride / kv_heads;
        let table = self.classes.as_mut().expect("a layer with a table");
        let mut changes = std::mem::take(&mut table.changes);
        let this = &*self;
        let decide = |head: usize, own: &mut Box<dyn ClassHead>, change: &mut ClassChange| {
            let table = this.classes.as_ref().expect("a layer with a table");
            *change = own.step(&ClassStep {
                positions: table.positions_of(head),
                classes: table.classes_of(head),
                centres: this.positions_of(head),
                rows: &StoredRows {
                    keys: &this.keys,
                    values: &this.values,
                    head,
                },
                group,
                probabilities: &probabilities[head * group * stride..][..group * stride],
                stride,
            });
        };
        let heads = evictor.class_heads(layer);
        let rows = self.rows.iter().max().copied().unwrap_or(0);
        if rows * self.keys.head_dim() < WORTH_SHARING {
            for (head, own) in heads.iter_mut().enumerate() {
                decide(head, own, &mut changes[head]);
            }
        } else {
            for_each_pair(heads, &mut changes, decide)
        }
        for (head, change) in changes.iter().enumerate() {
            self.apply(head, change, lost);
            if let (Some(gone), Some(merge)) = (change.removed_class, change.merged_into) {
                changed(Changed::Row(head, gone));
                changed(Changed::Row(head, merge.row));
            }
            if change.removed_class.is_some() || change.removed_entry.is_some() {
                changed(Changed::Table);
            }
        }
        if let Some(table) = &mut self.classes {
            table.changes = changes;
        }
    }

    fn apply(&mut self, head: usize, change: &ClassChange, lost: &mut dyn FnMut(Pos)) {
        if let (Some(gone), Some(merge)) = (change.removed_class, change.merged_into) {
            self.make_direction(head, gone);
            self.make_direction(head, merge.row);
            let total = merge.weight + merge.removed_weight;
            let (stays, goes) = (merge.weight / total, merge.removed_weight / total);
            let (from, to) = (gone.0 as usize, merge.row.0 as usize);
            self.keys.mix_row(head, from, to, stays, goes);
            self.values.mix_row(head, from, to, stays, goes);
        }
        let Some(table) = &mut self.classes else {
            return;
        };
        if let Some(gone) = change.removed_class {
            table.shared = true;
            match change.merged_into {
                Some(merge) => {
                    let classes = &mut table.classes[head * table.capacity..];
                    for class in &mut classes[..table.entries[head]] {
                        if *class == gone.0 {
                            *class = merge.row.0;
                        }
                    }
                }
                None => {
                    let entries = table.positions_of(head).iter().zip(table.classes_of(head));
                    let members = entries.filter(|(_, class)| **class == gone.0);
                    members.for_each(|(position, _)| lost(*position));
                    table.retain(head, |_, class| class != gone.0);
                }
            }
            self.free_row(head, gone);
        }
        if let Some(table) = &mut self.classes
            && let Some(dropped) = change.removed_entry
        {
            table.shared = true;
            lost(table.positions_of(head)[dropped]);
            table.remove(head, dropped);
        }
    }

    /// Normalises a row that holds a token's own key to norm 1 and stores the norm in its entry.
    fn make_direction(&mut self, head: usize, row: Row) {
        let at = self.keys.first_row(head) + row.0 as usize;
        let Some(table) = &mut self.classes else {
            return;
        };
        if std::mem::replace(&mut table.direction[at], true) {
            return;
        }
        let norm = self.keys.normalise_row(head, row.0 as usize);
        let entries = head * table.capacity..head * table.capacity + table.entries[head];
        let norms = table.norms[entries.clone()].iter_mut();
        for (of_entry, class) in norms.zip(&table.classes[entries]) {
            if *class == row.0 {
                *of_entry = norm;
            }
        }
    }

    /// Bytes of the tables, including the method's values per entry.
    pub(crate) fn table_bytes(&self) -> u64 {
        self.classes.as_ref().map_or(0, |table| {
            let size = ClassTable {
                entries: table.capacity,
                elements: table.elements,
            };
            Classes::bytes_for(size, self.kv_heads(), table.direction.len())
        })
    }

    /// Capacity per KV head, in entries; 0 without a table.
    pub fn entry_capacity(&self) -> usize {
        self.classes.as_ref().map_or(0, |table| table.capacity)
    }
}

#[cfg(test)]
mod tests;
