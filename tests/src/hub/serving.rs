//! Replies to requests as the hub and its storage do, with the faults that are switched on.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use super::{Faults, Origin, REPO, Refusal, Request, Shared, lock, sha256};

/// Bytes per write.
const PIECE: usize = 16 << 10;

pub(super) fn listen(origin: Origin, shared: &Arc<Shared>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let shared = Arc::clone(shared);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let shared = Arc::clone(&shared);
            // A broken connection is an expected result in these tests.
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

/// The refusal of this request, if any; decrements its counter.
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

/// A refusal by the hub.
fn hubs_refusal(file: bool, status: u16, code: &'static str) -> Refusal {
    Refusal {
        origin: Origin::Hub,
        file,
        status,
        code,
        retry_after: None,
        times: 0,
    }
}

/// The list of files, as the hub's API has it.
fn file_list(shared: &Shared, faults: &Faults, commit: &str) -> String {
    let one = |(path, bytes): (&String, &Arc<Vec<u8>>)| {
        if faults.bare_lists || faults.no_hash {
            serde_json::json!({"rfilename": path})
        } else {
            let size = faults.claimed_bytes.unwrap_or(bytes.len() as u64);
            let lfs =
                serde_json::json!({"sha256": sha256(bytes), "size": size, "pointerSize": 134});
            serde_json::json!({"rfilename": path, "size": size, "blobId": "0", "lfs": lfs})
        }
    };
    let files: Vec<_> = lock(&shared.files).iter().map(one).collect();
    serde_json::json!({"id": REPO, "sha": commit, "siblings": files}).to_string()
}

/// Sends the reader of a file to the storage.
fn redirect(
    stream: &TcpStream,
    shared: &Shared,
    faults: &Faults,
    path: &str,
    bytes: &[u8],
    commit: String,
) -> std::io::Result<()> {
    let mut headers = vec![
        ("X-Repo-Commit", commit),
        ("X-Linked-Size", bytes.len().to_string()),
    ];
    if !faults.no_hash {
        headers.push(("X-Linked-Etag", format!("\"{}\"", sha256(bytes))));
    } else {
        headers.push(("ETag", format!("\"{}\"", "0".repeat(40))));
    }
    let storage = lock(&shared.storage).expect("the storage listens");
    let path = path.replace(' ', "%20");
    headers.push((
        "Location",
        format!("http://{storage}/{path}?Signature=secret"),
    ));
    reply(stream, 302, &headers, b"")
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
        return refuse(stream, &hubs_refusal(file, 401, code));
    }
    let commit = lock(&shared.commit).clone();
    if request.target == format!("/api/models/{REPO}/revision/main?blobs=true") {
        let list = file_list(shared, &faults, &commit);
        return reply(stream, 200, &[], list.as_bytes());
    }
    let path = request
        .target
        .strip_prefix(&format!("/{REPO}/resolve/{commit}/"));
    if let Some(replacement) = lock(&shared.faults).replace.pop()
        && let Some(path) = path
    {
        lock(&shared.files).insert(path.to_owned(), Arc::new(replacement));
    }
    let found = path.and_then(|path| lock(&shared.files).get(path).cloned());
    let Some(bytes) = found else {
        return refuse(stream, &hubs_refusal(file, 404, "EntryNotFound"));
    };
    if faults.direct {
        return send(stream, request, &bytes, shared, epoch);
    }
    let path = path.unwrap_or_default();
    redirect(stream, shared, &faults, path, &bytes, commit)
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

/// Sends a file from an offset, with the faults that are switched on.
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
