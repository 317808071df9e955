//! What a comparison reports: the lines of `kept compare --json`, which are also what a window is told and what it exports.
//!
//! Not here: measuring (`reference.rs`, `run.rs`) and drawing (`pictures/`).

use serde::{Deserialize, Serialize};

use super::{HeadFigures, MethodRun, Reference, WaveletFigures};
use crate::{Finish, Method};

/// The full cache's own run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReferenceReport {
    /// `reference`.
    pub run: String,
    /// `full`.
    pub method: String,
    /// The model's name.
    pub model: String,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// What the full cache answers, greedily.
    pub answer: String,
    /// Tokens of it.
    pub answer_tokens: usize,
    /// Why it ended.
    pub finish: Finish,
    /// Bytes of the full cache after reading.
    pub kv_bytes: u64,
    /// Seconds until the first token, without the time that measuring took.
    pub first_token_seconds: f64,
    /// Tokens of the answer per second, without the time that measuring took; 0 without an answer.
    pub decode_tokens_per_second: f64,
    /// `[layers][kv_heads]`
    pub heads: Vec<Vec<HeadFigures>>,
    /// Of the last watched token's query; `None` without an answer or with a very short prompt.
    pub wavelet: Option<WaveletFigures>,
}

impl ReferenceReport {
    /// The report of `reference`, read by the model called `model`.
    pub fn new(model: &str, reference: &Reference) -> Self {
        Self {
            run: "reference".to_owned(),
            method: "full".to_owned(),
            model: model.to_owned(),
            prompt_tokens: reference.prompt.len(),
            answer: reference.answer.clone(),
            answer_tokens: reference.answer_ids.len(),
            finish: reference.finish,
            kv_bytes: reference.kv_bytes,
            first_token_seconds: reference.first_token_seconds,
            decode_tokens_per_second: reference.decode_tokens_per_second,
            heads: reference.heads.clone(),
            wavelet: reference.wavelet.clone(),
        }
    }
}

/// One method at one budget beside it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunReport {
    /// `method`.
    pub run: String,
    /// The method's name.
    pub method: String,
    /// Name and parameters as one, by which runs of one method are told apart: `snapkv[w=8]`; the name where nothing is set.
    pub label: String,
    /// What was set, as `name=value`.
    pub parameters: Vec<String>,
    /// As it was asked for.
    pub budget: String,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Why there is no result, in one sentence.
    pub refused: Option<String>,
    /// The result, its fields beside the others'.
    #[serde(flatten)]
    pub result: Option<MethodRun>,
}

impl RunReport {
    /// The report of `method` cut to `budget`: what came of it, or why nothing did.
    pub fn new(
        method: &Method,
        budget: &str,
        prompt_tokens: usize,
        result: Result<MethodRun, String>,
    ) -> Self {
        let parameters = method.parameters.iter();
        let (refused, result) = match result {
            Ok(run) => (None, Some(run)),
            Err(sentence) => (Some(sentence), None),
        };
        Self {
            run: "method".to_owned(),
            method: method.name.clone(),
            label: method.to_string(),
            parameters: parameters
                .map(|(name, value)| format!("{name}={value}"))
                .collect(),
            budget: budget.to_owned(),
            prompt_tokens,
            refused,
            result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_run_is_read_back_as_one() {
        let method = Method {
            name: "snapkv".to_owned(),
            parameters: vec![("w".to_owned(), "8".to_owned())],
        };
        let report = RunReport::new(&method, "4", 100, Err("too small".to_owned()));
        let json = serde_json::to_value(&report).expect("JSON");
        assert_eq!(json["parameters"][0], "w=8");
        assert_eq!(json["label"], "snapkv[w=8]");
        assert_eq!(json.get("kv_bytes"), None, "nothing was measured");
        let back: RunReport = serde_json::from_value(json).expect("a report");
        assert_eq!(back, report);
    }
}
