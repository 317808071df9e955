//! SnapKV: the prompt's last queries decide which rows to keep (Li et al., "SnapKV: LLM Knows What You are Looking for
//! Before Generation", arXiv 2404.14469, section 4 and listing 1).
//!
//! The score of a token is the attention of the last `w` queries, averaged over the window and over the query heads of
//! a KV head, and pooled over neighbours. Kept are the top `B - w` tokens of the prefix and the window itself. The
//! group is reduced before pooling (with max pooling the order matters). Decode only appends.
//!
//! ```text
//! n = 12, w = 3, B = 6, sinks = 1:   0 1 2 3 4 5 6 7 8 | 9 10 11
//!                                    s   .     x x       w  w  w      kept: sink, the top B-w-sinks, the window
//! ```

use crate::decode_cap::{DECODE_CAP, DECODE_EVERY, DECODE_W};
use crate::heads::par_map;
use crate::score::reduce_and_pool;
use crate::token_scores::{Protected, TokenScores, keep_best_of_each};
use crate::window::{observed_rows, uniform_rows, window_for};
use crate::{
    GroupReduce, MethodInfo, ModelShape, Needs, Observation, Parameter, Parameters, Policy,
    PolicyError, Pooling, PromptShape, Retention, Softmax, Window,
};

/// Entry in the table of methods.
pub(crate) const INFO: MethodInfo = MethodInfo {
    name: "snapkv",
    title: "SnapKV",
    paper: "arXiv 2404.14469",
    keeps: "what the last queries attend to, with neighbours, per kv head",
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
            name: "kernel",
            default: "7",
            range: "an odd whole number from 1",
            meaning: "neighbours a score is pooled over",
        },
        Parameter {
            name: "pooling",
            default: "max",
            range: "max or avg",
            meaning: "how a score is pooled",
        },
        Parameter {
            name: "group",
            default: "mean",
            range: "mean or max",
            meaning: "how the query heads of a kv head are reduced",
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
        Ok(Box::new(SnapKv {
            window: p.whole("w", |w| w >= 1)?,
            kernel: p.whole("kernel", |k| k % 2 == 1)?.unwrap_or(7),
            pooling: p.choice(
                "pooling",
                &[("max", Pooling::Max), ("avg", Pooling::Avg)],
                Pooling::Max,
            )?,
            group: p.choice(
                "group",
                &[("mean", GroupReduce::Mean), ("max", GroupReduce::Max)],
                GroupReduce::Mean,
            )?,
            sinks: p.whole("sinks", |_| true)?.unwrap_or(4),
            chosen_window: 0,
        }))
    },
};

/// Selection by the attention of the observation window.
#[derive(Debug, Clone)]
pub struct SnapKv {
    /// Observation window w; `None` derives it from the budget.
    pub window: Option<usize>,
    /// Pooling kernel, odd.
    pub kernel: usize,
    /// Pooling over neighbours.
    pub pooling: Pooling,
    /// Reduction over the query heads of a KV head.
    pub group: GroupReduce,
    /// Number of first tokens that are always kept.
    pub sinks: usize,
    /// Rows of the window in use, set by `rows`.
    pub(crate) chosen_window: usize,
}

impl Default for SnapKv {
    fn default() -> Self {
        Self {
            window: None,
            kernel: 7,
            pooling: Pooling::Max,
            group: GroupReduce::Mean,
            sinks: 4,
            chosen_window: 0,
        }
    }
}

impl Policy for SnapKv {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn needs(&self, _layer: usize) -> Needs {
        Needs {
            window: Some(Window {
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
        let scores = self.token_scores(observation);
        keep_best_of_each(scores, n, self.protected(), |_| rows)
    }

    fn token_scorer(&self) -> Option<&dyn TokenScores> {
        Some(self)
    }
}

impl TokenScores for SnapKv {
    fn protected(&self) -> Protected {
        Protected {
            sinks: self.sinks,
            recent: self.chosen_window,
        }
    }

    fn token_scores(&self, observation: &Observation<'_>) -> Vec<Vec<f32>> {
        let (n, group) = (observation.tokens, observation.group);
        let prefix = n - self.chosen_window;
        let window = observation.window.expect("SnapKV asked for a window");
        let heads = window.chunks_exact(n * group);
        par_map(heads, n * group, |_, head| {
            reduce_and_pool(head, (n, prefix), self.group, self.kernel, self.pooling)
        })
    }
}
