//! What can be wrong with a method, its parameters or its budget. Every message names the value and the way out.

/// Why a method cannot run as asked.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PolicyError {
    /// No method has this name.
    #[error("unknown method '{name}'; the methods are {known}")]
    UnknownMethod {
        /// What was asked for.
        name: String,
        /// All names, comma separated.
        known: String,
    },
    /// The method has no parameter of this name.
    #[error("{method} has no parameter '{name}'; it has {known}")]
    UnknownParameter {
        /// The method.
        method: &'static str,
        /// What was set.
        name: String,
        /// The method's parameters, comma separated, or "none".
        known: String,
    },
    /// A parameter's value is not in its range.
    #[error("{method}: {name}={value} is not allowed; {name} takes {range}")]
    Value {
        /// The method.
        method: &'static str,
        /// The parameter.
        name: &'static str,
        /// The value as given.
        value: String,
        /// What it takes, in words.
        range: &'static str,
    },
    /// `--set` text that is not `name=value[,name=value]`.
    #[error("'{0}' is not name=value; write for example w=16,kernel=7")]
    Assignment(String),
    /// A budget that cannot be read.
    #[error(
        "budget '{0}' is not understood; write rows per head (512), a share of the prompt (25%) or bytes for the whole cache (512MiB)"
    )]
    BudgetText(String),
    /// A budget of nothing.
    #[error("a budget of {0} keeps nothing; give at least 1 row, for example --budget 25%")]
    BudgetZero(String),
    /// A share above one.
    #[error("a budget of {0} is more than the whole prompt; a share is at most 100%")]
    BudgetShare(String),
    /// Fewer rows than the method must keep by its own rules.
    #[error(
        "{method} needs a budget of at least {needed} rows per head ({why}), but the budget is {rows} of the prompt's {tokens} tokens; raise --budget to {needed} or set less"
    )]
    BudgetTooSmall {
        /// The method.
        method: &'static str,
        /// Rows per kv head asked for.
        rows: usize,
        /// Rows per kv head the method needs.
        needed: usize,
        /// What the needed rows are made of.
        why: String,
        /// Prompt length, in tokens.
        tokens: usize,
    },
    /// Two settings that exclude each other.
    #[error("{method}: {first} does not go with {second}; {why}")]
    Together {
        /// The method.
        method: &'static str,
        /// One setting.
        first: String,
        /// The other.
        second: String,
        /// The reason, and the way out.
        why: &'static str,
    },
    /// A budget below what a method can reach by dropping tokens on their way through the layers.
    #[error(
        "{method} with {setting} keeps at least {least} rows per head on average of this prompt of {tokens} tokens, but the budget is {rows}; raise --budget to {least}, or set {instead}"
    )]
    OutOfReach {
        /// The method.
        method: &'static str,
        /// The setting that makes it so.
        setting: String,
        /// Rows per kv head asked for.
        rows: usize,
        /// The fewest that it reaches, mean over the layers.
        least: usize,
        /// Prompt length, in tokens.
        tokens: usize,
        /// What to set instead.
        instead: &'static str,
    },
    /// A text longer than the model's context, for a method that must see all of it before it cuts.
    #[error(
        "{method} looks at the whole prompt before it cuts, so it cannot read in streaming mode; the methods that can are {able}"
    )]
    NoStreaming {
        /// The method.
        method: &'static str,
        /// The methods that can, comma separated.
        able: String,
    },
    /// A cap on the answer's cache below what is kept of the prompt.
    #[error(
        "{method}: decode_cap={cap} is less than the {rows} rows per head that are kept of the prompt; set decode_cap to {rows} or more, or lower --budget"
    )]
    CapTooSmall {
        /// The method.
        method: &'static str,
        /// The cap asked for.
        cap: usize,
        /// Rows per kv head that are kept of the prompt.
        rows: usize,
    },
}
