//! PyramidKV: SnapKV's selection with more rows in the lower layers (Cai et al., "PyramidKV: Dynamic KV Cache
//! Compression based on Pyramidal Information Funneling", arXiv 2406.02069, section 4 and eq. 1 to 3).
//!
//! Every layer keeps its window of w rows. The rows of the prefix fall linearly from layer to layer, with mean
//! `avg = B - w`: the top layer has `avg / beta`, the bottom layer `2 avg - avg / beta`. Sinks are kept in every layer.
//!
//! ```text
//! layer l of m:  k^(m-1) = avg / β     k^0 = 2 avg - k^(m-1)     k^l = k^0 - (k^0 - k^(m-1)) / (m - 1) * l
//!
//! B = 12, w = 4, 4 layers, β = 20       paper   15.6 10.53 5.47 0.4     real numbers
//! prefix rows of layers 0 1 2 3         exact   16   10    6    0       whole numbers, sum exactly 4 x 8
//!                                       code    16   11    6    1       the published code: sum 34
//! ```

use crate::decode_cap::{DECODE_CAP, DECODE_EVERY, DECODE_W};
use crate::token_scores::{Protected, TokenScores};
use crate::window::{observed_rows, uniform_rows};
use crate::{
    GroupReduce, MethodInfo, ModelShape, Needs, Observation, Parameter, Parameters, Policy,
    PolicyError, Pooling, PromptShape, Retention, SnapKv,
};

/// Entry in the table of methods.
pub(crate) const INFO: MethodInfo = MethodInfo {
    name: "pyramidkv",
    title: "PyramidKV",
    paper: "arXiv 2406.02069",
    keeps: "what SnapKV keeps, with more rows in the lower layers",
    acts: "prefill",
    positions: "original",
    parameters: &[
        Parameter {
            name: "w",
            default: "8",
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
        Parameter {
            name: "beta",
            default: "20",
            range: "a number from 1",
            meaning: "how steep: the top layer gets 1/beta of the mean",
        },
        Parameter {
            name: "schedule",
            default: "exact",
            range: "exact, paper or code",
            meaning: "exact sums to the budget; paper rounds its line; code is the published program's",
        },
        DECODE_CAP,
        DECODE_EVERY,
        DECODE_W,
    ],
    build: |values| {
        let p = Parameters::new(INFO.name, INFO.parameters, values)?;
        let vote = SnapKv {
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
            ..SnapKv::default()
        };
        Ok(Box::new(PyramidKv {
            vote,
            beta: p.number("beta", |b| b >= 1.0)?.unwrap_or(20.0),
            schedule: p.choice(
                "schedule",
                &[
                    ("exact", Schedule::Exact),
                    ("paper", Schedule::Paper),
                    ("code", Schedule::Code),
                ],
                Schedule::Exact,
            )?,
        }))
    },
};

/// How the rows of a layer are rounded to whole numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Schedule {
    /// The paper's line, clamped to the prompt and rounded so that the sum is exactly the budget.
    #[default]
    Exact,
    /// The paper's line (eq. 1), each layer rounded to the nearest whole number and clamped to the prompt.
    Paper,
    /// The integers of the published code: the step is rounded down, so small budgets are exceeded by up to a quarter.
    Code,
}

/// SnapKV's selection with a pyramid of budgets.
#[derive(Debug, Clone)]
pub struct PyramidKv {
    /// The selection within one layer; `rows` sets its window.
    pub vote: SnapKv,
    /// Steepness β of the pyramid.
    pub beta: f64,
    /// The rounding of its rows.
    pub schedule: Schedule,
}

impl Schedule {
    /// `[layers]`: rows of the prefix, `avg` on average, in a prompt of `n` tokens whose last `w` are kept in addition.
    /// The rows never increase with depth.
    pub fn prefix_rows(
        self,
        avg: usize,
        w: usize,
        n: usize,
        layers: usize,
        beta: f64,
    ) -> Vec<usize> {
        let cap = n - w;
        if avg >= cap {
            return vec![cap; layers];
        }
        if layers == 1 {
            return vec![avg];
        }
        let (mean, cap_f) = (avg as f64, cap as f64);
        let top = mean / beta;
        let bottom = 2.0 * mean - top;
        let line = |bottom: f64, top: f64| {
            (0..layers).map(move |l| bottom - (bottom - top) / (layers - 1) as f64 * l as f64)
        };
        match self {
            Schedule::Exact => {
                let (bottom, top) = if bottom > cap_f {
                    (cap_f, 2.0 * mean - cap_f)
                } else {
                    (bottom, top)
                };
                let (mut sum, mut done) = (0.0, 0);
                let mut rows: Vec<usize> = line(bottom, top)
                    .map(|real| {
                        sum += real;
                        let whole = (sum + 0.5).floor() as usize - done;
                        done += whole;
                        whole
                    })
                    .collect();
                rows.sort_unstable_by(|a, b| b.cmp(a));
                rows
            }
            Schedule::Paper => line(bottom, top)
                .map(|real| (real.round() as usize).min(cap))
                .collect(),
            // The published code gives all layers the same rows if the prompt is shorter than twice the mean.
            Schedule::Code if n < 2 * avg => vec![avg; layers],
            Schedule::Code => {
                let low = top.floor() as usize;
                let high = (2 * avg - low).min(cap);
                let low = if high == cap { 2 * avg - high } else { low };
                let step = (high - low) / (layers - 1);
                (0..layers).map(|l| high - l * step).collect()
            }
        }
    }
}

impl Policy for PyramidKv {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn needs(&self, layer: usize) -> Needs {
        self.vote.needs(layer)
    }

    fn rows(
        &mut self,
        model: &ModelShape,
        prompt: &PromptShape,
        budget: usize,
    ) -> Result<Vec<usize>, PolicyError> {
        let sinks = self.vote.sinks;
        let w = observed_rows(self.vote.window, 8, prompt, budget, sinks);
        self.vote.chosen_window = w;
        let even = uniform_rows(INFO.name, model, prompt, budget, w, sinks)?;
        if budget >= prompt.tokens {
            return Ok(even);
        }
        let prefix = self.schedule.prefix_rows(
            budget - w - sinks,
            w,
            prompt.tokens - sinks,
            model.layers,
            self.beta,
        );
        Ok(prefix.into_iter().map(|rows| rows + w + sinks).collect())
    }

    fn select(&mut self, observation: &Observation<'_>, rows: usize) -> Retention {
        self.vote.select(observation, rows)
    }

    fn token_scorer(&self) -> Option<&dyn TokenScores> {
        Some(self)
    }
}

impl TokenScores for PyramidKv {
    fn protected(&self) -> Protected {
        self.vote.protected()
    }

    fn token_scores(&self, observation: &Observation<'_>) -> Vec<Vec<f32>> {
        self.vote.token_scores(observation)
    }
}
