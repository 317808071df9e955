//! Decode attention of one new token over kept rows: the kernel's source against the CPU reference.

use crate::support::*;
use kept_cuda::{
    DecodeAttention, DecodeOutput, DecodeScratch, Device, Indices, KeptRows, Ranks, RopeTables,
    RowInputs, RowKind,
};
use kept_kernels::{CacheType, HeadShape, Pairing, Rotation, RowStore, reference};

/// Layout of the rows in a test.
#[derive(Clone, Copy, PartialEq)]
enum Layout {
    /// Slot i is row i.
    Plain,
    /// Some rows are wide, and the slots are permuted.
    Mixed,
}

/// Random rows of one layer, packed by a host store.
struct KeptLayer {
    /// Dequantised.
    host: RowStore,
    device: KeptRows,
    /// The row of each slot, if the layout is mixed.
    physical_rows: Option<Indices>,
}

impl KeptLayer {
    fn random(
        device: &Device,
        numbers: &mut Numbers,
        dim: usize,
        capacities: &[usize],
        kind: CacheType,
        layout: Layout,
    ) -> Self {
        let mixed = layout == Layout::Mixed;
        let narrow_of = |capacity: &usize| match layout {
            Layout::Plain => *capacity,
            Layout::Mixed => capacity - capacity / 3,
        };
        let narrow: Vec<usize> = capacities.iter().map(narrow_of).collect();
        let mut packed = RowStore::stored(kind, dim, capacities, &narrow, mixed);
        let mut host = RowStore::new(dim, capacities);
        let kind = RowKind::of(kind).expect("a kind that a device has");
        let (all, few): (usize, usize) = (capacities.iter().sum(), narrow.iter().sum());
        let mut rows = KeptRows::with_wide(device, kind, few, all - few, dim).expect("memory");
        let (mut first, mut first_wide, mut physical_rows) = (0, few, Vec::new());
        for (head, &capacity) in capacities.iter().enumerate() {
            if mixed {
                let order: Vec<usize> = (0..capacity).map(|i| (i + 2) % capacity).collect();
                packed.assign_physical_rows(head, &order);
            }
            for row in 0..capacity {
                packed.write(head, row, &numbers.rows(dim));
                packed.read(head, row, host.row_mut(head, row));
            }
            let row_of =
                |slot: usize| match packed.physical_row(head, slot).checked_sub(narrow[head]) {
                    Some(wide) if mixed => first_wide + wide,
                    _ => first + packed.physical_row(head, slot),
                };
            physical_rows.extend((0..capacity).map(|slot| row_of(slot) as u32));
            let mut which: Vec<(usize, usize)> = (0..capacity).map(|s| (row_of(s), s)).collect();
            which.sort_unstable();
            rows.write(&packed, head, &which).expect("written");
            first += narrow[head];
            first_wide += capacity - narrow[head];
        }
        Self {
            host,
            device: rows,
            physical_rows: mixed.then(|| Indices::new(device, &physical_rows).expect("memory")),
        }
    }
}

const POSITIONS: usize = 50;

/// Attention of one random token over random rows.
struct Case<'a> {
    shape: HeadShape,
    kind: CacheType,
    /// `[kv_heads]`
    rows: &'a [usize],
    /// Set if the keys are stored before RoPE.
    pairing: Option<Pairing>,
    keys: KeptLayer,
    values: KeptLayer,
    /// `[q_heads, head_dim]`
    query: Vec<f32>,
    rope_dim: usize,
    /// `[POSITIONS, rope_dim / 2]`
    cos: Vec<f32>,
    sin: Vec<f32>,
    /// `[slots]`
    ranks: Vec<u32>,
}

impl<'a> Case<'a> {
    fn random(
        device: &Device,
        shape: HeadShape,
        kind: CacheType,
        layout: Layout,
        rows: &'a [usize],
        pairing: Option<Pairing>,
    ) -> Self {
        let mut numbers = Numbers::new(rows[0] as u64);
        let capacities: Vec<usize> = rows.iter().enumerate().map(|(h, r)| r + 3 * h).collect();
        let (slots, dim) = (capacities.iter().sum::<usize>(), shape.head_dim);
        let mut layer = || KeptLayer::random(device, &mut numbers, dim, &capacities, kind, layout);
        let (keys, values) = (layer(), layer());
        let query = numbers.rows(shape.q_heads * dim);
        let rope_dim = dim / 4 * 2;
        let (cos, sin) = angles(&mut numbers, POSITIONS, rope_dim / 2);
        let ranks = (0..slots).map(|_| numbers.below(POSITIONS) as u32);
        Self {
            ranks: ranks.collect(),
            shape,
            kind,
            rows,
            pairing,
            keys,
            values,
            query,
            rope_dim,
            cos,
            sin,
        }
    }

    /// Output and probabilities of the reference.
    fn expected(&self) -> (Vec<f32>, Vec<Vec<f32>>) {
        let mut out = vec![0.0; self.query.len()];
        let mut probabilities = vec![Vec::new(); self.shape.q_heads];
        let task = kept_kernels::DecodeAttention {
            shape: self.shape,
            scale: 0.3.into(),
            query: &self.query,
            keys: &self.keys.host,
            values: &self.values.host,
            rows: self.rows,
            rotation: self.pairing.map(|pairing| Rotation {
                cos: &self.cos,
                sin: &self.sin,
                rope_dim: self.rope_dim,
                pairing,
                ranks: &self.ranks,
            }),
        };
        reference::decode_attention(&task, &mut out, &mut probabilities);
        (out, probabilities)
    }

