//! Experts and the widths of the feed-forward, from the metadata.

use super::keys::{Keys, MAX_COUNT, missing};
use super::{Blocks, ExpertCounts, ExpertGroups};
use crate::ModelError;
use crate::architecture::{Architecture, Part, Router, Shared};

/// How scores become weights: 1 by a softmax, 2 by the sigmoid.
const GATING: &str = "expert_gating_func";
/// Whether weights are divided by their sum.
const SUM: &str = "expert_weights_norm";

/// The number of experts of an architecture that has them.
pub(super) fn read(
    keys: &Keys<'_>,
    architecture: &Architecture,
) -> Result<Option<ExpertCounts>, ModelError> {
    const ALL: &str = "expert_count";
    const USED: &str = "expert_used_count";
    if architecture.experts == Part::Absent {
        return match keys.whole(ALL)?.filter(|&n| n > 0) {
            Some(n) => {
                let needs = format!("experts are not supported in {} models", keys.name);
                Err(keys.bad(ALL, n, needs))
            }
            None => Ok(None),
        };
    }
    if architecture.experts == Part::Optional && keys.whole(ALL)?.unwrap_or(0) == 0 {
        return Ok(None);
    }
    let (all, used) = (keys.count(ALL)?, keys.count(USED)?);
    if used > all {
        return Err(keys.bad(
            USED,
            used,
            format!("at most {all}, all experts, are possible"),
        ));
    }
    let (router, normalised) = match architecture.router {
        Router::Declared => declared(keys)?,
        Router::Sigmoid => {
            refuse_other_than_sigmoid(keys, architecture)?;
            (Router::Sigmoid, true)
        }
        Router::SoftmaxOfAll => (Router::SoftmaxOfAll, false),
        router => (router, true),
    };
    let weights_scale = match architecture.router {
        Router::Declared | Router::Sigmoid => weights_scale(keys)?,
        Router::Softmax | Router::SoftmaxOfAll | Router::BiasedSoftmax => 1.0,
    };
    const WIDTH: &str = "expert_feed_forward_length";
    let ffn = match has_one_width(architecture) && !keys.has(WIDTH) {
        // Files of Granite, Mixtral and OLMoE give the width of an expert by the key for dense feed-forwards.
        true => keys.uniform_count("feed_forward_length")?,
        false => keys.count(WIDTH)?,
    };
    Ok(Some(ExpertCounts {
        all,
        used,
        ffn,
        shared_ffn: shared_ffn(keys, architecture, ffn)?,
        weights_scale,
        router,
        normalised,
        groups: groups(keys, architecture, router, [all, used])?,
    }))
}

/// Whether `feed_forward_length` may be the width of an expert.
fn has_one_width(architecture: &Architecture) -> bool {
    let can_be_dense = architecture.experts == Part::Optional && !architecture.dense_and_experts;
    let only_routed =
        architecture.router == Router::SoftmaxOfAll && architecture.shared_expert == Shared::None;
    architecture.multipliers.is_allowed() || can_be_dense || only_routed
}

/// Width of the expert that every token passes through, if there is one; another expert has the width `ffn`.
fn shared_ffn(
    keys: &Keys<'_>,
    architecture: &Architecture,
    ffn: usize,
) -> Result<Option<usize>, ModelError> {
    const WIDTH: &str = "expert_shared_feed_forward_length";
    const COUNT: &str = "expert_shared_count";
    match architecture.shared_expert {
        Shared::None => Ok(None),
        Shared::Gated => keys.count(WIDTH).map(Some),
        Shared::Plain if keys.whole(WIDTH)? == Some(0) => Ok(None),
        Shared::Plain => keys.optional_count(WIDTH),
        Shared::Counted | Shared::CountedWidths => {
            let own = match architecture.shared_expert {
                Shared::CountedWidths => keys.optional_count(WIDTH)?,
                _ => None,
            };
            let ffn = own.unwrap_or(ffn);
            match keys.whole(COUNT)?.unwrap_or(0) {
                0 => Ok(None),
                count if count.saturating_mul(ffn as u64) <= MAX_COUNT => {
                    Ok(Some(count as usize * ffn))
                }
                count => Err(keys.bad(COUNT, count, "fewer experts are needed".to_owned())),
            }
        }
    }
}

/// How the file says that scores become weights, and whether the weights of the chosen experts sum to one.
fn declared(keys: &Keys<'_>) -> Result<(Router, bool), ModelError> {
    let is_bias = |name: &str| name.ends_with(".exp_probs_b.bias");
    let router = match keys.optional_count(GATING)? {
        Some(1) => Router::BiasedSoftmax,
        Some(2) => Router::Sigmoid,
        // As in llama.cpp, which knows by their size the first files of GLM-4.7-Flash. Models with a softmax have no bias.
        None if keys.gguf.tensors().any(|tensor| is_bias(&tensor.name)) => Router::Sigmoid,
        None => Router::BiasedSoftmax,
        Some(other) => {
            let needs = "1, a softmax, or 2, the sigmoid, is needed".to_owned();
            return Err(keys.bad(GATING, other, needs));
        }
    };
    Ok((router, keys.flag(SUM)?.unwrap_or(false)))
}

