//! Finds models on this computer, downloaded by any program.
//!
//! The search is bounded: in depth, in number of files, and in the bytes read per file ([`Header`]). Unreadable folders
//! are reported in [`Found::troubles`] and do not stop the search. A file reachable by several paths is one model.

mod folders;
mod hub_cache;
mod names;
mod ollama;
mod places;
mod preferred;
mod walk;

pub use folders::Folders;
pub(crate) use preferred::MAX_PREFERRED_BYTES;
pub use preferred::{AUTO, ModelChoice, Preferred, PreferredBy};

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use kept_models::gguf::Header;
use serde::Serialize;

use crate::choose::{is_model_file, part_names, split_name};
use crate::{HubCache, RepoId};

/// The program whose folder contains a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Place {
    /// The cache shared by the hub's tools; Kept downloads to it.
    HubCache,
    /// LM Studio.
    LmStudio,
    /// Ollama.
    Ollama,
    /// Jan.
    Jan,
    /// GPT4All.
    Gpt4All,
    /// llama.cpp's own cache.
    LlamaCpp,
    /// Kept's own cache: models fetched by `make models`.
    Kept,
    /// A folder added by the user.
    Folder,
    /// A single file chosen by the user.
    File,
}

impl Place {
    /// Display name.
    pub fn name(self) -> &'static str {
        match self {
            Place::HubCache => "hub cache",
            Place::LmStudio => "LM Studio",
            Place::Ollama => "Ollama",
            Place::Jan => "Jan",
            Place::Gpt4All => "GPT4All",
            Place::LlamaCpp => "llama.cpp",
            Place::Kept => "Kept",
            Place::Folder => "folder",
            Place::File => "file",
        }
    }
}

/// A model file (or the parts of one) on this computer.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FoundModel {
    /// Argument of `--model`: `owner/name:file.gguf` in the hub's cache, `name:tag` for Ollama, else the file's name.
    pub name: String,
    /// `general.name` of the file.
    pub title: Option<String>,
    /// The file to open: the first part of a split model.
    pub path: PathBuf,
    /// Number of parts found.
    pub parts: usize,
    /// Total bytes of all parts.
    pub bytes: u64,
    /// `general.architecture` of the file.
    pub architecture: Option<String>,
    /// The quantisation: `Q4_K_M`.
    pub quantisation: Option<String>,
    /// Number of parameters; `None` if the header was not read completely, and for split models.
    pub parameters: Option<u64>,
    /// Context length of the model, in tokens.
    pub context: Option<u64>,
    /// Whether the model has a chat template.
    pub instruct: bool,
    /// The program whose folder contains it.
    pub place: Place,
    /// Whether Kept can open it, judging by its header.
    pub supported: bool,
    /// Why Kept cannot open it.
    pub reason: Option<String>,
}

/// An unfinished download by any program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Unfinished {
    /// The repository or file, as far as known.
    pub name: String,
    /// The unfinished file.
    pub path: PathBuf,
    /// Bytes received; `None` if the file's length does not show it.
    pub bytes: Option<u64>,
    /// The program whose folder contains it.
    pub place: Place,
}

/// Result of a search.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Found {
    /// Complete models, by place and name.
    pub models: Vec<FoundModel>,
    /// Unfinished downloads.
    pub unfinished: Vec<Unfinished>,
    /// One sentence for each folder that could not be searched.
    pub troubles: Vec<String>,
}

/// A file that may be a model, before its header is read.
#[derive(Debug, Clone)]
struct Candidate {
    /// Argument of `--model`.
    name: String,
    /// The path under which its program stores it; the file name identifies the model.
    path: PathBuf,
    bytes: u64,
    place: Place,
}

/// Result of searching one place.
#[derive(Debug, Default)]
struct Gathered {
    candidates: Vec<Candidate>,
    unfinished: Vec<Unfinished>,
    troubles: Vec<String>,
}

/// Searches for models. Blocks on disk access.
#[derive(Debug, Clone)]
pub struct Finder {
    cache: HubCache,
    folders: Vec<(Place, PathBuf)>,
    /// Individual files to include.
    files: Vec<PathBuf>,
}

impl Finder {
    /// Adds a folder to search.
    #[must_use]
    pub fn with_folder(mut self, folder: impl Into<PathBuf>) -> Finder {
        self.folders.push((Place::Folder, folder.into()));
        self
    }

    /// Adds a single file at any path.
    #[must_use]
    pub fn with_file(mut self, file: impl Into<PathBuf>) -> Finder {
        self.files.push(file.into());
        self
    }

    /// The hub's cache.
    pub fn cache(&self) -> &HubCache {
        &self.cache
    }

    /// The folders to search, whether or not they exist.
    pub fn folders(&self) -> impl Iterator<Item = (Place, &Path)> {
        let cache = std::iter::once((Place::HubCache, self.cache.root()));
        cache.chain(
            self.folders
                .iter()
                .map(|(place, path)| (*place, path.as_path())),
        )
    }

    /// Searches all folders and files.
    pub fn find(&self) -> Found {
        let mut all = Gathered::default();
        hub_cache::gather(&self.cache, &mut all);
        for (place, folder) in &self.folders {
            match place {
                Place::Ollama => ollama::gather(folder, &mut all),
                _ => walk::gather(*place, folder, &mut all),
            }
        }
        for file in self.files.iter().flat_map(|file| with_parts(file)) {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            let bytes = std::fs::metadata(&file).map_or(0, |about| about.len());
            all.candidates.push(Candidate {
                name: name.into_owned(),
                bytes,
                place: Place::File,
                path: file,
            });
        }
        let mut models = describe(join_parts(distinct(all.candidates)));
        models.sort_by(|a, b| (a.place, &a.name, &a.path).cmp(&(b.place, &b.name, &b.path)));
        let mut seen = HashSet::new();
        all.unfinished
            .retain(|one| seen.insert(canonical(&one.path)));
        all.unfinished
            .sort_by(|a, b| (a.place, &a.name, &a.path).cmp(&(b.place, &b.name, &b.path)));
        Found {
            models,
            unfinished: all.unfinished,
            troubles: all.troubles,
        }
    }

