//! The observation window shared by several methods: its default length, its place in a prompt with a template, and the
//! smallest budget that holds it.
//!
//! A chat template ends with tokens that do not depend on the question. Counted from the prompt's end, a window of 8
//! tokens would contain little else. The window is therefore the last w tokens of the question and the tail of the
//! template after them.

use crate::PromptShape;

/// The default w as text.
pub(crate) const W: &str = "32, 16 below a budget of 256 rows, 8 below 128";

/// The default w: a window of 32 must not fill a small budget (PyramidKV, table 6).
pub(crate) fn default_window(budget: usize) -> usize {
    match budget {
        256.. => 32,
        128.. => 16,
        _ => 8,
    }
}

/// Number of rows observed and kept at the prompt's end: the tail plus `w`, or plus `default_w` if `w` is not set. The
/// `default_w` window is reduced if budget, tail and `sinks` leave fewer rows.
pub(crate) fn observed_rows(
    w: Option<usize>,
    default_w: usize,
    prompt: &PromptShape,
    budget: usize,
    sinks: usize,
) -> usize {
    let left = budget.saturating_sub(prompt.tail + sinks.saturating_add(1));
    let default_w = match prompt.tail {
        0 => default_w,
        _ => default_w.min(left.max(1)),
    };
    w.unwrap_or(default_w).saturating_add(prompt.tail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ModelShape, RowPlan, RowRequest};

    #[test]
    fn a_window_ends_with_the_question_and_holds_the_tail_besides() {
        let prompt = |tail| PromptShape {
            tail,
            ..PromptShape::of(900)
        };
        assert_eq!(observed_rows(None, 16, &prompt(0), 128, 4), 16);
        assert_eq!(observed_rows(None, 16, &prompt(5), 128, 4), 21);
        assert_eq!(observed_rows(Some(3), 16, &prompt(5), 128, 4), 8);
        // A budget of 20 rows: 4 sinks, 1 selected token and a tail of 9 leave 6.
        assert_eq!(observed_rows(None, 8, &prompt(9), 20, 4), 15);
        assert_eq!(observed_rows(None, 8, &prompt(0), 10, 4), 8);
    }

    #[test]
    fn a_budget_that_cannot_hold_the_tail_is_refused_with_the_number_that_can() {
        let model = ModelShape {
            layers: 1,
            q_heads: 1,
            kv_heads: 1,
            head_dim: 4,
        };
        let prompt = PromptShape {
            tail: 9,
            ..PromptShape::of(900)
        };
        let plan = |budget| {
            let request = RowRequest {
                model,
                prompt,
                budget,
            };
            RowPlan::uniform(&request).with_window("snapkv", None, 8, 4)
        };
        let error = plan(14).unwrap_err().to_string();
        assert!(
            error.contains("15") && error.contains("9 tokens behind the question"),
            "{error}"
        );
        assert!(plan(15).is_ok());
    }
}
