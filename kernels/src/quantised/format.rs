//! The block formats of ggml that store integers, one type each (`lists.rs` has the others): unpacks a block's bytes to integers, scales and minima.
//!
//! ```text
//! number = scale[group] * (quant - OFFSET) - min[group]     quants are unsigned bytes; OFFSET or minima, never both
//! ```
//!
//! This is the plain description of each format. It fills the tiles of `tile.rs`, and tests compare the products of
//! `dot.rs`, which unpacks most formats in registers, against it.

use super::ints::{Bytes, by_byte_level, byte_level};

/// Values in the largest block (`QK_K` in llama.cpp).
pub(super) const MAX_BLOCK_SIZE: usize = 256;
/// Scales in the block with the most groups.
pub(super) const MAX_GROUPS: usize = 16;

/// An unpacked block. Elements past the block's own numbers and groups are stale.
#[repr(C, align(64))]
pub(super) struct Unpacked {
    pub(super) quants: [u8; MAX_BLOCK_SIZE],
    pub(super) scales: [f32; MAX_GROUPS],
    pub(super) mins: [f32; MAX_GROUPS],
}

impl Unpacked {
    pub(super) const fn new() -> Self {
        Self {
            quants: [0; MAX_BLOCK_SIZE],
            scales: [0.0; MAX_GROUPS],
            mins: [0.0; MAX_GROUPS],
        }
    }

    /// Unpacks `blocks`, of at most 256 numbers in all, one after the other.
    #[inline(always)]
    pub(super) fn fill<F: Format>(&mut self, blocks: &[u8]) {
        let groups = F::BLOCK_SIZE / F::GROUP;
        for (b, block) in blocks.chunks_exact(F::BYTES).enumerate() {
            F::unpack(
                block,
                &mut self.quants[b * F::BLOCK_SIZE..][..F::BLOCK_SIZE],
                &mut self.scales[b * groups..][..groups],
                &mut self.mins[b * groups..][..groups],
            );
        }
    }
}

/// A block storage format.
pub(super) trait Format {
    /// Values in a block, as `ggml_blck_size`.
    const BLOCK_SIZE: usize;
    /// Bytes of a block.
    const BYTES: usize;
    /// Numbers that share a scale: 16 or 32.
    const GROUP: usize;
    /// Subtracted from each quant.
    const OFFSET: i32;
    /// Whether the format has minima; if not, `mins` is not written.
    const MINS: bool;

    /// Unpacks a block of `BYTES` bytes to the numbers and groups of one block.
    fn unpack(block: &[u8], quants: &mut [u8], scales: &mut [f32], mins: &mut [f32]);
}

/// Dequantises a row of whole blocks: `out [numbers]`.
pub(super) fn dequantise<F: Format>(row: &[u8], out: &mut [f32]) {
    let mut unpacked = Unpacked::new();
    let blocks = row.chunks_exact(F::BYTES);
    for (block, out) in blocks.zip(out.chunks_exact_mut(F::BLOCK_SIZE)) {
        unpacked.fill::<F>(block);
        for (i, (out, &quant)) in out.iter_mut().zip(&unpacked.quants).enumerate() {
            let group = i / F::GROUP;
            *out = unpacked.scales[group] * (i32::from(quant) - F::OFFSET) as f32;
            if F::MINS {
                *out -= unpacked.mins[group];
            }
        }
    }
}

/// As [`super::AddRows`].
pub(super) fn add_rows<F: Format>(blocks: &[u8], factors: &[f32], out: &mut [f32]) {
    // SAFETY: the level was detected.
    unsafe { add_rows_at::<F>(byte_level(), blocks, factors, out) };
}

by_byte_level! {
    /// # Safety
    /// The CPU supports the level's instructions.
    unsafe fn add_rows_at<F>(blocks: &[u8], factors: &[f32], out: &mut [f32]) = add_rows_lanes;
}

