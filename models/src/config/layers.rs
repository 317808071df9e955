//! Properties that vary by layer: windows, heads, widths, and whose keys a layer attends to.

use super::keys::{KV_HEADS, Keys, MAX_COUNT, missing_tensor};
use super::{Blocks, LayerCache, LayerKind, LayerRotation, latent};
use crate::ModelError;
use crate::architecture::{Architecture, Sliding};

/// KV heads and elements per head of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LayerHeads {
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
}

/// Heads of a model.
pub(super) struct Heads {
    /// Query heads of every layer.
    pub(super) q_heads: usize,
    /// Of the global layers.
    pub(super) global: LayerHeads,
    /// Of the sliding-window layers.
    pub(super) window: LayerHeads,
}

impl Heads {
    /// Reads the heads of a model with these `windows`.
    pub(super) fn read(
        keys: &Keys<'_>,
        architecture: &Architecture,
        width: usize,
        windows: &[Option<usize>],
    ) -> Result<Self, ModelError> {
        let q_heads = keys.uniform_count("attention.head_count")?;
        let head_dim = head_dim(keys, architecture, width, q_heads)?;
        let kv_heads = match keys.has(KV_HEADS) {
            false => [q_heads; 2],
            true if architecture.latent => [q_heads; 2],
            true if architecture.window_heads => {
                let counts = keys.counts(KV_HEADS, windows.len())?;
                let of = |slides: bool| {
                    let layers = windows.iter().zip(&counts);
                    let counts = layers.filter(|(window, _)| window.is_some() == slides);
                    same(keys, KV_HEADS, counts.map(|(_, &n)| n))
                };
                let [global, window] = [of(false)?, of(true)?];
                let global = global.or(window).unwrap_or(q_heads);
                [global, window.unwrap_or(global)]
            }
            true => [keys.uniform_count(KV_HEADS)?; 2],
        };
        for kv_heads in kv_heads {
            if !q_heads.is_multiple_of(kv_heads) {
                let needs = format!("it must divide the {q_heads} query heads");
                return Err(keys.bad(KV_HEADS, kv_heads, needs));
            }
        }
        let heads = |at: usize| LayerHeads {
            kv_heads: kv_heads[at],
            head_dim: head_dim[at],
        };
        Ok(Self {
            q_heads,
            global: heads(0),
            window: heads(1),
        })
    }
}

/// The number that all `counts` are; `None` if there are none.
fn same(
    keys: &Keys<'_>,
    key: &str,
    mut counts: impl Iterator<Item = usize>,
) -> Result<Option<usize>, ModelError> {
    let Some(first) = counts.next() else {
        return Ok(None);
    };
    match counts.find(|&n| n != first) {
        None => Ok(Some(first)),
        Some(other) => {
            let needs = format!("{first}, as in the other layers of this kind, is needed");
            Err(keys.bad(key, other, needs))
        }
    }
}

/// Elements per head of global and of sliding-window layers.
fn head_dim(
    keys: &Keys<'_>,
    architecture: &Architecture,
    width: usize,
    q_heads: usize,
) -> Result<[usize; 2], ModelError> {
    let latent = latent::head_dim(keys, architecture, q_heads)?;
    let length = match latent {
        None => keys.optional_count("attention.key_length")?,
        latent => latent,
    };
    let global = match length {
        Some(n) => n,
        None if width.is_multiple_of(q_heads) => width / q_heads,
        None => {
            let needs = format!("it must divide the width {width} when no key_length is given");
            return Err(keys.bad("attention.head_count", q_heads, needs));
        }
    };
    let window = if architecture.window_heads {
        keys.optional_count("attention.key_length_swa")?
    } else {
        None
    };
    let window = window.unwrap_or(global);
    for (length, head_dim) in [
        ("attention.value_length", global),
        ("attention.key_length_swa", window),
        ("attention.value_length_swa", window),
    ] {
        if latent.is_none()
            && let Some(other) = keys.whole(length)?
            && other != head_dim as u64
        {
            let needs = format!("only {head_dim}, the length of a key, is supported");
            return Err(keys.bad(length, other, needs));
        }
    }
    if q_heads * global.max(window) > MAX_COUNT as usize {
        let needs = "fewer heads are needed".to_owned();
        return Err(keys.bad("attention.head_count", q_heads, needs));
    }
    Ok([global, window])
}

