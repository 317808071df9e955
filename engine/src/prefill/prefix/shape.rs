//! The shape of a model's vaults.

use kept_kernels::{PackedRows, RecurrentState};
use kept_models::Model;
use kept_vault::{StoredRows, Vault, VaultShape};

use crate::shape::{head_shape, window_heads};

/// Whether `vault` was written by a model of the shape of `model`.
pub(super) fn fits_model(vault: &Vault, model: &Model) -> bool {
    let windows = model.config().kinds.iter();
    let windows = windows.map(|kind| StoredRows::from(kind.window()));
    let heads = head_shape(model);
    let heads = [heads, window_heads(model).unwrap_or(heads)];
    vault.fits(heads, windows, state_elements(model))
}

/// Bytes of the vault of a document of `tokens` tokens, whose rows are stored as `kind`, without measurements.
pub(crate) fn file_bytes(model: &Model, tokens: usize, kind: PackedRows) -> u64 {
    rows_shape(model, tokens, kind).bytes()
}

/// The shape of a vault with rows as `kind` of all `tokens` tokens, and nothing else.
pub(super) fn rows_shape(model: &Model, tokens: usize, kind: PackedRows) -> VaultShape {
    let kinds = model.config().kinds.iter();
    VaultShape {
        tokens,
        from: None,
        heads: head_shape(model),
        window_heads: window_heads(model),
        kind,
        queries: 0,
        windows: kinds.map(|kind| kind.window().into()).collect(),
        state: state_elements(model),
        measurements: Vec::new(),
    }
}

/// Elements of a recurrent layer's state; 0 without recurrent layers.
pub(super) fn state_elements(model: &Model) -> usize {
    let shape = model.config().recurrent;
    shape.map_or(0, |shape| {
        RecurrentState::bytes_for(shape) as usize / size_of::<f32>()
    })
}
