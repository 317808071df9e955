//! Errors of a method, its parameters or its budget. Every message names the value and what to do about it.

/// Why a method cannot run as configured.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum PolicyError {
    /// No method has this name.
    #[error("unknown method '{name}'; the methods are {known}")]
    UnknownMethod {
        name: String,
        /// All names, comma separated.
        known: String,
    },
    /// The method has no parameter of this name.
    #[error("{} has no parameter '{name}'; it has {known}", title(method))]
    UnknownParameter {
        method: &'static str,
        name: String,
        /// The method's parameters, comma separated, or "none".
        known: String,
    },
    /// A parameter's value is not in its range.
    #[error(
        "{}: {name}={value} is not allowed; {name} takes {range}",
        title(method)
    )]
    Value {
        method: &'static str,
        name: &'static str,
        value: String,
        /// The allowed values, as text.
        range: &'static str,
    },
    /// `--set` text that is not `name=value[,name=value]`.
    #[error("'{0}' is not name=value; write for example w=16,kernel=7")]
    Assignment(String),
    /// `--set` text that sets a parameter twice.
    #[error("'{text}' sets {name} twice; set it once")]
    AssignedTwice { text: String, name: String },
    /// A budget that cannot be parsed.
    #[error(
        "budget '{0}' is not understood; write rows per head (512), a share of the prompt (25%) or bytes for the whole cache (512MiB)"
    )]
    BudgetText(String),
    /// A budget of 0 rows.
    #[error("a budget of {0} keeps nothing; give more, for example 25%")]
    BudgetZero(String),
    /// A share above 100 %.
    #[error("a budget of {0} is more than the whole prompt; a share is at most 100%")]
    BudgetShare(String),
    /// A budget of fewer rows than the method always keeps.
    #[error(
        "{} needs a budget of at least {needed} rows per head ({why}), but the budget is {rows} of the prompt's {tokens} tokens; raise the budget to {needed} or set less",
        title(method)
    )]
    BudgetTooSmall {
        method: &'static str,
        rows: usize,
        needed: usize,
        why: String,
        tokens: usize,
    },
    /// Two settings that exclude each other.
    #[error("{}: {first} does not go with {second}; {why}", title(method))]
    ConflictingSettings {
        method: &'static str,
        first: String,
        second: String,
        why: &'static str,
    },
    /// A budget below what a method can reach by dropping tokens between layers.
    #[error(
        "{} with {setting} keeps at least {least} rows per head on average of this prompt of {tokens} tokens, but the budget is {rows}; raise the budget to {least}, or set {instead}",
        title(method)
    )]
    BudgetUnreachable {
        method: &'static str,
        setting: String,
        rows: usize,
        /// The fewest rows that the method can reach, mean over the layers.
        least: usize,
        tokens: usize,
        instead: &'static str,
    },
    /// A text longer than the context length, for a method that needs the whole prompt before it evicts.
    #[error(
        "{} needs the whole prompt before it evicts, so it does not support streaming mode; these methods do: {able}",
        title(method)
    )]
    NoStreaming {
        method: &'static str,
        /// The methods that support streaming mode, comma separated.
        able: String,
    },
    /// A cap on the cache during decode that is below the rows kept of the prompt.
    #[error(
        "{}: decode_cap={cap} is less than the {rows} rows per head that are kept of the prompt; set decode_cap to {rows} or more, or lower the budget",
        title(method)
    )]
    CapTooSmall {
        method: &'static str,
        cap: usize,
        rows: usize,
    },
}

impl PolicyError {
    /// The error for `method` in streaming mode, if it does not evict token by token.
    pub fn no_streaming(method: &'static str) -> Self {
        Self::NoStreaming {
            method,
            able: crate::STREAMING.join(", "),
        }
    }

    /// Refuses `decode=off` in streaming mode.
    pub(crate) fn if_decode_is_off(method: &'static str, decode: bool) -> Result<(), Self> {
        if decode {
            return Ok(());
        }
        Err(Self::ConflictingSettings {
            method,
            first: "decode=off".to_owned(),
            second: "streaming mode".to_owned(),
            why: "a text beyond the context length is read by evicting token by token; leave decode on",
        })
    }

    /// The parameter that the error is about, if any.
    pub fn parameter(&self) -> Option<&str> {
        match self {
            Self::UnknownParameter { name, .. } => Some(name),
            Self::Value { name, .. } => Some(name),
            Self::CapTooSmall { .. } => Some("decode_cap"),
            _ => None,
        }
    }
}

/// The title of a method, as in its paper.
fn title(name: &str) -> &str {
    crate::find(name).map_or(name, |info| info.title)
}
