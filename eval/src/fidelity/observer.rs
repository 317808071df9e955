//! Measures the full cache: a method that keeps every row and records observations.
//!
//! It requests the data that the figures need, records them layer by layer and step by step, and measures the time
//! this takes, so that the full cache's own speed can be reported without it. The figures are defined in `heads.rs`,
//! `wavelet.rs` and `recall.rs`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kept_models::{Model, RopeTable};
use kept_policies::{
    Evict, Evictions, Method, Needs, Observation, ObservationWindow, PolicyError, Retention,
    RowPlan, RowRequest, Select, Selection, Softmax, StepObservation, global_local,
};

use super::heads::{self, HeadFigures};

/// Rows of the observation window whose attention counts as local: EMS's default.
const WINDOW: usize = 32;

/// The most answer tokens whose attention is recorded. Its memory, `steps * layers * kv_heads * tokens` floats, stays
/// below half of the full cache's for a head dimension of 64, a quarter for 128.
pub(crate) const WATCHED: usize = 64;

/// What was observed of one prompt and its answer.
#[derive(Default)]
pub(crate) struct Recorded {
    /// `[layers][kv_heads]`
    pub(crate) heads: Vec<Vec<HeadFigures>>,
    /// `[steps][layers]`: `[kv_heads, tokens so far]`, probability of each position, mean over the GQA group.
    pub(crate) attention: Vec<Vec<Vec<f32>>>,
    /// `[layers]`: `[q_heads, tokens so far]` at the last recorded step.
    pub(crate) last: Vec<Vec<f32>>,
    /// Time spent on recording during decode.
    pub(crate) watching: Duration,
}

/// A method that keeps every row and records what it observes. Clones share the record.
#[derive(Clone)]
pub(crate) struct Observer {
    rope: Arc<RopeTable>,
    /// `[layers]`: index of each layer in the model.
    layers: Vec<usize>,
    recorded: Arc<Mutex<Recorded>>,
}

impl Observer {
    /// An empty observer of `model`, whose keys are rotated by `rope`.
    pub(crate) fn new(rope: Arc<RopeTable>, model: &Model) -> Self {
        Self {
            rope,
            layers: model.config().full_layers().collect(),
            recorded: Arc::default(),
        }
    }

    /// Takes the record.
    pub(crate) fn take_recorded(&self) -> Recorded {
        std::mem::take(&mut self.recorded())
    }

    fn recorded(&self) -> MutexGuard<'_, Recorded> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn head(
        &self,
        plan: &RowPlan,
        observation: &Observation<'_>,
        head: usize,
    ) -> Option<HeadFigures> {
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
        let local = reduced(observation.observation_window?, WINDOW.min(n) as f32);
        let dim = plan.model.head_dim;
        let rows = |rows: &[f32]| rows[head * n * dim..(head + 1) * n * dim].to_vec();
        let (mut keys, mut values) = (rows(observation.keys?), rows(observation.values?));
        let layer = self.layers[observation.layer];
        if let Some(rope) = self.rope.of_layer(layer) {
            for (position, key) in keys.chunks_exact_mut(dim).enumerate() {
                rope.unrotate_at(key, position);
            }
        }
        let mut scores = vec![0.0; n];
        global_local(&global, &local, &mut scores);
        Some(HeadFigures {
            sparsity: heads::sparsity(&scores, heads::SCORE_SHARE),
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

impl Method for Observer {
    fn name(&self) -> &'static str {
        "full"
    }

    fn plan(&self, request: &RowRequest) -> Result<RowPlan, PolicyError> {
        let tokens = request.prompt.tokens;
        let mut plan = RowPlan::uniform(&RowRequest {
            budget: tokens,
            ..*request
        });
        plan.needs.fill(Needs {
            observation_window: Some(ObservationWindow {
                rows: WINDOW.min(tokens),
                softmax: Softmax::All,
            }),
            column_sums: true,
            copies: true,
            even_if_all_kept: true,
            ..Needs::default()
        });
        // No limit: every step is reported, and nothing is evicted.
        plan.decode_rows = Some(vec![usize::MAX; request.model.layers]);
        Ok(plan)
    }

    fn start(&self, plan: &RowPlan) -> Box<dyn Select> {
        self.recorded().last = vec![Vec::new(); plan.model.layers];
        Box::new(self.clone())
    }
}

impl Select for Observer {
    fn select(&mut self, plan: &RowPlan, observation: &Observation<'_>) -> Selection {
        let heads = 0..observation.kv_heads;
        let figures = heads.map_while(|head| self.head(plan, observation, head));
        let figures = figures.collect();
        self.recorded().heads.push(figures);
        Retention::Everything.into()
    }

    fn evictor(self: Box<Self>) -> Option<Box<dyn Evict>> {
        Some(self)
    }
}

impl Evict for Observer {
    fn step(&mut self, step: &StepObservation<'_>, _evict: &mut Evictions) {
        let started = Instant::now();
        let mut recorded = self.recorded();
        let recorded = &mut *recorded;
        if step.layer == 0 && recorded.attention.len() < WATCHED {
            let layers = self.layers.len();
            recorded.attention.push(Vec::with_capacity(layers));
        }
        // After the last recorded step, all layers of the last list are present.
        let Some(layers) = recorded.attention.last_mut() else {
            return;
        };
        if layers.len() == step.layer {
            let seen = step.rows[0];
            let mut means = vec![0.0; step.rows.len() * seen];
            for (head, sums) in means.chunks_exact_mut(seen).enumerate() {
                step.add_mean(head, sums);
            }
            layers.push(means);
            let last = &mut recorded.last[step.layer];
            last.clear();
            for q_head in 0..step.rows.len() * step.group {
                last.extend_from_slice(
                    step.probabilities(q_head / step.group, q_head % step.group),
                );
            }
        }
        recorded.watching += started.elapsed();
    }
}
