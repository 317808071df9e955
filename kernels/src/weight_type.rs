//! [`WeightType`]: the tensor types of ggml that Kept multiplies.

use candle_core::quantized::GgmlDType;

macro_rules! weight_types {
    ($($(#[$doc:meta])* $variant:ident $name:literal = $number:literal: $numbers:literal in $bytes:literal $($candle:ident)?;)*) => {
        /// Storage type of a weight matrix, named as in ggml.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum WeightType {
            $($(#[$doc])* $variant,)*
        }

        impl WeightType {
            /// All types.
            pub const ALL: &'static [WeightType] = &[$(WeightType::$variant),*];

            /// ggml's name.
            pub fn name(self) -> &'static str {
                match self { $(WeightType::$variant => $name,)* }
            }

            /// ggml's number, which files have.
            pub fn number(self) -> u32 {
                match self { $(WeightType::$variant => $number,)* }
            }

            /// Numbers in a block, and bytes of a block.
            pub fn block(self) -> (usize, usize) {
                match self { $(WeightType::$variant => ($numbers, $bytes),)* }
            }

            /// candle's type, if it has one.
            pub fn candle(self) -> Option<GgmlDType> {
                match self {
                    $($(WeightType::$variant => Some(GgmlDType::$candle),)?)*
                    _ => None,
                }
            }
        }
    };
}

weight_types! {
    /// Floating point, 32 bits.
    F32 "F32" = 0: 1 in 4 F32;
    /// IEEE half precision.
    F16 "F16" = 1: 1 in 2 F16;
    /// The upper half of an F32.
    BF16 "BF16" = 30: 1 in 2 BF16;
    /// 4 bits.
    Q4_0 "Q4_0" = 2: 32 in 18 Q4_0;
    /// 4 bits with minima.
    Q4_1 "Q4_1" = 3: 32 in 20 Q4_1;
    /// 5 bits.
    Q5_0 "Q5_0" = 6: 32 in 22 Q5_0;
    /// 5 bits with minima.
    Q5_1 "Q5_1" = 7: 32 in 24 Q5_1;
    /// 8 bits.
    Q8_0 "Q8_0" = 8: 32 in 34 Q8_0;
    /// A sign for each number.
    Q1_0 "Q1_0" = 41: 128 in 18;
    /// -1, 0, 1 or 2, four to a byte.
    Q2_0 "Q2_0" = 42: 64 in 18;
    /// 2 bits with minima.
    Q2K "Q2_K" = 10: 256 in 84 Q2K;
    /// 3 bits.
    Q3K "Q3_K" = 11: 256 in 110 Q3K;
    /// 4 bits with minima.
    Q4K "Q4_K" = 12: 256 in 144 Q4K;
    /// 5 bits with minima.
    Q5K "Q5_K" = 13: 256 in 176 Q5K;
    /// 6 bits.
    Q6K "Q6_K" = 14: 256 in 210 Q6K;
    /// Vectors of 8 numbers from a list of 2,048, without minima; 1.6 bits.
    Iq1S "IQ1_S" = 19: 256 in 50;
    /// As `IQ1_S`, with scales of 16 numbers; 1.75 bits.
    Iq1M "IQ1_M" = 29: 256 in 56;
    /// Vectors of 8 magnitudes from a list of 256, with signs; 2.1 bits.
    Iq2Xxs "IQ2_XXS" = 16: 256 in 66;
    /// Vectors of 8 magnitudes from a list of 512, with signs; 2.3 bits.
    Iq2Xs "IQ2_XS" = 17: 256 in 74;
    /// Vectors of 8 magnitudes from a list of 1,024, with signs; 2.6 bits.
    Iq2S "IQ2_S" = 22: 256 in 82;
    /// Vectors of 4 magnitudes from a list of 256, with signs; 3.1 bits.
    Iq3Xxs "IQ3_XXS" = 18: 256 in 98;
    /// Vectors of 4 magnitudes from a list of 512, with signs; 3.4 bits.
    Iq3S "IQ3_S" = 21: 256 in 110;
    /// 4 bits that index a list of 16 numbers.
    Iq4Nl "IQ4_NL" = 20: 32 in 18;
    /// As `IQ4_NL`, with scales of 6 bits.
    Iq4Xs "IQ4_XS" = 23: 256 in 136;
    /// -1, 0 or 1, five to a byte.
    Tq1_0 "TQ1_0" = 34: 256 in 54;
    /// -1, 0 or 1, four to a byte.
    Tq2_0 "TQ2_0" = 35: 256 in 66;
    /// Floating point with 4 bits, and a power of two for 32 numbers (OCP microscaling).
    Mxfp4 "MXFP4" = 39: 32 in 17;
}

impl WeightType {
    /// The type that candle names `dtype`.
    pub fn of_candle(dtype: GgmlDType) -> Option<WeightType> {
        let mut all = Self::ALL.iter().copied();
        all.find(|kind| kind.candle() == Some(dtype))
    }

    /// Whether the numbers are integers with scales; otherwise they are floating point.
    pub fn is_quantised(self) -> bool {
        !matches!(self, Self::F32 | Self::F16 | Self::BF16)
    }
}

impl std::fmt::Display for WeightType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
