//! A file of the vaults' folder in the making: under a name of its own until it is whole, written by one process at a time.

#[cfg(unix)]
use std::fs::Metadata;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::format::{MAGIC, TAIL};
use super::{VaultError, VaultFolder};

/// Extension of a file in the making.
pub(super) const PART: &str = "part";

/// For files that hold what a person reads: only this person may read them.
pub(super) fn private() -> OpenOptions {
    #[allow(unused_mut)] // where there are no such rights
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// A lock on a file. It is released by its own word: closing the file leaves it with a process that another thread is starting
/// right now, which holds a copy of the handle until its own program begins.
#[derive(Debug)]
pub(super) struct Locked(pub(super) File);

impl Drop for Locked {
    fn drop(&mut self) {
        if let Err(error) = self.0.unlock() {
            tracing::warn!(%error, "a lock of the vaults could not be released");
        }
    }
}

/// How long a process waits for others, which hold locks as long as a list of files takes, or as a file is removed.
const PATIENCE: Duration = Duration::from_secs(5);

/// Waits for the lock on the file at `path` that `ask` asks for.
///
/// # Errors
/// [`VaultError::Io`]: also where another process, a stopped one perhaps, does not let go of it.
pub(super) fn wait_for(
    file: &File,
    path: &Path,
    ask: fn(&File) -> Result<(), TryLockError>,
) -> Result<(), VaultError> {
    let begun = Instant::now();
    loop {
        match ask(file) {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(error)) => return Err(VaultError::io(path)(error)),
            Err(TryLockError::WouldBlock) if begun.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(TryLockError::WouldBlock) => {
                let held = format!("another program has held its lock for {PATIENCE:?}");
                let error = io::Error::new(ErrorKind::TimedOut, held);
                return Err(VaultError::io(path)(error));
            }
        }
    }
}

/// Whether `path` still is the name of `file`: who waited for a lock may have that of a file which somebody removed or replaced meanwhile.
pub(super) fn is_named(file: &File, path: &Path) -> io::Result<bool> {
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
        // There a file that is open keeps its name.
        let _ = (file, path);
        Ok(true)
    }
}

/// Extension of the lock for writing a file.
pub(super) const LOCK: &str = "lock";

/// The lock for writing a file; it goes with its file.
#[derive(Debug)]
pub(super) struct Writing {
    path: PathBuf,
    // Let go of after the file.
    _locked: Locked,
}

impl Drop for Writing {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(%error, "a lock of the vaults could not be removed");
        }
    }
}

/// Takes the lock for writing the file `target`; `None` where another process has it.
pub(super) fn lock(target: &Path) -> Result<Option<Writing>, VaultError> {
    let path = target.with_extension(LOCK);
    let failed = |error| VaultError::io(&path)(error);
    loop {
        let mut options = private();
        let options = options.write(true).create(true).truncate(false);
        let file = options.open(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let locked = Locked(file);
        // Who had it before removes it before letting go.
        if is_named(&locked.0, &path).map_err(failed)? {
            return Ok(Some(Writing {
                path,
                _locked: locked,
            }));
        }
    }
}

/// See the head of this file. Dropped before [`Making::finish`], it leaves nothing.
#[derive(Debug)]
pub(super) struct Making {
    file: File,
    /// The file in the making.
    part: PathBuf,
    /// Held as long as this process writes; a lock on `part` itself would move to the finished file with its name.
    _lock: Writing,
    /// What it will be called.
    target: PathBuf,
    finished: bool,
}

impl Making {
    /// Begins a file at `target` with `body` bytes before its footer.
    ///
    /// # Errors
    /// [`VaultError::Busy`] where another process makes the same one; [`VaultError::Io`].
    pub(super) fn begin(target: &Path, body: u64) -> Result<Self, VaultError> {
        let lock = lock(target)?.ok_or(VaultError::Busy)?;
        let part = target.with_extension(PART);
        let file = private()
            .write(true)
            .create(true)
            .truncate(true)
            .open(&part)
            .map_err(VaultError::io(&part))?;
        // Tells other processes what it will take; where that is too much for the file system, its writing says so.
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

    /// Writes `bytes` from byte `at` on.
    ///
    /// # Errors
    /// [`VaultError::Io`]: a full disk, for one.
    pub(super) fn put(&mut self, at: u64, bytes: &[u8]) -> Result<(), VaultError> {
        let sought = self.file.seek(SeekFrom::Start(at));
        let written = sought.and_then(|_| self.file.write_all(bytes));
        written.map_err(VaultError::io(&self.part))
    }

    /// What went wrong, as an error of this file.
    pub(super) fn failed(&self, error: io::Error) -> VaultError {
        VaultError::io(&self.part)(error)
    }

    /// Writes `last`, the end of the body, from byte `at` on, then the footer, and gives the file its name. Gives how large it is.
    ///
    /// Nothing waits for the disk: what a power cut leaves of the file is known by its checksums.
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

impl Drop for Making {
    fn drop(&mut self) {
        if !self.finished
            && let Err(error) = std::fs::remove_file(&self.part)
        {
            tracing::warn!(%error, "a vault that was not finished could not be removed");
        }
    }
}
