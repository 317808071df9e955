//! Cosines of stored rows, for merging methods, which compute about a thousand per token.

use super::RowStore;
use crate::CacheType;
use crate::nearest_by_cosine::norm_of_square;
use crate::row_format::{BLOCK, F16Rows, F32Rows, Q4Rows, Q8Rows, RowFormat};
use crate::simd::{Lanes, by_level};

/// A row in its storage type.
#[derive(Clone, Copy)]
struct StoredRow {
    kind: CacheType,
    start: *const u8,
}

impl RowStore {
    /// Writes the cosine of row `one` of head `h` with each of the rows `others` to `cosines`, from the rounded
    /// numbers; 0 if a row has norm 0. The Hadamard transform is not undone: it applies to all rows of a store or to
    /// none, and preserves norms and angles.
    ///
    /// # Panics
    /// If `cosines` and `others` differ in length.
    pub fn cosines(&self, h: usize, one: usize, others: &[u32], cosines: &mut [f32]) {
        assert_eq!(cosines.len(), others.len(), "a cosine for each row");
        // SAFETY: the level was detected.
        unsafe { write_cosines(crate::simd_level(), self, h, one, others, cosines) };
    }

    #[inline(always)]
    fn stored_row(&self, h: usize, r: usize) -> StoredRow {
        match self.packed_row(h, r) {
            Some((kind, bytes)) => StoredRow {
                kind,
                start: bytes.as_ptr(),
            },
            None => StoredRow {
                kind: CacheType::F32,
                start: self.row(h, r).as_ptr().cast(),
            },
        }
    }
}

by_level! {
    /// # Safety
    /// The CPU supports the level's instructions.
    unsafe fn write_cosines(store: &RowStore, h: usize, one: usize, others: &[u32], cosines: &mut [f32]) = write_cosines_lanes;
}

/// # Safety
/// Call only from code compiled for the level of `V`.
#[inline(always)]
unsafe fn write_cosines_lanes<V: Lanes>(
    store: &RowStore,
    h: usize,
    one: usize,
    others: &[u32],
    cosines: &mut [f32],
) {
    let (a, len) = (store.stored_row(h, one), store.head_dim);
    // SAFETY: the caller guarantees the level; rows are `head_dim` numbers, and the store is borrowed.
    let [_, square] = unsafe { products::<V>(a, a, len) };
    let of_one = norm_of_square(square);
    for (&other, cosine) in others.iter().zip(cosines) {
        let b = store.stored_row(h, other as usize);
        // SAFETY: as above.
        let [both, square] = unsafe { products::<V>(a, b, len) };
        *cosine = both / (of_one * norm_of_square(square));
    }
}

/// `a . b` and `b . b` of two rows of `len` numbers.
///
/// # Safety
/// Call only from code compiled for the level of `V`; both rows have `len` numbers.
#[inline(always)]
unsafe fn products<V: Lanes>(a: StoredRow, b: StoredRow, len: usize) -> [f32; 2] {
    // SAFETY: guaranteed by the caller. Either all rows of a store are f32, or each is of one of its two packed types.
    unsafe {
        match a.kind {
            CacheType::F32 => products_of::<V, F32Rows, F32Rows>(a, b, len),
            CacheType::F16 => products_with::<V, F16Rows>(a, b, len),
            CacheType::Q8_0 => products_with::<V, Q8Rows>(a, b, len),
            CacheType::Q4_0 => products_with::<V, Q4Rows>(a, b, len),
        }
    }
}

/// # Safety
/// As [`products`]; `a` is stored as `A`, and `b` not as f32.
#[inline(always)]
unsafe fn products_with<V: Lanes, A: RowFormat>(
    a: StoredRow,
    b: StoredRow,
    len: usize,
) -> [f32; 2] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match b.kind {
            CacheType::F32 | CacheType::F16 => products_of::<V, A, F16Rows>(a, b, len),
            CacheType::Q8_0 => products_of::<V, A, Q8Rows>(a, b, len),
            CacheType::Q4_0 => products_of::<V, A, Q4Rows>(a, b, len),
        }
    }
}

/// # Safety
/// As [`products`]; the rows are stored as `A` and `B`.
#[inline(always)]
unsafe fn products_of<V: Lanes, A: RowFormat, B: RowFormat>(
    a: StoredRow,
    b: StoredRow,
    len: usize,
) -> [f32; 2] {
    // SAFETY: guaranteed by the caller; vectors and single numbers stay inside their block.
    unsafe {
        let zero = V::splat(0.0);
        // Two accumulators per sum hide the latency of the additions.
        let (mut both, mut square) = ([zero; 2], [zero; 2]);
        let mut rest = [0.0f32; 2];
        for (number, first) in (0..len).step_by(BLOCK).enumerate() {
            let (x, y) = (
                a.start.add(number * A::BYTES),
                b.start.add(number * B::BYTES),
            );
            let values = BLOCK.min(len - first);
            let whole = values - values % V::N;
            for i in (0..whole).step_by(V::N) {
                let turn = i / V::N % 2;
                let (x, y) = (A::vector::<V>(x, i), B::vector::<V>(y, i));
                both[turn] = x.mul_add(y, both[turn]);
                square[turn] = y.mul_add(y, square[turn]);
            }
            for i in whole..values {
                let (x, y) = (A::single(x, i), B::single(y, i));
                rest = [rest[0] + x * y, rest[1] + y * y];
            }
        }
        let [both, square, ..] =
            V::sum4([both[0].add(both[1]), square[0].add(square[1]), zero, zero]);
        [both + rest[0], square + rest[1]]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cosines_match_dequantised_rows() {
        let row = |salt: f32, len: usize| -> Vec<f32> {
            let number = |i: usize| (i as f32 * 0.37 + salt).sin() * (1.0 + (i % 7) as f32);
            (0..len).map(number).collect()
        };
        for len in [20, 32, 64, 80, 96, 250] {
            for kind in CacheType::ALL {
                // Rows 0 and 1 are narrow if the type is quantised.
                let mut store = RowStore::stored(kind, len, &[2, 4], &[2, 2], false);
                for r in 0..4 {
                    store.write(1, r, &row(r as f32 * 0.5, len));
                }
                let read = |r: usize| {
                    let mut plain = vec![0.0; len];
                    store.read(1, r, &mut plain);
                    plain
                };
                for (a, b) in [(0, 1), (1, 2), (3, 0), (2, 3), (1, 1)] {
                    let others = [a as u32, b as u32];
                    let dot = |x: &[f32], y: &[f32]| -> f64 {
                        let pairs = x.iter().zip(y);
                        pairs.map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
                    };
                    let (x, y) = (read(a), read(b));
                    let expected = dot(&x, &y) / (dot(&x, &x) * dot(&y, &y)).sqrt();
                    for level in crate::SimdLevel::available() {
                        let mut found = [f32::NAN; 2];
                        level.with(|| store.cosines(1, a, &others, &mut found));
                        let difference = (f64::from(found[1]) - expected).abs();
                        assert!(
                            difference < 2e-6 && (found[0] - 1.0).abs() < 2e-6,
                            "{kind} {len} {level:?} {a} {b}: {found:?}, not 1 and {expected}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn zero_row_has_cosine_zero() {
        let mut store = RowStore::stored(CacheType::Q8_0, 64, &[2], &[1], false);
        store.write(0, 1, &[1.0; 64]);
        let mut found = [f32::NAN; 2];
        store.cosines(0, 0, &[1, 0], &mut found);
        assert_eq!(found, [0.0; 2]);
    }
}
