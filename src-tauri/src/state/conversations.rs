//! The list of conversations: a new one, opening another one, renaming, pinning, deleting and restoring.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::AppState;
use super::conversation::Loaded;
use super::document::OpenDocument;
use super::effect::{Open, Save};
use super::parts::{OpenConversation, take};
use crate::contract::{AppEvent, ConversationEntry, Turn};
use crate::messages;

/// Maximum length of a title, in characters.
const MAX_TITLE_CHARS: usize = 200;

/// Seconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

impl AppState {
    /// The list, pinned conversations first, then the newest.
    pub(super) fn entries(&self) -> Vec<ConversationEntry> {
        let mut entries = self.conversations.all.clone();
        entries.sort_by_key(|entry| (!entry.pinned, u64::MAX - entry.updated, u64::MAX - entry.id));
        entries
    }

    pub(super) fn emit_conversations(&mut self) {
        let conversations = self.entries();
        let current = self.open.conversation;
        self.emit(AppEvent::Conversations {
            conversations,
            current,
        });
    }

    /// Stores which document and conversation are open.
    pub(super) fn save_open(&mut self) {
        self.save(Save::Open(Open {
            document: self.open.document.as_ref().map(|d| d.facts.id),
            conversation: self.open.conversation,
        }));
    }

    pub(super) fn conversation_mut(&mut self, id: u64) -> Result<&mut ConversationEntry, String> {
        let mut all = self.conversations.all.iter_mut();
        all.find(|conversation| conversation.id == id)
            .ok_or_else(|| messages::NO_CONVERSATION.to_owned())
    }

    fn save_conversation(&mut self, id: u64) {
        let known = self.conversations.all.iter().find(|known| known.id == id);
        if let Some(conversation) = known.cloned() {
            self.save(Save::Conversation(Box::new(conversation)));
        }
    }

    /// Adds `count` questions to the open conversation: none for a further version of one, or a comparison. The first
    /// begins it.
    pub(super) fn add_question(&mut self, question: &str, count: usize) {
        let Some(document) = &self.open.document else {
            return;
        };
        let open = self.open.conversation;
        let id = open.unwrap_or_else(|| take(&mut self.ids.conversation));
        if open.is_none() {
            self.conversations.all.push(ConversationEntry {
                id,
                title: question.to_owned(),
                document: document.info.name.clone(),
                document_id: document.facts.id,
                pages: document.facts.pages.len(),
                page_noun: document.facts.page_noun.clone(),
                first: String::new(),
                questions: 0,
                updated: 0,
                pinned: false,
            });
        }
        if let Ok(conversation) = self.conversation_mut(id) {
            if count > 0 && conversation.questions == 0 {
                conversation.first = question.to_owned();
            }
            conversation.questions += count;
            conversation.updated = now();
        }
        self.save_conversation(id);
        if self.open.conversation.replace(id).is_none() {
            self.save_open();
        }
        self.emit_conversations();
    }

    /// A question of the open conversation, or another version of one, was removed. A conversation without any leaves
    /// the list.
    pub(super) fn question_removed(&mut self, is_version: bool) {
        let Some(id) = self.open.conversation else {
            return;
        };
        if self.open.turns.is_empty() && self.compared.comparison.is_none() {
            self.conversations.all.retain(|known| known.id != id);
            self.open.conversation = None;
            self.save(Save::HideConversation(id));
            self.save_open();
        } else if let Ok(conversation) = self.conversation_mut(id) {
            conversation.questions -= usize::from(!is_version);
        }
        self.emit_conversations();
    }

    /// The document of the open conversation was extended.
    pub(super) fn conversation_grew(&mut self) {
        let document = self.open.document.as_ref();
        let document = document.map(|d| (d.facts.id, d.info.name.clone(), d.facts.pages.len()));
        if let (Some(id), Some((document, name, pages))) = (self.open.conversation, document)
            && let Ok(conversation) = self.conversation_mut(id)
        {
            conversation.document_id = document;
            conversation.document = name;
            conversation.pages = pages;
            self.save_conversation(id);
            self.emit_conversations();
        }
    }

