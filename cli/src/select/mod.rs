//! `kept select`: a method's selection on given tensors, for comparisons with other implementations.

mod seen;
mod tensors;

use anyhow::ensure;
use kept_engine::MethodSpec;
use kept_engine::policies::{
    Budget, MergedHead, Needs, Parameters, Pos, Retention, RowPlan, RowRequest, Select,
};
use serde::Serialize;

use crate::arguments::SelectArguments;
use crate::output;
use seen::Seen;
use tensors::Tensors;

/// More layers than any model has.
const MAX_LAYERS: usize = 10_000;

#[derive(Serialize)]
struct SelectJson {
    /// Positions of the kept rows, per KV head.
    kept: Vec<Vec<u32>>,
    /// Merged tokens, as `[position, position of the class's centre]`, for all heads one after the other.
    merged: Vec<[u32; 2]>,
    /// The same, per KV head.
    merged_per_head: Vec<Vec<[u32; 2]>>,
}

impl SelectJson {
    fn new(retention: &Retention, tokens: usize, kv_heads: usize) -> Self {
        let plain = |positions: &Vec<Pos>| positions.iter().map(|p| p.0).collect();
        let kept = match retention {
            Retention::Everything => vec![(0..tokens as u32).collect(); kv_heads],
            Retention::Keep(heads) => heads.iter().map(plain).collect(),
            Retention::Merge(heads) => heads.iter().map(|h| plain(&h.centres)).collect(),
        };
        let merged_per_head: Vec<Vec<[u32; 2]>> = match retention {
            Retention::Merge(heads) => heads.iter().map(MergedHead::merged).collect(),
            _ => vec![Vec::new(); kv_heads],
        };
        Self {
            kept,
            merged: merged_per_head.concat(),
            merged_per_head,
        }
    }
}

pub fn run(arguments: &SelectArguments) -> anyhow::Result<()> {
    let mut spec: MethodSpec = arguments.method.parse()?;
    spec.set_further(&Parameters::parse_assignments(&arguments.set)?);
    let method = spec.build()?;
    let budget: Budget = arguments.budget.parse()?;
    ensure!(
        arguments.layers <= MAX_LAYERS,
        "--layers {} is more than any model has; give at most {MAX_LAYERS}",
        arguments.layers
    );
    ensure!(
        arguments.layer < arguments.layers,
        "--layer {} is not below --layers {}; layers count from 0",
        arguments.layer,
        arguments.layers
    );
    let bytes = output::read_file(&arguments.input)?;
    let tensors = Tensors::read(&bytes, &arguments.input.display().to_string())?;
    let (n, kv_heads) = (tensors.k.n, tensors.k.heads);
    let shape = tensors.shape(arguments.layers);
    let row_bytes = (shape.layers * shape.kv_heads * shape.head_dim * 2 * 4) as u64;
    let plan = method.plan(&RowRequest {
        model: shape,
        prompt: tensors.prompt(),
        budget: budget.rows(n, row_bytes)?,
    })?;
    let select = &mut *method.start(&plan);
    let kept = match plan.layer_input_tokens {
        Some(_) => retention_with_dropping(select, &plan, &tensors, arguments.layer)?,
        None => retention(select, plan, &tensors, arguments.layer)?,
    };
    output::print_json(&SelectJson::new(&kept, n, kv_heads))
}

/// The retention of `layer`. A method that shares indices or rows between layers observes the same tensors in every
/// layer.
fn retention(
    select: &mut dyn Select,
    mut plan: RowPlan,
    tensors: &Tensors,
    layer: usize,
) -> anyhow::Result<Retention> {
    let (n, given) = (tensors.k.n, &tensors.rows());
    if plan.score_pass {
        let seen = Seen::new(tensors, &plan.needs[0])?;
        for layer in 0..plan.rows.len() {
            select.score_pass(&plan, &seen.observation(tensors, given, layer));
        }
        plan = select.allocate_budget(&plan);
    }
    let mut kept = Retention::Everything;
    for layer in 0..=layer {
        let needs = plan.needs[layer];
        let needs = if needs.even_if_all_kept || n > plan.rows[layer] {
            needs
        } else {
            Needs::default()
        };
        let seen = Seen::new(tensors, &needs)?;
        let observation = seen.observation(tensors, given, layer);
        kept = select.select(&plan, &observation).retention;
    }
    Ok(kept)
}

/// The tokens that enter `layer` and are stored in its cache, for a method that drops tokens from the computation.
/// Every layer observes the same tensors, reduced to the remaining tokens.
fn retention_with_dropping(
    select: &mut dyn Select,
    plan: &RowPlan,
    tensors: &Tensors,
    layer: usize,
) -> anyhow::Result<Retention> {
    let mut alive: Vec<u32> = (0..tensors.k.n as u32).collect();
    for layer in 0..layer {
        let left = tensors.take_tokens(&alive);
        let seen = Seen::new(&left, &plan.needs[layer])?;
        let given = &left.rows();
        let observation = seen.observation(&left, given, layer);
        let selection = select.select(plan, &observation);
        if let Some(passed) = selection.surviving_tokens {
            alive = passed.iter().map(|&row| alive[row as usize]).collect();
        }
    }
    let alive: Vec<Pos> = alive.into_iter().map(Pos).collect();
    Ok(Retention::Keep(vec![alive; tensors.k.heads]))
}
