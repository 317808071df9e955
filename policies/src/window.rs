//! The observation window that several methods share: how long it is by default, and what a budget must hold besides it.

use crate::{ModelShape, PolicyError, PromptShape};

/// w when none is set: a window of 32 must not eat a small budget (PyramidKV, table 6).
pub(crate) fn window_for(budget: usize) -> usize {
    match budget {
        256.. => 32,
        128.. => 16,
        _ => 8,
    }
}

/// The same rows in every layer, if `budget` holds a window of `w`, the sinks and one selected token.
pub(crate) fn uniform_rows(
    method: &'static str,
    model: &ModelShape,
    prompt: &PromptShape,
    budget: usize,
    w: usize,
    sinks: usize,
) -> Result<Vec<usize>, PolicyError> {
    let needed = w.saturating_add(sinks).saturating_add(1);
    if budget < needed && budget < prompt.tokens {
        return Err(PolicyError::BudgetTooSmall {
            method,
            rows: budget,
            needed,
            why: format!("a window w of {w}, {sinks} sinks and 1 selected token"),
            tokens: prompt.tokens,
        });
    }
    Ok(vec![budget; model.layers])
}