    /// Whether another conversation is about the document `id` too.
    pub(super) fn is_shared(&self, document: u64) -> bool {
        let mut all = self
            .conversations
            .all
            .iter()
            .chain(&self.conversations.deleted);
        all.any(|other| other.document_id == document && Some(other.id) != self.open.conversation)
    }

    /// Begins a new conversation about the open document.
    pub fn new_conversation(&mut self) {
        self.leave_conversation(self.open.document.clone());
        self.save_open();
        self.emit_document();
        self.emit_conversations();
    }

    /// Adds a conversation that was exported earlier, and opens it. Its turns have no maps.
    ///
    /// # Errors
    /// As [`AppState::choose_conversation`].
    pub fn import_conversation(
        &mut self,
        title: &str,
        mut document: OpenDocument,
        turns: Vec<Turn>,
    ) -> Result<(), String> {
        let id = take(&mut self.ids.conversation);
        document.facts.id = self.new_document_id();
        self.save(Save::Document(Arc::new(document.clone())));
        let turns = turns.into_iter().map(|turn| Turn {
            has_map: false,
            has_lift: false,
            has_replay: false,
            levels: 0,
            levels_done: false,
            ..turn
        });
        let turns = self.copy_turns(id, &document, title, turns.collect());
        self.show_conversation(Loaded {
            conversation: id,
            document: Arc::new(document),
            comparison: None,
            turns,
        })
    }

    /// Adds the conversation `id` with copies of `turns` to the list, and returns the copies.
    fn copy_turns(
        &mut self,
        id: u64,
        document: &OpenDocument,
        title: &str,
        turns: Vec<Turn>,
    ) -> Vec<Turn> {
        let first = turns.first().map(|turn| turn.question.clone());
        let first = first.unwrap_or_default();
        let conversation = ConversationEntry {
            id,
            title: title.to_owned(),
            document: document.info.name.clone(),
            document_id: document.facts.id,
            pages: document.facts.pages.len(),
            page_noun: document.facts.page_noun.clone(),
            first,
            questions: turns.iter().filter(|t| t.version_of.is_none()).count(),
            updated: now(),
            pinned: false,
        };
        self.save(Save::Conversation(Box::new(conversation.clone())));
        self.conversations.all.push(conversation);
        let mut copies: Vec<Turn> = Vec::with_capacity(turns.len());
        let mut copied = HashMap::new();
        for turn in turns {
            let (from, to) = (turn.id, take(&mut self.ids.turn));
            copied.insert(from, to);
            let turn = Turn {
                id: to,
                version_of: turn.version_of.and_then(|of| copied.get(&of).copied()),
                levels: 0,
                levels_done: false,
                ..turn
            };
            self.save(Save::Turn {
                conversation: id,
                turn: Box::new(turn.clone()),
            });
            if turn.has_map {
                self.save(Save::CopyMap { from, to });
            }
            copies.push(turn);
        }
        copies
    }

    /// Begins a conversation with the turns up to `turn`; the open one remains in the list.
    ///
    /// # Errors
    /// One sentence, if there is no such turn, or a question of this conversation runs or waits.
    pub fn branch_conversation(&mut self, turn: u64) -> Result<(), String> {
        self.not_asking()?;
        let known = self.known_turn(turn)?;
        let first = known.first_version();
        let mut kept = self.turns_until(first);
        // Of several versions the branch has this one.
        kept.push(Turn {
            version_of: None,
            ..known.clone()
        });
        let title = match self.open.conversation {
            Some(id) => self.title_of_conversation(id)?,
            None => String::new(),
        };
        self.open_branch(&messages::branch_of(&title), kept)
    }

    /// Begins a conversation with the turns before `turn`, titled `question`; the open one remains in the list.
    ///
    /// # Errors
    /// As [`AppState::branch_conversation`].
    pub(super) fn branch_before(&mut self, turn: u64, question: &str) -> Result<(), String> {
        self.not_asking()?;
        let kept = self.turns_until(self.known_turn(turn)?.first_version());
        let thinking = self.open.thinking;
        if kept.is_empty() {
            self.new_conversation();
        } else {
            self.open_branch(question, kept)?;
        }
        self.set_thinking(thinking);
        Ok(())
    }

