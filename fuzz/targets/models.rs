//! Models of drawn shapes: well-formed files whose metadata and tensors make no sense together.
//!
//! ```text
//! W llama.block_count 2            a whole number; F a number, B a flag, S a text, L and N lists of the first two
//! T token_embd.weight 1 300 32     a tensor: its type's number, its shape with rows first
//! V llama 300                      a vocabulary: tokenizer.ggml.model, number of tokens
//! ```
#![no_main]

use kept_fuzz::{file, open_model};
use kept_models::gguf::TensorType;
use kept_models::testing::{GgufWriter, MetaValue};
use libfuzzer_sys::fuzz_target;

/// The most bytes of a model's weights.
const LARGEST: usize = 4 << 20;
/// All bytes of the weights: of every type a number that is finite and not zero.
const WEIGHT: u8 = 0x11;

fuzz_target!(|data: &[u8]| {
    let mut model = GgufWriter::default();
    let mut left = LARGEST;
    for line in String::from_utf8_lossy(data).lines().take(400) {
        let mut words = line.splitn(3, ' ');
        if let (Some(what), Some(key), Some(rest)) = (words.next(), words.next(), words.next()) {
            add(&mut model, &mut left, what, key, rest);
        }
    }
    open_model(&file("model.gguf", &model.bytes(), 0));
});

fn add(model: &mut GgufWriter, left: &mut usize, what: &str, key: &str, rest: &str) -> Option<()> {
    let wholes = || {
        rest.split(' ')
            .map(|n| n.parse::<u32>().ok())
            .collect::<Option<Vec<_>>>()
    };
    let value = match what {
        "W" => MetaValue::Whole(rest.parse().ok()?),
        "F" => MetaValue::Number(rest.parse().ok()?),
        "B" => MetaValue::Flag(rest == "true"),
        "S" => MetaValue::Text(rest.to_owned()),
        "L" => MetaValue::Wholes(wholes()?),
        "N" => MetaValue::Numbers(
            rest.split(' ')
                .map(|n| n.parse().ok())
                .collect::<Option<_>>()?,
        ),
        "T" => {
            let numbers = wholes()?;
            let (kind, shape) = numbers.split_first()?;
            let shape: Vec<usize> = shape.iter().map(|n| *n as usize).collect();
            let count = shape
                .iter()
                .try_fold(1usize, |all, n| all.checked_mul(*n))?;
            let (block, bytes) = TensorType::from_number(*kind).block().unwrap_or((1, 1));
            let bytes = (count / block).checked_mul(bytes)?;
            *left = left.checked_sub(bytes)?;
            model.raw_tensor(key, &shape, *kind, vec![WEIGHT; bytes]);
            return Some(());
        }
        "V" => {
            vocabulary(model, key, rest.parse().ok().filter(|n| *n < 5_000)?);
            return Some(());
        }
        _ => return None,
    };
    model.set(key, value);
    Some(())
}

fn vocabulary(model: &mut GgufWriter, kind: &str, tokens: usize) {
    let token = |id: usize| match id.checked_sub(3) {
        None => (3, format!("<{id}>")),
        Some(byte) if byte < 256 => (6, format!("<0x{byte:02X}>")),
        Some(id) => (1, format!("t{id}")),
    };
    let (types, texts) = (0..tokens).map(token).unzip();
    model.set("tokenizer.ggml.model", MetaValue::Text(kind.to_owned()));
    model.set("tokenizer.ggml.tokens", MetaValue::Texts(texts));
    model.set(
        "tokenizer.ggml.scores",
        MetaValue::Numbers(vec![0.0; tokens]),
    );
    model.set("tokenizer.ggml.token_type", MetaValue::Wholes(types));
    model.set("tokenizer.ggml.bos_token_id", MetaValue::Whole(1));
    model.set("tokenizer.ggml.eos_token_id", MetaValue::Whole(2));
}
