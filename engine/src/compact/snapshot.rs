//! Passing rows and positions to a [`Snapshot`].

use kept_kernels::RowStore;
use kept_policies::{Pos, Snapshot};

/// Passes the data of a row store to `through`.
pub(crate) fn snapshot_rows(store: &mut RowStore, through: &mut dyn Snapshot) {
    let state = store.state();
    through.floats(state.floats);
    through.bytes(state.bytes);
    for map in state.row_maps {
        through.words(map);
    }
}

/// Passes positions to `through`.
pub(crate) fn snapshot_positions(positions: &mut [Pos], through: &mut dyn Snapshot) {
    let mut words: Vec<u32> = positions.iter().map(|position| position.0).collect();
    through.words(&mut words);
    for (position, word) in positions.iter_mut().zip(words) {
        *position = Pos(word);
    }
}
