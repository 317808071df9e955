//! Questions: asking, replies during a question, stopping, and the end of a turn.

use std::time::Instant;

use kept_engine::policies;
use kept_engine::{AUTO, MethodSpec};
use kept_worker::protocol::{AnswerFacts, AskRequest, EstimateRequest, Fault, Request};
use tokio::sync::oneshot;

use super::facts::{finish, memory};
use super::models::{assigned, check_choice};
use super::{AppState, Running, Save};
use crate::contract::{
    AppEvent, Choice, Estimate, Memory, Progress, Refusal, Turn, TurnState, WorkerStatus,
};
use crate::messages;
use crate::sample;

impl AppState {
    /// Whether a question of this conversation runs.
    pub fn is_running(&self) -> bool {
        let held = matches!(self.held, Some(Request::Ask { .. }));
        held || self.running.as_ref().is_some_and(|r| r.turn.is_some())
    }

    /// Whether a question or a comparison about the open document runs.
    pub fn is_busy(&self) -> bool {
        self.is_running() || self.comparing.is_some()
    }

    /// Asks a question and returns the turn's id, or the reason for a refusal in one sentence. The model sees the
    /// earlier turns of the conversation.
    pub fn ask(&mut self, question: &str, choice: Choice) -> Result<u64, String> {
        let turns = self.earlier_turns(question.trim());
        self.ask_after(turns, question, choice)
    }

    /// [`AppState::ask`] without the earlier turns.
    pub fn ask_alone(&mut self, question: &str, choice: Choice) -> Result<u64, String> {
        self.ask_after(Vec::new(), question, choice)
    }

    /// The earlier turns that a model sees with `question`: of several attempts at one question the last, and no
    /// attempt at `question` itself. The built-in model answers single questions only, so it sees none.
    fn earlier_turns(&self, question: &str) -> Vec<kept_engine::Turn> {
        if self.settings.model == kept_engine::MINI {
            return Vec::new();
        }
        let mut turns: Vec<kept_engine::Turn> = Vec::new();
        let answered = |turn: &&Turn| matches!(turn.state, TurnState::Done | TurnState::Stopped);
        for turn in self.turns.iter().filter(answered) {
            if let Some(turn) = kept_engine::Turn::new(&turn.question, &turn.answer) {
                turns.retain(|earlier| earlier.question != turn.question);
                turns.push(turn);
            }
        }
        turns.retain(|turn| turn.question != question);
        turns
    }

    fn ask_after(
        &mut self,
        turns: Vec<kept_engine::Turn>,
        question: &str,
        choice: Choice,
    ) -> Result<u64, String> {
        let question = question.trim();
        if question.is_empty() {
            return Err(messages::EMPTY_QUESTION.to_owned());
        }
        self.ready_for_questions()?;
        if self.is_running() {
            return Err(messages::BUSY.to_owned());
        }
        if self.comparing.is_some() {
            return Err(messages::BUSY_COMPARING.to_owned());
        }
        check_choice(&choice)?;
        self.can_read(&choice)?;
        let memory = self.memory_limit()?;
        let can_think = self.model.as_ref().is_some_and(|model| model.can_think);
        let thinking = self.thinking && can_think;
        let id = self.next_turn;
        self.next_turn += 1;
        let turn = Turn {
            id,
            question: question.to_owned(),
            answer: String::new(),
            state: TurnState::Asked,
            error: None,
            method: choice.method.clone(),
            parameters: choice.parameters.clone(),
            budget: choice.budget.clone(),
            cache: self.settings.cache.clone(),
            memory: self.settings.memory.clone(),
            model: self.model_label(),
            sources: Vec::new(),
            facts: None,
            has_map: false,
            thinking,
            windows: Vec::new(),
        };
        self.add_question(question);
        self.turns.push(turn.clone());
        self.save_turn(id);
        self.emit(AppEvent::Turn { turn });
        let ticket = self.ticket();
        let request = Request::Ask {
            ticket,
            ask: AskRequest {
                turns,
                question: question.to_owned(),
                method: method_of(&choice),
                budget: self.budget_of(&choice),
                max_tokens: self.settings.max_tokens,
                temperature: 0.0,
                seed: 0,
                repeat_penalty: self.settings.repeat_penalty,
                thinking,
                cache: self.settings.cache.clone(),
                memory,
            },
        };
        if self.running.is_some() {
            // The question of a deleted conversation is still ending.
            self.held = Some(request);
        } else {
            self.start(request, ticket, id);
        }
        Ok(id)
    }

