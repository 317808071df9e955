//! How large everything is that reading a prompt allocates, known before it is allocated. Prefill makes its buffers by these
//! numbers and [`crate::Engine::estimate`] adds them up, so the figures before and after come from one place.

use kept_models::{Config, LayerPass, Model};
use kept_policies::{
    ClassTable, ModelShape, Needs, Policy, PolicyError, Positions, PromptShape, Ramp, Retention,
    Window,
};

use crate::MemoryLedger;
use crate::classes::Classes;
use crate::observe::QueryMoments;

/// What becomes of one layer of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LayerKeeps {
    /// What the method says: this is its layer of that number.
    Cut(usize),
    /// The last positions, as many as its window; no method knows of it.
    Window(usize),
}

/// Bytes of the keys and values that the layers with a window keep of `tokens` tokens.
pub(crate) fn window_bytes(config: &Config, tokens: usize) -> u64 {
    let rows: usize = config.windows().map(|window| window.min(tokens)).sum();
    (rows * config.kv_width() * 2 * size_of::<f32>()) as u64
}

/// Bytes of all keys and values that a model ever needs of `tokens` tokens.
pub(crate) fn full_cache_bytes(config: &Config, tokens: usize) -> u64 {
    let rows = config.full_layers().count() * tokens;
    (rows * config.kv_width() * 2 * size_of::<f32>()) as u64 + window_bytes(config, tokens)
}

/// The sizes of one reading. Layers are those of the method, which are not all of the model's: see [`LayerKeeps`].
pub(crate) struct Sizes {
    /// Tokens of the prompt.
    pub(crate) tokens: usize,
    /// Tokens that run through a layer together.
    pub(crate) chunk: usize,
    /// Tokens that may follow.
    pub(crate) room: usize,
    /// `[layers of the model]`
    pub(crate) keeps: Vec<LayerKeeps>,
    /// `[layers]`: rows per kv head that the method may keep.
    pub(crate) rows: Vec<usize>,
    /// `[layers]`: what is measured, as far as the prompt reaches; nothing where nothing is cut.
    pub(crate) needs: Vec<Needs>,
    /// `[layers]`: slots per kv head on average, room for the answer included.
    pub(crate) capacities: Vec<usize>,
    /// Slots that the largest head of any layer may need.
    pub(crate) max_capacity: usize,
    /// `[layers]`: the look-up table with its room for entries, where the method merges.
    pub(crate) tables: Vec<Option<ClassTable>>,
    /// Bytes that the method itself holds.
    pub(crate) method: u64,
    /// Where kept rows stand.
    pub(crate) positions: Positions,
    shape: ModelShape,
    width: usize,
}

impl Sizes {
    /// The sizes for a `prompt` under `policy` and a `budget`, with `room` for the answer. Calls
    /// [`Policy::rows`] and then [`Policy::needs`], as a reading begins.
    pub(crate) fn new(
        model: &Model,
        policy: &mut dyn Policy,
        prompt: PromptShape,
        budget: usize,
        room: usize,
        chunk: usize,
    ) -> Result<Self, PolicyError> {
        let shape = crate::shape::shape_of(model);
        let tokens = prompt.tokens;
        let prompt = PromptShape { room, ..prompt };
        let rows = policy.rows(&shape, &prompt, budget)?;
        let needs = |layer: usize| -> Needs {
            let needs = policy.needs(layer);
            if !needs.uncut && tokens <= rows[layer] {
                return Needs::default();
            }
            Needs {
                window: needs.window.map(|window| Window {
                    rows: window.rows.min(tokens),
                    ..window
                }),
                ramp: needs.ramp.map(|ramp| Ramp {
                    rows: ramp.rows.min(tokens),
                    ..ramp
                }),
                below: needs.below.map(|rows| rows.min(tokens)),
                ..needs
            }
        };
        let needs = (0..shape.layers).map(needs).collect();
        let capacity = |(layer, &rows): (usize, &usize)| match policy.decode_rows(layer) {
            Some(most) => {
                (tokens.min(rows) + room).min(most.max(rows.min(tokens)).saturating_add(1))
            }
            None => tokens.min(rows) + room,
        };
        let capacities: Vec<usize> = rows.iter().enumerate().map(capacity).collect();
        let max_capacity = (rows.iter().zip(&capacities).enumerate())
            .map(|(layer, (&rows, &capacity))| {
                let more = policy.most_rows(layer, rows).saturating_sub(rows);
                capacity + more.min(tokens.saturating_sub(rows))
            })
            .max();
        let mut cut = 0..shape.layers;
        let keeps = model.config().kinds.iter().map(|kind| match kind.window {
            Some(window) => LayerKeeps::Window(window),
            None => LayerKeeps::Cut(cut.next().unwrap_or_default()),
        });
        let keeps: Vec<LayerKeeps> = keeps.collect();
        let rings = model.config().windows();
        let widest_ring = rings.map(|w| w.min(tokens + room)).max();
        let table = |layer: usize| {
            policy.table(layer).map(|table| ClassTable {
                entries: (tokens + room).min(table.entries.saturating_add(1)),
                ..table
            })
        };
        Ok(Self {
            tokens,
            tables: (0..shape.layers).map(table).collect(),
            chunk: chunk.clamp(1, tokens.max(1)),
            room,
            keeps,
            needs,
            capacities,
            max_capacity: max_capacity.max(widest_ring).unwrap_or(0),
            rows,
            method: policy.bytes(),
            positions: policy.positions(),
            shape,
            width: model.config().width,
        })
    }

    /// Floats of `[n, width]`: the residual stream.
    pub(crate) fn residual(&self) -> usize {
        self.tokens * self.width
    }

