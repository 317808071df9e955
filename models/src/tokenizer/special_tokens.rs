//! Special tokens, found in a text by name: control tokens, and user-defined tokens that are matched before merging.

use super::vocabulary::{Kind, SPACE, Script, Vocabulary};
use crate::ModelError;
use crate::gguf::Gguf;

/// A special token.
pub(crate) struct Mark {
    pub(crate) id: u32,
    /// The token's name, never empty.
    pub(crate) text: Box<str>,
    /// Whether the token is recognised in documents: it is user-defined, and is white space or not used by the chat
    /// template.
    in_documents: bool,
    /// Whether the token includes the white space after it.
    pub(crate) takes_space: bool,
}

/// The special tokens of a vocabulary, indexed for search.
pub(crate) struct SpecialTokens {
    /// Indexed by the first byte of the token's text; the longest first.
    by_first: Vec<Vec<Mark>>,
    /// Whether any token is recognised in documents.
    any_in_documents: bool,
}

impl SpecialTokens {
    /// Reads control tokens and user-defined tokens. A user-defined token that occurs in the chat template (`<think>`,
    /// `<tool_call>`) is treated as a control token and not recognised in documents, although the file types it as
    /// text.
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
        // Phi-3's special tokens include the line break after them. Only the model's name identifies such a file.
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

    /// The next special token in a template's text at or after byte `from`, with its offset.
    pub(crate) fn next_in_template(&self, text: &str, from: usize) -> Option<(usize, &Mark)> {
        self.next(text, from, |_| true)
    }

    /// The next special token that is recognised in a document's text at or after byte `from`, with its offset.
    pub(crate) fn next_in_document(&self, text: &str, from: usize) -> Option<(usize, &Mark)> {
        if self.any_in_documents {
            self.next(text, from, |mark| mark.in_documents)
        } else {
            None
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

    /// The special token at the end of a template's text.
    pub(crate) fn last_in_template(&self, text: &str) -> Option<&Mark> {
        let all = self.by_first.iter().flatten();
        all.filter(|mark| text.ends_with(&*mark.text))
            .max_by_key(|mark| mark.text.len())
    }
}
