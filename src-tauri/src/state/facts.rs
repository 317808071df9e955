//! Converts the worker's facts about answers to the page's types.

use kept_engine::{Finish, Note};
use kept_worker::protocol::AnswerFacts;

use super::doubt::doubt;
use crate::contract::{self, DocumentFacts, Facts, Turn};
use crate::messages;

/// The choice of `auto` for a prompt of `tokens` tokens, and its reason, in the page's form. `sample`: the document is
/// the sample, which is never kept completely.
pub(super) fn chosen_of(
    chosen: &kept_engine::Chosen,
    tokens: usize,
    sample: bool,
) -> contract::Chosen {
    contract::Chosen {
        method: chosen.method.name.clone(),
        rows: chosen.rows,
        reason: messages::chosen(chosen, tokens, sample),
    }
}

/// The notes on an answer, without those about the choice and the streaming mode, which the page shows elsewhere.
fn notes(answer: &AnswerFacts, stored: bool) -> Vec<String> {
    let others = (answer.notes.iter()).filter(|note| {
        !matches!(
            note,
            Note::AutoChose { .. }
                | Note::Streaming { .. }
                | Note::StreamingPositions { .. }
                | Note::Reconstruction { .. }
        )
    });
    let rows = answer.rows_per_layer.iter().max();
    let said = (answer.report.streamed).then(|| messages::streamed(rows.copied(), stored));
    said.into_iter().chain(others.map(messages::note)).collect()
}

/// Whether the next question finds the document, of `tokens` tokens if they are counted, in its vault: the answer wrote
/// the vault, or almost nothing of the document was missing in it. A part may be there that a full disk left.
pub(super) fn is_stored(answer: &AnswerFacts, tokens: Option<usize>) -> bool {
    let vault = &answer.vault;
    let was_whole =
        |tokens| 10 * vault.tokens_from_vault >= 9 * tokens && vault.tokens_read < tokens;
    vault.written || (vault.bytes > 0 && tokens.is_none_or(was_whole))
}

/// Shorter answers have too little evidence for a doubt: "60" of "sixty instalments" is copied from nowhere, and the first
/// token saw the whole document.
const DOUBTFUL_TOKENS: usize = 4;

/// Completes a turn that was answered about `document`; `stored` as [`is_stored`].
pub(super) fn finish(
    turn: &mut Turn,
    answer: AnswerFacts,
    document: Option<&DocumentFacts>,
    stored: bool,
) {
    let sample = document.is_some_and(|document| document.sample);
    let layers = answer.rows_per_layer.len().max(1);
    let rows = answer.rows_per_layer.iter().sum::<usize>() as f64 / layers as f64;
    let mut facts = Facts {
        finish: answer.report.finish,
        prompt_tokens: answer.report.prompt_tokens,
        answer_tokens: answer.report.answer_tokens,
        rows,
        kept_bytes: answer.report.kv_bytes,
        full_bytes: answer.report.kv_bytes_full,
        first_token_seconds: answer.first_token_seconds,
        prefill_seconds: answer.report.prefill_seconds,
        decode_seconds: answer.report.decode_seconds,
        tokens_per_second: answer.report.decode_tokens_per_second(),
        notes: notes(&answer, stored),
        chosen: (answer.chosen.as_deref())
            .map(|chosen| chosen_of(chosen, answer.report.prompt_tokens, sample)),
        tokens_from_vault: answer.vault.tokens_from_vault,
        turns_seen: answer.turns_seen,
        turns_kept: answer.turns_kept,
        citations: answer.citations,
        streamed: answer.report.streamed,
        cache: answer.report.cache,
        doubt: None,
    };
    let is_chat = document.is_none_or(|document| document.length == 0);
    let is_short = facts.answer_tokens < DOUBTFUL_TOKENS || answer.text.trim().is_empty();
    if facts.finish == Finish::End && !is_chat && !is_short {
        let share = rows / facts.prompt_tokens.max(1) as f64;
        facts.doubt = doubt(share, &facts.citations, &answer.sources);
    }
    turn.facts = Some(Box::new(facts));
    turn.sources = answer.sources;
    turn.answer = answer.text;
}
