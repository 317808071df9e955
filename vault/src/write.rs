//! Writing a vault: layer by layer, as prefill completes each.

use std::ops::Range;
use std::path::Path;

use kept_kernels::{HeadShape, RowStore};

use super::format::{Footer, PIECE, VaultShape};
use super::unfinished_file::UnfinishedFile;
use super::{RowsOf, VaultError, VaultKey};

/// An unfinished vault, under a temporary name until [`VaultWriter::finish`]. If dropped earlier, its file is
/// removed.
#[derive(Debug)]
pub struct VaultWriter {
    file: UnfinishedFile,
    footer: Footer,
    /// Buffer of at most [`PIECE`] bytes, allocated once.
    piece: Vec<u8>,
    /// Offset of the current layer.
    start: u64,
    /// `[2 * kv_heads]`: every head's keys, then every head's values, of the current layer.
    heads: Vec<Part>,
    /// The elements after the rows.
    behind: Part,
}

/// A contiguous byte range of the file, as far as it is written.
#[derive(Debug, Default, Clone)]
struct Part {
    bytes: u64,
    checksum: crc32fast::Hasher,
}

/// The most KV heads of any layer.
fn most_heads(shape: &VaultShape) -> usize {
    let window = shape.window_heads.map_or(0, |heads| heads.kv_heads);
    shape.heads.kv_heads.max(window)
}

impl VaultWriter {
    /// Begins to write a vault at `target`.
    ///
    /// # Errors
    /// [`VaultError::Busy`] if another process writes the same vault; [`VaultError::Io`].
    pub(super) fn begin(
        target: &Path,
        key: &VaultKey,
        document: &str,
        model: &str,
        shape: VaultShape,
    ) -> Result<Self, VaultError> {
        Ok(Self {
            file: UnfinishedFile::begin(target, shape.body_bytes())?,
            heads: vec![Part::default(); 2 * most_heads(&shape)],
            footer: Footer {
                key: key.to_string(),
                document: document.to_owned(),
                model: model.to_owned(),
                checksums: Vec::with_capacity(shape.windows.len()),
                ids_checksum: 0,
                shape,
            },
            piece: vec![0; PIECE],
            start: 0,
            behind: Part::default(),
        })
    }

    /// Dimensions and content of the vault.
    pub fn shape(&self) -> &VaultShape {
        &self.footer.shape
    }

    /// Bytes of the buffers for writing.
    pub fn buffer_bytes() -> u64 {
        PIECE as u64
    }

    fn rows_of_a_piece(&self) -> usize {
        (PIECE / self.footer.shape.kind.row_bytes(self.heads().head_dim)).max(1)
    }

    /// Heads of the layer that is written.
    pub fn heads(&self) -> HeadShape {
        self.footer.shape.heads_of(self.layer())
    }

    fn layer(&self) -> usize {
        self.footer.checksums.len()
    }

    /// Adds packed rows of one head to the layer: `packed` is `[rows, row_bytes]`, for the tokens from `first` on;
    /// rows that the layer does not store are skipped. Heads may come in any order, the tokens of each head in
    /// ascending order.
    ///
    /// # Errors
    /// [`VaultError::Io`], for example on a full disk.
    ///
    /// # Panics
    /// If rows before these are missing.
    pub fn packed(
        &mut self,
        side: RowsOf,
        head: usize,
        first: usize,
        packed: &[u8],
    ) -> Result<(), VaultError> {
        let kept = self.footer.shape.rows(self.layer());
        let heads = self.heads();
        let row_bytes = self.footer.shape.kind.row_bytes(heads.head_dim);
        let end = (first + packed.len() / row_bytes).min(kept.end);
        let from = first.max(kept.start);
        if from >= end {
            return Ok(());
        }
        let packed = &packed[(from - first) * row_bytes..(end - first) * row_bytes];
        let which = side as usize * heads.kv_heads + head;
        let before = ((from - kept.start) * row_bytes) as u64;
        assert_eq!(self.heads[which].bytes, before, "rows before token {from}");
        let head_bytes = self.footer.shape.head_bytes(self.layer()) as u64;
        let at = self.start + which as u64 * head_bytes + before;
        let part = &mut self.heads[which];
        part.checksum.update(packed);
        part.bytes += packed.len() as u64;
        self.file.write_at(at, packed)
    }

