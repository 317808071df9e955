//! A conversation about a document: every question sees the earlier ones, and the document is read once, because its
//! keys and values are in a vault.
//!
//! `cargo run --release -p kept-engine --example chat -- MODEL.gguf DOCUMENT FOLDER "QUESTION" "QUESTION"...`

use std::error::Error;
use std::path::Path;

use kept_engine::documents::Document;
use kept_engine::kernels::{PackedRows, Stop};
use kept_engine::vault::{VaultFolder, Vaults};
use kept_engine::{AUTO, Answer, Ask, Engine, MethodSpec, Turn};

/// Bytes that the vaults in the folder may take.
const DISK: u64 = 10 << 30;

/// The answers to `questions`, in order.
pub fn chat(
    model: &Path,
    document: &Path,
    vaults: &Path,
    questions: &[&str],
) -> Result<Vec<Answer>, Box<dyn Error>> {
    let engine = Engine::open(model)?;
    let document = Document::open(document)?;
    let folder = VaultFolder::new(vaults, DISK);
    let mut turns = Vec::new();
    let mut answers = Vec::new();
    for question in questions {
        let method = MethodSpec::plain(AUTO);
        let ask = Ask {
            turns: &turns,
            vault: Some(Vaults::new(&folder, PackedRows::F16)),
            ..Ask::new(&document, question, &method)
        };
        let answer = engine.ask(&ask, &mut |_| (), &Stop::new())?;
        turns.extend(Turn::new(question, &answer.text));
        answers.push(answer);
    }
    Ok(answers)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, document, vaults, questions @ ..] = arguments.as_slice() else {
        return Err("usage: chat MODEL.gguf DOCUMENT FOLDER QUESTION...".into());
    };
    let questions: Vec<&str> = questions.iter().map(String::as_str).collect();
    let [model, document, vaults] = [model, document, vaults].map(Path::new);
    for answer in chat(model, document, vaults, &questions)? {
        println!(
            "{} ({} tokens read, {} from the vault)",
            answer.text, answer.vault.tokens_read, answer.vault.tokens_from_vault
        );
    }
    Ok(())
}
