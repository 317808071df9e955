//! The request of a chat completion: the fields of OpenAI's API that mean something here, and Kept's own.

use kept_engine::policies::Budget;
use kept_engine::{AUTO, MethodSpec, Sampling};
use serde::Deserialize;
use serde_json::Value;

use crate::error::ApiError;

/// `POST /v1/chat/completions`. Unknown fields are ignored, as clients send many; a known field that cannot be obeyed is
/// refused.
#[derive(Debug, Deserialize)]
pub(crate) struct ChatRequest {
    pub(crate) model: Option<String>,
    pub(crate) messages: Vec<Message>,
    #[serde(default)]
    pub(crate) stream: bool,
    pub(crate) stream_options: Option<StreamOptions>,
    max_tokens: Option<usize>,
    max_completion_tokens: Option<usize>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    top_k: Option<usize>,
    min_p: Option<f64>,
    repeat_penalty: Option<f64>,
    seed: Option<i64>,
    stop: Option<OneOrMore>,
    n: Option<u32>,
    frequency_penalty: Option<f64>,
    presence_penalty: Option<f64>,
    tools: Option<Vec<Value>>,
    response_format: Option<Value>,
    /// Kept: the compression method, such as `snapkv[w=8]`.
    method: Option<String>,
    /// Kept: what may be kept: `25%`, `64MiB`, or a number of rows.
    budget: Option<Value>,
    /// Kept: ids of the documents that the question is about.
    #[serde(default)]
    pub(crate) documents: Vec<String>,
    /// Kept: whether the vault is used; it is unless this is false.
    pub(crate) vault: Option<bool>,
    /// Kept: whether a model that can think does so.
    #[serde(default)]
    pub(crate) thinking: bool,
    /// Kept: whether the answer has the retention map of the document.
    #[serde(default)]
    pub(crate) map: bool,
}

#[derive(Debug, Deserialize)]
pub(crate) struct StreamOptions {
    #[serde(default)]
    pub(crate) include_usage: bool,
}

/// A message of the conversation.
#[derive(Debug, Deserialize)]
pub(crate) struct Message {
    pub(crate) role: String,
    pub(crate) content: Option<Content>,
}

/// The content of a message.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Content {
    /// Text.
    Text(String),
    /// Texts and files.
    Parts(Vec<ContentPart>),
}

#[derive(Debug, Deserialize)]
pub(crate) struct ContentPart {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) text: Option<String>,
    pub(crate) file: Option<FilePart>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct FilePart {
    pub(crate) file_id: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

fn invalid(param: &'static str, what: impl Into<String>) -> ApiError {
    ApiError::Invalid {
        param,
        what: what.into(),
    }
}

impl ChatRequest {
    /// # Errors
    /// Fields that ask for something that Kept does not do.
    pub(crate) fn check(&self) -> Result<(), ApiError> {
        if self.n.is_some_and(|n| n != 1) {
            return Err(invalid(
                "n",
                "one answer is written at a time: leave n out, or set it to 1",
            ));
        }
        let penalties = [
            ("frequency_penalty", self.frequency_penalty),
            ("presence_penalty", self.presence_penalty),
        ];
        for (param, penalty) in penalties {
            if penalty.is_some_and(|penalty| penalty != 0.0) {
                return Err(invalid(
                    param,
                    format!("{param} is not supported: use repeat_penalty, such as 1.1"),
                ));
            }
        }
        if self.tools.as_ref().is_some_and(|tools| !tools.is_empty()) {
            return Err(invalid("tools", "tools are not supported: leave them out"));
        }
        let format = self
            .response_format
            .as_ref()
            .and_then(|f| f["type"].as_str());
        if format.is_some_and(|format| format != "text") {
            return Err(invalid(
                "response_format",
                "answers are text: leave response_format out",
            ));
        }
        Ok(())
    }

    /// The method, or `default`.
    pub(crate) fn method(&self, default: &MethodSpec) -> Result<MethodSpec, ApiError> {
        let Some(named) = &self.method else {
            return Ok(default.clone());
        };
        let refused = |error: &dyn std::fmt::Display| invalid("method", error.to_string());
        let method: MethodSpec = named.parse().map_err(|error| refused(&error))?;
        if method.name != AUTO {
            method.build().map_err(|error| refused(&error))?;
        } else if !method.parameters.is_empty() {
            return Err(invalid("method", "auto has no parameters"));
        }
        Ok(method)
    }

    /// The budget, or `default`.
    pub(crate) fn budget(&self, default: Option<Budget>) -> Result<Option<Budget>, ApiError> {
        let text = match &self.budget {
            None | Some(Value::Null) => return Ok(default),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        let budget = text.parse().map(Some);
        budget.map_err(|error: kept_engine::policies::PolicyError| {
            invalid("budget", error.to_string())
        })
    }

    /// The sampling parameters; without a temperature, the most likely token is taken.
    pub(crate) fn sampling(&self) -> Sampling {
        Sampling {
            temperature: self.temperature.unwrap_or(0.0),
            // At temperature 0 limits do nothing, and many clients always send them.
            top_k: self.top_k.filter(|&k| k > 0),
            top_p: self.top_p.filter(|&p| p != 1.0),
            min_p: self.min_p.filter(|&p| p > 0.0),
            repeat_penalty: self.repeat_penalty,
            seed: self.seed.unwrap_or(0).cast_unsigned(),
        }
    }

    /// Longest answer, in tokens.
    pub(crate) fn max_tokens(&self, default: usize) -> Result<usize, ApiError> {
        match self.max_completion_tokens.or(self.max_tokens) {
            Some(0) => Err(invalid(
                "max_tokens",
                "max_tokens is 0: an answer has at least 1 token",
            )),
            Some(tokens) => Ok(tokens),
            None => Ok(default),
        }
    }

    /// Texts that end the answer.
    pub(crate) fn stop_texts(&self) -> Vec<String> {
        match &self.stop {
            None => Vec::new(),
            Some(OneOrMore::One(text)) => vec![text.clone()],
            Some(OneOrMore::More(texts)) => texts.clone(),
        }
    }
}
