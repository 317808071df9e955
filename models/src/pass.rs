//! [`LayerPass`]: rows through one layer, as described in `decoder.rs`.

mod feed_forward;
mod scratch;

use std::borrow::BorrowMut;

use kept_kernels::mapped::MappedMatrix;
use kept_kernels::{RecurrentState, Stop, Stopped, sigmoid_mul};

use crate::Config;
use crate::arithmetic::{multiply, multiply_and_add, normalise};
use crate::feed_forward::{Dense, FeedForward};
use crate::latent::LatentCopies;
use crate::layer::{Attention, Layer, Mixer};
use crate::model::Model;
use crate::recurrent::{RecurrentCopies, RecurrentTask};
use crate::weights::Floats;

use scratch::Block;
pub(crate) use scratch::LayerScratch;

/// One layer prepared for rows: many in prefill, one in decode. The scratch buffers `S` are its own, or those of all
/// layers.
pub struct LayerPass<'a, S = LayerScratch> {
    model: &'a Model,
    config: &'a Config,
    layer: &'a Layer,
    /// Which layer it is.
    index: usize,
    floats: Copies<'a>,
    /// Rows per block, and columns per block of the feed-forward.
    block: Block,
    scratch: S,
}

/// The matrices of a layer, with f32 copies of those that are not quantised.
struct Copies<'a> {
    mixer: MixerCopies<'a>,
    ffn: FeedForwardCopies<'a>,
}

enum MixerCopies<'a> {
    Attention {
        q: Floats<'a>,
        k: Option<Floats<'a>>,
        v: Option<Floats<'a>>,
        o: Floats<'a>,
        latent: Option<LatentCopies<'a>>,
    },
    Recurrent(RecurrentCopies<'a>),
}

/// Experts are multiplied in place.
struct FeedForwardCopies<'a> {
    /// Gate, if there is one, up and down.
    dense: Option<(Option<Floats<'a>>, [Floats<'a>; 2])>,
    router: Option<Floats<'a>>,
}

impl<'a> FeedForwardCopies<'a> {
    fn new(ffn: &'a FeedForward, copy: impl Fn(&'a MappedMatrix) -> Floats<'a>) -> Self {
        let dense = ffn.dense().map(|Dense { gate, up, down, .. }| {
            let gate = gate.as_ref().map(&copy);
            (gate, [up, down].map(&copy))
        });
        Self {
            dense,
            router: ffn.experts().map(|experts| copy(&experts.router)),
        }
    }
}

/// Why [`FeedForwardCopies`] has what is asked of it.
const COPIED: &str = "copies of the same layer";

impl Model {
    /// Prepares one layer for many rows; each call of the pass takes at most `max_rows` rows.
    ///
    /// Floating-point and transposed weights are copied when first multiplied (`layer_tiles_bytes`) and freed with the
    /// pass.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn layer_pass(&self, layer: usize, max_rows: usize) -> LayerPass<'_> {
        LayerPass::new(self, layer, max_rows, max_rows)
    }

    /// Like [`Model::layer_pass`], but multiplies weights that it copies in place for any number of rows. For few rows
    /// a copy would cost more than it saves.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn layer_pass_mapped(&self, layer: usize, max_rows: usize) -> LayerPass<'_> {
        LayerPass::new(self, layer, max_rows, 0)
    }

    /// One layer for one row, which does not allocate.
    ///
    /// # Panics
    /// If there is no such layer.
    pub(crate) fn row_pass<'a>(
        &'a self,
        layer: usize,
        scratch: &'a mut LayerScratch,
    ) -> LayerPass<'a, &'a mut LayerScratch> {
        let block = Block::new(&self.layers[layer], 1);
        LayerPass::with_scratch(self, layer, block, 0, scratch)
    }
}

impl<'a> LayerPass<'a> {
    /// How many times the weights are read from the file for `rows` rows.
    pub fn weight_passes(model: &Model, rows: usize) -> usize {
        let layers = model.layers.iter();
        let block = layers.map(|layer| Block::new(layer, rows).rows);
        rows.div_ceil(block.min().unwrap_or(1))
    }

    /// Copies weights for up to `copied_rows` rows; for 0, none.
    fn new(model: &'a Model, layer: usize, max_rows: usize, copied_rows: usize) -> Self {
        let (config, own) = (&model.config, &model.layers[layer]);
        let recurrent = match &own.mixer {
            Mixer::Attention(_) => None,
            Mixer::Recurrent(own) => Some(own.shape()),
        };
        let block = Block::new(own, max_rows);
        let scratch = LayerScratch::new(config, block, max_rows, recurrent);
        Self::with_scratch(model, layer, block, copied_rows, scratch)
    }

