//! The layout of a vault's file.
//!
//! ```text
//! layer 0 | ... | token ids u32 [tokens] | footer (JSON) | footer length u64 | footer CRC-32 u32 | "KEPTVLT2"
//!
//! layer   keys [kv_heads, rows] packed | values the same | queries [queries, q_heads, head_dim] f32 | measurements
//! ```
//!
//! `rows` are all rows of the document in global layers. Sliding-window layers store only the last rows
//! (`VaultShape::rows`), and no queries or measurements, because no method compresses these layers. The vault of a
//! conversation has the rows of its turns in every layer, and nothing else. The footer is written last, so a truncated
//! file has no footer and is detected. All numbers are little-endian.

use std::ops::Range;

use kept_kernels::{HeadShape, PackedRows};
use kept_policies::{ExpectedQueriesRequest, Reconstruction, ScoreCacheKey};
use serde::{Deserialize, Serialize};

/// The last bytes of a complete vault.
pub(super) const MAGIC: &[u8; 8] = b"KEPTVLT2";
/// Bytes after the footer's JSON.
pub(super) const TAIL: usize = 8 + 4 + MAGIC.len();
/// The largest accepted footer, in bytes.
pub(super) const MAX_FOOTER: u64 = 16 << 20;
/// Number of last queries of the document stored in each layer: twice the largest default observation window. More
/// would cost disk: 512 queries of an 8B model have 268 MB, as much as the q8_0 rows of 4,000 tokens.
pub const LAST_QUERIES: usize = 64;
/// The same, if the vault is written for a method that looks further back (Scissorhands). A method that looks back
/// further than the stored queries has these tokens prefilled again.
pub const MAX_QUERIES: usize = 512;
/// Extra rows before the window in a sliding-window layer: when text is appended to a document, its last tokens may
/// merge into longer ones.
const BEFORE_WINDOW: usize = 64;
/// Bytes that are packed, checked and transferred at a time.
pub(super) const PIECE: usize = 256 << 10;

/// Data measured on a document at the request of a method and stored with its rows, so that a later question skips
/// the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoredMeasurement {
    /// `[q_heads, tokens]` f32: attention probability of each key, summed over all query rows of the document.
    ColumnSums,
    /// f64: sums of the queries before RoPE, `[q_heads, head_dim]`, and of their outer products, as lower triangles
    /// of `[q_heads, head_dim, head_dim]`.
    QuerySums {
        /// Number of first tokens that are left out.
        skip: usize,
        /// Whether outer products are included.
        products: bool,
    },
    /// `[kv_heads, tokens]` f32: attention received during reconstruction.
    #[serde(rename = "repetition")]
    Reconstruction {
        /// First position of the document, which ends with the last row.
        from: usize,
        /// As in [`Reconstruction`].
        chunk: Option<usize>,
        /// As in [`Reconstruction`].
        sinks: usize,
    },
    /// `[kv_heads, tokens]` f32: query-agnostic scores of a method.
    Scores {
        /// Key of the scores: [`ScoreCacheKey::number`].
        of: u64,
    },
}

impl StoredMeasurement {
    /// The most measurements of a vault.
    pub const MAX_MEASUREMENTS: usize = 15;

    /// The measurement for `request`.
    pub fn of_expected_queries(request: ExpectedQueriesRequest) -> Self {
        StoredMeasurement::QuerySums {
            skip: request.skip,
            products: request.covariance,
        }
    }

    /// The measurement for `reconstruction` of a document that begins at `from`.
    pub fn of_reconstruction(reconstruction: Reconstruction, from: usize) -> Self {
        StoredMeasurement::Reconstruction {
            from,
            chunk: reconstruction.chunk,
            sinks: reconstruction.sinks,
        }
    }

    /// The measurement for `score_cache`.
    pub fn of_scores(score_cache: ScoreCacheKey) -> Self {
        StoredMeasurement::Scores {
            of: score_cache.number(),
        }
    }

    /// Whether it is the measurement of a reconstruction.
    pub fn is_reconstruction(&self) -> bool {
        matches!(self, StoredMeasurement::Reconstruction { .. })
    }

    /// Whether it consists of scores, which can also be recomputed from the rows.
    pub fn is_scores(&self) -> bool {
        matches!(self, StoredMeasurement::Scores { .. })
    }

