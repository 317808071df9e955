//! Tokenizers of widely used model families, compared with Hugging Face's on small vocabularies made for this test
//! (`tests/golden/tokenizer_ids.py`, which also runs llama.cpp and `sentencepiece`).

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kept_kernels::{Stop, Stopped};
use kept_models::gguf::Gguf;
use kept_models::testing::{GgufWriter, MetaValue};
use kept_models::{ModelError, TokenizedText, Tokenizer};
use proptest::prelude::*;

const FAMILIES: [&str; 12] = [
    "gpt-2",
    "smollm",
    "llama3",
    "qwen2",
    "tekken",
    "gpt-4o",
    "deepseek-llm",
    "deepseek-coder",
    "deepseek-v3",
    "llama-spm",
    "marked-spm",
    "gemma-spm",
];

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/golden/tokenizers")
        .join(name)
}

fn unpacked(name: &str) -> Vec<u8> {
    let file = std::fs::File::open(golden(name)).expect(name);
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(file)
        .read_to_end(&mut bytes)
        .expect(name);
    bytes
}

fn tokenizer(family: &str) -> Tokenizer {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, unpacked(&format!("{family}.gguf.gz"))).unwrap();
    Tokenizer::of_file(&Gguf::open(&path).unwrap()).unwrap()
}

fn strings() -> Vec<String> {
    serde_json::from_slice(&unpacked("strings.json.gz")).unwrap()
}

/// Asserts that spans tile the text and that each token's bytes are those of its span, unless the tokenizer changes the
/// text before merging: it may compose characters (Qwen), and it replaces a space by a sign that a document may contain
/// literally.
fn assert_faithful(family: &str, tokenizer: &Tokenizer, text: &str, tokens: &TokenizedText) {
    assert_eq!(tokens.ids.len(), tokens.spans.len());
    let mut end = 0;
    for span in &tokens.spans {
        assert!(
            span.start == end && span.start <= span.end,
            "{family} {text:?}"
        );
        end = span.end;
    }
    assert_eq!(end as usize, text.len(), "{family} {text:?}");
    let bytes: Vec<u8> = tokens
        .ids
        .iter()
        .flat_map(|&id| tokenizer.decode_bytes(id).to_vec())
        .collect();
    let decoded = String::from_utf8(bytes).expect("whole characters");
    match family {
        "qwen2" => {
            use unicode_normalization_alignments::UnicodeNormalization;
            let composed: String = text.nfc().map(|(c, _)| c).collect();
            assert_eq!(decoded, composed, "{family}");
        }
        _ if family.ends_with("spm") => {
            let written = text.replace('▁', " ");
            let space = !text.is_empty() && family != "gemma-spm";
            let decoded = decoded
                .strip_prefix(' ')
                .filter(|_| space)
                .unwrap_or(&decoded);
            assert_eq!(decoded, written, "{family}");
        }
        _ => assert_eq!(decoded, text, "{family}"),
    }
    assert!(tokenizer.fewest_tokens(text) <= tokens.ids.len());
    for (&id, span) in tokens.ids.iter().zip(&tokens.spans) {
        assert!(!tokenizer.is_control(id), "{family} {text:?}");
        let own = &text.as_bytes()[span.start as usize..span.end as usize];
        let changes = family == "qwen2" || own.contains(&0xe2) || span.start == 0;
        assert!(
            changes || own == tokenizer.decode_bytes(id),
            "{family} {text:?}"
        );
    }
}

#[test]
fn hard_strings_give_the_published_tokenizers_ids() {
    let strings = strings();
    assert!(strings.len() >= 2400);
    for family in FAMILIES {
        let tokenizer = tokenizer(family);
        let expected: Vec<Vec<u32>> =
            serde_json::from_slice(&unpacked(&format!("{family}.json.gz"))).unwrap();
        assert_eq!(expected.len(), strings.len());
        let mut wrong = Vec::new();
        for (text, ids) in strings.iter().zip(&expected) {
            let found = tokenizer.encode(text);
            assert_faithful(family, &tokenizer, text, &found);
            if found.ids != *ids {
                let words = |ids: &[u32]| -> Vec<String> {
                    ids.iter()
                        .map(|&id| tokenizer.token_text(id).to_owned())
                        .collect()
                };
                wrong.push(format!(
                    "{text:?}: {:?}, not {:?}",
                    words(&found.ids),
                    words(ids)
                ));
            }
        }
        wrong.truncate(5);
        assert!(wrong.is_empty(), "{family}: {wrong:#?}");
    }
}

