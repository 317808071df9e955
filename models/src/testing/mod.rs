//! Tiny random GGUF files, for the tests of this crate and of those above it. Not part of the product: behind the
//! feature `testing`.
//!
//! [`GgufWriter`] writes any metadata and tensors, wrong ones too. [`TinyLlama`] writes a whole model with random
//! weights and a small byte-level tokenizer in which every byte has a token.

mod tiny;
mod writer;

pub use tiny::{CONTROL, TinyLlama};
pub use writer::{GgufWriter, MetaValue, TYPES};
