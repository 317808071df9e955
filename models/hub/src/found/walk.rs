//! Walks a folder of plain files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use walkdir::{DirEntry, WalkDir};

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
pub(super) fn for_each_file(root: &Path, troubles: &mut Vec<String>, mut file: impl FnMut(&Path)) {
    let is_hidden = |entry: &DirEntry| {
        entry.file_type().is_dir() && entry.file_name().to_string_lossy().starts_with('.')
    };
    let entries = WalkDir::new(root)
        .follow_links(true)
        .min_depth(1)
        .max_depth(MAX_FOLDER_DEPTH + 1)
        .sort_by_file_name()
        .into_iter()
        .filter_entry(|entry| entry.depth() == 0 || !is_hidden(entry));
    for (before, entry) in entries.enumerate() {
        if before == MAX_ENTRIES {
            troubles.push(format!(
                "'{}' has more than {MAX_ENTRIES} files; only those were searched: add the folder of the models itself",
                root.display()
            ));
            return;
        }
        match entry {
            Ok(entry) if entry.file_type().is_file() => file(entry.path()),
            Ok(_) => {}
            Err(error) => troubles.extend(trouble(&error)),
        }
    }
}

/// What to tell about a folder that cannot be listed. A missing root, a dangling link and a cycle are no trouble.
fn trouble(error: &walkdir::Error) -> Option<String> {
    let (path, error) = (error.path()?, error.io_error()?);
    let is_none = matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    );
    (!is_none).then(|| {
        format!(
            "'{}' cannot be looked through ({error}); check its permissions",
            path.display()
        )
    })
}

pub(super) fn gather(place: Place, root: &Path, all: &mut Gathered) {
    let Gathered {
        candidates,
        unfinished,
        troubles,
    } = all;
    for_each_file(root, troubles, |path| {
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
    for_each_file(root, &mut Vec::new(), |path| {
        let name = path.strip_prefix(root).ok().and_then(Path::to_str);
        if let (Some(name), Ok(about)) = (name, fs::metadata(path)) {
            found.push((name.replace('\\', "/"), path.to_owned(), about.len()));
        }
    });
    found
}
