//! A model's numbers as policies and kernels know them: neither knows a model.

use kept_kernels::HeadShape;
use kept_models::Model;
use kept_policies::ModelShape;

/// Scores are divided by the root of the head's width, as in every llama.
pub(crate) fn attention_scale(model: &Model) -> f32 {
    1.0 / (model.config().head_dim as f32).sqrt()
}

/// The model's numbers as a policy knows them.
pub(crate) fn shape_of(model: &Model) -> ModelShape {
    let config = model.config();
    ModelShape {
        layers: config.layers,
        q_heads: config.q_heads,
        kv_heads: config.kv_heads,
        head_dim: config.head_dim,
    }
}

/// The model's heads as the kernels know them.
pub(crate) fn head_shape(model: &Model) -> HeadShape {
    heads_of(&shape_of(model))
}

/// A policy's numbers as the kernels know them.
pub(crate) fn heads_of(shape: &ModelShape) -> HeadShape {
    HeadShape {
        q_heads: shape.q_heads,
        kv_heads: shape.kv_heads,
        head_dim: shape.head_dim,
    }
}
