//! Conversion between the engine's types and those of the protocol.

use std::ops::Range;
use std::path::Path;

use kept_engine::documents::Document;
use kept_engine::{Engine, Fit, MethodSpec, available_memory};
use kept_worker::protocol::{Inspection, ModelFacts};

use crate::work::ModelName;

/// The method for estimates of the number of readable pages: a common one, at a common cost.
const USUAL_METHOD: &str = "snapkv";

/// What a model can read with the memory that is free now.
pub fn inspection(engine: &Engine) -> Inspection {
    let model = engine.model();
    let config = model.config();
    let fit = available_memory().map(|free| engine.fit(free, &MethodSpec::plain(USUAL_METHOD)));
    Inspection {
        layers: config.layers,
        sliding_layers: config.windows().count(),
        recurrent_layers: config.recurrent_layers(),
        window: config.windows().next(),
        context: config.context,
        weights_bytes: model.weights_bytes(),
        kv_bytes_per_thousand: engine.bytes_per_row() * 1000,
        window_bytes: engine.window_bytes(config.context),
        can_think: can_think(engine),
        free_bytes: fit.as_ref().map(|fit| fit.free_bytes),
        missing_bytes: fit.as_ref().map_or(0, Fit::missing_bytes),
        lines: fit.map_or_else(Vec::new, |fit| fit.lines),
    }
}

/// False for an invalid chat template: opening the model reports it.
fn can_think(engine: &Engine) -> bool {
    let template = engine.model().chat_template();
    template.is_ok_and(|template| template.can_think())
}

/// Facts of an open model. `name` is the request, `path` the file; `why_processor` as in [`ModelFacts`].
pub fn model(
    engine: &Engine,
    name: &ModelName,
    path: &Path,
    why_processor: Option<String>,
) -> ModelFacts {
    let model = engine.model();
    let config = model.config();
    let tensors = model.gguf().tensors();
    let numbers = |shape: &[usize]| shape.iter().map(|&n| n as u64).product::<u64>();
    ModelFacts {
        name: model.name().to_owned(),
        file: path
            .file_name()
            .map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
        quantisation: model.gguf().quantisation().unwrap_or_default(),
        layers: config.layers,
        kv_heads: config.kv_heads,
        context: config.context,
        parameters: tensors.map(|tensor| numbers(&tensor.shape)).sum(),
        weights_bytes: model.weights_bytes(),
        stretch: name.stretch.clone(),
        can_think: can_think(engine),
        computes_on: engine.computes_on().to_owned(),
        why_processor,
    }
}

/// Checks that a document that the app stored fits its text.
///
/// # Errors
/// Pages that do not tile the text, or parts outside it, in one sentence.
pub fn check_fits(document: &Document, text: &str) -> Result<(), String> {
    let mut end = 0;
    for page in document.pages.iter().filter(|_| document.parts.is_empty()) {
        let Range { start, end: stop } = page.range;
        if start != end || stop < start || !text.is_char_boundary(stop) {
            return Err(format!(
                "page {} of {} does not lie in its text; open the file again",
                page.number, document.name
            ));
        }
        end = stop;
    }
    if !document.pages.is_empty() && document.parts.is_empty() && end != text.len() {
        return Err(format!(
            "the pages of {} do not cover its text; open the file again",
            document.name
        ));
    }
    let mut before = 0;
    for part in &document.parts {
        let Range { start, end } = part.range;
        let own = text.get(start..end).filter(|_| start >= before);
        let Some(own) = own else {
            return Err(format!(
                "{} does not lie in the text of all documents; open the files again",
                part.document.name
            ));
        };
        check_fits(&part.document, own)?;
        before = end;
    }
    Ok(())
}
