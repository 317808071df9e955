//! Which layers are recurrent, and their shape.

use kept_kernels::{DeltaShape, RecurrentShape, StateSpaceShape};

use super::Blocks;
use super::keys::{KV_HEADS, Keys};
use crate::ModelError;
use crate::architecture::{Architecture, Recurrence};

/// Taps of a convolution.
const TAPS: std::ops::RangeInclusive<usize> = 2..=16;

/// The shape of the recurrent layers of an architecture that has them, in a model of `width`.
pub(super) fn shape(
    keys: &Keys<'_>,
    architecture: &Architecture,
    width: usize,
) -> Result<Option<RecurrentShape>, ModelError> {
    match architecture.recurrence {
        Recurrence::None => Ok(None),
        Recurrence::Delta(_) => Ok(Some(RecurrentShape::Delta(delta(keys, architecture)?))),
        Recurrence::StateSpace => Ok(Some(RecurrentShape::StateSpace(state_space(keys)?))),
        Recurrence::Convolution => {
            let taps = keys.count("shortconv.l_cache")?;
            check_taps(keys, "shortconv.l_cache", taps)?;
            let channels = width;
            Ok(Some(RecurrentShape::Convolution { channels, taps }))
        }
    }
}

fn check_taps(keys: &Keys<'_>, key: &str, taps: usize) -> Result<(), ModelError> {
    match TAPS.contains(&taps) {
        true => Ok(()),
        false => Err(keys.bad(key, taps, "2 to 16 taps are supported".to_owned())),
    }
}

/// Heads of gated delta nets.
fn delta(keys: &Keys<'_>, architecture: &Architecture) -> Result<DeltaShape, ModelError> {
    let shape = DeltaShape {
        key_heads: keys.count("ssm.group_count")?,
        value_heads: keys.count("ssm.time_step_rank")?,
        dim: keys.count("ssm.state_size")?,
        taps: keys.count("ssm.conv_kernel")?,
        grouped: architecture.value_groups,
    };
    if !shape.value_heads.is_multiple_of(shape.key_heads) {
        let needs = format!("it must divide the {} value heads", shape.value_heads);
        return Err(keys.bad("ssm.group_count", shape.key_heads, needs));
    }
    let inner = keys.count("ssm.inner_size")? as u64;
    if inner != shape.value_heads as u64 * shape.dim as u64 {
        let needs = format!(
            "{} heads of {}, the length of a key, are supported",
            shape.value_heads, shape.dim
        );
        return Err(keys.bad("ssm.inner_size", inner, needs));
    }
    if !(2..=1024).contains(&shape.dim) || inner > 1 << 20 || !TAPS.contains(&shape.taps) {
        let needs = "2 to 16 taps and heads of 2 to 1,024 numbers are supported".to_owned();
        return Err(keys.bad("ssm.conv_kernel", shape.taps, needs));
    }
    Ok(shape)
}

/// Heads of state spaces.
fn state_space(keys: &Keys<'_>) -> Result<StateSpaceShape, ModelError> {
    let (groups, heads) = (
        keys.count("ssm.group_count")?,
        keys.count("ssm.time_step_rank")?,
    );
    if !heads.is_multiple_of(groups) {
        let needs = format!("it must divide the {heads} heads");
        return Err(keys.bad("ssm.group_count", groups, needs));
    }
    let inner = keys.count("ssm.inner_size")?;
    if !inner.is_multiple_of(heads) {
        let needs = format!("{heads} heads of the same size are needed");
        return Err(keys.bad("ssm.inner_size", inner, needs));
    }
    let shape = StateSpaceShape {
        groups,
        heads,
        head_dim: inner / heads,
        state: keys.count("ssm.state_size")?,
        taps: keys.count("ssm.conv_kernel")?,
    };
    if shape.head_dim.max(shape.state) > 1024 || shape.channels() > 1 << 20 {
        let needs = "heads and states of at most 1,024 numbers are supported".to_owned();
        return Err(keys.bad("ssm.state_size", shape.state, needs));
    }
    check_taps(keys, "ssm.conv_kernel", shape.taps)?;
    Ok(shape)
}

/// `[layers]`: whether each layer is recurrent.
pub(super) fn layers(
    keys: &Keys<'_>,
    architecture: &Architecture,
    blocks: &[Blocks],
) -> Result<Vec<bool>, ModelError> {
    let layers = blocks.len();
    let every = match architecture.recurrence {
        Recurrence::None => return Ok(vec![false; layers]),
        Recurrence::Delta(every) => every,
        Recurrence::Convolution | Recurrence::StateSpace => {
            let last = blocks.iter().map(|blocks| blocks.mixer).max();
            let counts = keys.list(KV_HEADS, last.map_or(0, |last| last + 1))?;
            let none = |counts: Vec<u64>| {
                let of = |blocks: &Blocks| counts[blocks.mixer] == 0;
                blocks.iter().map(of).collect()
            };
            return Ok(counts.map_or(vec![false; layers], none));
        }
    };
    if let Some(flags) = keys.flags("attention.recurrent_layers")? {
        if flags.len() < layers {
            let needs = format!("one flag for each of the {layers} layers is needed");
            let found = format!("{} flags", flags.len());
            return Err(keys.bad("attention.recurrent_layers", found, needs));
        }
        return Ok(flags[..layers].to_vec());
    }
    let every = keys
        .optional_count("full_attention_interval")?
        .unwrap_or(every);
    Ok((1..=layers)
        .map(|layer| !layer.is_multiple_of(every))
        .collect())
}

/// Refuses a model with recurrent layers only: it has no layer that attends to a document, so there is nothing to
/// compress.
pub(super) fn refuse_all(
    keys: &Keys<'_>,
    architecture: &Architecture,
    recurrent: &[bool],
) -> Result<(), ModelError> {
    if recurrent.iter().any(|&recurrent| !recurrent) {
        return Ok(());
    }
    let key = match architecture.recurrence {
        Recurrence::Convolution | Recurrence::StateSpace => KV_HEADS,
        _ => "full_attention_interval",
    };
    let needs = "at least one layer must have attention".to_owned();
    Err(keys.bad(key, "no layer with attention", needs))
}
