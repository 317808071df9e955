//! Questions: asking, replies during a question, stopping, and the end of a turn.

use std::time::Instant;

use kept_engine::policies;
use kept_engine::{AUTO, MethodSpec};
use kept_worker::protocol::{AnswerFacts, EstimateRequest, Fault, Request};
use tokio::sync::oneshot;

use super::AppState;
use super::checks::{assigned, check_choice};
use super::effect::Save;
use super::facts::{finish, is_stored};
use super::parts::{OpenConversation, OpenModel, take};
use super::turn_map::lock;
use super::waiting::{Queued, Unready};
use crate::contract::{
    AppEvent, Choice, Estimate, Memory, Progress, Refusal, Relation, Turn, TurnState, WorkerStatus,
};
use crate::messages;
use crate::sample;

impl AppState {
    /// Whether a question runs or waits, in any conversation.
    pub fn is_running(&self) -> bool {
        self.in_memory()
            .any(|conversation| self.works_in(conversation))
    }

    /// Whether the methods of a comparison run, of any document.
    pub(super) fn is_comparing(&self) -> bool {
        self.comparisons()
            .any(|compared| compared.ticket().is_some())
    }

    /// Whether a question or a comparison runs or waits, in any conversation.
    pub fn is_busy(&self) -> bool {
        self.is_running() || self.is_comparing()
    }

    /// Asks a question and returns the turn's id, or the reason for a refusal in one sentence. It waits while another
    /// one runs, and until the engine has started and the model is open.
    pub fn ask(
        &mut self,
        question: &str,
        choice: Choice,
        relation: Relation,
    ) -> Result<u64, String> {
        let question = question.trim();
        if question.is_empty() {
            return Err(messages::EMPTY_QUESTION.to_owned());
        }
        if let Some(opening) = &self.file.opening {
            // It would be asked about the document that is still shown, and stopped with it.
            return Err(messages::still_opening(&opening.name));
        }
        if let Err(Unready::Never(why)) = self.ready_for_questions(&self.open) {
            return Err(why);
        }
        check_choice(&choice)?;
        self.can_read(&choice)?;
        self.memory_limit()?;
        let version_of = match relation.again {
            Some(turn) => Some(self.known_turn(turn)?.first_version()),
            None => None,
        };
        if let Some(turn) = relation.edits {
            self.branch_before(turn, question)?;
        }
        let replaced = version_of.and_then(|first| self.forget_wordless(first));
        let id = match replaced {
            Some(at) => self.open.turns[at].id,
            None => take(&mut self.ids.turn),
        };
        let version_of = version_of.filter(|first| *first != id);
        let turn = self.new_turn(id, question, &choice, version_of);
        match replaced {
            Some(at) => self.open.turns[at] = turn,
            None => self.open.turns.push(turn),
        }
        self.add_question(question, usize::from(relation.again.is_none()));
        let order = self.ticket();
        self.open.queue.push_back(Queued {
            turn: id,
            order,
            choice,
            alone: relation.alone,
        });
        self.ask_next();
        if self.open.queue.iter().any(|queued| queued.turn == id) {
            self.save_turn(id);
            self.emit_turn(id);
        }
        Ok(id)
    }

    /// Whether a question of `conversation` can be asked now.
    pub(super) fn ready_for_questions(
        &self,
        conversation: &OpenConversation,
    ) -> Result<(), Unready> {
        let never = |why: &str| Err(Unready::Never(why.to_owned()));
        let Some(document) = &conversation.document else {
            return never(messages::NO_DOCUMENT);
        };
        match self.worker.status() {
            WorkerStatus::Ready => {}
            WorkerStatus::Failed => return never(messages::ENGINE_FAILED),
            WorkerStatus::Starting | WorkerStatus::Restarting => {
                return Err(Unready::NotYet(messages::ENGINE_STARTING));
            }
        }
        match &self.models.open {
            OpenModel::Open(_) => {}
            OpenModel::Failed(error) => return never(error),
            OpenModel::Opening => return Err(Unready::NotYet(messages::MODEL_OPENING)),
        }
        match &document.facts.too_long {
            Some(sentence) => never(sentence),
            None => Ok(()),
        }
    }

    /// A turn of this conversation.
    pub(super) fn known_turn(&self, id: u64) -> Result<&Turn, String> {
        let known = self.open.turns.iter().find(|turn| turn.id == id);
        known.ok_or_else(|| messages::NO_TURN.to_owned())
    }

    /// Whether the method can read the document: only a few methods can read a document beyond the context length.
    pub(super) fn can_read(&self, choice: &Choice) -> Result<(), String> {
        let able = policies::STREAMING.contains(&choice.method.as_str()) || choice.method == AUTO;
        if self.open.is_streamed() && !able {
            return Err(messages::cannot_stream(&choice.method));
        }
        Ok(())
    }

