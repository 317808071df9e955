//! `kept models inspect`: what is in a GGUF file, and what a long document would take.

use std::collections::BTreeMap;

use kept_engine::models::{RopeConfig, RopeScaling};
use kept_engine::{Engine, Fit, Method};
use serde::Serialize;

use crate::arguments::InspectArguments;
use crate::fit;
use crate::model::model_path;
use crate::output::{self, bytes, count};

#[derive(Serialize)]
struct InspectJson {
    file: String,
    name: String,
    architecture: String,
    layers: usize,
    width: usize,
    ffn: usize,
    q_heads: usize,
    kv_heads: usize,
    head_dim: usize,
    vocabulary: usize,
    context: usize,
    rope: String,
    tied_output: bool,
    tensors: BTreeMap<String, usize>,
    weights_bytes: u64,
    kv_bytes_per_token: u64,
    tokenizer: String,
    chat_template: bool,
    /// What can be read with the memory that is free now, where the system says how much that is.
    fit: Option<Fit>,
}

pub fn run(arguments: &InspectArguments) -> anyhow::Result<()> {
    let memory = arguments.memory()?;
    let path = model_path(&arguments.model)?;
    let engine = Engine::open(&path)?;
    let model = engine.model();
    let config = model.config();
    let text = |key: &str| -> String {
        let value = model.gguf().text(key).ok().flatten();
        value.unwrap_or("unknown").to_owned()
    };
    let usual = Method {
        name: "snapkv".to_owned(),
        parameters: Vec::new(),
    };
    let mut tensors = BTreeMap::new();
    for tensor in model.gguf().tensors() {
        *tensors.entry(tensor.kind.name()).or_insert(0) += 1;
    }
    let report = InspectJson {
        file: path.display().to_string(),
        name: model.name().to_owned(),
        architecture: text("general.architecture"),
        layers: config.layers,
        width: config.width,
        ffn: config.ffn,
        q_heads: config.q_heads,
        kv_heads: config.kv_heads,
        head_dim: config.head_dim,
        vocabulary: config.vocab,
        context: config.context,
        rope: rope(&config.rope),
        tied_output: config.tied_output,
        tensors,
        weights_bytes: model.weights_bytes(),
        kv_bytes_per_token: engine.bytes_per_row(),
        tokenizer: match model.tokenizer() {
            Ok(_) => format!(
                "{} with pre-tokenizer {}",
                text("tokenizer.ggml.model"),
                text("tokenizer.ggml.pre")
            ),
            Err(error) => error.to_string(),
        },
        chat_template: model.gguf().get("tokenizer.chat_template").is_some(),
        fit: memory.map(|bytes| engine.fit(bytes, &usual)),
    };
    if arguments.json {
        return output::print_json(&report);
    }
    let tensors: Vec<String> = report
        .tensors
        .iter()
        .map(|(kind, count)| format!("{count} {kind}"))
        .collect();
    let context_bytes = report.kv_bytes_per_token * report.context as u64;
    output::print_text(&format!(
        "{}\n\
         file        {}\n\
         model       {}, {} layers, width {}, feed-forward {}\n\
         heads       {} query, {} key/value, {} wide\n\
         context     {} tokens; rope {}\n\
         vocabulary  {} tokens; {}; chat template: {}\n\
         weights     {} in {} tensors{}\n\
         cache       {} a token in f32, {} for the whole context\n{}",
        report.name,
        report.file,
        report.architecture,
        report.layers,
        count(report.width),
        count(report.ffn),
        report.q_heads,
        report.kv_heads,
        report.head_dim,
        count(report.context),
        report.rope,
        count(report.vocabulary),
        report.tokenizer,
        if report.chat_template { "yes" } else { "none" },
        bytes(report.weights_bytes),
        tensors.join(", "),
        if report.tied_output {
            ", output tied to the embedding"
        } else {
            ""
        },
        bytes(report.kv_bytes_per_token),
        bytes(context_bytes),
        report.fit.as_ref().map(fit::table).unwrap_or_default(),
    ))
}

/// `base 500000, 64 of a head rotated, linear by 4`.
fn rope(rope: &RopeConfig) -> String {
    let scaling = match &rope.scaling {
        RopeScaling::None => String::new(),
        RopeScaling::Linear { factor } => format!(", stretched linearly by {factor}"),
        RopeScaling::Factors(_) => ", stretched by the file's factors".to_owned(),
    };
    format!(
        "base {}, {} numbers of a head rotated{scaling}",
        rope.base, rope.dims
    )
}
