//! The buffers of a [`LayerPass`](super::LayerPass), and the blocks in which it computes.

use kept_kernels::mapped::MappedMatrix;
use kept_kernels::{QuantisedRows, RecurrentShape};

use crate::Config;
use crate::arithmetic::moe_scratch_width;
use crate::experts::ExpertScratch;
use crate::latent::LatentScratch;
use crate::layer::Layer;
use crate::per_layer::PerLayerScratch;
use crate::recurrent::RecurrentScratch;

/// Scratch buffers of a [`LayerPass`](super::LayerPass).
pub struct LayerScratch {
    /// `[rows, width]`: the residual stream after the norm; then the output of a projection.
    pub(crate) normed: Vec<f32>,
    /// `[rows, columns]`: gate, then `activation(gate) * up`.
    pub(super) hidden: Vec<f32>,
    /// `[rows, columns]`
    pub(super) up: Vec<f32>,
    /// `[rows, widest]`: quantised inputs of a projection.
    pub(crate) rounded: QuantisedRows,
    /// `[rows, ffn]`: quantised inputs of the down projection, if the feed-forward is done in slices.
    pub(super) rounded_hidden: QuantisedRows,
    /// If the model has experts.
    pub(super) experts: Option<ExpertScratch>,
    /// `[3, rows, width]`: what the router sees, and the outputs of a dense feed-forward and of the experts beside it;
    /// otherwise empty.
    pub(super) moe_scratch: Vec<f32>,
    /// If layers add embeddings.
    pub(super) per_layer: Option<PerLayerScratch>,
    /// If the layer is recurrent.
    pub(super) recurrent: Option<RecurrentScratch>,
    /// If attention is latent.
    pub(super) latent: Option<LatentScratch>,
    /// `[block rows, 2 * q_width]`: queries and gates as projected; then the gated attention. Empty without gates.
    pub(super) q_and_gates: Vec<f32>,
    /// `[rows, q_width]`: gates of the rows projected last. Empty without gates.
    pub(super) gates: Vec<f32>,
    /// How many rows were projected last.
    pub(super) projected: usize,
}

impl LayerScratch {
    /// For blocks of at most `block`, in calls of at most `max_rows` rows.
    pub(super) fn new(
        config: &Config,
        block: Block,
        max_rows: usize,
        recurrent: Option<RecurrentShape>,
    ) -> Self {
        let (rows, [inputs, hidden]) = (block.rows, block.rounded(config));
        Self {
            normed: vec![0.0; rows * config.width],
            hidden: vec![0.0; rows * block.columns],
            up: vec![0.0; rows * block.columns],
            rounded: QuantisedRows::new(inputs),
            rounded_hidden: QuantisedRows::new(hidden),
            experts: (config.experts).map(|counts| ExpertScratch::new(config, counts, rows)),
            moe_scratch: vec![0.0; rows * 3 * moe_scratch_width(config)],
            per_layer: (config.per_layer).map(|n| PerLayerScratch::new(config, n, rows)),
            recurrent: recurrent.map(|shape| RecurrentScratch::new(config, shape, rows)),
            latent: (config.latent).map(|shape| LatentScratch::new(config, shape, rows)),
            q_and_gates: vec![0.0; rows * 2 * config.gate_width()],
            gates: vec![0.0; max_rows * config.gate_width()],
            projected: 0,
        }
    }

    /// For one row, in any layer of a model.
    pub(crate) fn for_a_row(config: &Config) -> Self {
        Self::new(config, Block::of_a_row(config.ffn), 1, config.recurrent)
    }

    /// Memory in bytes for one row.
    pub(crate) fn row_bytes(config: &Config) -> u64 {
        let gates = config.gate_width() * size_of::<f32>();
        Block::of_a_row(config.ffn).bytes(config) + gates as u64
    }
}

/// The part of a layer that is computed at once.
///
/// ```text
/// rows        columns 0 | columns 1 | columns 2         of the feed-forward: gate, up, activation, quantisation;
///                                                       then down, over all columns
/// ```
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// All columns of the feed-forward; 0 without a dense one.
    pub(super) ffn: usize,
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

    pub(super) fn new(layer: &Layer, max_rows: usize) -> Self {
        let most = match layer.ffn.experts() {
            Some(_) => Self::EXPERT_ROWS,
            None => Self::ROWS,
        };
        let dense = layer.ffn.dense();
        let ffn = dense.map_or(0, |dense| dense.up.rows());
        if max_rows <= 1 {
            return Self::of_a_row(ffn);
        }
        let in_place = dense.is_none_or(|dense| dense.matrices().all(MappedMatrix::is_quantised));
        let (rows, columns) = match in_place {
            true => (most, Self::COLUMNS),
            false => (Self::FEW_ROWS, ffn),
        };
        Self {
            rows: max_rows.min(rows),
            columns: columns.min(ffn),
            ffn,
        }
    }

    /// One row, with a feed-forward of `ffn` columns: slices would save no memory.
    fn of_a_row(ffn: usize) -> Self {
        Self {
            rows: 1,
            columns: ffn,
            ffn,
        }
    }

    /// Whether the feed-forward is computed in slices of columns.
    pub(super) fn slices(&self) -> bool {
        self.columns < self.ffn
    }

    /// Elements in the buffers of quantised inputs: of all projections, and of the down projection if it is separate.
    fn rounded(&self, config: &Config) -> [usize; 2] {
        if self.slices() {
            [config.widest_attention_input(), self.ffn].map(|width| self.rows * width)
        } else {
            [self.rows * config.widest_input(), 0]
        }
    }

    pub(super) fn bytes(&self, config: &Config) -> u64 {
        let widths = config.width + 2 * self.columns + 2 * config.gate_width();
        let elements = self.rows * (widths + 3 * moe_scratch_width(config));
        let rounded = self.rounded(config).map(QuantisedRows::bytes_for);
        let experts = config
            .experts
            .map_or(0, |counts| ExpertScratch::bytes(config, counts, self.rows));
        let recurrent =
            (config.recurrent).map_or(0, |shape| RecurrentScratch::bytes(config, shape, self.rows));
        let per_layer =
            (config.per_layer).map_or(0, |n| PerLayerScratch::bytes(config, n, self.rows));
        let latent =
            (config.latent).map_or(0, |shape| LatentScratch::bytes(config, shape, self.rows));
        let rounded = rounded.iter().sum::<u64>();
        (elements * size_of::<f32>()) as u64 + rounded + experts + recurrent + per_layer + latent
    }
}
