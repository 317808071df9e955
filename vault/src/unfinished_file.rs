//! Creation of a file in the vault folder: under a temporary name until it is complete, written by one process at a
//! time.

#[cfg(unix)]
use std::fs::Metadata;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::format::{MAGIC, TAIL};
use super::{VaultError, VaultFolder};

/// Extension of an unfinished file.
pub(super) const PART: &str = "part";

/// Open options for files with the user's text: readable by this user only.
pub(super) fn private() -> OpenOptions {
    #[allow(unused_mut)] // file modes exist on Unix only
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Opens a file of the folder. A pipe or a device, which may never answer, is refused.
pub(super) fn open(options: &OpenOptions, path: &Path) -> io::Result<File> {
    if path.metadata().is_ok_and(|facts| !facts.is_file()) {
        return Err(io::Error::other("it is not an ordinary file"));
    }
    options.open(path)
}

/// [`open`] to read.
pub(super) fn open_to_read(path: &Path) -> io::Result<File> {
    open(OpenOptions::new().read(true), path)
}

/// A lock on a file. It is released explicitly: after closing the file, the lock would persist in a child process
/// that another thread is just spawning, which holds a copy of the handle until it executes its program.
#[derive(Debug)]
pub(super) struct LockedFile(pub(super) File);

impl Drop for LockedFile {
    fn drop(&mut self) {
        if let Err(error) = self.0.unlock() {
            tracing::warn!(%error, "a lock of the vaults could not be released");
        }
    }
}

/// How long a process waits for locks of others, which are held while a folder is listed or a file is removed.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// Waits for the lock on the file at `path` that `try_lock` tries to take.
///
/// # Errors
/// [`VaultError::Io`], also if another process, for example a suspended one, does not release the lock in time.
pub(super) fn wait_for(
    file: &File,
    path: &Path,
    try_lock: fn(&File) -> Result<(), TryLockError>,
) -> Result<(), VaultError> {
    let begun = Instant::now();
    loop {
        match try_lock(file) {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(error)) => return Err(VaultError::io(path)(error)),
            Err(TryLockError::WouldBlock) if begun.elapsed() < LOCK_TIMEOUT => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(TryLockError::WouldBlock) => {
                let held = format!("another program has held its lock for {LOCK_TIMEOUT:?}");
                let error = io::Error::new(ErrorKind::TimedOut, held);
                return Err(VaultError::io(path)(error));
            }
        }
    }
}

/// Whether `path` still refers to `file`: while this process waited for the lock, another one may have removed or
/// replaced the file.
pub(super) fn still_at_path(file: &File, path: &Path) -> io::Result<bool> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let same = |a: Metadata, b: Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
        match path.metadata() {
            Ok(named) => Ok(same(file.metadata()?, named)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
    #[cfg(not(unix))]
    {
        // On other systems an open file cannot be renamed or removed.
        let _ = (file, path);
        Ok(true)
    }
}

/// Extension of the lock file for writing.
pub(super) const LOCK: &str = "lock";

/// The lock for writing a file; dropping it removes the lock file.
#[derive(Debug)]
pub(super) struct WriteLock {
    path: PathBuf,
    // Released after the lock file is removed.
    _locked: LockedFile,
}

impl Drop for WriteLock {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(%error, "a lock of the vaults could not be removed");
        }
    }
}

/// Takes the lock for writing the file `target`; `None` if another process holds it.
pub(super) fn lock(target: &Path) -> Result<Option<WriteLock>, VaultError> {
    let path = target.with_extension(LOCK);
    let failed = |error| VaultError::io(&path)(error);
    loop {
        let mut options = private();
        let options = options.write(true).create(true).truncate(false);
        let file = open(options, &path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let locked = LockedFile(file);
        // The previous holder removes the lock file before it releases the lock.
        if still_at_path(&locked.0, &path).map_err(failed)? {
            return Ok(Some(WriteLock {
                path,
                _locked: locked,
            }));
        }
    }
}

/// An unfinished file. If dropped before [`UnfinishedFile::finish`], it is removed.
#[derive(Debug)]
pub(super) struct UnfinishedFile {
    file: File,
    /// Path of the unfinished file.
    part: PathBuf,
    /// Held while this process writes; a lock on `part` itself would move to the finished file with the rename.
    _lock: WriteLock,
    /// Path of the finished file.
    target: PathBuf,
    finished: bool,
}

impl UnfinishedFile {
    /// Creates the file for `target` with `body` bytes before its footer.
    ///
    /// # Errors
    /// [`VaultError::Busy`] if another process writes the same file; [`VaultError::Io`].
    pub(super) fn begin(target: &Path, body: u64) -> Result<Self, VaultError> {
        let lock = lock(target)?.ok_or(VaultError::Busy)?;
        let part = target.with_extension(PART);
        let mut options = private();
        let options = options.write(true).create(true).truncate(true);
        let file = open(options, &part).map_err(VaultError::io(&part))?;
        // Shows other processes the final size; if it exceeds the capacity of the file system, a later write fails.
        if let Err(error) = file.set_len(body) {
            tracing::debug!(%error, "a vault grows as it is written");
        }
        Ok(Self {
            file,
            part,
            _lock: lock,
            target: target.to_owned(),
            finished: false,
        })
    }

    /// Writes `bytes` at offset `at`.
    ///
    /// # Errors
    /// [`VaultError::Io`], for example on a full disk.
    pub(super) fn write_at(&mut self, at: u64, bytes: &[u8]) -> Result<(), VaultError> {
        let sought = self.file.seek(SeekFrom::Start(at));
        let written = sought.and_then(|_| self.file.write_all(bytes));
        written.map_err(VaultError::io(&self.part))
    }

    /// Wraps an I/O error of this file.
    pub(super) fn failed(&self, error: io::Error) -> VaultError {
        VaultError::io(&self.part)(error)
    }

    /// Writes `last`, the end of the body, at offset `at`, then the footer, and renames the file. Returns its size in
    /// bytes.
    ///
    /// There is no fsync: an incomplete file after a power loss is detected by its checksums.
    ///
    /// # Errors
    /// [`VaultError::Io`].
    pub(super) fn finish(
        mut self,
        at: u64,
        mut last: Vec<u8>,
        footer: &impl Serialize,
    ) -> Result<u64, VaultError> {
        let footer = serde_json::to_vec(footer).map_err(io::Error::from);
        let written = footer.and_then(|footer| {
            last.reserve(footer.len() + TAIL);
            last.extend(&footer);
            last.extend((footer.len() as u64).to_le_bytes());
            last.extend(crc32fast::hash(&footer).to_le_bytes());
            last.extend(MAGIC);
            self.file.seek(SeekFrom::Start(at))?;
            self.file.write_all(&last)?;
            std::fs::rename(&self.part, &self.target)?;
            Ok(self.file.metadata()?.len())
        });
        let bytes = written.map_err(VaultError::io(&self.part))?;
        self.finished = true;
        if let Some(folder) = self.target.parent() {
            VaultFolder::new(folder, 0).touch(&self.target);
        }
        Ok(bytes)
    }
}

impl Drop for UnfinishedFile {
    fn drop(&mut self) {
        if !self.finished
            && let Err(error) = std::fs::remove_file(&self.part)
        {
            tracing::warn!(%error, "a vault that was not finished could not be removed");
        }
    }
}