/// Number of the file's blocks, and of further blocks that only predict tokens ahead, which Kept leaves out.
pub(super) fn count(
    keys: &Keys<'_>,
    architecture: &Architecture,
) -> Result<(usize, usize), ModelError> {
    let blocks = keys.count("block_count")?;
    let prediction_layers = keys.whole("nextn_predict_layers")?.unwrap_or(0) as usize;
    let count = blocks.saturating_sub(prediction_layers);
    if count == 0 {
        let needs = format!("fewer than the {blocks} layers are needed");
        return Err(keys.bad("nextn_predict_layers", prediction_layers, needs));
    }
    // Checked before anything is allocated per layer, so an inflated count fails first.
    let part = architecture.first_tensor();
    for name in (0..count).map(|layer| format!("blk.{layer}.{part}")) {
        (keys.gguf.tensor(&name)).ok_or_else(|| missing_tensor(&name))?;
    }
    Ok((count, prediction_layers))
}

/// `[layers]`: the blocks of each layer, of a file with `count` blocks. Of single blocks, one with KV heads has
/// attention, one with a feed-forward width a feed-forward, and one with neither is recurrent, as in llama.cpp.
pub(super) fn blocks(
    keys: &Keys<'_>,
    architecture: &Architecture,
    count: usize,
) -> Result<Vec<Blocks>, ModelError> {
    const WIDTH: &str = "feed_forward_length";
    if !architecture.single_blocks {
        let block = |n| Blocks {
            mixer: n,
            feed_forward: Some(n),
        };
        return Ok((0..count).map(block).collect());
    }
    let list = |key| {
        let list = keys.list(key, count)?;
        list.ok_or_else(|| keys.bad(key, "no list", "a list is needed".to_owned()))
    };
    let (kv_heads, widths) = (list(KV_HEADS)?, list(WIDTH)?);
    let mut layers: Vec<Blocks> = Vec::new();
    for (block, (kv_heads, width)) in kv_heads.into_iter().zip(widths).enumerate() {
        let refuse = |needs: &str| {
            let value = format!("{width} in block {block}");
            Err(keys.bad(WIDTH, value, needs.to_owned()))
        };
        if width == 0 {
            layers.push(Blocks {
                mixer: block,
                feed_forward: None,
            });
        } else if kv_heads > 0 {
            return refuse("a block has attention or a feed-forward, not both");
        } else {
            match layers.last_mut() {
                Some(layer) if layer.feed_forward.is_none() => layer.feed_forward = Some(block),
                _ => return refuse("a feed-forward follows attention or a state space"),
            }
        }
    }
    Ok(layers)
}

/// `[layers]`: each layer's window; and the window that the file declares but that is not applied.
pub(super) fn windows(
    keys: &Keys<'_>,
    architecture: &Architecture,
    layers: usize,
) -> Result<(Vec<Option<usize>>, Option<usize>), ModelError> {
    const WINDOW: &str = "attention.sliding_window";
    const PATTERN: &str = "attention.sliding_window_pattern";
    let said = keys.whole(WINDOW)?;
    let (period, window) = match architecture.sliding {
        Sliding::Ignored => {
            let ignored = said.filter(|&n| n > 0).map(|n| n as usize);
            return Ok((vec![None; layers], ignored));
        }
        Sliding::All => match said {
            None | Some(0) => return Ok((vec![None; layers], None)),
            Some(n) => {
                let needs = "at least one layer must attend to every position".to_owned();
                return Err(keys.bad(WINDOW, n, needs));
            }
        },
        Sliding::Most { period, window, .. } => match (said, window) {
            // As in llama.cpp: no sliding-window layers.
            (Some(0), _) | (None, None) => return Ok((vec![None; layers], None)),
            (Some(n), _) => (period, keys.checked_count(WINDOW, n)?),
            (None, Some(window)) => (period, window),
        },
    };
    if let Some(flags) = keys.flags(PATTERN)? {
        if flags.len() != layers {
            let needs = format!("one flag for each of the {layers} layers is needed");
            return Err(keys.bad(PATTERN, format!("{} flags", flags.len()), needs));
        }
        let of = |slides: bool| slides.then_some(window);
        return Ok((flags.into_iter().map(of).collect(), None));
    }
    let period = keys.optional_count(PATTERN)?.unwrap_or(period);
    let of = |layer: usize| (!(layer + 1).is_multiple_of(period)).then_some(window);
    Ok(((0..layers).map(of).collect(), None))
}

