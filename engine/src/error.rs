//! What can stop an answer. Every message names the value and the way out, in one sentence.

use kept_models::ModelError;
use kept_policies::PolicyError;

use kept_kernels::format_bytes;

/// Why the engine gives no answer.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The model file cannot be opened.
    #[error("{}: {error}", path.display())]
    Open {
        /// The file.
        path: std::path::PathBuf,
        /// What is wrong with it.
        error: ModelError,
    },
    /// The model cannot do what it is asked.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The method, its parameters or the budget do not fit.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A budget in bytes that the layers with a window take all of.
    #[error(
        "a budget of {bytes} bytes is too small: the model's sliding-window layers take {windows} bytes, and one row of the others {row}; give at least {}", windows + row
    )]
    BudgetBelowWindows {
        /// The budget.
        bytes: u64,
        /// What the layers with a window take.
        windows: u64,
        /// What one row of the others takes.
        row: u64,
    },
    /// The document's vault could not be read to its end; what was computed of it is of no use.
    #[error(transparent)]
    Vault(#[from] crate::vault::VaultError),
    /// A budget in bytes that the fewest rows do not fit.
    #[error(
        "a budget of {} needs {} more: cache, tables and the answer's buffers have to fit it{}; give at least {}",
        format_bytes(*bytes), format_bytes(*missing),
        windows.map_or(String::new(), |windows| format!(" beside the {} of the model's sliding-window layers", format_bytes(windows))),
        format_bytes(bytes + missing)
    )]
    BudgetBytes {
        /// The budget.
        bytes: u64,
        /// What is missing.
        missing: u64,
        /// What the layers with a window take, if there are any.
        windows: Option<u64>,
    },
    /// Less memory than a question takes at least.
    #[error(
        "--memory {} needs {} more: the weights alone are {}, and the smallest cache and scratch for this document come on top; close other programs and give more, shorten the document or choose a smaller model",
        format_bytes(*memory), format_bytes(*missing), format_bytes(*weights)
    )]
    Memory {
        /// What was given, in bytes.
        memory: u64,
        /// What is missing.
        missing: u64,
        /// The model's weights.
        weights: u64,
    },
    /// The system does not give the memory that a question takes.
    #[error(
        "the system refuses {} of memory that this question would take beside the weights; close other programs, or set a smaller --budget or --memory",
        format_bytes(*bytes)
    )]
    Refused {
        /// What was asked for.
        bytes: u64,
    },
    /// A GPU has not as much free memory as a question takes.
    #[error(
        "this question would take {} of the GPU {gpu} beside the weights, and {} are free: {} are missing; set a smaller --budget or --memory, close what else uses the GPU, or take --device cpu",
        format_bytes(*needed), format_bytes(*free), format_bytes(needed - free)
    )]
    GpuMemory {
        /// The GPU.
        gpu: String,
        /// What it would take.
        needed: u64,
        /// What is free.
        free: u64,
    },
    /// The GPU failed, or has too little memory.
    #[error(transparent)]
    Gpu(#[from] kept_cuda::DeviceError),
    /// There is no GPU to compute on.
    #[error("{0}")]
    NoGpu(String),
    /// Rows of this type are not kept on a GPU.
    #[error(
        "a cache of type {cache} is not kept on a GPU, which computes keys and values in half precision; take --cache f16, q8_0 or q4_0, or --device cpu"
    )]
    GpuRows {
        /// The type.
        cache: kept_kernels::CacheType,
    },
    /// A method that does not work with rows of this type.
    #[error(
        "a cache of type {cache} does not work with {method}, which {why} and would round them each time; f16 and f32 work, and {cache} works with other methods"
    )]
    CacheType {
        /// The type.
        cache: kept_kernels::CacheType,
        /// The method.
        method: &'static str,
        /// What it does that stands in the way.
        why: &'static str,
    },
    /// No question.
    #[error("the question is empty; ask something, for example --question \"What is this about?\"")]
    EmptyQuestion,
    /// The chat template loses the message.
    #[error(
        "the chat template of {0} does not repeat the user's message; choose another model file"
    )]
    Template(String),
    /// More tokens than the model was made for.
    #[error(
        "the document is too long for {model}: {have} with the question, and the model reads {context}, {kept} of them kept for the answer; about the first {fits} of the text would fit: shorten the document or choose a model with a longer context", kept = crate::prompt::SMALLEST_ANSWER
    )]
    TooLong {
        /// The model's name.
        model: String,
        /// Tokens of the prompt, or a lower bound in words.
        have: String,
        /// The model's context, in tokens.
        context: usize,
        /// What would fit, in words.
        fits: String,
    },
    /// More tokens than the model was made for, under a method that reads nothing in streaming.
    #[error(
        "{refusal}; or read it in streaming mode, which is approximate and which {method} cannot: leave the method to Kept, or name one of {}",
        kept_policies::STREAMING.join(", ")
    )]
    TooLongFor {
        /// Why it is too long.
        refusal: Box<EngineError>,
        /// The method.
        method: &'static str,
    },
    /// A question that leaves no room for a document.
    #[error(
        "the question is too long for {model}: {tokens} tokens, and the model reads {context}; ask a shorter one"
    )]
    QuestionTooLong {
        /// The model's name.
        model: String,
        /// Tokens of the question and the template.
        tokens: usize,
        /// The model's context, in tokens.
        context: usize,
    },
    /// A document that cannot be repeated behind itself.
    #[error(
        "the document is too long for {model} to repeat it: it ends at token {tokens}, its repetition at {needed}, and the model reads {context}; {way_out}"
    )]
    TooLongToRepeat {
        /// The model's name.
        model: String,
        /// Tokens of the prompt up to the document's end.
        tokens: usize,
        /// Positions that the repetition needs.
        needed: usize,
        /// The model's context, in tokens.
        context: usize,
        /// What can be done, in words.
        way_out: String,
    },
    /// Tokens that are dropped between layers of which some count back a number of rows.
    #[error(
        "{method} drops tokens on their way through the layers, and some layers of {model} look back over a number of tokens only; choose another method, or variant=budgeted"
    )]
    ThinnedWindows {
        /// The method.
        method: &'static str,
        /// The model's name.
        model: String,
    },
    /// Logits of tokens that the method dropped on their way through the layers.
    #[error(
        "{method} drops tokens of the prompt on their way through the layers, so they have no logits; choose another method, or variant=budgeted"
    )]
    NoLogits {
        /// The method.
        method: &'static str,
    },
    /// More rows than a streamed reading can hold in the model's window.
    #[error(
        "a budget of {rows} rows per head is too large for streaming mode: what is held and a chunk of the text must fit the model's window of {context} tokens; give at most {most} rows"
    )]
    StreamBudget {
        /// Rows per kv head asked for.
        rows: usize,
        /// The model's context, in tokens.
        context: usize,
        /// The most rows that leave room for a whole chunk.
        most: usize,
    },
    /// A text of which no token can be foretold.
    #[error("a text of {tokens} token(s) has nothing to foretell; give at least 2")]
    NothingToForetell {
        /// Its tokens.
        tokens: usize,
    },
    /// The full cache of a text that the model's window does not hold.
    #[error(
        "the full cache of {tokens} tokens does not fit the model's window of {context}; give a length of at most {context}, or a method that reads in streaming mode"
    )]
    FullBeyondWindow {
        /// Tokens of the text.
        tokens: usize,
        /// The model's context, in tokens.
        context: usize,
    },
    /// The model's output is useless.
    #[error("the model's output is not a number; its file is damaged: download it again")]
    NotANumber,
    /// A sampling setting out of range.
    #[error("{name}={value} is not allowed; {name} takes {range}")]
    Sampling {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it takes.
        range: &'static str,
    },
    /// The person stopped it.
    #[error("stopped")]
    Stopped,
    /// The sampler failed on the model's output.
    #[error("the next token could not be drawn ({0}); try --temperature 0")]
    Draw(String),
    /// A token that the model does not have.
    #[error("token {token} is not in the model's vocabulary of {vocabulary} tokens; ids are 0 to {}", vocabulary - 1)]
    UnknownToken {
        /// The token id.
        token: u32,
        /// Vocabulary size.
        vocabulary: usize,
    },
}

impl EngineError {
    /// Whether it is a method that refuses its budget, its type of rows or this prompt: where several are run, the others can go on.
    pub fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::Policy(_)
                | Self::CacheType { .. }
                | Self::BudgetBytes { .. }
                | Self::BudgetBelowWindows { .. }
                | Self::TooLongToRepeat { .. }
                | Self::ThinnedWindows { .. }
        )
    }

    /// The same where `method`, which cannot read in streaming, was asked to read the document.
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

impl From<kept_kernels::Stopped> for EngineError {
    fn from(_: kept_kernels::Stopped) -> Self {
        EngineError::Stopped
    }
}

impl From<kept_models::PassError> for EngineError {
    fn from(error: kept_models::PassError) -> Self {
        match error {
            kept_models::PassError::Stopped(_) => EngineError::Stopped,
            kept_models::PassError::Gpu(error) => EngineError::Gpu(error),
        }
    }
}
