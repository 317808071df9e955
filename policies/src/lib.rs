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
mod info;
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
pub use info::MethodInfo;
pub use merge::{
    ClassChange, ClassHead, ClassMerge, ClassRows, ClassStep, ClassTable, Entry, MergedHead,
};
pub use method::{Method, Retention, RowPlan, RowRequest, Score, Select, Selection, ValueMerge};
pub use methods::ems_decode::global_local;
pub use methods::hbw_kv::HbwKv;
pub use methods::pyramidinfer::geometric_rows;
pub use methods::pyramidkv::Schedule;
pub use methods::token_dropping::thinning_lengths;
pub use observation::{
    ExpectedQueries, ExpectedQueriesRequest, LowAttention, Needs, Observation, ObservationWindow,
    Reconstruction, ScoreCacheKey, Softmax, WeightedWindow,
};
pub use parallel::{Parallel, Serial};
pub use parameters::{Parameter, Parameters};
pub use prompt_rows::{BilinearForm, PromptRows};
pub use registry::{FULL, QUESTION_AGNOSTIC, STREAMING, build, find, methods};
pub use shape::{ModelShape, Pos, Positions, PromptShape, Protected, Row};
pub use snapshot::Snapshot;
pub use wrappers::adakv::Safeguard;
pub use wrappers::cam::merge_probability;

pub(crate) use methods::pyramidinfer::PyramidInfer;
pub(crate) use methods::snapkv::SnapKv;
pub(crate) use methods::token_dropping::TokenDropping;
pub(crate) use score::{GroupReduce, Pooling, group_reduce, pool};
pub(crate) use top_k::top_positions;
