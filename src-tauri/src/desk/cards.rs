//! What the engine computes on: which graphics cards there are, and what the settings may say.

use kept_engine::{ComputeDevice, protocol};

use super::Desk;
use crate::contract::{AppEvent, Cards, GraphicsCard};
use crate::sentences::{self, for_window};

/// Whether there can be such a device.
pub fn check_device(device: Option<&str>) -> Result<(), String> {
    match device.map(str::parse::<ComputeDevice>) {
        Some(Err(_)) => Err(sentences::device(device.unwrap_or_default())),
        _ => Ok(()),
    }
}

impl Desk {
    /// The graphics cards that were found before the engine was started.
    pub fn cards_found(&mut self, cards: protocol::Cards) {
        let card = |card: kept_engine::GraphicsCard| GraphicsCard {
            device: card.device,
            name: card.name,
            memory: card.memory,
            free: card.free,
        };
        self.cards = Cards {
            cards: cards.cards.into_iter().map(card).collect(),
            why_none: cards.why_none.map(|why| for_window(&why)),
        };
        let cards = self.cards.clone();
        self.tell(AppEvent::Cards { cards });
    }
}
