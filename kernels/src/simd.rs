//! Selects the vector instructions once at run time, and defines the lanes that the kernels are written in.
//!
//! A build for baseline x86-64 or ARM64 runs everywhere: each kernel is one generic function over [`Lanes`], compiled
//! once per level inside a function that enables that level's instructions ([`by_level`]).
//!
//! `KEPT_SIMD=scalar|avx2|avx512|amx`, on ARM64 `scalar|neon`, selects a level at or below the machine's highest.
//! Programs refuse another value as they start ([`check_simd_level`]).

use std::cell::Cell;
use std::sync::OnceLock;

/// Most elements of a vector, over all levels.
pub(crate) const WIDEST: usize = 16;

/// Vector instructions that the kernels use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SimdLevel {
    /// Portable code that the compiler vectorises for the build's baseline (SSE2, NEON).
    Scalar,
    /// 8 lanes, with fused multiply-add and half-precision conversion.
    Avx2,
    /// 16 lanes.
    Avx512,
    /// AVX-512, and bfloat16 matrix products where they pay off (`amx.rs`).
    Amx,
    /// 8 lanes in two registers of ARM64.
    Neon,
}

/// The levels of the architecture, lowest first, and their names in `KEPT_SIMD`.
#[cfg(target_arch = "x86_64")]
const LEVELS: &[(&str, SimdLevel)] = &[
    ("scalar", SimdLevel::Scalar),
    ("avx2", SimdLevel::Avx2),
    ("avx512", SimdLevel::Avx512),
    ("amx", SimdLevel::Amx),
];
#[cfg(target_arch = "aarch64")]
const LEVELS: &[(&str, SimdLevel)] = &[("scalar", SimdLevel::Scalar), ("neon", SimdLevel::Neon)];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const LEVELS: &[(&str, SimdLevel)] = &[("scalar", SimdLevel::Scalar)];

impl SimdLevel {
    /// All levels that this machine supports, lowest first.
    pub fn available() -> impl Iterator<Item = SimdLevel> {
        let all = LEVELS.iter().map(|&(_, level)| level);
        all.filter(|&level| level <= highest())
    }

    /// Runs `work` with this level on the calling thread, to compare levels within one process.
    pub fn with<R>(self, work: impl FnOnce() -> R) -> R {
        let has = Self::available().any(|level| level == self);
        assert!(has, "{self:?} is more than this machine has");
        FORCED.with(|forced| {
            let before = forced.replace(Some(self));
            let result = work();
            forced.set(before);
            result
        })
    }
}

thread_local! {
    static FORCED: Cell<Option<SimdLevel>> = const { Cell::new(None) };
}

/// The level that `KEPT_SIMD` names; `None` if it is not set.
fn asked_level() -> Result<Option<SimdLevel>, String> {
    let name = std::env::var("KEPT_SIMD").unwrap_or_default();
    match LEVELS.iter().find(|(level, _)| *level == name) {
        Some(&(_, level)) => Ok(Some(level)),
        None if name.is_empty() => Ok(None),
        None => Err(name),
    }
}

/// Whether `KEPT_SIMD` is a level's name, or not set.
///
/// # Errors
/// Another value, in one sentence.
pub fn check_simd_level() -> Result<(), String> {
    let names: Vec<&str> = LEVELS.iter().map(|&(name, _)| name).collect();
    asked_level().map(|_| ()).map_err(|name| {
        format!(
            "KEPT_SIMD={name} is no level of instructions: write {}",
            names.join(", ")
        )
    })
}

/// The level of kernels called from this thread.
pub fn simd_level() -> SimdLevel {
    static CHOSEN: OnceLock<SimdLevel> = OnceLock::new();
    FORCED.with(Cell::get).unwrap_or_else(|| {
        *CHOSEN.get_or_init(|| {
            let asked = asked_level().ok().flatten();
            asked.map_or(highest(), |level| level.min(highest()))
        })
    })
}

