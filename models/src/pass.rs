//! [`LayerPass`]: many rows through one layer, as described in `decoder.rs`.

use kept_kernels::mapped::{MappedMatrix, Product, multiply_rows_together, multiply_together};
use kept_kernels::{DeltaState, QuantisedRows, Stop, Stopped, sigmoid_mul};

use crate::Config;
use crate::decoder::{activate, normalise, product, widest};
use crate::delta::{DeltaCopies, DeltaScratch, DeltaTask};
use crate::experts::ExpertScratch;
use crate::model::{Attention, Dense, FeedForward, Layer, Mixer, Model};
use crate::weights::Floats;

/// One layer prepared for many rows.
pub struct LayerPass<'a> {
    config: &'a Config,
    layer: &'a Layer,
    floats: Copies<'a>,
    /// Rows per block, and columns per block of the feed-forward.
    block: Block,
    /// `[rows, width]`: the residual stream after the norm; then the output of a projection.
    normed: Vec<f32>,
    /// `[rows, columns]`: gate, then `activation(gate) * up`.
    hidden: Vec<f32>,
    /// `[rows, columns]`
    up: Vec<f32>,
    /// `[rows, widest]`: quantised inputs of a projection.
    rounded: QuantisedRows,
    /// `[rows, ffn]`: quantised inputs of the down projection, if the feed-forward is done in slices.
    rounded_hidden: QuantisedRows,
    /// If the layer has experts.
    experts: Option<ExpertScratch>,
    /// If the layer is recurrent.
    delta: Option<DeltaScratch>,
    /// `[block rows, 2 * q_width]`: queries and gates as projected; then the gated attention. Empty without gates.
    both: Vec<f32>,
    /// `[rows, q_width]`: gates of the rows projected last. Empty without gates.
    gates: Vec<f32>,
    /// How many rows were projected last.
    projected: usize,
}

/// The part of a layer that is computed at once.
///
/// ```text
/// rows        columns 0 | columns 1 | columns 2         of the feed-forward: gate, up, activation, quantisation;
///                                                       then down, over all columns
/// ```
#[derive(Debug, Clone, Copy)]
struct Block {
    rows: usize,
    columns: usize,
}

impl Block {
    /// Rows per block if the whole feed-forward is quantised. Weights are read and decoded once per block.
    const ROWS: usize = 512;
    /// Columns per block in that case: as many rows of the matrices as keep every thread busy for some milliseconds.
    const COLUMNS: usize = 1024;
    /// Rows per block otherwise, where the hidden layer is held in memory as f32.
    const FEW_ROWS: usize = 192;

    /// Rows per block of a mixture of experts: each expert's weights are read once for the rows of a block that chose
    /// it, a small part of them.
    const EXPERT_ROWS: usize = 2048;

    fn new(config: &Config, layer: &Layer, max_rows: usize) -> Self {
        let (rows, columns) = match &layer.ffn {
            FeedForward::Experts(_) => (Self::EXPERT_ROWS, 0),
            FeedForward::Dense(Dense { gate, up, down })
                if [gate, up, down].iter().all(|matrix| matrix.is_quantised()) =>
            {
                (Self::ROWS, Self::COLUMNS)
            }
            FeedForward::Dense(_) => (Self::FEW_ROWS, config.ffn),
        };
        Self {
            rows: max_rows.clamp(1, rows),
            columns: columns.min(config.ffn),
        }
    }

    /// Whether the feed-forward is computed in slices of columns.
    fn slices(&self, config: &Config) -> bool {
        self.columns < config.ffn
    }

    /// Elements in the buffers of quantised inputs: of all projections, and of the down projection if it is separate.
    fn rounded(&self, config: &Config) -> [usize; 2] {
        if self.columns < config.ffn {
            [config.width.max(config.q_width()), config.ffn].map(|width| self.rows * width)
        } else {
            [self.rows * widest(config), 0]
        }
    }

    fn bytes(&self, config: &Config) -> u64 {
        let numbers = self.rows * (config.width + 2 * self.columns + 2 * config.gate_width());
        let rounded = self.rounded(config).map(QuantisedRows::bytes_for);
        let experts = config
            .experts
            .map_or(0, |counts| ExpertScratch::bytes(config, counts, self.rows));
        let delta = (config.delta).map_or(0, |shape| DeltaScratch::bytes(config, shape, self.rows));
        (numbers * size_of::<f32>()) as u64 + rounded.iter().sum::<u64>() + experts + delta
    }
}

