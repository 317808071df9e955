//! Chat templates: messages to the text of a prompt, by the Jinja template in the model file.
//!
//! Not here: tokens. The rendered text goes through [`crate::Tokenizer::encode_with_control`], a document through
//! `encode`: a document must never pass through a template, for it could then write control tokens.

use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, context};

use crate::gguf::Gguf;
use crate::{ModelError, Tokenizer};

/// Instructions that one rendering may take: a template is a program from a file, and it must end.
const FUEL: u64 = 10_000_000;

/// What models with `<|im_start|>` and without a template of their own were trained on.
const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

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
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// The file's template, or ChatML where the vocabulary has its marks.
    pub(crate) fn read(gguf: &Gguf, tokenizer: &Tokenizer) -> Result<ChatTemplate, ModelError> {
        let source = match gguf.text("tokenizer.chat_template")? {
            Some(source) => source,
            None => {
                let has = |mark: &str| {
                    tokenizer
                        .token_id(mark)
                        .is_some_and(|id| tokenizer.is_control(id))
                };
                if !has("<|im_start|>") || !has("<|im_end|>") {
                    return Err(ModelError::NoTemplate);
                }
                CHATML
            }
        };
        let text =
            |id: Option<u32>| id.map_or_else(String::new, |id| tokenizer.token_text(id).to_owned());
        ChatTemplate::compile(source, text(tokenizer.bos()), text(tokenizer.eos()))
    }

    /// Compile a template as Hugging Face renders it.
    fn compile(source: &str, bos: String, eos: String) -> Result<ChatTemplate, ModelError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build();
        environment.set_syntax(syntax.map_err(|e| failed(&e))?);
        environment.set_fuel(Some(FUEL));
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function(
            "raise_exception",
            |message: String| -> Result<String, Error> {
                Err(Error::new(ErrorKind::InvalidOperation, message))
            },
        );
        environment.add_function("strftime_now", |format: String| {
            let now = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default();
            strftime(&format, now.as_secs())
        });
        environment
            .add_template_owned("chat", source.to_owned())
            .map_err(|e| failed(&e))?;
        Ok(ChatTemplate {
            environment,
            source: source.to_owned(),
            bos,
            eos,
        })
    }

    /// The template itself.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The text of a prompt, control tokens written out.
    ///
    /// # Errors
    /// [`ModelError::Template`] when the template refuses the messages or does not end.
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<String, ModelError> {
        let messages: Vec<_> = messages
            .iter()
            .map(|m| context! { role => &m.role, content => &m.content })
            .collect();
        let template = self
            .environment
            .get_template("chat")
            .map_err(|e| failed(&e))?;
        template
            .render(context! {
                messages,
                add_generation_prompt,
                bos_token => &self.bos,
                eos_token => &self.eos,
            })
            .map_err(|e| failed(&e))
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

/// The few directives of `strftime` that templates use, in UTC: `%d %b %Y` and their kin. Others stay as written.
fn strftime(format: &str, unix_seconds: u64) -> String {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    let (days, seconds) = (unix_seconds / 86_400, unix_seconds % 86_400);
    let (year, month, day) = civil(days);
    let name = MONTHS[month as usize - 1];
    let mut out = String::new();
    let mut rest = format.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match rest.next() {
            Some('Y') => out.push_str(&year.to_string()),
            Some('m') => out.push_str(&format!("{month:02}")),
            Some('d') => out.push_str(&format!("{day:02}")),
            Some('B') => out.push_str(name),
            Some('b') => out.push_str(&name[..3]),
            Some('H') => out.push_str(&format!("{:02}", seconds / 3600)),
            Some('M') => out.push_str(&format!("{:02}", seconds / 60 % 60)),
            Some('S') => out.push_str(&format!("{:02}", seconds % 60)),
            Some('%') => out.push('%'),
            other => {
                out.push('%');
                out.extend(other);
            }
        }
    }
    out
}

/// Year, month and day of a day counted from 1970-01-01 (Howard Hinnant, "chrono-compatible low-level date algorithms").
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(role: &str, content: &str) -> Message {
        Message {
            role: role.to_owned(),
            content: content.to_owned(),
        }
    }

    fn compile(source: &str) -> Result<ChatTemplate, ModelError> {
        ChatTemplate::compile(source, "<s>".to_owned(), "</s>".to_owned())
    }

    #[test]
    fn chatml_is_what_it_is() {
        let messages = [message("system", "Be brief."), message("user", "Why?")];
        let text = compile(CHATML).unwrap().render(&messages, true).unwrap();
        let expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn python_methods_blocks_and_tokens_work_as_in_the_published_templates() {
        let source = "{{ bos_token }}\n{%- for m in messages %}\n    {%- if m.role.startswith('u') %}\n[{{ m['content'] | trim }}]{{ eos_token }}\n    {%- endif %}\n{%- endfor %}";
        let text = compile(source)
            .unwrap()
            .render(&[message("user", " hi ")], false)
            .unwrap();
        assert_eq!(text, "<s>[hi]</s>");
    }

    #[test]
    fn a_template_can_refuse_and_cannot_run_forever() {
        let refuses = compile("{{ raise_exception('roles must alternate') }}").unwrap();
        let error = refuses.render(&[], true).unwrap_err().to_string();
        assert!(error.contains("roles must alternate"), "{error}");
        let long = compile(
            "{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}",
        )
        .unwrap();
        assert!(matches!(
            long.render(&[], true),
            Err(ModelError::Template { .. })
        ));
        assert!(matches!(
            compile("{% if %}"),
            Err(ModelError::Template { .. })
        ));
    }

    #[test]
    fn dates_are_written_as_strftime_does() {
        assert_eq!(strftime("%d %b %Y", 1_732_060_800), "20 Nov 2024");
        assert_eq!(
            strftime("%B %d, %Y %H:%M:%S %%%q", 951_782_400),
            "February 29, 2000 00:00:00 %%q"
        );
    }
}
