//! Decode on the CPU. All memory is allocated before the first token; a step allocates nothing.

use std::time::{Duration, Instant};

use kept_models::{Model, RopeTable, RowScratch};
use kept_policies::Pos;

use super::attention::AttentionScratch;
use crate::EngineError;
use crate::after_layer::{AfterLayer, LayerAttention};
use crate::backend::tasks::{PartTime, StepOutput};
use crate::backend::traits::DecodeBackend;
use crate::compact::CompactCache;

/// The buffers of the decode loop, allocated once.
pub(super) struct Buffers {
    /// `[width]`
    residual: Vec<f32>,
    /// `[q_heads, head_dim]`
    q: Vec<f32>,
    /// `[kv_heads, head_dim]`
    k: Vec<f32>,
    /// `[kv_heads, head_dim]`
    v: Vec<f32>,
    /// `[q_heads, head_dim]`
    attention: Vec<f32>,
    /// `[vocab]`
    logits: Vec<f32>,
    /// Scratch inside the layer: norm, MLP.
    row: RowScratch,
    attend: AttentionScratch,
}

impl Buffers {
    /// Buffers for up to `max_rows` rows per KV head, and class tables of up to `max_entries`.
    pub(super) fn new(model: &Model, max_rows: usize, max_entries: usize) -> Self {
        let config = model.config();
        let (q_width, kv_width) = (config.q_width(), config.kv_width());
        Self {
            residual: vec![0.0; config.width],
            q: vec![0.0; q_width],
            k: vec![0.0; kv_width],
            v: vec![0.0; kv_width],
            attention: vec![0.0; q_width],
            logits: vec![0.0; config.vocab],
            row: RowScratch::new(config),
            attend: AttentionScratch::new(model, max_rows, max_entries),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        let floats = self.residual.len()
            + self.q.len()
            + self.k.len()
            + self.v.len()
            + self.attention.len()
            + self.logits.len();
        (floats * size_of::<f32>() + self.attend.bytes()) as u64 + self.row.bytes()
    }
}

/// Parts of a step.
#[derive(Clone, Copy)]
enum Part {
    Projections,
    Attention,
    OutputAndFfn,
    Recurrent,
    Logits,
}

/// Times of the parts of all steps so far. Taking a time costs some 30 ns.
struct PartTimers {
    steps: u32,
    since: Instant,
    /// By [`Part`].
    times: [Duration; 5],
}

impl PartTimers {
    fn new() -> Self {
        Self {
            steps: 0,
            since: Instant::now(),
            times: Default::default(),
        }
    }

    fn begin_step(&mut self) {
        self.steps += 1;
        self.since = Instant::now();
    }

    /// Ends a part, which began with the end of the one before it.
    fn end(&mut self, part: Part) {
        let now = Instant::now();
        self.times[part as usize] += now - self.since;
        self.since = now;
    }
}

/// A decode loop.
pub(super) struct CpuDecoder<'m> {
    model: &'m Model,
    rope: &'m RopeTable,
    buffers: Buffers,
    timers: PartTimers,
}

impl<'m> CpuDecoder<'m> {
    /// For rows and tables of the size of `cache`.
    pub(super) fn new(model: &'m Model, rope: &'m RopeTable, cache: &CompactCache) -> Self {
        Self {
            model,
            rope,
            buffers: Buffers::new(model, cache.max_capacity(), cache.max_entries()),
            timers: PartTimers::new(),
        }
    }
}

