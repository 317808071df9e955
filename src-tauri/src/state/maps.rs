//! Maps of the turns: the map that fills during a question, and a few maps of earlier turns.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use kept_engine::EvictionLog;

use super::turn_map::{MapPlace, SharedMap, TurnMap, lock};
use super::{AppState, MAPS_IN_MEMORY};
use crate::contract::{AppEvent, TurnState};
use crate::messages;

impl AppState {
    /// The location of the map of `turn`.
    pub fn map(&self, turn: u64) -> Result<MapPlace, String> {
        let known = self.open.turns.iter().find(|t| t.id == turn);
        if !known.is_some_and(|turn| turn.has_map) {
            return Err(messages::NO_MAP.to_owned());
        }
        Ok(match self.maps.known.get(&turn) {
            Some(map) => MapPlace::Here(map.clone()),
            None => MapPlace::InStore,
        })
    }

    /// Caches a loaded map and evicts the oldest one if there are too many. Returns the cached map, which is an earlier
    /// one if the turn already had one.
    pub fn keep_map(&mut self, turn: u64, map: TurnMap) -> SharedMap {
        if let Some(known) = self.maps.known.get(&turn) {
            return known.clone();
        }
        let map = Arc::new(Mutex::new(map));
        self.remember_map(turn, map.clone());
        map
    }

    /// The sliding-window layers of the model, which the method did not compress, for the map of `turn`; see
    /// [`crate::contract::Turn::windows`].
    pub fn windows_of(&self, turn: u64) -> Vec<Option<usize>> {
        let known = self.open.turns.iter().find(|t| t.id == turn);
        known.map_or_else(Vec::new, |turn| turn.windows.clone())
    }

    fn remember_map(&mut self, turn: u64, map: SharedMap) {
        self.maps.known.insert(turn, map);
        self.maps.order.push_back(turn);
        while self.maps.order.len() > MAPS_IN_MEMORY {
            let running = self.running_turn();
            let oldest = (self.maps.order.iter()).position(|turn| Some(*turn) != running);
            if let Some(turn) = oldest.and_then(|oldest| self.maps.order.remove(oldest)) {
                self.maps.known.remove(&turn);
            }
        }
    }

    /// Forgets all maps but the one that is being filled.
    pub(super) fn forget_maps(&mut self) {
        let running = self.running_turn();
        self.maps.known.retain(|turn, _| Some(*turn) == running);
        self.maps.order.retain(|turn| Some(*turn) == running);
    }

    fn running_turn(&self) -> Option<u64> {
        self.running.as_ref()?.turn
    }

    pub(super) fn forget_map(&mut self, turn: u64) {
        self.maps.known.remove(&turn);
        self.maps.order.retain(|known| *known != turn);
    }

    /// The prompt is tokenized: `map` has no layer yet. Without a document there is nothing to paint.
    pub(super) fn map_begins(&mut self, turn: u64, map: TurnMap, windows: Vec<Option<usize>>) {
        let has_map = map.document.cells() > 0;
        if has_map {
            self.remember_map(turn, Arc::new(Mutex::new(map)));
        }
        if let Some(turn) = self.turn_mut(turn) {
            turn.has_map = has_map;
            let slides = windows.iter().any(Option::is_some);
            turn.windows = if slides { windows } else { Vec::new() };
            turn.state = TurnState::Reading;
        }
        self.emit_turn(turn);
    }

    pub(super) fn layer_arrived(&mut self, now: Instant, turn: u64, layer: usize, kept: &[u8]) {
        let Some(map) = self.maps.known.get(&turn).cloned() else {
            return;
        };
        if let Err(error) = lock(&map).set_layer(layer, kept) {
            tracing::warn!(%error, layer, "a layer of the map was refused");
            return;
        }
        if self.throttle.map.want(now) {
            self.emit_map();
        }
    }

    /// What was forgotten during the answer of `turn`.
    ///
    /// # Errors
    /// If the bytes are invalid.
    pub(super) fn evictions_arrived(&mut self, turn: u64, bytes: &[u8]) -> Result<(), String> {
        if let Some(map) = self.maps.known.get(&turn).cloned() {
            let mut map = lock(&map);
            map.evictions = EvictionLog::from_bytes(bytes, map.document.cells())
                .ok_or_else(|| format!("{} bytes that are no record of evictions", bytes.len()))?;
            if let Some(turn) = self.turn_mut(turn) {
                turn.has_replay = true;
            }
        }
        Ok(())
    }

    pub(super) fn emit_map(&mut self) {
        let turn = self.running_turn();
        if let Some((turn, map)) =
            turn.and_then(|turn| Some((turn, self.maps.known.get(&turn)?.clone())))
        {
            self.announce(turn, &map);
        }
    }

    /// Says how far the map of `turn` is, if it is one of the open conversation.
    fn announce(&mut self, turn: u64, map: &SharedMap) {
        if !self.open.holds(turn) {
            return;
        }
        let (layers_done, layers) = {
            let map = &lock(map).document;
            (map.layers_done(), map.layers())
        };
        self.emit(AppEvent::Map {
            turn,
            layers_done,
            layers,
        });
    }

    /// The turn has ended: returns its final map for storing and announces it once more; `None` if no layer ever
    /// arrived.
    pub(super) fn finish_map(&mut self, turn: u64) -> Option<SharedMap> {
        let map = self.maps.known.get(&turn)?.clone();
        if lock(&map).document.layers_done() == 0 {
            self.forget_map(turn);
            return None;
        }
        self.announce(turn, &map);
        Some(map)
    }
}
