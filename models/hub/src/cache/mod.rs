//! The hub's cache folder, in the layout that all of the hub's tools share.
//!
//! ```text
//! <cache>/models--owner--name/
//!   blobs/<sha256>                    the file, named by its hash
//!   blobs/<sha256>.incomplete         an unfinished download
//!   refs/main                         the commit of `main`
//!   snapshots/<commit>/<file>         a symbolic link to the blob
//! <cache>/.locks/models--owner--name/<sha256>.lock
//! ```
//!
//! Where symbolic links cannot be made (Windows without its developer mode, FAT) the snapshot holds the blob itself, as
//! with the hub's Python library.
//!
//! Folder names come from `hf-hub`. This module adds what `hf-hub` lacks: locks, unfinished files, links on systems
//! without symbolic links, and atomic replacement of references.
//!
//! `removal.rs` implements removal. Choice of files and network access are in other modules.

mod removal;

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

use hf_hub::Repo;
use serde::{Deserialize, Serialize};

pub(crate) use self::removal::{is_sha256, remove_file};
use crate::{HubError, RepoId};

/// Minimum idle time of another tool's unfinished file before it is taken over.
const STALE_DOWNLOAD_AGE: Duration = Duration::from_secs(60);

/// The cache folder.
#[derive(Debug, Clone)]
pub struct HubCache {
    root: PathBuf,
}

/// One file of a repository at one commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HubFile {
    /// The repository.
    pub repo: RepoId,
    /// The commit, 40 hexadecimal digits.
    pub commit: String,
    /// Path in the repository.
    pub path: String,
    /// Length in bytes.
    pub bytes: u64,
    /// SHA-256, 64 lower-case hexadecimal digits.
    pub sha256: String,
}

/// A lock on one blob, released when dropped or when the process ends for any reason.
#[derive(Debug)]
pub struct BlobLock {
    file: File,
}

impl Drop for BlobLock {
    /// Unlocks explicitly, because closing the file is not enough: a process that another thread is just starting holds
    /// a copy of the handle, and with it the lock, until its own program begins.
    fn drop(&mut self) {
        if let Err(error) = self.file.unlock() {
            tracing::warn!(%error, "a lock of the hub's cache could not be released");
        }
    }
}

impl HubCache {
    /// The cache in the folder `root`, which need not exist.
    pub fn new(root: impl Into<PathBuf>) -> HubCache {
        HubCache { root: root.into() }
    }

