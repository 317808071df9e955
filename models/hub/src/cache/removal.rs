//! Removes a model, or an unfinished download, from the hub's cache folder, and nothing else.
//!
//! A file is removed from all snapshots that have it under the same name; if only the newest were removed, an older one
//! would appear in its place. Blobs are removed when no name refers to them, under the lock that downloads use. Folders
//! and references that have become empty are removed too, as by the hub's own tools.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{HubCache, HubFile, folder_name, repo_of_folder};
use crate::choose::part_names;
use crate::{HubError, RepoId};

/// A file of a snapshot: its repository and its path.
struct SnapshotFile {
    repo: RepoId,
    /// Path in the repository.
    file: String,
}

impl HubCache {
    /// Removes the model whose first file is `path`, as returned by a search, with all its parts. Returns the freed
    /// bytes; blobs that other names refer to are kept and not counted.
    ///
    /// # Errors
    /// [`HubError::NotOurs`] if `path` is no file of this cache's snapshots, [`HubError::Locked`] during its download,
    /// [`HubError::Disk`].
    pub fn remove(&self, path: &Path) -> Result<u64, HubError> {
        let named = self.snapshot_file(path).ok_or_else(|| not_ours(path))?;
        let names = part_names(&named.file);
        // All blobs are locked before any is removed, so the removal is all or nothing.
        let mut blobs = BTreeSet::new();
        let mut pointers = Vec::new();
        for name in &names {
            for commit in self.commits(&named.repo) {
                let pointer = self.snapshot(&named.repo, &commit).join(name);
                if fs::symlink_metadata(&pointer).is_err() {
                    continue;
                }
                if let Some(blob) = self.blob_behind(&named.repo, &pointer) {
                    blobs.insert(blob);
                }
                pointers.push(pointer);
            }
        }
        let mut locks = Vec::new();
        for blob in &blobs {
            if let Some(sha256) = blob.file_name().and_then(|name| name.to_str()) {
                locks.push(self.lock(&lock_target(&named.repo, &named.file, sha256))?);
            }
        }
        let mut freed = 0;
        for pointer in &pointers {
            // Without symbolic links the name is the file.
            if !is_link(pointer) {
                freed += length(pointer);
            }
            remove_file(pointer)?;
        }
        let named_still = self.blobs_with_names(&named.repo);
        for blob in &blobs {
            if !named_still.contains(blob) {
                freed += length(blob);
                remove_file(blob)?;
            }
        }
        drop(locks);
        self.remove_empty_folders(&named.repo);
        Ok(freed)
    }

    /// Removes an abandoned download: a file `<sha256>.incomplete` of this cache, or another tool's. Returns the freed
    /// bytes.
    ///
    /// # Errors
    /// Those of [`HubCache::remove`].
    pub fn remove_partial(&self, path: &Path) -> Result<u64, HubError> {
        let (repo, sha256) = self.partial_of(path).ok_or_else(|| not_ours(path))?;
        let _lock = self.lock(&lock_target(&repo, &repo.to_string(), &sha256))?;
        let freed = length(path);
        remove_file(path)?;
        drop(_lock);
        self.remove_empty_folders(&repo);
        Ok(freed)
    }

    /// The repository of an unfinished file of this cache, and the SHA-256 of the complete file.
    pub fn partial_of(&self, path: &Path) -> Option<(RepoId, String)> {
        let parts = self.names_below(path)?;
        let [folder, "blobs", name] = parts.as_slice() else {
            return None;
        };
        let sha256 = name.strip_suffix(".incomplete")?.split('.').next()?;
        is_sha256(sha256).then_some((repo_of_folder(folder)?, sha256.to_owned()))
    }

