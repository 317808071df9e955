//! Dequantises rows of K-quants to f32 without allocating: candle's `to_float` allocates a list of blocks on each call,
//! and an embedding row is read for every decoded token. Layouts: `block_q2_K` to `block_q6_K` of ggml.

use half::f16;

/// Numbers in a super-block.
const SUPER: usize = 256;

/// Dequantises super-blocks of `N` bytes each, one after the other, to `out [256 * blocks]`.
pub(super) fn row<const N: usize>(
    bytes: &[u8],
    out: &mut [f32],
    block: impl Fn(&[u8; N], &mut [f32]),
) {
    let (blocks, _) = bytes.as_chunks::<N>();
    for (bytes, out) in blocks.iter().zip(out.chunks_exact_mut(SUPER)) {
        block(bytes, out);
    }
}

/// Scale and minimum of 32 numbers, six bits each, unpacked from twelve bytes.
fn scale_and_min(packed: &[u8], group: usize) -> (f32, f32) {
    let (scale, min) = if group < 4 {
        (packed[group] & 63, packed[group + 4] & 63)
    } else {
        let high = packed[group + 4];
        (
            high & 15 | packed[group - 4] >> 6 << 4,
            high >> 4 | packed[group] >> 6 << 4,
        )
    };
    (f32::from(scale), f32::from(min))
}

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// `16 bytes of scale and minimum (low and high nibble), 64 bytes of bit pairs, f16 d, f16 dmin`: number =
/// d * scale * q - dmin * min, 16 numbers to a scale.
pub(super) fn q2_k(block: &[u8; 84], out: &mut [f32]) {
    let (scales, pairs) = (&block[..16], &block[16..80]);
    let (d, dmin) = (half_at(block, 80), half_at(block, 82));
    for (i, out) in out.iter_mut().enumerate() {
        // Two halves of 128 numbers; the four quarters of a half, 32 numbers each, share 32 bytes.
        let (half, quarter, lane) = (i / 128, i % 128 / 32, i % 32);
        let q = pairs[half * 32 + lane] >> (2 * quarter) & 3;
        let packed = scales[i / 16];
        *out = d * f32::from(packed & 15) * f32::from(q) - dmin * f32::from(packed >> 4);
    }
}

/// `32 bytes of third bits, 64 bytes of bit pairs, 12 bytes of six-bit scales, f16 d`: number = d * (scale - 32) * (q -
/// 4), where q is the bit pair and the third bit.
pub(super) fn q3_k(block: &[u8; 110], out: &mut [f32]) {
    let (third, pairs, packed) = (&block[..32], &block[32..96], &block[96..108]);
    let d = half_at(block, 108);
    for (i, out) in out.iter_mut().enumerate() {
        let (half, quarter, lane) = (i / 128, i % 128 / 32, i % 32);
        let pair = pairs[half * 32 + lane] >> (2 * quarter) & 3;
        let bit = third[lane] >> (half * 4 + quarter) & 1;
        // Scale s: the low nibbles of bytes 0 to 7, then their high nibbles; two more bits in bytes 8 to 11.
        let s = i / 16;
        let low = packed[s % 8] >> (s / 8 * 4) & 15;
        let high = packed[8 + s % 4] >> (s / 4 * 2) & 3;
        let scale = f32::from(low | high << 4) - 32.0;
        *out = d * scale * (f32::from(pair | bit << 2) - 4.0);
    }
}

/// `f16 d, f16 dmin, 12 scales, 128 nibbles`: number = d * scale * q - dmin * min.
pub(super) fn q4_k(block: &[u8; 144], out: &mut [f32]) {
    let (d, dmin, packed, nibbles) = (
        half_at(block, 0),
        half_at(block, 2),
        &block[4..16],
        &block[16..],
    );
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_and_min(packed, group);
        for (out, q) in out.iter_mut().zip(&nibbles[group / 2 * 32..]) {
            let q = q >> (group % 2 * 4) & 15;
            *out = d * scale * f32::from(q) - dmin * min;
        }
    }
}

/// As Q4_K, with a fifth bit of each number in 32 bytes before the nibbles: bit `group` of byte `i`.
pub(super) fn q5_k(block: &[u8; 176], out: &mut [f32]) {
    let (d, dmin, packed) = (half_at(block, 0), half_at(block, 2), &block[4..16]);
    let (fifth, nibbles) = (&block[16..48], &block[48..]);
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_and_min(packed, group);
        for ((out, q), bits) in out.iter_mut().zip(&nibbles[group / 2 * 32..]).zip(fifth) {
            let q = (q >> (group % 2 * 4) & 15) | (bits >> group & 1) << 4;
            *out = d * scale * f32::from(q) - dmin * min;
        }
    }
}

/// `128 low nibbles, 64 bytes of upper bit pairs, 16 signed scales, f16 d`: number = d * scale * (q - 32).
pub(super) fn q6_k(block: &[u8; 210], out: &mut [f32]) {
    let (low, high, scales, d) = (
        &block[..128],
        &block[128..192],
        &block[192..208],
        half_at(block, 208),
    );
    for (i, out) in out.iter_mut().enumerate() {
        // Two halves of 128 numbers, each four quarters of 32: quarters 0 and 2 share bytes of nibbles, as do quarters
        // 1 and 3.
        let (half, quarter, lane) = (i / 128, i % 128 / 32, i % 32);
        let nibble = low[half * 64 + quarter % 2 * 32 + lane] >> (quarter / 2 * 4) & 15;
        let upper = high[half * 32 + lane] >> (quarter * 2) & 3;
        let scale = f32::from(scales[i / 16] as i8);
        *out = d * scale * (f32::from(nibble | upper << 4) - 32.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::quantized::k_quants::{
        BlockQ2K, BlockQ3K, BlockQ4K, BlockQ5K, BlockQ6K, GgmlType,
    };

    /// Random bytes are a valid block; compares with candle's dequantisation of the same bytes.
    fn compare<T: GgmlType, const N: usize>(block: impl Fn(&[u8; N], &mut [f32])) {
        assert_eq!(size_of::<T>(), N);
        let mut state = 3u64;
        for _ in 0..200 {
            let mut bytes = [0u8; N];
            for byte in &mut bytes {
                state = state
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                *byte = (state >> 40) as u8;
            }
            let (mut ours, mut theirs) = ([0f32; SUPER], [0f32; SUPER]);
            row::<N>(&bytes, &mut ours, &block);
            // SAFETY: T has N bytes (asserted), any bytes are a valid T (PlainBlock), and the read is unaligned.
            let read = unsafe { bytes.as_ptr().cast::<T>().read_unaligned() };
            T::to_float(&[read], &mut theirs);
            for (ours, theirs) in ours.iter().zip(theirs) {
                let same = (ours - theirs).abs() <= 1e-5 * theirs.abs() || !theirs.is_finite();
                assert!(same, "{ours} {theirs}");
            }
        }
    }

    #[test]
    fn k_quants_are_read_as_candle_reads_them() {
        compare::<BlockQ2K, 84>(q2_k);
        compare::<BlockQ3K, 110>(q3_k);
        compare::<BlockQ4K, 144>(q4_k);
        compare::<BlockQ5K, 176>(q5_k);
        compare::<BlockQ6K, 210>(q6_k);
    }
}
