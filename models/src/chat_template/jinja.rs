//! One template in this process: Hugging Face's settings of Jinja.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, Value, context};
use serde::{Deserialize, Serialize};

use super::{Message, python};
use crate::ModelError;

/// Most instructions per rendering. A template is an untrusted program and must terminate.
const FUEL: u64 = 10_000_000;

/// A template and what it may know besides the messages.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Source {
    /// The template.
    pub text: String,
    pub bos: Option<String>,
    pub eos: Option<String>,
    /// The current time in seconds since 1970 (UTC), for templates that write a date.
    pub unix_seconds: u64,
}

/// What is rendered.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Conversation {
    pub messages: Vec<Message>,
    pub add_generation_prompt: bool,
    pub thinking: bool,
}

/// A compiled template.
pub(super) struct Jinja {
    environment: Environment<'static>,
    bos: Option<String>,
    eos: Option<String>,
}

impl Jinja {
    /// Compiles a template.
    pub(super) fn compile(source: &Source) -> Result<Self, ModelError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build();
        environment.set_syntax(syntax.map_err(|e| failed(&e))?);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(python::method);
        environment.add_filter("tojson", python::tojson);
        environment.add_function(
            "raise_exception",
            |message: String| -> Result<String, Error> {
                Err(Error::new(ErrorKind::InvalidOperation, message))
            },
        );
        let unix_seconds = source.unix_seconds;
        environment.add_function("strftime_now", move |format: String| {
            python::strftime(&format, unix_seconds)
        });
        environment
            .add_template_owned("chat", python::without_generation_tags(&source.text))
            .map_err(|e| failed(&e))?;
        Ok(Self {
            environment,
            bos: source.bos.clone(),
            eos: source.eos.clone(),
        })
    }

    /// Renders a prompt. If the template refuses a system message, that message is prepended to the first user message.
    pub(super) fn render(&self, of: &Conversation) -> Result<String, ModelError> {
        let rendered = |messages: &[Message]| {
            let messages: Vec<Value> = messages
                .iter()
                .map(|m| context! { role => &m.role, content => &m.content })
                .collect();
            self.render_value(context! {
                messages,
                add_generation_prompt => of.add_generation_prompt,
                enable_thinking => of.thinking,
                // gpt-oss always thinks.
                reasoning_effort => if of.thinking { "medium" } else { "low" },
                // The values that Hugging Face passes by default.
                tools => (),
                documents => (),
            })
        };
        let refused = match rendered(&of.messages) {
            Ok(text) => return Ok(text),
            Err(refused) => refused,
        };
        match &of.messages[..] {
            [system, user, rest @ ..] if system.role == "system" && user.role == "user" => {
                let content = format!("{}\n\n{}", system.content, user.content);
                let user = Message {
                    role: "user".to_owned(),
                    content,
                };
                let messages: Vec<Message> = [&[user], rest].concat();
                rendered(&messages).map_err(|_| refused)
            }
            _ => Err(refused),
        }
    }

    /// Renders the template with arbitrary variables and the special tokens.
    pub(super) fn render_value(&self, values: Value) -> Result<String, ModelError> {
        let template = self
            .environment
            .get_template("chat")
            .map_err(|e| failed(&e))?;
        let roles = [("bos_token", &self.bos), ("eos_token", &self.eos)];
        let roles: BTreeMap<String, Value> = roles
            .into_iter()
            .filter_map(|(role, text)| Some((role.to_owned(), Value::from(text.as_deref()?))))
            .collect();
        // The engine panics on a few constructs (`''[::-1]` in minijinja 3.0), and templates are untrusted. Unwinding
        // is safe: rendering only reads.
        let rendering = AssertUnwindSafe(|| template.render(context! { ..values, ..roles }));
        match std::panic::catch_unwind(rendering) {
            Ok(rendered) => rendered.map_err(|e| failed(&e)),
            Err(_) => Err(ModelError::Template {
                what: "the template engine cannot do what it asks for".to_owned(),
            }),
        }
    }
}

fn failed(error: &Error) -> ModelError {
    let mut what = error.to_string().replace('\n', " ");
    const MAX_CHARS: usize = 300;
    if let Some((cut, _)) = what.char_indices().nth(MAX_CHARS) {
        what.truncate(cut);
    }
    ModelError::Template { what }
}