    /// Whether it is valid for one document only, not for others with the same first tokens.
    pub fn is_of_one_document(&self) -> bool {
        self.is_reconstruction() || self.is_scores()
    }

    /// Order in which prefill computes the measurements of a layer.
    pub fn order(&self) -> usize {
        usize::from(self.is_reconstruction()) + 2 * usize::from(self.is_scores())
    }

    /// Bytes in one layer.
    pub fn bytes(self, heads: HeadShape, tokens: usize) -> usize {
        let dim = heads.head_dim;
        match self {
            StoredMeasurement::ColumnSums => heads.q_heads * tokens * size_of::<f32>(),
            StoredMeasurement::QuerySums { products, .. } => {
                let triangle = usize::from(products) * dim * (dim + 1) / 2;
                heads.q_heads * (dim + triangle) * size_of::<f64>()
            }
            StoredMeasurement::Reconstruction { .. } | StoredMeasurement::Scores { .. } => {
                heads.kv_heads * tokens * size_of::<f32>()
            }
        }
    }

    /// Upper bound of all measurements in one layer: the largest one over query heads, and the maximum number of
    /// others.
    pub fn most_bytes(heads: HeadShape, tokens: usize) -> usize {
        let largest = [
            StoredMeasurement::QuerySums {
                skip: 0,
                products: true,
            },
            StoredMeasurement::Scores { of: 0 },
        ];
        let largest = largest.map(|other| other.bytes(heads, tokens));
        let others = (Self::MAX_MEASUREMENTS - 1) * largest.into_iter().max().unwrap_or(0);
        StoredMeasurement::ColumnSums.bytes(heads, tokens) + others
    }

    /// A short description.
    pub fn name(self) -> &'static str {
        match self {
            StoredMeasurement::ColumnSums => "the attention of every token",
            StoredMeasurement::QuerySums { .. } => "the mean of its queries",
            StoredMeasurement::Reconstruction { .. } => {
                "what the model looks at while it repeats the document"
            }
            StoredMeasurement::Scores { .. } => "its scores",
        }
    }
}

/// Dimensions and content of a vault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VaultShape {
    /// Tokens of the document and of the template before it; in the vault of a conversation, of its turns too.
    pub tokens: usize,
    /// In the vault of a conversation, the first token whose rows it stores; `None` in the vault of a document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<usize>,
    /// Heads of every layer, or of the global ones.
    pub heads: HeadShape,
    /// Heads of the sliding-window layers, if they differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_heads: Option<HeadShape>,
    /// Row format of keys and values.
    #[serde(rename = "rows")]
    pub kind: PackedRows,
    /// Number of last queries that each global layer stores.
    pub queries: usize,
    /// `[layers]`: the rows that each layer stores.
    pub windows: Vec<StoredRows>,
    /// Elements of a recurrent layer's state, which it stores in place of rows; 0 without recurrent layers.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub state: usize,
    /// The measurements that each global layer stores, in this order.
    pub measurements: Vec<StoredMeasurement>,
}

/// Which rows a layer stores. In the file a number or `null`, as [`kept_models::LayerKind::window`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Option<usize>", into = "Option<usize>")]
pub enum StoredRows {
    /// Those of all tokens: a global layer.
    All,
    /// Those of the last tokens ([`VaultShape::kept`]): a sliding-window layer with this window.
    Last(usize),
    /// None: a recurrent layer, or one that attends to the rows of an earlier layer.
    None,
}

impl From<Option<usize>> for StoredRows {
    fn from(window: Option<usize>) -> Self {
        match window {
            None => Self::All,
            Some(0) => Self::None,
            Some(window) => Self::Last(window),
        }
    }
}

impl From<StoredRows> for Option<usize> {
    fn from(rows: StoredRows) -> Self {
        match rows {
            StoredRows::All => None,
            StoredRows::Last(window) => Some(window),
            StoredRows::None => Some(0),
        }
    }
}

impl VaultShape {
    /// Whether a layer stores a state in place of rows.
    pub fn is_recurrent(&self, layer: usize) -> bool {
        self.state > 0 && self.windows[layer] == StoredRows::None
    }

    /// Heads of a layer.
    pub fn heads_of(&self, layer: usize) -> HeadShape {
        let own = self
            .window_heads
            .filter(|_| self.windows[layer] != StoredRows::All);
        own.unwrap_or(self.heads)
    }

