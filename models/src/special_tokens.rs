//! Tokens that stand in a text by their name: marks of the conversation, and text that is one token wherever it stands.

use crate::ModelError;
use crate::gguf::Gguf;
use crate::sentencepiece::SPACE;
use crate::vocabulary::{Kind, Script, Vocabulary};

/// One such token.
pub(crate) struct Mark {
    pub(crate) id: u32,
    /// Its name, never empty.
    pub(crate) text: Box<str>,
    /// Whether a document may write it: it is text, and no mark of the conversation.
    in_documents: bool,
    /// Whether white space behind it belongs to it.
    pub(crate) takes_space: bool,
}

/// All of them, to be found in a text.
pub(crate) struct SpecialTokens {
    /// By the first byte of their text, the longest first.
    by_first: Vec<Vec<Mark>>,
    /// Whether a document may write any.
    any_in_documents: bool,
}

impl SpecialTokens {
    /// Control tokens and user-defined ones. Of the latter, what the chat template writes (`<think>`, `<tool_call>`) marks the
    /// conversation, so that a document must not write it, though the files call it text.
    pub(crate) fn read(
        gguf: &Gguf,
        vocabulary: &Vocabulary,
        script: Script,
    ) -> Result<SpecialTokens, ModelError> {
        let mut templates = String::new();
        for (key, _) in gguf.metadata() {
            if key.starts_with("tokenizer.chat_template") {
                templates.extend(gguf.text(key).ok().flatten());
            }
        }
        // Phi-3's marks take the line break that its template puts behind them; files do not say so, the model's name does.
        let name = gguf.text("general.name").ok().flatten().unwrap_or_default();
        let name = name.to_lowercase();
        let phi3 = script == Script::Pieces && (name.contains("phi-3") || name.contains("phi3"));
        let mut by_first: Vec<Vec<Mark>> = (0..256).map(|_| Vec::new()).collect();
        let mut any_in_documents = false;
        for id in 0..vocabulary.len() as u32 {
            let kind = vocabulary.kind(id);
            let text = match script {
                Script::Pieces => vocabulary.text(id).replace(SPACE, " "),
                Script::ByteSymbols => vocabulary.text(id).to_owned(),
            };
            let Some(&first) = text.as_bytes().first() else {
                continue;
            };
            if !matches!(kind, Kind::Control | Kind::UserDefined) {
                continue;
            }
            let blank = text.trim().is_empty();
            let in_documents = kind == Kind::UserDefined && (blank || !templates.contains(&text));
            any_in_documents |= in_documents;
            by_first[first as usize].push(Mark {
                id,
                in_documents,
                takes_space: phi3 && !["<unk>", "<s>", "<|endoftext|>"].contains(&&*text),
                text: text.into_boxed_str(),
            });
        }
        for marks in &mut by_first {
            marks.sort_by_key(|mark| std::cmp::Reverse(mark.text.len()));
        }
        Ok(SpecialTokens {
            by_first,
            any_in_documents,
        })
    }

    /// The next mark of a template's text from `from` on, and where it begins.
    pub(crate) fn next_in_template(&self, text: &str, from: usize) -> Option<(usize, &Mark)> {
        self.next(text, from, |_| true)
    }

    /// The next token of a document's text that is one by its name.
    pub(crate) fn next_in_document(&self, text: &str, from: usize) -> Option<(usize, &Mark)> {
        match self.any_in_documents {
            true => self.next(text, from, |mark| mark.in_documents),
            false => None,
        }
    }

    fn next(
        &self,
        text: &str,
        from: usize,
        allowed: impl Fn(&Mark) -> bool,
    ) -> Option<(usize, &Mark)> {
        let bytes = text.as_bytes();
        (from..bytes.len()).find_map(|at| {
            let mut here = self.by_first[bytes[at] as usize].iter();
            let mark =
                here.find(|mark| allowed(mark) && bytes[at..].starts_with(mark.text.as_bytes()));
            mark.map(|mark| (at, mark))
        })
    }

    /// The mark that a template's text ends with.
    pub(crate) fn last_in_template(&self, text: &str) -> Option<&Mark> {
        let all = self.by_first.iter().flatten();
        all.filter(|mark| text.ends_with(&*mark.text))
            .max_by_key(|mark| mark.text.len())
    }
}
