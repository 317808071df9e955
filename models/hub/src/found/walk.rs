//! Walks a folder of plain files.

use std::collections::HashSet;
use std::fs::{self, DirEntry};
use std::io;
use std::path::{Path, PathBuf};

use super::{Candidate, Gathered, Place, Unfinished, is_model_path};

/// Maximum depth of folders below the root.
const MAX_FOLDER_DEPTH: usize = 8;
/// Maximum number of files and folders visited; a home folder added by mistake has more.
const MAX_ENTRIES: usize = 100_000;
/// File name suffixes that programs use for unfinished downloads.
const UNFINISHED: [&str; 6] = [
    ".incomplete",
    ".part",
    ".partial",
    ".downloadinprogress",
    ".download",
    ".tmp",
];

/// Calls `file` for all files below `root`. Symbolic links are followed, cycles are detected, hidden folders are
/// skipped.
pub(super) fn for_each_file(
    root: &Path,
    troubles: &mut Vec<String>,
    mut file: impl FnMut(&Path, &DirEntry),
) {
    let mut seen = HashSet::new();
    let mut entries = 0;
    let mut folders = vec![(root.to_owned(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        if fs::canonicalize(&folder).is_ok_and(|real| !seen.insert(real)) {
            continue;
        }
        let listing = match fs::read_dir(&folder) {
            Ok(listing) => listing,
            Err(error) => {
                let none = depth == 0 && error.kind() == io::ErrorKind::NotFound;
                if !none && error.kind() != io::ErrorKind::NotADirectory {
                    troubles.push(format!(
                        "'{}' cannot be looked through ({error}); check its permissions",
                        folder.display()
                    ));
                }
                continue;
            }
        };
        let mut listing: Vec<DirEntry> = listing.flatten().collect();
        listing.sort_by_key(DirEntry::file_name);
        for entry in listing {
            entries += 1;
            if entries > MAX_ENTRIES {
                troubles.push(format!(
                    "'{}' has more than {MAX_ENTRIES} files; only those were searched: add the folder of the models itself",
                    root.display()
                ));
                return;
            }
            let path = entry.path();
            let hidden = entry.file_name().to_string_lossy().starts_with('.');
            // Follows links; a dangling link is neither a folder nor a file.
            match fs::metadata(&path) {
                Ok(about) if about.is_dir() && depth < MAX_FOLDER_DEPTH && !hidden => {
                    folders.push((path, depth + 1));
                }
                Ok(about) if about.is_file() => file(&path, &entry),
                _ => {}
            }
        }
    }
}

pub(super) fn gather(place: Place, root: &Path, all: &mut Gathered) {
    let Gathered {
        candidates,
        unfinished,
        troubles,
    } = all;
    for_each_file(root, troubles, |path, _| {
        let bytes = fs::metadata(path).map_or(0, |about| about.len());
        if is_model_path(path) && !begins_unfinished(path) {
            candidates.push(Candidate {
                name: name_of(path),
                path: path.to_owned(),
                bytes,
                place,
            });
        } else if is_unfinished(path) {
            unfinished.push(Unfinished {
                name: name_of(path),
                path: path.to_owned(),
                bytes: Some(bytes),
                place,
            });
        }
    });
}

/// Whether the name has LM Studio's prefix for unfinished files.
fn begins_unfinished(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("downloading_")
}

fn is_unfinished(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let name = name.to_ascii_lowercase();
    let ends = UNFINISHED.iter().any(|end| name.ends_with(end));
    name.contains(".gguf") && (ends || begins_unfinished(path))
}

/// The file's name without `.gguf`. For programs that call every model `model.gguf`, the folder's name.
fn name_of(path: &Path) -> String {
    let stem = |path: &Path| {
        path.file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    };
    let name = stem(path);
    let folder = path.parent().and_then(Path::file_name);
    match (name.as_str(), folder) {
        ("model", Some(folder)) => folder.to_string_lossy().into_owned(),
        _ => name,
    }
}

/// The files below `root`, with their relative paths and lengths.
pub(super) fn files_below(root: &Path) -> Vec<(String, PathBuf, u64)> {
    let mut found = Vec::new();
    for_each_file(root, &mut Vec::new(), |path, _| {
        let name = path.strip_prefix(root).ok().and_then(Path::to_str);
        if let (Some(name), Ok(about)) = (name, fs::metadata(path)) {
            found.push((name.replace('\\', "/"), path.to_owned(), about.len()));
        }
    });
    found
}
