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
//! Two ways through it: [`LayerPass`] for many rows of one layer (prefill), `*_row` for one token (decode). The first
//! repacks the layer's weights and drops them; the second multiplies the mapped blocks and allocates nothing.

use kept_kernels::mapped::MappedMatrix;
use kept_kernels::{
    Stop, Stopped, add_assign, gelu_mul, rms_norm, rms_norm_in_place, silu_mul, soft_cap,
};

use crate::architecture::Activation;
use crate::model::{Layer, Model};
use crate::weights::{BLOCK_ROWS, Inputs, Tiles};
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
}

impl RowScratch {
    /// Scratch for one model.
    pub fn new(config: &Config) -> RowScratch {
        RowScratch {
            normed: vec![0.0; config.width],
            gate: vec![0.0; config.ffn],
            up: vec![0.0; config.ffn],
            added: vec![0.0; config.width],
        }
    }

    /// Memory in bytes.
    pub fn bytes(&self) -> u64 {
        let numbers = self.normed.len() + self.gate.len() + self.up.len() + self.added.len();
        (numbers * size_of::<f32>()) as u64
    }
}

impl Layer {
    /// Completes projected queries `q [rows, q_heads * head_dim]`, keys and values `[rows, kv_heads * head_dim]`.
    fn complete(&self, config: &Config, q: &mut [f32], k: &mut [f32], v: &mut [f32]) {
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

    /// Adds what attention comes to, `added [rows, width]` as projected, to the residual.
    fn add_attention(&self, config: &Config, added: &mut [f32], residual: &mut [f32]) {
        add_bias(added, &self.o_bias);
        if let Some(norm) = &self.post_attention_norm {
            rms_norm_in_place(added, norm, config.norm_eps);
        }
        add_assign(residual, added);
    }

    /// Adds what the feed-forward comes to, `added [rows, width]` as projected, to the residual.
    fn add_ffn(&self, config: &Config, added: &mut [f32], residual: &mut [f32]) {
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
fn activate(activation: Activation, gate: &mut [f32], up: &[f32]) {
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
    /// Its weights are repacked when first multiplied (`layer_tiles_bytes`), and dropped with the pass.
    ///
    /// # Panics
    /// When there is no such layer.
    ///
    /// # Errors
    /// None today; an architecture whose layers are read late may fail here.
    pub fn layer_pass(&self, layer: usize, max_rows: usize) -> Result<LayerPass<'_>, ModelError> {
        let make = |matrix| Tiles::new(matrix, max_rows);
        Ok(LayerPass::new(
            &self.config,
            &self.layers[layer],
            max_rows,
            make,
        ))
    }

    /// [`Model::layer_pass`] that multiplies the mapped blocks whatever the number of rows: nothing is repacked, which for a few
    /// rows would cost more than it saves.
    ///
    /// # Panics
    /// When there is no such layer.
    pub fn layer_pass_mapped(&self, layer: usize, max_rows: usize) -> LayerPass<'_> {
        LayerPass::new(&self.config, &self.layers[layer], max_rows, Tiles::mapped)
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
        layer.q.multiply(1, &scratch.normed, q);
        layer.k.multiply(1, &scratch.normed, k);
        layer.v.multiply(1, &scratch.normed, v);
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
        layer.o.multiply(1, attention, &mut scratch.added);
        layer.add_attention(&self.config, &mut scratch.added, residual);
        rms_norm(
            residual,
            &layer.ffn_norm,
            self.config.norm_eps,
            &mut scratch.normed,
        );
        layer.gate.multiply(1, &scratch.normed, &mut scratch.gate);
        layer.up.multiply(1, &scratch.normed, &mut scratch.up);
        activate(self.config.activation, &mut scratch.gate, &scratch.up);
        layer.down.multiply(1, &scratch.gate, &mut scratch.added);
        layer.add_ffn(&self.config, &mut scratch.added, residual);
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
        self.output.multiply(1, &scratch.normed, logits);
        if let Some(cap) = self.config.logit_cap {
            soft_cap(logits, cap);
        }
    }
}

/// One layer made ready for many rows.
pub struct LayerPass<'a> {
    config: &'a Config,
    layer: &'a Layer,
    q: Tiles<'a>,
    k: Tiles<'a>,
    v: Tiles<'a>,
    o: Tiles<'a>,
    gate: Tiles<'a>,
    up: Tiles<'a>,
    down: Tiles<'a>,
    /// Rows worked on at once, at most [`BLOCK_ROWS`].
    rows: usize,
    /// `[rows, width]`: the residual, normed.
    normed: Inputs,
    /// `[rows, q_heads * head_dim]`: attention, where candle can read it.
    attended: Inputs,
    /// `[rows, ffn]`: gate, then its activation times `up`.
    hidden: Inputs,
    /// `[rows, ffn]`
    up_out: Vec<f32>,
    /// `[rows, width]`: what a projection adds to the residual.
    added: Vec<f32>,
}

