//! A hub on this computer: what the real one answers, over real connections, with faults that can be switched on.
//!
//! Two servers on two ports, as the real hub has two origins: the hub itself (lists, heads, redirects) and its storage (bytes). Every
//! request is noted, so that a test can say what was asked for, from which byte, and with which token.

pub mod pulling;
mod serving;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sha2::{Digest, Sha256};

use self::serving::listen;
use crate::terminal::program;

/// Which of the two servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Lists, heads, redirects.
    Hub,
    /// Bytes.
    Storage,
}

/// A request that came.
#[derive(Debug, Clone)]
pub struct Request {
    /// Where it came.
    pub origin: Origin,
    /// `GET` or `HEAD`.
    pub method: String,
    /// Path with query.
    pub target: String,
    /// First byte asked for.
    pub from: Option<u64>,
    /// The `Authorization` header.
    pub authorization: Option<String>,
}

/// An answer that is none.
#[derive(Debug, Clone, Copy)]
pub struct Refusal {
    /// Who refuses.
    pub origin: Origin,
    /// What is refused: the list (`false`) or a file (`true`).
    pub file: bool,
    /// HTTP status.
    pub status: u16,
    /// `X-Error-Code`, empty for none.
    pub code: &'static str,
    /// `Retry-After`, in seconds.
    pub retry_after: Option<u64>,
    /// How often; then all is well.
    pub times: usize,
}

/// What is wrong with the hub; by default nothing.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// Answers that are none.
    pub refusal: Option<Refusal>,
    /// The storage cuts the connection after so many bytes of an answer ...
    pub cut_after: Option<u64>,
    /// ... so many times.
    pub cuts: usize,
    /// The storage says nothing more after so many bytes of an answer.
    pub stall_after: Option<u64>,
    /// The storage knows no ranges.
    pub no_ranges: bool,
    /// The storage sends other bytes than the hub names.
    pub wrong_bytes: bool,
    /// The storage announces one byte more than there is.
    pub wrong_length: bool,
    /// Lists have neither sizes nor hashes, as those of some mirrors.
    pub bare_lists: bool,
    /// The hub names no hash at all.
    pub no_hash: bool,
    /// The hub is another web site.
    pub nonsense: bool,
    /// The hub sends files itself, without a redirect.
    pub direct: bool,
    /// Only who brings this token is let in.
    pub token: Option<String>,
    /// Lists claim that files have so many bytes.
    pub claimed_bytes: Option<u64>,
    /// The next requests for a file find it replaced by these, the last first.
    pub replace: Vec<Vec<u8>>,
}

struct Shared {
    files: Mutex<HashMap<String, Arc<Vec<u8>>>>,
    commit: Mutex<String>,
    faults: Mutex<Faults>,
    requests: Mutex<Vec<Request>>,
    /// Bytes of files that were sent.
    served: AtomicU64,
    /// No byte of a file behind this one is sent.
    gate: AtomicU64,
    /// Who began to send before this was raised stops.
    epoch: AtomicU64,
    storage: Mutex<Option<SocketAddr>>,
}

/// The hub; it ends with the test's process.
pub struct Hub {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// The home folder of whoever uses it.
    pub home: tempfile::TempDir,
}

/// The one repository there is.
pub const REPO: &str = "maker/tiny-GGUF";

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// SHA-256 as the hub writes it.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Bytes that look like a GGUF file and like nothing else: every stretch of them differs.
pub fn some_bytes(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2) + 1;
    let mut bytes = b"GGUF".to_vec();
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

impl Hub {
    /// A hub with these files in [`REPO`].
    pub fn with(files: &[(&str, &[u8])]) -> Hub {
        let owned = |(path, bytes): &(&str, &[u8])| ((*path).to_owned(), Arc::new(bytes.to_vec()));
        let shared = Arc::new(Shared {
            files: Mutex::new(files.iter().map(owned).collect()),
            commit: Mutex::new("c0ffee".repeat(7)[..40].to_owned()),
            faults: Mutex::default(),
            requests: Mutex::default(),
            served: AtomicU64::new(0),
            gate: AtomicU64::new(u64::MAX),
            epoch: AtomicU64::new(0),
            storage: Mutex::new(None),
        });
        let storage = listen(Origin::Storage, &shared);
        *lock(&shared.storage) = Some(storage);
        Hub {
            address: listen(Origin::Hub, &shared),
            shared,
            home: tempfile::tempdir().expect("a folder"),
        }
    }