    /// Packs and adds the keys and values of the tokens `which`; row == token.
    ///
    /// # Errors
    /// As [`VaultWriter::packed`].
    ///
    /// # Panics
    /// As [`VaultWriter::packed`].
    pub fn rows(
        &mut self,
        keys: &RowStore,
        values: &RowStore,
        which: Range<usize>,
    ) -> Result<(), VaultError> {
        let (kind, heads) = (self.footer.shape.kind, self.heads());
        let dim = heads.head_dim;
        let kept = self.footer.shape.rows(self.layer());
        let which = which.start.max(kept.start)..which.end;
        let at_once = self.rows_of_a_piece();
        let mut piece = std::mem::take(&mut self.piece);
        for (side, store) in RowsOf::BOTH.into_iter().zip([keys, values]) {
            for head in 0..heads.kv_heads {
                for first in which.clone().step_by(at_once) {
                    let end = which.end.min(first + at_once);
                    piece.resize((end - first) * kind.row_bytes(dim), 0);
                    kind.pack(&store.head(head)[first * dim..end * dim], dim, &mut piece);
                    self.packed(side, head, first, &piece)?;
                }
            }
        }
        self.piece = piece;
        Ok(())
    }

    /// Adds the elements after the rows: queries, then each measurement in order.
    ///
    /// # Errors
    /// As [`VaultWriter::packed`].
    pub fn elements(&mut self, elements: &[f32]) -> Result<(), VaultError> {
        self.write_elements(elements, |number| number.to_le_bytes())
    }

    /// [`VaultWriter::elements`] for f64 elements.
    ///
    /// # Errors
    /// As [`VaultWriter::packed`].
    pub fn sums(&mut self, elements: &[f64]) -> Result<(), VaultError> {
        self.write_elements(elements, |number| number.to_le_bytes())
    }

    fn write_elements<T: Copy, const BYTES: usize>(
        &mut self,
        elements: &[T],
        bytes: fn(T) -> [u8; BYTES],
    ) -> Result<(), VaultError> {
        let rows = 2 * self.heads().kv_heads * self.footer.shape.head_bytes(self.layer());
        let mut piece = std::mem::take(&mut self.piece);
        for elements in elements.chunks(PIECE / BYTES) {
            piece.clear();
            piece.extend(elements.iter().flat_map(|&number| bytes(number)));
            let at = self.start + rows as u64 + self.behind.bytes;
            self.behind.checksum.update(&piece);
            self.behind.bytes += piece.len() as u64;
            self.file.write_at(at, &piece)?;
        }
        self.piece = piece;
        Ok(())
    }

    /// Ends a layer.
    ///
    /// # Panics
    /// If its size differs from the shape's.
    pub fn end_layer(&mut self) {
        let layer = self.layer();
        let mut checksum = crc32fast::Hasher::new();
        let mut bytes = 0;
        for part in self.heads.iter_mut().chain([&mut self.behind]) {
            let part = std::mem::take(part);
            checksum.combine(&part.checksum);
            bytes += part.bytes;
        }
        let expected = self.footer.shape.layer_bytes(layer);
        assert_eq!(bytes, expected, "bytes of layer {layer}");
        self.footer.checksums.push(checksum.finalize());
        self.start += expected;
    }

    /// Writes the token ids and the footer, and renames the file, which completes the vault. Returns its size in
    /// bytes.
    ///
    /// # Errors
    /// [`VaultError::Io`].
    ///
    /// # Panics
    /// If layers or tokens are missing.
    pub fn finish(mut self, ids: &[u32]) -> Result<u64, VaultError> {
        let layers = self.footer.shape.windows.len();
        assert_eq!(self.footer.checksums.len(), layers, "layers");
        assert_eq!(ids.len(), self.footer.shape.tokens, "tokens");
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        self.footer.ids_checksum = crc32fast::hash(&bytes);
        self.file.finish(self.start, bytes, &self.footer)
    }
}
