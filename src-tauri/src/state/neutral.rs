//! What a method keeps of the document whatever is asked. It is computed in the background after an answer, from the
//! document's vault; the page then shows what was kept because of the question.

use std::sync::{Arc, Mutex};

use kept_engine::{MapGrid, MethodSpec, policies};
use kept_worker::protocol::{AskRequest, Request};

use super::AppState;
use super::asking::method_of;
use super::effect::Save;
use super::turn_map::{MapPlace, SharedMap};
use crate::contract::{Choice, Turn, WorkerStatus};
use crate::messages;

/// The method and budget that a turn was answered with; `None` in streaming mode, whose map is not exact.
pub(super) fn how(turn: &Turn) -> Option<(MethodSpec, Option<String>)> {
    let facts = turn.facts.as_ref().filter(|facts| !facts.streamed)?;
    let (method, budget) = match &facts.chosen {
        Some(chosen) => (
            MethodSpec::plain(&chosen.method),
            Some(chosen.rows.to_string()),
        ),
        None => {
            let choice = Choice {
                method: turn.method.clone(),
                parameters: turn.parameters.clone(),
                budget: turn.budget.clone(),
            };
            (method_of(&choice), turn.budget.clone())
        }
    };
    Some((method, budget))
}

/// Earlier turns that the model saw with the question.
fn turns_seen(turn: &Turn) -> usize {
    turn.facts.as_ref().map_or(0, |facts| facts.turns_seen)
}

impl AppState {
    /// A turn was answered: its neutral map will be computed, or is that of an earlier turn with the same method and
    /// instructions if neither saw other turns.
    pub(super) fn want_neutral(&mut self, id: u64) {
        let Some(turn) = self
            .open
            .turns
            .iter()
            .find(|turn| turn.id == id && turn.has_map)
        else {
            return;
        };
        let Some(how_made) = how(turn) else {
            return;
        };
        // The others keep the same for every question.
        let mut methods = policies::methods().iter();
        if !methods.any(|method| method.name == how_made.0.name && method.sees_question()) {
            return;
        }
        let same = |other: &&Turn| {
            other.model == turn.model
                && other.cache == turn.cache
                && other.instructions == turn.instructions
                && self.maps.neutral.known.contains_key(&other.id)
                && how(other).as_ref() == Some(&how_made)
                && turns_seen(turn) == 0
                && turns_seen(other) == 0
        };
        let known = self.open.turns.iter().find(same);
        match known.and_then(|other| self.maps.neutral.known.get(&other.id).cloned()) {
            Some(map) => self.set_neutral(id, map),
            None => self.maps.neutral.due = Some(id),
        }
    }

    /// Computes the neutral map that is due, if nothing else runs.
    pub(super) fn ask_neutral(&mut self) {
        if !self.can_work_in_background() {
            return;
        }
        let Some(id) = self.maps.neutral.due.take() else {
            return;
        };
        if let Some(ask) = self.background_question(id) {
            let ticket = self.ticket();
            self.maps.neutral.running = Some((ticket, id));
            self.send(Request::Neutral { ticket, ask }, None);
        }
    }

    /// The question of a turn again, for its maps only; `None` if another model is open since, or the turn has no exact
    /// map.
    pub(super) fn background_question(&self, id: u64) -> Option<AskRequest> {
        let turn = self.open.turns.iter().find(|turn| turn.id == id)?;
        let (method, budget) = how(turn)?;
        if turn.model != self.model_label() {
            return None;
        }
        Some(AskRequest {
            turns: match turns_seen(turn) {
                0 => Vec::new(),
                _ => self.open.turns_before(turn.first_version()),
            },
            instructions: turn.instructions.clone(),
            question: turn.question.clone(),
            method,
            budget,
            max_tokens: 0,
            temperature: 0.0,
            seed: 0,
            repeat_penalty: None,
            thinking: turn.thinking,
            cache: turn.cache.clone(),
            memory: self.memory_limit().ok()?,
        })
    }

    /// Whether the worker can compute maps in the background: it is ready, and nothing else runs.
    pub(super) fn can_work_in_background(&self) -> bool {
        let idle = !self.is_busy() && self.running.is_none() && self.file.opening.is_none();
        let ready =
            self.worker.status() == WorkerStatus::Ready && self.models.open.facts().is_some();
        let free = !self.maps.neutral.is_running() && !self.maps.levels.is_running();
        idle && ready && free && !self.reading.holds_worker() && self.settings.keep != "off"
    }

    /// The neutral map of a request has arrived.
    ///
    /// # Errors
    /// If the bytes are no map.
    pub(super) fn neutral_arrived(&mut self, ticket: u64, bytes: &[u8]) -> Result<(), String> {
        let map = MapGrid::from_bytes(bytes).map_err(|error| error.to_string())?;
        if let Some(turn) = self.maps.neutral.turn_of(ticket) {
            self.set_neutral(turn, Arc::new(Mutex::new(map)));
        }
        Ok(())
    }

    fn set_neutral(&mut self, id: u64, map: SharedMap<MapGrid>) {
        self.maps.neutral.known.insert(id, map.clone());
        let Some(turn) = self.turn_mut(id) else {
            return;
        };
        turn.has_lift = true;
        self.save(Save::Neutral { turn: id, map });
        self.emit_turn(id);
    }

    pub(super) fn forget_neutral(&mut self) {
        if let Some((ticket, _)) = self.maps.neutral.running {
            self.send(Request::Stop { ticket }, None);
        }
        self.maps.neutral.due = None;
        self.maps.neutral.known.clear();
    }

    /// The location of the neutral map of `turn`.
    ///
    /// # Errors
    /// One sentence, if there is none.
    pub fn neutral_map(&self, turn: u64) -> Result<MapPlace<MapGrid>, String> {
        let known = self.open.turns.iter().find(|t| t.id == turn);
        if !known.is_some_and(|turn| turn.has_lift) {
            return Err(messages::NO_LIFT.to_owned());
        }
        Ok(match self.maps.neutral.known.get(&turn) {
            Some(map) => MapPlace::Here(map.clone()),
            None => MapPlace::InStore,
        })
    }

    /// Caches a loaded neutral map.
    pub fn keep_neutral(&mut self, turn: u64, map: MapGrid) -> SharedMap<MapGrid> {
        let map = Arc::new(Mutex::new(map));
        self.maps.neutral.known.insert(turn, map.clone());
        map
    }
}
