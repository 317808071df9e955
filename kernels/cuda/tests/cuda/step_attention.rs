//! A decode step's heads on their way to the cache against those of prefill, and attention over a cache against the CPU
//! reference.

use crate::support::*;
use half::f16;
use kept_cuda::{
    Buffer, DecodeOutput, Device, GpuCache, Heads, LayerCapacity, LayerRows, NewToken, RmsNorm,
    RopeTables, RowInputs, RowKind, RowPositions, StepHeads, StepLayer, StepScratch,
};
use kept_kernels::{
    CacheType, DecodeAttention, HeadShape, Pairing, Rotation, RowStore, Scale, reference,
};

const POSITIONS: usize = 700;
/// Slots of each head.
const CAPACITY: usize = 600;
const SCALE: Scale<'static> = Scale {
    factor: 0.3,
    cap: Some(4.0),
    sinks: None,
};
const EPS: f32 = 1e-6;

/// Random norms and RoPE tables of one layer.
pub struct Layer<'a> {
    device: &'a Device,
    shape: HeadShape,
    /// `[positions, head_dim / 4]`
    angles: [Vec<f32>; 2],
    device_angles: [Buffer<f32>; 2],
    /// `[head_dim]`
    q_norm: Buffer<f32>,
    k_norm: Buffer<f32>,
}

/// Projected heads of one token.
pub struct Projected {
    q: Buffer<f32>,
    k: Buffer<f32>,
    v: Buffer<f32>,
    position: usize,
}

impl<'a> Layer<'a> {
    pub fn random(
        device: &'a Device,
        shape: HeadShape,
        positions: usize,
        numbers: &mut Numbers,
    ) -> Self {
        let (cos, sin) = angles(numbers, positions, shape.head_dim / 4);
        let mut norm = || {
            let weights = numbers.rows(shape.head_dim);
            device.copy_of(&weights).expect("memory")
        };
        let [q_norm, k_norm] = [norm(), norm()];
        Self {
            device_angles: [&cos, &sin].map(|table| device.copy_of(table).expect("memory")),
            angles: [cos, sin],
            q_norm,
            k_norm,
            device,
            shape,
        }
    }

    fn angles(&self) -> RopeTables<'_> {
        RopeTables {
            cos: &self.device_angles[0],
            sin: &self.device_angles[1],
            rope_dim: self.shape.head_dim / 2,
            pairing: Pairing::Halves,
        }
    }

    /// A random token at `position`.
    pub fn project(&self, numbers: &mut Numbers, position: usize) -> Projected {
        let mut random = |heads: usize| {
            let numbers = numbers.rows(heads * self.shape.head_dim);
            self.device.copy_of(&numbers).expect("memory")
        };
        Projected {
            q: random(self.shape.q_heads),
            k: random(self.shape.kv_heads),
            v: random(self.shape.kv_heads),
            position,
        }
    }

    /// Queries `[q_heads, head_dim]`, and keys and values `[2, kv_heads, head_dim]`, as in prefill. With ranks, keys are
    /// those before RoPE, and the queries of each group have their own position.
    fn prepared(&self, token: &Projected, ranks: Option<&[usize]>) -> [Vec<f16>; 2] {
        let (device, shape) = (self.device, self.shape);
        let heads = |projected, heads, norm: Option<_>, position: Option<usize>| Heads {
            projected,
            rows: 1,
            heads,
            dim: shape.head_dim,
            bias: None,
            norm: norm.map(|weight| RmsNorm { weight, eps: EPS }),
            angles: position.map(|_| self.angles()),
            positions: RowPositions::From(position.unwrap_or(0)),
        };
        let group = shape.group() * shape.head_dim;
        let mut queries = Vec::new();
        for kv_head in 0..shape.kv_heads {
            let position = ranks.map_or(token.position, |ranks| ranks[kv_head]);
            let task = heads(&token.q, shape.q_heads, Some(&self.q_norm), Some(position));
            let mut all = device.alloc_uninit(shape.kv_heads * group).expect("memory");
            device
                .norm_and_rotate_queries(&task, &mut all)
                .expect("queries");
            let all: Vec<f16> = all.to_vec().expect("read");
            queries.extend_from_slice(&all[kv_head * group..(kv_head + 1) * group]);
        }
        let position = ranks.is_none().then_some(token.position);
        let mut rows = Vec::new();
        for task in [
            heads(&token.k, shape.kv_heads, Some(&self.k_norm), position),
            heads(&token.v, shape.kv_heads, None, None),
        ] {
            let mut one =
                LayerRows::new(device, shape.kv_heads, 1, shape.head_dim).expect("memory");
            device
                .norm_and_rotate_rows(&task, 0, &mut one)
                .expect("rows");
            rows.extend(one.data().to_vec().expect("read"));
        }
        [queries, rows]
    }
}

