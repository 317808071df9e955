//! How often a prefill runs the prompt through the model, and why.

use kept_policies::ExpectedQueriesRequest;

use super::PrefillPlan;
use crate::Note;
use crate::plan::ReconstructionPlan;

/// Sums over all queries of the document.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct SumsOverQueries {
    columns: bool,
    expected: Option<ExpectedQueriesRequest>,
}

impl SumsOverQueries {
    /// Whether there are any.
    pub(crate) fn any(self) -> bool {
        self != Self::default()
    }
}

impl PrefillPlan {
    /// The sums over all queries of the document that the method needs, which exist only while it is read.
    pub(crate) fn sums_over_queries(&self) -> SumsOverQueries {
        let mut needs = self.needs.iter();
        SumsOverQueries {
            columns: needs.any(|needs| needs.column_sums),
            expected: self.needs.iter().find_map(|needs| needs.expected_queries),
        }
    }

    /// Whether tokens are dropped between layers.
    pub(crate) fn drops_tokens(&self) -> bool {
        let of_layers = self.row_plan.layer_input_tokens.iter().flatten();
        of_layers.into_iter().any(|&tokens| tokens < self.tokens())
    }

    /// Whether the method cannot share a prefill: it drops tokens, needs a reconstruction, or has a score
    /// pass.
    pub(crate) fn needs_own_reading(&self) -> bool {
        self.drops_tokens() || self.reconstruction_plan.is_some() || self.row_plan.score_pass
    }

    /// Number of passes over the prompt.
    pub(crate) fn readings(&self) -> usize {
        1 + usize::from(self.row_plan.score_pass)
    }

    /// Notes for the user about this prefill.
    pub(crate) fn notes(&self) -> Vec<Note> {
        let plan = self.reconstruction_plan.as_ref();
        let repeated = plan.map(|plan| plan.note(self.readings(), self.tokens(), self.known > 0));
        self.row_plan
            .note
            .clone()
            .map(Note::from)
            .into_iter()
            .chain(repeated)
            .collect()
    }

    /// Rows of the reconstruction; 0 without one.
    pub(crate) fn repeated(&self) -> usize {
        self.reconstruction_plan
            .as_ref()
            .map_or(0, ReconstructionPlan::rows)
    }

    /// Tokens that are read in total, as shown to the user: the prompt once per pass, and the reconstruction.
    pub(crate) fn tokens_read(&self) -> usize {
        self.tokens_read_after(self.known)
    }

    /// As [`PrefillPlan::tokens_read`], if the first `known` tokens come from a vault.
    pub(crate) fn tokens_read_after(&self, known: usize) -> usize {
        self.readings() * (self.tokens() - known) + self.repeated()
    }

    /// Tokens that are read besides the prompt for a reconstruction; 0 without one.
    pub(crate) fn reread(&self) -> usize {
        match self.reconstruction_plan {
            Some(_) => self.tokens_read() - (self.tokens() - self.known),
            None => 0,
        }
    }

    /// Rows that pass through layers, over all layers and passes.
    pub(crate) fn steps(&self) -> usize {
        let layers = 0..self.keeps.len();
        let layer_input_tokens = layers.map(|layer| self.entering_in(layer) - self.known);
        let layer_input_tokens: usize = layer_input_tokens.sum();
        self.readings() * layer_input_tokens + self.repeated() * self.keeps.len()
    }
}
