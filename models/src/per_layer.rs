//! Embeddings that each layer adds (Gemma 4's small models).
//!
//! ```text
//! input [per_layer] = (norm(projection[layer] * embedding(id) / sqrt(width)) + table[id][layer] * sqrt(per_layer)) / sqrt(2)
//! residual += norm(out * (activation(gate * residual) * input))
//! ```
//!
//! The table is as large as the rest of the model and only a row of it is read per token, so it is left in the file.
//! Source: `modeling_gemma4.py` of transformers.

use kept_kernels::mapped::MappedMatrix;
use kept_kernels::{QuantisedRows, Stop, Stopped, add_assign, rms_norm_in_place};

use crate::ModelError;
use crate::arithmetic::{activate, multiply};
use crate::config::Config;
use crate::gguf::Gguf;
use crate::weights::{self, Floats};

/// The tables of all layers.
pub(crate) struct PerLayerTables {
    /// `[vocab, layers * per_layer]`
    table: MappedMatrix,
    /// `[layers]` of `[per_layer, width]`
    projections: Vec<MappedMatrix>,
    /// `[per_layer]`
    norm: Vec<f32>,
}

/// The weights of one layer.
pub(crate) struct PerLayer {
    /// `[per_layer, width]`
    pub(crate) gate: MappedMatrix,
    /// `[width, per_layer]`
    pub(crate) out: MappedMatrix,
    /// `[width]`
    norm: Vec<f32>,
}

/// Buffers for a number of rows.
pub(crate) struct PerLayerScratch {
    /// `[rows, width]`: embeddings; then what is added.
    wide: Vec<f32>,
    /// `[rows, per_layer]`
    input: Vec<f32>,
    /// `[rows, per_layer]`
    gate: Vec<f32>,
    /// `[per_layer]`
    row: Vec<f32>,
    rounded: QuantisedRows,
}

/// The embeddings to add.
pub(crate) struct PerLayerTask<'a> {
    pub(crate) config: &'a Config,
    pub(crate) tables: &'a PerLayerTables,
    pub(crate) layer: usize,
    /// `[rows]`: the tokens.
    pub(crate) ids: &'a [u32],
}

impl PerLayerScratch {
    pub(crate) fn new(config: &Config, per_layer: usize, rows: usize) -> Self {
        Self {
            wide: vec![0.0; rows * config.width],
            input: vec![0.0; rows * per_layer],
            gate: vec![0.0; rows * per_layer],
            row: vec![0.0; per_layer],
            rounded: QuantisedRows::new(rows * config.width.max(per_layer)),
        }
    }

    /// Space for the embeddings of the rows, which [`PerLayer::add`] reads: `len` elements.
    pub(crate) fn embeddings(&mut self, len: usize) -> &mut [f32] {
        &mut self.wide[..len]
    }

    /// Bytes of buffers for `rows` rows.
    pub(crate) fn bytes(config: &Config, per_layer: usize, rows: usize) -> u64 {
        let elements = rows * (config.width + 2 * per_layer) + per_layer;
        let rounded = QuantisedRows::bytes_for(rows * config.width.max(per_layer));
        (elements * size_of::<f32>()) as u64 + rounded
    }
}

impl PerLayerTables {
    pub(crate) fn read(gguf: &Gguf, config: &Config, per_layer: usize) -> Result<Self, ModelError> {
        let all = config.layers * per_layer;
        let name = "per_layer_model_proj.weight";
        let each = std::iter::repeat_n(per_layer, config.layers);
        Ok(Self {
            table: weights::parted_matrix(
                gguf,
                "per_layer_token_embd.weight",
                config.vocab,
                all,
                per_layer,
            )?,
            projections: weights::parts(gguf, name, &[all, config.width], each, config.width)?,
            norm: weights::vector(gguf, "per_layer_proj_norm.weight", per_layer)?,
        })
    }
}

impl PerLayer {
    pub(crate) fn read(
        gguf: &Gguf,
        config: &Config,
        per_layer: usize,
        layer: usize,
    ) -> Result<Self, ModelError> {
        let (name, width) = (
            |part: &str| format!("blk.{layer}.{part}.weight"),
            config.width,
        );
        Ok(Self {
            gate: weights::matrix(gguf, &name("inp_gate"), per_layer, width)?,
            out: weights::matrix(gguf, &name("proj"), width, per_layer)?,
            norm: weights::vector(gguf, &name("post_norm"), width)?,
        })
    }

    /// Adds the layer's embeddings for the tokens of `task` to `residual [rows, width]`. Allocates nothing.
    /// The tokens' embeddings are in [`PerLayerScratch::embeddings`].
    ///
    /// # Errors
    /// [`Stopped`]; the residual is then unchanged.
    pub(crate) fn add(
        &self,
        task: &PerLayerTask<'_>,
        residual: &mut [f32],
        scratch: &mut PerLayerScratch,
        stop: &Stop,
    ) -> Result<(), Stopped> {
        let &PerLayerTask {
            config,
            tables,
            layer,
            ids,
        } = task;
        let per_layer = self.gate.rows();
        let PerLayerScratch {
            wide,
            input,
            gate,
            row,
            rounded,
        } = scratch;
        let wide = &mut wide[..residual.len()];
        let (input, gate) = (
            &mut input[..ids.len() * per_layer],
            &mut gate[..ids.len() * per_layer],
        );
        let projection = &Floats::mapped(&tables.projections[layer]);
        multiply(wide, rounded, [(projection, &mut *input)], stop)?;
        let scale = (config.width as f32).sqrt().recip();
        input.iter_mut().for_each(|x| *x *= scale);
        rms_norm_in_place(input, &tables.norm, config.norm_eps);
        let scale = (per_layer as f32).sqrt();
        for (id, input) in ids.iter().zip(input.chunks_exact_mut(per_layer)) {
            tables
                .table
                .part_to_f32(*id as usize, layer * per_layer, row);
            for (x, own) in input.iter_mut().zip(&*row) {
                *x = (*x + own * scale) * std::f32::consts::FRAC_1_SQRT_2;
            }
        }
        let product = (&Floats::mapped(&self.gate), &mut *gate);
        multiply(residual, rounded, [product], stop)?;
        activate(config.activation, gate, input);
        let product = (&Floats::mapped(&self.out), &mut *wide);
        multiply(gate, rounded, [product], stop)?;
        rms_norm_in_place(wide, &self.norm, config.norm_eps);
        add_assign(residual, wide);
        Ok(())
    }
}
