//! Measures the full cache: a policy that keeps every row and records observations.
//!
//! It requests the data that the figures need, records them layer by layer and step by step, and measures the time
//! this takes, so that the full cache's own speed can be reported without it. The figures are defined in `heads.rs`,
//! `wavelet.rs` and `recall.rs`.

use std::time::{Duration, Instant};

use kept_models::{Model, RopeTable};
use kept_policies::{
    Evictions, ModelShape, Needs, Observation, Policy, PolicyError, PromptShape, Retention,
    Softmax, StepObservation, Window,
};

use super::heads::{self, HeadFigures};
use crate::shape::shape_of;

/// Rows of the observation window whose attention counts as local: EMS's default.
const WINDOW: usize = 32;

/// The most answer tokens whose attention is recorded. Its memory, `steps * layers * kv_heads * tokens` floats, stays
/// below half of the full cache's for a head dimension of 64, a quarter for 128.
pub(crate) const WATCHED: usize = 64;

/// A policy that keeps every row and records what it observes.
pub(crate) struct Observer<'a> {
    /// `[layers]`: RoPE of each layer's keys; `None` for layers without RoPE.
    rotations: Vec<Option<&'a RopeTable>>,
    shape: ModelShape,
    window: usize,
    /// `[layers][kv_heads]`
    pub(crate) heads: Vec<Vec<HeadFigures>>,
    /// `[steps][layers]`: `[kv_heads, tokens so far]`, probability of each position, mean over the GQA group.
    pub(crate) attention: Vec<Vec<Vec<f32>>>,
    /// `[layers]`: `[q_heads, tokens so far]` at the last recorded step.
    pub(crate) last: Vec<Vec<f32>>,
    /// Time spent in this policy during decode.
    pub(crate) watching: Duration,
}

impl<'a> Observer<'a> {
    /// An empty observer of `model`, whose keys are rotated by `rope`.
    pub(crate) fn new(rope: &'a RopeTable, model: &Model) -> Self {
        let shape = shape_of(model);
        let rotations = model.config().full_layers().map(|l| rope.of_layer(l));
        Self {
            rotations: rotations.collect(),
            shape,
            window: WINDOW,
            heads: Vec::new(),
            attention: Vec::new(),
            last: vec![Vec::new(); shape.layers],
            watching: Duration::ZERO,
        }
    }

    fn head(&self, observation: &Observation<'_>, head: usize) -> Option<HeadFigures> {
        let n = observation.tokens;
        let group = observation.group;
        // Sums over rows, mean over the GQA group. The scores of the observation window are means over its rows.
        let reduced = |scores: &[f32], scale: f32| {
            let mut sums = vec![0.0f32; n];
            for row in scores[head * group * n..(head + 1) * group * n].chunks_exact(n) {
                sums.iter_mut()
                    .zip(row)
                    .for_each(|(sum, p)| *sum += p * scale / group as f32);
            }
            sums
        };
        let global = reduced(observation.column_sums?, 1.0);
        let local = reduced(observation.window?, self.window.min(n) as f32);
        let dim = self.shape.head_dim;
        let rows = |rows: &[f32]| rows[head * n * dim..(head + 1) * n * dim].to_vec();
        let (mut keys, mut values) = (rows(observation.keys?), rows(observation.values?));
        if let Some(rope) = self.rotations[observation.layer] {
            for (position, key) in keys.chunks_exact_mut(dim).enumerate() {
                rope.unrotate_at(key, position);
            }
        }
        Some(HeadFigures {
            sparsity: heads::sparsity(&heads::global_local(&global, &local), heads::SCORE_SHARE),
            redundancy: heads::redundancy(
                &mut keys,
                &mut values,
                dim,
                heads::SIMILAR,
                heads::PROBED,
            ),
        })
    }
}

impl Policy for Observer<'_> {
    fn name(&self) -> &'static str {
        "full"
    }

    // `Needs` gains fields as methods are added; the defaults apply to this policy.
    #[allow(clippy::needless_update)]
    fn needs(&self, _layer: usize) -> Needs {
        Needs {
            window: Some(Window {
                rows: self.window,
                softmax: Softmax::All,
            }),
            column_sums: true,
            copies: true,
            uncut: true,
            ..Needs::default()
        }
    }

    fn rows(
        &mut self,
        model: &ModelShape,
        prompt: &PromptShape,
        _budget: usize,
    ) -> Result<Vec<usize>, PolicyError> {
        self.window = WINDOW.min(prompt.tokens);
        Ok(vec![prompt.tokens; model.layers])
    }

    fn select(&mut self, observation: &Observation<'_>, _rows: usize) -> Retention {
        let figures = (0..observation.kv_heads).map_while(|head| self.head(observation, head));
        let figures = figures.collect();
        self.heads.push(figures);
        Retention::Everything
    }

    /// No limit: every step is reported to the policy, and nothing is evicted.
    fn decode_rows(&self, _layer: usize) -> Option<usize> {
        Some(usize::MAX)
    }

    fn step(&mut self, step: &StepObservation<'_>, _evict: &mut Evictions) {
        let started = Instant::now();
        if step.layer == 0 && self.attention.len() < WATCHED {
            self.attention.push(Vec::with_capacity(self.shape.layers));
        }
        // After the last recorded step, all layers of the last list are present.
        let Some(layers) = self.attention.last_mut() else {
            return;
        };
        if layers.len() == step.layer {
            let seen = step.rows[0];
            let mut means = vec![0.0; step.rows.len() * seen];
            for (head, sums) in means.chunks_exact_mut(seen).enumerate() {
                step.add_mean(head, sums);
            }
            layers.push(means);
            let last = &mut self.last[step.layer];
            last.clear();
            for q_head in 0..step.rows.len() * step.group {
                last.extend_from_slice(
                    step.probabilities(q_head / step.group, q_head % step.group),
                );
            }
        }
        self.watching += started.elapsed();
    }
}
