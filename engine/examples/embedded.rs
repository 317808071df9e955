//! The engine inside another program: opens a model, asks a question about a document, prints the answer and the size
//! of the cache.
//!
//! `cargo run --release -p kept-engine --example embedded -- MODEL.gguf DOCUMENT "QUESTION"`

use std::path::Path;

use kept_engine::documents::Document;
use kept_engine::kernels::Stop;
use kept_engine::{Ask, Engine, Event, Limits, MethodSpec, Sampling};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, document, question] = arguments.as_slice() else {
        return Err("usage: embedded MODEL.gguf DOCUMENT QUESTION".into());
    };
    let engine = Engine::open(Path::new(model))?;
    let document = Document::open(Path::new(document))?;
    let ask = Ask {
        turns: &[],
        document: &document,
        question,
        method: &MethodSpec {
            name: "snapkv".into(),
            parameters: Vec::new(),
        },
        budget: Some("25%".parse()?),
        sampling: &Sampling::default(),
        max_tokens: 64,
        thinking: false,
        limits: Limits::default(),
        vault: None,
    };
    let answer = engine.ask(
        &ask,
        &mut |event| {
            if let Event::Token { text } = event {
                print!("{text}");
            }
        },
        &Stop::new(),
    )?;
    println!(
        "\n{} of {} bytes of cache, {:.1} tokens/s",
        answer.kv_bytes,
        answer.kv_bytes_full,
        answer.decode_tokens_per_second()
    );
    Ok(())
}
