//! [`LayerPass`]: many rows through one layer. What a layer is stands in `decoder.rs`.

use kept_kernels::mapped::{MappedMatrix, Product, multiply_together};
use kept_kernels::{QuantisedRows, Stop, Stopped, rms_norm};

use crate::Config;
use crate::decoder::{activate, product, widest};
use crate::model::{Layer, Model};
use crate::staged::{PassError, Staged};
use crate::weights::Floats;

/// One layer made ready for many rows.
pub struct LayerPass<'a> {
    config: &'a Config,
    layer: &'a Layer,
    floats: Copies<'a>,
    /// Rows worked on at once.
    rows: usize,
    /// `[rows, width]`: the residual, normed; then what a projection adds to it.
    normed: Vec<f32>,
    /// `[rows, ffn]`: gate, then its activation times `up`.
    hidden: Vec<f32>,
    /// `[rows, ffn]`
    up: Vec<f32>,
    /// `[rows, widest]`: a projection's inputs, rounded.
    rounded: QuantisedRows,
    /// A layer whose weights are on a graphics card is passed there, and all the scratch above is empty.
    staged: Option<Staged<'a>>,
}

/// The matrices of a layer that are not quantised.
struct Copies<'a> {
    q: Floats<'a>,
    k: Floats<'a>,
    v: Floats<'a>,
    o: Floats<'a>,
    gate: Floats<'a>,
    up: Floats<'a>,
    down: Floats<'a>,
}

/// `out = inputs * matrix^T` for matrices with the same inputs, together where they are quantised; `floats` are the same matrices.
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
        match product.matrix.is_quantised() {
            true => {
                rounded.fill(inputs, product.matrix.cols());
                multiply_together([product], rounded, stop)?;
            }
            false => {
                assert!(!product.add, "only quantised matrices add");
                floats.multiply(inputs, product.out, stop)?;
            }
        }
    }
    Ok(())
}

impl<'a> LayerPass<'a> {
    /// Rows worked on at once. The weights stream from the file and are taken apart once for each block of them, which is cheap from
    /// some hundred rows on; scratch grows with them.
    pub const BLOCK_ROWS: usize = 192;

    /// `copy` makes ready what is not quantised.
    pub(crate) fn new(
        model: &'a Model,
        layer: usize,
        max_rows: usize,
        copy: impl Fn(&'a MappedMatrix) -> Floats<'a>,
    ) -> LayerPass<'a> {
        let staged = (model.card()).map(|card| Staged::new(card, layer, max_rows));
        let (config, layer) = (&model.config, &model.layers[layer]);
        let rows = match staged {
            Some(_) => 0,
            None => max_rows.clamp(1, Self::BLOCK_ROWS),
        };
        LayerPass {
            config,
            layer,
            floats: Copies {
                q: copy(&layer.q),
                k: copy(&layer.k),
                v: copy(&layer.v),
                o: copy(&layer.o),
                gate: copy(&layer.gate),
                up: copy(&layer.up),
                down: copy(&layer.down),
            },
            rows,
            normed: vec![0.0; rows * config.width],
            hidden: vec![0.0; rows * config.ffn],
            up: vec![0.0; rows * config.ffn],
            rounded: QuantisedRows::new(rows * widest(config)),
            staged,
        }
    }

    /// Memory of the pass's scratch in bytes, without copies of weights.
    pub fn bytes(&self) -> u64 {
        match self.staged {
            Some(_) => 0,
            None => Self::bytes_for(self.config, self.rows),
        }
    }

    /// [`LayerPass::bytes`] of a pass made for `max_rows` rows, known before there is one.
    pub fn bytes_for(config: &Config, max_rows: usize) -> u64 {
        let rows = max_rows.clamp(1, Self::BLOCK_ROWS);
        let per_row = config.width + 2 * config.ffn;
        (rows * per_row * size_of::<f32>()) as u64 + QuantisedRows::bytes_for(rows * widest(config))
    }

    /// First half of the layer: project `residual [rows, width]` to `q [rows, q_heads, head_dim]`, `k` and `v`
    /// `[rows, kv_heads, head_dim]`, none of them rotated.
    ///
    /// # Errors
    /// [`PassError::Stopped`], within 100 ms of the request; the outputs are then half-written. [`PassError::Card`] of a model on one.
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
    ) -> Result<(), PassError> {
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
        if let Some(staged) = &mut self.staged {
            return staged.project((self.config, layer), residual, [q, k, v], stop);
        }
        for first in (0..rows).step_by(self.rows) {
            let last = rows.min(first + self.rows);
            let residual = &residual[first * width..last * width];
            let normed = &mut self.normed[..residual.len()];
            rms_norm(
                residual,
                &layer.attention_norm,
                self.config.norm_eps,
                normed,
            );
            let q = &mut q[first * q_width..last * q_width];
            let k = &mut k[first * kv_width..last * kv_width];
            let v = &mut v[first * kv_width..last * kv_width];
            multiply(
                normed,
                &mut self.rounded,
                [
                    product(&layer.q, q),
                    product(&layer.k, k),
                    product(&layer.v, v),
                ],
                [&self.floats.q, &self.floats.k, &self.floats.v],
                stop,
            )?;
            layer.complete(self.config, q, k, v);
        }
        Ok(())
    }

    /// Second half of the layer: add the projected `attention [rows, q_heads, head_dim]` and then the feed-forward to
    /// `residual [rows, width]`.
    ///
    /// # Errors
    /// [`PassError::Stopped`], within 100 ms of the request; the residual is then half-written. [`PassError::Card`] of a model on one.
    ///
    /// # Panics
    /// When a length does not fit.
    pub fn finish(
        &mut self,
        attention: &[f32],
        residual: &mut [f32],
        stop: &Stop,
    ) -> Result<(), PassError> {
        let (width, q_width) = (self.config.width, self.config.q_width());
        let rows = residual.len() / width;
        assert_eq!(residual.len(), rows * width, "residual is [rows, width]");
        assert_eq!(
            attention.len(),
            rows * q_width,
            "attention is [rows, q_heads, head_dim]"
        );
        if let Some(staged) = &mut self.staged {
            return staged.finish(self.config, attention, residual, stop);
        }
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
        let Self {
            config,
            layer,
            floats,
            normed,
            hidden,
            up,
            rounded,
            ..
        } = self;
        let normed = &mut normed[..residual.len()];
        let (hidden, up) = (&mut hidden[..m * config.ffn], &mut up[..m * config.ffn]);
        if layer.adds_attention() {
            let product = Product {
                matrix: &layer.o,
                out: &mut *residual,
                add: true,
            };
            multiply(attention, rounded, [product], [&floats.o], stop)?;
        } else {
            let product = product(&layer.o, normed);
            multiply(attention, rounded, [product], [&floats.o], stop)?;
            layer.add_attention(config, normed, residual);
        }
        rms_norm(residual, &layer.ffn_norm, config.norm_eps, normed);
        multiply(
            normed,
            rounded,
            [product(&layer.gate, hidden), product(&layer.up, up)],
            [&floats.gate, &floats.up],
            stop,
        )?;
        activate(config.activation, hidden, up);
        if layer.adds_ffn() {
            let product = Product {
                matrix: &layer.down,
                out: residual,
                add: true,
            };
            return multiply(hidden, rounded, [product], [&floats.down], stop);
        }
        let product = product(&layer.down, normed);
        multiply(hidden, rounded, [product], [&floats.down], stop)?;
        layer.add_ffn(config, normed, residual);
        Ok(())
    }
}
