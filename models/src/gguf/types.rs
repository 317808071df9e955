//! ggml's tensor types: their numbers, names and block sizes.
//!
//! Types that Kept cannot multiply are listed too, so that errors can name them and files with such tensors can still
//! be inspected.

use kept_kernels::WeightType;

/// A ggml tensor type, by its number in the file.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TensorType(u32);

/// Number in the file, name, elements per block, bytes per block. From `ggml.h` and `ggml-quants.h`. ggml withdrew the
/// numbers 4, 5, 31 to 33 and 36 to 38.
const TYPES: &[(u32, &str, usize, usize)] = &[
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    (9, "Q8_1", 32, 36),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
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
            Some((_, name, _, _)) => (*name).to_owned(),
            None => format!("type {}", self.0),
        }
    }

    /// Elements and bytes per block, or `None` for an unknown type.
    pub fn block(self) -> Option<(usize, usize)> {
        self.entry().map(|&(_, _, numbers, bytes)| (numbers, bytes))
    }

    /// Whether Kept can multiply matrices of this type.
    pub fn is_supported(self) -> bool {
        self.weights().is_some()
    }

    /// The type of weights to multiply; `None` if Kept cannot multiply it.
    pub(crate) fn weights(self) -> Option<WeightType> {
        let (_, name, ..) = self.entry()?;
        let mut all = WeightType::ALL.iter().copied();
        all.find(|kind| kind.name() == *name)
    }

    fn entry(self) -> Option<&'static (u32, &'static str, usize, usize)> {
        TYPES.iter().find(|(number, ..)| *number == self.0)
    }
}

impl std::fmt::Debug for TensorType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name())
    }
}
