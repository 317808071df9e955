//! The open document: opening, adding, replacing, closing. `document.rs` defines the document itself.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kept_engine::documents::Document;
use kept_worker::protocol::{Fault, FaultCode, Request};

use super::AppState;
use super::document::{OpenDocument, plain_text};
use super::effect::{Effect, Save};
use super::parts::take;
use super::waiting::{Access, Opening};
use crate::contract::{
    AppEvent, FileNeeds, NoticeKind, PendingFile, Place, Replacement, WorkerStatus,
};
use crate::messages::{self, as_sentence};
use crate::names::file_name;
use crate::sample;

/// Whether a file is a model, judged by its name.
fn is_model(path: &Path) -> bool {
    path.extension()
        .is_some_and(|e| e.eq_ignore_ascii_case("gguf"))
}

/// Maximum length of the name of a pasted text, in characters.
const MAX_NAME_CHARS: usize = 60;

/// The ticket of the document that is being opened: tickets of questions start at 1.
const STOP_DOCUMENT: u64 = 0;

impl AppState {
    /// The open document.
    pub fn document(&self) -> Option<&Arc<OpenDocument>> {
        self.document.as_ref()
    }

    /// Opens a file that the user dropped, chose or passed: a model if it is a `.gguf`, otherwise a document. The
    /// outcome is sent as events; the open document remains until the new one arrives.
    pub fn open_path(&mut self, path: PathBuf) {
        if is_model(&path) {
            self.choose_model_file(path);
        } else {
            self.open_file(path);
        }
    }

    /// Opens files that the user dropped together: the first as [`AppState::open_path`] does; the others are added to
    /// it.
    pub fn open_paths(&mut self, paths: Vec<PathBuf>) {
        let (models, documents): (Vec<_>, Vec<_>) = paths.into_iter().partition(|p| is_model(p));
        // The last of several models is opened.
        if let Some(model) = models.into_iter().next_back() {
            self.choose_model_file(model);
        }
        let mut documents = documents.into_iter();
        if let Some(first) = documents.next() {
            self.file.to_add = documents.collect();
            self.open_file(first);
        }
    }

    /// Opens a file as the document.
    pub fn open_file(&mut self, path: PathBuf) {
        if path.to_str().is_none() {
            let message = messages::not_utf8(&path);
            self.notice(NoticeKind::Error, Place::Document, message);
            return self.open_next(false);
        }
        // A file dropped by mistake must not stop an answer.
        if self.is_busy() {
            let name = Some(file_name(&path));
            self.file.replacement = Some(path);
            return self.emit(AppEvent::Replacing { name });
        }
        self.begin_opening(path, false, Access::Plain);
    }

    /// Opens a file and adds it to the open document: questions cover both.
    pub fn add_path(&mut self, path: PathBuf) {
        if is_model(&path) {
            return self.choose_model_file(path);
        }
        let refusal = if path.to_str().is_none() {
            messages::not_utf8(&path)
        } else if self.is_busy() {
            messages::BUSY_DOCUMENTS.to_owned()
        } else {
            let alone = self.document.is_none();
            return self.begin_opening(path, !alone, Access::Plain);
        };
        self.notice(NoticeKind::Error, Place::Document, refusal);
    }

    /// Applies the user's decision about a file whose opening stops running work.
    pub fn replace_document(&mut self, how: Replacement) {
        let waiting = self.file.replacement.take();
        self.emit(AppEvent::Replacing { name: None });
        match (waiting, how) {
            (Some(path), Replacement::Replace) => self.begin_opening(path, false, Access::Plain),
            _ => self.file.to_add.clear(),
        }
    }

    /// Opens the document that waits for its password with what the user typed; without a password it is not opened.
    pub fn unlock_document(&mut self, password: Option<String>) {
        self.decide_pending(password.map(|typed| Access::Password(typed.into())));
    }

    /// Opens the document that waits for it with its text recognised in `languages`; without any it is not opened.
    pub fn recognise_document(&mut self, languages: Option<Vec<String>>) {
        self.decide_pending(languages.map(Access::Recognition));
    }

    pub(super) fn forget_pending(&mut self) {
        if self.file.pending.take().is_some() {
            self.emit(AppEvent::Pending { file: None });
        }
    }