/// A cache of one layer on the device and on the host.
pub struct Twins {
    shape: HeadShape,
    pub cache: GpuCache,
    /// Keys and values.
    stores: [RowStore; 2],
    /// `[kv_heads, capacity]`, if keys are stored before RoPE
    ranks: Option<Vec<u32>>,
}

impl Twins {
    pub fn new(
        device: &Device,
        shape: HeadShape,
        kind: RowKind,
        ranked: bool,
        capacity: usize,
    ) -> Self {
        let mixed = kind != RowKind::F16;
        let capacities = vec![capacity; shape.kv_heads];
        let narrow = if mixed { capacity / 2 } else { capacity };
        let narrow = vec![narrow; shape.kv_heads];
        let stored = match kind {
            RowKind::F16 => CacheType::F16,
            RowKind::Q8_0 => CacheType::Q8_0,
            RowKind::Q4_0 => CacheType::Q4_0,
        };
        let store = || {
            let mut store = RowStore::stored(stored, shape.head_dim, &capacities, &narrow, mixed);
            if mixed {
                let order: Vec<usize> = (0..capacity).map(|i| (7 * i + 2) % capacity).collect();
                (0..shape.kv_heads).for_each(|head| store.assign_physical_rows(head, &order));
            }
            store
        };
        let stores = [store(), store()];
        let layer = LayerCapacity {
            capacities,
            kind,
            narrow,
            ranked,
            entries: 0,
        };
        let ranks = (0..shape.kv_heads * capacity).map(|slot| (slot * 11 % capacity) as u32);
        Self {
            cache: GpuCache::new(device, shape, &[layer]).expect("memory"),
            shape,
            stores,
            ranks: ranked.then(|| ranks.collect()),
        }
    }

    /// Writes random rows `from[h]..to[h]` of each head.
    pub fn fill(&mut self, from: &[usize], to: &[usize], numbers: &mut Numbers) {
        for (head, (&from, &to)) in from.iter().zip(to).enumerate() {
            for row in from..to {
                for store in &mut self.stores {
                    store.write(head, row, &numbers.rows(self.shape.head_dim));
                }
            }
            let [keys, values] = &self.stores;
            self.cache
                .write_rows(0, head, from..to, keys, values)
                .expect("written");
        }
    }

    /// Makes a token at `position` the last of each head's `rows`.
    pub fn send_token(&mut self, rows: &[usize], position: usize, ranks: Option<&[usize]>) {
        let target = |(head, rows): (usize, &usize)| self.stores[0].physical_row(head, rows - 1);
        let targets: Vec<usize> = rows.iter().enumerate().map(target).collect();
        let token = NewToken {
            rows,
            targets: &targets,
            requantised: &[],
            query_positions: ranks,
            entries: None,
        };
        self.cache.stage_token(0, &token);
        self.cache
            .write_physical_rows(0, &self.stores[0])
            .expect("written");
        if let Some(ranks) = &self.ranks {
            self.cache.write_ranks(0, ranks).expect("written");
        }
        self.cache.send(position).expect("sent");
    }

    /// Writes the new rows `[2, kv_heads, head_dim]` to the host's last slots.
    pub fn append(&mut self, rows: &[usize], new: &[f16]) {
        let dim = self.shape.head_dim;
        for (i, row) in new.chunks(dim).enumerate() {
            let (which, head) = (i / self.shape.kv_heads, i % self.shape.kv_heads);
            let row: Vec<f32> = row.iter().map(|x| x.to_f32()).collect();
            self.stores[which].write(head, rows[head] - 1, &row);
        }
    }

    /// Output and probabilities of the reference.
    pub fn expected(
        &self,
        layer: &Layer<'_>,
        rows: &[usize],
        queries: &[f16],
    ) -> (Vec<f32>, Vec<Vec<f32>>) {
        let query: Vec<f32> = queries.iter().map(|x| x.to_f32()).collect();
        let mut out = vec![0.0; query.len()];
        let mut probabilities = vec![Vec::new(); self.shape.q_heads];
        let task = DecodeAttention {
            shape: self.shape,
            scale: SCALE,
            query: &query,
            keys: &self.stores[0],
            values: &self.stores[1],
            rows,
            rotation: self.ranks.as_ref().map(|ranks| Rotation {
                cos: &layer.angles[0],
                sin: &layer.angles[1],
                rope_dim: self.shape.head_dim / 2,
                pairing: Pairing::Halves,
                ranks,
            }),
        };
        reference::decode_attention(&task, &mut out, &mut probabilities);
        (out, probabilities)
    }
}

