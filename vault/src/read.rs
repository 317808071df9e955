//! Reading a vault: one layer at a time, as prefill reaches it.
//!
//! The file is read, not mapped: truncation is then an error instead of a crash (SIGBUS), and memory is bounded by
//! one piece at a time, as the ledger counts it.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use kept_kernels::{HeadShape, PackedRows, RowStore};

use super::footer::footer;
use super::format::{Footer, PIECE, StoredMeasurement, StoredRows, VaultShape};
use super::unfinished_file::{LockedFile, open_to_read, wait_for};
use super::{VaultError, VaultKey};

/// An open, complete vault. While this value exists, no process removes the file.
#[derive(Debug)]
pub struct Vault {
    /// Holds the shared lock that prevents removal.
    file: LockedFile,
    path: PathBuf,
    footer: Footer,
    /// `[tokens]`: token ids.
    ids: Vec<u32>,
    /// Bytes of the file.
    bytes: u64,
    /// Buffer of at most [`PIECE`] bytes.
    piece: Vec<u8>,
}

/// The elements of a layer other than its rows.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct LayerElements {
    /// `[queries, q_heads, head_dim]`: queries of the last tokens, after RoPE.
    pub queries: Vec<f32>,
    /// The measurements, in the order of the shape.
    pub measured: Vec<MeasuredValues>,
    /// The state of a recurrent layer after all tokens of the vault.
    pub state: Vec<f32>,
}

impl LayerElements {
    /// The elements of measurement `wanted` in a vault of `shape`.
    pub fn measurement(
        &self,
        shape: &VaultShape,
        wanted: StoredMeasurement,
    ) -> Option<&MeasuredValues> {
        let index = shape.measurements.iter().position(|m| *m == wanted)?;
        self.measured.get(index)
    }
}

/// The elements of one measurement in one layer.
#[derive(Debug, Clone, PartialEq)]
pub enum MeasuredValues {
    /// All measurements except query sums.
    Single(Vec<f32>),
    /// Query sums, which a later prefill continues to accumulate.
    Double(Vec<f64>),
}

impl MeasuredValues {
    /// The f32 elements; empty if they are f64.
    pub fn single(&self) -> &[f32] {
        match self {
            MeasuredValues::Single(elements) => elements,
            MeasuredValues::Double(_) => &[],
        }
    }

    /// The f64 elements; empty if they are f32.
    pub fn double(&self) -> &[f64] {
        match self {
            MeasuredValues::Double(elements) => elements,
            MeasuredValues::Single(_) => &[],
        }
    }
}

/// Destination of rows that are read from a vault.
pub trait VaultRows {
    /// Buffer for packed rows in transit, of any size that holds at least one row. Its content persists over calls
    /// until [`VaultRows::take`]. `None` if the destination cannot accept more rows; it holds the reason itself.
    fn space(&mut self) -> Option<&mut [u8]>;

    /// Takes rows from the buffer.
    fn take(&mut self, kind: PackedRows, runs: &[Run]);
}

/// Consecutive packed rows of one head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Keys or values.
    pub side: RowsOf,
    /// The KV head.
    pub head: usize,
    /// Token of the first row.
    pub first: usize,
    /// Byte range of the rows in the buffer.
    pub at: Range<usize>,
}

/// Whether rows are keys or values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowsOf {
    /// Keys.
    Keys,
    /// Values.
    Values,
}

impl RowsOf {
    /// Keys before values, as in the file.
    pub const BOTH: [Self; 2] = [Self::Keys, Self::Values];
}

/// Keys and values of a layer on the host; row == position.
pub struct HostRows<'a> {
    /// Keys.
    pub keys: &'a mut RowStore,
    /// Values.
    pub values: &'a mut RowStore,
    /// Buffer for packed rows in transit; allocated on first use.
    pub space: &'a mut Vec<u8>,
}

impl VaultRows for HostRows<'_> {
    fn space(&mut self) -> Option<&mut [u8]> {
        self.space.resize(PIECE, 0);
        Some(self.space)
    }

    fn take(&mut self, kind: PackedRows, runs: &[Run]) {
        for run in runs {
            let store = match run.side {
                RowsOf::Keys => &mut *self.keys,
                RowsOf::Values => &mut *self.values,
            };
            let (dim, bytes) = (store.head_dim(), &self.space[run.at.clone()]);
            let count = bytes.len() / kind.row_bytes(dim);
            let rows = &mut store.head_mut(run.head)[run.first * dim..][..count * dim];
            kind.unpack(bytes, dim, rows);
        }
    }
}

