//! Making a vault: layer after layer, as each is read.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

use kept_kernels::RowStore;

use super::format::{Footer, MAGIC, PIECE, TAIL, VaultShape};
use super::{VaultError, VaultKey};

/// Extension of a vault that is being made.
pub(super) const PART: &str = "part";

/// For files that hold what a person reads: only this person may read them.
fn private() -> OpenOptions {
    #[allow(unused_mut)] // where there are no such rights
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// A lock on a file. It is released by its own word: closing the file leaves it with a process that another thread is starting
/// right now, which holds a copy of the handle until its own program begins.
#[derive(Debug)]
pub(super) struct Locked(File);

impl Drop for Locked {
    fn drop(&mut self) {
        if let Err(error) = self.0.unlock() {
            tracing::warn!(%error, "a lock of the vaults could not be released");
        }
    }
}

/// Takes the lock for writing the vault `target` of `key`; `None` where another process has it.
pub(super) fn lock(target: &Path, key: &VaultKey) -> Result<Option<Locked>, VaultError> {
    let path = target.with_file_name(key.lock_name());
    let mut options = private();
    let options = options.write(true).create(true).truncate(false);
    let file = options.open(&path).map_err(VaultError::io(&path))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(Locked(file))),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(VaultError::io(&path)(error)),
    }
}

/// A vault in the making. It has a name of its own until [`VaultWriter::finish`]; dropped before, it leaves nothing.
#[derive(Debug)]
pub struct VaultWriter {
    file: File,
    /// The file in the making.
    part: PathBuf,
    /// Held as long as this process writes; a lock on `part` itself would move to the finished vault with its name.
    _lock: Locked,
    /// What it will be called.
    target: PathBuf,
    shape: VaultShape,
    footer: Footer,
    /// At most [`PIECE`] bytes, made once.
    piece: Vec<u8>,
    /// Of the layer so far.
    checksum: crc32fast::Hasher,
    written: u64,
    finished: bool,
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
        let lock = lock(target, key)?.ok_or(VaultError::Busy)?;
        let part = target.with_extension(PART);
        let file = private()
            .write(true)
            .create(true)
            .truncate(true)
            .open(&part)
            .map_err(VaultError::io(&part))?;
        Ok(Self {
            file,
            part,
            _lock: lock,
            target: target.to_owned(),
            footer: Footer::new(key.to_string(), document, model, &shape),
            shape,
            piece: vec![0; PIECE],
            checksum: crc32fast::Hasher::new(),
            written: 0,
            finished: false,
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

    /// Adds the keys and values of the next layer, whose tokens stand in rows of their own number.
    ///
    /// # Errors
    /// [`VaultError::Io`]: a full disk, for one.
    ///
    /// # Panics
    /// When the layer before is not complete, or rows are missing.
    pub fn rows(&mut self, keys: &RowStore, values: &RowStore) -> Result<(), VaultError> {
        let layer = self.footer.checksums.len();
        assert_eq!(self.written, 0, "layer {layer} begins with its rows");
        let (kind, dim) = (self.shape.kind, self.shape.heads.head_dim);
        let rows = self.shape.rows(layer);
        let at_once = (PIECE / kind.row_bytes(dim)).max(1);
        for store in [keys, values] {
            for head in 0..self.shape.heads.kv_heads {
                let rows = &store.head(head)[rows.start * dim..rows.end * dim];
                for rows in rows.chunks(at_once * dim) {
                    let bytes = rows.len() / dim * kind.row_bytes(dim);
                    self.piece.resize(bytes, 0);
                    kind.pack(rows, dim, &mut self.piece);
                    self.put()?;
                }
            }
        }
        Ok(())
    }

    /// Adds numbers that stand behind the rows: queries, then each measurement in its order.
    ///
    /// # Errors
    /// As [`VaultWriter::rows`].
    pub fn numbers(&mut self, numbers: &[f32]) -> Result<(), VaultError> {
        for numbers in numbers.chunks(PIECE / size_of::<f32>()) {
            self.piece.clear();
            let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
            self.piece.extend(bytes);
            self.put()?;
        }
        Ok(())
    }

    /// [`VaultWriter::numbers`] of numbers that are f64.
    ///
    /// # Errors
    /// As [`VaultWriter::rows`].
    pub fn sums(&mut self, numbers: &[f64]) -> Result<(), VaultError> {
        for numbers in numbers.chunks(PIECE / size_of::<f64>()) {
            self.piece.clear();
            let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
            self.piece.extend(bytes);
            self.put()?;
        }
        Ok(())
    }

    /// Ends a layer.
    ///
    /// # Panics
    /// When there is more or less in it than the shape says.
    pub fn end_layer(&mut self) {
        let layer = self.footer.checksums.len();
        let expected = self.shape.layer_bytes(layer);
        assert_eq!(self.written, expected, "bytes of layer {layer}");
        let checksum = std::mem::take(&mut self.checksum);
        self.footer.checksums.push(checksum.finalize());
        self.written = 0;
    }

    /// Writes the tokens `ids` and the footer and gives the file its name. Only now is it a vault.
    ///
    /// Nothing waits for the disk: what a power cut leaves of the file is known by its checksums.
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
        let mut bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        self.footer.ids_checksum = crc32fast::hash(&bytes);
        let footer = serde_json::to_vec(&self.footer).map_err(std::io::Error::from);
        let written = footer.and_then(|footer| {
            bytes.reserve(footer.len() + TAIL);
            bytes.extend(&footer);
            bytes.extend((footer.len() as u64).to_le_bytes());
            bytes.extend(crc32fast::hash(&footer).to_le_bytes());
            bytes.extend(MAGIC);
            self.file.write_all(&bytes)?;
            std::fs::rename(&self.part, &self.target)?;
            Ok(self.file.metadata()?.len())
        });
        let bytes = written.map_err(VaultError::io(&self.part))?;
        self.finished = true;
        Ok(bytes)
    }

    fn put(&mut self) -> Result<(), VaultError> {
        self.checksum.update(&self.piece);
        self.written += self.piece.len() as u64;
        let written = self.file.write_all(&self.piece);
        written.map_err(VaultError::io(&self.part))
    }
}

impl Drop for VaultWriter {
    fn drop(&mut self) {
        if !self.finished
            && let Err(error) = std::fs::remove_file(&self.part)
        {
            tracing::warn!(%error, "a vault that was not finished could not be removed");
        }
    }
}
