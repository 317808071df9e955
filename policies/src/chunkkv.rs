//! ChunkKV: keeps or evicts whole chunks of text (Liu et al., "ChunkKV: Semantic-Preserving KV Cache Compression for
//! Efficient Long-Context LLM Inference", arXiv 2502.00299, algorithm 1; index reuse: algorithm 2).
//!
//! A chunk's score is the mean attention of the last `w` queries over its `chunk` tokens. The top chunks of the prefix
//! fill `B - w` rows; the last of them is cut to its first tokens. All heads of a layer share one list of positions
//! (the published code), or each has its own. Every layer computes scores (tables 4 to 6 and 12 to 18). With `reuse`
//! above 1 (section 4.3) only the first of every `reuse` layers does; the other layers copy its list and observe
//! nothing.
//!
//! `variant=literal` selects as algorithm 1 is printed: the window competes too, and the selection is cut by position
//! to `B - w` rows before the window is added. The latest chunks can therefore lose tokens whatever their scores, and
//! where a selected chunk overlaps the window, fewer than B rows are kept. The scores are sums of probabilities,
//! whereas line 4 prints raw `Q K^T`.
//!
//! ```text
//! B = 12, w = 4, chunk = 5     clean     0 1 2 . .  . . . . .  10 11 12 13 14  . . . . .  | 20 21 22 23
//! chunk means .36 .30 .45 .36  literal   0 1 2 3 4  . . . . .  10 11 12 .  .   . . . . .  | 20 21 22 23
//! ```

use crate::blocks::{blocks, means, ranked, sums};
use crate::decode_cap::{DECODE_CAP, DECODE_EVERY, DECODE_W};
use crate::heads::{par_chunks, par_map};
use crate::score::reduce;
use crate::window::{observed_rows, uniform_rows, window_for};
use crate::{
    GroupReduce, MethodInfo, ModelShape, Needs, Observation, Parameter, Parameters, Policy,
    PolicyError, Pos, PromptShape, Retention, Softmax, Window, group_reduce,
};

/// Entry in the table of methods.
pub(crate) const INFO: MethodInfo = MethodInfo {
    name: "chunkkv",
    title: "ChunkKV",
    paper: "arXiv 2502.00299",
    keeps: "whole chunks of text that the last queries attend to",
    acts: "prefill",
    positions: "original",
    parameters: &[
        Parameter {
            name: "w",
            default: "32, 16 below a budget of 256 rows, 8 below 128",
            range: "a whole number from 1",
            meaning: "last queries that vote; their tokens are kept",
        },
        Parameter {
            name: "chunk",
            default: "10",
            range: "a whole number from 1",
            meaning: "tokens per chunk",
        },
        Parameter {
            name: "variant",
            default: "clean",
            range: "clean or literal",
            meaning: "clean keeps the window out of the competition; literal selects as printed, from probabilities, and may keep fewer rows",
        },
        Parameter {
            name: "heads",
            default: "shared",
            range: "shared or per_head",
            meaning: "one list per layer, or one per kv head",
        },
        Parameter {
            name: "reuse",
            default: "1",
            range: "a whole number from 1 (1 scores every layer)",
            meaning: "layers that share one list",
        },
        Parameter {
            name: "sinks",
            default: "4",
            range: "a whole number from 0 (0 is the paper's)",
            meaning: "first tokens that are always kept (clean only)",
        },
        DECODE_CAP,
        DECODE_EVERY,
        DECODE_W,
    ],
    build: |values| {
        let p = Parameters::new(INFO.name, INFO.parameters, values)?;
        Ok(Box::new(ChunkKv {
            window: p.whole("w", |w| w >= 1)?,
            chunk: p.whole("chunk", |c| c >= 1)?.unwrap_or(10),
            literal: p.choice("variant", &[("clean", false), ("literal", true)], false)?,
            shared: p.choice("heads", &[("shared", true), ("per_head", false)], true)?,
            reuse: p.whole("reuse", |r| r >= 1)?.unwrap_or(1),
            sinks: p.whole("sinks", |_| true)?.unwrap_or(4),
            chosen_window: 0,
            leader: Retention::Everything,
            leader_rows: 0,
        }))
    },
};

