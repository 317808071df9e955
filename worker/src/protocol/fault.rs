//! Why something was not done, as data.

use serde::{Deserialize, Serialize};

use kept_engine::EngineError;
use kept_engine::documents::{DocumentError, Why, recognised_languages};

/// Why something was not done: a kind that a program can decide on, and a sentence for a user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// The kind.
    pub code: FaultCode,
    /// One sentence that names the value and the way out; no full stop, no option of a program.
    pub message: String,
}

/// Kinds of faults. Those that no program decides on are [`FaultCode::Other`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[allow(missing_docs)] // names and types say the rest
pub enum FaultCode {
    /// The memory limit is below what the question needs; all in bytes.
    MemoryLimit {
        limit: u64,
        missing: u64,
        weights: u64,
    },
    /// The method does not work with this cache type.
    CacheType {
        cache: String,
        method: String,
        /// What the method does that excludes the type, for example "merges rows while it answers".
        why: String,
    },
    /// A parameter of the method is not allowed.
    Parameter { name: String },
    /// A document requires a password.
    Password {
        /// One was given that does not open it.
        wrong: bool,
    },
    /// Pages of a document are images.
    Scan {
        pages: usize,
        /// Languages in which their text can be recognised; none if a program for it is missing.
        languages: Vec<String>,
    },
    /// Anything else.
    #[default]
    Other,
}

impl From<&EngineError> for Fault {
    fn from(error: &EngineError) -> Self {
        let code = match error {
            EngineError::Memory {
                memory,
                missing,
                weights,
            } => FaultCode::MemoryLimit {
                limit: *memory,
                missing: *missing,
                weights: *weights,
            },
            EngineError::CacheType { cache, method, why } => FaultCode::CacheType {
                cache: cache.name().to_owned(),
                method: (*method).to_owned(),
                why: (*why).to_owned(),
            },
            EngineError::Policy(error) => match error.parameter() {
                Some(name) => FaultCode::Parameter {
                    name: name.to_owned(),
                },
                None => FaultCode::Other,
            },
            _ => FaultCode::Other,
        };
        Fault {
            code,
            message: error.to_string(),
        }
    }
}

impl From<EngineError> for Fault {
    fn from(error: EngineError) -> Self {
        (&error).into()
    }
}

impl From<DocumentError> for Fault {
    fn from(error: DocumentError) -> Self {
        let code = match error.why {
            Why::PdfEncrypted => FaultCode::Password { wrong: false },
            Why::PdfPassword => FaultCode::Password { wrong: true },
            _ => match error.pages_to_recognise() {
                Some(pages) => FaultCode::Scan {
                    pages,
                    languages: recognised_languages(),
                },
                None => FaultCode::Other,
            },
        };
        Fault {
            code,
            message: error.to_string(),
        }
    }
}

impl From<String> for Fault {
    fn from(message: String) -> Self {
        Fault {
            code: FaultCode::Other,
            message,
        }
    }
}

impl From<&str> for Fault {
    fn from(message: &str) -> Self {
        message.to_owned().into()
    }
}
