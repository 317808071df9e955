//! The decoder's arithmetic for all architectures: embedding, projections, feed-forward, logits.
//!
//! A layer, with the engine's part marked `E`. Steps in brackets exist in some architectures only (`architecture.rs`):
//!
//! ```text
//! residual [rows, width] --- norm --- q, k, v projections [+ bias] [norm of q, k heads] --> E: RoPE, cache, attention
//!     |                                                                                                |
//!     + <---- [norm] ------------- o projection [+ bias] <---------------------------------------------+
//!     |
//!     +--- norm --- gate, up projections --- silu or gelu(gate) * up --- down projection --- [norm] ---> + residual
//! ```
//!
//! A recurrent layer has `recurrent.rs` in place of attention. Two entry points: [`LayerPass`](crate::LayerPass) for many rows of one layer
//! (prefill), `*_row` for one token (decode). Both multiply the mapped blocks in place. Inputs are quantised once for q,
//! k and v and once for gate and up, and these matrices are multiplied together. A projection adds directly to the
//! residual stream if no bias, norm or factor comes between. Mixtures of experts: `experts.rs`. A pass copies
//! floating-point weights as f32 and frees them when dropped. `*_row` functions do not allocate.

use kept_kernels::mapped::{Product, multiply_together};
use kept_kernels::{QuantisedRows, RecurrentState, Stop, Stopped, rms_norm, sigmoid_mul, soft_cap};

use crate::Config;
use crate::arithmetic::{activate, beside_width, normalise, product, scale};
use crate::experts::ExpertScratch;
use crate::feed_forward::{Dense, DenseAndExperts, ExpertInput, FeedForward};
use crate::layer::{Attention, Layer, Mixer};
use crate::model::Model;
use crate::per_layer::{PerLayerScratch, PerLayerTask};
use crate::recurrent::{RecurrentScratch, RecurrentTask};
use crate::weights::Floats;

/// Scratch buffers for decoding one token, allocated once per answer.
pub struct RowScratch {
    /// `[width]`: the residual stream after the norm.
    normed: Vec<f32>,
    /// `[ffn]`: gate, then `activation(gate) * up`.
    gate: Vec<f32>,
    /// `[ffn]`
    up: Vec<f32>,
    /// `[width]`: output of a projection, to be added to the residual stream.
    added: Vec<f32>,
    /// The quantised input of a projection, sized for the widest.
    rounded: QuantisedRows,
    /// `[2 * q_width]`: queries and gates as projected; then the gated attention. Empty without output gates.
    both: Vec<f32>,
    /// `[q_width]`; empty without output gates.
    gates: Vec<f32>,
    /// If the model has experts.
    experts: Option<ExpertScratch>,
    /// `[2, width]`: what the router sees, and the output of experts beside a dense feed-forward; otherwise empty.
    beside: Vec<f32>,
    /// If the model has recurrent layers.
    recurrent: Option<RecurrentScratch>,
    /// If layers add embeddings.
    per_layer: Option<PerLayerScratch>,
    /// A stop that is never requested: a row takes milliseconds.
    never: Stop,
}

impl RowScratch {
    /// Allocates scratch buffers for a model.
    pub fn new(config: &Config) -> RowScratch {
        RowScratch {
            normed: vec![0.0; config.width],
            gate: vec![0.0; config.ffn],
            up: vec![0.0; config.ffn],
            added: vec![0.0; config.width],
            rounded: QuantisedRows::new(config.widest_input()),
            both: vec![0.0; 2 * config.gate_width()],
            gates: vec![0.0; config.gate_width()],
            experts: (config.experts).map(|counts| ExpertScratch::new(config, counts, 1)),
            beside: vec![0.0; 2 * beside_width(config)],
            per_layer: (config.per_layer).map(|n| PerLayerScratch::new(config, n, 1)),
            recurrent: (config.recurrent).map(|shape| RecurrentScratch::new(config, shape, 1)),
            never: Stop::new(),
        }
    }

    /// Memory in bytes.
    pub fn bytes(&self) -> u64 {
        let numbers = self.normed.len()
            + self.gate.len()
            + self.up.len()
            + self.added.len()
            + self.both.len()
            + self.gates.len()
            + self.beside.len();
        let experts = self.experts.as_ref().map_or(0, ExpertScratch::size)
            + (self.recurrent.as_ref()).map_or(0, RecurrentScratch::size);
        let per_layer = self.per_layer.as_ref().map_or(0, PerLayerScratch::size);
        (numbers * size_of::<f32>()) as u64 + self.rounded.size_in_bytes() + experts + per_layer
    }
}