    /// The names of the folders from the cache's folder to `path`, and that of the file.
    fn names_below<'a>(&self, path: &'a Path) -> Option<Vec<&'a str>> {
        let rest = path.strip_prefix(&self.root).ok()?;
        rest.iter().map(|name| name.to_str()).collect()
    }

    fn snapshot_file(&self, path: &Path) -> Option<SnapshotFile> {
        let parts = self.names_below(path)?;
        let [folder, "snapshots", _, file @ ..] = parts.as_slice() else {
            return None;
        };
        let file = file.join("/");
        crate::reference::is_file_name(&file).then_some(SnapshotFile {
            repo: repo_of_folder(folder)?,
            file,
        })
    }

    /// The target of a link, if it is a blob of this repository.
    fn blob_behind(&self, repo: &RepoId, pointer: &Path) -> Option<PathBuf> {
        if !is_link(pointer) {
            return None;
        }
        let blobs = fs::canonicalize(self.repo(repo).join("blobs")).ok()?;
        let real = fs::canonicalize(pointer).ok()?;
        (real.parent() == Some(&*blobs)).then_some(real)
    }

    /// All blobs of the repository that some name refers to.
    fn blobs_with_names(&self, repo: &RepoId) -> BTreeSet<PathBuf> {
        let mut found = BTreeSet::new();
        let mut folders = vec![self.repo(repo).join("snapshots")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                    _ => found.extend(self.blob_behind(repo, &entry.path())),
                }
            }
        }
        found
    }

    /// Removes empty folders and references to removed commits. Failures are ignored, because the remains take no
    /// space.
    fn remove_empty_folders(&self, repo: &RepoId) {
        let folder = self.repo(repo);
        let snapshots = folder.join("snapshots");
        for commit in self.commits(repo) {
            let snapshot = snapshots.join(&commit);
            remove_empty(&snapshot);
            if !snapshot.exists() {
                forget_commit(&folder.join("refs"), &commit);
                // The hub tools' record of files that the commit does not have.
                let _ = fs::remove_dir_all(folder.join(".no_exist").join(&commit));
            }
        }
        for name in [".no_exist", "blobs", "snapshots", "refs"] {
            remove_empty(&folder.join(name));
        }
        if fs::remove_dir(&folder).is_ok() {
            let locks = self.root.join(".locks").join(folder_name(repo));
            for entry in fs::read_dir(&locks).into_iter().flatten().flatten() {
                // No download uses the locks of a removed repository.
                let _ = fs::remove_file(entry.path());
            }
            let _ = fs::remove_dir(&locks);
        }
    }
}

fn not_ours(path: &Path) -> HubError {
    HubError::NotOurs(path.display().to_string())
}

/// The file description that [`HubCache::lock`] needs.
fn lock_target(repo: &RepoId, file: &str, sha256: &str) -> HubFile {
    HubFile {
        repo: repo.clone(),
        commit: String::new(),
        path: file.to_owned(),
        bytes: 0,
        sha256: sha256.to_owned(),
    }
}

/// Whether `text` is 64 lower-case hexadecimal digits.
pub(crate) fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|about| about.is_symlink())
}

fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |about| about.len())
}

/// Removes a file, if it exists.
pub(crate) fn remove_file(path: &Path) -> Result<(), HubError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(HubError::disk(path, "removed", &error))
        }
        _ => Ok(()),
    }
}

/// Removes a folder if neither it nor its subfolders contain files.
fn remove_empty(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_empty(&entry.path());
        }
    }
    let _ = fs::remove_dir(folder);
}

