//! The shape of latent attention, from the metadata.

use super::keys::{KV_HEADS, Keys};
use crate::ModelError;
use crate::architecture::Architecture;

/// Lengths of a key and of a value in files for absorbed attention, whose `key_length` is that of the cached latent.
const KEY: &str = "attention.key_length_mla";
const VALUE: &str = "attention.value_length_mla";

/// Numbers of multi-head latent attention (MLA), whose queries, keys and values are products of low rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatentShape {
    /// Rank of queries; `None` if they are one product.
    pub q_rank: Option<usize>,
    /// Rank of keys and values: numbers in the latent of a token.
    pub kv_rank: usize,
    /// Elements of a query or key without RoPE.
    pub plain: usize,
    /// Elements of a query or key with RoPE; a key's are the same in all heads.
    pub rotated: usize,
    /// Elements of a value, at most as many as a key has.
    pub value: usize,
    /// Whether the file has the factors of keys and of values apart, those of keys transposed.
    pub apart: bool,
}

impl LatentShape {
    /// The higher rank.
    pub(crate) fn widest_rank(self) -> usize {
        self.kv_rank.max(self.q_rank.unwrap_or(0))
    }

    /// Elements per head of what the second factor of keys and values makes.
    pub(crate) fn expanded(self) -> usize {
        self.plain + self.value
    }
}

/// Elements of a key, or `None` without latent attention. Checks the KV heads, which are as many as the query heads; a
/// file for absorbed attention has one.
pub(super) fn head_dim(
    keys: &Keys<'_>,
    architecture: &Architecture,
    q_heads: usize,
) -> Result<Option<usize>, ModelError> {
    if !architecture.latent {
        return Ok(None);
    }
    let (length, kv_heads) = match keys.has(KEY) {
        true => (KEY, 1),
        false => ("attention.key_length", q_heads),
    };
    if keys.has(KV_HEADS) {
        let found = keys.uniform_count(KV_HEADS)?;
        if found != kv_heads {
            return Err(keys.bad(KV_HEADS, found, format!("{kv_heads} is needed")));
        }
    }
    keys.count(length).map(Some)
}

/// The shape of a model whose keys have `key` elements, `rotated` of them with RoPE.
pub(super) fn shape(
    keys: &Keys<'_>,
    architecture: &Architecture,
    key: usize,
    rotated: usize,
) -> Result<Option<LatentShape>, ModelError> {
    const Q_RANK: &str = "attention.q_lora_rank";
    if !architecture.latent {
        return Ok(None);
    }
    let apart = keys.has(KEY);
    let length = match apart {
        true => VALUE,
        false => "attention.value_length",
    };
    let value = keys.count(length)?;
    if value > key {
        let needs = format!("at most {key}, the length of a key, is supported");
        return Err(keys.bad(length, value, needs));
    }
    if rotated >= key {
        let needs = format!("fewer than the {key} elements of a key are needed");
        return Err(keys.bad("rope.dimension_count", rotated, needs));
    }
    let q_rank = match keys.whole(Q_RANK)? {
        None | Some(0) => None,
        Some(n) => Some(keys.checked_count(Q_RANK, n)?),
    };
    Ok(Some(LatentShape {
        q_rank,
        kv_rank: keys.count("attention.kv_lora_rank")?,
        plain: key - rotated,
        rotated,
        value,
        apart,
    }))
}
