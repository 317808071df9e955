//! Sentences about models on this computer and on the hub.

use kept_hub::text;

/// A model that cannot be opened, without a known reason.
pub const NOT_SUPPORTED: &str = "Kept cannot open this file.";

/// A model or a partial download was removed.
pub fn removed(name: &str, bytes: u64) -> String {
    match bytes {
        0 => format!(
            "{name} is removed, but another name still uses the same file, so no disk space is freed."
        ),
        bytes => format!("{name} is removed: {} are free again.", text::bytes(bytes)),
    }
}

/// The model in use cannot be removed.
pub fn model_in_use(name: &str) -> String {
    format!("{name} is the model in use: choose another model, then remove it.")
}
