//! The channels of gpt-oss' conversation format (harmony) and of Gemma 4's: thoughts come before the answer, apart from
//! it.
//!
//! ```text
//! <|channel>thought ...<channel|>...<turn|>
//! <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...<|return|>
//! ```
//!
//! The text that a reader gets has them as other models write them: `<think>...</think>` and the answer.

use std::borrow::Cow;

use super::Tokenizer;

/// A format's control tokens.
#[derive(Debug, Clone, Copy)]
enum Format {
    Harmony(Marks),
    /// A channel from `open` to `close`, with its name in the first line.
    Gemma4 {
        open: u32,
        close: u32,
    },
}

/// Ids of harmony's control tokens.
#[derive(Debug, Clone, Copy)]
struct Marks {
    start: u32,
    channel: u32,
    message: u32,
    end: u32,
}

/// The part of the format in which the next token stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Between a message's end and the next message's text: names of the role and of the channel.
    Header,
    Thought,
    Answer,
}

/// Follows an answer token by token.
#[derive(Debug, Clone)]
pub(super) struct Channels {
    format: Format,
    part: Part,
    /// Text since the last control token, in a header.
    header: String,
    /// A thought has been opened and not closed.
    open: bool,
}

impl Channels {
    /// At the start of an answer by a model whose vocabulary has the format's control tokens.
    pub(super) fn of(tokenizer: &Tokenizer) -> Option<Self> {
        let id = |text| tokenizer.token_id(text);
        let harmony = || {
            Some(Format::Harmony(Marks {
                start: id("<|start|>")?,
                channel: id("<|channel|>")?,
                message: id("<|message|>")?,
                end: id("<|end|>")?,
            }))
        };
        let gemma4 = || {
            let (open, close) = (id("<|channel>")?, id("<channel|>")?);
            Some(Format::Gemma4 { open, close })
        };
        Some(Self {
            format: harmony().or_else(gemma4)?,
            // The prompt may end inside a message; otherwise the first token is a mark.
            part: Part::Answer,
            header: String::new(),
            open: false,
        })
    }

