//! Making a vault: layer after layer, as each is read.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

use kept_kernels::RowStore;

use super::format::{Footer, MAGIC, VaultShape, kind_name};
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

/// Takes the lock for writing the vault `target` of `key`; `None` where another process has it.
pub(super) fn lock(target: &Path, key: &VaultKey) -> Result<Option<File>, VaultError> {
    let path = target.with_file_name(key.lock_name());
    let mut options = private();
    let options = options.write(true).create(true).truncate(false);
    let file = options.open(&path).map_err(VaultError::io(&path))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
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
    _lock: File,
    /// What it will be called.
    target: PathBuf,
    shape: VaultShape,
    footer: Footer,
    /// Bytes of one layer, made once.
    layer: Vec<u8>,
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
            shape,
            footer: Footer {
                key: key.to_string(),
                document: document.to_owned(),
                model: model.to_owned(),
                tokens: shape.tokens,
                heads: shape.heads,
                rows: kind_name(shape.kind).to_owned(),
                column_sums: shape.column_sums,
                checksums: Vec::with_capacity(shape.layers),
            },
            layer: vec![0; shape.layer_bytes()],
            finished: false,
        })
    }

    /// What is being written.
    pub fn shape(&self) -> VaultShape {
        self.shape
    }

    /// Bytes of memory that writing takes.
    pub fn buffer_bytes(&self) -> u64 {
        self.layer.len() as u64
    }

    /// Adds the next layer: the first `tokens` rows of `keys` and `values`, the rotated queries of the last of these tokens
    /// `[queries, q_heads, head_dim]`, and `column_sums [q_heads, tokens]` where the shape has them.
    ///
    /// # Errors
    /// [`VaultError::Io`]: a full disk, for one.
    ///
    /// # Panics
    /// When there is more or less of anything than the shape says.
    pub fn layer(
        &mut self,
        keys: &RowStore,
        values: &RowStore,
        queries: &[f32],
        column_sums: &[f32],
    ) -> Result<(), VaultError> {
        let (shape, heads) = (self.shape, self.shape.heads);
        assert_eq!(size_of_val(queries), shape.queries_bytes(), "queries");
        assert_eq!(size_of_val(column_sums), shape.sums_bytes(), "column sums");
        let head_bytes = shape.tokens * shape.kind.row_bytes(heads.head_dim);
        let (rows, numbers) = self.layer.split_at_mut(2 * shape.rows_bytes());
        let parts = rows.chunks_exact_mut(head_bytes);
        let sources = [keys, values];
        let sources = (sources.iter()).flat_map(|rows| (0..heads.kv_heads).map(|h| rows.head(h)));
        for (out, head) in parts.zip(sources) {
            let rows = &head[..shape.tokens * heads.head_dim];
            shape.kind.pack(rows, heads.head_dim, out);
        }
        let numbers = numbers.as_chunks_mut::<4>().0.iter_mut();
        for (out, number) in numbers.zip(queries.iter().chain(column_sums)) {
            *out = number.to_le_bytes();
        }
        self.footer.checksums.push(crc32fast::hash(&self.layer));
        let written = self.file.write_all(&self.layer);
        written.map_err(VaultError::io(&self.part))
    }

    /// Writes the footer and gives the file its name. Only now is it a vault.
    ///
    /// # Errors
    /// [`VaultError::Io`].
    ///
    /// # Panics
    /// When layers are missing.
    pub fn finish(mut self) -> Result<(), VaultError> {
        assert_eq!(self.footer.checksums.len(), self.shape.layers, "layers");
        let footer = serde_json::to_vec(&self.footer).map_err(std::io::Error::from);
        let written = footer.and_then(|footer| {
            let mut tail = Vec::with_capacity(footer.len() + super::format::TAIL);
            tail.extend(&footer);
            tail.extend((footer.len() as u64).to_le_bytes());
            tail.extend(crc32fast::hash(&footer).to_le_bytes());
            tail.extend(MAGIC);
            self.file.write_all(&tail)?;
            self.file.sync_all()?;
            std::fs::rename(&self.part, &self.target)
        });
        written.map_err(VaultError::io(&self.part))?;
        self.finished = true;
        Ok(())
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
