//! Making a vault: layer after layer, as each is read.

use std::ops::Range;
use std::path::Path;

use kept_kernels::RowStore;

use super::format::{Footer, PIECE, VaultShape};
use super::making::Making;
use super::{RowsOf, VaultError, VaultKey};

/// A vault in the making. It has a name of its own until [`VaultWriter::finish`]; dropped before, it leaves nothing.
#[derive(Debug)]
pub struct VaultWriter {
    making: Making,
    shape: VaultShape,
    footer: Footer,
    /// At most [`PIECE`] bytes, made once.
    piece: Vec<u8>,
    /// Where the layer begins that is being written.
    start: u64,
    /// `[2 * kv_heads]`: of this layer every head's keys, then every head's values.
    heads: Vec<Part>,
    /// What stands behind them.
    behind: Part,
}

/// Bytes that stand one behind the other, as far as they are written.
#[derive(Debug, Default, Clone)]
struct Part {
    bytes: u64,
    checksum: crc32fast::Hasher,
}

impl VaultWriter {
    /// Begins a vault at `target`.
    ///
    /// # Errors
    /// [`VaultError::Busy`] where another process makes the same one; [`VaultError::Io`].
    pub(super) fn begin(
        target: &Path,
        key: &VaultKey,
        document: &str,
        model: &str,
        shape: VaultShape,
    ) -> Result<Self, VaultError> {
        Ok(Self {
            making: Making::begin(target, shape.body_bytes())?,
            footer: Footer::new(key.to_string(), document, model, &shape),
            heads: vec![Part::default(); 2 * shape.heads.kv_heads],
            shape,
            piece: vec![0; PIECE],
            start: 0,
            behind: Part::default(),
        })
    }

    /// What is being written.
    pub fn shape(&self) -> &VaultShape {
        &self.shape
    }

    /// Bytes of memory that writing takes.
    pub fn buffer_bytes() -> u64 {
        PIECE as u64
    }

    /// Tokens whose keys and values are written in a moment, a few pieces of each head.
    pub(crate) fn rows_at_once(&self) -> usize {
        4 * self.rows_of_a_piece()
    }

    fn rows_of_a_piece(&self) -> usize {
        (PIECE / self.shape.kind.row_bytes(self.shape.heads.head_dim)).max(1)
    }

    fn layer(&self) -> usize {
        self.footer.checksums.len()
    }

    /// Adds packed rows of one head to the layer, `packed [rows, row_bytes]`, of the tokens from `first` on; those that the layer does not
    /// keep are left out. Heads may come in any order, the tokens of each one after the other.
    ///
    /// # Errors
    /// [`VaultError::Io`]: a full disk, for one.
    ///
    /// # Panics
    /// When rows before these are missing.
    pub fn packed(
        &mut self,
        (of, head): (RowsOf, usize),
        first: usize,
        packed: &[u8],
    ) -> Result<(), VaultError> {
        let kept = self.shape.rows(self.layer());
        let row_bytes = self.shape.kind.row_bytes(self.shape.heads.head_dim);
        let end = (first + packed.len() / row_bytes).min(kept.end);
        let from = first.max(kept.start);
        if from >= end {
            return Ok(());
        }
        let packed = &packed[(from - first) * row_bytes..(end - first) * row_bytes];
        let which = of as usize * self.shape.heads.kv_heads + head;
        let before = ((from - kept.start) * row_bytes) as u64;
        assert_eq!(self.heads[which].bytes, before, "rows before token {from}");
        let head_bytes = self.shape.head_bytes(self.layer()) as u64;
        let at = self.start + which as u64 * head_bytes + before;
        let part = &mut self.heads[which];
        part.checksum.update(packed);
        part.bytes += packed.len() as u64;
        self.making.put(at, packed)
    }

    /// Packs and adds the keys and values of the tokens `which`, which stand in rows of their own number.
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
        let (kind, dim) = (self.shape.kind, self.shape.heads.head_dim);
        let kept = self.shape.rows(self.layer());
        let which = which.start.max(kept.start)..which.end;
        let at_once = self.rows_of_a_piece();
        let mut piece = std::mem::take(&mut self.piece);
        for (of, store) in RowsOf::BOTH.into_iter().zip([keys, values]) {
            for head in 0..self.shape.heads.kv_heads {
                for first in which.clone().step_by(at_once) {
                    let end = which.end.min(first + at_once);
                    piece.resize((end - first) * kind.row_bytes(dim), 0);
                    kind.pack(&store.head(head)[first * dim..end * dim], dim, &mut piece);
                    self.packed((of, head), first, &piece)?;
                }
            }
        }
        self.piece = piece;
        Ok(())
    }

    /// Adds numbers that stand behind the rows: queries, then each measurement in its order.
    ///
    /// # Errors
    /// As [`VaultWriter::packed`].
    pub fn numbers(&mut self, numbers: &[f32]) -> Result<(), VaultError> {
        self.add_behind(numbers, |number| number.to_le_bytes())
    }

    /// [`VaultWriter::numbers`] of numbers that are f64.
    ///
    /// # Errors
    /// As [`VaultWriter::packed`].
    pub fn sums(&mut self, numbers: &[f64]) -> Result<(), VaultError> {
        self.add_behind(numbers, |number| number.to_le_bytes())
    }

    fn add_behind<T: Copy, const BYTES: usize>(
        &mut self,
        numbers: &[T],
        bytes: fn(T) -> [u8; BYTES],
    ) -> Result<(), VaultError> {
        let rows = self.heads.len() * self.shape.head_bytes(self.layer());
        let mut piece = std::mem::take(&mut self.piece);
        for numbers in numbers.chunks(PIECE / BYTES) {
            piece.clear();
            piece.extend(numbers.iter().flat_map(|&number| bytes(number)));
            let at = self.start + rows as u64 + self.behind.bytes;
            self.behind.checksum.update(&piece);
            self.behind.bytes += piece.len() as u64;
            self.making.put(at, &piece)?;
        }
        self.piece = piece;
        Ok(())
    }

    /// Ends a layer.
    ///
    /// # Panics
    /// When there is more or less in it than the shape says.
    pub fn end_layer(&mut self) {
        let layer = self.layer();
        let mut checksum = crc32fast::Hasher::new();
        let mut bytes = 0;
        for part in self.heads.iter_mut().chain([&mut self.behind]) {
            let part = std::mem::take(part);
            checksum.combine(&part.checksum);
            bytes += part.bytes;
        }
        let expected = self.shape.layer_bytes(layer);
        assert_eq!(bytes, expected, "bytes of layer {layer}");
        self.footer.checksums.push(checksum.finalize());
        self.start += expected;
    }

    /// Writes the tokens `ids` and the footer and gives the file its name. Only now is it a vault.
    ///
    /// # Errors
    /// [`VaultError::Io`].
    ///
    /// # Panics
    /// When layers or tokens are missing.
    pub fn finish(mut self, ids: &[u32]) -> Result<u64, VaultError> {
        let layers = self.shape.windows.len();
        assert_eq!(self.footer.checksums.len(), layers, "layers");
        assert_eq!(ids.len(), self.shape.tokens, "tokens");
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        self.footer.ids_checksum = crc32fast::hash(&bytes);
        self.making.finish(self.start, bytes, &self.footer)
    }
}
