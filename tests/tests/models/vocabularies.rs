//! Published vocabularies and those of real models: the same tokens of difficult strings and of documents as Hugging
//! Face's tokenizers or llama.cpp. Their results are in `golden/real_tokens.json.gz`; `make vocabularies` and `make
//! models` download the vocabularies.
//!
//! Without a vocabulary its test prints a note and passes; in CI it fails.

use std::collections::HashMap;
use std::path::Path;

use kept_engine::documents::Document;
use kept_engine::kernels::Stop;
use kept_engine::models::Tokenizer;
use kept_engine::models::gguf::Gguf;
use kept_engine::{Ask, Engine, MethodSpec};
use kept_models::testing::{GgufWriter, MetaValue};
use kept_tests::fetched::{self, fingerprint};
use kept_tests::golden::{self, ids};
use serde::Deserialize;
use serde_json::Value;

/// The parts of a tokenizer.json that llama.cpp's converter reads.
#[derive(Deserialize)]
struct Published {
    added_tokens: Vec<Added>,
    normalizer: Value,
    model: Bpe,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
    special: bool,
}

#[derive(Deserialize)]
struct Bpe {
    vocab: HashMap<String, u32>,
    merges: Vec<Merge>,
    unk_token: Option<String>,
    byte_fallback: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Pair([String; 2]),
    Line(String),
}

impl Merge {
    fn line(&self) -> String {
        match self {
            Merge::Pair([left, right]) => format!("{left} {right}"),
            Merge::Line(line) => line.clone(),
        }
    }
}

/// Tokens that the converter treats as control tokens regardless of the file; `looks_special` of
/// `golden/real_tokens.py`.
fn looks_special(token: &str) -> bool {
    let ends = [("<|", "|>"), ("<｜", "｜>"), ("<unused", ">")];
    let mut ends = ends.iter();
    ["<pad>", "<mask>"].contains(&token)
        || ends.any(|(start, end)| token.starts_with(start) && token.ends_with(end))
}

/// The vocabulary as llama.cpp's converter writes it into a GGUF file; `pre` is its name of the pre-tokenizer, or
/// `gemma4` for that kind of vocabulary.
///
/// Published files have no scores: a piece's score is the rank of the first merge that produces it. User-defined pieces
/// and pieces of one character have no score and need none.
fn converted(published: &Published, pre: &str) -> GgufWriter {
    let Published {
        added_tokens,
        normalizer,
        model,
    } = published;
    let highest = (model.vocab.values()).chain(added_tokens.iter().map(|token| &token.id));
    let count = *highest.max().expect("tokens") as usize + 1;
    let mut texts: Vec<String> = (0..count).map(|id| format!("[PAD{id}]")).collect();
    let mut types = vec![5; count];
    let mut scores = vec![f32::MIN; count];
    for (text, &id) in &model.vocab {
        let byte = model.byte_fallback && text.len() == 6 && text.starts_with("<0x");
        types[id as usize] = if byte { 6 } else { 1 };
        texts[id as usize].clone_from(text);
    }
    for token in added_tokens {
        let control = token.special || looks_special(&token.content);
        types[token.id as usize] = if control { 3 } else { 4 };
        texts[token.id as usize] = if control {
            token.content.clone()
        } else {
            token.content.replace('▁', " ")
        };
    }
    let merges: Vec<String> = model.merges.iter().map(Merge::line).collect();
    let mut writer = GgufWriter::default();
    let text = |text: &str| MetaValue::Text(text.to_owned());
    let gemma4 = pre == "gemma4";
    let kind = match model.byte_fallback {
        true if gemma4 => "gemma4",
        true => "llama",
        false => "gpt2",
    };
    writer.set("tokenizer.ggml.model", text(kind));
    writer.set("tokenizer.ggml.pre", text(pre));
    writer.set("tokenizer.ggml.tokens", MetaValue::Texts(texts));
    writer.set("tokenizer.ggml.token_type", MetaValue::Wholes(types));
    if let Some(unknown) = &model.unk_token {
        let id = MetaValue::Whole(model.vocab[unknown]);
        writer.set("tokenizer.ggml.unknown_token_id", id);
    }
    if gemma4 {
        writer.set("tokenizer.ggml.merges", MetaValue::Texts(merges));
    } else if model.byte_fallback {
        for (order, merge) in merges.iter().enumerate().rev() {
            let made = model.vocab[&merge.replacen(' ', "", 1)];
            scores[made as usize] = -(order as f32);
        }
        writer.set("tokenizer.ggml.scores", MetaValue::Numbers(scores));
        let prepends = normalizer.to_string().contains("Prepend");
        writer.set("tokenizer.ggml.add_space_prefix", MetaValue::Flag(prepends));
    } else {
        writer.set("tokenizer.ggml.merges", MetaValue::Texts(merges));
    }
    writer
}

