//! Models in the hub's cache. Files have the names of their snapshots; unfinished blobs have no names.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::{Candidate, Gathered, Place, Unfinished, is_model_path, walk};
use crate::cache::repo_of_folder;
use crate::{HubCache, RepoId};

/// The complete files of a repository: those of `main` first, then those that only older commits have.
pub(super) fn files(cache: &HubCache, repo: &RepoId) -> Vec<(String, PathBuf, u64)> {
    let mut files: Vec<(String, PathBuf, u64)> = Vec::new();
    for commit in cache.commits(repo) {
        let snapshot = cache.repo(repo).join("snapshots").join(&commit);
        for file in walk::files_below(&snapshot) {
            if !files.iter().any(|(name, ..)| *name == file.0) {
                files.push(file);
            }
        }
    }
    files
}

pub(super) fn gather(cache: &HubCache, all: &mut Gathered) {
    let listing = match fs::read_dir(cache.root()) {
        Ok(listing) => listing,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return,
        Err(error) => {
            all.troubles.push(format!(
                "'{}' cannot be looked through ({error}); check its permissions",
                cache.root().display()
            ));
            return;
        }
    };
    for entry in listing.flatten() {
        let name = entry.file_name();
        let Some(repo) = name.to_str().and_then(repo_of_folder) else {
            continue;
        };
        for (file, path, bytes) in files(cache, &repo) {
            if is_model_path(&path) {
                all.candidates.push(Candidate {
                    name: format!("{repo}:{file}"),
                    path,
                    bytes,
                    place: Place::HubCache,
                });
            }
        }
        for (path, bytes) in partials(&entry.path()) {
            all.unfinished.push(Unfinished {
                name: repo.to_string(),
                path,
                bytes: Some(bytes),
                place: Place::HubCache,
            });
        }
    }
}

/// Unfinished GGUF files. Other downloads of the hub's tools are ignored.
fn partials(repo: &Path) -> Vec<(PathBuf, u64)> {
    let unfinished = |entry: fs::DirEntry| {
        let path = entry.path();
        let about = entry.metadata().ok().filter(fs::Metadata::is_file)?;
        let is_partial = path.extension().is_some_and(|end| end == "incomplete");
        (is_partial && is_gguf(&path)).then_some((path, about.len()))
    };
    let entries = fs::read_dir(repo.join("blobs")).into_iter().flatten();
    entries.flatten().filter_map(unfinished).collect()
}

fn is_gguf(path: &Path) -> bool {
    let mut start = [0; 4];
    File::open(path).is_ok_and(|mut file| file.read_exact(&mut start).is_ok()) && &start == b"GGUF"
}
