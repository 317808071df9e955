//! Errors of model files. Each message is one sentence with the offending value and a remedy.
//!
//! Failures during computation are reported by the engine.

use std::path::PathBuf;

use kept_kernels::WeightType;
use kept_kernels::mapped::MappedError;

/// Why a model file cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
#[non_exhaustive]
pub enum ModelError {
    #[error(
        "the model file cannot be opened ({reason}); check the path, or use mini for the built-in model"
    )]
    Unreadable { path: PathBuf, reason: String },
    #[error(
        "this is not a GGUF file{}; download it again, or choose another file",
        if start.is_empty() { String::new() } else { format!(" (it starts with {start:?})") }
    )]
    NotGguf {
        /// The first bytes, if they are printable.
        start: String,
    },
    #[error(
        "this file is GGUF version {version}; supported: 2 and 3, little-endian: convert the model again"
    )]
    UnsupportedVersion { version: u32 },
    #[error("the model file is cut short: it needs {needs} bytes and has {has}; download it again")]
    Truncated { needs: u64, has: u64 },
    #[error("the model file is damaged: {what}; download it again")]
    Malformed { what: String },
    /// Without the expected suffix, the other parts cannot be located.
    #[error(
        "this is part {part} of a model split into {parts} files, but it is called {name:?}; give all parts the names they had, ending in {ending}"
    )]
    PartName {
        /// The part, counted from one.
        part: u64,
        parts: u64,
        name: String,
        /// The suffix that the name should have.
        ending: String,
    },
    #[error(
        "part {part} of {parts} of this model is missing: there is no {name:?} in the folder of the given file; download it too"
    )]
    MissingPart {
        /// The part, counted from one.
        part: u64,
        parts: u64,
        name: String,
    },
    #[error("the model's architecture is {name:?}, which is not supported; {instead}")]
    UnsupportedArchitecture { name: String, instead: String },
    #[error(
        "tensor {tensor} is of type {name}, which is not supported; supported: {}: choose another quantisation of this model",
        supported_types()
    )]
    UnsupportedType { tensor: String, name: String },
    #[error("the model file has no {key:?}; convert the model again with a current converter")]
    MissingKey { key: String },
    #[error("the model file says {key} = {value}, but {needs}")]
    BadValue {
        key: String,
        /// The value, shortened.
        value: String,
        needs: String,
    },
    #[error("the model file has no tensor {name:?}; download or convert it again")]
    MissingTensor { name: String },
    /// A tensor that Kept would ignore, which would change the results.
    #[error(
        "the model file has a tensor {name:?} that models of its architecture do not have; leaving it out would change the answers, so this model is not supported"
    )]
    UnknownTensor { name: String },
    #[error(
        "tensor {name} has shape {found:?}, but the model's metadata makes it {expected:?}; download or convert it again"
    )]
    WrongShape {
        name: String,
        /// Shape in the file, rows first.
        found: Vec<usize>,
        expected: Vec<usize>,
    },
    #[error("tensor {name} cannot be used: {source}")]
    Unusable { name: String, source: MappedError },
    #[error(
        "the model stretches its context by {name:?} RoPE scaling, which is not supported; supported: none, linear, yarn, longrope, and the llama3 factors"
    )]
    UnsupportedRopeScaling { name: String },
    #[error(
        "contexts of models with latent attention cannot be extended, so {choice} cannot be set; leave it out"
    )]
    LatentRopeChoice { choice: String },
    #[error(
        "the model stretches its context by {own} RoPE scaling already, so {choice} cannot be set; leave it out"
    )]
    RopeChoice {
        choice: String,
        /// The model's scaling, as in [`crate::RopeScaling::name`].
        own: String,
    },
    #[error(
        "the model's tokenizer is of kind {name:?}, which is not supported; supported: gpt2 (byte-level BPE) and llama (SentencePiece)"
    )]
    UnsupportedTokenizer { name: String },
    /// Guessing one would change the tokens silently.
    #[error(
        "{}; supported: {supported}",
        if name.is_empty() {
            "the file does not name its pre-tokenizer (tokenizer.ggml.pre), so its tokens are not known: convert the model \
             again".to_owned()
        } else {
            format!("the model's pre-tokenizer is {name:?}, which is not supported")
        }
    )]
    UnsupportedPreTokenizer {
        /// As in `tokenizer.ggml.pre`; empty if the file has none.
        name: String,
        supported: String,
    },
    #[error("the model's vocabulary cannot be used: {what}; convert the model again")]
    BadVocabulary { what: String },
    #[error("the model's chat template fails: {what}")]
    Template {
        /// The template engine's message, on one line.
        what: String,
    },
}

/// Names of the types of weights that Kept multiplies.
fn supported_types() -> String {
    let names: Vec<&str> = WeightType::ALL.iter().map(|kind| kind.name()).collect();
    names.join(" ")
}

/// Why the system does not open a file, in plain words.
pub(crate) fn reason(error: &std::io::Error) -> String {
    let plain = match error.kind() {
        std::io::ErrorKind::NotFound => "there is no such file",
        std::io::ErrorKind::PermissionDenied => "this user may not read it",
        std::io::ErrorKind::IsADirectory => "it is a folder",
        _ => {
            let text = error.to_string();
            return match error.raw_os_error() {
                Some(number) => text.replace(&format!(" (os error {number})"), ""),
                None => text,
            };
        }
    };
    plain.to_owned()
}
