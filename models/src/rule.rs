//! What the rules of recurrent layers share (`delta_net.rs`, `state_space.rs`).

use crate::config::Config;
use crate::weights::Floats;

/// Rows to run through a rule.
pub(crate) struct RuleTask<'a> {
    pub(crate) config: &'a Config,
    /// Of the rule's matrices, those that it has.
    pub(crate) copies: &'a [Option<Floats<'a>>; 3],
    /// `[rows, width]`
    pub(crate) normed: &'a [f32],
}

impl<'a> RuleTask<'a> {
    /// Copies of the rule's matrix number `which`.
    pub(crate) fn copies(&self, which: usize) -> &'a Floats<'a> {
        self.copies[which]
            .as_ref()
            .expect("the rule has the matrix")
    }
}
