//! `kept select`: a method's selection on given tensors, for holding Kept against other implementations.

use anyhow::{Context, ensure};
use kept_engine::kernels::{HeadShape, Normalise, RowStore, Stop, WindowScores, window_scores};
use kept_engine::observe::{LastQueries, LogSumExp, QueryMoments};
use kept_engine::policies::{
    self, BelowAverage, Budget, MergedHead, ModelShape, Observation, Parameters, Pos, PromptShape,
    Ramp, Retention, Softmax,
};
use safetensors::{Dtype, SafeTensors};
use serde::Serialize;

use crate::arguments::SelectArguments;
use crate::output;

/// No model has more.
const MOST_LAYERS: usize = 10_000;

#[derive(Serialize)]
struct SelectJson {
    /// Per kv head: positions of the rows.
    kept: Vec<Vec<u32>>,
    /// Tokens that share a row, as `[position, position of the class's centre]`, head after head.
    merged: Vec<[u32; 2]>,
    /// The same per kv head.
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

/// A tensor `[heads, n, d]` as given.
struct HeadMajor {
    data: Vec<f32>,
    heads: usize,
    n: usize,
    d: usize,
}

impl HeadMajor {
    fn read(file: &SafeTensors<'_>, name: &str) -> anyhow::Result<Self> {
        let tensor = file
            .tensor(name)
            .ok()
            .with_context(|| format!("the input has no tensor '{name}'; it needs q, k and v"))?;
        ensure!(
            tensor.dtype() == Dtype::F32,
            "tensor '{name}' is {:?}; write it as F32",
            tensor.dtype()
        );
        let &[heads, n, d] = tensor.shape() else {
            anyhow::bail!(
                "tensor '{name}' has the shape {:?}; it needs [heads, n, d]",
                tensor.shape()
            );
        };
        let data = tensor
            .data()
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect::<Vec<f32>>();
        ensure!(
            data.iter().all(|x| x.is_finite()),
            "tensor '{name}' holds values that are no numbers (NaN or infinite)"
        );
        Ok(Self { data, heads, n, d })
    }

