//! Norms of queries and keys after RoPE (Hunyuan).
//!
//! RoPE does not change the root mean square of a head, but the weights of its norm, one for each element, must follow
//! it: they differ within a pair. Attention sees only products of weights, `w_q q * w_k k`, so a weight of keys can move
//! to queries:
//!
//! ```text
//! key   = RoPE(g * k / rms(k))                    g is the same for both elements of a pair
//! query = (w_q w_k / g) * RoPE(q / rms(q))
//! ```
//!
//! Then keys have no factor after RoPE, so that a cache may hold them before or after it. With the root mean square of
//! a pair's weights as `g`, keys are as long as the model's own, averaged over positions: methods see this length.

use std::sync::Arc;

use kept_kernels::Pairing;

use super::keys::Keys;
use super::layers::Heads;
use super::{Blocks, RopeConfig};
use crate::ModelError;
use crate::architecture::{Architecture, QkNorm};
use crate::weights;

/// A layer's norms of queries and keys after RoPE.
#[derive(Debug, Clone, PartialEq)]
pub struct NormAfterRope {
    /// `[head_dim]`: weights of the norm of keys before RoPE.
    pub key: Vec<f32>,
    /// `[head_dim]`: factors on queries after RoPE, whose norm before it has no weights.
    pub query: Arc<Vec<f32>>,
}

impl NormAfterRope {
    /// From the weights of the norms, `[head_dim]` each.
    fn new(of_queries: &[f32], of_keys: &[f32], rope: &RopeConfig) -> Self {
        let mut key = of_keys.to_vec();
        for pair in 0..rope.dims / 2 {
            let (a, b) = match rope.pairing {
                Pairing::Halves => (pair, pair + rope.dims / 2),
                Pairing::Neighbours => (2 * pair, 2 * pair + 1),
            };
            let square = (of_keys[a] * of_keys[a] + of_keys[b] * of_keys[b]) / 2.0;
            (key[a], key[b]) = (square.sqrt(), square.sqrt());
        }
        let each = of_queries.iter().zip(of_keys).zip(&key);
        let query = each.map(|((of_query, of_key), key)| match *key {
            0.0 => 0.0,
            key => of_query * of_key / key,
        });
        let query = Arc::new(query.collect());
        Self { key, query }
    }
}

/// `[layers]`: the norms of an architecture that has them after RoPE, otherwise empty. They divide by RoPE's magnitude,
/// which becomes 1.
pub(super) fn read(
    keys: &Keys<'_>,
    architecture: &Architecture,
    blocks: &[Blocks],
    heads: &Heads,
    rope: &mut RopeConfig,
) -> Result<Vec<NormAfterRope>, ModelError> {
    if architecture.qk_norm != QkNorm::HeadsAfterRope {
        return Ok(Vec::new());
    }
    rope.magnitude = 1.0;
    let of_layer = |block: &Blocks| {
        let weights = |part| {
            let name = format!("blk.{}.{part}.weight", block.mixer);
            weights::vector(keys.gguf, &name, heads.global.head_dim)
        };
        let (of_queries, of_keys) = (weights("attn_q_norm")?, weights("attn_k_norm")?);
        Ok(NormAfterRope::new(&of_queries, &of_keys, rope))
    };
    blocks.iter().map(of_layer).collect()
}
