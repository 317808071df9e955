//! Model files (GGUF), tokenizers, chat templates, and the decoder's arithmetic.
//!
//! - [`gguf`]: the container format: metadata and tensors over a mapped file, with every length checked.
//! - `architecture.rs`: the supported architectures, in one table.
//! - [`Config`]: the shape of a model; [`RopeTable`]: its RoPE angles.
//! - [`Tokenizer`]: text to tokens with exact byte ranges, and back; [`ChatTemplate`]: messages to prompt text.
//! - [`Model`]: embedding, projections, feed-forward and logits over `f32` slices; [`DenseWeights`]: its weights, for a
//!   device that has its own copy.
//!
//! Out of scope: attention, KV caches and the loop over layers (in the engine) and policies (unknown to this crate).
//! candle's types appear in no public signature.

mod architecture;
mod arithmetic;
mod chat_template;
mod config;
mod decoder;
mod delta_net;
mod dense;
mod error;
mod experts;
mod feed_forward;
pub mod gguf;
mod latent;
mod layer;
mod memory_size;
mod model;
mod pass;
mod per_layer;
mod recurrent;
mod rope;
mod rule;
mod state_space;
#[cfg(feature = "testing")]
pub mod testing;
mod tokenizer;
mod transposed;
mod weights;

pub use architecture::{Activation, Xielu};
pub use chat_template::{ChatTemplate, Message, RENDERING};
pub use config::{
    Config, ExpertCounts, LatentShape, LayerCache, LayerKind, LayerRotation, LongRope,
    NormAfterRope, OpenOptions, QueryScale, RopeChoice, RopeConfig, RopeScaling, Yarn,
};
pub use decoder::RowScratch;
pub use dense::{DenseLayer, DenseWeights, FileLayer};
pub use error::ModelError;
pub use model::Model;
pub use pass::LayerPass;
pub use rope::RopeTable;
pub use tokenizer::{StreamDecoder, TokenizedText, Tokenizer};
