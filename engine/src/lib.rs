//! Where model, policy, kernels and document meet.
//!
//! A question goes this way: [`Prompt`] (document and question as tokens, each token with its bytes) -> prefill, layers
//! outside and chunks inside, every layer cut right after its own attention -> [`CompactCache`] -> decode -> [`Answer`],
//! with [`Event`]s on the way and a [`RetentionMap`] beside it. [`Engine::ask`] is the whole of it; [`Engine::ask_watched`] lets
//! a window see more of it, and [`protocol`] is how a window in another process does. [`MapGrid`] is the map as it is shown.
//!
//! What is absent: windows, terminals and files other than the model. The engine is given text and gives text.

mod answering;
mod asking;
mod auto;
mod cache_name;
mod classes;
mod compact;
mod decode;
mod device;
mod error;
mod estimate;
mod event;
pub mod fidelity;
mod fit;
mod forced;
mod gathered_rope;
mod gpu_watch;
mod grid;
mod in_the_box;
mod ledger;
mod method;
mod model_path;
pub mod needle;
pub mod observe;
mod paint;
mod prefill;
mod prompt;
pub mod protocol;
pub mod qa;
mod reconstruction_plan;
mod repetition;
mod retention;
mod sampler;
mod session;
mod shape;
mod sizes;
mod sources;
mod staged;
mod streaming;
mod synthetic;
mod system;
mod together;
pub mod vault;
mod watch;
mod within;
mod writing;

pub use auto::{AUTO, Chosen};
pub use compact::{CompactCache, CompactLayer};
pub use decode::{Decoder, Votes};
pub use device::{
    ComputeDevice, DeviceChoice, Gpu, GpuRates, UnknownDevice, fitting_gpu, gpu_rates, gpus,
};
pub use error::EngineError;
pub use estimate::{Costing, Estimate, fitted_note};
pub use event::{Event, Phase, Progress};
pub use fit::{Fit, FitLine, TOKENS_PER_PAGE};
pub use forced::ForcedLogits;
pub use gpu_watch::GpuWatch;
pub use grid::{GridBytesError, GridError, MapGrid, TableRow, TokenSlots, ends16};
pub use in_the_box::{SAMPLE, is_beyond_the_box, is_in_the_box};
pub use ledger::{MemoryLedger, MemoryNow};
pub use method::{Method, MethodTextError};
pub use model_path::{MINI, MiniMissing, model_path};
pub use paint::{Run, runs};
pub use prefill::{Cut, Prefill, PrefillOutcome, Repeated, SharedPrefill};
pub use prompt::{DocumentLength, Part, Prompt, PromptToken};
pub use reconstruction_plan::Segment;
pub use retention::{LayerRetention, RetentionMap};
pub use sampler::{REPEAT_PENALTY, Sampler, Sampling};
pub use session::{Answer, Ask, Engine, Finish, Limits, document_notes};
pub use sources::{Source, Within};
pub use streaming::{
    Perplexity, PerplexityAt, PerplexityPoint, Stream, StreamPlan, Streamed, Streaming,
};
pub use synthetic::synthetic_cache;
pub use system::{available_memory, peak_resident_bytes, resident_bytes, total_memory};
pub use together::Answers;
pub use watch::{Reading, Watch};
pub use within::Fitted;

pub use kept_documents as documents;
pub use kept_kernels as kernels;
pub use kept_models as models;
pub use kept_policies as policies;
