//! A model's dimensions in the types of policies and kernels, which do not depend on the model crate.

use kept_kernels::{HeadShape, Scale};
use kept_models::Model;
use kept_policies::ModelShape;

/// Scale and cap of a layer's attention logits, and its sinks.
pub(crate) fn attention_scale(model: &Model, layer: usize) -> Scale<'_> {
    Scale {
        factor: model.config().attention_scale,
        cap: model.config().attention_cap,
        sinks: model.attention_sinks(layer),
    }
}

/// As [`attention_scale`], for a GPU, on which no model has sinks.
pub(crate) fn gpu_attention_scale(model: &Model) -> Scale<'static> {
    Scale {
        factor: model.config().attention_scale,
        cap: model.config().attention_cap,
        sinks: None,
    }
}

/// The model's dimensions for policies: its layers are the global layers, the only ones that methods compact.
pub(crate) fn shape_of(model: &Model) -> ModelShape {
    let config = model.config();
    ModelShape {
        layers: config.full_layers().count(),
        q_heads: config.q_heads,
        kv_heads: config.kv_heads,
        head_dim: config.head_dim,
    }
}

/// The model's heads for the kernels.
pub(crate) fn head_shape(model: &Model) -> HeadShape {
    heads_of(&shape_of(model))
}

/// A method's dimensions for the kernels.
pub(crate) fn heads_of(shape: &ModelShape) -> HeadShape {
    HeadShape {
        q_heads: shape.q_heads,
        kv_heads: shape.kv_heads,
        head_dim: shape.head_dim,
    }
}