/// Removes the references to a commit: `refs/main`, `refs/pr/1`.
fn forget_commit(folder: &Path, commit: &str) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => forget_commit(&path, commit),
            _ if fs::read_to_string(&path).is_ok_and(|text| text.trim() == commit) => {
                let _ = fs::remove_file(&path);
            }
            _ => {}
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn repo() -> RepoId {
        "a/b-GGUF".parse().unwrap()
    }

    fn file(path: &str, commit: char, sha: char) -> HubFile {
        HubFile {
            repo: repo(),
            commit: commit.to_string().repeat(40),
            path: path.to_owned(),
            bytes: 5,
            sha256: sha.to_string().repeat(64),
        }
    }

    fn put(cache: &HubCache, file: &HubFile, text: &str) -> PathBuf {
        let blob = cache.blob(&file.repo, &file.sha256);
        fs::create_dir_all(blob.parent().unwrap()).unwrap();
        fs::write(&blob, text).unwrap();
        cache.publish(file).unwrap()
    }

    fn everything_below(folder: &Path) -> Vec<String> {
        let mut found = Vec::new();
        let mut folders = vec![folder.to_owned()];
        while let Some(next) = folders.pop() {
            for entry in fs::read_dir(next).into_iter().flatten().flatten() {
                let below = entry.path();
                found.push(below.strip_prefix(folder).unwrap().display().to_string());
                if entry.file_type().unwrap().is_dir() {
                    folders.push(below);
                }
            }
        }
        found.sort();
        found
    }

    #[test]
    fn removing_the_last_model_removes_the_folders() {
        let folder = tempfile::tempdir().unwrap();
        let cache = HubCache::new(folder.path().join("hub"));
        let path = put(&cache, &file("sub/m.gguf", 'c', 'e'), "bytes");
        drop(cache.lock(&file("sub/m.gguf", 'c', 'e')).unwrap());
        assert_eq!(cache.remove(&path).unwrap(), 5);
        assert_eq!(everything_below(cache.root()), [".locks"]);
    }

    #[test]
    fn other_files_of_the_repository_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let cache = HubCache::new(folder.path());
        let other = put(&cache, &file("n.gguf", 'c', 'f'), "other");
        let readme = put(&cache, &file("README.md", 'c', 'a'), "words");
        let path = put(&cache, &file("m.gguf", 'c', 'e'), "bytes");
        assert_eq!(cache.remove(&path).unwrap(), 5);
        assert!(!path.exists() && !cache.blob(&repo(), &"e".repeat(64)).exists());
        assert_eq!(fs::read_to_string(other).unwrap(), "other");
        assert_eq!(fs::read_to_string(readme).unwrap(), "words");
        assert_eq!(cache.commits(&repo()), ["c".repeat(40)]);
    }

    #[test]
    fn a_file_is_removed_from_all_commits_but_shared_blobs_stay() {
        let folder = tempfile::tempdir().unwrap();
        let cache = HubCache::new(folder.path());
        let old = put(&cache, &file("m.gguf", 'b', 'e'), "old..");
        let new = put(&cache, &file("m.gguf", 'c', 'f'), "newer!");
        let twin = put(&cache, &file("twin.gguf", 'c', 'f'), "newer!");
        assert_eq!(cache.remove(&new).unwrap(), 5, "only the old one is freed");
        assert!(!old.exists() && !new.exists());
        assert_eq!(fs::read_to_string(&twin).unwrap(), "newer!");
        assert_eq!(cache.commits(&repo()), ["c".repeat(40)]);
        assert_eq!(cache.remove(&twin).unwrap(), 6);
    }

    #[test]
    fn all_parts_of_a_split_model_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let cache = HubCache::new(folder.path());
        let first = put(&cache, &file("m-00001-of-00002.gguf", 'c', 'e'), "12345");
        let second = put(&cache, &file("m-00002-of-00002.gguf", 'c', 'f'), "123");
        assert_eq!(cache.remove(&first).unwrap(), 8);
        assert!(!second.exists());
    }

    #[test]
    fn files_outside_the_cache_are_never_removed() {
        let folder = tempfile::tempdir().unwrap();
        let cache = HubCache::new(folder.path().join("hub"));
        let outside = folder.path().join("mine.gguf");
        fs::write(&outside, "mine").unwrap();
        let refused = cache.remove(&outside).unwrap_err().to_string();
        assert!(refused.contains("mine.gguf") && refused.contains("remove it there"));
        // A name in a snapshot that was pointed elsewhere: the name is removed, the file is kept.
        let snapshot = cache.pointer(&repo(), &"c".repeat(40), "m.gguf");
        fs::create_dir_all(snapshot.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(&outside, &snapshot).unwrap();
        assert_eq!(cache.remove(&snapshot).unwrap(), 0);
        assert_eq!(fs::read_to_string(&outside).unwrap(), "mine");
        for path in [
            cache
                .root()
                .join("models--a--b-GGUF/snapshots/c/../../../../mine.gguf"),
            cache.root().join("models--a--b-GGUF/blobs/mine.gguf"),
        ] {
            assert!(cache.remove(&path).is_err(), "{}", path.display());
        }
        assert!(cache.remove_partial(&outside).is_err());
        assert!(outside.exists());
    }

    #[test]
    fn a_locked_partial_file_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let cache = HubCache::new(folder.path());
        let file = file("m.gguf", 'c', 'e');
        let partial = cache.partial(&file.repo, &file.sha256);
        fs::create_dir_all(partial.parent().unwrap()).unwrap();
        fs::write(&partial, "byt").unwrap();
        let held = cache.lock(&file).unwrap();
        assert!(cache.remove_partial(&partial).is_err());
        assert!(partial.exists());
        drop(held);
        assert_eq!(cache.remove_partial(&partial).unwrap(), 3);
        assert!(!cache.repo(&file.repo).exists());
    }
}
