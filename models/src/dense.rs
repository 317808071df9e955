//! The weights of a model whose layers are all attention with a dense feed-forward, for a device that has its own copy.

use kept_kernels::mapped::MappedMatrix;

use crate::Model;
use crate::architecture::QkNorm;
use crate::feed_forward::{Dense, FeedForward};
use crate::layer::{Attention, Layer, Mixer};

/// Weights of a layer: vectors `V` and matrices `M`. A weight is `None` if the model does not have it.
pub struct DenseLayer<V, M> {
    /// `[width]`
    pub attention_norm: V,
    /// The matrices of queries, keys, values, attention output, gate, up and down, `[outputs, inputs]` each.
    pub matrices: [M; 7],
    /// `[q_heads * head_dim]`
    pub q_bias: Option<V>,
    /// `[kv_heads * head_dim]`
    pub k_bias: Option<V>,
    /// `[kv_heads * head_dim]`
    pub v_bias: Option<V>,
    /// `[head_dim]`: norm of each query head, before RoPE.
    pub q_norm: Option<V>,
    /// `[head_dim]`: norm of each key head, before RoPE.
    pub k_norm: Option<V>,
    /// `[width]`
    pub o_bias: Option<V>,
    /// `[width]`: norm of attention's output before it is added.
    pub post_attention_norm: Option<V>,
    /// `[width]`
    pub ffn_norm: V,
    /// `[width]`: norm of the feed-forward's output before it is added.
    pub post_ffn_norm: Option<V>,
}

/// Weights of a layer in the model's file.
pub type FileLayer<'a> = DenseLayer<&'a [f32], &'a MappedMatrix>;

impl<V, M> DenseLayer<V, M> {
    /// A device's copy of the layer: `copy` of every vector, and `matrices`.
    ///
    /// # Errors
    /// Those of `copy`.
    pub fn copied<W, N, E>(
        &self,
        matrices: [N; 7],
        copy: impl Fn(&V) -> Result<W, E>,
    ) -> Result<DenseLayer<W, N>, E> {
        let optional = |vector: &Option<V>| vector.as_ref().map(&copy).transpose();
        Ok(DenseLayer {
            attention_norm: copy(&self.attention_norm)?,
            matrices,
            q_bias: optional(&self.q_bias)?,
            k_bias: optional(&self.k_bias)?,
            v_bias: optional(&self.v_bias)?,
            q_norm: optional(&self.q_norm)?,
            k_norm: optional(&self.k_norm)?,
            o_bias: optional(&self.o_bias)?,
            post_attention_norm: optional(&self.post_attention_norm)?,
            ffn_norm: copy(&self.ffn_norm)?,
            post_ffn_norm: optional(&self.post_ffn_norm)?,
        })
    }
}

/// Weights of a model, except the embedding.
pub struct DenseWeights<'a> {
    /// The layers, from 0.
    pub layers: Vec<FileLayer<'a>>,
    /// `[width]`
    pub output_norm: &'a [f32],
    /// `[vocab, width]`
    pub output: &'a MappedMatrix,
}

impl Model {
    /// The weights, if the model has nothing else than a [`DenseLayer`] in each layer; otherwise the name of a part
    /// that it has besides.
    pub fn dense_weights(&self) -> Result<DenseWeights<'_>, &'static str> {
        self.has_dense_arithmetic()?;
        let layers = self.layers.iter().map(FileLayer::of);
        Ok(DenseWeights {
            layers: layers.collect::<Result<_, _>>()?,
            output_norm: &self.output_norm,
            output: &self.output,
        })
    }

    fn has_dense_arithmetic(&self) -> Result<(), &'static str> {
        let config = self.config();
        if config.latent.is_some() {
            return Err("latent attention");
        }
        if config.query_scale.is_some() {
            return Err("queries scaled by their position");
        }
        if !config.has_uniform_layers() || config.architecture.output_scale {
            return Err("layers that differ in more than their windows");
        }
        if config.residual_scale != 1.0 || config.logit_scale != 1.0 {
            return Err("scaled residuals or logits");
        }
        if config.architecture.centred_norms || config.architecture.parallel {
            return Err("layers whose attention and feed-forward are parallel");
        }
        match (config.architecture.pre_norm, config.architecture.qk_norm) {
            (false, _) => Err("layers without a norm before attention"),
            (true, QkNorm::Together) => Err("norms over several heads"),
            (true, QkNorm::HeadsAfterRope) => Err("norms after RoPE"),
            (true, QkNorm::None | QkNorm::Heads | QkNorm::HeadsInSome) => Ok(()),
        }
    }
}

impl<'a> FileLayer<'a> {
    fn of(layer: &'a Layer) -> Result<Self, &'static str> {
        let Mixer::Attention(attention) = &layer.mixer else {
            return Err("recurrent layers");
        };
        let FeedForward::Dense(Dense { gate, up, down, .. }) = &layer.ffn else {
            return Err("mixtures of experts");
        };
        let gate = gate.as_ref().ok_or("feed-forwards without a gate")?;
        if attention.sinks.is_some() {
            return Err("attention sinks");
        }
        let Attention {
            q,
            k: Some(k),
            v: Some(v),
            o,
            ..
        } = attention
        else {
            return Err("values that are keys");
        };
        let present = |norm: &'a Option<Vec<f32>>| {
            norm.as_deref()
                .ok_or("layers without a norm before attention")
        };
        Ok(Self {
            attention_norm: present(&layer.attention_norm)?,
            matrices: [q, k, v, o, gate, up, down],
            q_bias: attention.q_bias.as_deref(),
            k_bias: attention.k_bias.as_deref(),
            v_bias: attention.v_bias.as_deref(),
            q_norm: attention.q_norm.as_deref(),
            k_norm: attention.k_norm.as_deref(),
            o_bias: attention.o_bias.as_deref(),
            post_attention_norm: layer.post_attention_norm.as_deref(),
            ffn_norm: present(&layer.ffn_norm)?,
            post_ffn_norm: layer.post_ffn_norm.as_deref(),
        })
    }
}
