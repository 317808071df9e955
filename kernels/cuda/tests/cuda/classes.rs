//! Decode attention over classes, rows that several tokens share: the kernels' source against the CPU reference.

use crate::support::*;
use kept_cuda::{
    ClassAttention, ClassScratch, DecodeOutput, Device, KeptRows, RopeTables, RowInputs, RowKind,
};
use kept_kernels::{CacheType, HeadShape, Pairing, RankRotation, RowStore, Scale, reference};

const DIM: usize = 64;
const SHAPE: HeadShape = HeadShape::new(6, 2, DIM);
/// `[kv_heads]`: slots of each head.
const SLOTS: [usize; 2] = [100, 20];
/// `[kv_heads]`: filled slots of each head.
const ROWS: [usize; 2] = [90, 20];
/// `[kv_heads]`: filled entries of each table.
const ENTRIES: [usize; 2] = [200, 33];
/// Entries of a table.
const CAPACITY: usize = 210;

/// Random keys or values of all classes, on the host and on the device.
fn class_rows(device: &Device, numbers: &mut Numbers) -> (RowStore, KeptRows) {
    let slots = SLOTS.iter().sum();
    let mut rows = KeptRows::new(device, RowKind::F16, slots, DIM).expect("memory");
    let mut host = RowStore::new(DIM, &SLOTS);
    let mut packed = RowStore::stored(CacheType::F16, DIM, &SLOTS, &[0, 0], false);
    let mut first = 0;
    for (head, count) in SLOTS.into_iter().enumerate() {
        for row in 0..count {
            host.row_mut(head, row).copy_from_slice(&numbers.rows(DIM));
            packed.write(head, row, host.row(head, row));
        }
        let which: Vec<(usize, usize)> = (0..count).map(|row| (first + row, row)).collect();
        rows.write(&packed, head, &which).expect("written");
        first += count;
    }
    (host, rows)
}

/// Attention of one random token over random classes.
struct Case {
    keys: (RowStore, KeptRows),
    values: (RowStore, KeptRows),
    /// `[kv_heads, CAPACITY]`
    classes: Vec<u32>,
    /// `[kv_heads, CAPACITY]`
    norms: Vec<f32>,
    /// `[q_heads, DIM]`
    query: Vec<f32>,
    /// `[CAPACITY, DIM / 2]`
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Case {
    fn random(device: &Device) -> Self {
        let mut numbers = Numbers::new(8);
        let keys = class_rows(device, &mut numbers);
        let values = class_rows(device, &mut numbers);
        let classes = (0..2 * CAPACITY).map(|i| numbers.below(ROWS[i / CAPACITY]) as u32);
        let classes = classes.collect();
        let norms = numbers.rows(2 * CAPACITY);
        let query = numbers.rows(SHAPE.q_heads * DIM);
        let (cos, sin) = angles(&mut numbers, CAPACITY, DIM / 2);
        Self {
            keys,
            values,
            classes,
            norms: norms.iter().map(|x| 1.5 + x).collect(),
            query,
            cos,
            sin,
        }
    }

    /// Output and probabilities of the reference.
    fn expected(&self, scale: Scale, pairing: Option<Pairing>) -> (Vec<f32>, Vec<Vec<f32>>) {
        let mut out = vec![0.0; self.query.len()];
        let mut probabilities = vec![Vec::new(); SHAPE.q_heads];
        let task = kept_kernels::ClassAttention {
            shape: SHAPE,
            scale,
            query: &self.query,
            keys: &self.keys.0,
            values: &self.values.0,
            rows: &ROWS,
            classes: &self.classes,
            norms: &self.norms,
            entries: &ENTRIES,
            capacity: CAPACITY,
            rotation: pairing.map(|pairing| RankRotation {
                cos: &self.cos,
                sin: &self.sin,
                rope_dim: DIM,
                pairing,
            }),
        };
        reference::class_attention(&task, &mut out, &mut probabilities);
        (out, probabilities)
    }

    /// Output, probabilities `[q_heads, CAPACITY]`, and the largest one of each query head and its entry `[q_heads, 2]`
    /// on the device.
    fn run(&self, device: &Device, scale: Scale, pairing: Option<Pairing>) -> [Vec<f32>; 3] {
        let copy = |n: &[u32]| device.copy_of(n).expect("memory");
        let floats = |n: &[f32]| device.copy_of(n).expect("memory");
        let per_head = |n: [usize; 2]| copy(&n.map(|n| n as u32));
        let (first_rows, rows, entries) = (copy(&[0, 100]), per_head(ROWS), per_head(ENTRIES));
        let (classes, norms) = (copy(&self.classes), floats(&self.norms));
        let (cos, sin) = (floats(&self.cos), floats(&self.sin));
        let queries = queries(device, &self.query);
        let mut scratch = ClassScratch::new(device, SHAPE, SLOTS[0], CAPACITY).expect("memory");
        let mut out = RowInputs::new(device, self.query.len()).expect("memory");
        let mut best = device.alloc_uninit(2 * SHAPE.q_heads).expect("memory");
        let mut probabilities = device
            .alloc_uninit(SHAPE.q_heads * CAPACITY)
            .expect("memory");
        let task = ClassAttention {
            shape: SHAPE,
            scale,
            queries: &queries,
            keys: &self.keys.1,
            values: &self.values.1,
            first_rows: &first_rows,
            rows: &rows,
            classes: &classes,
            norms: &norms,
            entries: &entries,
            capacity: CAPACITY,
            angles: pairing.map(|pairing| RopeTables {
                cos: &cos,
                sin: &sin,
                rope_dim: DIM,
                pairing,
            }),
        };
        let output = DecodeOutput {
            out: &mut out,
            best: &mut best,
            probabilities: Some(&mut probabilities),
        };
        // SAFETY: all indices lie within the tables.
        unsafe { device.class_attention(&task, &mut scratch, output) }.expect("it runs");
        let best = best.to_vec().expect("read").into_iter().map(f32::from_bits);
        let [out, probabilities] =
            [out.values(), &probabilities].map(|found| found.to_vec().expect("read"));
        [out, probabilities, best.collect()]
    }
}

#[test]
fn class_attention_matches_the_reference() {
    for device in devices() {
        let case = Case::random(&device);
        for pairing in [None, Some(Pairing::Halves), Some(Pairing::Neighbours)] {
            let scale = Scale {
                factor: 0.4,
                cap: pairing.map(|_| 2.0),
                sinks: None,
            };
            let (expected, expected_probabilities) = case.expected(scale, pairing);
            let [found, probabilities, best] = case.run(&device, scale, pairing);
            close(&found, &expected, 1e-4, "values");
            for (h, expected) in expected_probabilities.iter().enumerate() {
                let found = &probabilities[h * CAPACITY..][..expected.len()];
                close(found, expected, 1e-5, "probabilities");
                let (largest, entry) = (best[2 * h], best[2 * h + 1] as usize);
                close(&[largest], &[expected[entry]], 1e-5, "the largest");
                assert!(expected.iter().all(|p| *p <= largest + 1e-5));
            }
        }
    }
}