    fn wait_for(&mut self, opening: Opening, needs: FileNeeds) {
        self.file.pending = Some((opening, needs));
        let file = self.pending_file();
        self.emit(AppEvent::Pending { file });
    }

    /// The file that waits for the user's password or languages.
    pub(super) fn pending_file(&self) -> Option<PendingFile> {
        let (opening, needs) = self.file.pending.as_ref()?;
        Some(PendingFile {
            name: opening.name.clone(),
            needs: needs.clone(),
        })
    }

    fn decide_pending(&mut self, access: Option<Access>) {
        let Some((pending, _)) = self.file.pending.take() else {
            return;
        };
        self.emit(AppEvent::Pending { file: None });
        match access {
            Some(access) => self.begin_opening(pending.path, pending.adds, access),
            None => self.open_next(pending.adds),
        }
    }

    /// Removes one of several documents; a new conversation begins about the others. Returns the reason for a refusal
    /// in one sentence.
    pub fn remove_document(&mut self, index: usize) -> Result<(), String> {
        if self.is_busy() || self.file.opening.is_some() || self.file.removing.is_some() {
            return Err(messages::BUSY_DOCUMENTS.to_owned());
        }
        self.worker.check_ready()?;
        let parts = self
            .document
            .as_ref()
            .map_or(0, |d| d.facts.documents.len());
        if index >= parts {
            return Err(messages::NO_SUCH_DOCUMENT.to_owned());
        }
        self.file.removing = self.document.as_ref().map(|d| d.facts.id);
        self.send(Request::RemoveDocument { part: index }, None);
        Ok(())
    }

    fn begin_opening(&mut self, path: PathBuf, adds: bool, access: Access) {
        if self.worker.status() == WorkerStatus::Failed {
            // The engine may have crashed on the previous document: a new document justifies a restart.
            self.restart_worker();
        }
        self.conversations.chosen = None;
        let name = file_name(&path);
        self.file.opening = Some(Opening {
            path,
            name: name.clone(),
            adds,
            access,
        });
        self.emit(AppEvent::Opening { name: Some(name) });
        self.send_opening();
    }

    /// Requests the file from the worker. If the worker is still reading another file, that one is stopped first.
    pub(super) fn send_opening(&mut self) {
        let Some(opening) = &self.file.opening else {
            return;
        };
        if self.worker.status() != WorkerStatus::Ready {
            return;
        }
        match &self.file.in_flight {
            Some(sent) if sent == opening => {}
            Some(_) => self.send(
                Request::Stop {
                    ticket: STOP_DOCUMENT,
                },
                None,
            ),
            None => {
                let opening = opening.clone();
                let (path, adds) = (opening.path.clone(), opening.adds);
                let (request, password) = match &opening.access {
                    Access::Plain if adds => (Request::AddDocument { path }, None),
                    Access::Plain => (Request::OpenDocument { path }, None),
                    Access::Password(typed) => {
                        (Request::UnlockDocument { path, adds }, Some(typed.clone()))
                    }
                    Access::Recognition(languages) => {
                        let languages = languages.clone();
                        let request = Request::RecogniseDocument {
                            path,
                            adds,
                            languages,
                        };
                        (request, None)
                    }
                };
                self.file.in_flight = Some(opening);
                self.send(request, password);
            }
        }
    }

    /// Whether the user still waits for the file that the worker just answered for. If not, the current file is
    /// requested.
    fn arrived_wanted(&mut self) -> bool {
        let answered = self.file.in_flight.take();
        let is_wanted = self.file.opening.is_some() && answered == self.file.opening;
        if !is_wanted {
            self.send_opening();
        }
        is_wanted
    }