    /// Output and the largest probability of each query head and its slot `[q_heads, 2]` on the device, and the
    /// probabilities `[q_heads, stride]`, if `wanted`.
    fn run(&self, device: &Device, wanted: bool) -> [Vec<f32>; 3] {
        let (heads, dim) = (self.shape.q_heads, self.shape.head_dim);
        let copy = |numbers: Vec<u32>| device.copy_of(&numbers).expect("memory");
        let kv_heads = 0..self.shape.kv_heads;
        let first_rows = copy(
            kv_heads
                .map(|h| self.keys.host.first_row(h) as u32)
                .collect(),
        );
        let rows = copy(self.rows.iter().map(|rows| *rows as u32).collect());
        let ranks = copy(self.ranks.clone());
        let [cos, sin] = [&self.cos, &self.sin].map(|t| device.copy_of(t).expect("memory"));
        // q4_0 rows and their queries are Hadamard-rotated; if the kernel applies RoPE to the keys, it unrotates them
        // first.
        let turned: Vec<f32> = if self.kind == CacheType::Q4_0 && self.pairing.is_none() {
            self.query.chunks(dim).flat_map(hadamard).collect()
        } else {
            self.query.clone()
        };
        let queries = queries(device, &turned);
        let max_rows = *self.rows.iter().max().expect("heads") + 5;
        let mut scratch = DecodeScratch::new(device, self.shape, max_rows).expect("memory");
        let mut out = RowInputs::new(device, heads * dim).expect("memory");
        let mut best = device.alloc_uninit(2 * heads).expect("memory");
        let mut probabilities = device.alloc_uninit(heads * (max_rows + 3)).expect("memory");
        let task = DecodeAttention {
            shape: self.shape,
            scale: 0.3.into(),
            queries: &queries,
            keys: &self.keys.device,
            values: &self.values.device,
            first_rows: &first_rows,
            rows: &rows,
            physical_rows: self.keys.physical_rows.as_ref(),
            ranks: self.pairing.map(|pairing| Ranks {
                ranks: &ranks,
                angles: RopeTables {
                    cos: &cos,
                    sin: &sin,
                    rope_dim: self.rope_dim,
                    pairing,
                },
            }),
        };
        let output = DecodeOutput {
            out: &mut out,
            best: &mut best,
            probabilities: wanted.then_some(&mut probabilities),
        };
        // SAFETY: rows lie within the slots, and ranks within the angle tables.
        unsafe { device.decode_attention(&task, &mut scratch, output) }.expect("it runs");
        let best = best.to_vec().expect("read").into_iter().map(f32::from_bits);
        let probabilities = wanted.then(|| probabilities.to_vec().expect("read"));
        [
            out.values().to_vec().expect("read"),
            best.collect(),
            probabilities.unwrap_or_default(),
        ]
    }
}

fn check(
    shape: HeadShape,
    kind: CacheType,
    layout: Layout,
    rows: &[usize],
    pairing: Option<Pairing>,
) {
    for device in devices() {
        let case = Case::random(&device, shape, kind, layout, rows, pairing);
        let (expected, expected_probabilities) = case.expected();
        let what = format!("{shape:?} {kind:?} {rows:?} {pairing:?}");
        for wanted in [true, false] {
            let [found, best, probabilities] = case.run(&device, wanted);
            close(&found, &expected, 3e-3, &what);
            let stride = probabilities.len() / shape.q_heads;
            for (h, expected) in expected_probabilities.iter().enumerate() {
                let (largest, slot) = (best[2 * h], best[2 * h + 1] as usize);
                close(&[largest], &[expected[slot]], 1e-3, &what);
                assert!(expected.iter().all(|p| *p <= largest + 1e-3), "{what}");
                if wanted {
                    let found = &probabilities[h * stride..][..expected.len()];
                    close(found, expected, 1e-3, &what);
                }
            }
        }
    }
}

const KINDS: [CacheType; 3] = [CacheType::F16, CacheType::Q8_0, CacheType::Q4_0];

#[test]
fn every_type_and_head_size_matches_the_reference() {
    for kind in KINDS {
        for shape in shapes() {
            for first in [1, 15, 64, 333] {
                let rows: Vec<usize> = (0..shape.kv_heads).map(|h| first + 40 * h).collect();
                check(shape, kind, Layout::Plain, &rows, None);
            }
        }
    }
}

#[test]
fn wide_rows_in_any_place_match_the_reference() {
    for kind in [CacheType::Q8_0, CacheType::Q4_0] {
        for (i, shape) in shapes().into_iter().enumerate() {
            let rows: Vec<usize> = (0..shape.kv_heads).map(|h| 100 - 37 * h).collect();
            let pairing = [None, Some(Pairing::Halves)][i % 2];
            check(shape, kind, Layout::Mixed, &rows, pairing);
        }
    }
}

#[test]
fn keys_before_rope_are_rotated_by_rank() {
    for pairing in [Pairing::Halves, Pairing::Neighbours] {
        for shape in shapes() {
            let rows: Vec<usize> = (0..shape.kv_heads).map(|h| 70 - 30 * h).collect();
            for kind in KINDS {
                check(shape, kind, Layout::Plain, &rows, Some(pairing));
            }
        }
    }
}

#[test]
fn large_groups_and_many_splits_match_the_reference() {
    let shape = HeadShape::new(40, 2, 64);
    check(shape, CacheType::F16, Layout::Plain, &[700, 30], None);
    let shape = HeadShape::new(1, 1, 64);
    check(shape, CacheType::F16, Layout::Plain, &[3000], None);
}
