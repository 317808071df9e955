use crate::info::read;
use crate::options::{FROM_1, ODD, PAPER_HAS_0, Range, options};
use crate::parallel::par_map;
use crate::score::reduce_and_pool;
use crate::top_tokens::Ranking;
use crate::window::{W, default_window};
use crate::wrappers::decode_cap::{DECODE_CAP, DECODE_EVERY, DECODE_W};
use crate::{
    GroupReduce, MethodInfo, Observation, PolicyError, Pooling, RowPlan, RowRequest, Score,
};

/// Entry in the table of methods.
pub(crate) const INFO: MethodInfo = MethodInfo {
    name: "snapkv",
    title: "SnapKV",
    paper: "arXiv 2404.14469",
    keeps: "what the last queries attend to, with neighbours, per kv head",
    acts: "prefill",
    positions: "original",
    parameters: SnapKv::OPTIONS,
    build: |values| read(&INFO, values, SnapKv::read),
};

options! {
    /// Selection by the attention of the observation window.
    #[derive(Debug, Clone)]
    pub struct SnapKv {
        /// last queries that vote; their tokens are kept
        w: Option<usize> => "w", W, FROM_1;
        /// neighbours a score is pooled over
        kernel: usize => "kernel", "7", ODD;
        /// how a score is pooled
        pooling: Pooling => "pooling", "max", Range::Word("max or avg");
        /// how the query heads of a kv head are reduced
        group: GroupReduce => "group", "mean", Range::Word("mean or max");
        /// first tokens that are always kept
        sinks: usize => "sinks", "4", PAPER_HAS_0;
    }
    + DECODE_CAP; + DECODE_EVERY; + DECODE_W;
}

impl Ranking for SnapKv {
    const NAME: &'static str = INFO.name;

    fn plan(&self, request: &RowRequest) -> Result<RowPlan, PolicyError> {
        let &RowRequest { budget, .. } = request;
        let plan = RowPlan::uniform(request);
        plan.with_window(INFO.name, self.w, default_window(budget), self.sinks)
    }
}

impl Score for SnapKv {
    fn score(&self, plan: &RowPlan, observation: &Observation<'_>) -> Vec<Vec<f32>> {
        let (n, group) = (observation.tokens, observation.group);
        let prefix = n - plan.protected.recent;
        let heads = observation.window_heads();
        par_map(observation.threads, heads, n * group, |_, attention| {
            reduce_and_pool(attention, n, prefix, self.group, self.kernel, self.pooling)
        })
    }
}
