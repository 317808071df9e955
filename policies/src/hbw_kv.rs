//! HBW-KV: blocks of tokens, selected in rounds over the whole prefix and over its parts ("HBW-KV: Hierarchical
//! Block-Wise KV Cache Compression", section 3, eq. 3; tables 2 to 4).
//!
//! A block's score is the mean attention of the last `w` queries over its T tokens. A round with M groups cuts the
//! prefix into M contiguous parts and takes the same number of blocks from each: the first round (M = 1) takes the top
//! blocks of the whole prefix, the next (M = 8) takes blocks from every part. A round skips blocks already taken; what
//! a small part cannot use goes to the top remaining blocks. Rows that do not fill a block go to the top single tokens,
//! so that the budget is met exactly.
//!
//! ```text
//! B = 12, w = 4, T = 2, rounds 1+2     M=1: 2 blocks    M=2: 1 left, 1 right
//! blocks 0 1 2 3 4 | 5 6 7 8 9         [0]     [4]  |   [1]      |     [9]      kept 0-3 8 9 18 19 | 20-23
//! ```

use crate::blocks::{blocks, means, ranked};
use crate::decode_cap::{DECODE_CAP, DECODE_EVERY, DECODE_W};
use crate::heads::par_map;
use crate::top_k::TopK;
use crate::window::{observed_rows, uniform_rows, window_for};
use crate::{
    GroupReduce, MethodInfo, ModelShape, Needs, Observation, Parameter, Parameters, Policy,
    PolicyError, Pos, PromptShape, Retention, Softmax, Window, group_reduce,
};

/// Entry in the table of methods.
pub(crate) const INFO: MethodInfo = MethodInfo {
    name: "hbw_kv",
    title: "HBW-KV",
    paper: "HBW-KV (see the list of papers)",
    keeps: "blocks that the last queries attend to, from every part of the prompt",
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
            name: "block",
            default: "a 32nd of the budget",
            range: "a whole number from 1",
            meaning: "tokens per block (T)",
        },
        Parameter {
            name: "rounds",
            default: "1+8",
            range: "whole numbers from 1 joined by +, for example 1+8",
            meaning: "groups (M) of each round",
        },
        Parameter {
            name: "shares",
            default: "equal parts",
            range: "numbers from 0 joined by +, one per round, that sum to 1",
            meaning: "share of the blocks that each round takes",
        },
        Parameter {
            name: "norm",
            default: "all",
            range: "all or prefix",
            meaning: "what a query's attention is normalised over (prefix is eq. 3 as printed)",
        },
        Parameter {
            name: "sinks",
            default: "4",
            range: "a whole number from 0 (0 is the paper's)",
            meaning: "first tokens that are always kept",
        },
        DECODE_CAP,
        DECODE_EVERY,
        DECODE_W,
    ],
    build: |values| {
        let p = Parameters::new(INFO.name, INFO.parameters, values)?;
        let whole = |m: &f64| m.fract() == 0.0 && (1.0..=1e6).contains(m);
        let rounds: Vec<usize> = p
            .numbers("rounds", |rounds| rounds.iter().all(whole))?
            .map_or_else(|| vec![1, 8], |r| r.iter().map(|&m| m as usize).collect());
        let shares = p
            .numbers("shares", |shares| {
                shares.len() == rounds.len()
                    && shares.iter().all(|&s| s >= 0.0)
                    && (shares.iter().sum::<f64>() - 1.0).abs() < 1e-6
            })?
            .unwrap_or_else(|| vec![1.0 / rounds.len() as f64; rounds.len()]);
        Ok(Box::new(HbwKv {
            window: p.whole("w", |w| w >= 1)?,
            block: p.whole("block", |t| t >= 1)?,
            rounds,
            shares,
            softmax: p.choice(
                "norm",
                &[("all", Softmax::All), ("prefix", Softmax::Prefix)],
                Softmax::All,
            )?,
            sinks: p.whole("sinks", |_| true)?.unwrap_or(4),
            chosen_window: 0,
        }))
    },
};

