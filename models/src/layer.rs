//! The weights of one decoder layer, read from the file.

use kept_kernels::mapped::MappedMatrix;
use kept_kernels::rms_norm_in_place;

use crate::architecture::{Part, QkNorm};
use crate::arithmetic::{add_bias, add_normed};
use crate::config::{Blocks, LatentShape};
use crate::feed_forward::{Dense, FeedForward};
use crate::gguf::Gguf;
use crate::latent::Latent;
use crate::per_layer::PerLayer;
use crate::recurrent::Recurrent;
use crate::{Config, ModelError, weights};

/// Weights of one decoder layer. A weight is `None` if files of its architecture do not have it.
pub(crate) struct Layer {
    /// `[width]`
    pub(crate) attention_norm: Option<Vec<f32>>,
    pub(crate) mixer: Mixer,
    /// `[width]`: norm of the mixer's output before it is added.
    pub(crate) post_attention_norm: Option<Vec<f32>>,
    /// `[width]`
    pub(crate) ffn_norm: Option<Vec<f32>>,
    pub(crate) ffn: FeedForward,
    /// `[width]`: norm of the feed-forward output before it is added.
    pub(crate) post_ffn_norm: Option<Vec<f32>>,
    /// The embeddings that the layer adds.
    pub(crate) per_layer: Option<PerLayer>,
    /// Factor on the residual stream after the layer; 1 in most models.
    pub(crate) output_scale: f32,
}

/// What mixes the tokens of one layer.
pub(crate) enum Mixer {
    Attention(Attention),
    Recurrent(Recurrent),
}

/// Weights of attention. A weight is `None` if files of its architecture do not have it.
pub(crate) struct Attention {
    /// `[q_heads * head_dim, width]`; with output gates `[q_heads * 2 * head_dim, width]`, each head's query and gate.
    pub(crate) q: MappedMatrix,
    /// `[kv_heads * head_dim, width]`; `None` in a layer that attends to the keys of an earlier one, and with `latent`.
    pub(crate) k: Option<MappedMatrix>,
    /// `[kv_heads * head_dim, width]`; `None` if values are the keys as projected, or without keys.
    pub(crate) v: Option<MappedMatrix>,
    /// `[q_heads * head_dim]`
    pub(crate) q_bias: Option<Vec<f32>>,
    /// `[kv_heads * head_dim]`
    pub(crate) k_bias: Option<Vec<f32>>,
    /// `[kv_heads * head_dim]`
    pub(crate) v_bias: Option<Vec<f32>>,
    /// `[head_dim]`, or `[q_heads * head_dim]`: norm of each query head, or of all together, before RoPE.
    pub(crate) q_norm: Option<Vec<f32>>,
    /// `[head_dim]`, or `[kv_heads * head_dim]`: norm of each key head, or of all together, before RoPE.
    pub(crate) k_norm: Option<Vec<f32>>,
    /// `[head_dim]`: norm of each value head.
    pub(crate) v_norm: Option<Vec<f32>>,
    /// `[width, q_heads * head_dim]`
    pub(crate) o: MappedMatrix,
    /// `[width]`
    pub(crate) o_bias: Option<Vec<f32>>,
    /// `[q_heads]`: logits that take part in every softmax of a head and belong to no key.
    pub(crate) sinks: Option<Vec<f32>>,
    /// What else latent attention has; then `q` is its projection of queries, which may have other inputs, and `o` reads
    /// values without zeros.
    pub(crate) latent: Option<Box<Latent>>,
}

