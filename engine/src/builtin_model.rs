//! The built-in model and the sample document. The model was trained on planted facts and answers questions about the
//! sample.

use std::fs;
use std::path::Path;

use kept_documents::Document;

use crate::{MINI, model_path};

/// The sample document.
pub const SAMPLE: &str = include_str!("../../assets/sample.txt");

/// Whether the file at `model` is the built-in model, by canonical path.
pub fn is_builtin_model(model: &Path) -> bool {
    let real = |path: &Path| fs::canonicalize(path).ok();
    let mini = model_path(MINI).ok().and_then(|mini| real(&mini));
    mini.is_some() && mini == real(model)
}

/// Whether the built-in model was not trained for `document`: true for anything but the sample's text, whatever the
/// name.
pub fn is_untrained_document(document: &Document) -> bool {
    document.text != SAMPLE
}
