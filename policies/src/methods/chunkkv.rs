use crate::blocks::{blocks, means, ranked, sums};
use crate::info::read;
use crate::options::{FROM_1, MAX_COUNT, PAPER_HAS_0, Range, options};
use crate::parallel::{par_chunks, par_map};
use crate::score::reduce;
use crate::window::{W, default_window};
use crate::wrappers::decode_cap::{DECODE_CAP, DECODE_EVERY, DECODE_W};
use crate::{
    GroupReduce, Method, MethodInfo, Observation, PolicyError, Pos, Retention, RowPlan, RowRequest,
    Select, Selection, group_reduce,
};

/// Entry in the table of methods.
pub(crate) const INFO: MethodInfo = MethodInfo {
    name: "chunkkv",
    title: "ChunkKV",
    paper: "arXiv 2502.00299",
    keeps: "whole chunks of text that the last queries attend to",
    acts: "prefill",
    positions: "original",
    parameters: ChunkKv::OPTIONS,
    build: |values| read(&INFO, values, ChunkKv::read),
};

options! {
    /// Top chunks by the attention of the observation window.
    #[derive(Debug, Clone)]
    pub struct ChunkKv {
        /// last queries that vote; their tokens are kept
        w: Option<usize> => "w", W, FROM_1;
        /// tokens per chunk
        chunk: usize => "chunk", "10", FROM_1;
        /// clean keeps the window out of the competition; literal selects as printed, from probabilities, and may keep
        /// fewer rows
        literal: bool => "variant", "clean", Range::Flag("clean or literal", ["clean", "literal"]);
        /// one list per layer, or one per kv head
        shared: bool => "heads", "shared", Range::Flag("shared or per_head", ["per_head", "shared"]);
        /// layers that share one list
        reuse: usize => "reuse", "1",
            Range::Whole("a whole number from 1 (scores every layer) to 16777216", |layers| {
                (1..=MAX_COUNT).contains(&layers)
            });
        /// first tokens that are always kept (clean only)
        sinks: usize => "sinks", "4", PAPER_HAS_0;
    }
    + DECODE_CAP; + DECODE_EVERY; + DECODE_W;
}

impl Method for ChunkKv {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn plan(&self, request: &RowRequest) -> Result<RowPlan, PolicyError> {
        let RowRequest { model, prompt, .. } = request;
        let budget = request.budget;
        let uniform = RowPlan::uniform(request);
        let (window, sinks) = (
            default_window(budget),
            if self.literal { 0 } else { self.sinks },
        );
        let mut plan = uniform.with_window(INFO.name, self.w, window, sinks)?;
        for layer in (0..model.layers).filter(|layer| !layer.is_multiple_of(self.reuse)) {
            plan.needs[layer].observation_window = None;
        }
        if self.reuse > 1 && budget < prompt.tokens {
            plan.bytes = (model.kv_heads * budget * size_of::<Pos>()) as u64;
        }
        Ok(plan)
    }

    fn start(&self, _plan: &RowPlan) -> Box<dyn Select> {
        Box::new(Chunks {
            options: self.clone(),
            leader: Retention::Everything,
        })
    }
}

impl ChunkKv {
    /// The kept positions, from one score per token.
    fn keep(&self, scores: &[f32], plan: &RowPlan, rows: usize) -> Vec<Pos> {
        let n = scores.len();
        let (sinks, prefix) = (plan.protected.sinks, n - plan.protected.recent);
        let rows_of_prefix = rows - plan.protected.recent;
        let mut kept: Vec<usize> = Vec::with_capacity(rows);
        if self.literal {
            let chunks = blocks(0..n, self.chunk);
            let mut best = ranked(&sums(scores, &chunks));
            best.truncate(rows / self.chunk);
            best.sort_unstable();
            let chosen = best.into_iter().flat_map(|i| chunks[i].clone());
            kept.extend(chosen.take(rows_of_prefix).filter(|&token| token < prefix));
        } else {
            kept.extend(0..sinks);
            let chunks = blocks(sinks..prefix, self.chunk);
            let mut left = rows_of_prefix - sinks;
            for i in ranked(&means(scores, &chunks)) {
                let taken = chunks[i].len().min(left);
                kept.extend(chunks[i].clone().take(taken));
                left -= taken;
            }
            kept.sort_unstable();
        }
        kept.extend(prefix..n);
        kept.into_iter().map(|token| Pos(token as u32)).collect()
    }
}

/// The state of one prompt.
struct Chunks {
    options: ChunkKv,
    /// The positions kept by the last layer that computed scores.
    leader: Retention,
}

impl Select for Chunks {
    fn select(&mut self, plan: &RowPlan, observation: &Observation<'_>) -> Selection {
        let (n, rows, options) = (
            observation.tokens,
            plan.rows[observation.layer],
            &self.options,
        );
        if n <= rows {
            return Retention::Everything.into();
        }
        if !observation.layer.is_multiple_of(options.reuse) {
            return self.leader.clone().into();
        }
        let (group, threads) = (observation.group, observation.threads);
        let heads = observation.window_heads();
        let kept = if options.shared {
            let all = par_chunks(threads, n, group * observation.kv_heads, |first, all| {
                let mut own = vec![0.0; all.len()];
                for head in heads.clone() {
                    reduce(head, n, first, &mut own, GroupReduce::Mean);
                    all.iter_mut().zip(&own).for_each(|(a, s)| *a += s);
                }
            });
            vec![options.keep(&all, plan, rows); observation.kv_heads]
        } else {
            par_map(threads, heads, n * group, |_, head| {
                let scores = group_reduce(head, n, group, GroupReduce::Mean);
                options.keep(&scores, plan, rows)
            })
        };
        let kept = Retention::Keep(kept);
        if options.reuse > 1 {
            self.leader = kept.clone();
        }
        kept.into()
    }
}
