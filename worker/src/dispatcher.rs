//! State of the worker: open models and documents, and those being opened. One thread makes every decision, one input
//! at a time. Questions, comparisons and estimates: `dispatcher/questions.rs`.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use kept_engine::DocumentLength;
use kept_engine::documents::{Document, recognised_languages};
use kept_engine::kernels::Stop;
use kept_worker::protocol::{Access, Failure, Fault, Reply, Request};

use crate::asking;
use crate::facts;
use crate::joining;
use crate::opening;
use crate::output::Output;
use crate::vault_settings::VaultSettings;
use crate::work::{Input, Job, ModelName, OpenDocument, OpenModel, Opened, Outcome};

mod questions;

/// The question, comparison or reading in progress.
struct Running {
    ticket: u64,
    stop: Stop,
    pause: Stop,
    /// A question or comparison does not wait for it.
    is_background: bool,
}

impl Running {
    /// Ends it now.
    fn stop(&self) {
        self.stop.request();
        self.pause.request();
    }
}

/// A model that is being opened.
struct Opening {
    number: u64,
    /// Whether the app requested the model, and so gets a reply.
    asked: bool,
    /// Whether a bug may have left inconsistent state in the previous model, which is then not used again.
    spoiled: bool,
}

/// Holds the open model and document, starts work and routes results.
pub struct Dispatcher {
    output: Output,
    inbox: Sender<Input>,
    jobs: Sender<Job>,
    model: Option<Arc<OpenModel>>,
    /// Whether the open model must be freed before another one is opened, because memory does not hold both.
    free_before_opening: fn(&OpenModel) -> bool,
    document: Option<Arc<OpenDocument>>,
    /// Length of the open document in tokens of the open model, once it is counted.
    length: Option<Outcome<DocumentLength>>,
    /// Numbers of the operations in progress. A result with another number is outdated and ignored.
    opening_model: Option<Opening>,
    opening_document: Option<(u64, Stop)>,
    /// Whether the document being opened is added to the open one.
    adding: bool,
    counting: Option<u64>,
    /// The last operation number.
    number: u64,
    running: Option<Running>,
    /// Questions, comparisons and estimates that wait until a model or document is open and counted, with the document
    /// that was open.
    waiting: Vec<(Request, Option<Arc<OpenDocument>>)>,
    /// How documents are stored in vaults for later questions.
    vault_settings: VaultSettings,
    /// Requests to remove vaults that the running job may have in use.
    clearing: Vec<Request>,
}

impl Dispatcher {
    /// A dispatcher without a model or document. All threads that it starts report to `inbox`.
    pub fn new(output: Output, inbox: Sender<Input>) -> Self {
        Self {
            jobs: asking::start(output.clone(), inbox.clone()),
            output,
            inbox,
            model: None,
            free_before_opening: |open| open.engine.uses_gpu(),
            document: None,
            length: None,
            opening_model: None,
            opening_document: None,
            adding: false,
            counting: None,
            number: 0,
            running: None,
            waiting: Vec::new(),
            vault_settings: VaultSettings::default(),
            clearing: Vec::new(),
        }
    }

    /// Handles inputs until standard input has ended and no work is running.
    pub fn run(mut self, inputs: Receiver<Input>) {
        let mut leaving = false;
        for input in inputs {
            match input {
                Input::NothingMore => leaving = true,
                Input::Request(request, bytes) => self.handle_request(request, bytes),
                Input::NotUnderstood(why) => self.fail(
                    None,
                    Failure::Request,
                    format!("the engine was asked for something it does not know ({why}); install window and engine of the same version"),
                ),
                Input::ModelOpened(number, opened) => self.model_opened(number, opened),
                Input::Recognised(number, done, pages) if self.is_opening(number) => {
                    self.output.send(&Reply::Recognising { done, pages });
                }
                Input::Recognised(..) => {}
                // The app is gone; the replies have no reader.
                Input::DocumentOpened(..) if leaving => self.opening_document = None,
                Input::DocumentOpened(number, outcome) => self.document_opened(number, outcome),
                Input::Counted(number, outcome) if self.counting == Some(number) => {
                    self.counting = None;
                    self.report_length(&outcome);
                    self.length = Some(outcome);
                    self.retry_waiting();
                }
                Input::Counted(..) => {}
                Input::Ended { .. } if leaving => {
                    self.running = None;
                    self.clear_vaults();
                }
                Input::Ended { reply, engine_health } => self.finish_job(&reply, engine_health),
            }
            if leaving {
                self.waiting.clear();
                // The recognition of a text removes its files.
                if let Some((_, stop)) = &self.opening_document {
                    stop.request();
                }
                match &self.running {
                    Some(running) => running.stop(),
                    None if self.opening_document.is_none() => return,
                    None => {}
                }
            }
        }
    }

