use crate::info::read;
use crate::options::{FROM_1, ODD, PAPER_HAS_0, Range, options, words};
use crate::top_tokens::Ranking;
use crate::wrappers::decode_cap::{DECODE_CAP, DECODE_EVERY, DECODE_W};
use crate::{
    GroupReduce, MethodInfo, Observation, PolicyError, Pooling, RowPlan, RowRequest, Score, SnapKv,
};

/// Entry in the table of methods.
pub(crate) const INFO: MethodInfo = MethodInfo {
    name: "pyramidkv",
    title: "PyramidKV",
    paper: "arXiv 2406.02069",
    keeps: "what SnapKV keeps, with more rows in the lower layers",
    acts: "prefill",
    positions: "original",
    parameters: PyramidKv::OPTIONS,
    build: |values| read(&INFO, values, PyramidKv::read),
};

options! {
    /// SnapKV's selection with a pyramid of budgets.
    #[derive(Debug, Clone)]
    pub struct PyramidKv {
        /// last queries that vote; their tokens are kept
        w: Option<usize> => "w", "8", FROM_1;
        /// neighbours a score is pooled over
        kernel: usize => "kernel", "7", ODD;
        /// how a score is pooled
        pooling: Pooling => "pooling", "max", Range::Word("max or avg");
        /// how the query heads of a kv head are reduced
        group: GroupReduce => "group", "mean", Range::Word("mean or max");
        /// first tokens that are always kept
        sinks: usize => "sinks", "4", PAPER_HAS_0;
        /// how steep: the top layer gets 1/beta of the mean
        beta: f64 => "beta", "20", Range::Number("a number from 1 to 1000000", |b| b >= 1.0);
        /// exact sums to the budget; paper rounds its line; code is the published program's
        schedule: Schedule => "schedule", "exact", Range::Word("exact, paper or code");
    }
    + DECODE_CAP; + DECODE_EVERY; + DECODE_W;
}

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

words!(Schedule {
    "exact" => Schedule::Exact,
    "paper" => Schedule::Paper,
    "code" => Schedule::Code,
});

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

impl Ranking for PyramidKv {
    const NAME: &'static str = INFO.name;

    fn plan(&self, request: &RowRequest) -> Result<RowPlan, PolicyError> {
        let RowRequest { model, prompt, .. } = request;
        let budget = request.budget;
        let plan = RowPlan::uniform(request);
        let plan = plan.with_window(INFO.name, self.w, 8, self.sinks)?;
        if budget >= prompt.tokens {
            return Ok(plan);
        }
        let (window, ends) = (plan.protected.recent, plan.protected.rows());
        let (mean, tokens) = (budget - ends, prompt.tokens - self.sinks);
        let schedule = self.schedule;
        let prefix = schedule.prefix_rows(mean, window, tokens, model.layers, self.beta);
        Ok(plan.with_rows(prefix.into_iter().map(|rows| rows + ends).collect()))
    }
}

impl Score for PyramidKv {
    /// As SnapKV.
    fn score(&self, plan: &RowPlan, observation: &Observation<'_>) -> Vec<Vec<f32>> {
        let snapkv = SnapKv {
            w: self.w,
            kernel: self.kernel,
            pooling: self.pooling,
            group: self.group,
            sinks: self.sinks,
        };
        snapkv.score(plan, observation)
    }
}