/// The matrices of a layer; used for those that are not quantised.
struct Copies<'a> {
    mixer: MixerCopies<'a>,
    ffn: FeedForwardCopies<'a>,
}

enum MixerCopies<'a> {
    Attention {
        q: Floats<'a>,
        k: Floats<'a>,
        v: Floats<'a>,
        o: Floats<'a>,
    },
    Recurrent(DeltaCopies<'a>),
}

enum FeedForwardCopies<'a> {
    Dense {
        gate: Floats<'a>,
        up: Floats<'a>,
        down: Floats<'a>,
    },
    /// Experts are multiplied in place.
    Experts { router: Floats<'a> },
}

impl<'a> Copies<'a> {
    /// Of queries, keys, values and the output.
    ///
    /// # Panics
    /// If the layer is recurrent.
    fn attention(&self) -> [&Floats<'a>; 4] {
        match &self.mixer {
            MixerCopies::Attention { q, k, v, o } => [q, k, v, o],
            MixerCopies::Recurrent(_) => panic!("a recurrent layer has no attention"),
        }
    }
}

/// `out = inputs * matrix^T` for matrices with the same inputs; quantised matrices are multiplied together. `floats`
/// are the same matrices.
fn multiply<const N: usize>(
    inputs: &[f32],
    rounded: &mut QuantisedRows,
    products: [Product<'_>; N],
    floats: [&Floats<'_>; N],
    stop: &Stop,
) -> Result<(), Stopped> {
    if products.iter().all(|p| p.matrix.is_quantised()) {
        rounded.fill(inputs, products[0].matrix.cols());
        return multiply_together(products, rounded, stop);
    }
    for (product, floats) in products.into_iter().zip(floats) {
        if product.matrix.is_quantised() {
            rounded.fill(inputs, product.matrix.cols());
            multiply_together([product], rounded, stop)?;
        } else {
            assert!(!product.add, "only quantised matrices add");
            floats.multiply(inputs, product.out, stop)?;
        }
    }
    Ok(())
}

impl<'a> LayerPass<'a> {
    /// How many times the weights are read from the file for `rows` rows.
    pub fn weight_passes(model: &Model, rows: usize) -> usize {
        let layers = model.layers.iter();
        let block = layers.map(|layer| Block::new(&model.config, layer, rows).rows);
        rows.div_ceil(block.min().unwrap_or(1))
    }

    /// `copy` prepares the matrices that are not quantised.
    pub(crate) fn new(
        model: &'a Model,
        layer: usize,
        max_rows: usize,
        copy: impl Fn(&'a MappedMatrix) -> Floats<'a>,
    ) -> LayerPass<'a> {
        let (config, layer) = (&model.config, &model.layers[layer]);
        let block = Block::new(config, layer, max_rows);
        let (rows, [inputs, hidden]) = (block.rows, block.rounded(config));
        LayerPass {
            config,
            layer,
            floats: Copies {
                mixer: match &layer.mixer {
                    Mixer::Attention(Attention { q, k, v, o, .. }) => MixerCopies::Attention {
                        q: copy(q),
                        k: copy(k),
                        v: copy(v),
                        o: copy(o),
                    },
                    Mixer::Recurrent(delta) => MixerCopies::Recurrent(delta.copies(&copy)),
                },
                ffn: match &layer.ffn {
                    FeedForward::Dense(Dense { gate, up, down }) => FeedForwardCopies::Dense {
                        gate: copy(gate),
                        up: copy(up),
                        down: copy(down),
                    },
                    FeedForward::Experts(experts) => FeedForwardCopies::Experts {
                        router: copy(&experts.router),
                    },
                },
            },
            block,
            normed: vec![0.0; rows * config.width],
            hidden: vec![0.0; rows * block.columns],
            up: vec![0.0; rows * block.columns],
            rounded: QuantisedRows::new(inputs),
            rounded_hidden: QuantisedRows::new(hidden),
            experts: (config.experts).map(|counts| ExpertScratch::new(config, counts, rows)),
            delta: (config.delta)
                .filter(|_| matches!(layer.mixer, Mixer::Recurrent(_)))
                .map(|shape| DeltaScratch::new(config, shape, rows)),
            both: vec![0.0; rows * 2 * config.gate_width()],
            gates: vec![0.0; max_rows * config.gate_width()],
            projected: 0,
        }
    }

    /// Scratch memory in bytes, without copies of weights.
    pub fn bytes(&self) -> u64 {
        self.block.bytes(self.config) + self.gates.len() as u64 * size_of::<f32>() as u64
    }

    /// The maximum over layers of [`LayerPass::bytes`] for `max_rows` rows, without creating a pass.
    pub fn bytes_for(model: &Model, max_rows: usize) -> u64 {
        let layers = model.layers.iter();
        let bytes = layers.map(|layer| Block::new(&model.config, layer, max_rows));
        let bytes = bytes.map(|block| block.bytes(&model.config));
        let gates = max_rows * model.config.gate_width() * size_of::<f32>();
        bytes.max().unwrap_or(0) + gates as u64
    }

    /// First half of the layer: projects `residual [rows, width]` to `q [rows, q_heads, head_dim]`, `k` and `v`
    /// `[rows, kv_heads, head_dim]`, all before RoPE.
    ///
    /// # Errors
    /// [`Stopped`], within 100 ms of the request; the outputs are then partly written.
    ///
    /// # Panics
    /// If a length is wrong.
    pub fn project(
        &mut self,
        residual: &[f32],
        q: &mut [f32],
        k: &mut [f32],
        v: &mut [f32],
        stop: &Stop,
    ) -> Result<(), Stopped> {
        let (width, q_width, kv_width) = (
            self.config.width,
            self.config.q_width(),
            self.config.kv_width(),
        );
        let rows = residual.len() / width;
        assert_eq!(residual.len(), rows * width, "residual is [rows, width]");
        assert_eq!(q.len(), rows * q_width, "q is [rows, q_heads, head_dim]");
        assert_eq!(k.len(), rows * kv_width, "k is [rows, kv_heads, head_dim]");
        assert_eq!(v.len(), rows * kv_width, "v is [rows, kv_heads, head_dim]");
        let layer = self.layer;
        let (attention, [of_q, of_k, of_v, _]) = (layer.attention(), self.floats.attention());
        self.projected = rows;
        for first in (0..rows).step_by(self.block.rows) {
            let last = rows.min(first + self.block.rows);
            let residual = &residual[first * width..last * width];
            let normed = &mut self.normed[..residual.len()];
            normalise(self.config, &layer.attention_norm, residual, normed);
            let q = &mut q[first * q_width..last * q_width];
            let k = &mut k[first * kv_width..last * kv_width];
            let v = &mut v[first * kv_width..last * kv_width];
            let gated = !self.both.is_empty();
            let both = &mut self.both[..if gated { 2 * q.len() } else { 0 }];
            multiply(
                normed,
                &mut self.rounded,
                [
                    product(&attention.q, if gated { &mut *both } else { &mut *q }),
                    product(&attention.k, k),
                    product(&attention.v, v),
                ],
                [of_q, of_k, of_v],
                stop,
            )?;
            if gated {
                let gates = &mut self.gates[first * q_width..last * q_width];
                Attention::split_gates(self.config, both, q, gates);
            }
            attention.apply_bias_and_norms(self.config, q, k, v);
        }
        Ok(())
    }

    /// Second half of the layer: projects `attention [rows, q_heads, head_dim]` of the last rows that were projected,
    /// adds it to `residual [rows, width]`, then adds the feed-forward.
    ///
    /// # Errors
    /// [`Stopped`], within 100 ms of the request; the residual is then partly written.
    ///
    /// # Panics
    /// If a length is wrong.
    pub fn finish(
        &mut self,
        attention: &[f32],
        residual: &mut [f32],
        stop: &Stop,
    ) -> Result<(), Stopped> {
        let (width, q_width) = (self.config.width, self.config.q_width());
        let rows = residual.len() / width;
        assert_eq!(residual.len(), rows * width, "residual is [rows, width]");
        assert_eq!(
            attention.len(),
            rows * q_width,
            "attention is [rows, q_heads, head_dim]"
        );
        let skipped = self.projected - rows;
        for first in (0..rows).step_by(self.block.rows) {
            let last = rows.min(first + self.block.rows);
            let attention = &attention[first * q_width..last * q_width];
            let residual = &mut residual[first * width..last * width];
            self.finish_block(attention, skipped + first, residual, stop)?;
        }
        Ok(())
    }

    /// A recurrent layer: runs `residual [rows, width]` through it, in order, and updates `state`.
    ///
    /// # Errors
    /// [`Stopped`], within 100 ms of the request; residual and state are then partly written.
    ///
    /// # Panics
    /// If a length is wrong or the layer is not recurrent.
    pub fn recur(
        &mut self,
        residual: &mut [f32],
        state: &mut DeltaState,
        stop: &Stop,
    ) -> Result<(), Stopped> {
        let width = self.config.width;
        for residual in residual.chunks_mut(self.block.rows * width) {
            let (Mixer::Recurrent(delta), MixerCopies::Recurrent(copies), Some(shape)) =
                (&self.layer.mixer, &self.floats.mixer, self.config.delta)
            else {
                panic!("the layer is not recurrent");
            };
            let normed = &mut self.normed[..residual.len()];
            normalise(self.config, &self.layer.attention_norm, residual, normed);
            let task = DeltaTask {
                config: self.config,
                shape,
                copies,
                normed,
            };
            let scratch = self.delta.as_mut().expect("the layer is recurrent");
            delta.add(&task, residual, state, scratch, stop)?;
            self.feed_forward(residual, stop)?;
        }
        Ok(())
    }

    /// [`Self::finish`] for at most one block of rows, the first of which is row `row` of those projected.
    fn finish_block(
        &mut self,
        attention: &[f32],
        row: usize,
        residual: &mut [f32],
        stop: &Stop,
    ) -> Result<(), Stopped> {
        let (layer, config) = (self.layer, self.config);
        let (own, [.., of_o]) = (layer.attention(), self.floats.attention());
        let rounded = &mut self.rounded;
        let attention = if self.gates.is_empty() {
            attention
        } else {
            let gated = &mut self.both[..attention.len()];
            gated.copy_from_slice(attention);
            let first = row * config.q_width();
            sigmoid_mul(gated, &self.gates[first..first + attention.len()]);
            &*gated
        };
        if layer.adds_attention(config, own) {
            let product = Product {
                matrix: &own.o,
                out: &mut *residual,
                add: true,
            };
            multiply(attention, rounded, [product], [of_o], stop)?;
        } else {
            let added = &mut self.normed[..residual.len()];
            multiply(attention, rounded, [product(&own.o, added)], [of_o], stop)?;
            layer.add_attention(config, own, added, residual);
        }
        self.feed_forward(residual, stop)
    }

    /// Adds the feed-forward of `residual`, at most one block of rows, to it.
    fn feed_forward(&mut self, residual: &mut [f32], stop: &Stop) -> Result<(), Stopped> {
        let m = residual.len() / self.config.width;
        let Self {
            config,
            layer,
            floats,
            normed,
            hidden,
            up,
            rounded,
            rounded_hidden,
            experts,
            block,
            ..
        } = self;
        let normed = &mut normed[..residual.len()];
        normalise(config, &layer.ffn_norm, residual, normed);
        let (ffn, gates, ups, downs) = match (&layer.ffn, &floats.ffn) {
            (FeedForward::Dense(ffn), FeedForwardCopies::Dense { gate, up, down }) => {
                (ffn, gate, up, down)
            }
            (FeedForward::Experts(ffn), FeedForwardCopies::Experts { router }) => {
                let scratch = experts.as_mut().expect("the layer has experts");
                return ffn.add(config, router, normed, residual, scratch, stop);
            }
            _ => unreachable!("copies of the same layer"),
        };
        if block.slices(config) {
            rounded.fill(normed, config.width);
            for first in (0..config.ffn).step_by(block.columns) {
                let columns = first..config.ffn.min(first + block.columns);
                let numbers = m * columns.len();
                let (gate, up) = (&mut hidden[..numbers], &mut up[..numbers]);
                let both = [product(&ffn.gate, gate), product(&ffn.up, up)];
                multiply_rows_together(both, columns.clone(), rounded, stop)?;
                activate(config.activation, gate, up);
                rounded_hidden.fill_columns(gate, config.ffn, columns);
            }
        } else {
            let (hidden, up) = (&mut hidden[..m * config.ffn], &mut up[..m * config.ffn]);
            multiply(
                normed,
                rounded,
                [product(&ffn.gate, hidden), product(&ffn.up, up)],
                [gates, ups],
                stop,
            )?;
            activate(config.activation, hidden, up);
        }
        let mut down = |product: Product<'_>| {
            if block.slices(config) {
                multiply_together([product], rounded_hidden, stop)
            } else {
                let hidden = &hidden[..m * config.ffn];
                multiply(hidden, rounded, [product], [downs], stop)
            }
        };
        if layer.adds_ffn(config, ffn) {
            return down(Product {
                matrix: &ffn.down,
                out: residual,
                add: true,
            });
        }
        down(product(&ffn.down, normed))?;
        layer.add_ffn(config, normed, residual);
        Ok(())
    }
}
