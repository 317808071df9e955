//! Random inputs, and a comparison that reports the first difference.

use kept_kernels::{HeadShape, RowStore};

/// Query heads per KV head: powers of two, and Qwen2's 7.
pub const GROUPS: [usize; 5] = [1, 2, 4, 7, 8];
/// Head sizes of real models: multiples of 16 lanes, but not all of 64.
pub const HEAD_DIMS: [usize; 6] = [32, 64, 80, 96, 128, 256];

/// Attention sinks of a shape: far below, among and far above the logits of the tests.
pub fn sinks(shape: HeadShape) -> &'static [f32] {
    const SINKS: [f32; 16] = [
        0.5, -1.0, 3.0, 0.0, -200.0, 1.5, 2.5, -3.0, 12.0, 0.1, -0.7, 5.0, 1.0, -2.0, 4.0, 300.0,
    ];
    &SINKS[..shape.q_heads]
}

pub fn shape(kv_heads: usize, group: usize, head_dim: usize) -> HeadShape {
    HeadShape::new(kv_heads * group, kv_heads, head_dim)
}

/// SplitMix64, seeded from the operating system or from `KEPT_SEED`; prints its seed, which is shown when a test fails.
pub struct Random(u64);

impl Random {
    pub fn fresh() -> Self {
        use std::hash::{BuildHasher, RandomState};
        let seed = std::env::var("KEPT_SEED")
            .ok()
            .and_then(|seed| seed.parse().ok())
            .unwrap_or_else(|| RandomState::new().hash_one(0));
        println!("KEPT_SEED={seed}");
        Self(seed)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.bits() % limit as u64) as usize
    }

    /// Approximately normal: the sum of four uniform numbers, scaled to variance 1.
    pub fn normal(&mut self, len: usize) -> Vec<f32> {
        let mut one = || {
            let bits = self.bits();
            let sum: u64 = (0..4).map(|i| bits >> (16 * i) & 0xffff).sum();
            (sum as f32 / 65535.0 - 2.0) * 3f32.sqrt()
        };
        (0..len).map(|_| one()).collect()
    }

    pub fn store(&mut self, capacities: &[usize], head_dim: usize) -> RowStore {
        let mut store = RowStore::new(head_dim, capacities);
        for (h, capacity) in capacities.iter().enumerate() {
            store
                .head_mut(h)
                .copy_from_slice(&self.normal(capacity * head_dim));
        }
        store
    }

    /// Cosines and sines of random angles, `[rows, columns]` each.
    pub fn angles(&mut self, rows: usize, columns: usize) -> (Vec<f32>, Vec<f32>) {
        let angles = self.normal(rows * columns);
        angles
            .into_iter()
            .map(|angle| ((3.0 * angle).cos(), (3.0 * angle).sin()))
            .unzip()
    }

    pub fn permutation(&mut self, len: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..len as u32).collect();
        for i in (1..len).rev() {
            order.swap(i, self.below(i + 1));
        }
        order
    }
}

/// Asserts `|actual - expected| <= tolerance * (1 + |expected|)` for every element; NaN never passes.
#[track_caller]
pub fn assert_close(actual: &[f32], expected: &[f32], tolerance: f32, what: &str) {
    assert_eq!(actual.len(), expected.len(), "{what}");
    for (i, (a, e)) in actual.iter().zip(expected).enumerate() {
        assert!(
            (a - e).abs() <= tolerance * (1.0 + e.abs()),
            "{what}: element {i} is {a}, expected {e}"
        );
    }
}