impl<'a> LayerPass<'a> {
    fn new(
        config: &'a Config,
        layer: &'a Layer,
        max_rows: usize,
        make: impl Fn(&'a MappedMatrix) -> Tiles<'a>,
    ) -> LayerPass<'a> {
        let rows = max_rows.clamp(1, BLOCK_ROWS);
        LayerPass {
            config,
            layer,
            q: make(&layer.q),
            k: make(&layer.k),
            v: make(&layer.v),
            o: make(&layer.o),
            gate: make(&layer.gate),
            up: make(&layer.up),
            down: make(&layer.down),
            rows,
            normed: Inputs::new(rows, config.width),
            attended: Inputs::new(rows, config.q_width()),
            hidden: Inputs::new(rows, config.ffn),
            up_out: vec![0.0; rows * config.ffn],
            added: vec![0.0; rows * config.width],
        }
    }

    /// Memory of the pass's scratch in bytes, without the repacked weights.
    pub fn bytes(&self) -> u64 {
        Self::bytes_for(self.config, self.rows)
    }

    /// [`LayerPass::bytes`] of a pass made for `max_rows` rows, known before there is one.
    pub fn bytes_for(config: &Config, max_rows: usize) -> u64 {
        let rows = max_rows.clamp(1, BLOCK_ROWS);
        let per_row = 2 * config.width + config.q_width() + 2 * config.ffn;
        (rows * per_row * size_of::<f32>()) as u64
    }

    /// First half of the layer: project `residual [rows, width]` to `q [rows, q_heads, head_dim]`, `k` and `v`
    /// `[rows, kv_heads, head_dim]`, none of them rotated.
    ///
    /// # Errors
    /// [`Stopped`], within 100 ms of the request; the outputs are then half-written.
    ///
    /// # Panics
    /// When a length does not fit.
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
        for first in (0..rows).step_by(self.rows) {
            let last = rows.min(first + self.rows);
            let m = last - first;
            let residual = &residual[first * width..last * width];
            let eps = self.config.norm_eps;
            rms_norm(
                residual,
                &self.layer.attention_norm,
                eps,
                self.normed.rows_mut(m),
            );
            let q = &mut q[first * q_width..last * q_width];
            let k = &mut k[first * kv_width..last * kv_width];
            let v = &mut v[first * kv_width..last * kv_width];
            self.q.multiply(m, &self.normed, q, stop)?;
            self.k.multiply(m, &self.normed, k, stop)?;
            self.v.multiply(m, &self.normed, v, stop)?;
            self.layer.complete(self.config, q, k, v);
        }
        Ok(())
    }

    /// Second half of the layer: add the projected `attention [rows, q_heads, head_dim]` and then the feed-forward to
    /// `residual [rows, width]`.
    ///
    /// # Errors
    /// [`Stopped`], within 100 ms of the request; the residual is then half-written.
    ///
    /// # Panics
    /// When a length does not fit.
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
        for first in (0..rows).step_by(self.rows) {
            let last = rows.min(first + self.rows);
            let attention = &attention[first * q_width..last * q_width];
            self.finish_block(attention, &mut residual[first * width..last * width], stop)?;
        }
        Ok(())
    }

    /// [`Self::finish`] for at most `self.rows` rows.
    fn finish_block(
        &mut self,
        attention: &[f32],
        residual: &mut [f32],
        stop: &Stop,
    ) -> Result<(), Stopped> {
        let m = residual.len() / self.config.width;
        let added = &mut self.added[..m * self.config.width];
        self.attended.rows_mut(m).copy_from_slice(attention);
        self.o.multiply(m, &self.attended, added, stop)?;
        self.layer.add_attention(self.config, added, residual);
        let eps = self.config.norm_eps;
        rms_norm(residual, &self.layer.ffn_norm, eps, self.normed.rows_mut(m));
        let up = &mut self.up_out[..m * self.config.ffn];
        self.gate
            .multiply(m, &self.normed, self.hidden.rows_mut(m), stop)?;
        self.up.multiply(m, &self.normed, up, stop)?;
        activate(self.config.activation, self.hidden.rows_mut(m), up);
        self.down.multiply(m, &self.hidden, added, stop)?;
        self.layer.add_ffn(self.config, added, residual);
        Ok(())
    }
}