    fn not_asking(&self) -> Result<(), String> {
        match self.works_in(&self.open) {
            true => Err(messages::BUSY.to_owned()),
            false => Ok(()),
        }
    }

    /// The turns before the question whose first version is `first`.
    fn turns_until(&self, first: u64) -> Vec<Turn> {
        let before = |turn: &&Turn| turn.first_version() < first;
        self.open.turns.iter().filter(before).cloned().collect()
    }

    fn open_branch(&mut self, title: &str, turns: Vec<Turn>) -> Result<(), String> {
        let Some(document) = self.open.document.clone() else {
            return Err(messages::NO_DOCUMENT.to_owned());
        };
        let id = take(&mut self.ids.conversation);
        let turns = self.copy_turns(id, &document, title, turns);
        self.show_conversation(Loaded {
            conversation: id,
            document,
            comparison: None,
            turns,
        })
    }

    /// The title of a conversation.
    ///
    /// # Errors
    /// One sentence, if there is no such conversation.
    pub fn title_of_conversation(&mut self, id: u64) -> Result<String, String> {
        Ok(self.conversation_mut(id)?.title.clone())
    }

    /// Sets the title of a conversation; an empty one is the first question again.
    ///
    /// # Errors
    /// One sentence, if there is no such conversation.
    pub fn rename_conversation(&mut self, id: u64, title: &str) -> Result<(), String> {
        let title: String = title.trim().chars().take(MAX_TITLE_CHARS).collect();
        let conversation = self.conversation_mut(id)?;
        conversation.title = match title.as_str() {
            "" if conversation.questions > 0 => conversation.first.clone(),
            "" => return Ok(()),
            _ => title,
        };
        self.save_conversation(id);
        self.emit_conversations();
        Ok(())
    }

    /// Puts a conversation above the others, or back.
    ///
    /// # Errors
    /// One sentence, if there is no such conversation.
    pub fn pin_conversation(&mut self, id: u64, pinned: bool) -> Result<(), String> {
        self.conversation_mut(id)?.pinned = pinned;
        self.save_conversation(id);
        self.emit_conversations();
        Ok(())
    }

    /// Deletes a conversation; it can be restored until the app ends. The document of the open one stays open.
    ///
    /// # Errors
    /// One sentence, if there is no such conversation.
    pub fn delete_conversation(&mut self, id: u64) -> Result<(), String> {
        let conversation = self.conversation_mut(id)?.clone();
        let document = conversation.document.clone();
        self.conversations.deleted.push(conversation);
        self.conversations.all.retain(|known| known.id != id);
        self.save(Save::HideConversation(id));
        if self.open.conversation == Some(id) {
            let document = self.open.document.clone();
            let of = OpenConversation {
                document: document.clone(),
                ..OpenConversation::default()
            };
            let deleted = std::mem::replace(&mut self.open, of);
            self.end_questions(deleted);
            self.leave_conversation(document);
            self.save_open();
            self.emit_document();
        }
        match self.take_left(id) {
            Some(left) => self.end_left(left),
            None => self.emit_elsewhere(),
        }
        self.clear_deleted(document);
        self.emit_conversations();
        Ok(())
    }

    /// Restores a conversation that was deleted since the app started.
    ///
    /// # Errors
    /// One sentence, if there is no such conversation.
    pub fn restore_conversation(&mut self, id: u64) -> Result<(), String> {
        let deleted = &mut self.conversations.deleted;
        let at = deleted.iter().position(|deleted| deleted.id == id);
        let at = at.ok_or_else(|| messages::NO_CONVERSATION.to_owned())?;
        self.conversations.all.push(deleted.remove(at));
        self.save_conversation(id);
        self.emit_conversations();
        Ok(())
    }
}
