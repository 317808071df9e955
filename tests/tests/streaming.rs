//! StreamingLLM's re-assigned positions while it evicts, against a slow loop that uses the other form of the same arithmetic:
//! keys rotated at their original positions, the recent part read by a query at the true position and the sinks by the same
//! query at the last rank. The two agree because recent rows are contiguous (`methods`: "two-query form").

use kept_engine::models::{Model, RopeTable, RowScratch};
use kept_engine::policies::build;
use kept_tests::compare::assert_same;
use kept_tests::engine::{open, read_and_step};
use kept_tests::golden;

const SINKS: usize = 3;
const BUDGET: usize = 10;
const PROMPT: usize = 24;
const STEPS: usize = 30;
/// Relative to the largest logit of a row; both sides compute in f32 up to the attention.
const BOUND: f32 = 1e-3;

/// One layer's keys (rotated at their own positions) and values, every token's, `[token][kv_heads * head_dim]`.
#[derive(Default)]
struct Layer {
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
}

/// A token-by-token engine that keeps everything and looks at what it is told.
struct Slow<'m> {
    model: &'m Model,
    rope: RopeTable,
    layers: Vec<Layer>,
}

impl Slow<'_> {
    /// Runs `token` and gives its logits. It sees the positions `visible` (its own last); the first `SINKS` of them with a
    /// query at the last rank.
    fn step(&mut self, token: u32, visible: &[usize]) -> Vec<f32> {
        let config = self.model.config();
        let (dim, group) = (config.head_dim, config.q_heads / config.kv_heads);
        let position = *visible.last().expect("a token sees itself");
        let mut scratch = RowScratch::new(config);
        let mut residual = vec![0.0; config.width];
        self.model.embed(&[token], &mut residual);
        for (index, layer) in self.layers.iter_mut().enumerate() {
            let mut query = vec![0.0; config.q_heads * dim];
            let mut key = vec![0.0; config.kv_heads * dim];
            let mut value = key.clone();
            self.model.project_row(
                index,
                &residual,
                &mut scratch,
                &mut query,
                &mut key,
                &mut value,
            );
            self.rope.rotate_at(&mut key, position);
            layer.keys.push(key);
            layer.values.push(value);
            let (mut near, mut far) = (query.clone(), query);
            self.rope.rotate_at(&mut near, position);
            self.rope.rotate_at(&mut far, visible.len() - 1);
            let mut attention = vec![0.0f32; config.q_heads * dim];
            for head in 0..config.q_heads {
                let kv = head / group * dim;
                let logits: Vec<f64> = visible
                    .iter()
                    .enumerate()
                    .map(|(rank, &seen)| {
                        let query = if rank < SINKS { &far } else { &near };
                        let pairs = query[head * dim..][..dim]
                            .iter()
                            .zip(&layer.keys[seen][kv..kv + dim]);
                        pairs.map(|(a, b)| f64::from(a * b)).sum::<f64>() / (dim as f64).sqrt()
                    })
                    .collect();
                let largest = logits.iter().copied().fold(f64::MIN, f64::max);
                let weights: Vec<f64> = logits.iter().map(|l| (l - largest).exp()).collect();
                let total: f64 = weights.iter().sum();
                for (i, out) in attention[head * dim..][..dim].iter_mut().enumerate() {
                    let sum: f64 = visible
                        .iter()
                        .zip(&weights)
                        .map(|(&seen, w)| w * f64::from(layer.values[seen][kv + i]))
                        .sum();
                    *out = (sum / total) as f32;
                }
            }
            self.model
                .finish_row(index, &attention, &mut residual, &mut scratch);
        }
        let mut logits = vec![0.0; config.vocab];
        self.model.logits_row(&residual, &mut scratch, &mut logits);
        logits
    }
}

#[test]
fn re_assigned_positions_equal_the_two_query_form() {
    let model = open(&golden::model("group2-llama3-tied"));
    let vocab = model.config().vocab as u32;
    let ids: Vec<u32> = (0..(PROMPT + STEPS) as u32)
        .map(|i| (i * 37 + 11) % vocab)
        .collect();
    let mut slow = Slow {
        model: &model,
        rope: RopeTable::new(model.config(), ids.len()),
        layers: (0..model.config().layers)
            .map(|_| Layer::default())
            .collect(),
    };
    let mut expected = Vec::new();
    let mut kept: Vec<usize> = Vec::new();
    for (position, &token) in ids.iter().enumerate() {
        kept.push(position);
        let logits = slow.step(token, &kept);
        if position + 1 >= PROMPT {
            expected.push(logits);
        }
        // The prompt is read whole, then cut; afterwards one row leaves per step.
        if position + 1 >= PROMPT {
            while kept.len() > BUDGET {
                kept.remove(SINKS);
            }
        }
    }
    let sinks = [("sinks".to_owned(), SINKS.to_string())];
    let mut policy = build("streaming_llm", &sinks).expect("the method exists");
    let (prompt, steps) = ids.split_at(PROMPT);
    let found = read_and_step(&model, &mut *policy, BUDGET, 7, prompt, steps);
    assert_eq!(found.logits.len(), expected.len());
    for (step, (row, reference)) in found.logits.iter().zip(&expected).enumerate() {
        assert_same(row, reference, BOUND, &format!("step {step}"));
    }
}
