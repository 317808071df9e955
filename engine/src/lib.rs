//! The engine: combines model, method, kernels and document.
//!
//! The path of a question: [`Prompt`] (document and question as tokens, each token with its bytes) -> prefill, with
//! layers in the outer loop and chunks in the inner loop, every layer compressed right after its own attention ->
//! [`CompactCache`] -> decode -> [`Answer`], with [`Event`]s on the way and a [`RetentionMap`] in the result.
//! [`Engine::ask`] runs all of it; [`Event`] is what it reports. [`MapGrid`] is the retention map as displayed.
//!
//! This crate has no user interface. It reads no files but models and vaults: documents come as text, answers leave
//! as text.

mod after_layer;
mod answering;
mod asking;
mod auto;
pub mod backend;
mod builtin_model;
mod cache_name;
mod compact;
mod decode;
mod decode_loop;
mod device;
mod document_length;
mod earlier;
mod error;
mod event;
mod evictions;
mod fit;
mod gathered_rope;
mod grid;
mod ledger;
mod method_spec;
mod model_path;
mod note;
mod numbers;
pub mod observe;
mod paint;
mod plan;
mod prefill;
mod progress_meter;
mod prompt;
mod reading;
mod repetition;
mod retention;
mod sampler;
mod session;
mod shape;
mod shared_prefill;
mod sources;
mod streaming;
mod synthetic;
mod system;
mod votes;

pub use auto::{AUTO, Chosen};
pub use backend::{GpuWatch, PartTime};
pub use builtin_model::{SAMPLE, is_builtin_model, is_untrained_document};
pub use compact::{CompactCache, CompactLayer};
pub use decode::Decoder;
pub use device::{ComputeDevice, Gpu, GpuRates, UnknownDevice, fitting_gpu};
pub use document_length::DocumentLength;
pub use earlier::Earlier;
pub use error::EngineError;
pub use event::{Event, Phase, Progress};
pub use evictions::{Evicted, EvictionLog};
pub use fit::{FEW_PAGES_PER_MINUTE, Fit, FitLine, TOKENS_PER_PAGE, pages_per_minute};
pub use grid::{
    AttentionGrid, GridBytesError, GridError, LEVELS, MapGrid, NEUTRAL_QUESTIONS, ends16,
};
pub use ledger::{MemoryLedger, MemoryNow};
pub use method_spec::{MethodSpec, MethodTextError};
pub use model_path::{MINI, MiniMissing, model_path};
pub use note::{Note, WithinMemory};
pub use observe::{HostRows, Pool};
pub use paint::{Run, runs};
pub use plan::{Estimate, Plan, PlanRequest, Segment, StoredPrefix, StreamPlan};
pub use prefill::{Prefill, PrefillOutcome, Reconstructed};
pub use progress_meter::ProgressMeter;
pub use prompt::{Part, Prompt, PromptForm, PromptText, PromptToken, Turn};
pub use reading::{DocumentReadRequest, DocumentReadResult};
pub use retention::{LayerRetention, RetentionMap};
pub use sampler::{REPEAT_PENALTY, Sampler, Sampling};
pub use session::{Answer, AnswerReport, Ask, Engine, Finish, Limits, document_notes};
pub use shared_prefill::{Answers, GreedyAnswer, PromptContext};
pub use sources::{Citation, Source, Within};
pub use streaming::{Stream, Streamed, Streaming};
pub use synthetic::{SyntheticCache, synthetic_cache};
pub use system::{available_memory, peak_resident_bytes, resident_bytes, total_memory};
pub use votes::{Attended, HeadAttention, HeadPeak, TokenVotes, Votes};

pub use kept_documents as documents;
pub use kept_kernels as kernels;
pub use kept_models as models;
pub use kept_policies as policies;
pub use kept_vault as vault;
