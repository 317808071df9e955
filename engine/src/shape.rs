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

/// The heads of the model's global layers for the kernels.
pub fn head_shape(model: &Model) -> HeadShape {
    heads_of(&shape_of(model))
}

/// The heads of a layer for the kernels.
pub(crate) fn layer_heads(model: &Model, layer: usize) -> HeadShape {
    let kind = &model.config().kinds[layer];
    HeadShape::new(model.config().q_heads, kind.kv_heads, kind.head_dim)
}

/// The heads of the sliding-window layers, if they differ from those of the global ones.
pub(crate) fn window_heads(model: &Model) -> Option<HeadShape> {
    let mut layers = (0..model.config().layers).map(|layer| layer_heads(model, layer));
    layers.find(|heads| *heads != head_shape(model))
}

/// A method's dimensions for the kernels.
pub(crate) fn heads_of(shape: &ModelShape) -> HeadShape {
    HeadShape::new(shape.q_heads, shape.kv_heads, shape.head_dim)
}
