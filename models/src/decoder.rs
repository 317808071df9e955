//! The decoder's own arithmetic: embedding, projections, feed-forward, logits. One for every architecture.
//!
//! What a layer is, and who does it (`E` the engine, the rest is here). In brackets, what only some architectures have
//! (`architecture.rs`):
//!
//! ```text
//! residual [rows, width] --- norm --- q, k, v projections [+ bias] [norm of each head of q, k] --> E: rope, cache, attention
//!     |                                                                                                       |
//!     + <---- [norm] ------------- o projection [+ bias] <----------------------------------------------------+
//!     |
//!     +--- norm --- gate, up projections --- silu or gelu(gate) * up --- down projection --- [norm] ---> + residual
//! ```
//!
//! Two ways through it: [`LayerPass`] for many rows of one layer (prefill), `*_row` for one token (decode). Both multiply the mapped
//! blocks where they lie: inputs are rounded to bytes once for q, k and v and once for gate and up, which are multiplied together, and what
//! a projection adds goes straight into the residual where nothing stands between. Weights in floating point are copied as f32 by the
//! first and dropped with it. The second allocates nothing.

use kept_kernels::mapped::{MappedMatrix, Product, multiply_together};
use kept_kernels::{
    QuantisedRows, Stop, add_assign, gelu_mul, rms_norm, rms_norm_in_place, silu_mul, soft_cap,
};

use crate::architecture::Activation;
use crate::model::{Layer, Model};
use crate::pass::LayerPass;
use crate::weights::Floats;
use crate::{Config, ModelError};

/// Scratch of one decoded token, made once per answer.
pub struct RowScratch {
    /// `[width]`: the residual, normed.
    normed: Vec<f32>,
    /// `[ffn]`: gate, then its activation times `up`.
    gate: Vec<f32>,
    /// `[ffn]`
    up: Vec<f32>,
    /// `[width]`: what a projection adds to the residual.
    added: Vec<f32>,
    /// The widest of a projection's inputs, rounded.
    rounded: QuantisedRows,
    /// Nobody raises it: a row takes milliseconds.
    never: Stop,
}

/// The most numbers that a projection takes for a row.
pub(crate) fn widest(config: &Config) -> usize {
    config.width.max(config.q_width()).max(config.ffn)
}

impl RowScratch {
    /// Scratch for one model.
    pub fn new(config: &Config) -> RowScratch {
        RowScratch {
            normed: vec![0.0; config.width],
            gate: vec![0.0; config.ffn],
            up: vec![0.0; config.ffn],
            added: vec![0.0; config.width],
            rounded: QuantisedRows::new(widest(config)),
            never: Stop::new(),
        }
    }

    /// Memory in bytes.
    pub fn bytes(&self) -> u64 {
        let numbers = self.normed.len() + self.gate.len() + self.up.len() + self.added.len();
        (numbers * size_of::<f32>()) as u64 + self.rounded.size_in_bytes()
    }
}