    /// Its address, for `HF_ENDPOINT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Switches faults on and off.
    pub fn set(&self, faults: Faults) {
        *lock(&self.shared.faults) = faults;
    }

    /// Every request so far.
    pub fn requests(&self) -> Vec<Request> {
        lock(&self.shared.requests).clone()
    }

    /// First bytes that were asked for of the storage, in order; 0 for a whole file.
    pub fn starts(&self) -> Vec<u64> {
        let requests = self.requests();
        let storage = requests.iter().filter(|r| r.origin == Origin::Storage);
        storage.map(|request| request.from.unwrap_or(0)).collect()
    }

    /// Bytes of files that were sent.
    pub fn served(&self) -> u64 {
        self.shared.served.load(Ordering::SeqCst)
    }

    /// Sends nothing of a file behind this byte, until told otherwise; whoever is sending stops for good.
    pub fn gate(&self, byte: u64) {
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        self.shared.gate.store(byte, Ordering::SeqCst);
    }

    /// The commit that `main` is.
    pub fn commit(&self) -> String {
        lock(&self.shared.commit).clone()
    }

    /// Replaces a file, as a new commit.
    pub fn replace(&self, path: &str, bytes: &[u8]) {
        lock(&self.shared.files).insert(path.to_owned(), Arc::new(bytes.to_vec()));
        *lock(&self.shared.commit) = sha256(bytes)[..40].to_owned();
    }

    /// The cache folder of whoever uses it.
    pub fn cache(&self) -> PathBuf {
        self.home.path().join(".cache/huggingface/hub")
    }

    /// A blob in it.
    pub fn blob(&self, bytes: &[u8]) -> PathBuf {
        self.repo().join("blobs").join(sha256(bytes))
    }

    /// What has arrived of a blob.
    pub fn partial(&self, bytes: &[u8]) -> PathBuf {
        self.repo()
            .join("blobs")
            .join(format!("{}.incomplete", sha256(bytes)))
    }

    /// The repository's folder in the cache.
    pub fn repo(&self) -> PathBuf {
        self.cache().join("models--maker--tiny-GGUF")
    }

    /// `kept` with this hub, in a home of its own.
    pub fn kept(&self, arguments: &[&str]) -> Command {
        let mut command = at_home(self.home.path());
        command.args(arguments).env("HF_ENDPOINT", self.endpoint());
        command
    }
}

/// `kept` in a home where nothing is set.
pub fn at_home(home: &Path) -> Command {
    let mut command = Command::new(program());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let starts = [
            "HF_",
            "HUGGING",
            "XDG_",
            "KEPT_",
            "OLLAMA",
            "LLAMA",
            "TRANSFORMERS",
        ];
        if starts.iter().any(|start| text.starts_with(start))
            || text.to_lowercase().ends_with("_proxy")
        {
            command.env_remove(&name);
        }
    }
    command
        .env("HOME", home)
        .env("USERPROFILE", home)
        // Where its service keeps them is no part of a home.
        .env("OLLAMA_MODELS", home.join(".ollama/models"))
        .env_remove("RUST_BACKTRACE");
    command
}

/// Puts a file into a cache folder as the hub's tools leave it; the path to open.
///
/// # Panics
/// When the disk takes none.
pub fn in_cache(cache: &Path, repo: &str, file: &str, bytes: &[u8]) -> PathBuf {
    let folder = cache.join(format!("models--{}", repo.replace('/', "--")));
    let (commit, blob) = ("a".repeat(40), folder.join("blobs").join(sha256(bytes)));
    let pointer = folder.join("snapshots").join(&commit).join(file);
    for path in [&blob, &folder.join("refs/main"), &pointer] {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
    }
    std::fs::write(&blob, bytes).expect("written");
    std::fs::write(folder.join("refs/main"), commit).expect("written");
    #[cfg(unix)]
    std::os::unix::fs::symlink(&blob, &pointer).expect("linked");
    #[cfg(not(unix))]
    std::fs::hard_link(&blob, &pointer).expect("linked");
    pointer
}