    /// The budget of a question of `conversation` for the engine. The sample is short enough to be kept completely, which
    /// would not demonstrate Kept: for the sample, `auto` without a budget gets a part, and its reason mentions this.
    pub(super) fn budget_of(
        &self,
        choice: &Choice,
        conversation: &OpenConversation,
    ) -> Option<String> {
        let left_to_itself = choice.method == AUTO && choice.budget.is_none();
        if left_to_itself && conversation.is_sample() && !conversation.is_streamed() {
            Some(sample::budget(&self.settings.model).to_owned())
        } else {
            choice.budget.clone()
        }
    }

    /// Estimates the cost of a question; the receiver gets the result.
    pub fn estimate(
        &mut self,
        choice: Choice,
    ) -> Result<oneshot::Receiver<Result<Estimate, Refusal>>, String> {
        self.ready_for_questions(&self.open)?;
        check_choice(&choice)?;
        self.can_read(&choice)?;
        let memory = self.memory_limit()?;
        let ticket = self.ticket();
        let (send, receive) = oneshot::channel();
        self.worker.estimates.insert(ticket, send);
        let of = self.estimate_request(&choice, memory);
        let turns = self.turns_seen(&self.open, u64::MAX);
        self.send(Request::Estimate { ticket, of, turns }, None);
        Ok(receive)
    }

    /// What a question with `choice` costs depends on this. `memory`: [`AppState::memory_limit`].
    pub(super) fn estimate_request(&self, choice: &Choice, memory: Option<u64>) -> EstimateRequest {
        EstimateRequest {
            method: method_of(choice),
            budget: self.budget_of(choice, &self.open),
            cache: self.settings.cache.clone(),
            memory,
            max_tokens: Some(self.settings.max_tokens),
        }
    }

    /// Stops the open conversation's question; if none runs, the first that waits, or else the file or conversation that
    /// is being opened.
    pub fn stop(&mut self) {
        self.hold_reading();
        match &self.running {
            Some(running) if running.turn.is_some_and(|turn| self.open.holds(turn)) => {
                let ticket = running.ticket;
                self.send(Request::Stop { ticket }, None);
            }
            _ => match self.open.queue.pop_front() {
                Some(queued) => self.end_turn(queued.turn, TurnState::Stopped, |_| {}),
                None => self.stop_opening(),
            },
        }
    }

    /// The turn that `ticket` answers, unless its conversation was deleted.
    pub(super) fn turn_of(&self, ticket: u64) -> Option<u64> {
        let running = self.running.as_ref()?;
        running.turn.filter(|_| running.ticket == ticket)
    }

    /// A turn of a conversation in memory.
    pub(super) fn turn_mut(&mut self, id: u64) -> Option<&mut Turn> {
        let mut turns = self.in_memory_mut().flat_map(|known| &mut known.turns);
        turns.find(|turn| turn.id == id)
    }

    /// Sends a turn of the open conversation, and of another one that something has changed there.
    pub(super) fn emit_turn(&mut self, id: u64) {
        self.flush_text();
        match self.open.turns.iter().rev().find(|turn| turn.id == id) {
            Some(turn) => {
                let turn = turn.clone();
                self.emit(AppEvent::Turn { turn });
            }
            None => self.emit_elsewhere(),
        }
    }

    pub(super) fn save_turn(&mut self, id: u64) {
        let Some(of) = self.conversation_of(id) else {
            return;
        };
        let turn = of.turns.iter().find(|turn| turn.id == id).cloned();
        if let (Some(conversation), Some(turn)) = (of.conversation, turn.map(Box::new)) {
            self.save(Save::Turn { conversation, turn });
        }
    }

    pub(super) fn set_state(&mut self, id: u64, state: TurnState) {
        let changed = self.turn_mut(id).filter(|turn| turn.state != state);
        if let Some(turn) = changed {
            turn.state = state;
            self.emit_turn(id);
        }
    }

    pub(super) fn text_arrived(
        &mut self,
        now: Instant,
        turn: u64,
        text: &str,
        attended: Vec<(u32, u8)>,
    ) {
        // The state comes first: it sends the whole turn, and each piece of text must reach the page once.
        self.set_state(turn, TurnState::Answering);
        if text.is_empty() {
            return;
        }
        if let Some(answered) = self.turn_mut(turn) {
            answered.answer.push_str(text);
        }
        self.throttle.pending.push_str(text);
        self.throttle.attended = attended;
        if self.throttle.text.want(now) {
            self.flush_text();
        }
        if self.throttle.saving.want(now) {
            self.save_turn(turn);
        }
    }

    /// The running turn, if it is one of the open conversation.
    pub(super) fn running_here(&self) -> Option<u64> {
        let turn = self.running.as_ref()?.turn?;
        self.open.holds(turn).then_some(turn)
    }

    /// Sends the waiting pieces of the answer.
    pub(super) fn flush_text(&mut self) {
        self.throttle.text.forget();
        let text = std::mem::take(&mut self.throttle.pending);
        let attended = std::mem::take(&mut self.throttle.attended);
        if let (Some(turn), false) = (self.running_here(), text.is_empty()) {
            self.emit(AppEvent::Token {
                turn,
                text,
                attended,
            });
        }
    }

