//! The input of a prefill, common to all methods.

use kept_models::{Model, RopeTable};

/// The input of a prefill, common to all methods.
#[derive(Clone, Copy)]
pub(crate) struct PrefillTask<'a> {
    pub(crate) model: &'a Model,
    /// `[n]`
    pub(crate) ids: &'a [u32],
    pub(crate) rope: &'a RopeTable,
    pub(crate) every_row: bool,
}
