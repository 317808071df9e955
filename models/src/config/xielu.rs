//! The numbers of xIELU, from the metadata. Their keys have no architecture before them.

use super::keys::{Keys, bad, missing};
use crate::ModelError;
use crate::architecture::{Activation, Architecture, Xielu};
use crate::gguf::Value;

/// `[layers]`: the numbers of an architecture that has them, otherwise empty. As in llama.cpp, a key has a list, or one
/// number for all layers.
pub(super) fn read(
    keys: &Keys<'_>,
    architecture: &Architecture,
    layers: usize,
) -> Result<Vec<Xielu>, ModelError> {
    if !matches!(architecture.activation, Activation::Xielu(_)) {
        return Ok(Vec::new());
    }
    let numbers = |key: &str| {
        if !matches!(keys.gguf.get(key), Some(Value::Array(_))) {
            let number = keys.gguf.number(key)?.ok_or_else(|| missing(key))?;
            return Ok(vec![number as f32; layers]);
        }
        let numbers = keys.gguf.numbers(key)?.unwrap_or_default();
        if numbers.len() != layers {
            let needs = format!("one for each of the {layers} layers is needed");
            return Err(bad(key, format!("{} numbers", numbers.len()), needs));
        }
        Ok(numbers)
    };
    let (alpha_n, alpha_p) = (numbers("xielu.alpha_n")?, numbers("xielu.alpha_p")?);
    let (beta, eps) = (numbers("xielu.beta")?, numbers("xielu.eps")?);
    let of_layer = |layer: usize| Xielu {
        alpha_n: alpha_n[layer],
        alpha_p: alpha_p[layer],
        beta: beta[layer],
        eps: eps[layer],
    };
    Ok((0..layers).map(of_layer).collect())
}