/// A document of many megabytes takes seconds, so tokenization must be interruptible.
#[test]
fn tokenization_can_be_stopped() {
    let words: String = (0..400_000u32)
        .map(|i| format!("{} {i:x}, ", i % 977))
        .collect();
    for family in FAMILIES {
        let (tokenizer, stop) = (tokenizer(family), Stop::new());
        let outcome = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(5));
                stop.request();
            });
            tokenizer.encode_document(&words, false, &stop)
        });
        assert_eq!(outcome.err(), Some(Stopped), "{family}");
        let again = tokenizer.encode_document(&words, false, &stop);
        assert_eq!(
            again.err(),
            Some(Stopped),
            "{family}: nothing is remembered"
        );
        let text = &words[..20_000];
        let whole = tokenizer.encode_document(text, false, &Stop::new());
        let whole = whole.expect("never stopped");
        assert_eq!(*whole, tokenizer.encode_after(text, false), "{family}");
    }
}

#[test]
fn a_long_document_has_the_tokens_of_its_lines() {
    // In families where a line break is always a token by itself, lines are independent.
    let strings = strings();
    let lines: String = strings
        .iter()
        .map(|text| text.replace(char::is_whitespace, "") + "\n\u{1}")
        .collect();
    for family in FAMILIES {
        let tokenizer = tokenizer(family);
        let whole = tokenizer.encode(&lines.repeat(4));
        assert_faithful(family, &tokenizer, &lines.repeat(4), &whole);
        let once = tokenizer.encode_after(&lines, false).ids;
        let space = usize::from(whole.spans[0].is_empty());
        let tail = whole.ids.len() - once.len();
        assert_eq!(whole.ids[tail..], once, "{family}");
        assert!(4 * once.len() + space >= whole.ids.len(), "{family}");
    }
}