    /// Scratch memory in bytes, without copies of weights.
    pub fn bytes(&self) -> u64 {
        self.block.bytes(self.config) + size_of_val(self.scratch.gates.as_slice()) as u64
    }

    /// The maximum over layers of [`LayerPass::bytes`] for `max_rows` rows, or for the one row that passes layers without
    /// keys of their own; without creating a pass.
    pub fn bytes_for(model: &Model, max_rows: usize) -> u64 {
        let layers = model.layers.iter().zip(&model.config.kinds);
        let bytes = layers.map(|(layer, kind)| {
            let rows = kind.kv_source_layer().map_or(max_rows, |_| 1);
            Block::new(layer, rows).bytes(&model.config)
        });
        let gates = max_rows * model.config.gate_width() * size_of::<f32>();
        bytes.max().unwrap_or(0) + gates as u64
    }
}

impl<'a, S: BorrowMut<LayerScratch>> LayerPass<'a, S> {
    fn with_scratch(
        model: &'a Model,
        index: usize,
        block: Block,
        copied_rows: usize,
        scratch: S,
    ) -> Self {
        let copy = |matrix| match copied_rows {
            0 => Floats::mapped(matrix),
            rows => Floats::new(matrix, rows),
        };
        let layer = &model.layers[index];
        let mixer = match &layer.mixer {
            Mixer::Attention(own) => MixerCopies::Attention {
                q: copy(&own.q),
                k: own.k.as_ref().map(&copy),
                v: own.v.as_ref().map(&copy),
                o: copy(&own.o),
                latent: (own.latent.as_ref()).map(|latent| latent.copies(copied_rows, copy)),
            },
            Mixer::Recurrent(recurrent) => MixerCopies::Recurrent(recurrent.copies(copy)),
        };
        let ffn = FeedForwardCopies::new(&layer.ffn, copy);
        Self {
            model,
            config: &model.config,
            layer,
            index,
            floats: Copies { mixer, ffn },
            block,
            scratch,
        }
    }