impl Vault {
    /// Opens the vault at `path`, which must have `key`. Checks the footer now, each layer when it is read.
    ///
    /// # Errors
    /// [`VaultError::Io`]; [`VaultError::Damaged`] if the footer is invalid.
    pub(super) fn open(path: &Path, key: &VaultKey) -> Result<Self, VaultError> {
        let damaged = VaultError::damaged(path);
        let file = open_to_read(path).map_err(VaultError::io(path))?;
        wait_for(&file, path, File::try_lock_shared)?;
        let mut file = LockedFile(file);
        let bytes = file.0.metadata().map_err(VaultError::io(path))?.len();
        let end = footer::<Footer>(&mut file.0, bytes).map_err(VaultError::io(path))?;
        let (footer, body) = end.map_err(&damaged)?;
        if footer.key != key.to_string() {
            return Err(damaged("it belongs to another document, model or setting"));
        }
        if !footer.is_valid() {
            return Err(damaged("it is of an unknown kind"));
        }
        let shape = &footer.shape;
        if shape.body_bytes() != body {
            return Err(damaged("its layers are not as long as it says"));
        }
        let mut ids = vec![0; shape.tokens * size_of::<u32>()];
        let before = body - ids.len() as u64;
        read_exact_at(&file.0, &mut ids, before).map_err(VaultError::io(path))?;
        if crc32fast::hash(&ids) != footer.ids_checksum {
            return Err(damaged("its tokens have changed"));
        }
        let ids = ids.as_chunks::<4>().0.iter();
        Ok(Self {
            ids: ids.map(|id| u32::from_le_bytes(*id)).collect(),
            file,
            path: path.to_owned(),
            footer,
            bytes,
            piece: Vec::new(),
        })
    }

    /// Whether the vault's shape matches a model with these heads, windows and elements of a state. A key is only a hash
    /// in a file name, which anyone with write access can change.
    pub fn fits(
        &self,
        [heads, window_heads]: [HeadShape; 2],
        windows: impl Iterator<Item = StoredRows>,
        state: usize,
    ) -> bool {
        let shape = &self.footer.shape;
        let own = shape.window_heads.unwrap_or(shape.heads);
        (shape.heads, own, shape.state) == (heads, window_heads, state)
            && windows.eq(shape.windows.iter().copied())
    }

    /// The key in the name of the file.
    pub fn key(&self) -> Option<VaultKey> {
        VaultKey::of_file(&self.path)
    }

    /// Dimensions and content of the vault.
    pub fn shape(&self) -> &VaultShape {
        &self.footer.shape
    }

    /// Name of the document.
    pub fn document(&self) -> &str {
        &self.footer.document
    }

    /// Name of the model.
    pub fn model(&self) -> &str {
        &self.footer.model
    }

    /// `[tokens]`: ids of the stored tokens.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the buffers for reading, without [`LayerElements`]: packed rows and elements in transit.
    pub fn buffer_bytes() -> u64 {
        2 * PIECE as u64
    }

    /// Reads `layer`: passes the keys and values of the first `tokens` tokens, as far as the layer stores them, to
    /// `rows` and returns its other elements. All of the layer is read and checked, on all threads; if it is damaged,
    /// the rows are unspecified.
    ///
    /// # Errors
    /// [`VaultError::Damaged`] if the checksum of the layer is wrong; [`VaultError::Io`].
    ///
    /// # Panics
    /// If the layer does not exist, or the capacity of `rows` is too small.
    pub fn layer(
        &mut self,
        layer: usize,
        tokens: usize,
        rows: &mut dyn VaultRows,
    ) -> Result<LayerElements, VaultError> {
        let mut checksum = crc32fast::Hasher::new();
        let Some(behind) = self.read_rows(layer, tokens, rows, &mut checksum)? else {
            return Ok(LayerElements::default());
        };
        let heads = self.footer.shape.heads;
        let sought = self.file.0.seek(SeekFrom::Start(behind));
        sought.map_err(VaultError::io(&self.path))?;
        let mut elements = LayerElements::default();
        if self.footer.shape.is_recurrent(layer) {
            let state = self.footer.shape.state;
            elements.state = self.read_elements(state, f32::from_le_bytes, &mut checksum)?;
        }
        if self.footer.shape.windows[layer] == StoredRows::All {
            let queries = self.footer.shape.queries * self.footer.shape.query_width();
            elements.queries = self.read_elements(queries, f32::from_le_bytes, &mut checksum)?;
            for measurement in self.footer.shape.measurements.clone() {
                let bytes = measurement.bytes(heads, self.footer.shape.tokens);
                elements.measured.push(match measurement {
                    StoredMeasurement::QuerySums { .. } => {
                        let count = bytes / size_of::<f64>();
                        let read = self.read_elements(count, f64::from_le_bytes, &mut checksum);
                        MeasuredValues::Double(read?)
                    }
                    _ => {
                        let count = bytes / size_of::<f32>();
                        let read = self.read_elements(count, f32::from_le_bytes, &mut checksum);
                        MeasuredValues::Single(read?)
                    }
                });
            }
        }
        if checksum.finalize() != self.footer.checksums[layer] {
            let what = format!("layer {layer} has changed");
            return Err(VaultError::damaged(&self.path)(&what));
        }
        Ok(elements)
    }

