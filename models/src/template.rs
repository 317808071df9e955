//! Chat templates: messages to the text of a prompt, by the Jinja template in the model file, as Hugging Face renders it.
//!
//! Not here: tokens. The rendered text goes through [`crate::Tokenizer::encode_template`], a document through
//! `encode`: a document must never pass through a template, for it could then write control tokens.

mod families;
mod python;

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, Value, context};

use crate::gguf::Gguf;
use crate::{ModelError, Tokenizer};

/// Instructions that one rendering may take: a template is a program from a file, and it must end.
const FUEL: u64 = 10_000_000;

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// What was said.
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
    /// The template of a file: `tokenizer.chat_template`, else the one named `default`. Where a file has none, a format of ours
    /// ([`Self::note`]): that of its control tokens for a chat model, else plain text.
    ///
    /// # Errors
    /// `Template` when it does not compile, `BadValue`.
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

    /// Compile a template as Hugging Face renders it.
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

    /// The same at another time than now, in seconds since 1970 (UTC), for templates that write a date.
    pub fn at(mut self, unix_seconds: u64) -> ChatTemplate {
        self.environment
            .add_function("strftime_now", move |format: String| {
                python::strftime(&format, unix_seconds)
            });
        self
    }

    /// The template itself.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// What a person should know where the file has no template of its own, one sentence.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// Whether the template has a switch for thinking before the answer.
    pub fn can_think(&self) -> bool {
        self.source.contains("enable_thinking")
    }

    /// The text of a prompt, control tokens written out. `thinking` lets models that can think before they answer; it does
    /// nothing where a template has no switch for it. Where the template refuses a system message, its words open the first user's.
    ///
    /// # Errors
    /// [`ModelError::Template`] when the template refuses the messages or does not end.
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
                // As Hugging Face passes them where there are none.
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

    /// A template of any source, for holding it against other implementations.
    ///
    /// # Errors
    /// `Template` when it does not compile.
    #[cfg(feature = "testing")]
    pub fn of_source(
        source: &str,
        bos: Option<String>,
        eos: Option<String>,
    ) -> Result<ChatTemplate, ModelError> {
        ChatTemplate::compile(source, bos, eos)
    }

    /// What the template makes of anything that Hugging Face's can be given.
    ///
    /// # Errors
    /// [`ModelError::Template`].
    #[cfg(feature = "testing")]
    pub fn render_anything(&self, values: Value) -> Result<String, ModelError> {
        self.render_value(values)
    }

    /// The text that the template makes of anything it can be given.
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
        // The engine panics on a few things that a template can do (`''[::-1]` in minijinja 3.0), and a template comes from a file.
        // Nothing is left half done: rendering only reads.
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
