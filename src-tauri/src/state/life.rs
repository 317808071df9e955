//! Start, crash and restart of the worker, as the app state handles them. No typed or answered text is lost.

use super::AppState;
use super::effect::Effect;
use super::parts::{Compared, OpenModel};
use crate::contract::{
    AppEvent, ComparisonState, NoticeKind, Place, TurnState, WorkerState, WorkerStatus,
};
use crate::messages;

impl AppState {
    /// A worker has started and sent its hello: it gets the model, the document and the file that was being opened.
    /// `generation` identifies this process; requests carry it, so that no request for an earlier process reaches a
    /// later one.
    pub fn worker_hello(&mut self, generation: u64) {
        self.worker.generation = generation;
        self.set_worker(WorkerStatus::Ready, None);
        if let Some((place, message)) = self.worker.after_restart.take() {
            self.notice(NoticeKind::Error, place, message);
        }
        self.models.in_flight = None;
        self.file.in_flight = None;
        self.file.removing = None;
        self.send_model();
        self.send_document();
        self.send_opening();
        self.send_vault_settings();
        self.clear_left_documents();
    }

    /// The worker has ended and is about to be restarted. `what` is a sentence: how it ended.
    pub fn worker_died(&mut self, what: &str) {
        let was_asked = self.running.as_ref().is_some_and(|r| r.turn.is_some());
        let opened = self.file.in_flight.is_some();
        let opening = self.file.opening.as_ref().filter(|_| opened);
        self.worker.after_restart = match opening {
            // The turn shows it.
            _ if was_asked => None,
            Some(file) => Some((
                Place::Document,
                messages::restarted_open_again(what, &file.name),
            )),
            None => Some((Place::Conversation, messages::restarted(what))),
        };
        if opened {
            // The worker may have crashed on the file; the user decides whether to try again.
            self.end_opening();
        }
        let compared = self.is_comparing();
        self.end_running_work(
            &messages::restarted_ask_again(what),
            &messages::restarted(what),
        );
        if compared {
            // The comparison shows it.
            self.worker.after_restart = None;
        }
        self.set_worker(
            WorkerStatus::Restarting,
            Some(format!("{what} It is restarting.")),
        );
    }

    /// The worker has ended and is not restarted until the user requests it. `message` is a sentence.
    pub fn worker_gone(&mut self, message: &str) {
        self.worker.after_restart = None;
        if let Some(opening) = &self.file.opening {
            let message = messages::engine_not_running(&opening.name);
            self.notice(NoticeKind::Error, Place::Document, message);
            self.end_opening();
        }
        self.end_running_work(message, message);
        self.set_worker(WorkerStatus::Failed, Some(message.to_owned()));
        self.ask_next();
    }

    /// Restarts the worker.
    pub fn restart_worker(&mut self) {
        self.end_running_work(messages::RESTARTED_BY_HAND, messages::RESTARTED);
        self.worker.after_restart = None;
        self.set_worker(WorkerStatus::Restarting, None);
        self.effects.push(Effect::RestartWorker);
    }

    /// Ends everything that ran in a worker that has ended. `reason` is the sentence for a question, `compared` the one
    /// for a comparison.
    fn end_running_work(&mut self, reason: &str, compared: &str) {
        self.worker.generation = 0;
        // Reading may have been the cause: it does not begin again by itself.
        self.reading_failed(None, reason, false);
        self.maps.neutral.ended(None, false);
        self.levels_ended(None, false);
        self.models.in_flight = None;
        self.file.in_flight = None;
        self.file.removing = None;
        self.vaults.clearing = None;
        self.vaults.removing.clear();
        for (_, waiting) in self.worker.estimates.drain() {
            // The receiver may be dropped.
            let _ = waiting.send(Err(reason.to_owned().into()));
        }
        for (_, (_, waiting)) in self.worker.inspections.drain() {
            let _ = waiting.send(Err(reason.to_owned()));
        }
        self.compared.held = None;
        let compares = self.comparisons().find_map(Compared::ticket);
        if let Some(ticket) = compares {
            let reason = Some(messages::compared_so_far(compared));
            self.end_comparison(ticket, ComparisonState::Failed, reason);
        }
        if let Some(turn) = self.running.take().and_then(|running| running.turn) {
            self.end_turn(turn, TurnState::Failed, |turn| {
                turn.error = Some(reason.to_owned());
            });
        }
        self.throttle.forget();
        if self.models.open.facts().is_some() {
            self.set_model(OpenModel::Opening);
        }
        self.forget_tokens();
    }

    fn set_worker(&mut self, state: WorkerStatus, message: Option<String>) {
        self.worker.state = WorkerState { state, message };
        let worker = self.worker.state.clone();
        self.emit(AppEvent::Worker { worker });
    }
}