    /// The models of a repository in the hub's cache: names as in its list, paths to open, and lengths.
    fn in_hub_cache(&self, repo: &RepoId) -> Vec<(String, PathBuf, u64)> {
        hub_cache::files(&self.cache, repo)
    }
}

/// A file, and the other parts of a split model in the same folder.
fn with_parts(file: &Path) -> Vec<PathBuf> {
    let Some(name) = file.file_name().and_then(|name| name.to_str()) else {
        return vec![file.to_owned()];
    };
    let parts = part_names(name).into_iter();
    let parts = parts.map(|part| file.with_file_name(part));
    parts
        .filter(|path| path == file || path.is_file())
        .collect()
}

/// The canonical path of a file, as users write it (on Windows `C:\..`, not `\\?\C:\..`).
fn canonical(path: &Path) -> PathBuf {
    dunce::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// Whether two paths lead to the same file.
pub fn is_same_file(a: &Path, b: &Path) -> bool {
    canonical(a) == canonical(b)
}

/// Removes duplicates of a file, keeping the first path.
fn distinct(candidates: Vec<Candidate>) -> Vec<Candidate> {
    let mut seen = HashSet::new();
    let first = |candidate: &Candidate| seen.insert(canonical(&candidate.path));
    candidates.into_iter().filter(first).collect()
}

/// A model with its parts.
struct Joined {
    first: Candidate,
    bytes: u64,
    parts: usize,
    /// The first missing part, and the number of parts, if one is missing.
    missing: Option<(u32, u32)>,
}

fn join_parts(candidates: Vec<Candidate>) -> Vec<Joined> {
    let mut joined: Vec<Joined> = Vec::new();
    let mut split: Vec<(String, u32, u32, Candidate)> = Vec::new();
    for candidate in candidates {
        let path = candidate.path.to_string_lossy().replace('\\', "/");
        match split_name(&path) {
            Some(name) => split.push((name.stem.to_owned(), name.parts, name.part, candidate)),
            None => joined.push(Joined {
                bytes: candidate.bytes,
                parts: 1,
                missing: None,
                first: candidate,
            }),
        }
    }
    split.sort_by(|a, b| (&a.0, a.1, a.2).cmp(&(&b.0, b.1, b.2)));
    for group in split.chunk_by(|a, b| (&a.0, a.1) == (&b.0, b.1)) {
        let parts = group[0].1;
        let missing = (1..=parts).find(|part| group.iter().all(|(.., there, _)| there != part));
        joined.push(Joined {
            first: group[0].3.clone(),
            bytes: group.iter().map(|(.., part)| part.bytes).sum(),
            parts: group.len(),
            missing: missing.map(|part| (part, parts)),
        });
    }
    joined
}

/// Reads the headers on several threads, because most of the time is spent waiting for the disk.
fn describe(joined: Vec<Joined>) -> Vec<FoundModel> {
    const MAX_THREADS: usize = 8;
    let next = AtomicUsize::new(0);
    let models = Mutex::new(Vec::with_capacity(joined.len()));
    let work = || {
        while let Some(one) = joined.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Some(model) = describe_one(one)
                && let Ok(mut models) = models.lock()
            {
                models.push(model);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..MAX_THREADS.min(joined.len()) {
            scope.spawn(work);
        }
        work();
    });
    models.into_inner().unwrap_or_default()
}

/// `None` for files that are not language models: vision encoders, adapters, vocabularies.
fn describe_one(joined: &Joined) -> Option<FoundModel> {
    let candidate = &joined.first;
    let mut model = FoundModel {
        name: candidate.name.clone(),
        title: None,
        path: candidate.path.clone(),
        parts: joined.parts,
        bytes: joined.bytes,
        architecture: None,
        quantisation: None,
        parameters: None,
        context: None,
        instruct: false,
        place: candidate.place,
        supported: false,
        reason: None,
    };
    match Header::read(&candidate.path) {
        Err(error) => model.reason = Some(error.to_string()),
        Ok(header) => {
            let part = matches!(
                header.kind.as_deref(),
                Some("adapter" | "imatrix" | "mmproj")
            );
            let eyes = header.architecture.as_deref() == Some("clip");
            if part || eyes || (header.tensors == 0 && header.split.is_none()) {
                return None;
            }
            model.supported = header.supported.is_ok() && joined.missing.is_none();
            model.reason = header.supported.err().map(|error| error.to_string());
            model.title = header.name;
            model.architecture = header.architecture;
            model.quantisation = header.quantisation;
            model.parameters = header.parameters.filter(|_| header.split.is_none());
            model.context = header.context;
            model.instruct = header.chat_template;
        }
    }
    if let Some((part, parts)) = joined.missing {
        model.reason = Some(format!(
            "part {part} of {parts} is missing; download the model again"
        ));
    }
    Some(model)
}

/// Whether the file name is that of a language model.
fn is_model_path(path: &Path) -> bool {
    path.file_name()
        .and_then(|name| name.to_str())
        .is_some_and(is_model_file)
}
