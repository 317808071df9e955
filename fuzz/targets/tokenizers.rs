//! Tokenizers of drawn vocabularies: the algorithm, a text, then a token or a merge in each line.
//!
//! ```text
//! gpt2 smollm 1        tokenizer.ggml.model, tokenizer.ggml.pre, tokenizer.ggml.add_bos_token
//! Hello world          the text; \n stands for a line end
//! 3 0 <s>              type, score, token
//! 1 -2.5 he
//! + h e                a merge
//! bos_token_id 0       any other value of the tokenizer
//! ```
#![no_main]

use kept_fuzz::file;
use kept_models::gguf::Gguf;
use kept_models::testing::{GgufWriter, MetaValue};
use kept_models::{StreamDecoder, Tokenizer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let data = String::from_utf8_lossy(data);
    let mut lines = data.split('\n');
    let (kind, text) = (lines.next().unwrap_or(""), lines.next().unwrap_or(""));
    let path = file("model.gguf", &written(kind, lines).bytes(), 0);
    let gguf = Gguf::open(&path).expect("a container");
    if let Ok(tokenizer) = Tokenizer::of_file(&gguf) {
        // Only these have no token for what is unknown; elsewhere it may be any, also a control token.
        let all_known = kind.starts_with("gpt2");
        check(&tokenizer, &text.replace("\\n", "\n"), all_known);
    }
});

/// The file of a vocabulary.
fn written<'a>(kind: &str, lines: impl Iterator<Item = &'a str>) -> GgufWriter {
    let mut file = GgufWriter::default();
    let mut kind = kind.split(' ');
    let mut set = |key: &str, value| {
        file.set(&format!("tokenizer.ggml.{key}"), value);
    };
    set(
        "model",
        MetaValue::Text(kind.next().unwrap_or("").to_owned()),
    );
    if let Some(pre) = kind.next() {
        set("pre", MetaValue::Text(pre.to_owned()));
    }
    if let Some(flag) = kind.next() {
        set("add_bos_token", MetaValue::Flag(flag == "1"));
    }
    let (mut types, mut scores, mut tokens) = (Vec::new(), Vec::new(), Vec::new());
    let mut merges = Vec::new();
    for line in lines.take(2_000) {
        let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
        if first == "+" {
            merges.push(rest.to_owned());
        } else if let Ok(number) = first.parse() {
            let (score, token) = rest.split_once(' ').unwrap_or((rest, ""));
            types.push(number);
            scores.push(score.parse().unwrap_or(0.0));
            tokens.push(token.to_owned());
        } else if let Ok(number) = rest.parse() {
            set(first, MetaValue::Whole(number));
        } else {
            set(first, MetaValue::Flag(rest == "true"));
        }
    }
    set("tokens", MetaValue::Texts(tokens));
    set("scores", MetaValue::Numbers(scores));
    set("token_type", MetaValue::Wholes(types));
    set("merges", MetaValue::Texts(merges));
    file
}

fn check(tokenizer: &Tokenizer, text: &str, all_known: bool) {
    for tokenized in [tokenizer.encode(text), tokenizer.encode_after(text, true)] {
        assert!(tokenizer.fewest_tokens(text) <= tokenized.ids.len());
        let mut end = 0;
        for span in &tokenized.spans {
            assert_eq!(span.start, end, "tokens tile the text");
            end = span.end;
        }
        assert!(tokenized.ids.is_empty() || end as usize == text.len());
        let mut decoder = StreamDecoder::of_answer(tokenizer);
        let mut out = String::new();
        for &id in &tokenized.ids {
            assert!((id as usize) < tokenizer.vocab());
            assert!(!all_known || !tokenizer.is_control(id), "text stays text");
            decoder.push(tokenizer, id, &mut out);
        }
        decoder.finish(&mut out);
    }
    for (template, continues) in [(text, false), (text, true)] {
        let (before, _) = tokenizer.before(template, continues);
        tokenizer.encode_template(before, continues);
    }
    let (mut decoder, mut out) = (StreamDecoder::new(), String::new());
    for id in 0..tokenizer.vocab() as u32 {
        tokenizer.token_id(tokenizer.token_text(id));
        tokenizer.decode_bytes(id);
        tokenizer.is_end(id);
        decoder.push(tokenizer, id, &mut out);
    }
    decoder.finish(&mut out);
    tokenizer.bytes();
    let _ = (tokenizer.bos(), tokenizer.eos(), tokenizer.add_bos());
}
