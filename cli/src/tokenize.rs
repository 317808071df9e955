//! `kept tokenize`: the token ids of a text, encoded like the document of a question.

use anyhow::Context;
use kept_engine::EngineError;
use kept_engine::models::Tokenizer;
use kept_engine::models::gguf::Gguf;
use serde::Serialize;

use crate::arguments::TokenizeArguments;
use crate::model::model_path;
use crate::output;

#[derive(Serialize)]
struct TokenizeJson<'a> {
    ids: &'a [u32],
    spans: Vec<[u32; 2]>,
}

pub fn run(arguments: &TokenizeArguments) -> anyhow::Result<()> {
    // Only the vocabulary is read, so that files without weights can be compared with other tokenizers too.
    let path = model_path(&arguments.model)?;
    let open = |error| EngineError::Open {
        path: path.clone(),
        error,
    };
    let gguf = Gguf::open(&path).map_err(open)?;
    let tokenizer = Tokenizer::of_file(&gguf).map_err(open)?;
    let shown = arguments.file.display();
    let bytes = output::read_file(&arguments.file)?;
    let text = String::from_utf8(bytes)
        .ok()
        .with_context(|| format!("'{shown}' is not UTF-8; convert it, for example with iconv"))?;
    let encoded = tokenizer.encode(&text);
    if arguments.json {
        return output::print_json(&TokenizeJson {
            ids: &encoded.ids,
            spans: encoded.spans.iter().map(|s| [s.start, s.end]).collect(),
        });
    }
    let ids: Vec<String> = encoded.ids.iter().map(u32::to_string).collect();
    output::print_text(&(ids.join(",") + "\n"))
}
