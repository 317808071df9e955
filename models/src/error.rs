//! What can be wrong with a model file, each in one sentence that names the value and the way out.
//!
//! Not here: failures of the machine while computing, which the engine reports.

use std::path::PathBuf;

use kept_kernels::mapped::MappedError;

/// Block types whose matrices Kept can multiply.
pub(crate) const SUPPORTED_TYPES: &str =
    "F32 F16 BF16 Q2_K Q3_K Q4_0 Q4_1 Q4_K Q5_0 Q5_1 Q5_K Q6_K Q8_0";

/// Why a model file cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The operating system would not open or map the file.
    #[error(
        "the model file cannot be opened ({reason}); check the path, or use mini for the model in the box"
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        reason: String,
    },
    /// The first four bytes are not `GGUF`.
    #[error(
        "this is not a GGUF file (it starts with {start:?}, not \"GGUF\"); choose a file that ends in .gguf"
    )]
    NotGguf {
        /// The first bytes, readable.
        start: String,
    },
    /// A GGUF version other than 2 and 3.
    #[error(
        "this file is GGUF version {version}; supported: 2 and 3, little-endian: convert the model again"
    )]
    UnsupportedVersion {
        /// The version found.
        version: u32,
    },
    /// The file ends before what it announces.
    #[error("the model file is cut short: it needs {needs} bytes and has {has}; download it again")]
    Truncated {
        /// Bytes needed, at least.
        needs: u64,
        /// Bytes there.
        has: u64,
    },
    /// The container contradicts itself.
    #[error("the model file is damaged: {what}; download it again")]
    Malformed {
        /// What is wrong, with the value.
        what: String,
    },
    /// One part of a split model under a name that does not tell where the others are.
    #[error(
        "this is part {part} of a model split into {parts} files, but it is called {name:?}; give all parts the names they had, ending in {ending}"
    )]
    PartName {
        /// The part, counted from one.
        part: u64,
        /// Number of parts.
        parts: u64,
        /// The file's name.
        name: String,
        /// What the name would end in.
        ending: String,
    },
    /// A part of a split model that is not there.
    #[error(
        "part {part} of {parts} of this model is missing: there is no {name:?} beside the file given; download it too"
    )]
    MissingPart {
        /// The part, counted from one.
        part: u64,
        /// Number of parts.
        parts: u64,
        /// The file's name.
        name: String,
    },
    /// An architecture that Kept does not compute.
    #[error("the model's architecture is {name:?}, which is not supported; supported: {supported}")]
    UnsupportedArchitecture {
        /// As in `general.architecture`.
        name: String,
        /// Those that are.
        supported: String,
    },
    /// A tensor of a type that Kept does not multiply.
    #[error(
        "tensor {tensor} is of type {name}, which is not supported; supported: {SUPPORTED_TYPES}: choose another quantisation of this model"
    )]
    UnsupportedType {
        /// The tensor.
        tensor: String,
        /// ggml's name of its type.
        name: String,
    },
    /// A metadata key that must be there is not.
    #[error("the model file has no {key:?}; convert the model again with a current converter")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A metadata key with a value that Kept cannot use.
    #[error("the model file says {key} = {value}, but {needs}")]
    BadValue {
        /// The key.
        key: String,
        /// Its value, shortened.
        value: String,
        /// What would do instead.
        needs: String,
    },
    /// A tensor that must be there is not.
    #[error("the model file has no tensor {name:?}; download or convert it again")]
    MissingTensor {
        /// The tensor.
        name: String,
    },
    /// A tensor that Kept would have to leave out of the computation.
    #[error(
        "the model file has a tensor {name:?} that models of its architecture do not have; leaving it out would change the answers, so this model is not supported"
    )]
    UnknownTensor {
        /// The tensor.
        name: String,
    },
    /// A tensor of another shape than the metadata says.
    #[error(
        "tensor {name} has shape {found:?}, but the model's metadata makes it {expected:?}; download or convert it again"
    )]
    WrongShape {
        /// The tensor.
        name: String,
        /// Shape in the file, rows first.
        found: Vec<usize>,
        /// Shape that follows from the metadata, rows first.
        expected: Vec<usize>,
    },
    /// A tensor whose bytes cannot be used where they lie.
    #[error("tensor {name} cannot be used: {source}")]
    Unusable {
        /// The tensor.
        name: String,
        /// What is wrong with its bytes.
        source: MappedError,
    },
    /// A way of stretching the context that Kept does not compute.
    #[error(
        "the model stretches its context by {name:?} RoPE scaling, which is not supported; supported: none, linear, yarn, longrope, and the llama3 factors"
    )]
    UnsupportedRopeScaling {
        /// As in `rope.scaling.type`.
        name: String,
    },
    /// A stretched context that was asked for and does not go with the model's own.
    #[error(
        "the model stretches its context by {own} RoPE scaling already, so {choice} cannot be set; leave it out"
    )]
    RopeChoice {
        /// As it was asked for.
        choice: String,
        /// As in [`crate::RopeScaling::name`].
        own: String,
    },
    /// A kind of tokenizer that Kept does not have.
    #[error(
        "the model's tokenizer is of kind {name:?}, which is not supported; supported: gpt2 (byte-level BPE) and llama (SentencePiece)"
    )]
    UnsupportedTokenizer {
        /// As in `tokenizer.ggml.model`.
        name: String,
    },
    /// A pre-tokenizer that Kept does not have: guessing one would change the tokens silently.
    #[error(
        "the model's pre-tokenizer is {name:?}, which is not supported; supported: {supported}"
    )]
    UnsupportedPreTokenizer {
        /// As in `tokenizer.ggml.pre`, empty when the file names none.
        name: String,
        /// The names that are supported.
        supported: String,
    },
    /// A vocabulary that cannot be used.
    #[error("the model's vocabulary cannot be used: {what}; convert the model again")]
    BadVocabulary {
        /// What is wrong, with the value.
        what: String,
    },
    /// A chat template that does not compile or does not render.
    #[error("the model's chat template fails: {what}")]
    Template {
        /// The template engine's words, on one line.
        what: String,
    },
}
