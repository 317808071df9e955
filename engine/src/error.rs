//! Errors of the engine. Every message is one sentence that names the value and a remedy.

use kept_models::ModelError;
use kept_policies::PolicyError;

use kept_kernels::format_bytes;

/// Why the engine returns no answer.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum EngineError {
    /// The model file cannot be opened.
    #[error("{}: {error}", path.display())]
    Open {
        path: std::path::PathBuf,
        error: ModelError,
    },
    /// The model does not support the request.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The method, its parameters or the budget are invalid.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A budget in bytes that sliding-window layers use up.
    #[error(
        "a budget of {bytes} bytes is too small: the model's sliding-window layers take {windows} bytes, and one row of the others {row}; give at least {}", windows + row
    )]
    BudgetBelowWindows { bytes: u64, windows: u64, row: u64 },
    /// The document's vault could not be read completely; the partial result is discarded.
    #[error(transparent)]
    Vault(#[from] kept_vault::VaultError),
    /// A budget in bytes that is too small for the smallest number of rows.
    #[error(
        "a budget of {} needs {} more: cache, tables and the answer's buffers have to fit it{}; give at least {}",
        format_bytes(*bytes), format_bytes(*missing),
        windows.map_or(String::new(), |windows| format!(" in addition to the {} of the model's sliding-window layers", format_bytes(windows))),
        format_bytes(bytes + missing)
    )]
    BudgetBytes {
        bytes: u64,
        missing: u64,
        /// Bytes of the sliding-window layers, if there are any.
        windows: Option<u64>,
    },
    /// A memory limit below the minimum of a question.
    #[error("{}", memory_refusal(*memory, *missing, *weights))]
    Memory {
        memory: u64,
        missing: u64,
        weights: u64,
    },
    /// The system refuses the memory that a question needs.
    #[error(
        "the system refuses {} of memory that this question needs in addition to the weights; close other programs, or set a smaller budget or a memory limit",
        format_bytes(*bytes)
    )]
    Refused { bytes: u64 },
    /// The GPU has less free memory than a question needs.
    #[error(
        "this question needs {} of the GPU {gpu} in addition to the weights, and {} are free: {} are missing; set a smaller budget or a memory limit, close what else uses the GPU, or compute on the CPU",
        format_bytes(*needed), format_bytes(*free), format_bytes(needed - free)
    )]
    GpuMemory { gpu: String, needed: u64, free: u64 },
    /// The GPU failed or is out of memory.
    #[error(transparent)]
    Gpu(#[from] kept_kernels::DeviceError),
    /// No usable GPU.
    #[error("{0}")]
    NoGpu(String),
    /// A cache type that GPUs do not support.
    #[error(
        "a cache of type {cache} is not kept on a GPU, which computes keys and values in half precision; store rows as f16, q8_0 or q4_0, or compute on the CPU"
    )]
    GpuRows { cache: kept_kernels::CacheType },
    /// A method that does not support this cache type.
    #[error(
        "a cache of type {cache} does not work with {}, which {why} and would round them each time; f16 and f32 work, and {cache} works with other methods",
        title(method)
    )]
    CacheType {
        cache: kept_kernels::CacheType,
        method: &'static str,
        /// The reason, as a verb phrase.
        why: &'static str,
    },
    /// The question is empty.
    #[error("the question is empty; ask something, for example \"What is this about?\"")]
    EmptyQuestion,
    /// The chat template drops the user's message.
    #[error(
        "the chat template of {0} does not repeat the user's message once; choose another model file"
    )]
    Template(String),
    /// The prompt exceeds the context length.
    #[error(
        "the document is too long for {model}: {have} with the question, and its context is {context} tokens, of which {kept} are reserved for the answer; about the first {fits} of the text would fit: shorten the document or choose a model with a longer context", kept = crate::prompt::MIN_ANSWER_TOKENS
    )]
    TooLong {
        model: String,
        /// Tokens of the prompt, or a lower bound, in words.
        have: String,
        context: usize,
        /// How much of the text would fit, in words.
        fits: String,
    },
    /// The prompt exceeds the context length, and the method does not support streaming mode.
    #[error(
        "{refusal}; or read it in streaming mode, which is approximate and which {} cannot: leave the method to Kept, or name one of {}",
        title(method),
        kept_policies::STREAMING.join(", ")
    )]
    TooLongFor {
        /// The [`EngineError::TooLong`].
        refusal: Box<EngineError>,
        method: &'static str,
    },
    /// The question leaves no tokens for a document.
    #[error(
        "the question is too long for {model}: {tokens} tokens, and the model reads {context}; ask a shorter one"
    )]
    QuestionTooLong {
        model: String,
        tokens: usize,
        context: usize,
    },
    /// The context length cannot hold the document and its repetition (reconstruction).
    #[error(
        "the document is too long for {model} to repeat it: it ends at token {tokens}, its repetition at {needed}, and the model reads {context}; {way_out}"
    )]
    TooLongToRepeat {
        model: String,
        tokens: usize,
        needed: usize,
        context: usize,
        /// A remedy, in words.
        way_out: String,
    },
    /// A method that does not work with the layers of the model.
    #[error("{} {why}; choose another method{remedy}", title(method))]
    UnsupportedLayers {
        method: &'static str,
        /// The reason with the model's name, as a verb phrase.
        why: String,
        /// A further remedy, or nothing.
        remedy: &'static str,
    },
    /// Logits were requested of tokens that the method dropped between layers.
    #[error(
        "{} drops tokens of the prompt between layers, so they have no logits; choose another method, or variant=budgeted",
        title(method)
    )]
    NoLogits { method: &'static str },
    /// A budget too large for streaming mode within the context length.
    #[error(
        "a budget of {rows} rows per head is too large for streaming mode: what is held and a chunk of the text must fit the context of {context} tokens; give at most {most} rows"
    )]
    StreamBudget {
        rows: usize,
        context: usize,
        most: usize,
    },
    /// A text too short to predict a token.
    #[error("a text of {tokens} token(s) has nothing to predict; give at least 2")]
    TextTooShort { tokens: usize },
    /// A full cache of a text beyond the context length.
    #[error(
        "the full cache of {tokens} tokens does not fit the context of {context} tokens; give a length of at most {context}, or a method that reads in streaming mode"
    )]
    FullBeyondContext { tokens: usize, context: usize },
    /// The model's output contains NaN or infinity.
    #[error("the model's output is not a number; its file is damaged: download it again")]
    NotANumber,
    /// The model's output contains NaN or infinity, because its weights do.
    #[error(
        "the tensor {tensor} of the model has weights that are not finite numbers; its file is damaged: download it again"
    )]
    DamagedTensor { tensor: String },
    /// A sampling parameter out of range.
    #[error("{name}={value} is not allowed; {name} takes {range}")]
    Sampling {
        name: &'static str,
        value: String,
        range: &'static str,
    },
    /// The user stopped the operation.
    #[error("stopped")]
    Stopped,
    /// The user stopped the reading of a document that is in the vault in part.
    #[error(
        "stopped; {stored} of the document's {tokens} tokens are in the vault, and the next question goes on after them"
    )]
    StoppedReading { stored: usize, tokens: usize },
    /// The sampler failed on the model's output.
    #[error("the next token could not be sampled ({0}); try a temperature of 0")]
    SamplingFailed(String),
    /// A token id outside the vocabulary.
    #[error("token {token} is not in the model's vocabulary of {vocabulary} tokens; ids are 0 to {}", vocabulary - 1)]
    UnknownToken { token: u32, vocabulary: usize },
}

