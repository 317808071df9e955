//! The open document: set, grown, closed. `opening.rs` opens files, `document.rs` defines the document itself.

use std::sync::Arc;

use kept_engine::documents::Document;
use kept_worker::protocol::{Access, Request};

use super::AppState;
use super::document::{OpenDocument, plain_text};
use super::effect::{Effect, Save};
use super::parts::take;
use crate::contract::{AppEvent, FileNeeds, NoticeKind, Place};
use crate::messages;
use crate::sample;

/// Maximum length of the name of a pasted text, in characters.
const MAX_NAME_CHARS: usize = 60;

impl AppState {
    /// The open document.
    pub fn document(&self) -> Option<&Arc<OpenDocument>> {
        self.open.document.as_ref()
    }

    /// Removes one of several documents; a new conversation begins about the others. Returns the reason for a refusal
    /// in one sentence.
    pub fn remove_document(&mut self, index: usize) -> Result<(), String> {
        if self.open_works() || self.file.opening.is_some() || self.file.removing.is_some() {
            return Err(messages::BUSY_DOCUMENTS.to_owned());
        }
        self.worker.check_ready()?;
        let parts = self
            .open
            .document
            .as_ref()
            .map_or(0, |d| d.facts.documents.len());
        if index >= parts {
            return Err(messages::NO_SUCH_DOCUMENT.to_owned());
        }
        self.file.removing = self.open.document.as_ref().map(|d| d.facts.id);
        self.send(Request::RemoveDocument { part: index }, None);
        Ok(())
    }

    /// `languages`: those in which the text of its image pages can be recognised.
    pub(super) fn document_arrived(
        &mut self,
        info: Document,
        text: Arc<str>,
        languages: Vec<String>,
    ) {
        if let Some(of) = self.file.removing.take() {
            if self.open.document.as_ref().is_none_or(|d| d.facts.id != of) {
                // Another document was opened in the meantime.
                return self.send_document();
            }
            let id = self.new_document_id();
            let answers = !self.open.turns.is_empty();
            self.set_document(OpenDocument::new(id, info, text, false));
            if answers {
                let said = messages::NEW_CONVERSATION;
                self.notice(NoticeKind::Info, Place::Conversation, said);
            }
            return;
        }
        let opened = self.file.opening.clone();
        let adds = opened.as_ref().is_some_and(|o| o.adds);
        if !self.arrived_wanted() {
            // The worker now has a file that is no longer requested; it gets the open document again.
            self.send_document();
            return;
        }
        self.end_opening();
        let open = self
            .open
            .document
            .as_ref()
            .map(|d| d.facts.id)
            .filter(|_| adds);
        match open {
            Some(id) => {
                // Another conversation is about the document as it was.
                let id = if self.is_shared(id) {
                    self.new_document_id()
                } else {
                    id
                };
                self.grow(OpenDocument::new(id, info, text, false));
            }
            None => {
                let (id, pages) = (self.new_document_id(), info.image_pages.len());
                self.set_document(OpenDocument::new(id, info, text, false));
                if let Some(opened) = opened.filter(|opened| {
                    let plain = opened.access == Access::Plain;
                    plain && !languages.is_empty() && self.file.to_add.is_empty()
                }) {
                    let open = true;
                    let needs = FileNeeds::Recognition {
                        open,
                        pages,
                        languages,
                    };
                    self.wait_for(opened, needs);
                }
            }
        }
        self.open_next(true);
    }

    /// Opens the built-in sample.
    pub fn open_sample(&mut self) {
        self.stop_opening();
        let id = self.new_document_id();
        let info = plain_text(sample::NAME.to_owned(), sample::TEXT);
        self.set_document(OpenDocument::new(id, info, sample::TEXT.into(), true));
        self.send_document();
    }

    /// Begins a conversation without a document.
    pub fn chat(&mut self) {
        self.open_plain(String::new(), "".into());
    }

