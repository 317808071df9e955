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
//! A recurrent layer has `recurrent.rs` in place of attention, and `latent.rs` makes q, k and v of latent attention.
//! Prefill passes many rows through a layer ([`LayerPass`](crate::LayerPass)), decode one (`*_row`, without
//! allocations); both are the code in `pass.rs`. Inputs are quantised once for q, k and v and once for gate and up, and
//! these matrices are multiplied together, as mapped. A projection adds directly to the residual stream if no bias, norm
//! or factor comes between. Mixtures of experts: `experts.rs`. A pass for many rows copies floating-point weights as f32
//! and frees them when dropped.

use kept_kernels::{RecurrentState, Stop, Stopped, soft_cap};

use crate::Config;
use crate::arithmetic::{multiply, normalise, scale};
use crate::model::Model;
use crate::pass::LayerScratch;
use crate::per_layer::{PerLayerScratch, PerLayerTask};
use crate::weights::Floats;

/// Scratch buffers for decoding one token, allocated once per answer.
pub struct RowScratch {
    layer: LayerScratch,
    /// A stop that is never requested: a row takes milliseconds.
    never: Stop,
    bytes: u64,
}

/// Why a row is computed to its end.
const NEVER: &str = "never stopped";

impl RowScratch {
    /// Allocates scratch buffers for a model.
    pub fn new(config: &Config) -> RowScratch {
        RowScratch {
            layer: LayerScratch::for_a_row(config),
            never: Stop::new(),
            bytes: LayerScratch::row_bytes(config),
        }
    }

    /// Memory in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
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

    /// Decode: [`LayerPass::project`](crate::LayerPass::project) for one row. In a layer without keys of its own, `k`
    /// and `v` are empty. Does not allocate once warm, as all functions for one row.
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
        let mut pass = self.row_pass(layer, &mut scratch.layer);
        pass.project(residual, q, k, v, &scratch.never)
            .expect(NEVER);
    }

    /// Decode: [`LayerPass::recur`](crate::LayerPass::recur) for one row.
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
        let mut pass = self.row_pass(layer, &mut scratch.layer);
        pass.recur(residual, state, &scratch.never).expect(NEVER);
    }

    /// Decode: [`LayerPass::finish`](crate::LayerPass::finish) for the row of `token` that was projected last.
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
        let mut pass = self.row_pass(layer, &mut scratch.layer);
        let finished = pass.finish(attention, &[token], residual, &scratch.never);
        finished.expect(NEVER);
    }

    /// Logits `[vocab]` of one token's `residual [width]` after the last layer. Does not allocate once warm.
    ///
    /// # Panics
    /// If a length is wrong.
    pub fn logits_row(&self, residual: &[f32], scratch: &mut RowScratch, logits: &mut [f32]) {
        let LayerScratch {
            normed, rounded, ..
        } = &mut scratch.layer;
        normalise(&self.config, Some(&self.output_norm), residual, normed);
        let product = (&Floats::mapped(&self.output), &mut *logits);
        multiply(normed, rounded, [product], &scratch.never).expect(NEVER);
        scale(logits, self.config.logit_scale);
        if let Some(cap) = self.config.logit_cap {
            soft_cap(logits, cap);
        }
    }
}
