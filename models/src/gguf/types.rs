//! ggml's tensor types: their numbers, names and block sizes.
//!
//! Types that Kept cannot multiply are listed too, so that errors can name them and files with such tensors can still
//! be inspected.

use kept_kernels::WeightType;

/// A ggml tensor type, by its number in the file.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TensorType(u32);

/// Types that Kept cannot multiply: number in the file, name, elements per block, bytes per block. From `ggml.h` and
/// `ggml-quants.h`. ggml withdrew the numbers 4, 5, 31 to 33 and 36 to 38.
const OTHERS: &[(u32, &str, usize, usize)] = &[
    (9, "Q8_1", 32, 36),
    (15, "Q8_K", 256, 292),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (40, "NVFP4", 64, 36),
];

impl TensorType {
    /// The type with number `number` in a file.
    pub fn from_number(number: u32) -> TensorType {
        TensorType(number)
    }

    /// The type's number in a file.
    pub fn number(self) -> u32 {
        self.0
    }

    /// ggml's name, or `type N` for an unknown type.
    pub fn name(self) -> String {
        match self.entry() {
            Some((name, _)) => name.to_owned(),
            None => format!("type {}", self.0),
        }
    }

    /// Elements and bytes per block, or `None` for an unknown type.
    pub fn block(self) -> Option<(usize, usize)> {
        self.entry().map(|(_, block)| block)
    }

    /// Whether Kept can multiply matrices of this type.
    pub fn is_supported(self) -> bool {
        self.weights().is_some()
    }

    /// The type of weights to multiply; `None` if Kept cannot multiply it.
    pub(crate) fn weights(self) -> Option<WeightType> {
        let mut all = WeightType::ALL.iter().copied();
        all.find(|kind| kind.number() == self.0)
    }

    /// Name and block.
    fn entry(self) -> Option<(&'static str, (usize, usize))> {
        let other = || {
            let other = OTHERS.iter().find(|(number, ..)| *number == self.0);
            other.map(|&(_, name, numbers, bytes)| (name, (numbers, bytes)))
        };
        let weights = self.weights().map(|kind| (kind.name(), kind.block()));
        weights.or_else(other)
    }
}

impl std::fmt::Debug for TensorType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name())
    }
}