#[cfg(target_arch = "x86_64")]
fn highest() -> SimdLevel {
    if !(is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c"))
    {
        SimdLevel::Scalar
    } else if !is_x86_feature_detected!("avx512f") {
        SimdLevel::Avx2
    } else if !crate::amx::permission::available() {
        SimdLevel::Avx512
    } else {
        SimdLevel::Amx
    }
}

#[cfg(target_arch = "aarch64")]
fn highest() -> SimdLevel {
    // Part of every ARM64 processor.
    SimdLevel::Neon
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn highest() -> SimdLevel {
    SimdLevel::Scalar
}

/// A vector of f32. The methods are unsafe because they need the instructions of their level.
///
/// # Safety
/// Call only from code compiled by [`by_level`] for the same level; pointers must cover `N` elements.
pub(crate) trait Lanes: Copy {
    /// The SIMD level of these lanes.
    const LEVEL: SimdLevel;
    /// Elements of one vector.
    const N: usize;
    /// Vectors side by side in the register tile of `panel.rs`: the most that leave six rows of accumulators.
    const ACROSS: usize;
    /// Heads of a group that share one load of a kept row (`heads.rs`): two accumulators per head leave a few free
    /// registers.
    const HEADS: usize;

    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    /// Loads `N` little-endian f16 numbers, two bytes each.
    unsafe fn load_halves(from: *const u8) -> Self;
    /// Loads one little-endian f16 number into every lane.
    unsafe fn splat_half(from: *const u8) -> Self;
    /// Loads `N` signed bytes.
    unsafe fn load_bytes(from: *const u8) -> Self;
    /// Loads the low or high nibbles of `N` bytes, 0 to 15.
    unsafe fn load_nibbles(from: *const u8, high: bool) -> Self;
    unsafe fn store(self, to: *mut f32);
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    unsafe fn div(self, other: Self) -> Self;
    unsafe fn max(self, other: Self) -> Self;
    /// `self * factor + summand`
    unsafe fn mul_add(self, factor: Self, summand: Self) -> Self;
    /// Lane by lane `if a < b { yes } else { no }`.
    unsafe fn select_less(a: Self, b: Self, yes: Self, no: Self) -> Self;
    /// Bit i is set where lane i of `a` is less than lane i of `b`.
    unsafe fn less_bits(a: Self, b: Self) -> u64;
    /// Adds the low bits of `steps`, read as an integer, to the exponent of `self`.
    unsafe fn raise_exponent(self, steps: Self) -> Self;
    /// Sum of the lanes of each of four vectors.
    unsafe fn sum4(vectors: [Self; 4]) -> [f32; 4];
    /// Lane i is the sum of the lanes of vector i; only the first `N` vectors are used.
    unsafe fn sum_each(vectors: &[Self; WIDEST]) -> Self;

    /// `exp(self)` for `self <= 88`: error at most 1 unit in the last place (1.5 without fused multiply-add); exactly 0
    /// below -86.
    ///
    /// `exp(x) = 2^n * exp(r)` with `n = round(x / ln 2)`; `ln 2` split in two parts keeps `r` exact, and a polynomial
    /// of degree 7 covers `|r| <= ln 2 / 2`. Below -86 a result is under 1e-37 of the row's largest weight; returning
    /// zero avoids the very slow arithmetic on subnormal numbers.
    #[inline(always)]
    unsafe fn exp(self) -> Self {
        // SAFETY: same level as the caller's.
        unsafe {
            // Adding 1.5 * 2^23 leaves round(x / ln 2) in the low bits.
            let rounder = Self::splat(12_582_912.0);
            let steps = self.mul_add(Self::splat(std::f32::consts::LOG2_E), rounder);
            let n = steps.sub(rounder);
            let r = n.mul_add(Self::splat(-355.0 / 512.0), self);
            let r = n.mul_add(Self::splat(2.121_944_4e-4), r);
            // exp(r) = 1 + r + r^2 * (..), with the coefficients of Cephes' expf.
            let mut p = Self::splat(1.987_569_1e-4);
            for coefficient in [
                1.398_199_9e-3,
                8.333_452e-3,
                4.166_579_6e-2,
                0.166_666_66,
                0.5,
                1.0,
                1.0,
            ] {
                p = p.mul_add(r, Self::splat(coefficient));
            }
            let lowest = Self::splat(-86.0);
            Self::select_less(self, lowest, Self::splat(0.0), p.raise_exponent(steps))
        }
    }

    /// `self / (1 + exp(-x))`.
    #[inline(always)]
    unsafe fn times_sigmoid(self, x: Self) -> Self {
        // SAFETY: same level as the caller's.
        unsafe {
            let most = Self::splat(88.0);
            let opposite = Self::splat(0.0).sub(x);
            // exp is accurate up to 88, where a sigmoid is already below 1e-36; NaN passes through.
            let e = Self::select_less(most, opposite, most, opposite).exp();
            self.div(Self::splat(1.0).add(e))
        }
    }

    /// `tanh(self)` with an error of at most 3e-7: `1 - 2 / (exp(2 x) + 1)`.
    #[inline(always)]
    unsafe fn tanh(self) -> Self {
        // SAFETY: same level as the caller's.
        unsafe {
            // From 10 on tanh is 1 to the last bit; NaN passes through.
            let (most, one, two) = (Self::splat(20.0), Self::splat(1.0), Self::splat(2.0));
            let x = Self::select_less(most, self, most, self);
            one.sub(two.div(x.mul(two).exp().add(one)))
        }
    }
}

/// Converts a little-endian f16 number to f32, without a branch.
#[inline(always)]
pub(crate) fn half_to_f32(half: [u8; 2]) -> f32 {
    let half = u32::from(u16::from_le_bytes(half));
    // The f16 exponent bias is 112 less than that of f32; the multiplication corrects it, also for subnormal numbers.
    let number = f32::from_bits((half & 0x7fff) << 13) * f32::from_bits((112 + 127) << 23);
    let endless = if half & 0x7c00 == 0x7c00 {
        0x7f80_0000
    } else {
        0
    };
    f32::from_bits(number.to_bits() | endless | (half & 0x8000) << 16)
}

/// Four lanes in plain Rust; the compiler maps them to the baseline's vector instructions.
#[derive(Clone, Copy)]
pub(crate) struct Portable([f32; 4]);

impl Portable {
    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }
}

/// One method of [`Lanes`] per line: name, arguments and result.
macro_rules! methods {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty = $value:expr;)*) => {
        $(#[inline(always)]
        #[allow(unused_unsafe, reason = "some methods in plain Rust need no pointers")]
        unsafe fn $name($($argument: $type),*) -> $result {
            // SAFETY: the trait's contract: the instructions exist and pointers cover N elements, of any alignment.
            unsafe { $value }
        })*
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use methods;

impl Lanes for Portable {
    const LEVEL: SimdLevel = SimdLevel::Scalar;
    const N: usize = 4;
    const ACROSS: usize = 2;
    const HEADS: usize = 4;

    methods! {
        splat(x: f32) -> Self = Self([x; 4]);
        load(from: *const f32) -> Self = Self(from.cast::<[f32; 4]>().read_unaligned());
        load_halves(from: *const u8) -> Self = {
            let mut numbers = [0.0; 4];
            for (number, bytes) in numbers.iter_mut().zip(from.cast::<[[u8; 2]; 4]>().read_unaligned()) {
                *number = half_to_f32(bytes);
            }
            Self(numbers)
        };
        splat_half(from: *const u8) -> Self = Self([half_to_f32(from.cast::<[u8; 2]>().read()); 4]);
        load_bytes(from: *const u8) -> Self =
            Self(from.cast::<[u8; 4]>().read().map(|byte| f32::from(byte.cast_signed())));
        load_nibbles(from: *const u8, high: bool) -> Self = {
            let shift = if high { 4 } else { 0 };
            Self(from.cast::<[u8; 4]>().read().map(|byte| f32::from(byte >> shift & 15)))
        };
        store(self: Self, to: *mut f32) -> () = to.cast::<[f32; 4]>().write_unaligned(self.0);
        add(self: Self, other: Self) -> Self = self.zip(other, |a, b| a + b);
        sub(self: Self, other: Self) -> Self = self.zip(other, |a, b| a - b);
        mul(self: Self, other: Self) -> Self = self.zip(other, |a, b| a * b);
        div(self: Self, other: Self) -> Self = self.zip(other, |a, b| a / b);
        max(self: Self, other: Self) -> Self = self.zip(other, |a, b| if a > b { a } else { b });
        mul_add(self: Self, factor: Self, summand: Self) -> Self = {
            // `f32::mul_add` is a slow library call on x86-64 without FMA, and one instruction on aarch64.
            Self(std::array::from_fn(|i| {
                if cfg!(target_arch = "aarch64") {
                    self.0[i].mul_add(factor.0[i], summand.0[i])
                } else {
                    self.0[i] * factor.0[i] + summand.0[i]
                }
            }))
        };
        select_less(a: Self, b: Self, yes: Self, no: Self) -> Self =
            Self(std::array::from_fn(|i| if a.0[i] < b.0[i] { yes.0[i] } else { no.0[i] }));
        less_bits(a: Self, b: Self) -> u64 = (0..4).map(|i| u64::from(a.0[i] < b.0[i]) << i).sum();
        raise_exponent(self: Self, steps: Self) -> Self = self.zip(steps, |p, steps| {
            f32::from_bits(p.to_bits().wrapping_add(steps.to_bits() << 23))
        });
        sum4(vectors: [Self; 4]) -> [f32; 4] = vectors.map(|Self([a, b, c, d])| (a + b) + (c + d));
        sum_each(vectors: &[Self; WIDEST]) -> Self =
            Self(std::array::from_fn(|i| {
                let [a, b, c, d] = vectors[i].0;
                (a + b) + (c + d)
            }));
    }
}

/// Defines a function that runs a kernel body, generic over [`Lanes`], at the level given as its first argument.
///
/// `by_level! { unsafe fn item(x: &mut [f32]) = item_lanes; }` defines `unsafe fn item(level, x)`, which calls
/// `item_lanes::<V>(x)`; a type parameter is passed on after `V`. The body and everything it calls must be
/// `#[inline(always)]` to be compiled with the level's instructions.
macro_rules! by_level {
    ($(#[$attribute:meta])* $visible:vis unsafe fn $name:ident$(<$kind:ident: $bound:path>)?($($argument:ident: $type:ty),* $(,)?) = $body:ident;) => {
        $(#[$attribute])*
        #[allow(clippy::too_many_arguments, reason = "the level is an additional argument")]
        $visible unsafe fn $name$(<$kind: $bound>)?(level: $crate::simd::SimdLevel, $($argument: $type),*) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn avx2$(<$kind: $bound>)?($($argument: $type),*) {
                // SAFETY: this function is compiled with the instructions; the caller guarantees the rest.
                unsafe { $body::<$crate::x86::Avx2 $(, $kind)?>($($argument),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx2,fma,f16c")]
            unsafe fn avx512$(<$kind: $bound>)?($($argument: $type),*) {
                // SAFETY: this function is compiled with the instructions; the caller guarantees the rest.
                unsafe { $body::<$crate::x86::Avx512 $(, $kind)?>($($argument),*) }
            }
            match level {
                // SAFETY: a level above Scalar exists only if it was detected; the caller guarantees the rest.
                #[cfg(target_arch = "x86_64")]
                $crate::simd::SimdLevel::Avx512 | $crate::simd::SimdLevel::Amx => unsafe { avx512$(::<$kind>)?($($argument),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::simd::SimdLevel::Avx2 => unsafe { avx2$(::<$kind>)?($($argument),*) },
                // SAFETY: NEON is part of the baseline; the caller guarantees the rest.
                #[cfg(target_arch = "aarch64")]
                $crate::simd::SimdLevel::Neon => unsafe { $body::<$crate::neon::Neon $(, $kind)?>($($argument),*) },
                // SAFETY: needs no instructions beyond the baseline.
                _ => unsafe { $body::<$crate::simd::Portable $(, $kind)?>($($argument),*) },
            }
        }
    };
}
pub(crate) use by_level;

#[cfg(test)]
mod tests {
    use super::*;

    by_level! {
        /// # Safety
        /// The CPU supports the level's instructions; the length is a multiple of 16.
        unsafe fn exp_all(x: &mut [f32]) = exp_all_lanes;
    }

    #[inline(always)]
    unsafe fn exp_all_lanes<V: Lanes>(x: &mut [f32]) {
        for x in x.chunks_exact_mut(V::N) {
            // SAFETY: a chunk is one vector.
            unsafe { V::load(x.as_ptr()).exp().store(x.as_mut_ptr()) };
        }
    }

    #[test]
    fn exp_errs_by_one_unit_in_the_last_place() {
        let inputs: Vec<f32> = (0..16 * 200_000)
            .map(|i| 88.0 - i as f32 * (174.0 / 3_200_000.0))
            .collect();
        for level in SimdLevel::available() {
            let most = if level == SimdLevel::Scalar { 1.5 } else { 1.0 };
            let mut outputs = inputs.clone();
            // SAFETY: the level is available.
            unsafe { exp_all(level, &mut outputs) };
            let error = |(x, y): (&f32, &f32)| {
                let exact = f64::from(*x).exp();
                let unit = f64::from(f32::EPSILON) * exact.log2().floor().exp2();
                (f64::from(*y) - exact).abs() / unit
            };
            let worst = inputs.iter().zip(&outputs).map(error).fold(0.0, f64::max);
            assert!(worst <= most, "{level:?}: off by {worst} units");
        }
    }

    #[test]
    fn every_half_is_widened_as_it_should_be() {
        for bits in 0..=u16::MAX {
            let (found, expected) = (half_to_f32(bits.to_le_bytes()), half::f16::from_bits(bits));
            assert_eq!(found.is_nan(), expected.is_nan(), "{bits:x}");
            assert!(found.is_nan() || found.to_bits() == expected.to_f32().to_bits());
        }
    }

    #[test]
    fn exp_far_below_is_zero_and_nan_stays() {
        for level in SimdLevel::available() {
            let mut x = [-86.5, -1e30, f32::NEG_INFINITY, f32::NAN].repeat(4);
            // SAFETY: the level is available.
            unsafe { exp_all(level, &mut x) };
            assert_eq!(&x[..3], &[0.0; 3], "{level:?}");
            assert!(x[3].is_nan(), "{level:?}");
        }
    }
}