#[test]
fn long_runs_of_one_character_are_encoded() {
    for family in ["llama-spm", "gemma-spm", "qwen2", "tekken", "deepseek-v3"] {
        let tokenizer = tokenizer(family);
        for text in ["a", " ", "ab", "日", "e\u{301}", "\n", "🙂"] {
            let text = text.repeat(300_000 / text.len());
            let found = tokenizer.encode(&text);
            assert_faithful(family, &tokenizer, &text, &found);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_text_round_trips(
        text in "(\\PC|[ \\n\\t]|[a-z]{1,6}|  +|e\u{301}|▁|\u{0}|<\\|im_end\\|>|\\[INST\\]|</s>){0,40}"
    ) {
        thread_local! {
            static ALL: Vec<(&'static str, Tokenizer)> =
                FAMILIES.iter().map(|family| (*family, tokenizer(family))).collect();
        }
        ALL.with(|all| {
            for (family, tokenizer) in all {
                assert_faithful(family, tokenizer, &text, &tokenizer.encode(&text));
                assert_faithful_after(family, tokenizer, &text);
            }
        });
    }
}

/// A text that follows other text gets no leading space, and its spans still tile it.
fn assert_faithful_after(family: &str, tokenizer: &Tokenizer, text: &str) {
    for space in [false, true] {
        let tokens = tokenizer.encode_after(text, space);
        let mut ends = tokens.spans.iter().map(|span| span.end as usize);
        assert_eq!(
            ends.next_back().unwrap_or(0),
            text.len(),
            "{family} {text:?}"
        );
    }
}

#[test]
fn end_tokens_are_found_by_name_and_role() {
    let ends = |family: &str| -> Vec<String> {
        let tokenizer = tokenizer(family);
        let ids = (0..tokenizer.vocab() as u32).filter(|&id| tokenizer.is_end(id));
        ids.map(|id| tokenizer.token_text(id).to_owned()).collect()
    };
    assert_eq!(ends("llama-spm"), ["</s>"]);
    assert_eq!(ends("marked-spm"), ["</s>", "<|endoftext|>", "<|end|>"]);
    assert_eq!(ends("gemma-spm"), ["<eos>", "<end_of_turn>"]);
    assert_eq!(ends("gpt-4o"), ["<|endoftext|>", "<|end|>"]);
    assert_eq!(ends("deepseek-v3"), ["<｜end▁of▁sentence｜>"]);
    let llama3 = ["<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|im_end|>"];
    assert_eq!(ends("llama3")[..4], llama3);
}

#[test]
fn spaces_after_special_tokens_follow_mistral() {
    let words = |tokenizer: &Tokenizer, ids: &[u32]| -> Vec<String> {
        ids.iter()
            .map(|&id| tokenizer.token_text(id).to_owned())
            .collect()
    };
    // A special token, then a space: one sign, not two. No prepended space after text.
    let mistral = tokenizer("marked-spm");
    let ids = mistral.encode_template("<s>[INST] the", false);
    assert_eq!(words(&mistral, &ids), ["<s>", "[INST]", "▁the"]);
    let ids = mistral.encode_template("<s>[INST]the", false);
    assert_eq!(words(&mistral, &ids), ["<s>", "[INST]", "▁the"]);
    assert_eq!(mistral.before("<s>[INST] ", false), ("<s>[INST]", true));
    assert_eq!(mistral.before("<s>[INST]", false), ("<s>[INST]", true));
    assert_eq!(
        mistral.before("\n\nQuestion: ", true),
        ("\n\nQuestion:", true)
    );
    assert_eq!(
        mistral.before("\n\nQuestion:\n", true),
        ("\n\nQuestion:\n", false)
    );
    assert_eq!(mistral.before("", false), ("", true));
    let ids = mistral.encode_after("the", true).ids;
    assert_eq!(words(&mistral, &ids), ["▁the"]);
    let gemma = tokenizer("gemma-spm");
    assert_eq!(
        gemma.before("<bos><start_of_turn>", false),
        ("<bos><start_of_turn>", false)
    );
    let llama3 = tokenizer("llama3");
    assert_eq!(llama3.before("Question: ", true), ("Question: ", false));
}

/// The tokenizer of a file with one metadata value changed or added, without tensors.
fn with(family: &str, key: &str, value: MetaValue) -> Result<Tokenizer, ModelError> {
    with_all(family, vec![(key, value)])
}

fn with_all(family: &str, values: Vec<(&str, MetaValue)>) -> Result<Tokenizer, ModelError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, unpacked(&format!("{family}.gguf.gz"))).unwrap();
    let gguf = Gguf::open(&path).unwrap();
    let mut writer = GgufWriter::default();
    let text = |key: &str| MetaValue::Text(gguf.text(key).unwrap().unwrap().to_owned());
    for key in ["tokenizer.ggml.model", "tokenizer.ggml.pre", "general.name"] {
        writer.set(key, text(key));
    }
    for key in ["tokenizer.ggml.tokens", "tokenizer.ggml.merges"] {
        if let Some(texts) = gguf.texts(key).unwrap() {
            let texts = texts.into_iter().map(str::to_owned).collect();
            writer.set(key, MetaValue::Texts(texts));
        }
    }
    let types = gguf.wholes("tokenizer.ggml.token_type").unwrap().unwrap();
    let types = types.into_iter().map(|kind| kind as u32).collect();
    writer.set("tokenizer.ggml.token_type", MetaValue::Wholes(types));
    if let Some(scores) = gguf.numbers("tokenizer.ggml.scores").unwrap() {
        writer.set("tokenizer.ggml.scores", MetaValue::Numbers(scores));
    }
    for (key, value) in values {
        writer.set(key, value);
    }
    writer.write(&path).unwrap();
    Tokenizer::of_file(&Gguf::open(&path).unwrap())
}

fn text(value: &str) -> MetaValue {
    MetaValue::Text(value.to_owned())
}

#[test]
fn user_defined_tokens_of_the_template_are_split_in_documents() {
    let count = |tokenizer: &Tokenizer, text: &str| tokenizer.encode(text).ids.len();
    let plain = tokenizer("qwen2");
    assert_eq!(count(&plain, "<think>"), 1);
    let template = text("{{ '<think>' }}");
    let marked = with("qwen2", "tokenizer.chat_template", template).unwrap();
    assert!(count(&marked, "<think>") > 1, "a mark of the conversation");
    assert_eq!(count(&marked, "<tool_call>"), 1, "text");
    assert_eq!(marked.encode_template("<think>", true).len(), 1);
    let gemma = with(
        "gemma-spm",
        "tokenizer.chat_template",
        text("\n\n\n<table>"),
    )
    .unwrap();
    assert_eq!(count(&gemma, "\n\n\n"), 1, "blanks are no marks");
    assert!(count(&gemma, "<table>") > 1);
}

#[test]
fn phi_3_special_tokens_take_white_space_after_them() {
    let phi = with("marked-spm", "general.name", text("Phi-3-mini-4k-instruct")).unwrap();
    let ids = phi.encode_template("<|user|>\nthe<|end|>\n<|assistant|>\n", false);
    let words: Vec<&str> = ids.iter().map(|&id| phi.token_text(id)).collect();
    assert_eq!(words, ["<|user|>", "▁the", "<|end|>", "<|assistant|>"]);
    assert_eq!(phi.before("<s><|user|>\n", false), ("<s><|user|>", true));
}

#[test]
fn unsupported_tokenizers_are_refused_by_name() {
    let refused = |family: &str, key: &str, value: MetaValue| match with(family, key, value) {
        Ok(_) => panic!("{family} with another {key} is taken"),
        Err(error) => error.to_string(),
    };
    let said = refused("gpt-2", "tokenizer.ggml.pre", text("kimi-k2"));
    assert!(
        said.contains("\"kimi-k2\"") && said.contains("deepseek-v3") && said.contains("tekken"),
        "{said}"
    );
    let said = refused("gpt-2", "tokenizer.ggml.model", text("t5"));
    assert!(
        said.contains("\"t5\"") && said.contains("llama (SentencePiece)"),
        "{said}"
    );
    let said = refused(
        "llama-spm",
        "tokenizer.ggml.scores",
        MetaValue::Numbers(vec![0.0]),
    );
    assert!(said.contains("1 scores"), "{said}");
    let no_types = || MetaValue::Wholes(vec![2; 3000]);
    let said = refused("gpt-2", "tokenizer.ggml.token_type", no_types());
    assert!(said.contains("no byte has a token"), "{said}");
}

/// The vocabulary of `family` with the tokens `texts` marked as unused.
fn without(family: &str, texts: &[&str]) -> Tokenizer {
    with_all(family, vec![types_without(family, texts)]).expect(family)
}

fn types_without(family: &str, texts: &[&str]) -> (&'static str, MetaValue) {
    let full = tokenizer(family);
    let mut types: Vec<u32> = (0..full.vocab() as u32).map(|id| kind(&full, id)).collect();
    for text in texts {
        types[full.token_id(text).expect(text) as usize] = 5;
    }
    ("tokenizer.ggml.token_type", MetaValue::Wholes(types))
}

fn kind(tokenizer: &Tokenizer, id: u32) -> u32 {
    let text = tokenizer.token_text(id);
    match tokenizer.is_control(id) {
        true => 3,
        false if text.starts_with("<0x") => 6,
        false => 1,
    }
}

#[test]
fn bytes_without_a_token_are_dropped() {
    // U+0104 is the symbol of byte 0x04.
    let smollm = without("smollm", &["\u{104}"]);
    let spans = |text: &str| {
        let tokens = smollm.encode(text);
        let starts = tokens.spans.iter().map(|span| (span.start, span.end));
        (tokens.ids.clone(), starts.collect::<Vec<_>>())
    };
    let (whole, _) = spans("the");
    assert_eq!(whole.len(), 1);
    assert_eq!(spans("the\u{4}"), (whole.clone(), vec![(0, 4)]));
    let (split, tiles) = spans("the\u{4}\u{4} the");
    assert_eq!(split, spans("the the").0);
    assert_eq!(tiles, [(0, 3), (3, 9)]);
    assert_eq!(spans("\u{4}"), (vec![], vec![]));
    assert_eq!(smollm.dropped("the\u{4}\u{4} the"), 2);
    assert_eq!(tokenizer("smollm").dropped("the\u{4}"), 0);
}

#[test]
fn a_run_of_unknown_characters_is_one_token() {
    let no_byte = without("llama-spm", &["<0xF0>"]);
    let tokens = no_byte.encode("the 𓀀𓀀 the");
    let unknown = no_byte.token_id("<unk>").unwrap();
    let at = tokens.ids.iter().position(|&id| id == unknown).unwrap();
    assert_eq!(tokens.ids.iter().filter(|&&id| id == unknown).count(), 1);
    assert_eq!(tokens.spans[at], 4..12);
    assert_eq!(tokens.spans.last().unwrap().end, 16);
    assert_eq!(no_byte.fewest_tokens("𓀀".repeat(100).as_str()), 0);
}

#[test]
fn a_vocabulary_that_cannot_encode_all_bytes_is_refused() {
    let no_unknown = || {
        (
            "tokenizer.ggml.unknown_token_id",
            MetaValue::Whole(u32::MAX),
        )
    };
    let values = vec![types_without("llama-spm", &["<0xF0>"]), no_unknown()];
    let said = with_all("llama-spm", values).err().expect("it is refused");
    assert_eq!(
        said.to_string(),
        "the model's vocabulary cannot be used: it has neither tokens for all bytes nor an unknown token, so some texts have no tokens; \
         convert the model again"
    );
    // With tokens for all bytes, no text is unknown.
    with_all("llama-spm", vec![no_unknown()]).expect("it opens");
}
