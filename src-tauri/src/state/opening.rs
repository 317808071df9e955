//! A file on its way to becoming the open document: chosen, waiting for a password, read by the worker.

use std::path::{Path, PathBuf};

use kept_worker::protocol::{Access, Fault, FaultCode, Request};

use super::AppState;
use super::waiting::Opening;
use crate::contract::{AppEvent, FileNeeds, NoticeKind, PendingFile, Place, WorkerStatus};
use crate::messages::{self, as_sentence};
use crate::names::file_name;

/// Whether a file is a model, judged by its name.
fn is_model(path: &Path) -> bool {
    path.extension()
        .is_some_and(|e| e.eq_ignore_ascii_case("gguf"))
}

/// The ticket of the document that is being opened: tickets of questions start at 1.
const STOP_DOCUMENT: u64 = 0;

impl AppState {
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
        self.begin_opening(path, false, Access::Plain);
    }

    /// Opens a file and adds it to the open document: questions cover both.
    pub fn add_path(&mut self, path: PathBuf) {
        if is_model(&path) {
            return self.choose_model_file(path);
        }
        let readable = path.to_str().ok_or_else(|| messages::not_utf8(&path));
        match readable.and_then(|_| self.may_add()) {
            Ok(()) => {
                let alone = self.open.document.is_none();
                self.begin_opening(path, !alone, Access::Plain);
            }
            Err(refusal) => self.notice(NoticeKind::Error, Place::Document, refusal),
        }
    }

    /// # Errors
    /// One sentence, if no document can be added now.
    pub fn may_add(&self) -> Result<(), String> {
        match self.open_works() {
            true => Err(messages::BUSY_DOCUMENTS.to_owned()),
            false => Ok(()),
        }
    }

    /// Opens the document that waits for its password with what the user typed; without a password it is not opened.
    pub fn unlock_document(&mut self, password: Option<String>) {
        self.decide_pending(password.map(Access::Password));
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

    pub(super) fn wait_for(&mut self, opening: Opening, needs: FileNeeds) {
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
                let request = Request::OpenDocument {
                    path: opening.path.clone(),
                    adds: opening.adds,
                    access: opening.access.clone(),
                };
                self.file.in_flight = Some(opening);
                self.send(request, None);
            }
        }
    }

    /// Whether the user still waits for the file that the worker just answered for. If not, the current file is
    /// requested.
    pub(super) fn arrived_wanted(&mut self) -> bool {
        let answered = self.file.in_flight.take();
        let is_wanted = self.file.opening.is_some() && answered == self.file.opening;
        if !is_wanted {
            self.send_opening();
        }
        is_wanted
    }

    /// Opens the next of several files that were dropped together. `adds`: it is added to the earlier ones; otherwise
    /// none of them could be opened, and it becomes the document.
    pub(super) fn open_next(&mut self, adds: bool) {
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
}