/// `out = input * matrix^T` for matrices with the same input, one row, together where they are quantised.
fn multiply_row<const N: usize>(
    input: &[f32],
    (rounded, never): (&mut QuantisedRows, &Stop),
    products: [Product<'_>; N],
) {
    if products.iter().all(|p| p.matrix.is_quantised()) {
        rounded.fill(input, input.len());
        multiply_together(products, rounded, never).expect("nobody asks to stop");
        return;
    }
    for product in products {
        assert!(!product.add, "only quantised matrices add");
        product.matrix.multiply(1, input, product.out);
    }
}

pub(crate) fn product<'a>(matrix: &'a MappedMatrix, out: &'a mut [f32]) -> Product<'a> {
    Product {
        matrix,
        out,
        add: false,
    }
}

impl Layer {
    /// Completes projected queries `q [rows, q_heads * head_dim]`, keys and values `[rows, kv_heads * head_dim]`.
    pub(crate) fn complete(&self, config: &Config, q: &mut [f32], k: &mut [f32], v: &mut [f32]) {
        for (x, bias) in [
            (&mut *q, &self.q_bias),
            (&mut *k, &self.k_bias),
            (&mut *v, &self.v_bias),
        ] {
            add_bias(x, bias);
        }
        for (x, norm) in [(q, &self.q_norm), (k, &self.k_norm)] {
            if let Some(norm) = norm {
                rms_norm_in_place(x, norm, config.norm_eps);
            }
        }
    }

    /// Whether what attention comes to is added to the residual as it was projected, by a product that adds.
    pub(crate) fn adds_attention(&self) -> bool {
        self.o.is_quantised() && self.o_bias.is_none() && self.post_attention_norm.is_none()
    }

    /// Likewise what the feed-forward comes to.
    pub(crate) fn adds_ffn(&self) -> bool {
        self.down.is_quantised() && self.post_ffn_norm.is_none()
    }

    /// Adds what attention comes to, `added [rows, width]` as projected, to the residual.
    pub(crate) fn add_attention(&self, config: &Config, added: &mut [f32], residual: &mut [f32]) {
        add_bias(added, &self.o_bias);
        if let Some(norm) = &self.post_attention_norm {
            rms_norm_in_place(added, norm, config.norm_eps);
        }
        add_assign(residual, added);
    }

    /// Adds what the feed-forward comes to, `added [rows, width]` as projected, to the residual.
    pub(crate) fn add_ffn(&self, config: &Config, added: &mut [f32], residual: &mut [f32]) {
        if let Some(norm) = &self.post_ffn_norm {
            rms_norm_in_place(added, norm, config.norm_eps);
        }
        add_assign(residual, added);
    }
}

/// Adds `bias [width]` to each row of `x [rows, width]`.
fn add_bias(x: &mut [f32], bias: &Option<Vec<f32>>) {
    if let Some(bias) = bias {
        for row in x.chunks_exact_mut(bias.len()) {
            add_assign(row, bias);
        }
    }
}

/// `gate = activation(gate) * up`.
pub(crate) fn activate(activation: Activation, gate: &mut [f32], up: &[f32]) {
    match activation {
        Activation::Silu => silu_mul(gate, up),
        Activation::GeluTanh => gelu_mul(gate, up),
    }
}

impl Model {
    /// Embed tokens: `ids [n]` to `out [n, width]`.
    ///
    /// # Panics
    /// When an id is not below `config.vocab`, or `out` has another length.
    pub fn embed(&self, ids: &[u32], out: &mut [f32]) {
        let width = self.config.width;
        assert_eq!(out.len(), ids.len() * width, "out is [n, width]");
        for (id, out) in ids.iter().zip(out.chunks_exact_mut(width)) {
            self.embedding.row_to_f32(*id as usize, out);
        }
        let scale = self.config.embedding_scale;
        if scale != 1.0 {
            out.iter_mut().for_each(|x| *x *= scale);
        }
    }

    /// Make one layer ready for many rows; calls of the pass bring at most `max_rows` rows each.
    ///
    /// Weights in floating point are copied when first multiplied (`layer_tiles_bytes`), and dropped with the pass.
    ///
    /// # Panics
    /// When there is no such layer.
    ///
    /// # Errors
    /// None today; an architecture whose layers are read late may fail here.
    pub fn layer_pass(&self, layer: usize, max_rows: usize) -> Result<LayerPass<'_>, ModelError> {
        let copy = |matrix| Floats::new(matrix, max_rows);
        Ok(LayerPass::new(self, layer, max_rows, copy))
    }

    /// [`Model::layer_pass`] that multiplies weights in floating point where they lie too, whatever the number of rows: nothing is
    /// copied, which for a few rows would cost more than it saves.
    ///
    /// # Panics
    /// When there is no such layer.
    pub fn layer_pass_mapped(&self, layer: usize, max_rows: usize) -> LayerPass<'_> {
        LayerPass::new(self, layer, max_rows, Floats::mapped)
    }

    /// Decode, first half of a layer: project one token's `residual [width]` to `q [q_heads * head_dim]`, `k` and `v`
    /// `[kv_heads * head_dim]`, none of them rotated. Allocates nothing once warm.
    ///
    /// # Panics
    /// When a length does not fit or there is no such layer.
    pub fn project_row(
        &self,
        layer: usize,
        residual: &[f32],
        scratch: &mut RowScratch,
        q: &mut [f32],
        k: &mut [f32],
        v: &mut [f32],
    ) {
        let layer = &self.layers[layer];
        rms_norm(
            residual,
            &layer.attention_norm,
            self.config.norm_eps,
            &mut scratch.normed,
        );
        multiply_row(
            &scratch.normed,
            (&mut scratch.rounded, &scratch.never),
            [
                product(&layer.q, q),
                product(&layer.k, k),
                product(&layer.v, v),
            ],
        );
        layer.complete(&self.config, q, k, v);
    }

    /// Decode, second half of a layer: add the projected `attention [q_heads * head_dim]` and then the feed-forward to
    /// `residual [width]`. Allocates nothing once warm.
    ///
    /// # Panics
    /// When a length does not fit or there is no such layer.
    pub fn finish_row(
        &self,
        layer: usize,
        attention: &[f32],
        residual: &mut [f32],
        scratch: &mut RowScratch,
    ) {
        let layer = &self.layers[layer];
        let RowScratch {
            normed,
            gate,
            up,
            added,
            rounded,
            never,
        } = scratch;
        match layer.adds_attention() {
            true => {
                let product = Product {
                    matrix: &layer.o,
                    out: &mut *residual,
                    add: true,
                };
                multiply_row(attention, (rounded, never), [product]);
            }
            false => {
                multiply_row(attention, (rounded, never), [product(&layer.o, added)]);
                layer.add_attention(&self.config, added, residual);
            }
        }
        rms_norm(residual, &layer.ffn_norm, self.config.norm_eps, normed);
        let both = [product(&layer.gate, gate), product(&layer.up, up)];
        multiply_row(normed, (rounded, never), both);
        activate(self.config.activation, gate, up);
        match layer.adds_ffn() {
            true => {
                let product = Product {
                    matrix: &layer.down,
                    out: residual,
                    add: true,
                };
                multiply_row(gate, (rounded, never), [product]);
            }
            false => {
                multiply_row(gate, (rounded, never), [product(&layer.down, added)]);
                layer.add_ffn(&self.config, added, residual);
            }
        }
    }

    /// Logits `[vocab]` of one token's `residual [width]` after the last layer. Allocates nothing once warm.
    ///
    /// # Panics
    /// When a length does not fit.
    pub fn logits_row(&self, residual: &[f32], scratch: &mut RowScratch, logits: &mut [f32]) {
        rms_norm(
            residual,
            &self.output_norm,
            self.config.norm_eps,
            &mut scratch.normed,
        );
        let product = product(&self.output, logits);
        let rounded = (&mut scratch.rounded, &scratch.never);
        multiply_row(&scratch.normed, rounded, [product]);
        if let Some(cap) = self.config.logit_cap {
            soft_cap(logits, cap);
        }
    }
}