    /// Bytes that are free on the disk of the cache; `None` if the system does not say.
    pub fn free_space(&self) -> Option<u64> {
        let exists = self.root().ancestors().find(|folder| folder.exists());
        let free = fs4::available_space(exists.unwrap_or(self.root()));
        free.inspect_err(
            |error| tracing::warn!(%error, "free space is not known; the disk may fill up"),
        )
        .ok()
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The folder of a repository.
    pub fn repo(&self, repo: &RepoId) -> PathBuf {
        self.root.join(folder_name(repo))
    }

    fn snapshot(&self, repo: &RepoId, commit: &str) -> PathBuf {
        self.repo(repo).join("snapshots").join(commit)
    }

    /// Path of a finished blob.
    pub fn blob(&self, repo: &RepoId, sha256: &str) -> PathBuf {
        self.repo(repo).join("blobs").join(sha256)
    }

    /// Path of an unfinished blob.
    pub fn partial(&self, repo: &RepoId, sha256: &str) -> PathBuf {
        self.repo(repo)
            .join("blobs")
            .join(format!("{sha256}.incomplete"))
    }

    /// Path by which a file of a commit is opened.
    pub fn pointer(&self, repo: &RepoId, commit: &str, file: &str) -> PathBuf {
        self.snapshot(repo, commit).join(file)
    }

    /// The commits of a repository that have a snapshot: that of `main` first, then by age, the newest first.
    pub fn commits(&self, repo: &RepoId) -> Vec<String> {
        let folder = self.repo(repo);
        let main = fs::read_to_string(folder.join("refs").join("main"))
            .map(|commit| commit.trim().to_owned())
            .unwrap_or_default();
        let mut commits: Vec<(bool, SystemTime, String)> = fs::read_dir(folder.join("snapshots"))
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let commit = entry.file_name().into_string().ok()?;
                let modified = entry.metadata().and_then(|about| about.modified());
                let modified = modified.unwrap_or(SystemTime::UNIX_EPOCH);
                Some((commit == main, modified, commit))
            })
            .collect();
        commits.sort();
        commits
            .into_iter()
            .rev()
            .map(|(.., commit)| commit)
            .collect()
    }

    /// The path by which a file is opened, if it is completely downloaded.
    pub fn present(&self, file: &HubFile) -> Option<PathBuf> {
        let pointer = self.pointer(&file.repo, &file.commit, &file.path);
        let whole = |path: &Path| {
            fs::metadata(path).is_ok_and(|about| about.is_file() && about.len() == file.bytes)
        };
        if whole(&self.blob(&file.repo, &file.sha256)) {
            return Some(pointer);
        }
        // The blob was moved into the snapshot because the file system has no links.
        let is_link = fs::symlink_metadata(&pointer).is_ok_and(|about| about.is_symlink());
        (!is_link && whole(&pointer)).then_some(pointer)
    }

    /// Locks a blob against all other processes, including the hub's other tools.
    ///
    /// # Errors
    /// [`HubError::Locked`], [`HubError::CannotLock`], [`HubError::Disk`].
    pub fn lock(&self, file: &HubFile) -> Result<BlobLock, HubError> {
        let folder = self.root.join(".locks").join(folder_name(&file.repo));
        fs::create_dir_all(&folder).map_err(HubError::on_disk(&folder, "made"))?;
        let path = folder.join(format!("{}.lock", file.sha256));
        // Another tool may remove the file between opening and locking; a lock on an unlinked file protects nothing.
        for _ in 0..100 {
            let lock = File::options()
                .create(true)
                .truncate(false)
                .write(true)
                .open(&path)
                .map_err(HubError::on_disk(&path, "written"))?;
            match lock.try_lock() {
                Ok(()) if still_named(&lock, &path) => return Ok(BlobLock { file: lock }),
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    return Err(HubError::Locked(file.path.clone()));
                }
                Err(TryLockError::Error(error)) => {
                    return Err(HubError::CannotLock {
                        folder: self.root.display().to_string(),
                        reason: error.to_string(),
                    });
                }
            }
        }
        Err(HubError::Locked(file.path.clone()))
    }

    /// Takes over another tool's unfinished file. Newer tools of the hub name it `<sha256>.<8 characters>.incomplete`
    /// and never resume it. The largest one that was not modified for a minute is renamed to ours. The caller must hold
    /// the blob's lock.
    pub fn adopt(&self, file: &HubFile) -> Result<(), HubError> {
        let ours = self.partial(&file.repo, &file.sha256);
        if ours.exists() {
            return Ok(());
        }
        let Some(folder) = ours.parent() else {
            return Ok(());
        };
        let left = |entry: fs::DirEntry| {
            let name = entry.file_name().into_string().ok()?;
            let rest = name.strip_prefix(&file.sha256)?.strip_prefix('.')?;
            rest.strip_suffix(".incomplete")?;
            let about = entry.metadata().ok()?;
            let idle = about.modified().ok()?.elapsed().ok()? > STALE_DOWNLOAD_AGE;
            (idle && about.len() <= file.bytes).then(|| (about.len(), entry.path()))
        };
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        match entries.filter_map(left).max() {
            Some((_, path)) => {
                fs::rename(&path, &ours).map_err(HubError::on_disk(&path, "taken over"))
            }
            None => Ok(()),
        }
    }

    /// Links a complete blob into the snapshot of its commit, and sets `refs/main` to the commit. Returns the path to
    /// open.
    ///
    /// # Errors
    /// [`HubError::Disk`].
    pub fn publish(&self, file: &HubFile) -> Result<PathBuf, HubError> {
        let pointer = self.pointer(&file.repo, &file.commit, &file.path);
        let blob = self.blob(&file.repo, &file.sha256);
        if blob.exists() {
            link_to_blob(&pointer, &blob).map_err(HubError::on_disk(&pointer, "written"))?;
        }
        let reference = self.repo(&file.repo).join("refs").join("main");
        if !fs::read_to_string(&reference).is_ok_and(|commit| commit.trim() == file.commit) {
            replace_file(&reference, &file.commit)
                .map_err(HubError::on_disk(&reference, "written"))?;
        }
        Ok(pointer)
    }
}

