//! A hub on this computer: what the real one answers, over real connections, with faults that can be switched on.
//!
//! Two servers on two ports, as the real hub has two origins: the hub itself (lists, heads, redirects) and its storage (bytes). Every
//! request is noted, so that a test can say what was asked for, from which byte, and with which token.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::terminal::program;

/// Bytes that are sent in one go.
const PIECE: usize = 16 << 10;

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
    /// The next request for a file finds it replaced by this.
    pub replace: Option<Vec<u8>>,
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
    let mut state = seed | 1;
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
        .env_remove("RUST_BACKTRACE");
    command
}

fn listen(origin: Origin, shared: &Arc<Shared>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let shared = Arc::clone(shared);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let shared = Arc::clone(&shared);
            // A connection that breaks is what these tests are about.
            thread::spawn(move || drop(answer(origin, &stream, &shared)));
        }
    });
    address
}

/// One request per connection.
fn answer(origin: Origin, stream: &TcpStream, shared: &Shared) -> std::io::Result<()> {
    let epoch = shared.epoch.load(Ordering::SeqCst);
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    let mut words = first.split(' ').map(str::to_owned);
    let (method, target) = (
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default(),
    );
    let mut request = Request {
        origin,
        method,
        target,
        from: None,
        authorization: None,
    };
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(": ") else {
            break;
        };
        match name.to_lowercase().as_str() {
            "range" => {
                let bounds = value.trim_start_matches("bytes=");
                request.from = bounds.trim_end_matches('-').parse().ok();
            }
            "authorization" => request.authorization = Some(value.to_owned()),
            _ => {}
        }
    }
    if request.method.is_empty() {
        return Ok(());
    }
    request.target = request.target.replace("%20", " ");
    lock(&shared.requests).push(request.clone());
    match origin {
        Origin::Hub => hub(stream, &request, shared, epoch),
        Origin::Storage => storage(stream, &request, shared, epoch),
    }
}

