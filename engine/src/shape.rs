//! A model's numbers as policies and kernels know them: neither knows a model.

use kept_kernels::{HeadShape, Scale};
use kept_models::Model;
use kept_policies::ModelShape;

/// From dot products to logits, for everything that attends or measures attention.
pub(crate) fn attention_scale(model: &Model) -> Scale {
    Scale {
        factor: model.config().attention_scale,
        cap: model.config().attention_cap,
    }
}

/// The model's numbers as a policy knows them: its layers are those that attend to every position, which alone are cut.
pub(crate) fn shape_of(model: &Model) -> ModelShape {
    let config = model.config();
    ModelShape {
        layers: config.full_layers().count(),
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