/// `models--owner--name`.
pub(crate) fn folder_name(repo: &RepoId) -> String {
    Repo::model(repo.to_string()).folder_name()
}

/// The repository of a folder `models--owner--name`. By the hub's rules an owner contains no `--`.
pub(crate) fn repo_of_folder(name: &str) -> Option<RepoId> {
    let rest = name.strip_prefix("models--")?;
    let (owner, name) = rest.split_once("--")?;
    format!("{owner}/{name}").parse().ok()
}

#[cfg(unix)]
fn still_named(lock: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let same = |a: fs::Metadata, b: fs::Metadata| a.dev() == b.dev() && a.ino() == b.ino();
    match (lock.metadata(), fs::metadata(path)) {
        (Ok(held), Ok(named)) => same(held, named),
        _ => false,
    }
}

/// On other systems an open file cannot be removed.
#[cfg(not(unix))]
fn still_named(_lock: &File, _path: &Path) -> bool {
    true
}

/// Writes a small file, with its folder. No reader sees a partial file: a temporary file is written and renamed.
pub(crate) fn replace_file(file: &Path, contents: impl AsRef<[u8]>) -> io::Result<()> {
    let beside = file.with_extension(format!("{}.part", std::process::id()));
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(&beside, contents)
        .and_then(|()| fs::rename(&beside, file))
        .inspect_err(|_| _ = fs::remove_file(&beside))
}

/// Makes `pointer` point to `blob`, replacing whatever exists at that path.
fn link_to_blob(pointer: &Path, blob: &Path) -> io::Result<()> {
    if fs::canonicalize(pointer).is_ok_and(|to| fs::canonicalize(blob).is_ok_and(|b| b == to)) {
        return Ok(());
    }
    if let Some(folder) = pointer.parent() {
        fs::create_dir_all(folder)?;
    }
    // Created under a temporary name and renamed, so that a process killed in between leaves the old name or the new
    // one.
    let mut beside = pointer.as_os_str().to_owned();
    beside.push(format!(".{}.part", std::process::id()));
    let beside = PathBuf::from(beside);
    let _ = fs::remove_file(&beside);
    symbolic_link(&relative(pointer, blob), &beside)
        // Some systems report success and link nothing.
        .and_then(|()| fs::metadata(&beside).map(drop))
        .or_else(|_| {
            _ = fs::remove_file(&beside);
            fs::rename(blob, &beside)
        })?;
    fs::rename(&beside, pointer)
}

#[cfg(unix)]
fn symbolic_link(to: &Path, at: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(to, at)
}

#[cfg(windows)]
fn symbolic_link(to: &Path, at: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(to, at)
}