impl DecodeBackend for CpuDecoder<'_> {
    fn logits_of(&mut self, hidden: &[f32]) -> Result<&mut [f32], EngineError> {
        let b = &mut self.buffers;
        self.model.logits_row(hidden, &mut b.row, &mut b.logits);
        Ok(&mut b.logits)
    }

    fn step(
        &mut self,
        token: u32,
        cache: &mut CompactCache,
        after: &mut AfterLayer<'_>,
        _top_k: Option<usize>,
    ) -> Result<StepOutput<'_>, EngineError> {
        let (model, b, timers) = (self.model, &mut self.buffers, &mut self.timers);
        timers.begin_step();
        let config = model.config();
        let Pos(position) = cache.next;
        let (reassigned, window_rope_origin) = (cache.reassigned, cache.window_rope_origin);
        model.embed(&[token], &mut b.residual);
        for layer in 0..config.layers {
            if let Some(state) = &mut cache.layers[layer].state {
                model.recur_row(layer, &mut b.residual, state, &mut b.row);
                timers.end(Part::Recurrent);
                continue;
            }
            let kind = &config.kinds[layer];
            let own = kind.kv_source_layer().is_none();
            let cached = &mut cache.layers[kind.kv_source_layer().unwrap_or(layer)];
            let q = &mut b.q[..config.q_width_of(layer)];
            let kv_width = if own { config.kv_width_of(layer) } else { 0 };
            let (k, v) = (&mut b.k[..kv_width], &mut b.v[..kv_width]);
            model.project_row(layer, &b.residual, &mut b.row, q, k, v);
            timers.end(Part::Projections);
            let rope = self.rope.of_layer(layer);
            // Re-assigned positions: keys are rotated by their rank when attention reads them. Otherwise the
            // new key is rotated by its position now. Some models have layers without RoPE.
            let (rope_at_rank, rope_at_position) = if reassigned && cached.window().is_none() {
                (rope, None)
            } else {
                (None, rope)
            };
            if let Some(rope) = rope_at_position {
                let rope_position = (position - window_rope_origin.0) as usize;
                if own {
                    rope.rotate_at(k, rope_position);
                }
                rope.rotate_query_at(q, rope_position);
            }
            if own {
                cached.append(k, v, Pos(position));
            }
            if let Some(rope) = rope_at_rank {
                let of_head = config.q_heads / kind.kv_heads * kind.head_dim;
                for (head, q) in q.chunks_exact_mut(of_head).enumerate() {
                    rope.rotate_query_at(q, cached.last_rank(head));
                }
            }
            let attended = &mut b.attention[..q.len()];
            let probabilities = b
                .attend
                .attend(model, layer, cached, q, rope_at_rank, attended);
            timers.end(Part::Attention);
            model.finish_row(layer, attended, token, &mut b.residual, &mut b.row);
            timers.end(Part::OutputAndFfn);
            if !own {
                continue;
            }
            let most_attended = |q_head: usize, rows: usize| {
                let seen = &probabilities.values[q_head * probabilities.stride..][..rows];
                let best = kept_kernels::argmax(seen);
                (seen[best], best)
            };
            let attention = LayerAttention {
                probabilities,
                most_attended: &most_attended,
            };
            after.layer(cached, &attention, &mut |_| ());
            timers.end(Part::Attention);
        }
        model.logits_row(&b.residual, &mut b.row, &mut b.logits);
        timers.end(Part::Logits);
        Ok(StepOutput::Logits(&mut b.logits))
    }

    fn part_times(&mut self, cache: &CompactCache) -> Result<Vec<PartTime>, EngineError> {
        let layers = cache.layers.len();
        let recurrent = cache.layers.iter().filter(|l| l.state.is_some()).count();
        let [projections, recurrent_bytes, rest, logits] = self.model.part_bytes();
        let part = |part: Part, name, times, bytes| PartTime {
            part: name,
            times,
            seconds: self.timers.times[part as usize].as_secs_f64() / f64::from(self.timers.steps),
            bytes,
        };
        let attention = layers - recurrent;
        let all = [
            part(
                Part::Projections,
                "norm, queries, keys, values",
                attention,
                projections,
            ),
            part(
                Part::Attention,
                "RoPE, attention, eviction",
                attention,
                cache.kv_bytes(),
            ),
            part(Part::OutputAndFfn, "output, feed-forward", attention, rest),
            part(
                Part::Recurrent,
                "recurrent layers",
                recurrent,
                recurrent_bytes,
            ),
            part(Part::Logits, "logits", 1, logits),
        ];
        Ok(all.into_iter().filter(|part| part.times > 0).collect())
    }

    fn host_bytes(&self) -> u64 {
        self.buffers.bytes()
    }
}