fn tokenizer(path: &Path) -> Tokenizer {
    let gguf = Gguf::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    Tokenizer::of_file(&gguf).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn of_published(path: &Path, pre: &str) -> Tokenizer {
    let json = std::fs::read(path).expect("the vocabulary");
    let published = serde_json::from_slice(&json).expect("a tokenizer.json");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("vocabulary.gguf");
    let written = converted(&published, pre).write(&file);
    written.expect("the vocabulary is written");
    tokenizer(&file)
}

fn assert_tokens(name: &str, tokenizer: &Tokenizer) {
    let all = golden::packed("real_tokens.json.gz");
    let golden = &all[name];
    let texts = all["texts"].as_array().expect("texts");
    let said = golden["ids"].as_array().expect("ids");
    assert!(texts.len() == said.len() && texts.len() >= 1000);
    let mut wrong = Vec::new();
    for (text, said) in texts.iter().zip(said) {
        let (text, said) = (text.as_str().expect("a text"), ids(said));
        let found = tokenizer.encode(text);
        let ends: Vec<u32> = found.spans.iter().map(|span| span.end).collect();
        let starts: Vec<u32> = found.spans.iter().map(|span| span.start).collect();
        if let Some((last, before)) = ends.split_last() {
            assert_eq!((starts[0], *last as usize), (0, text.len()), "{text:?}");
            assert_eq!(starts[1..], *before, "{text:?}");
        }
        if found.ids != said {
            let words = |ids: &[u32]| -> Vec<String> {
                let words = ids.iter().map(|&id| tokenizer.token_text(id).to_owned());
                words.collect()
            };
            let (ours, theirs) = (words(&found.ids), words(&said));
            wrong.push(format!("{text:?}: {ours:?}, not {theirs:?}"));
        }
    }
    let count = wrong.len();
    wrong.truncate(5);
    assert!(wrong.is_empty(), "{name}: {count} texts, {wrong:#?}");
    for (document, said) in golden["documents"].as_object().expect("documents") {
        let path = golden::repository()
            .join("tests/qa/documents")
            .join(document);
        let text = std::fs::read_to_string(&path).expect(document);
        let found = tokenizer.encode(&text).ids;
        assert_eq!(said[0], found.len(), "{name}: tokens of {document}");
        assert_eq!(said[1], fingerprint(&found), "{name}: tokens of {document}");
    }
}

fn assert_published(name: &str, pre: &str) {
    if let Some(path) = fetched::file(&format!("tokenizers/{name}.json"), "vocabularies") {
        assert_tokens(name, &of_published(&path, pre));
    }
}

#[test]
fn llama_2_tokens_equal_hugging_faces() {
    assert_published("llama2", "default");
}

#[test]
fn llama_3_1_tokens_equal_hugging_faces() {
    assert_published("llama3_1", "llama-bpe");
}

#[test]
fn qwen_3_tokens_equal_hugging_faces() {
    assert_published("qwen3", "qwen2");
}

#[test]
fn gemma_3_tokens_equal_hugging_faces() {
    assert_published("gemma3", "default");
}

/// Gemma 4's files have merges in place of scores; the vocabulary is of the same kind.
#[test]
fn gemma_3_tokens_in_gemma_4s_format_equal_hugging_faces() {
    assert_published("gemma3", "gemma4");
}

#[test]
fn gpt_oss_tokens_equal_hugging_faces() {
    assert_published("gptoss", "gpt-4o");
}

#[test]
fn gpt_4o_tokens_equal_hugging_faces() {
    assert_published("gpt4o", "gpt-4o");
}

#[test]
fn deepseek_v3_tokens_equal_hugging_faces() {
    assert_published("deepseek_v3", "deepseek-v3");
}

const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const GEMMA: &str = "gemma-3-270m-q4_k_m.gguf";

#[test]
fn smollm2_tokens_equal_llama_cpps() {
    if let Some(path) = fetched::file(SMOLLM2, "models") {
        assert_tokens("smollm2", &tokenizer(&path));
    }
}

#[test]
fn gemma_3_270m_tokens_equal_gemma_3s() {
    if let Some(path) = fetched::file(GEMMA, "models") {
        assert_tokens("gemma-3-270m", &tokenizer(&path));
    }
}

/// ASCII characters without a token in SmolLM2.
const LACKING: [u8; 6] = [0x04, 0x06, 0x13, 0x14, 0x16, 0x1d];

#[test]
fn smollm2_drops_bytes_without_a_token() {
    let Some(path) = fetched::file(SMOLLM2, "models") else {
        return;
    };
    let tokenizer = tokenizer(&path);
    let lacks = |byte: &u8| LACKING.contains(byte) || [0xf1, 0xf2].contains(byte);
    let lacking: Vec<u8> = (0..0x80u8)
        .filter(|&byte| tokenizer.dropped(&char::from(byte).to_string()) > 0)
        .collect();
    assert_eq!(lacking, LACKING);
    let letter =
        std::fs::read_to_string(golden::repository().join("tests/qa/documents/letter.txt"));
    let plain = letter.expect("the letter");
    assert_eq!(tokenizer.dropped(&plain), 0);
    // Appended to every word in turn.
    let marks = ["\u{4}", "\u{1d}\u{6}", "\u{40000}", ""];
    let text: String = (plain.split_inclusive(' ').zip(marks.iter().cycle()))
        .map(|(word, mark)| format!("{word}{mark}"))
        .collect();
    let tokens = tokenizer.encode(&text);
    let mut end = 0;
    for (&id, span) in tokens.ids.iter().zip(&tokens.spans) {
        assert_eq!(span.start, end);
        end = span.end;
        let own = &text.as_bytes()[span.start as usize..end as usize];
        let kept: Vec<u8> = own.iter().copied().filter(|byte| !lacks(byte)).collect();
        assert_eq!(kept, tokenizer.decode_bytes(id), "{own:?}");
    }
    assert_eq!(end as usize, text.len());
    let dropped = text.bytes().filter(|byte| lacks(byte)).count();
    assert!(dropped > 100 && tokenizer.dropped(&text) == dropped);
}

#[test]
fn a_note_reports_dropped_bytes() {
    let Some(path) = fetched::file(SMOLLM2, "models") else {
        return;
    };
    let engine = Engine::open(&path).expect("the model opens");
    let notes = |text: &str| -> Vec<String> {
        let document = Document::from_bytes("log.txt", text.as_bytes().to_vec());
        let document = document.expect("a document");
        let method = MethodSpec::plain("full");
        let ask = Ask {
            max_tokens: 1,
            ..Ask::new(&document, "What opened?", &method)
        };
        let answer = engine.ask(&ask, &mut |_| (), &Stop::new());
        let notes = answer.expect("an answer").notes;
        notes
            .into_iter()
            .map(|note| note.to_string())
            .filter(|note| note.contains("no token"))
            .collect()
    };
    let plain = "The door opened. Die Tür öffnete sich.\n".repeat(20) + "\u{5}\n";
    assert_eq!(notes(&plain), Vec::<String>::new());
    assert_eq!(
        notes(&format!("{plain}The door\u{4} opened.\u{4}\u{1d}\n")),
        [
            "3 byte(s) of log.txt have no token in this model's vocabulary; the model does not see them"
        ]
    );
}
