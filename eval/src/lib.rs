//! Measurements of methods on real documents. They run the engine as any other program does.
//!
//! - `fidelity/`: a method's compact cache against the full cache, on one document and question.
//! - `needle/`: one planted fact, at many lengths and depths.
//! - `benchmark/`: LongBench and GSM8K, whose data the user has.
//! - `qa.rs`: questions with known answers. `perplexity.rs`: perplexity of a text in streaming mode.
//! - `forced.rs`: logits of given tokens, to compare the engine with other implementations.

pub mod benchmark;
pub mod fidelity;
mod forced;
pub mod needle;
mod perplexity;
pub mod qa;

pub use forced::ForcedLogits;
pub use perplexity::{Perplexity, PerplexityAt, PerplexityPoint, PerplexityTask};
