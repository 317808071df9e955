//! Chat templates: render messages to a prompt text with the Jinja template of the model file, as Hugging Face does.
//!
//! The rendered text is encoded with [`crate::Tokenizer::encode_template`], a document with `encode`. A document must
//! never pass through a template, because it could then contain control tokens.

mod families;
mod python;

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, Value, context};

use crate::gguf::Gguf;
use crate::{ModelError, Tokenizer};

/// Most instructions per rendering. A template is an untrusted program and must terminate.
const FUEL: u64 = 10_000_000;

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// Text of the message.
    pub content: String,
}

/// A model's chat template, compiled.
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    bos: Option<String>,
    eos: Option<String>,
    note: Option<String>,
}

impl ChatTemplate {
    /// The template of a file: `tokenizer.chat_template`, else the one named `default`. A file without a template gets
    /// a built-in format ([`Self::note`]): for a chat model the one of its control tokens, else plain text.
    ///
    /// # Errors
    /// `Template` if it does not compile, `BadValue`.
    pub fn of_file(gguf: &Gguf, tokenizer: &Tokenizer) -> Result<ChatTemplate, ModelError> {
        let own = gguf.text("tokenizer.chat_template")?;
        let own = own.filter(|source| !source.trim().is_empty());
        let own = match own {
            Some(source) => Some(source),
            None => gguf.text("tokenizer.chat_template.default")?,
        };
        let (source, note) = match own {
            Some(source) => (source, None),
            None => families::known_format(gguf, tokenizer)?,
        };
        let text = |id: Option<u32>| id.map(|id| tokenizer.token_text(id).to_owned());
        let (bos, eos) = (text(tokenizer.bos()), text(tokenizer.eos()));
        let template = ChatTemplate::compile(source, bos, eos)?;
        Ok(ChatTemplate { note, ..template })
    }

    /// Compiles a template with Hugging Face's settings.
    fn compile(
        source: &str,
        bos: Option<String>,
        eos: Option<String>,
    ) -> Result<ChatTemplate, ModelError> {
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
        environment
            .add_template_owned("chat", python::without_generation_tags(source))
            .map_err(|e| failed(&e))?;
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let template = ChatTemplate {
            environment,
            source: source.to_owned(),
            bos,
            eos,
            note: None,
        };
        Ok(template.at(now.as_secs()))
    }

    /// Sets the current time, in seconds since 1970 (UTC), for templates that write a date.
    pub fn at(mut self, unix_seconds: u64) -> ChatTemplate {
        self.environment
            .add_function("strftime_now", move |format: String| {
                python::strftime(&format, unix_seconds)
            });
        self
    }

    /// The template's source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// A sentence for the user if a built-in format replaces a missing template.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// Whether the template has a switch for thinking before the answer, or for its length.
    pub fn can_think(&self) -> bool {
        ["enable_thinking", "reasoning_effort"]
            .iter()
            .any(|switch| self.source.contains(switch))
    }

    /// Renders a prompt, with control tokens as text. `thinking` enables thinking in templates with a switch for it. If
    /// the template refuses a system message, that message is prepended to the first user message.
    ///
    /// # Errors
    /// [`ModelError::Template`] if the template refuses the messages or does not terminate.
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        thinking: bool,
    ) -> Result<String, ModelError> {
        let rendered = |messages: &[Message]| {
            let messages: Vec<Value> = messages
                .iter()
                .map(|m| context! { role => &m.role, content => &m.content })
                .collect();
            self.render_value(context! {
                messages,
                add_generation_prompt,
                enable_thinking => thinking,
                // gpt-oss always thinks.
                reasoning_effort => if thinking { "medium" } else { "low" },
                // The values that Hugging Face passes by default.
                tools => (),
                documents => (),
            })
        };
        let refused = match rendered(messages) {
            Ok(text) => return Ok(text),
            Err(refused) => refused,
        };
        match messages {
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

    /// Compiles a template from source, for comparison with other implementations.
    ///
    /// # Errors
    /// `Template` if it does not compile.
    #[cfg(feature = "testing")]
    pub fn of_source(
        source: &str,
        bos: Option<String>,
        eos: Option<String>,
    ) -> Result<ChatTemplate, ModelError> {
        ChatTemplate::compile(source, bos, eos)
    }

    /// Renders the template with arbitrary variables.
    ///
    /// # Errors
    /// [`ModelError::Template`].
    #[cfg(feature = "testing")]
    pub fn render_anything(&self, values: Value) -> Result<String, ModelError> {
        self.render_value(values)
    }

    /// Renders the template with arbitrary variables and the special tokens.
    fn render_value(&self, values: Value) -> Result<String, ModelError> {
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
    const LONGEST: usize = 300;
    if let Some((cut, _)) = what.char_indices().nth(LONGEST) {
        what.truncate(cut);
    }
    ModelError::Template { what }
}
