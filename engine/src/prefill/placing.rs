//! What of a reading lies on a graphics card and what on the host, and what that takes of the card.

use kept_models::Model;

use super::card::CardReading;
use crate::EngineError;
use crate::sizes::Sizes;

/// Bytes that reading by these sizes takes of the graphics card that has the model's weights; 0 where there is none.
pub(crate) fn card_bytes(model: &Model, sizes: &Sizes) -> Result<u64, EngineError> {
    let card = model.card();
    let bytes = card.map(|card| CardReading::bytes_for(card, model, sizes));
    Ok(bytes.transpose()?.unwrap_or(0))
}

/// Where parts of a reading lie.
#[derive(Clone, Copy)]
struct Places {
    rows_on_card: bool,
    residual_on_host: bool,
    /// Whether a layer of the vault is brought while another is looked at.
    ahead: bool,
}

/// By what it costs to do without: the bus that waits while the host chooses; a residual stream that travels while the card computes; kept
/// rows that come one layer after the other, and go there again.
const PLACES: [Places; 6] = [
    Places::of(true, false, true),
    Places::of(false, false, true),
    Places::of(true, false, false),
    Places::of(true, true, false),
    Places::of(false, false, false),
    Places::of(false, true, false),
];

impl Places {
    const fn of(rows_on_card: bool, residual_on_host: bool, ahead: bool) -> Self {
        Self {
            rows_on_card,
            residual_on_host,
            ahead,
        }
    }
}

/// Says what of a reading by these sizes a graphics card has, and what lies on the host, where it has less than everything takes: of its free
/// memory, or of `memory` bytes for weights and reading. Where nothing fits, it is what takes the least.
pub(crate) fn place_on_card(
    model: &Model,
    sizes: &mut Sizes,
    memory: Option<u64>,
) -> Result<(), EngineError> {
    let Some(card) = model.card() else {
        return Ok(());
    };
    let room = match memory {
        Some(memory) => memory.saturating_sub(card.bytes()),
        None => card.device().free_memory()?,
    };
    let (may_stay, may_bring) = (sizes.may_stay(), sizes.ahead);
    let place = |sizes: &mut Sizes, places: Places| {
        sizes.rows_on_card = places.rows_on_card;
        sizes.residual_on_host = places.residual_on_host;
        sizes.ahead = if places.ahead { may_bring } else { 0 };
    };
    let mut least: Option<(u64, Places)> = None;
    for places in PLACES {
        if (places.rows_on_card && !may_stay) || (places.ahead && may_bring == 0) {
            continue;
        }
        place(sizes, places);
        let bytes = CardReading::bytes_for(card, model, sizes)?;
        if bytes <= room {
            return Ok(());
        }
        if least.is_none_or(|(least, _)| bytes < least) {
            least = Some((bytes, places));
        }
    }
    // Nothing fits: what is missing is what is missing at least.
    if let Some((_, places)) = least {
        place(sizes, places);
    }
    Ok(())
}
