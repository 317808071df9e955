//! StreamingLLM's re-assigned positions with eviction, against a naive loop in the other form of the same arithmetic:
//! keys rotated at their text positions, the recent part read by a query at the true position, and the sinks by the
//! same query at the last rank. The two agree because recent rows are contiguous (`methods`: "two-query form").

use kept_engine::models::RopeTable;
use kept_engine::policies::build;
use kept_tests::compare::assert_same;
use kept_tests::engine::{open, read_and_step};
use kept_tests::golden;
use kept_tests::slow::{Slow, Standing};

const SINKS: usize = 3;
const BUDGET: usize = 10;
const PROMPT: usize = 24;
const STEPS: usize = 30;
/// Relative to the largest logit of a row; both sides compute in f32 up to the attention.
const BOUND: f32 = 1e-3;

#[test]
fn reassigned_positions_equal_the_two_query_form() {
    let model = open(&golden::model("group2-llama3-tied"));
    let vocab = model.config().vocab as u32;
    let ids: Vec<u32> = (0..(PROMPT + STEPS) as u32)
        .map(|i| (i * 37 + 11) % vocab)
        .collect();
    let rope = RopeTable::new(model.config(), ids.len());
    let mut slow = Slow::new(&model, &rope);
    let mut expected = Vec::new();
    let mut kept: Vec<u32> = Vec::new();
    for (position, &token) in ids.iter().enumerate() {
        // Until the prompt's end nothing is evicted, and the two queries are equal.
        let logits = slow.step(token, Standing::TwoQueries(SINKS), |_, _| &kept);
        kept.push(position as u32);
        if position + 1 >= PROMPT {
            expected.push(logits);
        }
        // The prompt is read with full attention, then evicted; afterwards each step evicts one row.
        if position + 1 >= PROMPT {
            while kept.len() > BUDGET {
                kept.remove(SINKS);
            }
        }
    }
    let sinks = [("sinks".to_owned(), SINKS.to_string())];
    let built = build("streaming_llm", &sinks).expect("the method exists");
    let (prompt, steps) = ids.split_at(PROMPT);
    let found = read_and_step(&model, &*built, BUDGET, 7, prompt, steps);
    assert_eq!(found.logits.len(), expected.len());
    for (step, (row, reference)) in found.logits.iter().zip(&expected).enumerate() {
        assert_same(row, reference, BOUND, &format!("step {step}"));
    }
}
