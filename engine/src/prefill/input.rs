//! The input of a prefill, common to all methods.

use kept_models::{Model, RopeTable};

/// The input of a prefill, common to all methods.
#[derive(Clone, Copy)]
pub(super) struct Read<'a> {
    pub(super) model: &'a Model,
    /// `[n]`
    pub(super) ids: &'a [u32],
    pub(super) rope: &'a RopeTable,
    pub(super) every_row: bool,
}