/// The step's queries, its new rows, and attention.
pub fn step(
    layer: &Layer<'_>,
    token: &Projected,
    cached: &mut StepLayer,
    copies: &Buffer<f16>,
    scratch: &mut StepScratch,
    capacity: usize,
) -> ([Vec<f16>; 2], [Vec<f32>; 3]) {
    let (device, shape) = (layer.device, layer.shape);
    let heads = StepHeads {
        q: &token.q,
        k: &token.k,
        v: &token.v,
        q_norm: Some(&layer.q_norm),
        k_norm: Some(&layer.k_norm),
        eps: EPS,
        angles: Some(layer.angles()),
    };
    let width = shape.q_heads * shape.head_dim;
    let mut queries = device.alloc_uninit(width).expect("memory");
    cached.put(device, &heads, &mut queries).expect("heads");
    let mut out = RowInputs::new(device, width).expect("memory");
    let mut best = device.alloc_uninit(2 * shape.q_heads).expect("memory");
    let mut probabilities = device
        .alloc_uninit(shape.q_heads * capacity)
        .expect("memory");
    let output = DecodeOutput {
        out: &mut out,
        best: &mut best,
        probabilities: Some(&mut probabilities),
    };
    let angles = Some(layer.angles());
    cached
        .attend(device, SCALE, angles, &queries, scratch, output)
        .expect("attention");
    let best = best.to_vec().expect("read").into_iter().map(f32::from_bits);
    let prepared = [&queries, copies].map(|found| found.to_vec().expect("read"));
    let [out, probabilities] =
        [out.values(), &probabilities].map(|found| found.to_vec().expect("read"));
    (prepared, [out, probabilities, best.collect()])
}

fn check(device: &Device, shape: HeadShape, kind: RowKind, ranked: bool) {
    let what = format!(
        "{shape:?}, {kind:?}, ranks {ranked}, on {}",
        device.properties().name
    );
    let mut numbers = Numbers::new(26);
    let layer = Layer::random(device, shape, POSITIONS, &mut numbers);
    let mut twins = Twins::new(device, shape, kind, ranked, CAPACITY);
    let copies = device
        .alloc_uninit(2 * shape.kv_heads * shape.head_dim)
        .expect("memory");
    let mut cached = twins.cache.step_layers(POSITIONS, Some(&copies));
    let mut scratch = StepScratch::new(device, shape, CAPACITY, 0).expect("memory");
    // Heads of different lengths, and physical rows that differ from their slots; the earlier rows are random.
    let mut rows: Vec<usize> = (0..shape.kv_heads).map(|head| 1 + 3 * head).collect();
    twins.fill(&vec![0; rows.len()], &rows, &mut numbers);
    for token in 0..4 {
        // More rows than one split takes.
        if token == 3 {
            let before = std::mem::replace(&mut rows, vec![400; shape.kv_heads]);
            // The newest slot of each head was still empty.
            let before: Vec<usize> = before.iter().map(|rows| rows - 1).collect();
            twins.fill(&before, &rows, &mut numbers);
        }
        let token = layer.project(&mut numbers, 17 + 90 * token);
        let positions: Vec<usize> = (0..shape.kv_heads).map(|head| 30 + 7 * head).collect();
        let positions = ranked.then_some(positions.as_slice());
        twins.send_token(&rows, token.position, positions);
        let (prepared, [out, probabilities, best]) = step(
            &layer,
            &token,
            &mut cached[0],
            &copies,
            &mut scratch,
            CAPACITY,
        );

        let expected = layer.prepared(&token, positions);
        let numbers_of = |halves: &[f16]| halves.iter().map(|x| x.to_f32()).collect::<Vec<f32>>();
        // Queries of Hadamard-rotated keys are Hadamard-rotated.
        let mut queries = numbers_of(&expected[0]);
        if kind == RowKind::Q4_0 && !ranked {
            queries = queries.chunks(shape.head_dim).flat_map(hadamard).collect();
        }
        close(&numbers_of(&prepared[0]), &queries, 4e-3, &what);
        close(
            &numbers_of(&prepared[1]),
            &numbers_of(&expected[1]),
            4e-3,
            &what,
        );

        twins.append(&rows, &prepared[1]);
        let (expected, expected_probabilities) = twins.expected(&layer, &rows, &expected[0]);
        close(&out, &expected, 4e-3, &what);
        for (h, expected) in expected_probabilities.iter().enumerate() {
            let found = &probabilities[h * CAPACITY..][..expected.len()];
            close(found, expected, 2e-3, &what);
            let (largest, slot) = (best[2 * h], best[2 * h + 1] as usize);
            close(&[largest], &[found[slot]], 1e-5, &what);
            assert!(found.iter().all(|p| *p <= largest + 1e-5), "{what}");
        }
        rows.iter_mut().for_each(|rows| *rows += 1);
    }
}

#[test]
fn a_step_matches_prefill_and_the_reference() {
    for device in devices() {
        for shape in shapes() {
            for kind in [RowKind::F16, RowKind::Q8_0, RowKind::Q4_0] {
                for ranked in [false, true] {
                    check(&device, shape, kind, ranked);
                }
            }
        }
    }
}