    fn handle_request(&mut self, request: Request, bytes: Vec<u8>) {
        match request {
            Request::OpenModel { model, stretch } => {
                self.open_model(ModelName { model, stretch }, false);
            }
            Request::InspectModel {
                ticket,
                model,
                stretch,
            } => opening::inspect(ticket, ModelName { model, stretch }, self.output.clone()),
            Request::OpenDocument { path, adds, access } => self.open_document(path, access, adds),
            Request::RemoveDocument { part } => self.remove_document(part),
            Request::AdoptDocument { document } => {
                self.cancel_document();
                let adopted = String::from_utf8(bytes)
                    .map_err(|_| {
                        format!(
                            "the text of {} is not UTF-8; open the file again",
                            document.name
                        )
                    })
                    .and_then(|text| facts::check_fits(&document, &text).map(|()| text));
                match adopted {
                    Ok(text) => {
                        let document = Document { text, ..document };
                        self.set_document(Arc::new(OpenDocument::new(document)));
                    }
                    Err(why) => {
                        // A question is about this document, not about the one before.
                        self.document = None;
                        self.count_tokens();
                        self.fail(None, Failure::Request, why);
                    }
                }
            }
            Request::KeepDocuments {
                ticket,
                kind,
                budget,
            } => {
                let kept = VaultSettings::parse(&kind, budget).map(|vault_settings| {
                    // The new limit may be smaller than the previous one.
                    vault_settings.trim();
                    self.vault_settings = vault_settings;
                });
                self.report_vaults(ticket, kept);
            }
            Request::Vaults { ticket } => self.report_vaults(ticket, Ok(())),
            Request::ClearVaults { ticket } => {
                self.report_vaults(ticket, self.vault_settings.clear())
            }
            Request::ClearVaultsOf { .. } if self.running.is_some() => self.clearing.push(request),
            Request::ClearVaultsOf {
                ticket,
                document,
                whole,
            } => {
                let cleared = self.vault_settings.clear_vaults_of(&document, whole);
                self.report_vaults(ticket, cleared);
            }
            Request::Stop { ticket: 0 } => self.cancel_document(),
            Request::Stop { ticket } => self.stop(ticket),
            request => self.dispatch(request),
        }
    }

    /// Removes the vaults whose removal waited for the end of a job.
    fn clear_vaults(&mut self) {
        for request in std::mem::take(&mut self.clearing) {
            self.handle_request(request, Vec::new());
        }
    }

    /// Answers a request about vaults that was `done`.
    fn report_vaults(&self, ticket: u64, done: Result<(), String>) {
        match done.and_then(|()| self.vault_settings.refreshed().report(ticket)) {
            Ok(reply) => self.output.send(&reply),
            Err(why) => self.fail(Some(ticket), Failure::Vaults, why),
        }
    }

    /// Opens the model that `name` names: by request of the app, or again because the previous one is `spoiled`.
    fn open_model(&mut self, name: ModelName, spoiled: bool) {
        let (number, asked) = (self.next_number(), !spoiled);
        let opening = Opening {
            number,
            asked,
            spoiled,
        };
        let before = self.opening_model.replace(opening);
        if before.is_some_and(|before| before.asked) {
            self.report_stopped(None, Failure::Model);
        }
        let before = self.model.take_if(|open| (self.free_before_opening)(open));
        opening::model(number, name, before, self.inbox.clone());
    }

