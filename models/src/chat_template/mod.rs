//! Chat templates: render messages to a prompt text with the Jinja template of the model file, as Hugging Face does.
//!
//! The rendered text is encoded with [`crate::Tokenizer::encode_template`], a document with `encode`. A document must
//! never pass through a template, because it could then contain control tokens.
//!
//! A template is a program that a stranger wrote. It is compiled and rendered in a process of its own if the program can
//! start one (`kept_sandbox`): none of its loops, strings or nestings can harm this one.

mod apart;
mod families;
mod jinja;
mod python;

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use apart::Apart;
pub use apart::RENDERING;
use jinja::{Conversation, Jinja, Source};

use crate::gguf::Gguf;
use crate::{ModelError, Tokenizer};

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// Text of the message.
    pub content: String,
}

/// A model's chat template, checked.
pub struct ChatTemplate {
    source: Source,
    engine: Engine,
    note: Option<String>,
}

/// Where a template is rendered.
enum Engine {
    /// In this process.
    Here(Box<Jinja>),
    /// In a process of its own.
    Apart(Apart),
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
        let strange = own.is_some() && kept_sandbox::is_available();
        let (source, note) = match own {
            Some(source) => (source, None),
            None => families::known_format(gguf, tokenizer)?,
        };
        let text = |id: Option<u32>| id.map(|id| tokenizer.token_text(id).to_owned());
        let (bos, eos) = (text(tokenizer.bos()), text(tokenizer.eos()));
        let source = Source::now(source, bos, eos);
        let engine = match strange {
            true => Engine::Apart(Apart::check(&source)?),
            false => Engine::Here(Box::new(Jinja::compile(&source)?)),
        };
        Ok(ChatTemplate {
            source,
            engine,
            note,
        })
    }

    /// The template's source.
    pub fn source(&self) -> &str {
        &self.source.text
    }

    /// A sentence for the user if a built-in format replaces a missing template.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// Whether the template has a switch for thinking before the answer, or for its length.
    pub fn can_think(&self) -> bool {
        ["enable_thinking", "reasoning_effort"]
            .iter()
            .any(|switch| self.source().contains(switch))
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
        let conversation = Conversation {
            messages: messages.to_vec(),
            add_generation_prompt,
            thinking,
        };
        match &self.engine {
            Engine::Here(jinja) => jinja.render(&conversation),
            Engine::Apart(apart) => apart.render(&self.source, conversation),
        }
    }
}

impl Source {
    fn now(text: &str, bos: Option<String>, eos: Option<String>) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            text: text.to_owned(),
            bos,
            eos,
            unix_seconds: now.unwrap_or_default().as_secs(),
        }
    }
}

/// For comparison with other implementations.
#[cfg(feature = "testing")]
impl ChatTemplate {
    /// Compiles a template from source, in this process.
    ///
    /// # Errors
    /// `Template` if it does not compile.
    pub fn from_source(
        source: &str,
        bos: Option<String>,
        eos: Option<String>,
    ) -> Result<ChatTemplate, ModelError> {
        ChatTemplate::here(Source::now(source, bos, eos))
    }

    fn here(source: Source) -> Result<ChatTemplate, ModelError> {
        Ok(ChatTemplate {
            engine: Engine::Here(Box::new(Jinja::compile(&source)?)),
            source,
            note: None,
        })
    }

    /// Sets the current time, in seconds since 1970 (UTC).
    ///
    /// # Errors
    /// `Template`
    pub fn at(self, unix_seconds: u64) -> Result<ChatTemplate, ModelError> {
        ChatTemplate::here(Source {
            unix_seconds,
            ..self.source
        })
    }

    /// Renders the template with arbitrary variables.
    ///
    /// # Errors
    /// [`ModelError::Template`].
    pub fn render_value(&self, values: minijinja::Value) -> Result<String, ModelError> {
        match &self.engine {
            Engine::Here(jinja) => jinja.render_value(values),
            Engine::Apart(_) => Err(ModelError::Template {
                what: "it is rendered in a process of its own".to_owned(),
            }),
        }
    }
}
