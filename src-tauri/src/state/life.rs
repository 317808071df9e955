//! Start, crash and restart of the worker, as the app state handles them. No typed or answered text is lost.

use kept_worker::protocol;

use super::AppState;
use super::effect::Effect;
use crate::contract::{
    AppEvent, ComparisonState, MethodFacts, NoticeKind, ParameterFacts, Place, TurnState,
    WorkerState, WorkerStatus,
};
use crate::messages;

impl AppState {
    /// A worker has started and sent its hello: it gets the model, the document and the file that was being opened.
    /// `generation` identifies this process; requests carry it, so that no request for an earlier process reaches a
    /// later one.
    pub fn worker_hello(&mut self, generation: u64, methods: Vec<protocol::MethodFacts>) {
        self.generation = generation;
        self.methods = methods.into_iter().map(method_facts).collect();
        let methods = self.methods.clone();
        self.emit(AppEvent::Methods { methods });
        self.set_worker(WorkerStatus::Ready, None);
        if let Some((place, message)) = self.after_restart.take() {
            self.notice(NoticeKind::Error, place, message);
        }
        self.model_in_flight = None;
        self.document_in_flight = None;
        self.removing = None;
        self.send_model();
        self.send_document();
        self.send_opening();
        self.send_vault_settings();
    }

    /// The worker has ended and is about to be restarted. `what` is a sentence: how it ended.
    pub fn worker_died(&mut self, what: &str) {
        let was_asked = self.running.as_ref().is_some_and(|r| r.turn.is_some());
        let opened = self.document_in_flight.is_some();
        let opening = self.opening.as_ref().filter(|_| opened);
        self.after_restart = match opening {
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
        let compared = self.comparing.is_some();
        self.end_running_work(
            &messages::restarted_ask_again(what),
            &messages::restarted(what),
        );
        if compared {
            // The comparison shows it.
            self.after_restart = None;
        }
        self.set_worker(
            WorkerStatus::Restarting,
            Some(format!("{what} It is restarting.")),
        );
    }

    /// The worker has ended and is not restarted until the user requests it. `message` is a sentence.
    pub fn worker_gone(&mut self, message: &str) {
        self.after_restart = None;
        if let Some(opening) = &self.opening {
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
        self.after_restart = None;
        self.set_worker(WorkerStatus::Restarting, None);
        self.effects.push(Effect::RestartWorker);
    }

    /// Ends everything that ran in a worker that has ended. `reason` is the sentence for a question, `compared` the one
    /// for a comparison.
    fn end_running_work(&mut self, reason: &str, compared: &str) {
        self.generation = 0;
        // Reading may have been the cause: it does not begin again by itself.
        self.reading_failed(None, reason, false);
        self.neutral_ended(None, false);
        self.levels_ended(None, false);
        self.model_in_flight = None;
        self.document_in_flight = None;
        self.removing = None;
        self.clearing = None;
        for (_, waiting) in self.estimates.drain() {
            // The receiver may be dropped.
            let _ = waiting.send(Err(reason.to_owned().into()));
        }
        for (_, (_, waiting)) in self.inspections.drain() {
            let _ = waiting.send(Err(reason.to_owned()));
        }
        self.held = None;
        if let Some(ticket) = self.comparing {
            let reason = Some(messages::compared_so_far(compared));
            self.end_comparison(ticket, ComparisonState::Failed, reason);
        }
        if let Some(turn) = self.running.take().and_then(|running| running.turn) {
            self.end_turn(turn, TurnState::Failed, |turn| {
                turn.error = Some(reason.to_owned());
            });
        }
        self.throttle.forget();
        if self.model.take().is_some() {
            self.emit(AppEvent::Model {
                model: None,
                error: None,
            });
        }
        self.forget_tokens();
    }

    fn set_worker(&mut self, state: WorkerStatus, message: Option<String>) {
        self.worker = WorkerState { state, message };
        let worker = self.worker.clone();
        self.emit(AppEvent::Worker { worker });
    }
}

fn method_facts(method: protocol::MethodFacts) -> MethodFacts {
    MethodFacts {
        name: method.name,
        title: method.title,
        paper: method.paper,
        keeps: method.keeps,
        acts: method.acts,
        positions: method.positions,
        streams: method.streams,
        sees_question: method.sees_question,
        parameters: method
            .parameters
            .into_iter()
            .map(|parameter| ParameterFacts {
                name: parameter.name,
                default: parameter.default,
                range: parameter.range,
                meaning: parameter.meaning,
            })
            .collect(),
    }
}
