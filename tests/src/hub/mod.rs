//! A local model hub: the real hub's replies over real connections, with faults that a test can switch on.
//!
//! Two servers on two ports, as the real hub has two origins: the hub itself (lists, heads, redirects) and its storage
//! (bytes). Every request is recorded, so that a test can check the target, the first byte and the token.

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

/// One of the two servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Lists, heads, redirects.
    Hub,
    /// Bytes.
    Storage,
}

/// A recorded request.
#[derive(Debug, Clone)]
pub struct Request {
    /// The server that received the request.
    pub origin: Origin,
    /// `GET` or `HEAD`.
    pub method: String,
    /// Path with query.
    pub target: String,
    /// First byte requested.
    pub from: Option<u64>,
    /// The `Authorization` header.
    pub authorization: Option<String>,
}

/// An error reply.
#[derive(Debug, Clone, Copy)]
pub struct Refusal {
    /// The server that refuses.
    pub origin: Origin,
    /// Refused request: the list (`false`) or a file (`true`).
    pub file: bool,
    /// HTTP status.
    pub status: u16,
    /// `X-Error-Code`, empty for none.
    pub code: &'static str,
    /// `Retry-After`, in seconds.
    pub retry_after: Option<u64>,
    /// Number of refused requests; later ones succeed.
    pub times: usize,
}

/// Faults of the hub; none by default.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// Error replies.
    pub refusal: Option<Refusal>,
    /// The storage cuts the connection after this many bytes of a reply ...
    pub cut_after: Option<u64>,
    /// ... this many times.
    pub cuts: usize,
    /// The storage stalls after this many bytes of a reply.
    pub stall_after: Option<u64>,
    /// The storage ignores range requests.
    pub no_ranges: bool,
    /// The storage sends bytes that do not match the hub's hash.
    pub wrong_bytes: bool,
    /// The storage announces one byte more than the file has.
    pub wrong_length: bool,
    /// Lists have neither sizes nor hashes, as those of some mirrors.
    pub bare_lists: bool,
    /// The hub sends no hash.
    pub no_hash: bool,
    /// The hub replies like an unrelated web site.
    pub nonsense: bool,
    /// The hub sends files itself, without a redirect.
    pub direct: bool,
    /// Only requests with this token are authorised.
    pub token: Option<String>,
    /// Lists declare this file size.
    pub claimed_bytes: Option<u64>,
    /// Successive requests for a file find it replaced by these contents, taken from the end of the list.
    pub replace: Vec<Vec<u8>>,
}

struct Shared {
    files: Mutex<HashMap<String, Arc<Vec<u8>>>>,
    commit: Mutex<String>,
    faults: Mutex<Faults>,
    requests: Mutex<Vec<Request>>,
    /// File bytes sent.
    served: AtomicU64,
    /// No file byte past this offset is sent.
    gate: AtomicU64,
    /// A transfer stops when this counter rises after the transfer's start.
    epoch: AtomicU64,
    storage: Mutex<Option<SocketAddr>>,
}

/// The hub; it runs until the test's process exits.
pub struct Hub {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// The home folder of the hub's client.
    pub home: tempfile::TempDir,
}

/// The only repository of the hub.
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

/// Bytes that start like a GGUF file and contain no repeated stretch.
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

    /// First bytes of the requests to the storage, in order; 0 for a whole file.
    pub fn starts(&self) -> Vec<u64> {
        let requests = self.requests();
        let storage = requests.iter().filter(|r| r.origin == Origin::Storage);
        storage.map(|request| request.from.unwrap_or(0)).collect()
    }

    /// File bytes sent.
    pub fn served(&self) -> u64 {
        self.shared.served.load(Ordering::SeqCst)
    }

    /// Holds back file bytes past `byte` until the next call; transfers in progress stop for good.
    pub fn gate(&self, byte: u64) {
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        self.shared.gate.store(byte, Ordering::SeqCst);
    }

    /// The commit of `main`.
    pub fn commit(&self) -> String {
        lock(&self.shared.commit).clone()
    }

    /// Replaces a file, as a new commit.
    pub fn replace(&self, path: &str, bytes: &[u8]) {
        lock(&self.shared.files).insert(path.to_owned(), Arc::new(bytes.to_vec()));
        *lock(&self.shared.commit) = sha256(bytes)[..40].to_owned();
    }

    /// The client's cache folder.
    pub fn cache(&self) -> PathBuf {
        self.home.path().join(".cache/huggingface/hub")
    }

    /// The path of a blob in the cache.
    pub fn blob(&self, bytes: &[u8]) -> PathBuf {
        self.repo().join("blobs").join(sha256(bytes))
    }

    /// The path of a partly downloaded blob.
    pub fn partial(&self, bytes: &[u8]) -> PathBuf {
        self.repo()
            .join("blobs")
            .join(format!("{}.incomplete", sha256(bytes)))
    }

    /// The repository's folder in the cache.
    pub fn repo(&self) -> PathBuf {
        self.cache().join("models--maker--tiny-GGUF")
    }

    /// `kept` with this hub and the client's home folder.
    pub fn kept(&self, arguments: &[&str]) -> Command {
        let mut command = at_home(self.home.path());
        command.args(arguments).env("HF_ENDPOINT", self.endpoint());
        command
    }
}

/// `kept` with `home` as home folder and no other settings.
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
        // The Ollama service keeps its models outside the home folder.
        .env("OLLAMA_MODELS", home.join(".ollama/models"))
        .env_remove("RUST_BACKTRACE");
    command
}

/// Puts a file into a cache folder in the hub tools' layout; returns the path to open.
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