    /// Floats of `[chunk, q_heads, head_dim]`: queries, and attention's output.
    pub(crate) fn q(&self) -> usize {
        self.chunk * self.q_width()
    }

    /// Floats of `[chunk, kv_heads, head_dim]`: keys or values of a chunk.
    pub(crate) fn kv(&self) -> usize {
        self.chunk * self.shape.kv_heads * self.shape.head_dim
    }

    /// Floats of `[w, q_heads, head_dim]`: queries of the largest window.
    pub(crate) fn window_queries(&self) -> usize {
        let rows = self.needs.iter().map(Needs::query_rows);
        rows.max().unwrap_or(0) * self.q_width()
    }

    /// Floats (4 bytes) of [`Measured`](crate::observe::Measured).
    pub(crate) fn measured(&self) -> usize {
        let (n, shape) = (self.tokens, &self.shape);
        let ramp = usize::from(self.needs.iter().any(|needs| needs.ramp.is_some()));
        let below = self.needs.iter().filter_map(|needs| needs.below).max();
        let below = below.map_or(0, |rows| {
            let words = rows.div_ceil(u64::BITS as usize);
            n * shape.kv_heads * words * 2
        });
        let future = self.needs.iter().filter_map(|needs| needs.future);
        let future = future
            .map(|f| QueryMoments::floats(crate::shape::heads_of(shape), f.covariance))
            .max();
        ramp * n * shape.q_heads + below + future.unwrap_or(0)
    }

    /// Floats of `[q_heads, n]`: what a window sees.
    pub(crate) fn window_scores(&self) -> usize {
        match self.needs.iter().any(|needs| needs.window.is_some()) {
            true => self.shape.q_heads * self.tokens,
            false => 0,
        }
    }

    /// Floats of `[q_heads, n]`: what all rows see.
    pub(crate) fn column_sums(&self) -> usize {
        match self.needs.iter().any(|needs| needs.column_sums) {
            true => self.shape.q_heads * self.tokens,
            false => 0,
        }
    }

    /// Floats of `[q_heads, chunk]`: log-sum-exp of a chunk's rows, where what all rows see is asked for.
    pub(crate) fn log_sum_exp(&self) -> usize {
        match self.column_sums() {
            0 => 0,
            _ => self.shape.q_heads * self.chunk,
        }
    }

    /// `[kv_heads]`: slots of each head of `layer`, which keeps `retention`. Heads that share a layer's rows unevenly get what
    /// they keep and the same room for the answer; others the layer's capacity.
    pub(crate) fn head_capacities(&self, layer: usize, retention: &Retention) -> Vec<usize> {
        let capacity = self.capacities[layer];
        let rows = self.rows[layer].min(self.tokens);
        match retention {
            Retention::Keep(heads) if heads.iter().any(|kept| kept.len() > rows) => {
                let room = capacity - rows;
                heads.iter().map(|kept| kept.len() + room).collect()
            }
            _ => vec![capacity; self.shape.kv_heads],
        }
    }

    /// Entries that the largest look-up table has room for; 0 where nothing is merged.
    pub(crate) fn max_entries(&self) -> usize {
        let entries = self.tables.iter().flatten().map(|table| table.entries);
        entries.max().unwrap_or(0)
    }

    /// `[layers]`: rows per kv head that are kept of the prompt.
    pub(crate) fn kept(&self) -> impl Iterator<Item = usize> + '_ {
        self.rows.iter().map(|rows| self.tokens.min(*rows))
    }

    /// What is measured of a layer of the model.
    pub(crate) fn needs_of(&self, layer: usize) -> Needs {
        match self.keeps[layer] {
            LayerKeeps::Cut(layer) => self.needs[layer],
            LayerKeeps::Window(_) => Needs::default(),
        }
    }

    /// The ledger as it will stand after reading; `decode` and `rope` are not reading's.
    pub(crate) fn ledger(&self, model: &Model) -> MemoryLedger {
        let float = size_of::<f32>();
        let row = self.shape.head_dim * 2 * float;
        // Beside each row its position, and its rank where positions are re-assigned.
        let beside = match self.positions {
            Positions::Original => size_of::<u32>(),
            Positions::Reassigned => 2 * size_of::<u32>(),
        };
        let slots: usize = self.capacities.iter().sum::<usize>() * self.shape.kv_heads;
        let rings = model.config().windows();
        let ring_slots: usize = rings.map(|w| w.min(self.tokens + self.room)).sum();
        let rings = ring_slots * self.shape.kv_heads * (row + size_of::<u32>());
        let chunk = 2 * self.q()
            + 2 * self.kv()
            + self.window_queries()
            + self.window_scores()
            + self.column_sums()
            + self.log_sum_exp()
            + self.measured();
        let kv_heads = self.shape.kv_heads;
        let tables = self.tables.iter().zip(&self.capacities);
        let tables = tables.filter_map(|(table, capacity)| {
            table.map(|table| Classes::bytes_for(table, kv_heads, kv_heads * capacity))
        });
        MemoryLedger {
            tables: tables.sum::<u64>() + self.method,
            weights: model.weights_bytes(),
            layer_tiles: model.layer_tiles_bytes(),
            layer_kv: (self.tokens * self.shape.kv_heads * row) as u64,
            residual: (self.residual() * float) as u64,
            activations: (chunk * float) as u64 + LayerPass::bytes_for(model.config(), self.chunk),
            rope: 0,
            kept_rows: (slots * (row + beside) + rings) as u64,
            decode: 0,
        }
    }

    fn q_width(&self) -> usize {
        self.shape.q_heads * self.shape.head_dim
    }
}