/// The title of a method, as its paper writes it.
fn title(name: &str) -> &str {
    kept_policies::find(name).map_or(name, |info| info.title)
}

impl EngineError {
    /// Whether a method refuses its budget, cache type or prompt: where several methods run, the others can continue.
    pub fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::Policy(_)
                | Self::CacheType { .. }
                | Self::BudgetBytes { .. }
                | Self::BudgetBelowWindows { .. }
                | Self::TooLongToRepeat { .. }
                | Self::UnsupportedLayers { .. }
        )
    }

    /// Whether the user stopped the operation.
    pub fn is_stopped(&self) -> bool {
        matches!(self, Self::Stopped | Self::StoppedReading { .. })
    }

    /// A stop after `stored` of a document's `tokens` tokens are in the vault; other errors as they are.
    pub(crate) fn after_storing(self, stored: usize, tokens: usize) -> Self {
        match self {
            Self::Stopped if stored > 0 => Self::StoppedReading { stored, tokens },
            error => error,
        }
    }

    /// Whether a shorter prompt may be accepted.
    pub(crate) fn concerns_length(&self) -> bool {
        matches!(
            self,
            Self::Policy(PolicyError::BudgetTooSmall { .. })
                | Self::BudgetBytes { .. }
                | Self::Memory { .. }
                | Self::TooLongToRepeat { .. }
        )
    }

    /// Of two refusals of the same question the one that lacks less: bytes, or rows.
    pub(crate) fn or_lacking_less(self, other: Option<Self>) -> Self {
        let lacks = |error: &Self| match error {
            Self::Memory { missing, .. } | Self::BudgetBytes { missing, .. } => *missing,
            Self::Policy(PolicyError::BudgetTooSmall { rows, needed, .. }) => {
                needed.saturating_sub(*rows) as u64
            }
            _ => u64::MAX,
        };
        match other {
            Some(other) if lacks(&other) <= lacks(&self) => other,
            _ => self,
        }
    }

    /// Turns [`EngineError::TooLong`] into [`EngineError::TooLongFor`] for `method`, which does not support streaming
    /// mode.
    pub(crate) fn under_method(self, method: &'static str) -> Self {
        match self {
            refusal @ Self::TooLong { .. } => Self::TooLongFor {
                refusal: Box::new(refusal),
                method,
            },
            other => other,
        }
    }
}

/// The sentence of [`EngineError::Memory`].
fn memory_refusal(memory: u64, missing: u64, weights: u64) -> String {
    let (limit, of_weights) = (format_bytes(memory), format_bytes(weights));
    match weights >= memory {
        true => format!(
            "the model's weights alone are {of_weights}, more than the memory limit of {limit}; raise the limit by {} or choose a smaller model",
            format_bytes(missing)
        ),
        false => format!(
            "the memory limit of {limit} needs {} more: the weights alone are {of_weights}, and the smallest cache and scratch for this document come on top; raise the limit, shorten the document or choose a smaller model",
            format_bytes(missing)
        ),
    }
}

impl From<kept_kernels::Stopped> for EngineError {
    fn from(_: kept_kernels::Stopped) -> Self {
        EngineError::Stopped
    }
}
