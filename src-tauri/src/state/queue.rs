//! Questions that wait: for an earlier question, for a comparison, for the start of the engine.

use kept_worker::protocol::{AskRequest, Request};

use super::AppState;
use super::asking::method_of;
use super::effect::Save;
use super::parts::{Files, Left, OpenConversation};
use super::waiting::{Queued, Running, Unready};
use crate::contract::{AppEvent, Choice, Turn, TurnState};
use crate::messages;

impl AppState {
    /// A question that waits, with the settings of this moment.
    pub(super) fn new_turn(
        &self,
        id: u64,
        question: &str,
        choice: &Choice,
        version_of: Option<u64>,
    ) -> Turn {
        Turn {
            id,
            question: question.to_owned(),
            answer: String::new(),
            state: TurnState::Waiting,
            error: None,
            method: choice.method.clone(),
            parameters: choice.parameters.clone(),
            budget: choice.budget.clone(),
            cache: self.settings.cache.clone(),
            memory: self.settings.memory.clone(),
            instructions: String::new(),
            model: self.model_label(),
            sources: Vec::new(),
            facts: None,
            has_map: false,
            thinking: false,
            windows: Vec::new(),
            version_of,
            has_lift: false,
            has_replay: false,
            levels: 0,
            levels_done: false,
        }
    }

    /// The index of the last attempt at the question whose first version is `first`, if it failed or was stopped before
    /// its first word: another attempt takes its place. What is stored of it is removed.
    pub(super) fn forget_wordless(&mut self, first: u64) -> Option<usize> {
        let mut turns = self.open.turns.iter();
        let at = turns.rposition(|turn| turn.first_version() == first)?;
        let turn = &self.open.turns[at];
        let ended = matches!(turn.state, TurnState::Failed | TurnState::Stopped);
        if !ended || !turn.answer.is_empty() {
            return None;
        }
        let id = turn.id;
        self.forget_map(id);
        self.maps.neutral.known.remove(&id);
        self.maps.levels.known.remove(&id);
        self.save(Save::RemoveTurn(id));
        Some(at)
    }

    /// Asks the question of any conversation that waits longest, if nothing else runs. Questions that can no longer be
    /// asked fail.
    pub(super) fn ask_next(&mut self) {
        let Files {
            opening,
            in_flight,
            removing,
            ..
        } = &self.file;
        if opening.is_some() || in_flight.is_some() || removing.is_some() {
            // The worker may have that document by now.
            return;
        }
        while self.running.is_none() && !self.is_comparing() {
            let waiting = self.in_memory().filter(|known| !known.queue.is_empty());
            let Some(next) = waiting.min_by_key(|known| known.queue[0].order) else {
                return;
            };
            let is_elsewhere = next.conversation != self.open.conversation;
            let ready = match self.ready_for_questions(next) {
                Err(Unready::NotYet(_)) => return,
                Err(Unready::Never(why)) => Err(why),
                Ok(()) => self.memory_limit(),
            };
            let conversation = next.conversation;
            let document = next.document.clone().filter(|_| is_elsewhere);
            let mut all = self.in_memory_mut();
            let next = all.find(|known| known.conversation == conversation);
            let Some(queued) = next.and_then(|next| next.queue.pop_front()) else {
                return;
            };
            drop(all);
            match ready {
                Ok(memory) => {
                    // The worker answers questions about the document that it got before them.
                    let is_other = document.is_some_and(|document| self.adopt(&document));
                    self.start(queued, memory);
                    if is_other {
                        self.send_document();
                    }
                }
                Err(why) => self.end_turn(queued.turn, TurnState::Failed, |turn| {
                    turn.error = Some(why);
                }),
            }
        }
    }

    /// Sends a question to the worker, with the settings of this moment.
    fn start(&mut self, queued: Queued, memory: Option<u64>) {
        let Queued {
            turn: id,
            choice,
            alone,
            ..
        } = queued;
        let can_think = self
            .models
            .open
            .facts()
            .is_some_and(|model| model.can_think);
        let thinks = (self.conversation_of(id)).is_some_and(|known| known.thinking);
        let thinking = thinks && can_think;
        let (model, settings) = (self.model_label(), self.settings.clone());
        // The built-in model looks up single facts only.
        let instructions = match settings.model.as_str() {
            kept_engine::MINI => String::new(),
            _ => settings.instructions,
        };
        let Some(turn) = self.turn_mut(id) else {
            return;
        };
        turn.state = TurnState::Asked;
        turn.model = model;
        turn.cache = settings.cache.clone();
        turn.memory = settings.memory;
        turn.instructions = instructions.clone();
        turn.thinking = thinking;
        let question = turn.question.clone();
        let first_version = turn.first_version();
        self.save_turn(id);
        // A comparison that ended before is news no more.
        let ended = |left: &&mut Left| left.conversation.holds(id);
        if let Some(left) = self.left.iter_mut().find(ended) {
            left.compared
                .take_if(|compared| compared.ticket().is_none());
        }
        self.emit_turn(id);
        let ticket = self.ticket();
        let of = self.conversation_of(id).unwrap_or(&self.open);
        let turns = if alone {
            Vec::new()
        } else {
            self.turns_seen(of, first_version)
        };
        let budget = self.budget_of(&choice, of);
        let ask = AskRequest {
            turns,
            instructions,
            question,
            method: method_of(&choice),
            budget,
            max_tokens: settings.max_tokens,
            temperature: settings.temperature,
            // No other attempt with an answer has this number, also after a restart: asked again, a question has another answer.
            seed: id,
            repeat_penalty: settings.repeat_penalty,
            thinking,
            cache: settings.cache,
            memory,
        };
        self.running = Some(Running {
            ticket,
            turn: Some(id),
            progress: None,
        });
        self.send(Request::Ask { ticket, ask }, None);
    }

    /// As [`OpenConversation::turns_before`]; the built-in model answers single questions only, so it sees none.
    pub(super) fn turns_seen(
        &self,
        conversation: &OpenConversation,
        first: u64,
    ) -> Vec<kept_engine::Turn> {
        match self.settings.model.as_str() {
            kept_engine::MINI => Vec::new(),
            _ => conversation.turns_before(first),
        }
    }

    /// Removes a question that waits.
    ///
    /// # Errors
    /// One sentence, if it does not wait.
    pub fn remove_waiting(&mut self, turn: u64) -> Result<(), String> {
        let at = self
            .open
            .queue
            .iter()
            .position(|queued| queued.turn == turn);
        let at = at.ok_or_else(|| messages::NOT_WAITING.to_owned())?;
        self.open.queue.remove(at);
        let versions = self.open.turns.iter().filter(|t| t.id == turn);
        let is_version = versions.into_iter().any(|turn| turn.version_of.is_some());
        self.open.turns.retain(|known| known.id != turn);
        self.save(Save::RemoveTurn(turn));
        self.emit(AppEvent::TurnRemoved { turn });
        self.question_removed(is_version);
        Ok(())
    }
}