/// `out = input * matrix^T` for one row and matrices with the same input; quantised matrices are multiplied together.
fn multiply_row<const N: usize>(
    input: &[f32],
    rounded: &mut QuantisedRows,
    never: &Stop,
    products: [Product<'_>; N],
) {
    if products.iter().all(|p| p.matrix.is_quantised()) {
        rounded.fill(input, input.len());
        multiply_together(products, rounded, never).expect("never stopped");
        return;
    }
    for product in products {
        assert!(!product.add, "only quantised matrices add");
        product.matrix.multiply(1, input, product.out);
    }
}

impl Model {
    /// Embeds tokens: `ids [n]` to `out [n, width]`.
    ///
    /// # Panics
    /// If an id is not below `config.vocab`, or `out` has another length.
    pub fn embed(&self, ids: &[u32], out: &mut [f32]) {
        let width = self.config.width;
        assert_eq!(out.len(), ids.len() * width, "out is [n, width]");
        for (id, out) in ids.iter().zip(out.chunks_exact_mut(width)) {
            self.embedding.row_to_f32(*id as usize, out);
        }
        scale(out, self.config.embedding_scale);
    }

    /// Adds the embeddings of `layer` for the tokens `ids [rows]`, if it has any, to `residual [rows, width]`.
    ///
    /// # Errors
    /// [`Stopped`]; the residual is then unchanged.
    pub(crate) fn add_per_layer(
        &self,
        layer: usize,
        ids: &[u32],
        residual: &mut [f32],
        scratch: &mut PerLayerScratch,
        stop: &Stop,
    ) -> Result<(), Stopped> {
        let (Some(own), Some(tables)) = (&self.layers[layer].per_layer, &self.per_layer) else {
            return Ok(());
        };
        self.embed(ids, scratch.embeddings(residual.len()));
        let task = PerLayerTask {
            config: &self.config,
            tables,
            layer,
            ids,
        };
        own.add(&task, residual, scratch, stop)
    }

    /// Adds biases and applies head norms of `layer` to projected queries `q [rows, q_heads * head_dim]`, keys and
    /// values `[rows, kv_heads * head_dim]`.
    pub fn apply_bias_and_norms(&self, layer: usize, q: &mut [f32], k: &mut [f32], v: &mut [f32]) {
        let attention = self.layers[layer].attention();
        attention.apply_bias_and_norms(&self.config, q, k, v);
    }

    /// Decode, first half of a layer: projects one token's `residual [width]` to `q [q_heads * head_dim]`, `k` and `v`
    /// `[kv_heads * head_dim]`, all before RoPE. In a layer without keys of its own, `k` and `v` are empty. Does not
    /// allocate once warm.
    ///
    /// # Panics
    /// If a length is wrong or there is no such layer.
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
        let norm = &layer.attention_norm;
        normalise(&self.config, norm, residual, &mut scratch.normed);
        let attention = layer.attention();
        let gated = !scratch.both.is_empty();
        let queries = if gated { &mut scratch.both } else { &mut *q };
        let queries = product(&attention.q, queries);
        let (normed, rounded, never) = (&scratch.normed, &mut scratch.rounded, &scratch.never);
        match (&attention.k, &attention.v) {
            (Some(keys), Some(values)) => {
                let all = [queries, product(keys, k), product(values, v)];
                multiply_row(normed, rounded, never, all);
            }
            (Some(keys), None) => {
                multiply_row(normed, rounded, never, [queries, product(keys, k)]);
                v.copy_from_slice(k);
            }
            (None, _) => multiply_row(normed, rounded, never, [queries]),
        }
        if gated {
            let dim = self.config.head_dim;
            Attention::split_gates(dim, &scratch.both, q, &mut scratch.gates);
        }
        attention.apply_bias_and_norms(&self.config, q, k, v);
    }

    /// Decode, a recurrent layer: runs one token's `residual [width]` through it and updates `state`. Does not allocate
    /// once warm.
    ///
    /// # Panics
    /// If a length is wrong or the layer is not recurrent.
    pub fn recur_row(
        &self,
        layer: usize,
        residual: &mut [f32],
        state: &mut RecurrentState,
        scratch: &mut RowScratch,
    ) {
        let (index, layer) = (layer, &self.layers[layer]);
        let Mixer::Recurrent(recurrent) = &layer.mixer else {
            panic!("the layer is not recurrent");
        };
        let norm = &layer.attention_norm;
        normalise(&self.config, norm, residual, &mut scratch.normed);
        let copies = recurrent.copies(Floats::mapped);
        let task = RecurrentTask {
            config: &self.config,
            copies: &copies,
            normed: &scratch.normed,
        };
        let space = scratch.recurrent.as_mut();
        let space = space.expect("the model is recurrent");
        let added = recurrent.add(&task, residual, state, space, &scratch.never);
        added.expect("never stopped");
        self.feed_forward_row(index, &[], residual, scratch);
    }

    /// Decode, second half of a layer: projects `attention [q_heads * head_dim]` of the token `token`, adds it to
    /// `residual [width]`, then adds the feed-forward. Does not allocate once warm.
    ///
    /// # Panics
    /// If a length is wrong or there is no such layer.
    pub fn finish_row(
        &self,
        layer: usize,
        attention: &[f32],
        token: u32,
        residual: &mut [f32],
        scratch: &mut RowScratch,
    ) {
        let (index, layer) = (layer, &self.layers[layer]);
        let RowScratch {
            added,
            both,
            gates,
            rounded,
            never,
            ..
        } = scratch;
        let own = layer.attention();
        let attention = if gates.is_empty() {
            attention
        } else {
            let gated = &mut both[..attention.len()];
            gated.copy_from_slice(attention);
            sigmoid_mul(gated, gates);
            &*gated
        };
        if layer.adds_attention(&self.config, own) {
            let product = Product {
                matrix: &own.o,
                out: &mut *residual,
                add: true,
            };
            multiply_row(attention, rounded, never, [product]);
        } else {
            multiply_row(attention, rounded, never, [product(&own.o, added)]);
            layer.add_attention(&self.config, own, added, residual);
        }
        self.feed_forward_row(index, &[token], residual, scratch);
    }

    /// Adds the feed-forward of `residual [width]` to it, and the layer's embedding of `tokens [1]`.
    fn feed_forward_row(
        &self,
        index: usize,
        tokens: &[u32],
        residual: &mut [f32],
        scratch: &mut RowScratch,
    ) {
        let layer = &self.layers[index];
        normalise(&self.config, &layer.ffn_norm, residual, &mut scratch.normed);
        match &layer.ffn {
            FeedForward::Dense(ffn) => self.dense_row(layer, ffn, residual, scratch),
            FeedForward::Experts(ffn) => {
                let normed = [scratch.normed.as_slice(); 2];
                let space = scratch.experts.as_mut().expect("the model has experts");
                let router = Floats::mapped(&ffn.router);
                let added = ffn.add(
                    &self.config,
                    &router,
                    normed,
                    residual,
                    space,
                    &scratch.never,
                );
                added.expect("never stopped");
            }
            FeedForward::Both(ffn) => self.both_row(layer, ffn, residual, scratch),
        }
        if let Some(space) = &mut scratch.per_layer {
            let added = self.add_per_layer(index, tokens, residual, space, &scratch.never);
            added.expect("never stopped");
        }
        scale(residual, layer.output_scale);
    }

    /// Adds a dense feed-forward of the normalised row in `scratch` to `residual [width]`.
    fn dense_row(
        &self,
        layer: &Layer,
        ffn: &Dense,
        residual: &mut [f32],
        scratch: &mut RowScratch,
    ) {
        self.activate_row(ffn, scratch);
        let (gate, rounded, never) = (&scratch.gate, &mut scratch.rounded, &scratch.never);
        let gate = &gate[..ffn.gate.rows()];
        if layer.adds_ffn(&self.config, ffn) {
            let product = Product {
                matrix: &ffn.down,
                out: residual,
                add: true,
            };
            multiply_row(gate, rounded, never, [product]);
        } else {
            multiply_row(
                gate,
                rounded,
                never,
                [product(&ffn.down, &mut scratch.added)],
            );
            layer.add_ffn(&self.config, &mut scratch.added, residual);
        }
    }

    /// `gate = activation(gate * normed) * (up * normed)` in `scratch`.
    fn activate_row(&self, ffn: &Dense, scratch: &mut RowScratch) {
        let width = ffn.gate.rows();
        let (gate, up) = (&mut scratch.gate[..width], &mut scratch.up[..width]);
        let both = [product(&ffn.gate, gate), product(&ffn.up, up)];
        multiply_row(&scratch.normed, &mut scratch.rounded, &scratch.never, both);
        activate(self.config.activation, gate, up);
    }

    /// Adds a dense feed-forward of the normalised row in `scratch`, and experts, to `residual [width]`.
    fn both_row(
        &self,
        layer: &Layer,
        ffn: &DenseAndExperts,
        residual: &mut [f32],
        scratch: &mut RowScratch,
    ) {
        let config = &self.config;
        self.activate_row(&ffn.dense, scratch);
        let RowScratch {
            normed,
            gate,
            added,
            rounded,
            experts,
            beside,
            never,
            ..
        } = scratch;
        let gate = &gate[..ffn.dense.gate.rows()];
        multiply_row(gate, rounded, never, [product(&ffn.dense.down, added)]);
        let (routed, of_experts) = beside.split_at_mut(config.width);
        ffn.add_experts(
            config,
            ExpertInput {
                residual,
                normed,
                routed,
                router: &Floats::mapped(&ffn.experts.router),
            },
            [&mut *added, of_experts],
            experts.as_mut().expect("the model has experts"),
            never,
        )
        .expect("never stopped");
        layer.add_ffn(config, added, residual);
    }

    /// Logits `[vocab]` of one token's `residual [width]` after the last layer. Does not allocate once warm.
    ///
    /// # Panics
    /// If a length is wrong.
    pub fn logits_row(&self, residual: &[f32], scratch: &mut RowScratch, logits: &mut [f32]) {
        rms_norm(
            residual,
            &self.output_norm,
            self.config.norm_eps,
            &mut scratch.normed,
        );
        multiply_row(
            &scratch.normed,
            &mut scratch.rounded,
            &scratch.never,
            [product(&self.output, logits)],
        );
        scale(logits, self.config.logit_scale);
        if let Some(cap) = self.config.logit_cap {
            soft_cap(logits, cap);
        }
    }
}
