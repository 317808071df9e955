//! What an answered question would keep with less memory: computed on request, from the document's vault, one budget
//! after the other. The page then shows the document under any budget at once.

use kept_engine::{LEVELS, MethodSpec};
use kept_worker::protocol::Request;

use super::AppState;
use super::background::Level;
use super::neutral::how;
use crate::messages;

/// The method of the levels of an answer that kept everything.
const OF_EVERYTHING: &str = "snapkv";

impl AppState {
    /// Begins to compute what a turn keeps with less memory, once the worker is free. Each level is an event of the
    /// turn.
    ///
    /// # Errors
    /// One sentence, if it cannot be computed.
    pub fn show_less_memory(&mut self, turn: u64) -> Result<(), String> {
        let known = self.known_turn(turn)?;
        if known.levels_done {
            return Ok(());
        }
        let asked = known.has_map && how(known).is_some();
        if !asked || self.settings.keep == "off" || self.background_question(turn).is_none() {
            return Err(messages::NO_LEVELS.to_owned());
        }
        if self
            .maps
            .levels
            .running
            .is_none_or(|(_, running)| running != turn)
        {
            self.maps.levels.due = Some(turn);
        }
        self.ask_levels();
        Ok(())
    }

    /// Computes the levels that are due, if nothing else runs.
    pub(super) fn ask_levels(&mut self) {
        if self.maps.levels.due.is_none() || !self.can_work_in_background() {
            return;
        }
        let Some(id) = self.maps.levels.due.take() else {
            return;
        };
        let Some(mut ask) = self.background_question(id) else {
            // Another model was opened since.
            let count = self.maps.levels.known.get(&id).map_or(0, Vec::len);
            return self.set_levels(id, count, true);
        };
        if ask.method.is_full() {
            ask.method = MethodSpec::plain(OF_EVERYTHING);
        }
        let ticket = self.ticket();
        self.maps.levels.running = Some((ticket, id));
        self.maps.levels.known.remove(&id);
        self.send(Request::Levels { ticket, ask }, None);
    }

    /// A level has arrived.
    pub(super) fn level_arrived(&mut self, ticket: u64, percent: u8, shares: Vec<u8>) {
        let Some(id) = self.maps.levels.turn_of(ticket) else {
            return;
        };
        let levels = self.maps.levels.known.entry(id).or_default();
        levels.push(Level { percent, shares });
        let count = levels.len();
        self.set_levels(id, count, false);
    }

    fn set_levels(&mut self, id: u64, count: usize, done: bool) {
        if let Some(turn) = self.turn_mut(id) {
            turn.levels = count;
            turn.levels_done = done;
            self.emit_turn(id);
        }
    }

    /// As [`Background::ended`](super::background::Background::ended).
    pub(super) fn levels_ended(&mut self, ticket: Option<u64>, stopped: bool) {
        if let Some(id) = self.maps.levels.ended(ticket, stopped) {
            let count = self.maps.levels.known.get(&id).map_or(0, Vec::len);
            self.set_levels(id, count, true);
        }
    }

    pub(super) fn forget_levels(&mut self) {
        // It holds the worker until it has stopped.
        if let Some((ticket, _)) = self.maps.levels.running {
            self.send(Request::Stop { ticket }, None);
        }
        self.maps.levels.due = None;
        self.maps.levels.known.clear();
        for turn in &mut self.open.turns {
            (turn.levels, turn.levels_done) = (0, false);
        }
    }

    /// The levels of a turn that are known: their number, their budgets in percent, `[levels][cells]` shares.
    pub fn levels_of(&self, turn: u64) -> Vec<u8> {
        let levels = self
            .maps
            .levels
            .known
            .get(&turn)
            .map_or(&[][..], Vec::as_slice);
        let levels = &levels[..levels.len().min(LEVELS.len())];
        let count = levels.len() as u8; // at most `LEVELS`
        let budgets = levels.iter().map(|level| level.percent);
        let mut bytes: Vec<u8> = std::iter::once(count).chain(budgets).collect();
        for level in levels {
            bytes.extend_from_slice(&level.shares);
        }
        bytes
    }
}