    /// First half of the layer: projects `residual [rows, width]` to `q [rows, q_heads, head_dim]`, `k` and `v`
    /// `[rows, kv_heads, head_dim]`, all before RoPE. In a layer without keys of its own, `k` and `v` are not written.
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
        let layer = self.layer;
        let attention = layer.attention();
        let (width, q_width) = (self.config.width, self.config.q_width_of(self.index));
        let kv_width = match attention.k.is_some() || attention.latent.is_some() {
            true => self.config.kv_width_of(self.index),
            false => 0,
        };
        let rows = residual.len() / width;
        assert_eq!(residual.len(), rows * width, "residual is [rows, width]");
        assert_eq!(q.len(), rows * q_width, "q is [rows, q_heads, head_dim]");
        if kv_width > 0 {
            assert_eq!(k.len(), rows * kv_width, "k is [rows, kv_heads, head_dim]");
            assert_eq!(v.len(), rows * kv_width, "v is [rows, kv_heads, head_dim]");
        }
        let MixerCopies::Attention {
            q: of_q,
            k: of_k,
            v: of_v,
            latent: of_latent,
            ..
        } = &self.floats.mixer
        else {
            panic!("a recurrent layer has no attention");
        };
        let scratch = self.scratch.borrow_mut();
        scratch.projected = rows;
        for first in (0..rows).step_by(self.block.rows) {
            let last = rows.min(first + self.block.rows);
            let residual = &residual[first * width..last * width];
            let normed = &mut scratch.normed[..residual.len()];
            normalise(
                self.config,
                layer.attention_norm.as_deref(),
                residual,
                normed,
            );
            let q = &mut q[first * q_width..last * q_width];
            let k = &mut k[first * kv_width..last * kv_width];
            let v = &mut v[first * kv_width..last * kv_width];
            if let (Some(latent), Some(space)) = (of_latent, &mut scratch.latent) {
                let space = (space, &mut scratch.rounded);
                latent.project(self.config, of_q, normed, [q, k, v], space, stop)?;
                continue;
            }
            let gated = !scratch.q_and_gates.is_empty();
            let q_and_gates = &mut scratch.q_and_gates[..if gated { 2 * q.len() } else { 0 }];
            let queries = (of_q, if gated { &mut *q_and_gates } else { &mut *q });
            let rounded = &mut scratch.rounded;
            match (of_k, of_v) {
                (Some(of_k), Some(of_v)) => {
                    let all = [queries, (of_k, &mut *k), (of_v, &mut *v)];
                    multiply(normed, rounded, all, stop)?;
                }
                (Some(of_k), None) => {
                    multiply(normed, rounded, [queries, (of_k, &mut *k)], stop)?;
                    v.copy_from_slice(k);
                }
                _ => multiply(normed, rounded, [queries], stop)?,
            }
            if gated {
                let gates = &mut scratch.gates[first * q_width..last * q_width];
                Attention::split_gates(self.config.head_dim, q_and_gates, q, gates);
            }
            attention.apply_bias_and_norms(self.config, q, k, v);
        }
        Ok(())
    }

    /// Second half of the layer: projects `attention [rows, q_heads, head_dim]` of the last rows that were projected,
    /// whose tokens are `tokens [rows]` (needed if layers add embeddings), adds it to `residual [rows, width]`, then adds the feed-forward.
    ///
    /// # Errors
    /// [`Stopped`], within 100 ms of the request; the residual is then partly written.
    ///
    /// # Panics
    /// If a length is wrong.
    pub fn finish(
        &mut self,
        attention: &[f32],
        tokens: &[u32],
        residual: &mut [f32],
        stop: &Stop,
    ) -> Result<(), Stopped> {
        let (width, q_width) = (self.config.width, self.config.q_width_of(self.index));
        let rows = residual.len() / width;
        assert_eq!(residual.len(), rows * width, "residual is [rows, width]");
        assert_eq!(
            attention.len(),
            rows * q_width,
            "attention is [rows, q_heads, head_dim]"
        );
        let skipped = self.scratch.borrow().projected - rows;
        for first in (0..rows).step_by(self.block.rows) {
            let last = rows.min(first + self.block.rows);
            let attention = &attention[first * q_width..last * q_width];
            let residual = &mut residual[first * width..last * width];
            let tokens = tokens.get(first..last).unwrap_or(&[]);
            let parallel = self.config.architecture.parallel;
            if parallel {
                // Before attention is added: both have the same input.
                self.feed_forward(tokens, residual, stop)?;
            }
            self.attention_block(attention, skipped + first, residual, stop)?;
            if !parallel {
                self.feed_forward(tokens, residual, stop)?;
            }
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
        state: &mut RecurrentState,
        stop: &Stop,
    ) -> Result<(), Stopped> {
        let width = self.config.width;
        for residual in residual.chunks_mut(self.block.rows * width) {
            let (Mixer::Recurrent(recurrent), MixerCopies::Recurrent(copies)) =
                (&self.layer.mixer, &self.floats.mixer)
            else {
                panic!("the layer is not recurrent");
            };
            let scratch = self.scratch.borrow_mut();
            let normed = &mut scratch.normed[..residual.len()];
            normalise(
                self.config,
                self.layer.attention_norm.as_deref(),
                residual,
                normed,
            );
            let task = RecurrentTask {
                config: self.config,
                copies,
                normed,
            };
            let space = scratch.recurrent.as_mut().expect("the layer is recurrent");
            recurrent.add(&task, residual, state, space, stop)?;
            self.feed_forward(&[], residual, stop)?;
        }
        Ok(())
    }

    /// Adds the attention of at most one block of rows, the first of which is row `row` of those projected.
    fn attention_block(
        &mut self,
        attention: &[f32],
        row: usize,
        residual: &mut [f32],
        stop: &Stop,
    ) -> Result<(), Stopped> {
        let (layer, config) = (self.layer, self.config);
        let MixerCopies::Attention { o: of_o, .. } = &self.floats.mixer else {
            panic!("a recurrent layer has no attention");
        };
        let own = layer.attention();
        let LayerScratch {
            rounded,
            q_and_gates,
            gates,
            normed,
            latent,
            ..
        } = self.scratch.borrow_mut();
        let attention = if let (Some(own), Some(space)) = (&own.latent, latent) {
            space.values(own.shape(), attention)
        } else if gates.is_empty() {
            attention
        } else {
            let gated = &mut q_and_gates[..attention.len()];
            gated.copy_from_slice(attention);
            let first = row * config.q_width_of(self.index);
            sigmoid_mul(gated, &gates[first..first + attention.len()]);
            &*gated
        };
        if layer.adds_attention(config, own) {
            multiply_and_add(attention, rounded, &own.o, residual, stop)?;
        } else {
            let added = &mut normed[..residual.len()];
            multiply(attention, rounded, [(of_o, &mut *added)], stop)?;
            layer.add_attention(config, own, added, residual);
        }
        Ok(())
    }
}