/// Plain loops, which the compiler vectorises with the level's instructions.
#[inline(always)]
unsafe fn add_rows_lanes<V: Bytes, F: Format>(blocks: &[u8], factors: &[f32], out: &mut [f32]) {
    let mut unpacked = Unpacked::new();
    let row_bytes = out.len() / F::BLOCK_SIZE * F::BYTES;
    for (row, factor) in blocks.chunks_exact(row_bytes).zip(factors) {
        let blocks = row.chunks_exact(F::BYTES);
        for (block, out) in blocks.zip(out.chunks_exact_mut(F::BLOCK_SIZE)) {
            unpacked.fill::<F>(block);
            let quants = unpacked.quants.chunks_exact(F::GROUP);
            for (group, (out, quants)) in out.chunks_exact_mut(F::GROUP).zip(quants).enumerate() {
                let scale = factor * unpacked.scales[group];
                let less = if F::MINS {
                    factor * unpacked.mins[group]
                } else {
                    0.0
                };
                for (out, &quant) in out.iter_mut().zip(quants) {
                    *out += scale * (i32::from(quant) - F::OFFSET) as f32 - less;
                }
            }
        }
    }
}

/// `N` bytes from byte `at` on.
#[inline(always)]
pub(super) fn part<const N: usize>(bytes: &[u8], at: usize) -> &[u8; N] {
    bytes[at..].first_chunk().expect("a part of the block")
}

#[inline(always)]
pub(super) fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*part(bytes, at))
}

#[inline(always)]
pub(super) fn half_word(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(*part(bytes, at))
}

/// The f16 number at byte `at`. `half` asks for the CPU's instructions at every call; this is inlined.
#[inline(always)]
pub(super) fn half_at(bytes: &[u8], at: usize) -> f32 {
    half(half_word(bytes, at))
}

/// The f16 number with these bits.
#[inline(always)]
pub(crate) fn half(bits: u16) -> f32 {
    const LEAST_NORMAL: u32 = 0x0400 << 13;
    const INFINITE: u32 = 0x7c00 << 13;
    let magnitude = u32::from(bits & 0x7fff);
    let rest = magnitude << 13;
    // The exponent's bias is 15 in place of 127; a number below all normal ones is an integer times 2^-24.
    let normal = rest + ((127 - 15) << 23);
    let small = (magnitude as f32 * f32::from_bits((127 - 24) << 23)).to_bits();
    let number = match rest {
        ..LEAST_NORMAL => small,
        LEAST_NORMAL..INFINITE => normal,
        INFINITE.. => 0x7f80_0000 | rest,
    };
    f32::from_bits(u32::from(bits >> 15) << 31 | number)
}

/// Unpacks the low and high nibbles of `packed [count]` to `quants [2 * count]`, the low nibbles first.
#[inline(always)]
pub(super) fn nibbles(packed: &[u8], quants: &mut [u8]) {
    let (low, high) = quants.split_at_mut(packed.len());
    let (low, high) = (low.as_chunks_mut().0, high.as_chunks_mut().0);
    for ((low, high), packed) in low.iter_mut().zip(high).zip(packed.as_chunks().0) {
        let packed = u64::from_le_bytes(*packed);
        *low = (packed & (15 * ONES)).to_le_bytes();
        *high = (packed >> 4 & (15 * ONES)).to_le_bytes();
    }
}

/// A byte of one in each byte.
pub(super) const ONES: u64 = 0x0101_0101_0101_0101;

/// Byte i is 1 where bit i is set, else 0.
#[inline(always)]
pub(super) fn ones_where(bits: u8) -> u64 {
    let bits = (u64::from(bits) * ONES) & 0x8040_2010_0804_0201;
    ((bits + 0x7f * ONES) >> 7) & ONES
}

/// Adds bit i of `bits` to quant i, as its fifth bit.
#[inline(always)]
fn fifth_bits(bits: &[u8], quants: &mut [u8]) {
    for (quants, &bits) in quants.as_chunks_mut::<8>().0.iter_mut().zip(bits) {
        let more = ones_where(bits) << 4;
        *quants = (u64::from_le_bytes(*quants) | more).to_le_bytes();
    }
}

/// The eight scales and eight minima, six bits each, of a K-quant block: a byte each.
#[inline(always)]
pub(super) fn six_bits(packed: &[u8; 12]) -> [u64; 2] {
    let [a, b, c] = [0, 4, 8].map(|at| u64::from(word(packed, at)));
    let upper = |x: u64| (x >> 6 & 0x0303_0303) << 4;
    [
        a & 0x3f3f_3f3f | (c & 0x0f0f_0f0f | upper(a)) << 32,
        b & 0x3f3f_3f3f | (c >> 4 & 0x0f0f_0f0f | upper(b)) << 32,
    ]
}