    fn start(&mut self, request: Request, ticket: u64, turn: u64) {
        self.running = Some(Running {
            ticket,
            turn: Some(turn),
            progress: None,
            newest: None,
        });
        self.send(request, None);
    }

    /// The document's id, if a question can be asked about it now.
    pub(super) fn ready_for_questions(&self) -> Result<(), String> {
        let Some(document) = &self.document else {
            return Err(messages::NO_DOCUMENT.to_owned());
        };
        match self.worker.state {
            WorkerStatus::Ready => {}
            WorkerStatus::Failed => return Err(messages::ENGINE_FAILED.to_owned()),
            WorkerStatus::Starting | WorkerStatus::Restarting => {
                return Err(messages::ENGINE_STARTING.to_owned());
            }
        }
        match (&self.model, &self.model_error) {
            (Some(_), _) => {}
            (None, Some(error)) => return Err(error.clone()),
            (None, None) => return Err(messages::MODEL_OPENING.to_owned()),
        }
        match &document.too_long {
            Some(sentence) => Err(sentence.clone()),
            None => Ok(()),
        }
    }

    /// Whether the method can read the document: only a few methods can read a document beyond the context length.
    fn can_read(&self, choice: &Choice) -> Result<(), String> {
        let able = policies::STREAMING.contains(&choice.method.as_str()) || choice.method == AUTO;
        match self.document.as_ref().map(|d| &d.streaming) {
            Some(Some(_)) if !able => Err(messages::cannot_stream(&choice.method)),
            _ => Ok(()),
        }
    }

    /// The budget for the engine. The sample is short enough to be kept completely, which would not demonstrate Kept:
    /// for the sample, `auto` without a budget gets a quarter, and its reason mentions this.
    fn budget_of(&self, choice: &Choice) -> Option<String> {
        let (streams, sample) = self.how_it_is_read();
        let left_to_itself = choice.method == AUTO && choice.budget.is_none();
        if left_to_itself && sample && !streams {
            Some(sample::BUDGET.to_owned())
        } else {
            choice.budget.clone()
        }
    }

    /// Whether the document is read in streaming mode, and whether it is the sample.
    pub(super) fn how_it_is_read(&self) -> (bool, bool) {
        let document = self.document.as_ref();
        document.map_or((false, false), |d| (d.streaming.is_some(), d.sample))
    }

    /// Estimates the cost of a question; the receiver gets the result.
    pub fn estimate(
        &mut self,
        choice: Choice,
    ) -> Result<oneshot::Receiver<Result<Estimate, Refusal>>, String> {
        self.ready_for_questions()?;
        check_choice(&choice)?;
        self.can_read(&choice)?;
        let memory = self.memory_limit()?;
        let ticket = self.ticket();
        let (send, receive) = oneshot::channel();
        self.estimates.insert(ticket, send);
        self.send(
            Request::Estimate {
                ticket,
                of: EstimateRequest {
                    method: method_of(&choice),
                    budget: self.budget_of(&choice),
                    cache: self.settings.cache.clone(),
                    memory,
                    max_tokens: Some(self.settings.max_tokens),
                },
            },
            None,
        );
        Ok(receive)
    }

    /// Stops the current question, or else the file that is being opened.
    pub fn stop(&mut self) {
        self.hold_reading();
        if matches!(self.held, Some(Request::Ask { .. })) {
            self.held = None;
            if let Some(turn) = self.turns.last().map(|turn| turn.id) {
                self.end_turn(turn, TurnState::Stopped, |_| {});
            }
            return;
        }
        match &self.running {
            Some(running) if running.turn.is_some() => {
                let ticket = running.ticket;
                self.send(Request::Stop { ticket }, None);
            }
            _ => self.stop_opening(),
        }
    }

    /// Leaves the conversation, which remains in the list: stops its question and ignores the replies that still arrive.
    pub(super) fn leave_conversation(&mut self) {
        self.held = None;
        self.leave_comparison();
        if let Some(running) = &mut self.running
            && running.turn.take().is_some()
        {
            let ticket = running.ticket;
            self.send(Request::Stop { ticket }, None);
        }
        self.throttle.forget();
        self.conversation = None;
        self.turns.clear();
        self.set_thinking(false);
        self.forget_maps();
    }