    /// Reads the rows of `layer`. Returns the offset of their end in the file, or `None` if `rows` did not accept all
    /// of them.
    fn read_rows(
        &self,
        layer: usize,
        tokens: usize,
        rows: &mut dyn VaultRows,
        checksum: &mut crc32fast::Hasher,
    ) -> Result<Option<u64>, VaultError> {
        let shape = &self.footer.shape;
        let start: u64 = (0..layer).map(|layer| shape.layer_bytes(layer)).sum();
        let (kind, heads) = (shape.kind, shape.heads_of(layer));
        let row_bytes = kind.row_bytes(heads.head_dim);
        let (stored, head_bytes) = (shape.rows(layer), shape.head_bytes(layer));
        let all = 2 * heads.kv_heads * head_bytes;
        let (mut at, mut runs) = (0, Vec::new());
        while at < all {
            let Some(space) = rows.space() else {
                return Ok(None);
            };
            let count = (space.len() / row_bytes).min((all - at) / row_bytes);
            assert!(count > 0, "space for a row");
            let end = at + count * row_bytes;
            let read = read_pieces(&self.file.0, start + at as u64, &mut space[..end - at]);
            checksum.combine(&read.map_err(|error| self.read_error(error))?);
            // The content of the buffer, head by head.
            runs.clear();
            let first = at;
            while at < end {
                let (run, inside) = (at / head_bytes, at % head_bytes);
                let next = end.min(at - inside + head_bytes);
                let token = stored.start + inside / row_bytes;
                let wanted = tokens.saturating_sub(token) * row_bytes;
                if wanted > 0 {
                    runs.push(Run {
                        side: RowsOf::BOTH[run / heads.kv_heads],
                        head: run % heads.kv_heads,
                        first: token,
                        at: at - first..next.min(at + wanted) - first,
                    });
                }
                at = next;
            }
            if !runs.is_empty() {
                rows.take(kind, &runs);
            }
        }
        Ok(Some(start + all as u64))
    }

    fn read_elements<T, const BYTES: usize>(
        &mut self,
        count: usize,
        number: impl Fn([u8; BYTES]) -> T,
        checksum: &mut crc32fast::Hasher,
    ) -> Result<Vec<T>, VaultError> {
        let mut elements = Vec::with_capacity(count);
        while elements.len() < count {
            let some = (count - elements.len()).min(PIECE / BYTES);
            self.read_piece(some * BYTES, checksum)?;
            let bytes = self.piece.as_chunks::<BYTES>().0.iter();
            elements.extend(bytes.map(|bytes| number(*bytes)));
        }
        Ok(elements)
    }

    /// Converts an I/O error of a read.
    fn read_error(&self, error: std::io::Error) -> VaultError {
        if error.kind() != std::io::ErrorKind::UnexpectedEof {
            return VaultError::io(&self.path)(error);
        }
        // The file was complete when it was opened: another process truncated it.
        VaultError::damaged(&self.path)("it has become shorter")
    }

    /// Reads the next `bytes` bytes into `piece`.
    fn read_piece(
        &mut self,
        bytes: usize,
        checksum: &mut crc32fast::Hasher,
    ) -> Result<(), VaultError> {
        self.piece.resize(bytes, 0);
        let read = self.file.0.read_exact(&mut self.piece);
        read.map_err(|error| self.read_error(error))?;
        checksum.update(&self.piece);
        Ok(())
    }
}

/// Bytes that one thread reads and checks at a time.
const SHARE: usize = 64 << 10;

/// Fills `out` from offset `at` of the file, on all threads; returns the checksum.
fn read_pieces(file: &File, at: u64, out: &mut [u8]) -> std::io::Result<crc32fast::Hasher> {
    let pieces = out.chunks_mut(SHARE);
    let pieces: Vec<_> = pieces
        .map(|piece| Mutex::new((piece, Ok(crc32fast::Hasher::new()))))
        .collect();
    kept_kernels::threads::for_each(pieces.len(), |i| {
        let mut piece = pieces[i].lock().expect("no panic while locked");
        let (bytes, outcome) = &mut *piece;
        match read_exact_at(file, bytes, at + (i * SHARE) as u64) {
            Ok(()) => {
                if let Ok(checksum) = outcome {
                    checksum.update(bytes);
                }
            }
            Err(error) => *outcome = Err(error),
        }
    });
    let mut all = crc32fast::Hasher::new();
    for piece in pieces {
        let (_, checksum) = piece.into_inner().expect("no panic while locked");
        all.combine(&checksum?);
    }
    Ok(all)
}

/// Reads at offset `at`, independent of the file position.
fn read_exact_at(file: &File, out: &mut [u8], at: u64) -> std::io::Result<()> {
    #[cfg(unix)]
    {
        std::os::unix::fs::FileExt::read_exact_at(file, out, at)
    }
    #[cfg(windows)]
    {
        let mut done = 0;
        while done < out.len() {
            let place = at + done as u64;
            match std::os::windows::fs::FileExt::seek_read(file, &mut out[done..], place)? {
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                count => done += count,
            }
        }
        Ok(())
    }
}
