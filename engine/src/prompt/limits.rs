//! Whether a document fits the context length, without a prompt.

use kept_models::Model;

use crate::EngineError;

/// A question of ordinary length, as a placeholder: about 16 tokens.
pub(crate) const ORDINARY_QUESTION: &str = "What does the document say about the harbour?";

/// Tokens reserved for a short answer: the minimum of the context length after the prompt.
pub(crate) const MIN_ANSWER_TOKENS: usize = 16;

/// Bytes of a text that are tokenised to estimate the bytes per token.
const SAMPLE_BYTES: usize = 64 * 1024;

/// A lower bound on the tokens of `document` if it already exceeds the context length: then tokenising is
/// unnecessary.
pub(crate) fn surely_too_long(model: &Model, document: &str) -> Result<Option<usize>, EngineError> {
    let at_least = model.tokenizer()?.fewest_tokens(document);
    Ok((at_least > model.config().context).then_some(at_least))
}

/// Tokens of `document`, estimated from its beginning, middle and end, to two digits.
pub(crate) fn estimated_tokens(model: &Model, document: &str) -> Result<usize, EngineError> {
    let tokenizer = model.tokenizer()?;
    let last = document.len().saturating_sub(SAMPLE_BYTES);
    let (mut tokens, mut bytes) = (0, 0);
    for begin in [0, last / 2, last] {
        let begin = document.floor_char_boundary(begin);
        let end = document.floor_char_boundary(begin + SAMPLE_BYTES);
        tokens += tokenizer.encode(&document[begin..end]).ids.len();
        bytes += end - begin;
    }
    let tokens = (document.len() as f64 * tokens as f64 / bytes.max(1) as f64) as usize;
    let unit = 10usize.pow(tokens.max(10).ilog10() - 1);
    Ok(tokens / unit * unit)
}

/// The error for a document that is too long, with how much of it would fit; `around` tokens of the prompt are not
/// the document's.
pub(crate) fn too_long(
    model: &Model,
    document: &str,
    have: String,
    around: usize,
) -> Result<EngineError, EngineError> {
    let context = model.config().context;
    let end = document.floor_char_boundary(SAMPLE_BYTES);
    let sample = model.tokenizer()?.encode(&document[..end]).ids.len().max(1);
    let space = context.saturating_sub(around.max(64) + MIN_ANSWER_TOKENS);
    let bytes = end * space / sample;
    let fits = match bytes {
        0..10_000 => format!("{bytes} bytes"),
        10_000..10_000_000 => format!("{} kB", bytes / 1000),
        _ => format!("{} MB", bytes / 1_000_000),
    };
    let share = 100.0 * bytes as f64 / document.len().max(1) as f64;
    Ok(EngineError::TooLong {
        model: model.name().to_owned(),
        have,
        context,
        fits: format!("{fits} ({share:.1} %)"),
    })
}
