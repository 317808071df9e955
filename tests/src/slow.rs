//! Reference model: stores every key and value, and attends to given positions only. Any evicting cache must match it.
//!
//! Token by token, head by head, attention in f64: it shares no cache, slots, chunks or attention kernels with the
//! engine. The projections are the engine's own; `golden_logits.rs` checks those against transformers.

use kept_engine::models::{Model, RopeTable, RowScratch};

/// RoPE positions of keys and queries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Positions in the text.
    Original,
    /// Re-assigned positions: keys at their rank among the visible ones, the query at the last rank.
    Ranks,
    /// Keys at their text positions; the query too, except against this many first keys, where it is at the last rank
    /// (StreamingLLM's "two queries").
    TwoQueries(usize),
}

/// One layer's keys (before RoPE) and values of all tokens, `[token][kv_heads * head_dim]`.
#[derive(Debug, Clone, Default)]
struct Layer {
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
}

/// The model and its history of keys and values.
#[derive(Clone)]
pub struct Slow<'m> {
    model: &'m Model,
    rope: &'m RopeTable,
    layers: Vec<Layer>,
    /// `[layer][q_head]`: probabilities of the last step over the visible tokens and the token itself.
    seen: Vec<Vec<Vec<f64>>>,
}

impl<'m> Slow<'m> {
    /// A model without history. `rope` must cover the last position.
    pub fn new(model: &'m Model, rope: &'m RopeTable) -> Self {
        Self {
            model,
            rope,
            layers: vec![Layer::default(); model.config().layers],
            seen: vec![vec![Vec::new(); model.config().q_heads]; model.config().layers],
        }
    }

    /// Tokens processed so far.
    pub fn tokens(&self) -> usize {
        self.layers[0].keys.len()
    }

    /// Probabilities of a query head in the last step, in the order of the visible tokens, the token itself last.
    pub fn seen(&self, layer: usize, q_head: usize) -> &[f64] {
        &self.seen[layer][q_head]
    }

    /// Runs a token that attends to all tokens before it, as in prefill. Returns its logits.
    pub fn read(&mut self, token: u32) -> Vec<f32> {
        let all: Vec<u32> = (0..self.tokens() as u32).collect();
        self.step(token, Standing::Original, |_, _| &all)
    }

    /// Runs `token` and returns its logits. In each layer and KV head it attends to itself and to the positions
    /// `visible(layer, head)`, ascending. Sliding-window layers always attend to their window at text positions.
    pub fn step<'v>(
        &mut self,
        token: u32,
        standing: Standing,
        visible: impl Fn(usize, usize) -> &'v [u32],
    ) -> Vec<f32> {
        let config = self.model.config();
        let (dim, group) = (config.head_dim, config.q_heads / config.kv_heads);
        let position = self.tokens();
        let mut scratch = RowScratch::new(config);
        let mut residual = vec![0.0; config.width];
        self.model.embed(&[token], &mut residual);
        for (index, layer) in self.layers.iter_mut().enumerate() {
            let mut queries = vec![0.0; config.q_heads * dim];
            let mut key = vec![0.0; config.kv_heads * dim];
            let mut value = key.clone();
            self.model.project_row(
                index,
                &residual,
                &mut scratch,
                &mut queries,
                &mut key,
                &mut value,
            );
            layer.keys.push(key);
            layer.values.push(value);
            let mut attention = vec![0.0f32; config.q_heads * dim];
            for kv in 0..config.kv_heads {
                let part = kv * dim..(kv + 1) * dim;
                let (seen, standing): (Vec<usize>, _) = match config.kinds[index].window {
                    Some(window) => {
                        let first = (position + 1).saturating_sub(window);
                        ((first..=position).collect(), Standing::Original)
                    }
                    None => {
                        let seen = visible(index, kv).iter().map(|&p| p as usize);
                        (seen.chain([position]).collect(), standing)
                    }
                };
                let last = seen.len() - 1;
                let rotated = |x: &[f32], at: usize| {
                    let mut x = x.to_vec();
                    if let Some(rope) = self.rope.of_layer(index) {
                        rope.rotate_at(&mut x, at);
                    }
                    x
                };
                let keys = seen.iter().enumerate().map(|(rank, &token)| {
                    let at = match standing {
                        Standing::Ranks => rank,
                        Standing::Original | Standing::TwoQueries(_) => token,
                    };
                    rotated(&layer.keys[token][part.clone()], at)
                });
                let keys: Vec<Vec<f32>> = keys.collect();
                for head in kv * group..(kv + 1) * group {
                    let query = &queries[head * dim..][..dim];
                    let (here, ranked) = (rotated(query, position), rotated(query, last));
                    let logits = keys.iter().enumerate().map(|(rank, key)| {
                        let query = match standing {
                            Standing::Ranks => &ranked,
                            Standing::TwoQueries(sinks) if rank < sinks => &ranked,
                            Standing::Original | Standing::TwoQueries(_) => &here,
                        };
                        let pairs = query.iter().zip(key);
                        let dot: f64 = pairs.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                        let logit = dot * f64::from(config.attention_scale);
                        let cap = config.attention_cap.map(f64::from);
                        cap.map_or(logit, |cap| cap * (logit / cap).tanh())
                    });
                    let logits: Vec<f64> = logits.collect();
                    let largest = logits.iter().copied().fold(f64::MIN, f64::max);
                    let weights: Vec<f64> = logits.iter().map(|l| (l - largest).exp()).collect();
                    let total: f64 = weights.iter().sum();
                    for (i, out) in attention[head * dim..][..dim].iter_mut().enumerate() {
                        let values = seen.iter().map(|&token| layer.values[token][kv * dim + i]);
                        let sum: f64 = values.zip(&weights).map(|(v, w)| w * f64::from(v)).sum();
                        *out = (sum / total) as f32;
                    }
                    self.seen[index][head] = weights.iter().map(|w| w / total).collect();
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
