//! Using a vault: one layer at a time, as the question comes to it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kept_kernels::RowStore;
use kept_kernels::mapped::MappedFile;

use super::format::{Footer, MAGIC, MAX_FOOTER, TAIL, VaultShape};
use super::{VaultError, VaultKey};

/// A whole vault, mapped. While it exists no process removes it.
#[derive(Debug)]
pub struct Vault {
    bytes: Arc<MappedFile>,
    path: PathBuf,
    shape: VaultShape,
    footer: Footer,
    /// Holds the lock that keeps it from being removed.
    _open: File,
}

impl Vault {
    /// Opens the vault at `path`, which must be that of `key`. Its footer is checked now, each layer when it is used.
    ///
    /// # Errors
    /// [`VaultError::Io`]; [`VaultError::Damaged`] when it is not whole.
    pub(super) fn open(path: &Path, key: &VaultKey) -> Result<Self, VaultError> {
        let damaged = |what: &str| VaultError::Damaged {
            path: path.to_owned(),
            what: what.to_owned(),
        };
        let file = File::open(path).map_err(VaultError::io(path))?;
        file.lock_shared().map_err(VaultError::io(path))?;
        let bytes = MappedFile::open(path).map_err(VaultError::io(path))?;
        let footer = footer(bytes.bytes()).map_err(damaged)?;
        if footer.key != key.to_string() {
            return Err(damaged("it belongs to another document, model or setting"));
        }
        let shape = footer.shape();
        let shape = shape.ok_or_else(|| damaged("its rows are of an unknown type"))?;
        let expected = (shape.layers).checked_mul(shape.layer_bytes());
        let layers = bytes.len() - TAIL - footer_length(bytes.bytes());
        if expected != Some(layers) {
            return Err(damaged("its layers are not as long as it says"));
        }
        Ok(Self {
            bytes,
            path: path.to_owned(),
            shape,
            footer,
            _open: file,
        })
    }

    /// How large it is.
    pub fn shape(&self) -> VaultShape {
        self.shape
    }

    /// Name of the document.
    pub fn document(&self) -> &str {
        &self.footer.document
    }

    /// Name of the model.
    pub fn model(&self) -> &str {
        &self.footer.model
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Writes the keys and values of `layer` into the first rows of every head.
    ///
    /// # Errors
    /// [`VaultError::Damaged`] when the layer is not what was written.
    ///
    /// # Panics
    /// When there is no such layer, or the rows have no room.
    pub fn rows(
        &self,
        layer: usize,
        keys: &mut RowStore,
        values: &mut RowStore,
    ) -> Result<(), VaultError> {
        let (shape, heads) = (self.shape, self.shape.heads);
        let bytes = self.layer(layer);
        if crc32fast::hash(bytes) != self.footer.checksums[layer] {
            return Err(VaultError::Damaged {
                path: self.path.clone(),
                what: format!("layer {layer} has changed"),
            });
        }
        let head_bytes = shape.tokens * shape.kind.row_bytes(heads.head_dim);
        let mut parts = bytes.chunks_exact(head_bytes);
        for store in [keys, values] {
            for h in 0..heads.kv_heads {
                let rows = &mut store.head_mut(h)[..shape.tokens * heads.head_dim];
                let part = parts.next().expect("a layer is as long as its shape");
                shape.kind.unpack(part, heads.head_dim, rows);
            }
        }
        Ok(())
    }

    /// Appends the rotated queries of the last `count` tokens of `layer`, `[count, q_heads, head_dim]`. `None` where fewer are
    /// stored.
    pub fn queries(&self, layer: usize, count: usize, out: &mut Vec<f32>) -> Option<()> {
        let missing = self.shape.queries().checked_sub(count)?;
        let width = self.shape.heads.q_heads * self.shape.heads.head_dim;
        let from = 2 * self.shape.rows_bytes();
        let bytes = &self.layer(layer)[from..][..self.shape.queries_bytes()];
        let numbers = bytes.as_chunks::<4>().0[missing * width..].iter();
        out.extend(numbers.map(|bytes| f32::from_le_bytes(*bytes)));
        Some(())
    }

    /// Writes the column sums of `layer` into `out [q_heads, n]`, the first `tokens` of every head. `None` where none are stored.
    pub fn column_sums(&self, layer: usize, out: &mut [f32], n: usize) -> Option<()> {
        let shape = self.shape;
        if !shape.column_sums {
            return None;
        }
        let from = 2 * shape.rows_bytes() + shape.queries_bytes();
        let numbers = self.layer(layer)[from..].as_chunks::<4>().0;
        let heads = numbers.chunks_exact(shape.tokens);
        for (out, sums) in out.chunks_exact_mut(n).zip(heads) {
            for (out, bytes) in out.iter_mut().zip(sums) {
                *out = f32::from_le_bytes(*bytes);
            }
        }
        Some(())
    }

    fn layer(&self, layer: usize) -> &[u8] {
        let bytes = self.shape.layer_bytes();
        &self.bytes.bytes()[layer * bytes..][..bytes]
    }
}

/// Length of the footer's JSON as the file says it; 0 where the file is too short to say.
fn footer_length(bytes: &[u8]) -> usize {
    let tail = bytes.len().checked_sub(TAIL).map(|at| &bytes[at..]);
    let length = tail.and_then(|tail| tail.first_chunk::<8>());
    let length = length.map_or(0, |length| u64::from_le_bytes(*length));
    length.min(MAX_FOOTER + 1) as usize
}

/// The footer of a whole vault, or what is wrong with it.
fn footer(bytes: &[u8]) -> Result<Footer, &'static str> {
    if !bytes.ends_with(MAGIC) {
        return Err("it was not written to its end");
    }
    let length = footer_length(bytes);
    let end = bytes.len().checked_sub(TAIL).ok_or("it is too short")?;
    let start = end.checked_sub(length).ok_or("its end is damaged")?;
    let json = &bytes[start..end];
    let checksum = bytes[end + 8..].first_chunk::<4>();
    if checksum.map(|bytes| u32::from_le_bytes(*bytes)) != Some(crc32fast::hash(json)) {
        return Err("its end is damaged");
    }
    serde_json::from_slice(json).map_err(|_| "its end is damaged")
}

/// Document, model and tokens of the vault at `path`, for lists; `None` where it is not whole.
pub(super) fn describe(path: &Path) -> Option<(String, String, usize)> {
    let bytes = MappedFile::open(path).ok()?;
    let footer = footer(bytes.bytes()).ok()?;
    Some((footer.document, footer.model, footer.tokens))
}
