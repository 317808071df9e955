//! The block formats of ggml that store integers, one type each (`lists.rs` has the others): unpacks a block's bytes to integers, scales and minima.
//!
//! ```text
//! number = scale[group] * (quant - OFFSET) - min[group]     quants are unsigned bytes; OFFSET or minima, never both
//! ```
//!
//! This is the plain description of each format. It fills the tiles of `tile.rs`, and tests compare the products of
//! `dot.rs`, which unpacks most formats in registers, against it.

use half::f16;

/// Values in the largest block (`QK_K` in llama.cpp).
pub(super) const MAX_BLOCK_SIZE: usize = 256;
/// Scales in the block with the most groups.
pub(super) const MAX_GROUPS: usize = 16;

/// An unpacked block. Elements past the block's own numbers and groups are stale.
pub(super) struct Unpacked {
    pub(super) quants: [u8; MAX_BLOCK_SIZE],
    pub(super) scales: [f32; MAX_GROUPS],
    pub(super) mins: [f32; MAX_GROUPS],
}

impl Unpacked {
    pub(super) fn new() -> Self {
        Self {
            quants: [0; MAX_BLOCK_SIZE],
            scales: [0.0; MAX_GROUPS],
            mins: [0.0; MAX_GROUPS],
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

    /// Unpacks a block of `BYTES` bytes.
    fn unpack(block: &[u8], into: &mut Unpacked);
}

/// Dequantises a row of whole blocks: `out [numbers]`.
pub(super) fn dequantise<F: Format>(row: &[u8], out: &mut [f32]) {
    let mut unpacked = Unpacked::new();
    let blocks = row.chunks_exact(F::BYTES);
    for (block, out) in blocks.zip(out.chunks_exact_mut(F::BLOCK_SIZE)) {
        F::unpack(block, &mut unpacked);
        for (i, (out, &quant)) in out.iter_mut().zip(&unpacked.quants).enumerate() {
            let group = i / F::GROUP;
            *out = unpacked.scales[group] * (i32::from(quant) - F::OFFSET) as f32;
            if F::MINS {
                *out -= unpacked.mins[group];
            }
        }
    }
}

pub(super) fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Unpacks the low and high nibbles of `packed [count]` to `quants [2 * count]`, the low nibbles first.
#[inline(always)]
fn nibbles(packed: &[u8], quants: &mut [u8]) {
    let (low, high) = quants.split_at_mut(packed.len());
    for ((low, high), byte) in low.iter_mut().zip(high).zip(packed) {
        (*low, *high) = (byte & 15, byte >> 4);
    }
}

/// Adds bit i of `bits` to quant i, as its fifth bit.
#[inline(always)]
fn fifth_bits(bits: &[u8], quants: &mut [u8]) {
    let bits = u32::from_le_bytes([bits[0], bits[1], bits[2], bits[3]]);
    for (i, quant) in quants.iter_mut().enumerate() {
        *quant |= ((bits >> i & 1) << 4) as u8;
    }
}

/// Unpacks scale and minimum per 32 numbers, six bits each, from twelve bytes.
#[inline(always)]
fn scales_and_mins(packed: &[u8], d: f32, dmin: f32, into: &mut Unpacked) {
    for group in 0..8 {
        let (scale, min) = if group < 4 {
            (packed[group] & 63, packed[group + 4] & 63)
        } else {
            let high = packed[group + 4];
            (
                high & 15 | packed[group - 4] >> 6 << 4,
                high >> 4 | packed[group] >> 6 << 4,
            )
        };
        into.scales[group] = d * f32::from(scale);
        into.mins[group] = dmin * f32::from(min);
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
            fn unpack(block: &[u8], into: &mut Unpacked) {
                let unpack: fn(&[u8; $bytes], &mut Unpacked) = $unpack;
                let block = block.first_chunk().expect("a whole block");
                unpack(block, into);
            }
        }
    )*};
}
pub(super) use formats;

