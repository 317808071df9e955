//! Reading the document in the background, before a question: begins when document and model are open and nothing else
//! runs. A question or comparison interrupts it in the worker; it goes on afterwards, unless the user stopped it.
//!
//! It is read for the method and budget of the questions to come: when these change, the worker looks what is missing for
//! them. A document longer than the context length is then read again.

use kept_engine::{Note, Progress};
use kept_worker::protocol::{EstimateRequest, Request};

use super::AppState;
use super::background::Step;
use crate::contract::{AppEvent, Choice, ReadAhead, Settings};

/// Tokens times bytes of weights, about as the time of reading: less takes a fraction of a second, and is read with the
/// first question.
const MIN_WORK: u64 = 6 << 30;
/// From here on it takes about an hour of a laptop, and the user decides.
const MAX_WORK: u64 = 256 << 40;

impl AppState {
    /// Begins to read the document if it is due and nothing else runs.
    pub(super) fn read_ahead(&mut self) {
        if self.reading.step != Step::Due || self.settings.keep == "off" {
            return;
        }
        let weights = (self.models.open.facts()).map_or(0, |model| model.weights_bytes);
        let readable = self
            .open
            .document
            .as_ref()
            .filter(|d| d.facts.too_long.is_none());
        let tokens = readable.map_or(0, |document| document.facts.tokens.unwrap_or(0));
        let work = (tokens as u64).saturating_mul(weights);
        let Some(of) = self.questions_to_come().filter(|_| work >= MIN_WORK) else {
            return;
        };
        if work >= MAX_WORK && !self.reading.wanted {
            self.set_step(Step::Held);
        } else if self.can_work_in_background() {
            let ticket = self.ticket();
            self.reading.of = Some(of.clone());
            self.send(Request::ReadDocument { ticket, of }, None);
            self.set_step(Step::Running(ticket));
        }
    }

    /// Questions with the present settings; `None` if these cannot read the document.
    fn questions_to_come(&self) -> Option<EstimateRequest> {
        let Settings {
            method,
            parameters,
            budget,
            ..
        } = &self.settings;
        let choice = Choice {
            method: method.clone(),
            parameters: parameters.get(method).cloned().unwrap_or_default(),
            budget: budget.clone(),
        };
        self.can_read(&choice).ok()?;
        Some(self.estimate_request(&choice, self.memory_limit().ok()?))
    }

    /// The settings have changed, or a reading has ended: a document that was read for other questions than those to come
    /// is due again.
    pub(super) fn read_for_other_questions(&mut self) {
        if self.reading.of == self.questions_to_come() {
            return;
        }
        match self.reading.step {
            // It is due again once the worker has stopped.
            Step::Running(_) if self.open.is_streamed() => {
                self.reading.progress = None;
                self.stop_worker_reading();
            }
            // What is being read serves the others too; they are looked at when it ends.
            Step::Running(_) => {}
            Step::Done | Step::Failed => {
                self.reading.progress = None;
                self.set_step(Step::Due);
                self.read_ahead();
            }
            Step::Due => self.read_ahead(),
            Step::Stopped | Step::Held => {}
        }
    }

    /// Another document or model is open: its reading has not begun.
    pub(super) fn reset_reading(&mut self) {
        self.give_up_reading();
        (self.reading.progress, self.reading.wanted) = (None, false);
        self.set_step(Step::Due);
        self.document_stored(true);
    }

    /// Stops reading until [`AppState::resume_reading`].
    pub fn stop_reading(&mut self) {
        if self.give_up_reading() {
            self.set_step(Step::Stopped);
        }
    }

    /// Goes on reading after a stop, or begins although it takes long.
    pub fn resume_reading(&mut self) {
        if matches!(self.reading.step, Step::Stopped | Step::Failed | Step::Held) {
            self.reading.wanted = true;
            self.set_step(Step::Due);
            self.read_ahead();
        }
    }

    /// The user stopped what ran: reading does not begin by itself.
    pub(super) fn hold_reading(&mut self) {
        if self.reading.step == Step::Due {
            self.set_step(Step::Stopped);
        }
    }

    /// A question has read the document into its vault: nothing is left of a reading that the user stopped.
    pub(super) fn question_read_document(&mut self) {
        if matches!(self.reading.step, Step::Stopped | Step::Failed | Step::Held) {
            self.reading.progress = None;
            self.set_step(Step::Done);
        }
    }

    /// Stops the worker's reading, if it was running; no other begins before it has stopped.
    fn give_up_reading(&mut self) -> bool {
        let stopped = self.stop_worker_reading();
        if stopped.is_some() {
            self.reading.stopping = stopped;
        }
        stopped.is_some()
    }

    /// Stops the worker's reading, if it was running. Returns its ticket.
    fn stop_worker_reading(&mut self) -> Option<u64> {
        let Step::Running(ticket) = self.reading.step else {
            return None;
        };
        self.send(Request::Stop { ticket }, None);
        Some(ticket)
    }

    pub(super) fn reading_progressed(&mut self, ticket: u64, now: Progress) {
        if self.reading.step != Step::Running(ticket) {
            return;
        }
        self.reading.progress = Some(now);
        self.emit_reading();
    }

    /// The worker has read the document. It is `stored`, or `notes` say why the vault could not be written.
    pub(super) fn document_read(&mut self, ticket: u64, stored: bool, notes: &[Note]) {
        for note in notes {
            tracing::info!(%note, "the document is not read in the background");
        }
        self.reading.ended(Some(ticket));
        if self.reading.step == Step::Running(ticket) {
            self.set_step(Step::Done);
            self.document_stored(stored);
            // The estimate follows what is in the vault.
            self.request_vaults();
            self.read_for_other_questions();
        }
    }

    /// The worker stopped reading: for a question (`stopped`), or over an error. Without a ticket whatever it read.
    pub(super) fn reading_failed(&mut self, of: Option<u64>, message: &str, stopped: bool) {
        self.reading.ended(of);
        let Step::Running(ticket) = self.reading.step else {
            // The user stopped it: the estimate follows what is in the vault.
            if self.reading.step == Step::Stopped && of.is_some() {
                self.request_vaults();
            }
            return;
        };
        if of.is_some_and(|of| of != ticket) {
            return;
        }
        if stopped {
            self.set_step(Step::Due);
        } else {
            // A question will say why.
            tracing::warn!(message, "the document is not read in the background");
            self.set_step(of.map_or(Step::Stopped, |_| Step::Failed));
        }
    }

    fn set_step(&mut self, step: Step) {
        if self.reading.step != step {
            self.reading.step = step;
            self.emit_reading();
        }
    }

    fn emit_reading(&mut self) {
        let reading = self.reading_shown();
        self.emit(AppEvent::ReadAhead { reading });
    }

    /// Reading in the page's form, from its first progress to its end: the worker may find that nothing is to be read.
    pub(super) fn reading_shown(&self) -> Option<ReadAhead> {
        let running = self.reading.is_running();
        let progress = self.reading.progress;
        let shown = match self.reading.step {
            Step::Held => true,
            Step::Running(_) | Step::Stopped | Step::Failed => progress.is_some(),
            Step::Due | Step::Done => false,
        };
        shown.then_some(ReadAhead { running, progress })
    }
}
