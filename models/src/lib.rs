//! Models: what is in a GGUF file, and the arithmetic of the decoder it describes.
//!
//! - [`gguf`]: the container: metadata and tensors over a mapped file, every length checked.
//! - [`Config`]: the shape of the model; [`RopeTable`]: its rotary angles.
//! - [`Tokenizer`]: text to tokens with exact byte ranges, and back; [`ChatTemplate`]: messages to prompt text.
//! - [`Model`]: embedding, projections, feed-forward and logits, over plain `f32` slices.
//!
//! Not here: attention, caches and the order of layers (the engine owns them), policies (this crate knows none),
//! and candle's types, which appear in no public signature.

mod config;
mod error;
pub mod gguf;
mod llama;
mod model;
mod pretokenize;
mod rope;
mod template;
#[cfg(feature = "testing")]
pub mod testing;
mod tokenizer;
mod vocabulary;
mod weights;

pub use config::{Config, RopeConfig, RopeScaling};
pub use error::ModelError;
pub use llama::{LayerPass, RowScratch};
pub use model::Model;
pub use rope::RopeTable;
pub use template::{ChatTemplate, Message};
pub use tokenizer::{StreamDecoder, TokenizedText, Tokenizer};
