//! Requests to `kept serve`, over a connection: a line with method and path, header lines, an empty line, a body. Host,
//! length and the end of the connection are added where they are missing.
//!
//! ```text
//! POST /v1/chat/completions
//! Authorization: Bearer fuzz-secret
//!
//! {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
//! ```
#![no_main]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use kept_engine::kernels::Stop;
use kept_engine::{Engine, Limits};
use kept_fuzz::{folder, forgive_libraries};
use kept_models::testing::TinyLlama;
use kept_serve::Settings;
use libfuzzer_sys::fuzz_target;

const TOKEN: &str = "fuzz-secret";
/// Most bytes of an answer that are looked at.
const MOST_READ: u64 = 1 << 20;

static ADDRESS: OnceLock<SocketAddr> = OnceLock::new();

fuzz_target!(init: start(), |data: &[u8]| {
    let address = *ADDRESS.get().expect("a server");
    let mut stream = TcpStream::connect(address).expect("the server listens");
    stream.set_read_timeout(Some(Duration::from_secs(9))).expect("a time limit");
    let (sent, free) = request(data);
    if stream.write_all(&sent).is_err() {
        return;
    }
    let mut answer = Vec::new();
    // What the server cuts off counts as far as it came.
    let _ = stream.take(MOST_READ).read_to_end(&mut answer);
    let served = answer.starts_with(b"HTTP/1.1 2");
    let knows = sent.windows(TOKEN.len()).any(|part| part == TOKEN.as_bytes());
    assert!(!served || knows || free, "an answer without the token");
});

/// The request's bytes, and whether it may be answered without a token.
fn request(data: &[u8]) -> (Vec<u8>, bool) {
    let end = data.windows(2).position(|two| two == b"\n\n");
    let (head, body) = data.split_at(end.unwrap_or(data.len()));
    let body = body.get(2..).unwrap_or_default();
    let mut lines = head.split(|byte| *byte == b'\n');
    let line = lines.next().unwrap_or_default();
    let free = line.starts_with(b"OPTIONS ") || line.windows(7).any(|part| part == b"/health");
    let mut out = [line, b" HTTP/1.1\r\nConnection: close\r\n"].concat();
    for line in lines {
        out.extend(line);
        out.extend(b"\r\n");
    }
    let names = |name: &str| {
        let head = String::from_utf8_lossy(head).to_ascii_lowercase();
        head.contains(&format!("\n{name}:"))
    };
    if !names("host") {
        out.extend(b"Host: localhost\r\n");
    }
    if !names("content-length") && !names("transfer-encoding") {
        out.extend(format!("Content-Length: {}\r\n", body.len()).bytes());
    }
    out.extend(b"\r\n");
    out.extend(body);
    (out, free)
}

fn start() {
    forgive_libraries();
    let path = folder().join("tiny.gguf");
    let tiny = TinyLlama {
        layers: 1,
        width: 32,
        ffn: 32,
        q_heads: 2,
        kv_heads: 1,
        head_dim: 16,
        context: 256,
        ..TinyLlama::default()
    };
    tiny.write(&path).expect("a model");
    let engine = Engine::open(&path).expect("a model");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    ADDRESS
        .set(listener.local_addr().expect("an address"))
        .expect("one server");
    let settings = Settings {
        model: "tiny".to_owned(),
        token: TOKEN.to_owned(),
        origins: vec!["https://chat.example".to_owned()],
        method: "snapkv[w=4]".parse().expect("a method"),
        budget: None,
        max_tokens: 4,
        limits: Limits::default(),
        vault: None,
    };
    thread::spawn(|| kept_serve::serve(engine, listener, settings, &Stop::new()));
}
