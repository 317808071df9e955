//! The retention map: the words of a document that most layers and heads keep for a question.
//!
//! `cargo run --release -p kept-engine --example map -- MODEL.gguf DOCUMENT "QUESTION"`

use std::error::Error;
use std::path::Path;

use kept_engine::documents::Document;
use kept_engine::kernels::Stop;
use kept_engine::{Ask, Engine, MethodSpec};

/// Each token of the document and the share of layers and heads that keep it, 0 to 1.
pub fn map(
    model: &Path,
    document: &Path,
    question: &str,
) -> Result<Vec<(String, f32)>, Box<dyn Error>> {
    let engine = Engine::open(model)?;
    let document = Document::open(document)?;
    let method = MethodSpec::plain("snapkv");
    let ask = Ask {
        budget: Some("10%".parse()?),
        // The map is complete when the document is read.
        max_tokens: 1,
        ..Ask::new(&document, question, &method)
    };
    let answer = engine.ask(&ask, &mut |_| (), &Stop::new())?;
    let tokens = answer.map.shares().into_iter().enumerate();
    let inside =
        tokens.filter_map(|(position, share)| Some((answer.prompt.span(position)?, share)));
    // A token may end inside a character.
    let text = |range| String::from_utf8_lossy(&document.text.as_bytes()[range]).into_owned();
    Ok(inside.map(|(range, share)| (text(range), share)).collect())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, document, question] = arguments.as_slice() else {
        return Err("usage: map MODEL.gguf DOCUMENT QUESTION".into());
    };
    let mut tokens = map(Path::new(model), Path::new(document), question)?;
    tokens.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    for (text, share) in tokens.iter().take(20) {
        println!("{:3.0} % {text:?}", 100.0 * share);
    }
    Ok(())
}
