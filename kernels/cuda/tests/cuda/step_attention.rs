//! Heads and attention of a decode step in two launches against separate launches: same rows in the cache, same output,
//! same most attended slots.

use crate::support::*;
use kept_cuda::{
    Angles, Buffer, DecodeScratch, Device, GpuCache, Heads, LayerCapacity, NewToken, RmsNorm,
    RowInputs, RowKind, RowPositions, StepHeads, StepLayer,
};
use kept_kernels::{CacheType, HeadShape, Pairing, RowStore, Scale};

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
struct Layer<'a> {
    device: &'a Device,
    shape: HeadShape,
    /// `[POSITIONS, head_dim / 4]`
    cos: Buffer<f32>,
    sin: Buffer<f32>,
    /// `[head_dim]`
    q_norm: Buffer<f32>,
    k_norm: Buffer<f32>,
}

/// Projected heads of one token.
struct Projected {
    q: Buffer<f32>,
    k: Buffer<f32>,
    v: Buffer<f32>,
    position: usize,
}

impl<'a> Layer<'a> {
    fn random(device: &'a Device, shape: HeadShape, numbers: &mut Numbers) -> Self {
        let mut random = |count: usize| device.copy_of(&numbers.rows(count)).expect("memory");
        Self {
            cos: random(POSITIONS * shape.head_dim / 4),
            sin: random(POSITIONS * shape.head_dim / 4),
            q_norm: random(shape.head_dim),
            k_norm: random(shape.head_dim),
            device,
            shape,
        }
    }

    fn angles(&self) -> Angles<'_> {
        Angles {
            cos: &self.cos,
            sin: &self.sin,
            rope_dim: self.shape.head_dim / 2,
            pairing: Pairing::Halves,
        }
    }

    /// A random token at `position`.
    fn project(&self, numbers: &mut Numbers, position: usize) -> Projected {
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

    /// Output `[q_heads, head_dim]`, and `[q_heads, 2]` the largest probability of each query head and its slot.
    fn separate_launches(
        &self,
        token: &Projected,
        cache: &mut GpuCache,
        scratch: &mut DecodeScratch,
    ) -> [Vec<f32>; 2] {
        let (device, shape) = (self.device, self.shape);
        let heads = |projected, heads, norm| Heads {
            projected,
            rows: 1,
            heads,
            dim: shape.head_dim,
            bias: None,
            norm,
            angles: Some(self.angles()),
            places: RowPositions::From(token.position),
        };
        let [q_norm, k_norm] =
            [&self.q_norm, &self.k_norm].map(|weight| Some(RmsNorm { weight, eps: EPS }));
        let width = shape.q_heads * shape.head_dim;
        let mut queries = device.alloc_uninit(width).expect("memory");
        device
            .ready_queries(&heads(&token.q, shape.q_heads, q_norm), &mut queries)
            .expect("queries");
        let [keys, values] = cache.new_rows();
        device
            .ready_rows(&heads(&token.k, shape.kv_heads, k_norm), 0, keys)
            .expect("keys");
        let raw = Heads {
            angles: None,
            ..heads(&token.v, shape.kv_heads, None)
        };
        device.ready_rows(&raw, 0, values).expect("values");
        cache.append(0).expect("appended");
        let mut out = device.alloc_uninit(width).expect("memory");
        cache
            .attend(0, SCALE, &mut queries, None, scratch, &mut out)
            .expect("attention");
        let mut best = device.alloc_uninit(2 * shape.q_heads).expect("memory");
        let (probabilities, stride) = (scratch.probabilities(), scratch.stride());
        cache
            .best(0, probabilities, stride, false, &mut best)
            .expect("best");
        [out, best].map(|found| found.to_vec().expect("read"))
    }

    /// As [`Layer::separate_launches`].
    fn fused_launches(
        &self,
        token: &Projected,
        layer: &mut StepLayer,
        scratch: &mut DecodeScratch,
    ) -> [Vec<f32>; 2] {
        let (device, shape) = (self.device, self.shape);
        let heads = StepHeads {
            q: &token.q,
            k: &token.k,
            v: &token.v,
            q_norm: Some(&self.q_norm),
            k_norm: Some(&self.k_norm),
            eps: EPS,
            angles: Some(self.angles()),
        };
        let width = shape.q_heads * shape.head_dim;
        let mut queries = device.alloc_uninit(width).expect("memory");
        layer.put(device, &heads, &mut queries).expect("heads");
        let mut out = RowInputs::new(device, width).expect("memory");
        let mut best = device.alloc_uninit(2 * shape.q_heads).expect("memory");
        layer
            .attend(device, SCALE, &queries, scratch, &mut out, &mut best)
            .expect("attention");
        let best = best.to_vec().expect("read");
        let best = best.into_iter().map(f32::from_bits).collect();
        [out.numbers().to_vec().expect("read"), best]
    }
}