    fn model_opened(&mut self, number: u64, opened: Opened) {
        let Some(opening) = self.opening_model.take_if(|o| o.number == number) else {
            return;
        };
        match opened.outcome {
            Ok(model) => {
                if opening.asked {
                    self.output.send(&Reply::Model {
                        model: model.facts.clone(),
                    });
                }
                self.model = Some(model);
                self.count_tokens();
            }
            Err(why) => {
                self.fail(None, Failure::Model, why);
                // The previous model stays open unless it was freed to make memory available; then the app opens it
                // again.
                if let Some(before) = opened.before.filter(|_| !opening.spoiled) {
                    self.model = Some(before);
                    self.count_tokens();
                }
            }
        }
        self.retry_waiting();
    }

    fn open_document(&mut self, path: PathBuf, access: Access, adding: bool) {
        self.cancel_document();
        self.adding = adding;
        let (number, stop) = (self.next_number(), Stop::new());
        self.opening_document = Some((number, stop.clone()));
        opening::document(number, path, access, stop, self.inbox.clone());
    }

    /// Whether the document that is opened under `number` is still wanted.
    fn is_opening(&self, number: u64) -> bool {
        (self.opening_document.as_ref()).is_some_and(|(current, _)| *current == number)
    }

    fn document_opened(&mut self, number: u64, outcome: Outcome<Arc<OpenDocument>>) {
        if !self.is_opening(number) {
            return;
        }
        self.opening_document = None;
        let outcome = outcome.and_then(|document| match &self.document {
            Some(open) if self.adding => joining::add(open, &document).map(Arc::new),
            _ => Ok(document),
        });
        self.accept_document(outcome);
    }

    /// Removes part number `part` of the joined documents.
    fn remove_document(&mut self, part: usize) {
        self.cancel_document();
        let outcome = match &self.document {
            Some(open) => joining::remove(open, part).map(Arc::new),
            None => Err("no document is open; open one first".into()),
        };
        self.accept_document(outcome);
    }

    fn accept_document(&mut self, outcome: Outcome<Arc<OpenDocument>>) {
        match outcome {
            Ok(document) => {
                let has_images = !document.info.image_pages.is_empty();
                let reply = Reply::Document {
                    document: document.info.clone(),
                    languages: has_images.then(recognised_languages).unwrap_or_default(),
                };
                let text = document.document.text.as_bytes();
                self.output.send_with_bytes(&reply, text);
                self.set_document(document);
            }
            // The previous document stays open.
            Err(why) => self.fail(None, Failure::Document, why),
        }
        self.retry_waiting();
    }

    /// Cancels the document that is being opened. A recognition stops; otherwise its thread runs to the end, and the
    /// result is ignored.
    fn cancel_document(&mut self) {
        if let Some((_, stop)) = self.opening_document.take() {
            stop.request();
            self.report_stopped(None, Failure::Document);
            self.retry_waiting();
        }
    }

    fn set_document(&mut self, document: Arc<OpenDocument>) {
        // What is opened again keeps what is read of it.
        for request in &mut self.clearing {
            if let Request::ClearVaultsOf {
                document: name,
                whole,
                ..
            } = request
                && *name == document.info.name
            {
                *whole = false;
            }
        }
        self.document = Some(document);
        self.count_tokens();
        self.retry_waiting();
    }

    /// Counts the document's tokens for the model, if both are open.
    fn count_tokens(&mut self) {
        (self.length, self.counting) = (None, None);
        if let (Some(model), Some(document)) = (self.model.clone(), self.document.clone()) {
            self.counting = Some(self.next_number());
            opening::count(self.number, model, document, self.inbox.clone());
        }
    }

    fn report_length(&self, counted: &Outcome<DocumentLength>) {
        let Some(model) = &self.model else { return };
        let (tokens, estimated, streams, refusal) = match counted {
            Ok(length) => (
                length.tokens,
                length.estimated,
                length.streams,
                length.too_long.as_ref().map(ToString::to_string),
            ),
            Err(why) => (0, false, false, Some(why.message.clone())),
        };
        self.output.send(&Reply::Tokens {
            tokens,
            estimated,
            context: model.facts.context,
            streams,
            refusal,
        });
    }

    fn fail(&self, ticket: Option<u64>, what: Failure, fault: impl Into<Fault>) {
        self.output.send(&Reply::failed(ticket, what, fault, false));
    }

    fn report_stopped(&self, ticket: Option<u64>, what: Failure) {
        self.output
            .send(&Reply::failed(ticket, what, "stopped", true));
    }

    fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }
}

#[cfg(all(test, unix))]
mod tests;