/// Path of `blob` relative to the folder of `pointer`: `../../blobs/<sha256>`.
fn relative(pointer: &Path, blob: &Path) -> PathBuf {
    let from: Vec<Component<'_>> = pointer
        .parent()
        .into_iter()
        .flat_map(Path::components)
        .collect();
    let to: Vec<Component<'_>> = blob.components().collect();
    let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let up = std::iter::repeat_n(Component::ParentDir, from.len() - shared);
    up.chain(to[shared..].iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str) -> HubFile {
        HubFile {
            repo: "a/b-GGUF".parse().unwrap(),
            commit: "c".repeat(40),
            path: path.to_owned(),
            bytes: 5,
            sha256: "e".repeat(64),
        }
    }

    fn cache_with_blob(file: &HubFile) -> (tempfile::TempDir, HubCache) {
        let folder = tempfile::tempdir().unwrap();
        let cache = HubCache::new(folder.path());
        let blob = cache.blob(&file.repo, &file.sha256);
        fs::create_dir_all(blob.parent().unwrap()).unwrap();
        fs::write(&blob, "bytes").unwrap();
        (folder, cache)
    }

    #[test]
    fn folder_names_follow_the_hub_layout() {
        let repo: RepoId = "owner/na-me.x".parse().unwrap();
        assert_eq!(folder_name(&repo), "models--owner--na-me.x");
        assert_eq!(repo_of_folder("models--owner--na-me.x"), Some(repo));
        for other in ["datasets--a--b", "models--gpt2", "models--..--b", ".locks"] {
            assert_eq!(repo_of_folder(other), None, "{other}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_blob_is_published_as_a_relative_link() {
        let file = file("sub/model.gguf");
        let (_folder, cache) = cache_with_blob(&file);
        assert!(cache.present(&file).is_some());
        for _ in 0..2 {
            let pointer = cache.publish(&file).unwrap();
            assert_eq!(fs::read_to_string(&pointer).unwrap(), "bytes");
            let to = fs::read_link(&pointer).unwrap();
            assert_eq!(to, Path::new("../../../blobs").join(&file.sha256));
        }
        assert_eq!(cache.commits(&file.repo), vec![file.commit.clone()]);
        // A link that points elsewhere is replaced.
        let pointer = cache.pointer(&file.repo, &file.commit, &file.path);
        fs::remove_file(&pointer).unwrap();
        std::os::unix::fs::symlink("/nowhere", &pointer).unwrap();
        cache.publish(&file).unwrap();
        assert_eq!(fs::read_to_string(&pointer).unwrap(), "bytes");
        let names = fs::read_dir(pointer.parent().unwrap()).unwrap().count();
        assert_eq!(names, 1, "nothing is left beside it");
    }

    #[test]
    fn a_blob_of_another_length_is_not_present() {
        let file = file("model.gguf");
        let (_folder, cache) = cache_with_blob(&file);
        let shorter = HubFile { bytes: 4, ..file };
        assert_eq!(cache.present(&shorter), None);
    }

    #[test]
    fn a_locked_blob_cannot_be_locked_again() {
        let file = file("model.gguf");
        let (_folder, cache) = cache_with_blob(&file);
        let held = cache.lock(&file).unwrap();
        let refused = cache.lock(&file).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "'model.gguf' is being downloaded by another program already; wait until it is done, or stop it there"
        );
        drop(held);
        cache.lock(&file).unwrap();
    }

    #[test]
    fn drop_releases_a_lock_whose_handle_was_copied() {
        let file = file("model.gguf");
        let (_folder, cache) = cache_with_blob(&file);
        let held = cache.lock(&file).unwrap();
        let copy = held.file.try_clone().unwrap();
        drop(held);
        cache.lock(&file).unwrap();
        drop(copy);
    }

    #[test]
    fn idle_partial_files_of_other_tools_are_adopted() {
        let file = file("model.gguf");
        let (_folder, cache) = cache_with_blob(&file);
        let ours = cache.partial(&file.repo, &file.sha256);
        let beside = |name: &str, text: &str, seconds: u64| {
            let path = ours.with_file_name(format!("{}.{name}.incomplete", file.sha256));
            fs::write(&path, text).unwrap();
            let then = SystemTime::now() - Duration::from_secs(seconds);
            File::options()
                .write(true)
                .open(&path)
                .unwrap()
                .set_modified(then)
                .unwrap();
            path
        };
        beside("aaaaaaaa", "byte", 5);
        beside("dddddddd", "too long for it", 500);
        cache.adopt(&file).unwrap();
        assert!(!ours.exists(), "one that is being written is left alone");
        beside("bbbbbbbb", "by", 500);
        let longest = beside("cccccccc", "byt", 500);
        cache.adopt(&file).unwrap();
        assert_eq!(fs::read_to_string(&ours).unwrap(), "byt");
        assert!(!longest.exists());
        cache.adopt(&file).unwrap();
        assert_eq!(fs::read_to_string(&ours).unwrap(), "byt");
    }
}