impl Attention {
    fn read(gguf: &Gguf, config: &Config, layer: usize) -> Result<Self, ModelError> {
        if let Some(shape) = config.latent {
            return Self::read_latent(gguf, config, shape, config.kinds[layer].blocks.mixer);
        }
        let width = config.width;
        let (q_width, kv_width) = (config.q_width_of(layer), config.kv_width_of(layer));
        let (architecture, kind) = (config.architecture, &config.kinds[layer]);
        let block = kind.blocks.mixer;
        let weight = |part: &str| format!("blk.{block}.{part}.weight");
        let matrix = |part, rows, cols| weights::matrix(gguf, &weight(part), rows, cols);
        let bias = |kind: Part, part: &str, len: usize| {
            let name = format!("blk.{block}.{part}.bias");
            match kind {
                Part::Absent => Ok(None),
                Part::Optional => weights::optional_vector(gguf, &name, len),
                Part::Required => weights::vector(gguf, &name, len).map(Some),
            }
        };
        let has = |part: &str| gguf.tensor(&weight(part)).is_some();
        let q_rows = if architecture.output_gate {
            2 * q_width
        } else {
            q_width
        };
        let [q, k, v] = if kind.kv_source_layer().is_some() {
            [Some(matrix("attn_q", q_rows, width)?), None, None]
        } else if architecture.value_norm && !has("attn_v") && !has("attn_qkv") {
            let k = matrix("attn_k", kv_width, width)?;
            [Some(matrix("attn_q", q_rows, width)?), Some(k), None]
        } else if has("attn_qkv") || architecture.fused && !has("attn_q") {
            // With both, one of the tensors would be ignored.
            if let Some(part) = ["attn_q", "attn_k", "attn_v"]
                .into_iter()
                .find(|part| has(part))
            {
                return Err(ModelError::UnknownTensor { name: weight(part) });
            }
            let qkv = [q_rows, kv_width, kv_width];
            weights::stacked(gguf, &weight("attn_qkv"), qkv, width)?.map(Some)
        } else {
            let [k, v] = ["attn_k", "attn_v"].map(|part| matrix(part, kv_width, width));
            [matrix("attn_q", q_rows, width)?, k?, v?].map(Some)
        };
        let after_rope = config.norms_after_rope.get(layer);
        let norm = |part, width| match architecture.qk_norm {
            QkNorm::None => Ok(None),
            QkNorm::HeadsAfterRope => Ok(Some(match (part, after_rope) {
                ("attn_k_norm", Some(norms)) => norms.key.clone(),
                _ => vec![1.0; kind.head_dim],
            })),
            QkNorm::Heads => weights::vector(gguf, &weight(part), kind.head_dim).map(Some),
            QkNorm::HeadsInSome => weights::optional_vector(gguf, &weight(part), kind.head_dim),
            QkNorm::Together => weights::vector(gguf, &weight(part), width).map(Some),
        };
        let of_keys = k.is_some();
        let key_bias = |part| match of_keys {
            true => bias(architecture.qkv_bias, part, kv_width),
            false => Ok(None),
        };
        Ok(Self {
            q: q.expect("every layer has queries"),
            q_bias: bias(architecture.qkv_bias, "attn_q", q_rows)?,
            k_bias: key_bias("attn_k")?,
            v_bias: key_bias("attn_v")?,
            q_norm: norm("attn_q_norm", q_width)?,
            k_norm: match of_keys {
                true => norm("attn_k_norm", kv_width)?,
                false => None,
            },
            v_norm: (architecture.value_norm && of_keys).then(|| vec![1.0; kind.head_dim]),
            k,
            v,
            o: matrix("attn_output", width, q_width)?,
            o_bias: bias(architecture.output_bias, "attn_output", width)?,
            sinks: (architecture.sinks)
                .then(|| weights::vector(gguf, &weight("attn_sinks"), config.q_heads))
                .transpose()?,
            latent: None,
        })
    }

    fn read_latent(
        gguf: &Gguf,
        config: &Config,
        shape: LatentShape,
        block: usize,
    ) -> Result<Self, ModelError> {
        let (q, latent) = Latent::read(gguf, config, shape, block)?;
        let output = format!("blk.{block}.attn_output.weight");
        Ok(Self {
            q,
            k: None,
            v: None,
            q_bias: None,
            k_bias: None,
            v_bias: None,
            q_norm: None,
            k_norm: None,
            v_norm: None,
            o: weights::matrix(gguf, &output, config.width, config.q_heads * shape.value)?,
            o_bias: None,
            sinks: None,
            latent: Some(Box::new(latent)),
        })
    }

    /// Adds biases and applies head norms to projected queries `q [rows, q_heads * head_dim]`, keys and values
    /// `[rows, kv_heads * head_dim]`.
    pub(crate) fn apply_bias_and_norms(
        &self,
        config: &Config,
        q: &mut [f32],
        k: &mut [f32],
        v: &mut [f32],
    ) {
        for (x, bias) in [
            (&mut *q, &self.q_bias),
            (&mut *k, &self.k_bias),
            (&mut *v, &self.v_bias),
        ] {
            add_bias(x, bias);
        }
        for (x, norm) in [(q, &self.q_norm), (k, &self.k_norm), (v, &self.v_norm)] {
            if let Some(norm) = norm {
                rms_norm_in_place(x, norm, config.norm_eps);
            }
        }
    }

    /// Splits `both [rows, q_heads, 2 head_dim]` into queries and gates, `[rows, q_heads, head_dim]` each.
    pub(crate) fn split_gates(dim: usize, both: &[f32], q: &mut [f32], gates: &mut [f32]) {
        let heads = q.chunks_exact_mut(dim).zip(gates.chunks_exact_mut(dim));
        for (both, (q, gate)) in both.chunks_exact(2 * dim).zip(heads) {
            q.copy_from_slice(&both[..dim]);
            gate.copy_from_slice(&both[dim..]);
        }
    }
}