    fn row(&self, head: usize, row: usize) -> &[f32] {
        &self.data[(head * self.n + row) * self.d..][..self.d]
    }
}

pub fn run(arguments: &SelectArguments) -> anyhow::Result<()> {
    let values = Parameters::parse_assignments(&arguments.set)?;
    let mut policy = policies::build(&arguments.method, &values)?;
    let budget: Budget = arguments.budget.parse()?;
    ensure!(
        arguments.layers <= MOST_LAYERS,
        "--layers {} is more than any model has; give at most {MOST_LAYERS}",
        arguments.layers
    );
    ensure!(
        arguments.layer < arguments.layers,
        "--layer {} is not below --layers {}; layers count from 0",
        arguments.layer,
        arguments.layers
    );
    let shown = arguments.input.display();
    let bytes = output::read_file(&arguments.input)?;
    let file = SafeTensors::deserialize(&bytes)
        .ok()
        .with_context(|| format!("'{shown}' is not a safetensors file, or is cut short"))?;
    let (q, k, v) = (
        HeadMajor::read(&file, "q")?,
        HeadMajor::read(&file, "k")?,
        HeadMajor::read(&file, "v")?,
    );
    ensure!(
        (k.heads, k.n, k.d) == (v.heads, v.n, v.d) && (q.n, q.d) == (k.n, k.d),
        "q [{}, {}, {}], k [{}, {}, {}] and v [{}, {}, {}] do not belong together; n and d must be equal, and k's heads v's",
        q.heads,
        q.n,
        q.d,
        k.heads,
        k.n,
        k.d,
        v.heads,
        v.n,
        v.d
    );
    ensure!(
        k.n > 0 && k.d > 0 && k.heads > 0 && q.heads > 0 && q.heads % k.heads == 0,
        "{} query heads cannot share {} kv heads of {} tokens; query heads must be a multiple of kv heads, and nothing empty",
        q.heads,
        k.heads,
        k.n
    );
    let shape = ModelShape {
        layers: arguments.layers,
        q_heads: q.heads,
        kv_heads: k.heads,
        head_dim: k.d,
    };
    let row_bytes = (shape.layers * shape.kv_heads * shape.head_dim * 2 * 4) as u64;
    let rows = policy.rows(
        &shape,
        &PromptShape {
            tokens: k.n,
            tail: 0,
            room: 0,
        },
        budget.rows(k.n, row_bytes)?,
    )?;
    let mut kept = Retention::Everything;
    // Methods that share indices between layers see the same tensors in every layer up to the one asked for.
    for (layer, &layer_rows) in rows.iter().enumerate().take(arguments.layer + 1) {
        kept = select(&mut *policy, &shape, layer, layer_rows, [&q, &k, &v])?;
    }
    output::print_json(&SelectJson::new(&kept, k.n, k.heads))
}

fn select(
    policy: &mut dyn policies::Policy,
    shape: &ModelShape,
    layer: usize,
    rows: usize,
    [q, k, v]: [&HeadMajor; 3],
) -> anyhow::Result<Retention> {
    let n = k.n;
    let needs = policy.needs(layer);
    let observed = needs.uncut || n > rows;
    let window = needs.window.filter(|_| observed);
    let sums = needs.column_sums && observed;
    let mut keys = RowStore::uniform(shape.kv_heads, n, shape.head_dim);
    for head in 0..shape.kv_heads {
        for row in 0..n {
            keys.row_mut(head, row).copy_from_slice(k.row(head, row));
        }
    }
    let queries: Vec<f32> = (0..n)
        .flat_map(|row| (0..shape.q_heads).flat_map(move |head| q.row(head, row)))
        .copied()
        .collect();
    let last = LastQueries {
        shape: HeadShape {
            q_heads: shape.q_heads,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
        },
        scale: (1.0 / (shape.head_dim as f32).sqrt()).into(),
        queries: &queries,
        keys: &keys,
        tokens: n,
    };
    let mut scores = vec![0.0; shape.q_heads * n];
    if let Some(window) = window {
        let task = WindowScores {
            shape: last.shape,
            scale: last.scale,
            queries: last.last(window.rows.min(n)),
            keys: &keys,
            tokens: n,
            normalise: match window.softmax {
                Softmax::All => Normalise::All,
                Softmax::Prefix => Normalise::Prefix,
            },
            row_weights: None,
        };
        window_scores(&task, &mut scores, &Stop::new()).context("stopped")?;
    }
    let mut column_sums = vec![0.0; if sums { shape.q_heads * n } else { 0 }];
    if sums {
        let mut known = vec![0.0; shape.q_heads * n];
        let known = LogSumExp::Unknown(&mut known);
        last.add_column_sums(known, &mut column_sums, &Stop::new())
            .context("stopped")?;
    }
    let (mut ramp, mut bits) = (Vec::new(), Vec::new());
    let mut moments = QueryMoments::default();
    if let Some(asked) = needs.ramp.filter(|_| observed) {
        let rows = asked.rows.min(n);
        last.ramp(Ramp { rows, ..asked }, &mut ramp, &Stop::new())
            .context("stopped")?;
    }
    let below = needs.below.filter(|_| observed).map(|rows| rows.min(n));
    if let Some(rows) = below {
        last.below(rows, &mut bits, &Stop::new())
            .context("stopped")?;
    }
    // The tensors are used as given: there is no RoPE here that could turn the expected queries.
    let mut future = None;
    if let Some(asked) = needs.future.filter(|_| observed) {
        moments.start(last.shape, asked);
        moments.add(last.last(n - asked.skip.min(n)));
        future = moments.finish(None);
    }
    Ok(policy.select(
        &Observation {
            layer,
            tokens: n,
            kv_heads: shape.kv_heads,
            group: shape.group(),
            window: window.map(|_| scores.as_slice()),
            column_sums: sums.then_some(column_sums.as_slice()),
            ramp: (!ramp.is_empty()).then_some(ramp.as_slice()),
            below: below.map(|rows| BelowAverage { rows, bits: &bits }),
            future,
            keys: needs.rows.then_some(k.data.as_slice()),
            values: needs.rows.then_some(v.data.as_slice()),
        },
        rows,
    ))
}
