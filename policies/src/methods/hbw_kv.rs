use crate::blocks::{blocks, means, ranked};
use crate::info::read;
use crate::options::{FROM_1, PAPER_HAS_0, Range, options, words};
use crate::parallel::par_map;
use crate::top_k::TopK;
use crate::window::{W, default_window};
use crate::wrappers::decode_cap::{DECODE_CAP, DECODE_EVERY, DECODE_W};
use crate::{
    GroupReduce, Method, MethodInfo, Observation, Parameters, PolicyError, Pos, Retention, RowPlan,
    RowRequest, Select, Selection, Softmax, group_reduce,
};

/// Entry in the table of methods.
pub(crate) const INFO: MethodInfo = MethodInfo {
    name: "hbw_kv",
    title: "HBW-KV",
    paper: "HBW-KV (see the list of papers)",
    keeps: "blocks that the last queries attend to, from every part of the prompt",
    acts: "prefill",
    positions: "original",
    parameters: HbwKv::OPTIONS,
    build: |values| read(&INFO, values, HbwKv::read_checked),
};

options! {
    /// Blocks selected in rounds.
    #[derive(Debug, Clone)]
    pub struct HbwKv {
        /// last queries that vote; their tokens are kept
        w: Option<usize> => "w", W, FROM_1;
        /// tokens per block (T)
        block: Option<usize> => "block", "a 32nd of the budget", FROM_1;
        /// groups (M) of each round
        rounds: Vec<usize> => "rounds", "1+8", Range::Numbers(
            "at most 16 whole numbers from 1 to 1024 joined by +, for example 1+8",
            |m| m.fract() == 0.0 && (1.0..=1024.0).contains(&m),
        );
        /// share of the blocks that each round takes
        shares: Option<Vec<f64>> => "shares", "equal parts", Range::Numbers(
            "numbers from 0 joined by +, one per round, that sum to 1",
            |share| share >= 0.0,
        );
        /// what a query's attention is normalised over (prefix is eq. 3 as printed)
        softmax: Softmax => "norm", "all", Range::Word("all or prefix");
        /// first tokens that are always kept
        sinks: usize => "sinks", "4", PAPER_HAS_0;
    }
    + DECODE_CAP; + DECODE_EVERY; + DECODE_W;
}

words!(Softmax {
    "all" => Softmax::All,
    "prefix" => Softmax::Prefix,
});

impl HbwKv {
    /// The share of the blocks that round `round` takes.
    fn share(&self, round: usize) -> f64 {
        let equal = 1.0 / self.rounds.len() as f64;
        self.shares.as_ref().map_or(equal, |shares| shares[round])
    }

    /// # Errors
    /// [`PolicyError::Value`] unless there is a share for every round and they sum to 1.
    fn read_checked(p: &Parameters) -> Result<Self, PolicyError> {
        let method = Self::read(p)?;
        let sound = method.shares.as_ref().is_none_or(|shares| {
            shares.len() == method.rounds.len() && (shares.iter().sum::<f64>() - 1.0).abs() < 1e-6
        });
        if sound {
            Ok(method)
        } else {
            Err(p.not_allowed("shares", p.given("shares").unwrap_or_default()))
        }
    }

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
            let wanted = (blocks as f64 * self.share(i) / m as f64 + 0.5).floor() as usize * m;
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

impl Method for HbwKv {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn plan(&self, request: &RowRequest) -> Result<RowPlan, PolicyError> {
        let &RowRequest { budget, .. } = request;
        let uniform = RowPlan::uniform(request);
        let window = default_window(budget);
        let mut plan = uniform.with_window(INFO.name, self.w, window, self.sinks)?;
        let windows = plan
            .needs
            .iter_mut()
            .filter_map(|needs| needs.observation_window.as_mut());
        windows.for_each(|window| window.softmax = self.softmax);
        Ok(plan)
    }

    fn start(&self, _plan: &RowPlan) -> Box<dyn Select> {
        Box::new(self.clone())
    }
}

impl Select for HbwKv {
    fn select(&mut self, plan: &RowPlan, observation: &Observation<'_>) -> Selection {
        let (n, rows) = (observation.tokens, plan.rows[observation.layer]);
        if observation.observation_window.is_none() || n <= rows {
            return Retention::Everything.into();
        }
        let prefix = n - plan.protected.recent;
        let left = rows - plan.protected.rows();
        let size = self.block.unwrap_or_else(|| (rows / 32).max(1));
        let (group, heads) = (observation.group, observation.window_heads());
        Retention::Keep(par_map(observation.threads, heads, n * group, |_, head| {
            let scores = group_reduce(head, n, group, GroupReduce::Mean);
            let kept = self.keep(&scores[..prefix], left, size);
            let chosen = (0..prefix).filter(|&t| kept[t]);
            chosen.chain(prefix..n).map(|t| Pos(t as u32)).collect()
        }))
        .into()
    }
}