    /// The tokens whose rows a layer stores.
    pub fn rows(&self, layer: usize) -> Range<usize> {
        match (self.windows[layer], self.from) {
            (StoredRows::None, _) => self.tokens..self.tokens,
            (_, Some(from)) => from..self.tokens,
            (StoredRows::All, None) => 0..self.tokens,
            (StoredRows::Last(window), None) => Self::kept(window, self.tokens),
        }
    }

    /// The tokens, of `tokens` in total, whose rows are stored in a layer with `window`.
    pub fn kept(window: usize, tokens: usize) -> Range<usize> {
        tokens.saturating_sub(window + BEFORE_WINDOW)..tokens
    }

    /// Bytes of one head's keys (or values) in one layer.
    pub fn head_bytes(&self, layer: usize) -> usize {
        self.rows(layer).len() * self.kind.row_bytes(self.heads_of(layer).head_dim)
    }

    /// Number of floats in the queries of one token.
    pub(super) fn query_width(&self) -> usize {
        self.heads.q_heads * self.heads.head_dim
    }

    /// Bytes of one layer. Must not overflow: see `plausible`.
    pub(super) fn layer_bytes(&self, layer: usize) -> u64 {
        let rows = 2 * self.heads_of(layer).kv_heads * self.head_bytes(layer);
        let beside = match self.windows[layer] {
            StoredRows::None => self.state * size_of::<f32>(),
            StoredRows::Last(_) => 0,
            StoredRows::All => {
                let measured = self.measurements.iter();
                let measured = measured.map(|m| m.bytes(self.heads, self.tokens));
                self.queries * self.query_width() * size_of::<f32>() + measured.sum::<usize>()
            }
        };
        (rows + beside) as u64
    }

    /// Bytes of all layers and the token ids.
    pub(super) fn body_bytes(&self) -> u64 {
        let layers = 0..self.windows.len();
        let layers: u64 = layers.map(|layer| self.layer_bytes(layer)).sum();
        layers + (self.tokens * size_of::<u32>()) as u64
    }

    /// Bytes of the file, accurate to some hundreds.
    pub fn bytes(&self) -> u64 {
        self.body_bytes() + 1024
    }

    /// Whether the sizes are plausible: neither their products nor the bytes of all layers overflow.
    fn plausible(&self) -> bool {
        const MAX_DIMENSION: usize = 1 << 28;
        let few = |numbers: &[usize]| {
            let product = numbers.iter().try_fold(1usize, |p, n| p.checked_mul(*n));
            product.is_some_and(|product| product < 1 << 40)
        };
        let of_heads = |heads: HeadShape| {
            let numbers = [self.tokens, heads.q_heads, heads.kv_heads, heads.head_dim];
            numbers.iter().all(|n| (1..MAX_DIMENSION).contains(n))
                && few(&[self.tokens, heads.q_heads, heads.head_dim, 16])
                && few(&[heads.q_heads, heads.head_dim, heads.head_dim, 16])
                && few(&[self.tokens, heads.kv_heads, heads.head_dim, 16])
        };
        of_heads(self.heads)
            && self.window_heads.is_none_or(of_heads)
            && self.queries <= self.tokens
            && self.from.is_none_or(|from| from < self.tokens)
            && self.windows.len() < 1 << 12
            && self.state < MAX_DIMENSION
            && self.measurements.len() <= StoredMeasurement::MAX_MEASUREMENTS
            && self.windows.iter().all(|rows| match rows {
                StoredRows::Last(window) => *window < MAX_DIMENSION,
                StoredRows::All | StoredRows::None => true,
            })
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// The footer of the file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Footer {
    /// Key of the vault; must equal the file name.
    pub(super) key: String,
    /// Name of the document, for lists.
    pub(super) document: String,
    /// Name of the model, for lists.
    pub(super) model: String,
    #[serde(flatten)]
    pub(super) shape: VaultShape,
    /// `[layers]`: CRC-32 of each layer's bytes.
    pub(super) checksums: Vec<u32>,
    /// CRC-32 of the token ids.
    pub(super) ids_checksum: u32,
}

impl Footer {
    /// Whether the shape is plausible.
    pub(super) fn is_valid(&self) -> bool {
        self.shape.plausible() && self.checksums.len() == self.shape.windows.len()
    }
}
