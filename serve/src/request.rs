//! The request of a chat completion: the fields of OpenAI's API that mean something here, and Kept's own.
//! A value of another type is refused by the name of its field.

use kept_engine::policies::Budget;
use kept_engine::{AUTO, MethodSpec, Sampling};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::error::ApiError;

/// `POST /v1/chat/completions`. Unknown fields are ignored, as clients send many; a known field that cannot be obeyed is
/// refused.
#[derive(Debug, Deserialize)]
pub(crate) struct ChatRequest {
    pub(crate) model: Option<String>,
    #[serde(default)]
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
    logprobs: Option<bool>,
    logit_bias: Option<Map<String, Value>>,
    top_logprobs: Option<Value>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    functions: Option<Value>,
    function_call: Option<Value>,
    modalities: Option<Value>,
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

/// The fields that take one type, and what that is.
const TYPES: [(&str, &str); 24] = [
    ("model", "a text"),
    (
        "messages",
        "a list of objects, each with a role and a content",
    ),
    ("stream", "true or false"),
    ("stream_options", "an object"),
    ("max_tokens", WHOLE_FROM_1),
    ("max_completion_tokens", WHOLE_FROM_1),
    ("temperature", "a number from 0"),
    ("top_p", "a number from 0 to 1"),
    ("top_k", "a whole number from 0, which is no limit"),
    ("min_p", "a number from 0 to 1"),
    ("repeat_penalty", "a number from 1 to 2"),
    ("seed", "a whole number below 2^63"),
    ("stop", "a text or a list of texts"),
    ("n", "1"),
    ("frequency_penalty", "0"),
    ("presence_penalty", "0"),
    ("logprobs", "false"),
    ("logit_bias", "an empty object"),
    ("tools", "an empty list"),
    ("method", "a text"),
    ("documents", "a list of ids of files"),
    ("vault", "true or false"),
    ("thinking", "true or false"),
    ("map", "true or false"),
];
const WHOLE_FROM_1: &str = "a whole number from 1";

/// The beginning of a value, as JSON.
fn shown(value: &Value) -> String {
    const MAX_SHOWN_CHARS: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(MAX_SHOWN_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// Why an object is no request: the first field whose value alone is none.
fn refusal(fields: &Value, error: &serde_json::Error) -> ApiError {
    let fails =
        |name: &str, value: &Value| ChatRequest::deserialize(&json!({name: value})).is_err();
    for (param, expected) in TYPES {
        let Some(value) = fields.get(param).filter(|value| fails(param, value)) else {
            continue;
        };
        let takes_list = !fails(param, &json!([]));
        let list = value.as_array().filter(|_| takes_list);
        let mut entries = list.into_iter().flatten();
        let what = match entries.find(|entry| fails(param, &json!([entry]))) {
            Some(entry) => format!("{param} must be {expected}, and has {}", shown(entry)),
            None => format!("{param} must be {expected}, and is {}", shown(value)),
        };
        return invalid(param, what);
    }
    ApiError::NoRequest(error.to_string())
}

fn invalid(param: &'static str, what: impl Into<String>) -> ApiError {
    ApiError::Invalid {
        param,
        what: what.into(),
    }
}

impl ChatRequest {
    /// The request of a body; null means the default in every field.
    ///
    /// # Errors
    /// If it is no object, or a field has a value of another type.
    pub(crate) fn new(mut body: Value) -> Result<Self, ApiError> {
        let Some(fields) = body.as_object_mut() else {
            return Err(ApiError::NoObject(shown(&body)));
        };
        fields.retain(|_, value| !value.is_null());
        Self::deserialize(&body).map_err(|error| refusal(&body, &error))
    }

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
        let biases = self.logit_bias.as_ref();
        let is_list = |value: &Option<Value>, wanted: &dyn Fn(&Value) -> bool| {
            let list = value.as_ref().and_then(Value::as_array);
            list.is_some_and(|list| list.iter().any(wanted))
        };
        let must_call = |choice: &Option<Value>| {
            let choice = choice.as_ref().filter(|choice| !choice.is_null());
            choice.is_some_and(|choice| *choice != "none" && *choice != "auto")
        };
        let likely = self.top_logprobs.as_ref();
        let unsupported = [
            ("tools", self.tools.as_ref().is_some_and(|t| !t.is_empty())),
            ("tool_choice", must_call(&self.tool_choice)),
            ("functions", is_list(&self.functions, &|_| true)),
            ("function_call", must_call(&self.function_call)),
            (
                "modalities",
                is_list(&self.modalities, &|kind| *kind != "text"),
            ),
            ("logprobs", self.logprobs == Some(true)),
            (
                "top_logprobs",
                likely.is_some_and(|number| !number.is_null() && *number != 0),
            ),
            ("logit_bias", biases.is_some_and(|b| !b.is_empty())),
        ];
        if let Some((param, _)) = unsupported.into_iter().find(|(_, is_set)| *is_set) {
            let what = format!("{param} is not supported: leave it out");
            return Err(invalid(param, what));
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
            // 0 leaves the most likely token.
            top_p: (self.top_p.filter(|&p| p != 1.0))
                .map(|p| if p == 0.0 { Sampling::MIN_SHARE } else { p }),
            min_p: self.min_p.filter(|&p| p > 0.0),
            repeat_penalty: self.repeat_penalty,
            seed: self.seed.unwrap_or(0).cast_unsigned(),
        }
    }

    /// Longest answer, in tokens.
    pub(crate) fn max_tokens(&self, default: usize) -> Result<usize, ApiError> {
        let (param, given) = match self.max_completion_tokens {
            None => ("max_tokens", self.max_tokens),
            given => ("max_completion_tokens", given),
        };
        match given {
            Some(0) => Err(invalid(
                param,
                format!("{param} must be {WHOLE_FROM_1}, and is 0"),
            )),
            given => Ok(given.unwrap_or(default)),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn said(body: Value) -> String {
        ChatRequest::new(body).expect_err("refused").to_string()
    }

    #[test]
    fn every_field_of_another_type_is_named_with_its_value() {
        for (field, expected) in TYPES {
            let wrong = match field {
                "stream_options" | "logit_bias" => json!("?"),
                _ => json!({"?": 1}),
            };
            let sentence = format!("{field} must be {expected}, and is {wrong}");
            assert_eq!(said(json!({"messages": [], field: wrong})), sentence);
        }
        assert_eq!(
            said(json!([1])),
            "the body must be a JSON object, and is [1]"
        );
    }

    #[test]
    fn an_entry_of_another_type_is_named_and_a_long_value_cut() {
        let hello = json!({"role": "user", "content": "é".repeat(99)});
        let sentence = said(json!({"messages": [hello, {"role": 5, "content": "Hi"}]}));
        assert!(
            sentence.ends_with(r#", and has {"content":"Hi","role":5}"#),
            "{sentence}"
        );
        let sentence = said(json!({"messages": hello}));
        assert!(
            sentence.ends_with("é...") && sentence.len() < 200,
            "{sentence}"
        );
    }

    #[test]
    fn null_is_the_default() {
        let fields = TYPES.map(|(field, _)| (field.to_owned(), Value::Null));
        let request = ChatRequest::new(fields.into_iter().collect()).expect("a request");
        assert!(!request.stream && request.check().is_ok());
        assert_eq!(request.max_tokens(7).ok(), Some(7));
    }
}
