//! The reports of a comparison: the lines of `kept compare --json`, also sent to the app and exported by it.

use serde::{Deserialize, Serialize};

use super::{HeadFigures, MethodRun, WaveletFigures};
use kept_engine::{Finish, MethodSpec};

/// Report of the run with the full cache.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub struct ReferenceReport {
    /// Always `reference`.
    pub run: String,
    /// Always `full`.
    pub method: String,
    /// The model's name.
    pub model: String,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// The full cache's greedy answer.
    pub answer: String,
    /// Tokens of the answer.
    pub answer_tokens: usize,
    /// Why the answer ended.
    pub finish: Finish,
    /// Bytes of the full cache after prefill.
    pub kv_bytes: u64,
    /// Seconds until the first token, without the time of measurements.
    pub first_token_seconds: f64,
    /// Tokens of the answer per second, without measuring time; 0 without an answer.
    pub decode_tokens_per_second: f64,
    /// `[layers][kv_heads]`: sparsity and redundancy.
    pub heads: Vec<Vec<HeadFigures>>,
    /// Wavelet figures of the last recorded token's query; `None` without an answer or with a very short prompt.
    pub wavelet: Option<WaveletFigures>,
}

/// Report of one method at one budget.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
#[cfg_attr(feature = "typescript", ts(rename = "RunFacts"))]
pub struct RunReport {
    /// Always `method`.
    pub run: String,
    /// The method's name.
    pub method: String,
    /// Name and parameters, which distinguish runs of one method: `snapkv[w=8]`; the name alone without parameters.
    pub label: String,
    /// The parameters, as `name=value`.
    pub parameters: Vec<String>,
    /// The budget, as the user entered it.
    pub budget: String,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Why there is no result, in one sentence.
    pub refused: Option<String>,
    /// The result; its fields are flattened into this object.
    #[serde(flatten)]
    #[cfg_attr(feature = "typescript", ts(skip))]
    pub result: Option<MethodRun>,
}

impl RunReport {
    /// The report of `method` at `budget`: its result, or the reason for refusal.
    pub fn new(
        method: &MethodSpec,
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
    fn refused_run_round_trips_through_json() {
        let method = MethodSpec {
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
