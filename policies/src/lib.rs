//! Which tokens of a KV cache to keep: one file per paper.
//!
//! Input and output are numbers. A [`Policy`] defines what the engine must measure during prefill ([`Needs`]), how many
//! rows each layer may keep, and, from the measurements of one layer, which positions it keeps ([`Retention`]). Methods
//! that also evict during decode implement [`Policy::step`].
//!
//! This crate has no devices, tensors, models, tokenizers or files, on purpose. A policy never sees a token's text.

mod adakv;
mod blocks;
mod budget;
mod cam;
mod chunkkv;
mod decode_cap;
mod ems;
mod ems_decode;
mod error;
mod expected_attention;
mod full;
mod h2o;
mod hbw_kv;
mod heads;
mod keydiff;
mod kvzip;
mod measures;
mod merge;
mod parameters;
mod policy;
mod prompt_rows;
mod pyramidinfer;
mod pyramidinfer_token_dropping;
mod pyramidkv;
mod registry;
mod scissorhands;
mod score;
mod slots;
mod snapkv;
mod snapshot;
mod streaming_llm;
mod token_scores;
mod top_k;
mod tova;
mod treekv;
mod window;

pub use adakv::{AdaKv, Safeguard};
pub use budget::Budget;
pub use cam::{Cam, merge_probability};
pub use chunkkv::ChunkKv;
pub use decode_cap::DecodeCap;
pub use ems::{Ems, global_local};
pub use error::PolicyError;
pub use expected_attention::ExpectedAttention;
pub use full::Full;
pub use h2o::H2o;
pub use hbw_kv::HbwKv;
pub use keydiff::KeyDiff;
pub use kvzip::{HeadShares, KvZip};
pub use measures::{
    Future, FutureQueries, LowAttention, Reconstruction, ScoreCacheKey, WeightedWindow,
};
pub use merge::{
    ClassChange, ClassHead, ClassRows, ClassStep, ClassTable, Entry, MergedHead, Union,
};
pub use parameters::{Parameter, Parameters};
pub use policy::{
    DecodeValueMerge, Evictions, ModelShape, Needs, Observation, Policy, Pos, Positions,
    PromptShape, Retention, Row, Softmax, StepObservation, ValueMerge, Window,
};
pub use prompt_rows::{HostRows, PromptRows};
pub use pyramidinfer::{PyramidInfer, geometric_rows};
pub use pyramidinfer_token_dropping::{TokenDropping, thinning_lengths};
pub use pyramidkv::{PyramidKv, Schedule};
pub use registry::{Build, MethodInfo, QUESTION_AGNOSTIC, STREAMING, build, find, methods};
pub use scissorhands::Scissorhands;
pub use score::{GroupReduce, Pooling, group_reduce, pool};
pub use snapkv::SnapKv;
pub use snapshot::Snapshot;
pub use streaming_llm::StreamingLlm;
pub use token_scores::{Protected, TokenScores};
pub use top_k::top_positions;
pub use tova::Tova;
pub use treekv::{Rule, TreeKv};
