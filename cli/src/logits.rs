//! `kept logits`: the model's raw logits for given tokens, for comparisons with other engines.

use std::collections::HashMap;

use anyhow::{Context, ensure};
use kept_engine::kernels::CacheType;
use kept_engine::policies::PromptShape;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde::Serialize;

use crate::arguments::LogitsArguments;
use crate::output;
use crate::progress::stop_on_ctrl_c;

#[derive(Serialize)]
struct LogitsJson {
    tokens: usize,
    prompt_tokens: usize,
    vocabulary: usize,
    rows_per_layer: Vec<usize>,
}

pub fn run(arguments: &LogitsArguments) -> anyhow::Result<()> {
    let method = arguments.engine.method()?;
    let budget = arguments.engine.budget()?;
    let ids = parse_ids(&arguments.tokens)?;
    let prompt_tokens = arguments.prompt_tokens.unwrap_or(ids.len());
    ensure!(
        (1..=ids.len()).contains(&prompt_tokens),
        "--prompt-tokens {prompt_tokens} is not between 1 and the {} tokens given",
        ids.len()
    );
    let model = arguments.engine.model_path()?;
    output::check_target(&arguments.output, &[model.as_path()])?;
    let engine = arguments.engine.open(&model)?;
    // Comparisons with other engines need the most exact type, unless the user names one: f32 on the CPU. A GPU
    // supports nothing more exact than f16.
    let engine = match engine.named_cache() {
        None if !engine.uses_gpu() => engine.with_cache(CacheType::F32),
        _ => engine,
    };
    let context = engine.model().config().context;
    ensure!(
        ids.len() <= context,
        "{} tokens are more than the model's context of {context}; give fewer",
        ids.len()
    );
    let forced = kept_eval::ForcedLogits::compute(
        &engine,
        &ids,
        &PromptShape::of(prompt_tokens),
        &method,
        budget,
        &mut |_| {},
        &stop_on_ctrl_c(),
    )?;
    let vocabulary = engine.model().config().vocab;
    write(&arguments.output, &forced.logits, vocabulary)?;
    if arguments.json {
        return output::print_json(&LogitsJson {
            tokens: ids.len(),
            prompt_tokens,
            vocabulary,
            rows_per_layer: forced.map.rows_per_layer(),
        });
    }
    output::say(&output::printable(&format!(
        "logits [{}, {vocabulary}] are in {}\n",
        ids.len(),
        arguments.output.display()
    )));
    Ok(())
}

fn parse_ids(text: &str) -> anyhow::Result<Vec<u32>> {
    let ids = text
        .split(',')
        .map(|part| {
            part.trim()
                .parse::<u32>()
                .ok()
                .with_context(|| format!("'{part}' is not a token id; write for example 1,2,3"))
        })
        .collect::<anyhow::Result<Vec<u32>>>()?;
    Ok(ids)
}

fn write(path: &std::path::Path, logits: &[f32], vocabulary: usize) -> anyhow::Result<()> {
    let bytes: Vec<u8> = logits.iter().flat_map(|l| l.to_le_bytes()).collect();
    let shape = vec![logits.len() / vocabulary, vocabulary];
    let view = TensorView::new(Dtype::F32, shape, &bytes)?;
    let file = safetensors::serialize([("logits", view)], None::<HashMap<String, String>>)?;
    output::write_file(path, |out| out.write_all(&file))
}