/// Refuses a model with sliding-window layers only: it has no layer that attends to a whole document, so there is
/// nothing to compress.
pub(super) fn refuse_all_sliding(
    keys: &Keys<'_>,
    windows: &[Option<usize>],
) -> Result<(), ModelError> {
    if windows.iter().all(Option::is_some) {
        let needs = "at least one layer must attend to every position".to_owned();
        let of = format!("{} layers with a window", windows.len());
        return Err(keys.bad("attention.sliding_window_pattern", of, needs));
    }
    Ok(())
}

/// `[layers]`: the earlier layer whose keys and values a layer attends to, if it has none of its own: the last one of
/// the same kind that has.
pub(super) fn kv_source_layer(
    keys: &Keys<'_>,
    architecture: &Architecture,
    windows: &[Option<usize>],
) -> Result<Vec<Option<usize>>, ModelError> {
    const SHARED: &str = "attention.shared_kv_layers";
    let layers = windows.len();
    let shared = match architecture.shares_kv {
        true => keys.whole(SHARED)?.unwrap_or(0) as usize,
        false => 0,
    };
    let first = layers.saturating_sub(shared);
    let source = |layer: usize| {
        let alike = |&other: &usize| windows[other].is_some() == windows[layer].is_some();
        (0..first).rev().find(alike)
    };
    let all: Vec<Option<usize>> = (0..layers)
        .map(|layer| source(layer).filter(|_| layer >= first))
        .collect();
    match (first..layers).find(|&layer| all[layer].is_none()) {
        None => Ok(all),
        Some(layer) => {
            let needs = format!("layer {layer} has no earlier layer of its kind to share with");
            Err(keys.bad(SHARED, shared, needs))
        }
    }
}

/// What [`kinds`] combines, `[layers]` each.
pub(super) struct Layers {
    pub(super) windows: Vec<Option<usize>>,
    pub(super) recurrent: Vec<bool>,
    pub(super) kv_source_layer: Vec<Option<usize>>,
    /// Widths of the feed-forward.
    pub(super) ffn: Vec<usize>,
    pub(super) experts: Vec<bool>,
    pub(super) blocks: Vec<Blocks>,
}

/// `[layers]`: the kind of each layer.
pub(super) fn kinds(
    layers: &Layers,
    heads: &Heads,
    rotation: impl Fn(usize, Option<usize>) -> LayerRotation,
) -> Vec<LayerKind> {
    let kind = |(layer, &window): (usize, &Option<usize>)| {
        let LayerHeads { kv_heads, head_dim } = match window {
            Some(_) => heads.window,
            None => heads.global,
        };
        let cache = match (layers.kv_source_layer[layer], window) {
            _ if layers.recurrent[layer] => LayerCache::Recurrent,
            (Some(source), _) => LayerCache::SharedKv(source),
            (None, Some(window)) => LayerCache::Sliding(window),
            (None, None) => LayerCache::Global,
        };
        LayerKind {
            cache,
            rotation: rotation(layer, window),
            kv_heads,
            head_dim,
            ffn: layers.ffn[layer],
            experts: layers.experts[layer],
            blocks: layers.blocks[layer],
        }
    };
    layers.windows.iter().enumerate().map(kind).collect()
}
