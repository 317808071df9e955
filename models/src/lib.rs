//! Models: what is in a GGUF file, and the arithmetic of the decoder it describes.
//!
//! - [`gguf`]: the container: metadata and tensors over a mapped file, every length checked.
//! - `architecture.rs`: what each supported architecture does, in one table.
//! - [`Config`]: the shape of the model; [`RopeTable`]: its rotary angles.
//! - [`Tokenizer`]: text to tokens with exact byte ranges, and back; [`ChatTemplate`]: messages to prompt text.
//! - [`Model`]: embedding, projections, feed-forward and logits, over plain `f32` slices; [`CardModel`]: the same on a graphics card.
//!
//! Not here: attention, caches and the order of layers (the engine owns them), policies (this crate knows none),
//! and candle's types, which appear in no public signature.

mod architecture;
mod byte_level;
mod card;
mod card_step;
mod card_weights;
mod compose;
mod config;
mod decoder;
mod error;
pub mod gguf;
mod held;
mod marks;
mod model;
mod pass;
mod pieces;
mod pretokenize;
mod rope;
mod sentencepiece;
mod staged;
mod template;
#[cfg(feature = "testing")]
pub mod testing;
mod tokenizer;
mod vocabulary;
mod weights;

pub use architecture::Activation;
pub use card::{CardModel, CardPass, CardRope, Stand};
pub use card_step::CardStep;
pub use card_weights::beside_weights;
pub use config::{
    Config, LayerKind, LayerRotation, LongRope, OpenOptions, RopeChoice, RopeConfig, RopeScaling,
    Yarn,
};
pub use decoder::RowScratch;
pub use error::ModelError;
pub use model::Model;
pub use pass::LayerPass;
pub use rope::RopeTable;
pub use staged::PassError;
pub use template::{ChatTemplate, Message};
pub use tokenizer::{StreamDecoder, TokenizedText, Tokenizer};