    /// What to write for token `id`, whose own text is `text`.
    pub(super) fn push<'t>(&mut self, id: u32, text: &'t [u8]) -> Cow<'t, [u8]> {
        match self.format {
            Format::Harmony(marks) => Cow::Borrowed(self.push_harmony(marks, id, text)),
            Format::Gemma4 { open, close } => self.push_gemma4([open, close], id, text),
        }
    }

    fn push_gemma4<'t>(
        &mut self,
        [open, close]: [u32; 2],
        id: u32,
        text: &'t [u8],
    ) -> Cow<'t, [u8]> {
        let nothing = Cow::Borrowed(&b""[..]);
        if id == open {
            self.part = Part::Header;
            return nothing;
        }
        if id == close {
            self.part = Part::Answer;
            return match std::mem::take(&mut self.open) {
                true => Cow::Borrowed(b"</think>\n\n"),
                false => nothing,
            };
        }
        match self.part {
            Part::Header => {
                if text.contains(&b'\n') {
                    self.part = Part::Thought;
                }
                nothing
            }
            // A model that does not think may open a channel and close it at once.
            Part::Thought if !self.open && text.trim_ascii().is_empty() => nothing,
            Part::Thought if !self.open => {
                self.open = true;
                Cow::Owned([b"<think>", text].concat())
            }
            Part::Thought | Part::Answer => Cow::Borrowed(text),
        }
    }

    fn push_harmony<'t>(&mut self, marks: Marks, id: u32, text: &'t [u8]) -> &'t [u8] {
        let Marks {
            start,
            channel,
            message,
            end,
        } = marks;
        if id == message {
            let said = std::mem::take(&mut self.header);
            // Tools are called in channel `commentary`; Kept has none, so what is said there is for the model itself.
            let thought = matches!(
                said.split_whitespace().next(),
                Some("analysis" | "commentary")
            );
            self.part = if thought { Part::Thought } else { Part::Answer };
            return match (thought, std::mem::replace(&mut self.open, thought)) {
                (true, false) => b"<think>",
                (true, true) => b"\n\n",
                (false, true) => b"</think>\n\n",
                (false, false) => b"",
            };
        }
        if [start, channel, end].contains(&id) {
            self.header.clear();
            self.part = Part::Header;
            return b"";
        }
        if self.part == Part::Header {
            self.header.push_str(&String::from_utf8_lossy(text));
            return b"";
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use crate::gguf::Gguf;
    use crate::testing::{MetaValue, TinyLlama};
    use crate::tokenizer::{StreamDecoder, Tokenizer};

    const HARMONY: &[(&str, u32)] = &[
        // As in converted files, some marks are control tokens and some are tokens of the user.
        ("<|start|>", 3),
        ("<|channel|>", 4),
        ("<|message|>", 4),
        ("<|end|>", 3),
        ("<|return|>", 3),
        ("<|call|>", 3),
    ];
    const GEMMA4: &[(&str, u32)] = &[("<|channel>", 4), ("<channel|>", 4), ("<turn|>", 3)];

    fn tokenizer(marks: &[(&str, u32)]) -> (tempfile::TempDir, Tokenizer) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("harmony.gguf");
        let mut writer = TinyLlama::default().writer();
        let gguf = {
            writer.write(&path).unwrap();
            Gguf::open(&path).unwrap()
        };
        let texts = gguf.texts("tokenizer.ggml.tokens").unwrap().unwrap();
        let mut texts: Vec<String> = texts.into_iter().map(str::to_owned).collect();
        let kinds = gguf.wholes("tokenizer.ggml.token_type").unwrap().unwrap();
        let mut kinds: Vec<u32> = kinds.into_iter().map(|kind| kind as u32).collect();
        for &(mark, kind) in marks {
            texts.push(mark.to_owned());
            kinds.push(kind);
        }
        writer.set("tokenizer.ggml.tokens", MetaValue::Texts(texts));
        writer.set("tokenizer.ggml.token_type", MetaValue::Wholes(kinds));
        writer.write(&path).unwrap();
        let tokenizer = Tokenizer::read(&Gguf::open(&path).unwrap(), None).unwrap();
        (folder, tokenizer)
    }

    fn written(marks: &[(&str, u32)], said: &str) -> String {
        let (_folder, tokenizer) = tokenizer(marks);
        let mut stream = StreamDecoder::of_answer(&tokenizer);
        let mut out = String::new();
        for id in tokenizer.encode_template(said, false) {
            stream.push(&tokenizer, id, &mut out);
        }
        stream.finish(&mut out);
        out
    }

    #[test]
    fn thoughts_are_written_as_other_models_write_them() {
        for (said, expected) in [
            (
                "<|channel|>analysis<|message|>Hello a<|end|><|start|>assistant<|channel|>final<|message|>Hello b",
                "<think>Hello a</think>\n\nHello b",
            ),
            (
                "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary to=f <|message|>b<|end|><|start|>assistant<|channel|>final<|message|>c",
                "<think>a\n\nb</think>\n\nc",
            ),
            ("<|channel|>final<|message|>Hello", "Hello"),
            ("Hello", "Hello"),
            ("<|channel|>analysis<|message|>cut", "<think>cut"),
            ("<|start|>assistant<|message|>Hello", "Hello"),
        ] {
            assert_eq!(written(HARMONY, said), expected, "{said}");
        }
        for (said, expected) in [
            (
                "<|channel>thought\nHello a<channel|>Hello b",
                "<think>Hello a</think>\n\nHello b",
            ),
            ("<|channel>thought\n<channel|>Hello", "Hello"),
            ("<|channel>thought\ncut", "<think>cut"),
            ("Hello\nb", "Hello\nb"),
        ] {
            assert_eq!(written(GEMMA4, said), expected, "{said}");
        }
    }
}