    /// `languages`: those in which the text of its image pages can be recognised.
    pub(super) fn document_arrived(
        &mut self,
        info: Document,
        text: Arc<str>,
        languages: Vec<String>,
    ) {
        if let Some(of) = self.file.removing.take() {
            if self.document.as_ref().is_none_or(|d| d.facts.id != of) {
                // Another document was opened in the meantime.
                return self.send_document();
            }
            let id = self.new_document_id();
            return self.set_document(OpenDocument::new(id, info, text, false));
        }
        let opened = self.file.opening.clone();
        let adds = opened.as_ref().is_some_and(|o| o.adds);
        if !self.arrived_wanted() {
            // The worker now has a file that is no longer requested; it gets the open document again.
            self.send_document();
            return;
        }
        self.end_opening();
        let open = self.document.as_ref().map(|d| d.facts.id).filter(|_| adds);
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

    /// Opens the next of several files that were dropped together. `adds`: it is added to the earlier ones; otherwise
    /// none of them could be opened, and it becomes the document.
    fn open_next(&mut self, adds: bool) {
        match self.file.to_add.pop_front() {
            Some(path) if adds => self.add_path(path),
            Some(path) => self.open_file(path),
            None => {}
        }
    }

    pub(super) fn document_failed(&mut self, fault: &Fault, stopped: bool) {
        let message = fault.message.as_str();
        if self.file.removing.take().is_some() {
            return self.notice(NoticeKind::Error, Place::Document, as_sentence(message));
        }
        let sent = self.file.in_flight.clone();
        if !self.arrived_wanted() {
            return;
        }
        self.end_opening();
        let Some(sent) = sent else { return };
        let needs = match &fault.code {
            FaultCode::Password { wrong } => Some(FileNeeds::Password { wrong: *wrong }),
            FaultCode::Scan { pages, languages } => Some(FileNeeds::Recognition {
                open: false,
                pages: *pages,
                languages: languages.clone(),
            }),
            _ => None,
        };
        if let Some(needs) = needs {
            self.wait_for(sent, needs);
        } else if !stopped {
            let Opening { path, adds, .. } = sent;
            tracing::warn!(path = %path.display(), message, "a document was not opened");
            let message = messages::about_file(&file_name(&path), message);
            self.notice(NoticeKind::Error, Place::Document, message);
            self.open_next(adds);
        }
    }

    pub(super) fn end_opening(&mut self) {
        if self.file.opening.take().is_some() {
            self.emit(AppEvent::Opening { name: None });
        }
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
    ///
    /// # Errors
    /// One sentence, if a question or a comparison runs.
    pub fn chat(&mut self) -> Result<(), String> {
        self.not_busy()?;
        self.open_plain(String::new(), "".into());
        Ok(())
    }

    /// Opens a text that the user pasted.
    ///
    /// # Errors
    /// One sentence, if a question or a comparison runs, or the text is empty.
    pub fn open_text(&mut self, text: String) -> Result<(), String> {
        if self.is_busy() {
            return Err(messages::BUSY_DOCUMENTS.to_owned());
        }
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
        self.leave_conversation();
        self.document = None;
        self.reset_reading();
        self.save_open();
        self.emit_document();
        self.emit_conversations();
        self.title();
    }

    /// Neither the file nor the conversation that is being opened is wanted any more.
    pub(super) fn stop_opening(&mut self) {
        self.conversations.chosen = None;
        self.file.to_add.clear();
        self.end_opening();
        if self.file.in_flight.is_some() {
            self.send(
                Request::Stop {
                    ticket: STOP_DOCUMENT,
                },
                None,
            );
        }
    }

    /// Sets the open document and begins a new conversation about it.
    fn set_document(&mut self, document: OpenDocument) {
        if self.file.replacement.take().is_some() {
            self.emit(AppEvent::Replacing { name: None });
        }
        self.leave_conversation();
        let document = Arc::new(document);
        self.document = Some(document.clone());
        self.reset_reading();
        self.save(Save::Document(document));
        self.save_open();
        self.emit_document();
        self.emit_conversations();
        self.title();
    }

    /// Sets the open document after another document was appended: the conversation is kept, and its offsets remain
    /// valid.
    fn grow(&mut self, document: OpenDocument) {
        self.forget_pending();
        self.leave_comparison();
        let document = Arc::new(document);
        self.document = Some(document.clone());
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
        let Some(document) = &mut self.document else {
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
        let Some(document) = &mut self.document else {
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
        if let Some(document) = self.document.clone() {
            self.send(
                Request::AdoptDocument {
                    document: document.info.clone(),
                },
                Some(document.text.clone()),
            );
        }
    }

    pub(super) fn emit_document(&mut self) {
        self.flush_text();
        let document = self.document.as_ref().map(|d| d.facts.clone());
        let turns = self.open.turns.clone();
        self.emit(AppEvent::Document { document, turns });
    }

    pub(super) fn title(&mut self) {
        let title = match &self.document {
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