/// Refuses weights other than the sigmoids of the scores, divided by their sum.
fn refuse_other_than_sigmoid(
    keys: &Keys<'_>,
    architecture: &Architecture,
) -> Result<(), ModelError> {
    let needs = |what: &str| format!("only {what} is supported in {} models", keys.name);
    // Files of Nemotron do not name it.
    match keys.optional_count(GATING)? {
        Some(2) => {}
        None if architecture.single_blocks => {}
        None => return Err(missing(&keys.full(GATING))),
        Some(other) => return Err(keys.bad(GATING, other, needs("2, the sigmoid,"))),
    }
    if keys.flag(SUM)? == Some(false) {
        return Err(keys.bad(SUM, false, needs("true")));
    }
    Ok(())
}

/// The groups of the experts, `all` of which there are and `used` of which a token passes through. Refuses experts that
/// read fewer numbers than the residual stream has.
fn groups(
    keys: &Keys<'_>,
    architecture: &Architecture,
    router: Router,
    [all, used]: [usize; 2],
) -> Result<Option<ExpertGroups>, ModelError> {
    const ALL: &str = "expert_group_count";
    const USED: &str = "expert_group_used_count";
    const LATENT: &str = "moe_latent_size";
    if let Some(n) = keys.whole(LATENT)?.filter(|&n| n > 0) {
        let needs = format!("only 0 is supported in {} models", keys.name);
        return Err(keys.bad(LATENT, n, needs));
    }
    let Some(groups) = keys.whole(ALL)?.filter(|&n| n > 1) else {
        return Ok(None);
    };
    let refuse = |needs: String| Err(keys.bad(ALL, groups, needs));
    if architecture.router != Router::Declared {
        return refuse(format!("only 1 is supported in {} models", keys.name));
    }
    if router != Router::Sigmoid {
        // DeepSeek-V2: transformers and llama.cpp choose other groups.
        return refuse("only 1 is supported with a softmax of the scores".to_owned());
    }
    let groups = groups as usize;
    const MOST: usize = ExpertGroups::MOST;
    if groups > MOST || !all.is_multiple_of(groups) || all / groups < 2 {
        let needs =
            format!("groups of at least 2 of the {all} experts, at most {MOST}, are needed");
        return refuse(needs);
    }
    let chosen = keys.count(USED)?;
    if chosen > groups || chosen * (all / groups) < used {
        let needs = format!("groups with {used} experts, out of {groups}, are needed");
        return Err(keys.bad(USED, chosen, needs));
    }
    let groups = ExpertGroups {
        all: groups,
        used: chosen,
    };
    Ok(Some(groups).filter(|groups| groups.used < groups.all))
}

/// The factor on the weights of experts; as in llama.cpp, 0 is none.
fn weights_scale(keys: &Keys<'_>) -> Result<f32, ModelError> {
    let scale = keys.non_negative("expert_weights_scale")?;
    Ok(scale.filter(|&scale| scale > 0.0).unwrap_or(1.0) as f32)
}

/// How many first layers have a dense feed-forward instead of experts.
pub(super) fn dense_first(
    keys: &Keys<'_>,
    architecture: &Architecture,
) -> Result<usize, ModelError> {
    match architecture.dense_first {
        true => Ok(keys.whole("leading_dense_block_count")?.unwrap_or(0) as usize),
        false => Ok(0),
    }
}

/// `[layers]`: widths of the feed-forward; without a dense one, of an expert; without any, 0.
pub(super) fn widths(
    keys: &Keys<'_>,
    architecture: &Architecture,
    experts: Option<ExpertCounts>,
    blocks: &[Blocks],
    dense_first: usize,
) -> Result<Vec<usize>, ModelError> {
    let layers = blocks.len();
    const DENSE: &str = "feed_forward_length";
    let counts = experts.filter(|_| !architecture.dense_and_experts);
    let first = match counts {
        Some(_) => dense_first.min(layers),
        None if architecture.window_heads => return keys.counts(DENSE, layers),
        None => layers,
    };
    let mut widths = vec![counts.map_or(0, |counts| counts.ffn); layers];
    if first > 0 {
        widths[..first].fill(keys.uniform_count(DENSE)?);
    }
    for (width, block) in widths.iter_mut().zip(blocks) {
        if block.feed_forward.is_none() {
            *width = 0;
        }
    }
    Ok(widths)
}
