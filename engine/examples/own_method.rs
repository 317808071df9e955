//! A compression method of one's own, between prefill and decode: keeps the first token of every group of tokens, and
//! the last ones.
//!
//! `cargo run --release -p kept-engine --example own_method -- MODEL.gguf DOCUMENT "QUESTION" ROWS`

use std::error::Error;
use std::path::Path;

use kept_engine::documents::Document;
use kept_engine::kernels::Stop;
use kept_engine::models::RopeTable;
use kept_engine::policies::{
    Method, Observation, PolicyError, Pos, Retention, RowPlan, RowRequest, Select, Selection,
};
use kept_engine::{Decoder, Engine, Prefill, Prompt, Sampler, Sampling};

/// Keeps as many tokens as it may: the last half of the budget, and tokens before it at equal distances.
struct Spread;

impl Method for Spread {
    fn name(&self) -> &'static str {
        "spread"
    }

    fn plan(&self, request: &RowRequest) -> Result<RowPlan, PolicyError> {
        Ok(RowPlan::uniform(request))
    }

    fn start(&self, _plan: &RowPlan) -> Box<dyn Select> {
        Box::new(Self)
    }
}

impl Select for Spread {
    fn select(&mut self, plan: &RowPlan, observation: &Observation<'_>) -> Selection {
        let (tokens, rows) = (plan.prompt.tokens, plan.rows[observation.layer]);
        if rows >= tokens {
            return Retention::Everything.into();
        }
        let before = tokens - rows / 2;
        let spread = (0..rows - rows / 2).map(|i| i * before / (rows - rows / 2));
        let kept = spread.chain(before..tokens).map(|p| Pos(p as u32));
        Retention::Keep(vec![kept.collect(); plan.model.kv_heads]).into()
    }
}

/// The answer with `budget` rows per layer and head.
pub fn answer(
    model: &Path,
    document: &Path,
    question: &str,
    budget: usize,
) -> Result<String, Box<dyn Error>> {
    const MAX_NEW_TOKENS: usize = 64;
    let engine = Engine::open(model)?;
    let model = engine.model();
    let prompt = Prompt::new(model, &Document::open(document)?.text, question)?;
    let rope = RopeTable::new(model.config(), prompt.len() + MAX_NEW_TOKENS);
    let prefill = Prefill::new(model, &prompt.ids, &Spread, budget, MAX_NEW_TOKENS, &rope);
    let read = prefill.run(&mut |_| (), &Stop::new())?;

    let mut decoder = Decoder::new(model, &rope, read.evictor, read.cache)?;
    let mut sampler = Sampler::new(&Sampling::default())?;
    let mut token = sampler.next(decoder.logits_of(&read.hidden)?)?;
    let tokenizer = model.tokenizer()?;
    let mut bytes = Vec::new();
    for _ in 0..MAX_NEW_TOKENS {
        if tokenizer.is_end(token) {
            break;
        }
        bytes.extend(tokenizer.decode_bytes(token));
        token = sampler.next(decoder.step(token, None)?)?;
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, document, question, budget] = arguments.as_slice() else {
        return Err("usage: own_method MODEL.gguf DOCUMENT QUESTION ROWS".into());
    };
    let (model, document) = (Path::new(model), Path::new(document));
    println!("{}", answer(model, document, question, budget.parse()?)?);
    Ok(())
}