    pub(super) fn progressed(
        &mut self,
        now: Instant,
        turn: u64,
        progress: Progress,
        memory: Memory,
    ) {
        if let Some(running) = &mut self.running {
            running.progress = Some((progress, memory));
        }
        if progress.phase == crate::contract::Phase::Reading {
            self.set_state(turn, TurnState::Reading);
        }
        if self.throttle.progress.want(now) {
            self.emit_progress();
        }
    }

    pub(super) fn emit_progress(&mut self) {
        let here = self.running_here();
        let progress = (self.running.as_ref()).and_then(|running| running.progress);
        match (here, progress) {
            (None, Some(_)) => self.emit_elsewhere(),
            (Some(turn), Some((progress, memory))) => self.emit(AppEvent::Progress {
                turn,
                progress,
                memory,
            }),
            (_, None) => {}
        }
    }

    /// Sends the throttled messages that are due.
    pub fn tick(&mut self, now: Instant) {
        if self.throttle.text.take(now) {
            self.flush_text();
        }
        if self.throttle.progress.take(now) {
            self.emit_progress();
        }
        if self.throttle.map.take(now) {
            self.emit_map();
        }
        if self.throttle.saving.take(now) {
            self.save_running();
        }
    }

    /// Saves what the running answer has so far.
    pub fn save_running(&mut self) {
        if let Some(turn) = self.running.as_ref().and_then(|r| r.turn) {
            self.save_turn(turn);
        }
    }

    pub(super) fn answered(&mut self, ticket: u64, answer: AnswerFacts) {
        if let Some(turn) = self.turn_of(ticket) {
            if let Some(running) = &mut self.running
                && let Some((progress, _)) = running.progress
            {
                running.progress = Some((progress, answer.memory));
                self.emit_progress();
            }
            let state = match answer.report.finish {
                kept_engine::Finish::Stopped => TurnState::Stopped,
                _ => TurnState::Done,
            };
            self.running_ended();
            let kept = answer.vault.written;
            let of = self.conversation_of(turn);
            let document = of.and_then(|of| of.document.clone());
            let document = document.as_ref().map(|document| &document.facts);
            let stored = is_stored(&answer, document.and_then(|document| document.tokens));
            let is_open = document.is_some_and(|document| self.open.is_about(document.id));
            if let Some(map) = self.maps.known.get(&turn) {
                let mut map = lock(map);
                map.attended = answer.attended.clone();
                map.by_head = answer.by_head.clone();
            }
            self.end_turn(turn, state, |turn| finish(turn, answer, document, stored));
            self.want_neutral(turn);
            if is_open {
                self.document_stored(stored || self.settings.keep == "off");
            }
            if kept && is_open {
                self.question_read_document();
            }
            if kept {
                self.request_vaults();
            }
        } else {
            self.release_worker(ticket);
        }
    }

    pub(super) fn ask_failed(&mut self, ticket: u64, fault: &Fault, stopped: bool) {
        if let Some(turn) = self.turn_of(ticket) {
            self.running_ended();
            let state = if stopped {
                TurnState::Stopped
            } else {
                TurnState::Failed
            };
            self.end_turn(turn, state, |turn| {
                turn.error = (!stopped).then(|| messages::fault(fault));
            });
            // A long document is in the vault as far as it was read.
            if self.settings.keep != "off" {
                self.request_vaults();
            }
        } else {
            self.release_worker(ticket);
        }
    }

    pub(super) fn release_worker(&mut self, ticket: u64) {
        if self.running.as_ref().is_some_and(|r| r.ticket == ticket) {
            self.running_ended();
        }
    }

    /// The worker is free: sends the comparison that was held back. A question follows with [`AppState::ask_next`].
    pub(super) fn running_ended(&mut self) {
        self.flush_text();
        self.running = None;
        if let Some(request) = self.compared.held.take()
            && let Request::Compare { ticket, .. } = request
        {
            self.start_comparing(request, ticket);
        }
    }

    /// Ends a turn: saves it with its map and sends it completely.
    pub(super) fn end_turn(&mut self, id: u64, state: TurnState, change: impl FnOnce(&mut Turn)) {
        self.throttle.forget();
        let mapped = self.finish_map(id);
        let Some(turn) = self.turn_mut(id) else {
            return;
        };
        change(turn);
        turn.state = state;
        turn.has_map = mapped.is_some();
        self.save_turn(id);
        if let Some(map) = mapped {
            self.save(Save::Map { turn: id, map });
        }
        self.emit_turn(id);
    }
}

/// The method in the form of the engine's protocol.
pub(super) fn method_of(choice: &Choice) -> MethodSpec {
    MethodSpec {
        name: choice.method.clone(),
        parameters: assigned(&choice.parameters),
    }
}
