//! What is in the box, and what the model there is good for: it was trained on planted facts and answers questions on the sample.

use std::fs;
use std::path::Path;

use kept_documents::Document;

use crate::{MINI, model_path};

/// The sample document.
pub const SAMPLE: &str = include_str!("../../assets/sample.txt");

/// Whether the model file is the one in the box, by whatever path.
pub fn is_in_the_box(model: &Path) -> bool {
    let real = |path: &Path| fs::canonicalize(path).ok();
    let mini = model_path(MINI).ok().and_then(|mini| real(&mini));
    mini.is_some() && mini == real(model)
}

/// Whether `document` is more than the model in the box was made for: anything but the sample, whatever its name.
pub fn is_beyond_the_box(document: &Document) -> bool {
    document.text != SAMPLE
}