    /// The turn that `ticket` answers, unless its conversation was deleted.
    pub(super) fn turn_of(&self, ticket: u64) -> Option<u64> {
        let running = self.running.as_ref()?;
        running.turn.filter(|_| running.ticket == ticket)
    }

    pub(super) fn turn_mut(&mut self, id: u64) -> Option<&mut Turn> {
        self.turns.iter_mut().rev().find(|turn| turn.id == id)
    }

    pub(super) fn emit_turn(&mut self, id: u64) {
        self.flush_text();
        if let Some(turn) = self.turn_mut(id).map(|turn| turn.clone()) {
            self.emit(AppEvent::Turn { turn });
        }
    }

    pub(super) fn save_turn(&mut self, id: u64) {
        let turn = self.turn_mut(id).map(|turn| Box::new(turn.clone()));
        if let (Some(conversation), Some(turn)) = (self.conversation, turn) {
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

    pub(super) fn text_arrived(&mut self, now: Instant, turn: u64, text: &str) {
        // The state comes first: it sends the whole turn, and each piece of text must reach the page once.
        self.set_state(turn, TurnState::Answering);
        if text.is_empty() {
            return;
        }
        if let Some(answered) = self.turn_mut(turn) {
            answered.answer.push_str(text);
        }
        self.throttle.pending.push_str(text);
        if self.throttle.text.want(now) {
            self.flush_text();
        }
        if self.throttle.saving.want(now) {
            self.save_turn(turn);
        }
    }

    /// Sends the waiting pieces of the answer.
    pub(super) fn flush_text(&mut self) {
        self.throttle.text.forget();
        let text = std::mem::take(&mut self.throttle.pending);
        let turn = self.running.as_ref().and_then(|running| running.turn);
        if let (Some(turn), false) = (turn, text.is_empty()) {
            self.emit(AppEvent::Token { turn, text });
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
            running.progress = Some(progress);
            running.newest = Some((progress, memory));
        }
        if progress.phase == crate::contract::Phase::Reading {
            self.set_state(turn, TurnState::Reading);
        }
        if self.throttle.progress.want(now) {
            self.emit_progress();
        }
    }

    fn emit_progress(&mut self) {
        let Some(running) = &mut self.running else {
            return;
        };
        if let (Some(turn), Some((progress, memory))) = (running.turn, running.newest.take()) {
            self.emit(AppEvent::Progress {
                turn,
                progress,
                memory,
            });
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
        if self.throttle.saving.take(now)
            && let Some(turn) = self.running.as_ref().and_then(|r| r.turn)
        {
            self.save_turn(turn);
        }
    }

    pub(super) fn answered(&mut self, ticket: u64, answer: AnswerFacts) {
        if let Some(turn) = self.turn_of(ticket) {
            if let Some(running) = &mut self.running
                && let Some(progress) = running.progress
            {
                running.newest = Some((progress, memory(&answer.memory)));
                self.emit_progress();
            }
            let state = match answer.finish {
                kept_engine::Finish::Stopped => TurnState::Stopped,
                _ => TurnState::Done,
            };
            self.running_ended();
            let (_, sample) = self.how_it_is_read();
            let kept = answer.vault.written;
            self.end_turn(turn, state, |turn| finish(turn, answer, sample));
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
        } else {
            self.release_worker(ticket);
        }
    }

    pub(super) fn release_worker(&mut self, ticket: u64) {
        if self.running.as_ref().is_some_and(|r| r.ticket == ticket) {
            self.running_ended();
        }
    }

    /// The worker is free: sends the request that was held back.
    pub(super) fn running_ended(&mut self) {
        self.flush_text();
        self.running = None;
        let turn = self.turns.last().map(|turn| turn.id);
        if let Some(request) = self.held.take() {
            match (&request, turn) {
                (&Request::Ask { ticket, .. }, Some(turn)) => self.start(request, ticket, turn),
                (&Request::Compare { ticket, .. }, _) => self.start_comparing(request, ticket),
                _ => {}
            }
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