fn reply(
    mut stream: &TcpStream,
    status: u16,
    headers: &[(&str, String)],
    body: &[u8],
) -> std::io::Result<()> {
    let mut head = format!("HTTP/1.1 {status} Of-The-Test\r\nConnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)
}

/// Whether this request is refused; if so, that was one time less.
fn refused(origin: Origin, file: bool, shared: &Shared) -> Option<Refusal> {
    let mut faults = lock(&shared.faults);
    let refusal = faults.refusal.as_mut()?;
    let hit = refusal.origin == origin && refusal.file == file && refusal.times > 0;
    hit.then(|| {
        refusal.times -= 1;
        *refusal
    })
}

fn refuse(stream: &TcpStream, refusal: &Refusal) -> std::io::Result<()> {
    let mut headers = Vec::new();
    if !refusal.code.is_empty() {
        headers.push(("X-Error-Code", refusal.code.to_owned()));
    }
    if let Some(seconds) = refusal.retry_after {
        headers.push(("Retry-After", seconds.to_string()));
    }
    reply(
        stream,
        refusal.status,
        &headers,
        br#"{"error":"refused by the test"}"#,
    )
}

fn hub(stream: &TcpStream, request: &Request, shared: &Shared, epoch: u64) -> std::io::Result<()> {
    let faults = lock(&shared.faults).clone();
    let file = request.target.contains("/resolve/");
    if faults.nonsense {
        return reply(
            stream,
            200,
            &[],
            b"<html>Welcome to the hotel's network</html>",
        );
    }
    if let Some(refusal) = refused(Origin::Hub, file, shared) {
        return refuse(stream, &refusal);
    }
    if let Some(token) = &faults.token
        && request.authorization != Some(format!("Bearer {token}"))
    {
        let code = match request.authorization {
            None => "RepoNotFound",
            Some(_) => "",
        };
        let refusal = Refusal {
            origin: Origin::Hub,
            file,
            status: 401,
            code,
            retry_after: None,
            times: 0,
        };
        return refuse(stream, &refusal);
    }
    let commit = lock(&shared.commit).clone();
    if request.target == format!("/api/models/{REPO}/revision/main?blobs=true") {
        let one = |(path, bytes): (&String, &Arc<Vec<u8>>)| match faults.bare_lists
            || faults.no_hash
        {
            true => serde_json::json!({"rfilename": path}),
            false => {
                let size = faults.claimed_bytes.unwrap_or(bytes.len() as u64);
                let lfs =
                    serde_json::json!({"sha256": sha256(bytes), "size": size, "pointerSize": 134});
                serde_json::json!({"rfilename": path, "size": size, "blobId": "0", "lfs": lfs})
            }
        };
        let files: Vec<_> = lock(&shared.files).iter().map(one).collect();
        let list = serde_json::json!({"id": REPO, "sha": commit, "siblings": files});
        return reply(stream, 200, &[], list.to_string().as_bytes());
    }
    let path = request
        .target
        .strip_prefix(&format!("/{REPO}/resolve/{commit}/"));
    if let Some(replacement) = lock(&shared.faults).replace.take()
        && let Some(path) = path
    {
        lock(&shared.files).insert(path.to_owned(), Arc::new(replacement));
    }
    let found = path.and_then(|path| lock(&shared.files).get(path).cloned());
    let Some(bytes) = found else {
        let refusal = Refusal {
            origin: Origin::Hub,
            file,
            status: 404,
            code: "EntryNotFound",
            retry_after: None,
            times: 0,
        };
        return refuse(stream, &refusal);
    };
    if faults.direct {
        return send(stream, request, &bytes, shared, epoch);
    }
    let mut headers = vec![
        ("X-Repo-Commit", commit),
        ("X-Linked-Size", bytes.len().to_string()),
    ];
    if !faults.no_hash {
        headers.push(("X-Linked-Etag", format!("\"{}\"", sha256(&bytes))));
    } else {
        headers.push(("ETag", format!("\"{}\"", "0".repeat(40))));
    }
    let storage = lock(&shared.storage).expect("the storage listens");
    let path = path.unwrap_or_default().replace(' ', "%20");
    headers.push((
        "Location",
        format!("http://{storage}/{path}?Signature=secret"),
    ));
    reply(stream, 302, &headers, b"")
}

fn storage(
    stream: &TcpStream,
    request: &Request,
    shared: &Shared,
    epoch: u64,
) -> std::io::Result<()> {
    if let Some(refusal) = refused(Origin::Storage, true, shared) {
        return refuse(stream, &refusal);
    }
    let path = request.target.trim_start_matches('/');
    let path = path.split('?').next().unwrap_or_default();
    let found = lock(&shared.files).get(path).cloned();
    match found {
        Some(bytes) => send(stream, request, &bytes, shared, epoch),
        None => reply(stream, 404, &[], b""),
    }
}

/// Sends a file, or its end, with whatever is wrong with that.
fn send(
    mut stream: &TcpStream,
    request: &Request,
    bytes: &[u8],
    shared: &Shared,
    epoch: u64,
) -> std::io::Result<()> {
    let faults = lock(&shared.faults).clone();
    let whole = bytes.len() as u64 + u64::from(faults.wrong_length);
    let from = request.from.filter(|_| !faults.no_ranges);
    let start = from.unwrap_or(0);
    if start >= bytes.len() as u64 && start > 0 {
        return reply(stream, 416, &[], b"");
    }
    let mut head = match from {
        Some(from) => format!(
            "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {from}-{}/{whole}\r\n",
            whole - 1
        ),
        None => "HTTP/1.1 200 OK\r\nAccept-Ranges: none\r\n".to_owned(),
    };
    head.push_str(&format!(
        "Connection: close\r\nETag: \"of the storage\"\r\nContent-Length: {}\r\n\r\n",
        whole - start
    ));
    stream.write_all(head.as_bytes())?;
    if request.method == "HEAD" {
        return Ok(());
    }
    let cut = {
        let mut faults = lock(&shared.faults);
        let cuts = faults.cuts > 0;
        faults.cuts = faults.cuts.saturating_sub(1);
        faults.cut_after.filter(|_| cuts)
    };
    let (mut at, mut sent) = (start as usize, 0u64);
    while at < bytes.len() {
        let gate = shared.gate.load(Ordering::SeqCst);
        if shared.epoch.load(Ordering::SeqCst) != epoch {
            return Ok(());
        }
        let stalls = faults.stall_after.is_some_and(|after| sent >= after);
        if at as u64 >= gate || stalls {
            thread::sleep(Duration::from_millis(1));
            continue;
        }
        if cut.is_some_and(|after| sent >= after) {
            return Ok(());
        }
        let mut most = PIECE.min((gate - at as u64).min(PIECE as u64) as usize);
        for limit in [cut, faults.stall_after].into_iter().flatten() {
            most = most.min((limit - sent).min(PIECE as u64) as usize);
        }
        let end = bytes.len().min(at + most);
        let mut piece = bytes[at..end].to_vec();
        if faults.wrong_bytes {
            piece.iter_mut().for_each(|byte| *byte ^= 0x55);
        }
        stream.write_all(&piece)?;
        shared.served.fetch_add((end - at) as u64, Ordering::SeqCst);
        sent += (end - at) as u64;
        at = end;
    }
    Ok(())
}