/// Unpacks scale and minimum per 32 numbers.
#[inline(always)]
fn scales_and_mins(packed: &[u8; 12], d: f32, dmin: f32, scales: &mut [f32], mins: &mut [f32]) {
    let [of_scales, of_mins] = six_bits(packed);
    for (out, scale) in scales.iter_mut().zip(of_scales.to_le_bytes()) {
        *out = d * f32::from(scale);
    }
    for (out, min) in mins.iter_mut().zip(of_mins.to_le_bytes()) {
        *out = dmin * f32::from(min);
    }
}

macro_rules! formats {
    ($($(#[$doc:meta])* $name:ident: $numbers:literal numbers in $bytes:literal bytes, group $group:literal, offset $offset:literal, mins $mins:literal,
        $unpack:expr;)*) => {$(
        $(#[$doc])*
        pub(super) struct $name;
        impl Format for $name {
            const BLOCK_SIZE: usize = $numbers;
            const BYTES: usize = $bytes;
            const GROUP: usize = $group;
            const OFFSET: i32 = $offset;
            const MINS: bool = $mins;
            #[inline(always)]
            fn unpack(block: &[u8], quants: &mut [u8], scales: &mut [f32], mins: &mut [f32]) {
                let unpack: fn(&[u8; $bytes], &mut [u8; $numbers], &mut [f32], &mut [f32]) = $unpack;
                let block = block.first_chunk().expect("a whole block");
                let quants = quants.first_chunk_mut().expect("its numbers");
                unpack(block, quants, scales, mins);
            }
        }
    )*};
}
pub(super) use formats;

formats! {
    /// `f16 d, 16 bytes of nibbles`: numbers 0..16 in the low nibbles.
    Q4_0: 32 numbers in 18 bytes, group 32, offset 8, mins false, |block, quants, scales, _| {
        scales[0] = half_at(block, 0);
        nibbles(&block[2..], quants);
    };
    /// `f16 d, f16 m, 16 bytes of nibbles`: number = d * q + m.
    Q4_1: 32 numbers in 20 bytes, group 32, offset 0, mins true, |block, quants, scales, mins| {
        (scales[0], mins[0]) = (half_at(block, 0), -half_at(block, 2));
        nibbles(&block[4..], quants);
    };
    /// `f16 d, 32 fifth bits, 16 bytes of nibbles`.
    Q5_0: 32 numbers in 22 bytes, group 32, offset 16, mins false, |block, quants, scales, _| {
        scales[0] = half_at(block, 0);
        nibbles(&block[6..], quants);
        fifth_bits(&block[2..6], quants);
    };
    /// `f16 d, f16 m, 32 fifth bits, 16 bytes of nibbles`: number = d * q + m.
    Q5_1: 32 numbers in 24 bytes, group 32, offset 0, mins true, |block, quants, scales, mins| {
        (scales[0], mins[0]) = (half_at(block, 0), -half_at(block, 2));
        nibbles(&block[8..], quants);
        fifth_bits(&block[4..8], quants);
    };
    /// `f16 d, 32 signed bytes`.
    Q8_0: 32 numbers in 34 bytes, group 32, offset 128, mins false, |block, quants, scales, _| {
        scales[0] = half_at(block, 0);
        for (quant, byte) in quants.iter_mut().zip(&block[2..]) {
            *quant = byte ^ 0x80;
        }
    };
    /// `f16 d, 128 bits`: number = d, or -d where the bit is 0.
    Q1_0: 128 numbers in 18 bytes, group 32, offset 1, mins false, |block, quants, scales, _| {
        scales.fill(half_at(block, 0));
        for (quants, bits) in quants.chunks_exact_mut(8).zip(&block[2..]) {
            for (i, quant) in quants.iter_mut().enumerate() {
                *quant = (bits >> i & 1) << 1;
            }
        }
    };
    /// `f16 d, 16 bytes of bit pairs`: number = d * (q - 1).
    Q2_0: 64 numbers in 18 bytes, group 32, offset 1, mins false, |block, quants, scales, _| {
        scales.fill(half_at(block, 0));
        for (quants, pairs) in quants.chunks_exact_mut(4).zip(&block[2..]) {
            for (i, quant) in quants.iter_mut().enumerate() {
                *quant = pairs >> (2 * i) & 3;
            }
        }
    };
    /// `16 bytes of scale and minimum (low and high nibble), 64 bytes of bit pairs, f16 d, f16 dmin`.
    Q2K: 256 numbers in 84 bytes, group 16, offset 0, mins true, |block, quants, scales, mins| {
        let (d, dmin) = (half_at(block, 80), half_at(block, 82));
        for (group, packed) in block[..16].iter().enumerate() {
            scales[group] = d * f32::from(packed & 15);
            mins[group] = dmin * f32::from(packed >> 4);
        }
        // Two halves of 128 numbers; the four quarters of a half, 32 numbers each, share 32 bytes.
        for (half, pairs) in quants.chunks_exact_mut(128).zip(block[16..80].chunks_exact(32)) {
            for (quarter, quants) in half.chunks_exact_mut(32).enumerate() {
                for (quant, pairs) in quants.iter_mut().zip(pairs) {
                    *quant = pairs >> (2 * quarter) & 3;
                }
            }
        }
    };
    /// `32 bytes of third bits, 64 bytes of bit pairs, 12 bytes of six-bit scales, f16 d`.
    Q3K: 256 numbers in 110 bytes, group 16, offset 4, mins false, |block, quants, scales, _| {
        let (third, packed, d) = (&block[..32], &block[96..108], half_at(block, 108));
        // Scale s: the low nibbles of bytes 0 to 7, then their high nibbles; two more bits in bytes 8 to 11.
        for (s, out) in scales.iter_mut().enumerate() {
            let low = packed[s % 8] >> (s / 8 * 4) & 15;
            let high = packed[8 + s % 4] >> (s / 4 * 2) & 3;
            *out = d * (f32::from(low | high << 4) - 32.0);
        }
        let halves = quants.chunks_exact_mut(128).zip(block[32..96].chunks_exact(32));
        for (half, (quants, pairs)) in halves.enumerate() {
            for (quarter, quants) in quants.chunks_exact_mut(32).enumerate() {
                for ((quant, pairs), third) in quants.iter_mut().zip(pairs).zip(third) {
                    let bit = third >> (half * 4 + quarter) & 1;
                    *quant = pairs >> (2 * quarter) & 3 | bit << 2;
                }
            }
        }
    };
    /// `f16 d, f16 dmin, 12 bytes of scales and minima, 128 bytes of nibbles`.
    Q4K: 256 numbers in 144 bytes, group 32, offset 0, mins true, |block, quants, scales, mins| {
        scales_and_mins(part(block, 4), half_at(block, 0), half_at(block, 2), scales, mins);
        for (packed, quants) in block[16..].chunks_exact(32).zip(quants.chunks_exact_mut(64)) {
            nibbles(packed, quants);
        }
    };
    /// As Q4_K, with a fifth bit of each number in 32 bytes before the nibbles: bit `group` of byte i.
    Q5K: 256 numbers in 176 bytes, group 32, offset 0, mins true, |block, quants, scales, mins| {
        scales_and_mins(part(block, 4), half_at(block, 0), half_at(block, 2), scales, mins);
        for (packed, quants) in block[48..].chunks_exact(32).zip(quants.chunks_exact_mut(64)) {
            nibbles(packed, quants);
        }
        for (group, quants) in quants.chunks_exact_mut(32).enumerate() {
            for (quant, bits) in quants.iter_mut().zip(&block[16..48]) {
                *quant |= (bits >> group & 1) << 4;
            }
        }
    };
    /// `128 bytes of low nibbles, 64 bytes of upper bit pairs, 16 signed scales, f16 d`.
    Q6K: 256 numbers in 210 bytes, group 16, offset 32, mins false, |block, quants, scales, _| {
        let d = half_at(block, 208);
        for (scale, byte) in scales.iter_mut().zip(&block[192..208]) {
            *scale = d * f32::from(byte.cast_signed());
        }
        // Two halves of 128 numbers, each four quarters of 32: quarters 0 and 2 share bytes of nibbles, as do quarters
        // 1 and 3.
        let halves = block[..128].chunks_exact(64).zip(block[128..192].chunks_exact(32));
        for (quants, (low, upper)) in quants.chunks_exact_mut(128).zip(halves) {
            for (quarter, quants) in quants.chunks_exact_mut(32).enumerate() {
                let low = &low[quarter % 2 * 32..][..32];
                for ((quant, low), upper) in quants.iter_mut().zip(low).zip(upper) {
                    let low = low >> (quarter / 2 * 4) & 15;
                    *quant = low | (upper >> (2 * quarter) & 3) << 4;
                }
            }
        }
    };
}