/// Top chunks by the attention of the observation window.
#[derive(Debug, Clone)]
pub struct ChunkKv {
    /// Observation window w; `None` derives it from the budget.
    pub window: Option<usize>,
    /// Tokens per chunk.
    pub chunk: usize,
    /// Select as algorithm 1 is printed.
    pub literal: bool,
    /// One list of positions for all heads of a layer.
    pub shared: bool,
    /// Number of layers that share one list.
    pub reuse: usize,
    /// Number of first tokens that are always kept (not in the printed algorithm).
    pub sinks: usize,
    chosen_window: usize,
    /// The positions kept by the last layer that computed scores.
    leader: Retention,
    /// Number of positions in `leader`, over all KV heads.
    leader_rows: usize,
}

impl ChunkKv {
    fn follows(&self, layer: usize) -> bool {
        !layer.is_multiple_of(self.reuse)
    }

    /// The kept positions, from one score per token.
    fn keep(&self, scores: &[f32], rows: usize) -> Vec<Pos> {
        let n = scores.len();
        let w = self.chosen_window;
        let mut kept: Vec<u32> = Vec::with_capacity(rows);
        if self.literal {
            let chunks = blocks(0..n, self.chunk);
            let mut best = ranked(&sums(scores, &chunks));
            best.truncate(rows / self.chunk);
            best.sort_unstable();
            let chosen = best.into_iter().flat_map(|i| chunks[i].clone());
            kept.extend(
                chosen
                    .take(rows - w)
                    .filter(|&t| t < n - w)
                    .map(|t| t as u32),
            );
        } else {
            kept.extend(0..self.sinks as u32);
            let chunks = blocks(self.sinks..n - w, self.chunk);
            let mut left = rows - w - self.sinks;
            for i in ranked(&means(scores, &chunks)) {
                let taken = chunks[i].len().min(left);
                kept.extend(chunks[i].clone().take(taken).map(|t| t as u32));
                left -= taken;
            }
            kept.sort_unstable();
        }
        kept.extend((n - w) as u32..n as u32);
        kept.into_iter().map(Pos).collect()
    }
}

impl Policy for ChunkKv {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn needs(&self, layer: usize) -> Needs {
        Needs {
            window: (!self.follows(layer)).then_some(Window {
                rows: self.chosen_window,
                softmax: Softmax::All,
            }),
            ..Needs::default()
        }
    }

    fn rows(
        &mut self,
        model: &ModelShape,
        prompt: &PromptShape,
        budget: usize,
    ) -> Result<Vec<usize>, PolicyError> {
        self.chosen_window =
            observed_rows(self.window, window_for(budget), prompt, budget, self.sinks);
        if self.literal {
            self.sinks = 0;
        }
        self.leader = Retention::Everything;
        let shared = self.reuse > 1 && budget < prompt.tokens;
        self.leader_rows = if shared { model.kv_heads * budget } else { 0 };
        uniform_rows(
            INFO.name,
            model,
            prompt,
            budget,
            self.chosen_window,
            self.sinks,
        )
    }

    fn select(&mut self, observation: &Observation<'_>, rows: usize) -> Retention {
        let n = observation.tokens;
        if n <= rows {
            return Retention::Everything;
        }
        let Some(window) = observation.window else {
            return self.leader.clone();
        };
        let group = observation.group;
        let heads = window.chunks_exact(n * group);
        let kept = if self.shared {
            let all = par_chunks(n, group * observation.kv_heads, |first, all| {
                let mut own = vec![0.0; all.len()];
                for head in heads.clone() {
                    reduce(head, n, first, &mut own, GroupReduce::Mean);
                    all.iter_mut().zip(&own).for_each(|(a, s)| *a += s);
                }
            });
            vec![self.keep(&all, rows); observation.kv_heads]
        } else {
            par_map(heads, n * group, |_, head| {
                let scores = group_reduce(head, n, group, GroupReduce::Mean);
                self.keep(&scores, rows)
            })
        };
        let kept = Retention::Keep(kept);
        if self.reuse > 1 {
            self.leader = kept.clone();
        }
        kept
    }

    fn bytes(&self) -> u64 {
        (self.leader_rows * size_of::<Pos>()) as u64
    }
}
