//! What stands where in a vault's file.
//!
//! ```text
//! layer 0 | layer 1 | ... | footer (JSON) | footer length u64 | footer CRC-32 u32 | "KEPTVLT1"
//!
//! layer   keys [kv_heads, tokens] packed rows | values the same | queries [last, q_heads, head_dim] f32
//!         | column sums [q_heads, tokens] f32, where they were measured
//! ```
//!
//! The footer is written last, so a file that was cut short has none and is known by that. Everything is little-endian.

use kept_kernels::PackedRows;
use serde::{Deserialize, Serialize};

/// The last bytes of a whole vault.
pub(super) const MAGIC: &[u8; 8] = b"KEPTVLT1";
/// Bytes after the footer's JSON.
pub(super) const TAIL: usize = 8 + 4 + MAGIC.len();
/// Largest footer that is believed.
pub(super) const MAX_FOOTER: u64 = 16 << 20;
/// Last queries of the document that are kept in each layer: methods look at that many at most from outside the question.
pub(super) const LAST_QUERIES: usize = 512;

/// Heads of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerShape {
    /// Query heads.
    pub q_heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Numbers in a head.
    pub head_dim: usize,
}

/// How large a vault is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VaultShape {
    /// Tokens of the document and of what stands before it.
    pub tokens: usize,
    /// Layers.
    pub layers: usize,
    /// Heads of every layer.
    pub heads: LayerShape,
    /// How keys and values are stored.
    pub kind: PackedRows,
    /// Whether each layer has its column sums.
    pub column_sums: bool,
}

impl VaultShape {
    /// Last queries that are stored.
    pub(super) fn queries(&self) -> usize {
        self.tokens.min(LAST_QUERIES)
    }

    /// Bytes of the keys, or of the values, of one layer.
    pub(super) fn rows_bytes(&self) -> usize {
        self.heads.kv_heads * self.tokens * self.kind.row_bytes(self.heads.head_dim)
    }

    /// Bytes of the stored queries of one layer.
    pub(super) fn queries_bytes(&self) -> usize {
        self.queries() * self.heads.q_heads * self.heads.head_dim * size_of::<f32>()
    }

    /// Bytes of the column sums of one layer.
    pub(super) fn sums_bytes(&self) -> usize {
        usize::from(self.column_sums) * self.heads.q_heads * self.tokens * size_of::<f32>()
    }

    /// Bytes of one layer.
    pub(super) fn layer_bytes(&self) -> usize {
        2 * self.rows_bytes() + self.queries_bytes() + self.sums_bytes()
    }

    /// Bytes of the file, but for some hundreds.
    pub fn bytes(&self) -> u64 {
        (self.layers * self.layer_bytes()) as u64
    }
}

/// The footer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Footer {
    /// Must be the name of the file.
    pub(super) key: String,
    /// Name of the document, for lists.
    pub(super) document: String,
    /// Name of the model, for lists.
    pub(super) model: String,
    pub(super) tokens: usize,
    pub(super) heads: LayerShape,
    /// `f16` or `q8_0`.
    pub(super) rows: String,
    pub(super) column_sums: bool,
    /// `[layers]`: CRC-32 of each layer's bytes.
    pub(super) checksums: Vec<u32>,
}

impl Footer {
    pub(super) fn shape(&self) -> Option<VaultShape> {
        Some(VaultShape {
            tokens: self.tokens,
            layers: self.checksums.len(),
            heads: self.heads,
            kind: kind_named(&self.rows)?,
            column_sums: self.column_sums,
        })
    }
}

pub(super) fn kind_name(kind: PackedRows) -> &'static str {
    match kind {
        PackedRows::F16 => "f16",
        PackedRows::Q8_0 => "q8_0",
    }
}

fn kind_named(name: &str) -> Option<PackedRows> {
    [PackedRows::F16, PackedRows::Q8_0]
        .into_iter()
        .find(|kind| kind_name(*kind) == name)
}
