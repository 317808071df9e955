//! The engine inside another program: opens a model, asks a question about a document, prints the answer and the size
//! of the cache.
//!
//! `cargo run --release -p kept-engine --example ask -- MODEL.gguf DOCUMENT "QUESTION"`

use std::error::Error;
use std::path::Path;

use kept_engine::documents::Document;
use kept_engine::kernels::Stop;
use kept_engine::{Answer, Ask, Engine, Event, MethodSpec};

/// Answers a question and prints the text while it is written.
pub fn ask(model: &Path, document: &Path, question: &str) -> Result<Answer, Box<dyn Error>> {
    let engine = Engine::open(model)?;
    let document = Document::open(document)?;
    let method = "snapkv[w=16]".parse::<MethodSpec>()?;
    let ask = Ask {
        budget: Some("25%".parse()?),
        max_tokens: 64,
        ..Ask::new(&document, question, &method)
    };
    let mut print = |event: Event<'_>| {
        if let Event::Token { text } = event {
            print!("{text}");
        }
    };
    Ok(engine.ask(&ask, &mut print, &Stop::new())?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, document, question] = arguments.as_slice() else {
        return Err("usage: ask MODEL.gguf DOCUMENT QUESTION".into());
    };
    let answer = ask(Path::new(model), Path::new(document), question)?;
    println!(
        "\n{} of {} bytes of cache, {:.1} tokens/s",
        answer.report.kv_bytes,
        answer.report.kv_bytes_full,
        answer.report.decode_tokens_per_second()
    );
    Ok(())
}