/// Blocks selected in rounds.
#[derive(Debug, Clone, Default)]
pub struct HbwKv {
    /// Observation window w; `None` derives it from the budget.
    pub window: Option<usize>,
    /// Tokens per block T; `None` takes a 32nd of the budget.
    pub block: Option<usize>,
    /// Groups M of each round.
    pub rounds: Vec<usize>,
    /// Share of the blocks that each round takes.
    pub shares: Vec<f64>,
    /// The keys over which a row of the window is normalised.
    pub softmax: Softmax,
    /// Number of first tokens that are always kept.
    pub sinks: usize,
    chosen_window: usize,
}

impl HbwKv {
    /// Blocks per round; every round except the first takes a multiple of its groups.
    ///
    /// ```text
    /// 31 blocks, rounds 1+8, shares 1/2 each:   15 + 16
    /// ```
    pub fn quota(&self, blocks: usize) -> Vec<usize> {
        let mut quota = vec![0; self.rounds.len()];
        let mut left = blocks;
        for i in (1..self.rounds.len()).rev() {
            let m = self.rounds[i];
            let wanted = (blocks as f64 * self.shares[i] / m as f64 + 0.5).floor() as usize * m;
            quota[i] = wanted.min(left);
            left -= quota[i];
        }
        quota[0] = left;
        quota
    }

    /// `[scores.len()]`: which tokens of the prefix one head keeps: the sinks, and `rows` tokens of
    /// `sinks..scores.len()`. `size` is the block size T.
    fn keep(&self, scores: &[f32], rows: usize, size: usize) -> Vec<bool> {
        let units = blocks(self.sinks..scores.len(), size);
        let means = means(scores, &units);
        let order = ranked(&means);
        let mut taken = vec![false; units.len()];
        for (&m, &quota) in self.rounds.iter().zip(&self.quota(rows / size)) {
            let mut left = quota;
            for group in 0..m {
                let part = group * units.len() / m..(group + 1) * units.len() / m;
                let best = order.iter().filter(|&&i| part.contains(&i) && !taken[i]);
                for i in best.copied().take(quota / m).collect::<Vec<_>>() {
                    taken[i] = true;
                    left -= 1;
                }
            }
            let rest = order.iter().filter(|&&i| !taken[i]);
            for i in rest.copied().take(left).collect::<Vec<_>>() {
                taken[i] = true;
            }
        }
        let mut kept = vec![false; scores.len()];
        kept[..self.sinks].fill(true);
        let mut left = rows;
        let units = units.into_iter().zip(taken);
        let (whole, open): (Vec<_>, Vec<_>) = units.partition(|(_, taken)| *taken);
        for (unit, _) in whole {
            left -= unit.len();
            kept[unit].fill(true);
        }
        // Rows that do not fill a block go to the top tokens of the other blocks.
        let mut best = TopK::new(left, scores.len());
        for (unit, _) in open {
            best.see(unit.start, &scores[unit]);
        }
        for best in best.indices() {
            kept[best as usize] = true;
        }
        kept
    }
}

impl Policy for HbwKv {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn needs(&self, _layer: usize) -> Needs {
        Needs {
            window: Some(Window {
                rows: self.chosen_window,
                softmax: self.softmax,
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
        let (Some(window), true) = (observation.window, n > rows) else {
            return Retention::Everything;
        };
        let prefix = n - self.chosen_window;
        let left = rows - self.chosen_window - self.sinks;
        let size = self.block.unwrap_or_else(|| (rows / 32).max(1));
        let group = observation.group;
        let heads = window.chunks_exact(n * group);
        Retention::Keep(par_map(heads, n * group, |_, head| {
            let scores = group_reduce(head, n, group, GroupReduce::Mean);
            let kept = self.keep(&scores[..prefix], left, size);
            let chosen = (0..prefix).filter(|&t| kept[t]);
            chosen.chain(prefix..n).map(|t| Pos(t as u32)).collect()
        }))
    }
}
