//! The objects of the API that answer a chat request.

use std::time::{SystemTime, UNIX_EPOCH};

use kept_engine::{Answer, Finish};
use serde_json::{Value, json};

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// An answer and what it cost.
pub(crate) struct CompletedAnswer {
    pub(crate) text: String,
    pub(crate) finish: &'static str,
    pub(crate) usage: Value,
    /// What OpenAI's API has no field for.
    pub(crate) kept: Value,
}

/// `cut`: the answer ended at a text of `stop`. `map`: the retention map, if it was requested.
pub(crate) fn completed_answer(
    text: String,
    answer: &Answer,
    cut: bool,
    map: Option<Value>,
) -> CompletedAnswer {
    let finish = match answer.report.finish {
        _ if cut => "stop",
        Finish::End => "stop",
        // It is cut off.
        Finish::Length | Finish::Context | Finish::Stopped | Finish::Repetition => "length",
    };
    let why = match cut {
        true => json!("stop"),
        false => json!(answer.report.finish),
    };
    let (prompt, written) = (answer.prompt.len(), answer.report.answer_tokens);
    let notes: Vec<String> = answer.notes.iter().map(ToString::to_string).collect();
    CompletedAnswer {
        finish,
        usage: json!({
            "prompt_tokens": prompt,
            "completion_tokens": written,
            "total_tokens": prompt + written,
            "prompt_tokens_details": {"cached_tokens": answer.vault.tokens_from_vault},
        }),
        kept: json!({
            "method": answer.report.method,
            "finish": why,
            "cache": answer.report.cache,
            "rows_per_layer": answer.rows_per_layer,
            "kv_bytes": answer.report.kv_bytes,
            "kv_bytes_full": answer.report.kv_bytes_full,
            "peak_bytes": answer.report.peak_bytes,
            "prefill_seconds": answer.report.prefill_seconds,
            "decode_seconds": answer.report.decode_seconds,
            "streamed": answer.report.streamed,
            "turns": answer.prompt.turns.len(),
            "sources": answer.sources,
            "citations": answer.citations,
            "vault": answer.vault,
            "notes": notes,
            "map": map,
        }),
        text,
    }
}

/// What all objects of one answer share.
#[derive(Clone)]
pub(crate) struct CompletionHeader {
    id: String,
    created: u64,
    model: String,
}

impl CompletionHeader {
    pub(crate) fn new(model: &str) -> Self {
        use std::sync::atomic::{AtomicU64, Ordering};
        static ANSWERS: AtomicU64 = AtomicU64::new(0);
        let (created, number) = (now(), ANSWERS.fetch_add(1, Ordering::Relaxed));
        Self {
            id: format!("chatcmpl-{created}-{number}"),
            created,
            model: model.to_owned(),
        }
    }

    fn object(&self, object: &str, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }

    /// A whole answer.
    pub(crate) fn completion(&self, answer: CompletedAnswer) -> Value {
        let choice = json!([{
            "index": 0,
            "message": {"role": "assistant", "content": answer.text, "refusal": null},
            "logprobs": null,
            "finish_reason": answer.finish,
        }]);
        let mut whole = self.object("chat.completion", choice);
        whole["usage"] = answer.usage;
        whole["kept"] = answer.kept;
        whole
    }

    /// A piece of a streamed answer: `delta` and, at the end, why it ended.
    pub(crate) fn chunk(&self, delta: Value, finish: Option<&str>) -> Value {
        let choice = json!([{
            "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish,
        }]);
        self.object("chat.completion.chunk", choice)
    }

    /// The last piece of a streamed answer, if the client asked for its cost.
    pub(crate) fn usage_chunk(&self, usage: Value) -> Value {
        let mut chunk = self.object("chat.completion.chunk", json!([]));
        chunk["usage"] = usage;
        chunk
    }
}