formats! {
    /// `f16 d, 16 bytes of nibbles`: numbers 0..16 in the low nibbles.
    Q4_0: 32 numbers in 18 bytes, group 32, offset 8, mins false, |block, into| {
        into.scales[0] = half_at(block, 0);
        nibbles(&block[2..], &mut into.quants[..32]);
    };
    /// `f16 d, f16 m, 16 bytes of nibbles`: number = d * q + m.
    Q4_1: 32 numbers in 20 bytes, group 32, offset 0, mins true, |block, into| {
        (into.scales[0], into.mins[0]) = (half_at(block, 0), -half_at(block, 2));
        nibbles(&block[4..], &mut into.quants[..32]);
    };
    /// `f16 d, 32 fifth bits, 16 bytes of nibbles`.
    Q5_0: 32 numbers in 22 bytes, group 32, offset 16, mins false, |block, into| {
        into.scales[0] = half_at(block, 0);
        nibbles(&block[6..], &mut into.quants[..32]);
        fifth_bits(&block[2..6], &mut into.quants[..32]);
    };
    /// `f16 d, f16 m, 32 fifth bits, 16 bytes of nibbles`: number = d * q + m.
    Q5_1: 32 numbers in 24 bytes, group 32, offset 0, mins true, |block, into| {
        (into.scales[0], into.mins[0]) = (half_at(block, 0), -half_at(block, 2));
        nibbles(&block[8..], &mut into.quants[..32]);
        fifth_bits(&block[4..8], &mut into.quants[..32]);
    };
    /// `f16 d, 32 signed bytes`.
    Q8_0: 32 numbers in 34 bytes, group 32, offset 128, mins false, |block, into| {
        into.scales[0] = half_at(block, 0);
        for (quant, byte) in into.quants[..32].iter_mut().zip(&block[2..]) {
            *quant = byte ^ 0x80;
        }
    };
    /// `f16 d, 128 bits`: number = d, or -d where the bit is 0.
    Q1_0: 128 numbers in 18 bytes, group 32, offset 1, mins false, |block, into| {
        into.scales[..4].fill(half_at(block, 0));
        for (quants, bits) in into.quants[..128].chunks_exact_mut(8).zip(&block[2..]) {
            for (i, quant) in quants.iter_mut().enumerate() {
                *quant = (bits >> i & 1) << 1;
            }
        }
    };
    /// `f16 d, 16 bytes of bit pairs`: number = d * (q - 1).
    Q2_0: 64 numbers in 18 bytes, group 32, offset 1, mins false, |block, into| {
        into.scales[..2].fill(half_at(block, 0));
        for (quants, pairs) in into.quants[..64].chunks_exact_mut(4).zip(&block[2..]) {
            for (i, quant) in quants.iter_mut().enumerate() {
                *quant = pairs >> (2 * i) & 3;
            }
        }
    };
    /// `16 bytes of scale and minimum (low and high nibble), 64 bytes of bit pairs, f16 d, f16 dmin`.
    Q2K: 256 numbers in 84 bytes, group 16, offset 0, mins true, |block, into| {
        let (d, dmin) = (half_at(block, 80), half_at(block, 82));
        for (group, packed) in block[..16].iter().enumerate() {
            into.scales[group] = d * f32::from(packed & 15);
            into.mins[group] = dmin * f32::from(packed >> 4);
        }
        // Two halves of 128 numbers; the four quarters of a half, 32 numbers each, share 32 bytes.
        for (half, pairs) in into.quants.chunks_exact_mut(128).zip(block[16..80].chunks_exact(32)) {
            for (quarter, quants) in half.chunks_exact_mut(32).enumerate() {
                for (quant, pairs) in quants.iter_mut().zip(pairs) {
                    *quant = pairs >> (2 * quarter) & 3;
                }
            }
        }
    };
    /// `32 bytes of third bits, 64 bytes of bit pairs, 12 bytes of six-bit scales, f16 d`.
    Q3K: 256 numbers in 110 bytes, group 16, offset 4, mins false, |block, into| {
        let (third, packed, d) = (&block[..32], &block[96..108], half_at(block, 108));
        // Scale s: the low nibbles of bytes 0 to 7, then their high nibbles; two more bits in bytes 8 to 11.
        for (s, out) in into.scales.iter_mut().enumerate() {
            let low = packed[s % 8] >> (s / 8 * 4) & 15;
            let high = packed[8 + s % 4] >> (s / 4 * 2) & 3;
            *out = d * (f32::from(low | high << 4) - 32.0);
        }
        let halves = into.quants.chunks_exact_mut(128).zip(block[32..96].chunks_exact(32));
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
    Q4K: 256 numbers in 144 bytes, group 32, offset 0, mins true, |block, into| {
        scales_and_mins(&block[4..16], half_at(block, 0), half_at(block, 2), into);
        for (packed, quants) in block[16..].chunks_exact(32).zip(into.quants.chunks_exact_mut(64)) {
            nibbles(packed, quants);
        }
    };
    /// As Q4_K, with a fifth bit of each number in 32 bytes before the nibbles: bit `group` of byte i.
    Q5K: 256 numbers in 176 bytes, group 32, offset 0, mins true, |block, into| {
        scales_and_mins(&block[4..16], half_at(block, 0), half_at(block, 2), into);
        for (packed, quants) in block[48..].chunks_exact(32).zip(into.quants.chunks_exact_mut(64)) {
            nibbles(packed, quants);
        }
        for (group, quants) in into.quants.chunks_exact_mut(32).enumerate() {
            for (quant, bits) in quants.iter_mut().zip(&block[16..48]) {
                *quant |= (bits >> group & 1) << 4;
            }
        }
    };
    /// `128 bytes of low nibbles, 64 bytes of upper bit pairs, 16 signed scales, f16 d`.
    Q6K: 256 numbers in 210 bytes, group 16, offset 32, mins false, |block, into| {
        let d = half_at(block, 208);
        for (scale, byte) in into.scales.iter_mut().zip(&block[192..208]) {
            *scale = d * f32::from(byte.cast_signed());
        }
        // Two halves of 128 numbers, each four quarters of 32: quarters 0 and 2 share bytes of nibbles, as do quarters
        // 1 and 3.
        let halves = block[..128].chunks_exact(64).zip(block[128..192].chunks_exact(32));
        for (quants, (low, upper)) in into.quants.chunks_exact_mut(128).zip(halves) {
            let (first, second) = quants.split_at_mut(64);
            for (i, low) in low.iter().enumerate() {
                let upper = upper[i % 32] >> (i / 32 * 2);
                first[i] = low & 15 | (upper & 3) << 4;
                second[i] = low >> 4 | (upper >> 4 & 3) << 4;
            }
        }
    };
}