impl Layer {
    pub(crate) fn read(gguf: &Gguf, config: &Config, layer: usize) -> Result<Layer, ModelError> {
        let (width, architecture) = (config.width, config.architecture);
        let kind = &config.kinds[layer];
        let Blocks {
            mixer,
            feed_forward,
        } = kind.blocks;
        let last = kind.blocks.last();
        let norm_if = |there: bool, block: usize, part: &str| {
            let norm = || weights::vector(gguf, &format!("blk.{block}.{part}"), width);
            there.then(norm).transpose()
        };
        let has_ffn_norm = architecture.pre_norm && feed_forward.is_some();
        let recurrent = config.recurrent.filter(|_| kind.is_recurrent());
        Ok(Layer {
            attention_norm: norm_if(architecture.pre_norm, mixer, "attn_norm.weight")?,
            mixer: match recurrent {
                Some(shape) => Mixer::Recurrent(Recurrent::read(gguf, config, shape, mixer)?),
                None => Mixer::Attention(Attention::read(gguf, config, layer)?),
            },
            post_attention_norm: norm_if(
                architecture.sandwich,
                mixer,
                "post_attention_norm.weight",
            )?,
            ffn_norm: norm_if(has_ffn_norm, last, architecture.ffn_norm)?,
            ffn: FeedForward::read(gguf, config, kind)?,
            post_ffn_norm: norm_if(architecture.sandwich, last, "post_ffw_norm.weight")?,
            per_layer: (config.per_layer)
                .map(|per_layer| PerLayer::read(gguf, config, per_layer, last))
                .transpose()?,
            output_scale: match architecture.output_scale {
                true => {
                    let name = format!("blk.{last}.layer_output_scale.weight");
                    weights::optional_vector(gguf, &name, 1)?
                }
                false => None,
            }
            .map_or(1.0, |scale| scale[0]),
        })
    }

    /// The layer's attention.
    ///
    /// # Panics
    /// If the layer is recurrent.
    pub(crate) fn attention(&self) -> &Attention {
        match &self.mixer {
            Mixer::Attention(attention) => attention,
            Mixer::Recurrent(_) => panic!("a recurrent layer has no attention"),
        }
    }

    /// The matrices that are copied if they are not quantised: all but those of the experts.
    pub(crate) fn copied(&self) -> Vec<&MappedMatrix> {
        let mut all: Vec<&MappedMatrix> = match &self.mixer {
            Mixer::Attention(Attention { q, k, v, o, .. }) => {
                [Some(q), k.as_ref(), v.as_ref(), Some(o)]
                    .into_iter()
                    .flatten()
                    .collect()
            }
            Mixer::Recurrent(recurrent) => recurrent.matrices(),
        };
        let dense = self.ffn.dense().into_iter();
        all.extend(dense.flat_map(Dense::matrices));
        all.extend(self.ffn.experts().map(|experts| &experts.router));
        all
    }

    /// Bytes of the f32 copies for many rows.
    pub(crate) fn copied_bytes(&self) -> u64 {
        let latent = match &self.mixer {
            Mixer::Attention(attention) => attention.latent.as_ref(),
            Mixer::Recurrent(_) => None,
        };
        let matrices = self.copied().into_iter().map(weights::copied_bytes);
        matrices.sum::<u64>() + latent.map_or(0, |latent| latent.copied_bytes())
    }

    /// Whether the output projection of attention can add to the residual stream directly.
    pub(crate) fn adds_attention(&self, config: &Config, attention: &Attention) -> bool {
        attention.o.is_quantised()
            && attention.o_bias.is_none()
            && self.post_attention_norm.is_none()
            && config.residual_scale == 1.0
    }

    /// Whether the down projection of the feed-forward can add to the residual stream directly.
    pub(crate) fn adds_ffn(&self, config: &Config, ffn: &Dense) -> bool {
        ffn.down.is_quantised() && self.post_ffn_norm.is_none() && config.residual_scale == 1.0
    }

    /// Adds the projected attention output `added [rows, width]` to the residual stream.
    pub(crate) fn add_attention(
        &self,
        config: &Config,
        attention: &Attention,
        added: &mut [f32],
        residual: &mut [f32],
    ) {
        add_bias(added, &attention.o_bias);
        add_normed(config, &self.post_attention_norm, added, residual);
    }

    /// Adds the projected feed-forward output `added [rows, width]` to the residual stream.
    pub(crate) fn add_ffn(&self, config: &Config, added: &mut [f32], residual: &mut [f32]) {
        add_normed(config, &self.post_ffn_norm, added, residual);
    }
}
