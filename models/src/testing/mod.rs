//! Tiny random GGUF files for the tests of this crate and of its dependents; available with the feature `testing`.
//!
//! [`GgufWriter`] writes arbitrary metadata and tensors, including invalid ones. [`TinyLlama`] writes a complete model
//! with random weights and a small byte-level tokenizer in which every byte has a token.

mod blocks;
mod latent;
mod recurrent;
mod tiny;
mod writer;

pub use tiny::{CONTROL, TinyLlama};
pub use writer::{GgufWriter, MetaValue, TYPES};
