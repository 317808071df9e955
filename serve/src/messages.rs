//! From messages to a conversation: documents, earlier turns, the question.

use kept_engine::Turn;

use crate::error::ApiError;
use crate::request::{Content, Message};

/// A conversation as the engine takes it.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Conversation {
    /// Ids of the files that messages name, in order, each once.
    pub(crate) files: Vec<String>,
    pub(crate) turns: Vec<Turn>,
    pub(crate) question: String,
}

fn invalid(what: impl Into<String>) -> ApiError {
    ApiError::Invalid {
        param: "messages",
        what: what.into(),
    }
}

impl Conversation {
    /// Instructions (`system`, `developer`) stand before the next question, and after the last one if none follows: Kept's
    /// prompt begins with the document. Messages of the same side in a row are one, also around an empty answer, such
    /// as one that only calls a tool.
    ///
    /// # Errors
    /// If the last message is not the user's, an answer comes first, or a message is not text.
    pub(crate) fn new(messages: Vec<Message>) -> Result<Self, ApiError> {
        let mut found = Self::default();
        let (mut instructions, mut question): (Vec<String>, Option<String>) = (Vec::new(), None);
        let mut answer: Option<String> = None;
        for message in messages {
            let text = found.text_of(message.content)?;
            match message.role.as_str() {
                "system" | "developer" => instructions.push(text),
                "user" => {
                    if let Some(answer) = answer.take() {
                        let asked = question.take().unwrap_or_default();
                        match Turn::new(&asked, &answer) {
                            Some(turn) => found.turns.push(turn),
                            None => question = Some(asked),
                        }
                    }
                    let before = question.take().into_iter().chain(instructions.drain(..));
                    let texts: Vec<String> = before.chain([text]).collect();
                    question = Some(joined(&texts));
                }
                "assistant" if question.is_none() => {
                    return Err(invalid(
                        "an answer comes first: begin with a message of the user",
                    ));
                }
                "assistant" => {
                    let texts: Vec<String> = answer.take().into_iter().chain([text]).collect();
                    answer = Some(joined(&texts));
                }
                role => {
                    return Err(invalid(format!(
                        "the role {role:?} is not known: system, developer, user and assistant are"
                    )));
                }
            }
        }
        found.question = match (question, answer) {
            (Some(question), None) => {
                let texts: Vec<String> = [question].into_iter().chain(instructions).collect();
                joined(&texts)
            }
            (Some(_), Some(_)) => {
                return Err(invalid(
                    "the last message is an answer: end with one of the user",
                ));
            }
            (None, _) => return Err(invalid("there is no message of the user")),
        };
        Ok(found)
    }

    /// The text of a message; its files are added.
    fn text_of(&mut self, content: Option<Content>) -> Result<String, ApiError> {
        let parts = match content {
            None => return Ok(String::new()),
            Some(Content::Text(text)) => return Ok(text),
            Some(Content::Parts(parts)) => parts,
        };
        let mut texts = Vec::new();
        for part in parts {
            match (part.kind.as_str(), part.text, part.file) {
                ("text" | "input_text", Some(text), _) => texts.push(text),
                ("file" | "input_file", _, Some(file)) => {
                    let id = file.file_id.ok_or_else(|| {
                        invalid("a file needs its file_id: upload it to /v1/files first")
                    })?;
                    if !self.files.contains(&id) {
                        self.files.push(id);
                    }
                }
                (kind, ..) => {
                    return Err(invalid(format!(
                        "a part of type {kind:?} cannot be read: the model reads text and files"
                    )));
                }
            }
        }
        Ok(joined(&texts))
    }
}

fn joined(texts: &[String]) -> String {
    let texts = texts.iter().map(|text| text.trim());
    let texts: Vec<&str> = texts.filter(|text| !text.is_empty()).collect();
    texts.join("\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversation(messages: serde_json::Value) -> Result<Conversation, String> {
        let messages = serde_json::from_value(messages).expect("messages");
        Conversation::new(messages).map_err(|error| error.to_string())
    }

    #[test]
    fn messages_become_turns_and_a_question() {
        let found = conversation(serde_json::json!([
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What is this?"},
            {"role": "assistant", "content": "<think>hm</think>A lease."},
            {"role": "user", "content": [
                {"type": "file", "file": {"file_id": "file-1"}},
                {"type": "text", "text": "Who signs?"},
                {"type": "file", "file": {"file_id": "file-1"}},
            ]},
            {"role": "user", "content": "And when?"},
        ]));
        let turn = Turn::new("Be brief.\n\nWhat is this?", "A lease.").expect("a turn");
        let expected = Conversation {
            files: vec!["file-1".to_owned()],
            turns: vec![turn],
            question: "Who signs?\n\nAnd when?".to_owned(),
        };
        assert_eq!(found, Ok(expected));
    }

    #[test]
    fn nothing_that_was_said_is_lost() {
        let found = conversation(serde_json::json!([
            {"role": "user", "content": "Who signs?"},
            {"role": "assistant", "content": null},
            {"role": "user", "content": "And when?"},
            {"role": "system", "content": "Be brief."},
        ]));
        let expected = Conversation {
            question: "Who signs?\n\nAnd when?\n\nBe brief.".to_owned(),
            ..Conversation::default()
        };
        assert_eq!(found, Ok(expected));
    }

    #[test]
    fn what_is_no_conversation_is_refused() {
        for (messages, named) in [
            (serde_json::json!([]), "no message of the user"),
            (
                serde_json::json!([{"role": "assistant", "content": "Hi"}]),
                "answer comes first",
            ),
            (
                serde_json::json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hi"}]),
                "last message is an answer",
            ),
            (
                serde_json::json!([{"role": "tool", "content": "1"}]),
                "\"tool\"",
            ),
            (
                serde_json::json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
                "\"image_url\"",
            ),
            (
                serde_json::json!([{"role": "user", "content": [{"type": "file", "file": {}}]}]),
                "file_id",
            ),
        ] {
            let error = conversation(messages).expect_err("refused");
            assert!(error.contains(named), "{error}");
        }
    }
}
