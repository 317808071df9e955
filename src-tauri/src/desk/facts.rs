//! What the worker says of memory and answers, in the page's shapes.

use kept_engine::protocol::{AnswerFacts, MemoryNow};

use crate::contract::{Facts, Memory, Source, Turn};
use crate::sentences::for_window;

/// Memory as the page wants it.
pub(super) fn memory(now: &MemoryNow) -> Memory {
    Memory {
        weights: now.weights,
        kept: now.kept,
        kept_full: now.kept_full,
        tables: now.tables,
        scratch: now.scratch,
        available: now.available,
        total: now.total,
    }
}

/// The end of a turn that was answered.
pub(super) fn finish(turn: &mut Turn, answer: AnswerFacts) {
    let layers = answer.rows_per_layer.len().max(1);
    let rows = answer.rows_per_layer.iter().sum::<usize>() as f64 / layers as f64;
    let finish = match answer.finish {
        kept_engine::Finish::End => "end",
        kept_engine::Finish::Length => "length",
        kept_engine::Finish::Context => "context",
        kept_engine::Finish::Stopped => "stopped",
    };
    turn.facts = Some(Facts {
        finish: finish.to_owned(),
        prompt_tokens: answer.prompt_tokens,
        answer_tokens: answer.answer_tokens,
        rows,
        kept_bytes: answer.kv_bytes,
        full_bytes: answer.kv_bytes_full,
        first_token_seconds: answer.first_token_seconds,
        prefill_seconds: answer.prefill_seconds,
        decode_seconds: answer.decode_seconds,
        tokens_per_second: answer.decode_tokens_per_second,
        notes: answer.notes.iter().map(|note| for_window(note)).collect(),
    });
    turn.sources = answer
        .sources
        .into_iter()
        .map(|source| Source {
            start: source.start16,
            end: source.end16,
            page: source.page,
            text: source.text,
            weight: source.weight,
            kept: source.kept,
        })
        .collect();
    turn.answer = answer.text;
}