/// Two caches with the same rows: for separate launches, and for fused ones.
struct Twins {
    shape: HeadShape,
    caches: [GpuCache; 2],
    /// The host's store: places, and rows as uploaded.
    store: RowStore,
}

impl Twins {
    fn new(device: &Device, shape: HeadShape, kind: RowKind) -> Self {
        let mixed = kind != RowKind::F16;
        let capacities = vec![CAPACITY; shape.kv_heads];
        let narrow = if mixed { CAPACITY / 2 } else { CAPACITY };
        let narrow = vec![narrow; shape.kv_heads];
        let stored = match kind {
            RowKind::F16 => CacheType::F16,
            RowKind::Q8_0 => CacheType::Q8_0,
            RowKind::Q4_0 => CacheType::Q4_0,
        };
        let mut store = RowStore::stored(stored, shape.head_dim, &capacities, &narrow, mixed);
        if mixed {
            let order: Vec<usize> = (0..CAPACITY).map(|i| (7 * i + 2) % CAPACITY).collect();
            (0..shape.kv_heads).for_each(|head| store.arrange(head, &order));
        }
        let layer = LayerCapacity {
            capacities,
            kind,
            narrow,
            ranked: false,
            entries: 0,
        };
        let cache = || GpuCache::new(device, shape, std::slice::from_ref(&layer)).expect("memory");
        Self {
            shape,
            caches: [cache(), cache()],
            store,
        }
    }

    /// Writes random rows `from[h]..to[h]` of each head to both caches.
    fn fill(&mut self, from: &[usize], to: &[usize], numbers: &mut Numbers) {
        for (head, (&from, &to)) in from.iter().zip(to).enumerate() {
            for row in from..to {
                let numbers = numbers.rows(self.shape.head_dim);
                self.store.write(head, row, &numbers);
            }
            for cache in &mut self.caches {
                cache
                    .write_rows(0, head, from..to, &self.store, &self.store)
                    .expect("written");
            }
        }
    }

    /// Makes a token at `position` the last of each head's `rows`, in both caches.
    fn send_token(&mut self, rows: &[usize], position: usize) {
        let target = |(head, rows): (usize, &usize)| self.store.place(head, rows - 1);
        let targets: Vec<usize> = rows.iter().enumerate().map(target).collect();
        let token = NewToken {
            rows,
            targets: &targets,
            aged: &[],
            query_positions: None,
            entries: None,
        };
        for cache in &mut self.caches {
            cache.stage_token(0, &token);
        }
        self.caches[1].stage_position(position);
        for cache in &mut self.caches {
            cache.send().expect("sent");
            cache.write_places(0, &self.store).expect("written");
        }
    }
}

fn check(device: &Device, shape: HeadShape, kind: RowKind) {
    let what = format!("{shape:?}, {kind:?} on {}", device.facts().name);
    let mut numbers = Numbers::new(26);
    let layer = Layer::random(device, shape, &mut numbers);
    let mut twins = Twins::new(device, shape, kind);
    let mut fused = twins.caches[1].step_layers(POSITIONS);
    let mut scratches = [true, false]
        .map(|looks| DecodeScratch::new(device, shape, CAPACITY, looks).expect("memory"));
    // Heads of different lengths, and rows at places that differ from their slots; the earlier rows are random.
    let mut rows: Vec<usize> = (0..shape.kv_heads).map(|head| 1 + 3 * head).collect();
    twins.fill(&vec![0; rows.len()], &rows, &mut numbers);
    for token in 0..6 {
        // More rows than one split takes.
        if token == 4 {
            let before = std::mem::replace(&mut rows, vec![400; shape.kv_heads]);
            // The newest slot of each head was still empty.
            let before: Vec<usize> = before.iter().map(|rows| rows - 1).collect();
            twins.fill(&before, &rows, &mut numbers);
        }
        let token = layer.project(&mut numbers, 17 + 90 * token);
        twins.send_token(&rows, token.position);
        let [expected, expected_best] =
            layer.separate_launches(&token, &mut twins.caches[0], &mut scratches[0]);
        let [found, best] = layer.fused_launches(&token, &mut fused[0], &mut scratches[1]);
        close(&found, &expected, 2e-5, &what);
        close(&best, &expected_best, 2e-5, &what);
        rows.iter_mut().for_each(|rows| *rows += 1);
    }
}

#[test]
fn a_fused_step_matches_separate_launches() {
    for device in devices() {
        for shape in shapes() {
            for kind in [RowKind::F16, RowKind::Q8_0, RowKind::Q4_0] {
                check(&device, shape, kind);
            }
        }
    }
}
