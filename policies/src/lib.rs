//! Which tokens of a KV cache to keep: one file per paper.
//!
//! Input and output are numbers. A [`Method`] plans what it does with a prompt ([`RowPlan`]): what the engine must
//! measure during prefill ([`Needs`]) and how many rows each layer keeps. From the measurements of one layer it selects
//! positions ([`Select`]); methods that also evict during decode have an [`Evict`].
//!
//! This crate has no devices, tensors, models, tokenizers or files, on purpose. A method never sees a token's text, and
//! it computes on threads that its caller provides ([`Parallel`]).

mod blocks;
mod budget;
mod error;
mod evict;
mod merge;
mod method;
mod methods;
mod observation;
mod options;
mod parallel;
mod parameters;
mod prompt_rows;
mod registry;
mod score;
mod shape;
mod slots;
mod snapshot;
mod top_k;
mod top_tokens;
mod window;
mod wrappers;

pub use budget::Budget;
pub use error::PolicyError;
pub use evict::{DecodeValueMerge, Evict, Evictions, StepObservation};
pub use merge::{
    ClassChange, ClassHead, ClassRows, ClassStep, ClassTable, Entry, MergedHead, Union,
};
pub use method::{Method, Retention, RowPlan, RowRequest, Score, Select, Selection, ValueMerge};
pub use methods::chunkkv::ChunkKv;
pub use methods::ems::{Ems, global_local};
pub use methods::expected_attention::ExpectedAttention;
pub use methods::full::Full;
pub use methods::h2o::H2o;
pub use methods::hbw_kv::HbwKv;
pub use methods::keydiff::KeyDiff;
pub use methods::knorm::KNorm;
pub use methods::kvzip::{HeadShares, KvZip};
pub use methods::pyramidinfer::{PyramidInfer, geometric_rows};
pub use methods::pyramidkv::{PyramidKv, Schedule};
pub use methods::random::Random;
pub use methods::scissorhands::Scissorhands;
pub use methods::snapkv::SnapKv;
pub use methods::streaming_llm::StreamingLlm;
pub use methods::token_dropping::{TokenDropping, thinning_lengths};
pub use methods::tova::Tova;
pub use methods::treekv::{Rule, TreeKv};
pub use observation::{
    Future, FutureQueries, LowAttention, Needs, Observation, Reconstruction, ScoreCacheKey,
    Softmax, WeightedWindow, Window,
};
pub use parallel::{Parallel, Serial};
pub use parameters::{Parameter, Parameters};
pub use prompt_rows::{BilinearForm, PromptRows};
pub use registry::{Build, MethodInfo, QUESTION_AGNOSTIC, STREAMING, build, find, methods};
pub use score::{GroupReduce, Pooling, group_reduce, pool};
pub use shape::{ModelShape, Pos, Positions, PromptShape, Protected, Row};
pub use snapshot::Snapshot;
pub use top_k::top_positions;
pub use wrappers::adakv::{AdaKv, Safeguard};
pub use wrappers::cam::{Cam, merge_probability};
pub use wrappers::decode_cap::DecodeCap;
