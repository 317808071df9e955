//! Reference model: stores every key and value, and attends to given positions only. Any evicting cache must match it.
//!
//! Token by token, head by head, attention in f64: it shares no cache, slots, chunks or attention kernels with the
//! engine. The projections are the engine's own; `golden_logits.rs` checks those against transformers.

use kept_engine::kernels::RecurrentState;
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
    /// Of a recurrent layer, which has no keys.
    state: Option<RecurrentState>,
}

/// The rows that the newest token attends to in a KV head.
struct Rows {
    /// Their positions in the text, ascending; the token itself is the last.
    tokens: Vec<usize>,
    standing: Standing,
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
            layers: (model.config().kinds.iter())
                .map(|kind| Layer {
                    state: (model.config().recurrent)
                        .filter(|_| kind.is_recurrent())
                        .map(RecurrentState::new),
                    ..Layer::default()
                })
                .collect(),
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
        let dim = config.head_dim;
        let group = config.q_heads / config.kv_heads * dim;
        let position = self.tokens();
        let mut scratch = RowScratch::new(config);
        let mut residual = vec![0.0; config.width];
        self.model.embed(&[token], &mut residual);
        for layer in 0..config.layers {
            if let Some(state) = &mut self.layers[layer].state {
                self.model
                    .recur_row(layer, &mut residual, state, &mut scratch);
                // The number of keys is that of tokens.
                self.layers[layer].keys.push(Vec::new());
                continue;
            }
            let mut queries = vec![0.0; config.q_heads * dim];
            let mut key = vec![0.0; config.kv_heads * dim];
            let mut value = key.clone();
            self.model.project_row(
                layer,
                &residual,
                &mut scratch,
                &mut queries,
                &mut key,
                &mut value,
            );
            self.layers[layer].keys.push(key);
            self.layers[layer].values.push(value);
            let mut attention = vec![0.0f32; config.q_heads * dim];
            let mut seen = Vec::with_capacity(config.q_heads);
            let groups = queries.chunks_exact(group);
            for (head, (queries, out)) in groups.zip(attention.chunks_exact_mut(group)).enumerate()
            {
                let rows = match config.kinds[layer].window() {
                    Some(window) => Rows {
                        tokens: ((position + 1).saturating_sub(window)..=position).collect(),
                        standing: Standing::Original,
                    },
                    None => {
                        let kept = visible(layer, head).iter().map(|&p| p as usize);
                        Rows {
                            tokens: kept.chain([position]).collect(),
                            standing,
                        }
                    }
                };
                let members = queries.chunks_exact(dim).zip(out.chunks_exact_mut(dim));
                let keys = self.rotated_keys(layer, head, &rows);
                seen.extend(members.enumerate().map(|(member, (query, out))| {
                    let logits = self.logits(layer, &rows, &keys, query);
                    let sinks = self.model.attention_sinks(layer);
                    let sink = sinks.map(|sinks| sinks[head * (group / dim) + member]);
                    self.attend(layer, head, &rows, &logits, sink, out)
                }));
            }
            self.seen[layer] = seen;
            self.model
                .finish_row(layer, &attention, token, &mut residual, &mut scratch);
        }
        let mut logits = vec![0.0; config.vocab];
        self.model.logits_row(&residual, &mut scratch, &mut logits);
        logits
    }
    /// `x` with RoPE of a layer at position `at`.
    fn rotated(&self, layer: usize, x: &[f32], at: usize) -> Vec<f32> {
        let mut x = x.to_vec();
        if let Some(rope) = self.rope.of_layer(layer) {
            rope.rotate_at(&mut x, at);
        }
        x
    }

    /// A query with RoPE of a layer at position `at`.
    fn rotated_query(&self, layer: usize, query: &[f32], at: usize) -> Vec<f32> {
        let mut query = query.to_vec();
        if let Some(rope) = self.rope.of_layer(layer) {
            rope.rotate_query_at(&mut query, at);
        }
        query
    }

    /// `[rows][head_dim]`: the rows' keys in a KV head.
    fn rotated_keys(&self, layer: usize, head: usize, rows: &Rows) -> Vec<Vec<f32>> {
        let dim = self.model.config().head_dim;
        let keys = rows.tokens.iter().enumerate().map(|(rank, &token)| {
            let at = match rows.standing {
                Standing::Ranks => rank,
                Standing::Original | Standing::TwoQueries(_) => token,
            };
            self.rotated(
                layer,
                &self.layers[layer].keys[token][head * dim..][..dim],
                at,
            )
        });
        keys.collect()
    }

    /// `[rows]`: logits of the newest token's `query` before RoPE.
    fn logits(&self, layer: usize, rows: &Rows, keys: &[Vec<f32>], query: &[f32]) -> Vec<f64> {
        let config = self.model.config();
        let last = rows.tokens.len() - 1;
        let here = self.rotated_query(layer, query, rows.tokens[last]);
        let ranked = self.rotated_query(layer, query, last);
        let logits = keys.iter().enumerate().map(|(rank, key)| {
            let query = match rows.standing {
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
        logits.collect()
    }

    /// Writes the output `[head_dim]` of attention with these logits and the head's sink, if it has one. Returns the probabilities `[rows]`.
    fn attend(
        &self,
        layer: usize,
        head: usize,
        rows: &Rows,
        logits: &[f64],
        sink: Option<f32>,
        out: &mut [f32],
    ) -> Vec<f64> {
        let largest = logits.iter().copied().fold(f64::MIN, f64::max);
        let weights: Vec<f64> = logits.iter().map(|l| (l - largest).exp()).collect();
        let sink = sink.map_or(0.0, |sink| (f64::from(sink) - largest).exp());
        let total: f64 = weights.iter().sum::<f64>() + sink;
        let (values, first) = (&self.layers[layer].values, head * out.len());
        for (i, out) in out.iter_mut().enumerate() {
            let values = rows.tokens.iter().map(|&token| values[token][first + i]);
            let sum: f64 = values.zip(&weights).map(|(v, w)| w * f64::from(v)).sum();
            *out = (sum / total) as f32;
        }
        weights.iter().map(|w| w / total).collect()
    }
}