    /// Opens a text that the user pasted.
    ///
    /// # Errors
    /// One sentence, if the text is empty.
    pub fn open_text(&mut self, text: String) -> Result<(), String> {
        let first = text.lines().map(str::trim).find(|line| !line.is_empty());
        let first = first.ok_or_else(|| messages::EMPTY_TEXT.to_owned())?;
        let name = first.chars().take(MAX_NAME_CHARS).collect();
        self.open_plain(name, text.into());
        Ok(())
    }

    fn open_plain(&mut self, name: String, text: Arc<str>) {
        self.stop_opening();
        let id = self.new_document_id();
        let info = plain_text(name, &text);
        self.set_document(OpenDocument::new(id, info, text, false));
        self.send_document();
    }

    /// Closes the document; its conversation remains in the list.
    pub fn close_document(&mut self) {
        self.stop_opening();
        self.leave_conversation(None);
        self.load_comparison(None);
        self.save_open();
        self.emit_document();
        self.emit_conversations();
    }

    /// Sets the open document and begins a new conversation about it.
    fn set_document(&mut self, document: OpenDocument) {
        let document = Arc::new(document);
        self.leave_conversation(Some(document.clone()));
        self.keep_vaults_of(&document.info.name);
        self.load_comparison(None);
        self.save(Save::Document(document));
        self.save_open();
        self.emit_document();
        self.emit_conversations();
    }

    /// Sets the open document after another document was appended: the conversation is kept, and its offsets remain
    /// valid.
    fn grow(&mut self, document: OpenDocument) {
        self.forget_pending();
        let document = Arc::new(document);
        self.open.document = Some(document.clone());
        self.forget_comparison();
        self.reset_reading();
        self.save(Save::Document(document));
        self.conversation_grew();
        self.save_open();
        self.emit_document();
        self.title();
    }

    /// `context` is the model's context length if the document exceeds it and will be read in streaming mode.
    pub(super) fn tokens_counted(
        &mut self,
        tokens: usize,
        tokens_estimated: bool,
        refusal: Option<String>,
        context: Option<usize>,
    ) {
        let Some(model) = self.models.open.facts() else {
            return; // the count is for a model that is no longer chosen
        };
        let model = model.name.clone();
        let Some(document) = &mut self.open.document else {
            return;
        };
        let document = &mut Arc::make_mut(document).facts;
        document.tokens = Some(tokens);
        document.tokens_estimated = tokens_estimated;
        document.too_long = refusal;
        let streams = |context| messages::streams(tokens, tokens_estimated, &model, context);
        document.streaming = context.map(streams);
        self.emit_document();
    }

    /// Clears the token count, which was for another model.
    pub(super) fn forget_tokens(&mut self) {
        let Some(document) = &mut self.open.document else {
            return;
        };
        if document.facts.tokens.is_none() && document.facts.too_long.is_none() {
            return;
        }
        let document = &mut Arc::make_mut(document).facts;
        document.tokens = None;
        document.tokens_estimated = false;
        document.too_long = None;
        document.streaming = None;
        self.emit_document();
    }

    /// Sends the open document to the worker.
    pub(super) fn send_document(&mut self) {
        if let Some(document) = self.open.document.clone() {
            self.adopt(&document);
        }
    }

    /// Sends a document to the worker. Returns whether it is not the open one.
    pub(super) fn adopt(&mut self, document: &OpenDocument) -> bool {
        let request = Request::AdoptDocument {
            document: document.info.clone(),
        };
        self.send(request, Some(document.text.clone()));
        !self.open.is_about(document.facts.id)
    }

    pub(super) fn emit_document(&mut self) {
        self.flush_text();
        let document = self.open.document.as_ref().map(|d| d.facts.clone());
        let turns = self.open.turns.clone();
        self.emit(AppEvent::Document { document, turns });
    }

    pub(super) fn title(&mut self) {
        let title = match &self.open.document {
            Some(document) if !document.text.is_empty() => {
                format!("{} - Kept", document.info.name)
            }
            _ => "Kept".to_owned(),
        };
        self.effects.push(Effect::Title(title));
    }

    pub(super) fn new_document_id(&mut self) -> u64 {
        take(&mut self.ids.document)
    }
}
