//! `kept serve`: what clients of OpenAI's API send and get, and what is refused.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use kept_engine::documents::recognised_languages;
use kept_tests::golden;
use kept_tests::hub::at_home;
use kept_tests::terminal::kept;
use serde_json::{Value, json};
use tempfile::TempDir;

const QUESTION: &str = "What is the locker code of Ann Quorvin?";
const TOKEN: &str = "a-token-of-the-test";

/// A running server, ended on drop.
struct Server {
    child: Child,
    _stderr: BufReader<ChildStderr>,
    address: String,
    token: String,
    _home: TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().expect("it ran");
        self.child.wait().expect("it ends");
    }
}

impl Server {
    fn start(further: &[&str]) -> Self {
        let home = tempfile::tempdir().expect("a folder");
        let mut command: Command = at_home(home.path());
        command
            .args(["serve", "--port", "0", "--model", "mini"])
            .args(further)
            .env("KEPT_VAULTS", home.path().join("vaults"))
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("kept runs");
        let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
        let (mut address, mut token) = (String::new(), TOKEN.to_owned());
        let given = further.contains(&"--token");
        while address.is_empty() || (!given && token == TOKEN) {
            let mut line = String::new();
            assert!(stderr.read_line(&mut line).expect("text") > 0, "it ended");
            if let Some((_, rest)) = line.split_once("http://") {
                address = rest.split('/').next().expect("an address").to_owned();
            }
            if let Some(shown) = line.strip_prefix("token: ") {
                token = shown.trim().to_owned();
            }
        }
        Self {
            child,
            _stderr: stderr,
            address,
            token,
            _home: home,
        }
    }

    /// A request with `body`; returns status and text.
    fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> (u16, String) {
        let (head, text) = self.exchange(method, path, headers, body);
        let status = head.split(' ').nth(1).expect("a status");
        (status.parse().expect("a number"), text)
    }

    /// A request with `body`; returns the head of the response and its text.
    fn exchange(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> (String, String) {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        let has = |name: &str| headers.iter().any(|(n, _)| *n == name);
        let mut head = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
        head += &format!("content-length: {}\r\n", body.len());
        if !has("host") {
            head += &format!("host: {}\r\n", self.address);
        }
        if !has("authorization") {
            head += &format!("authorization: Bearer {}\r\n", self.token);
        }
        if !has("content-type") {
            head += "content-type: application/json\r\n";
        }
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        stream.write_all(head.as_bytes()).expect("sent");
        stream.write_all(b"\r\n").expect("sent");
        stream.write_all(body).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("text");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a response");
        let body = if head
            .to_ascii_lowercase()
            .contains("transfer-encoding: chunked")
        {
            unchunked(body)
        } else {
            body.to_owned()
        };
        (head.to_owned(), body)
    }

    fn json(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let (status, text) = self.send(method, path, &[], body.as_bytes());
        let value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        (status, value)
    }

    /// Asks without waiting for the answer.
    fn begin(&self, request: &Value) -> TcpStream {
        let body = request.to_string();
        let mut client = TcpStream::connect(&self.address).expect("it listens");
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.address,
            self.token,
            body.len()
        );
        client.write_all(head.as_bytes()).expect("sent");
        client
    }

    fn upload(&self, name: &str, bytes: &[u8]) -> (u16, Value) {
        self.upload_with(name, bytes, &[])
    }

    /// With more parts of the form, by name.
    fn upload_with(&self, name: &str, bytes: &[u8], more: &[(&str, &str)]) -> (u16, Value) {
        let mut body = Vec::new();
        let part =
            |name: &str| format!("--edge\r\ncontent-disposition: form-data; name={name}\r\n\r\n");
        for (name, value) in [&[("purpose", "user_data")], more].concat() {
            body.extend(part(&format!("{name:?}")).bytes());
            body.extend(format!("{value}\r\n").bytes());
        }
        body.extend(part(&format!("\"file\"; filename=\"{name}\"")).bytes());
        body.extend(bytes);
        body.extend(b"\r\n--edge--\r\n");
        let kind = [("content-type", "multipart/form-data; boundary=edge")];
        let (status, text) = self.send("POST", "/v1/files", &kind, &body);
        (status, serde_json::from_str(&text).expect("JSON"))
    }

    fn sample(&self) -> String {
        let (status, file) = self.upload("sample.txt", golden_sample().as_bytes());
        assert_eq!(status, 200, "{file}");
        file["id"].as_str().expect("an id").to_owned()
    }

    fn ask(&self, request: &Value) -> Value {
        let (status, answer) = self.json("POST", "/v1/chat/completions", request);
        assert_eq!(status, 200, "{answer}");
        answer
    }
}

fn golden_sample() -> String {
    let path = golden::repository().join("assets/sample.txt");
    std::fs::read_to_string(path).expect("the sample")
}

/// The content of a chunked body.
fn unchunked(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).expect("a length");
        whole += &rest[..length];
        body = rest[length..].trim_start_matches("\r\n");
        if length == 0 {
            break;
        }
    }
    whole
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

#[test]
fn a_document_is_uploaded_and_asked_whole_and_in_pieces() {
    let server = Server::start(&["--token", TOKEN]);
    let (_, models) = server.json("GET", "/v1/models", &Value::Null);
    let model = models["data"][0]["id"].as_str().expect("a name").to_owned();
    let id = server.sample();
    let request = json!({
        "model": model, "messages": [user(QUESTION)], "documents": [id],
        "method": "snapkv", "budget": "50%", "max_tokens": 40, "map": true,
    });
    let answer = server.ask(&request);
    let text = answer["choices"][0]["message"]["content"]
        .as_str()
        .expect("text");
    assert!(text.contains("4711"), "{answer}");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(answer["kept"]["method"], "snapkv");
    let usage = &answer["usage"];
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0);
    assert!(answer["kept"]["kv_bytes"].as_u64() < answer["kept"]["kv_bytes_full"].as_u64());
    // All offsets are bytes of the text that the server shows.
    let (_, shown) = server.send("GET", &format!("/v1/files/{id}/content"), &[], b"");
    assert_eq!(shown, golden_sample());
    let source = &answer["kept"]["sources"][0];
    let at = |name: &str| source[name].as_u64().expect("an offset") as usize;
    assert_eq!(
        shown[at("start")..at("end")],
        *source["text"].as_str().expect("text")
    );
    let map = answer["kept"]["map"].as_array().expect("a map");
    let ends: Vec<&Value> = map.iter().map(|run| &run["end"]).collect();
    assert_eq!(map[0]["start"], 0);
    assert_eq!(**ends.last().expect("runs"), json!(shown.len()));

    // In pieces: the same words, and the rest from the vault.
    let mut request = request;
    request["stream"] = json!(true);
    request["stream_options"] = json!({"include_usage": true});
    let (status, events) = server.send(
        "POST",
        "/v1/chat/completions",
        &[],
        request.to_string().as_bytes(),
    );
    assert_eq!(status, 200, "{events}");
    let data: Vec<&str> = events
        .lines()
        .filter_map(|l| l.strip_prefix("data: "))
        .collect();
    let (done, pieces) = data.split_last().expect("events");
    assert_eq!(*done, "[DONE]");
    let pieces: Vec<Value> = pieces
        .iter()
        .map(|p| serde_json::from_str(p).expect("JSON"))
        .collect();
    let said: String = pieces
        .iter()
        .filter_map(|piece| piece["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(said, text);
    let [.., last, cost] = pieces.as_slice() else {
        panic!("{events}");
    };
    assert_eq!(last["choices"][0]["finish_reason"], "stop");
    assert_eq!(last["kept"]["vault"]["used"], true);
    assert!(cost["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64() > Some(1000));

    // Another client's upload of the same file is a file of its own.
    let own = server.sample();
    assert_ne!(own, id);
    let (_, removed) = server.json("DELETE", &format!("/v1/files/{id}"), &Value::Null);
    assert_eq!(removed["deleted"], true);
    let (status, _) = server.send("GET", &format!("/v1/files/{own}"), &[], b"");
    assert_eq!(status, 200);
    let (status, error) = server.json("POST", "/v1/chat/completions", &request);
    assert_eq!(
        (status, &error["error"]["code"]),
        (404, &json!("file_not_found"))
    );
}

#[test]
fn scans_and_locked_files_are_read_on_request() {
    let server = Server::start(&[]);
    let fixture = |name: &str| {
        let path = golden::repository()
            .join("documents/tests/fixtures")
            .join(name);
        std::fs::read(path).expect("a fixture")
    };
    let refusal = |(status, error): (u16, Value)| {
        assert_eq!(status, 400, "{error}");
        error["error"]["message"]
            .as_str()
            .expect("a sentence")
            .to_owned()
    };
    let locked = fixture("password.pdf");
    let said = refusal(server.upload("password.pdf", &locked));
    assert!(said.contains("part \"password\""), "{said}");
    let said = refusal(server.upload_with("password.pdf", &locked, &[("password", "wrong")]));
    assert!(said.contains("password"), "{said}");
    let password = ("password", "open sesame");
    let (status, file) = server.upload_with("password.pdf", &locked, &[password]);
    assert_eq!((status, &file["filename"]), (200, &json!("password.pdf")));

    let (scan, english) = (fixture("scan.pdf"), ("recognise", "eng"));
    let said = refusal(server.upload("scan.pdf", &scan));
    assert!(said.contains("part \"recognise\""), "{said}");
    let said = refusal(server.upload_with("scan.pdf", &scan, &[password, english]));
    assert!(said.contains("a copy without one"), "{said}");
    let read = server.upload_with("scan.pdf", &scan, &[english]);
    if !recognised_languages()
        .iter()
        .any(|language| language == "eng")
    {
        assert!(refusal(read).contains("scan.pdf"));
        eprintln!("skipped: tesseract with English, or pdftoppm, is not installed");
        return;
    }
    let (status, file) = read;
    assert_eq!(
        (status, &file["filename"], &file["pages"]),
        (200, &json!("scan.pdf"), &json!(2))
    );
    let said = refusal(server.upload_with("scan.pdf", &scan, &[("recognise", "eng+tlh")]));
    assert!(said.contains("no language tlh"), "{said}");
    let path = format!("/v1/files/{}/content", file["id"].as_str().expect("an id"));
    let (_, text) = server.send("GET", &path, &[], b"");
    assert!(
        text.contains("The number of the mooring is 5173."),
        "{text}"
    );
}

#[test]
fn a_conversation_goes_on_and_ends_at_a_stop_text() {
    let server = Server::start(&[]);
    let file = json!({"type": "file", "file": {"file_id": server.sample()}});
    let first = json!({"role": "user", "content": [file, {"type": "text", "text": QUESTION}]});
    let answer = server.ask(&json!({"messages": [first], "max_tokens": 40}));
    let said = answer["choices"][0]["message"]["content"].clone();
    let next = json!({
        "messages": [first, {"role": "assistant", "content": said}, user("And who told so?")],
        "max_tokens": 12, "method": "full",
    });
    let answer = server.ask(&next);
    assert_eq!(answer["kept"]["turns"], 1);
    assert!(
        answer["kept"]["vault"]["tokens_read"].as_u64() < Some(100),
        "{answer}"
    );
    let cut = json!({"messages": [first], "max_tokens": 40, "stop": ["4711"]});
    let answer = server.ask(&cut);
    let text = answer["choices"][0]["message"]["content"]
        .as_str()
        .expect("text");
    assert!(!text.contains("47"), "{text}");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
}

#[test]
fn several_clients_are_answered_in_turn() {
    let server = Server::start(&[]);
    let id = server.sample();
    std::thread::scope(|clients| {
        let answers: Vec<_> = (0..4)
            .map(|_| {
                let request = json!({
                    "messages": [user(QUESTION)], "documents": [id], "max_tokens": 40,
                });
                clients
                    .spawn(|| server.ask(&{ request })["choices"][0]["message"]["content"].clone())
            })
            .collect();
        for answer in answers {
            let answer = answer.join().expect("no panic");
            assert!(answer.as_str().expect("text").contains("4711"), "{answer}");
        }
    });
}

/// A server that takes minutes to read the document of this id.
fn slow_server() -> (Server, String) {
    let server = Server::start(&[
        "--streaming",
        "on",
        "--method",
        "streaming_llm",
        "--budget",
        "512",
    ]);
    let book = golden_sample().repeat(400);
    let (status, file) = server.upload("book.txt", book.as_bytes());
    assert_eq!(status, 200);
    let id = file["id"].as_str().expect("an id").to_owned();
    (server, id)
}

/// A client that goes away while its document is read: the next question does not wait for it.
#[test]
fn a_client_that_goes_away_ends_its_question() {
    let (server, id) = slow_server();
    for stream in [true, false] {
        let gone = server.begin(&json!({
            "messages": [user(QUESTION)], "documents": [id], "stream": stream,
        }));
        // Reading begins; all of the book would take minutes.
        std::thread::sleep(std::time::Duration::from_millis(500));
        drop(gone);
    }
    let answer = server.ask(&json!({"messages": [user("Who are you?")], "max_tokens": 2}));
    assert_eq!(answer["usage"]["completion_tokens"], 2, "{answer}");
}

/// More clients than may wait go away while one is answered.
#[test]
fn clients_that_went_away_do_not_wait() {
    let (server, id) = slow_server();
    let request = json!({"messages": [user(QUESTION)], "documents": [id]});
    let answered = server.begin(&request);
    let pause = || std::thread::sleep(std::time::Duration::from_millis(500));
    pause();
    let gone: Vec<TcpStream> = (0..40).map(|_| server.begin(&request)).collect();
    pause();
    drop(gone);
    pause();
    std::thread::scope(|scope| {
        let asked = json!({"messages": [user("Who are you?")], "max_tokens": 2});
        let answer = scope.spawn(|| server.ask(&{ asked }));
        pause();
        drop(answered);
        let answer = answer.join().expect("no panic");
        assert_eq!(answer["usage"]["completion_tokens"], 2, "{answer}");
    });
}

#[test]
fn a_document_is_asked_about_once() {
    let server = Server::start(&[]);
    let id = server.sample();
    let tokens = |documents: Value| {
        let request = json!({
            "messages": [user(QUESTION)], "documents": documents, "max_tokens": 1,
        });
        server.ask(&request)["usage"]["prompt_tokens"].clone()
    };
    assert_eq!(tokens(json!([id, id])), tokens(json!([id])));
}

/// Ctrl-C and SIGTERM while a document is read that takes minutes.
#[cfg(unix)]
#[test]
fn a_signal_ends_a_streamed_answer_in_order() {
    for signal in ["-INT", "-TERM"] {
        ends_a_streamed_answer_in_order(signal);
    }
}

#[cfg(unix)]
fn ends_a_streamed_answer_in_order(signal: &str) {
    let streaming = ["--streaming", "on", "--method", "streaming_llm"];
    let mut server = Server::start(&[&streaming[..], &["--budget", "512"]].concat());
    let (status, file) = server.upload("book.txt", golden_sample().repeat(400).as_bytes());
    assert_eq!(status, 200);
    let request = json!({"messages": [user(QUESTION)], "documents": [file["id"]], "stream": true});
    let body = request.to_string();
    let events = std::thread::scope(|clients| {
        let asking =
            clients.spawn(|| server.send("POST", "/v1/chat/completions", &[], body.as_bytes()));
        // After two seconds a stream has begun.
        std::thread::sleep(std::time::Duration::from_secs(4));
        let process = server.child.id().to_string();
        let sent = Command::new("kill").args([signal, &process]).status();
        assert!(sent.expect("kill runs").success());
        asking.join().expect("no panic").1
    });
    let data: Vec<&str> = events
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .collect();
    let [_, end, done] = data.as_slice() else {
        panic!("{events}");
    };
    assert!(end.contains("server_ends"), "{end}");
    assert_eq!(*done, "[DONE]");
    assert!(server.child.wait().expect("it ends").success());
}

#[test]
fn strangers_are_refused() {
    let server = Server::start(&["--allow-origin", "https://chat.example"]);
    let code = |headers: &[(&str, &str)], path: &str| {
        let (status, body) = server.send("GET", path, headers, b"");
        let body: Value = serde_json::from_str(&body).unwrap_or_default();
        (
            status,
            body["error"]["code"].as_str().unwrap_or("").to_owned(),
        )
    };
    let models = "/v1/models";
    assert_eq!(code(&[], models).0, 200);
    assert_eq!(
        code(&[("authorization", "Bearer other")], models),
        (401, "invalid_api_key".into())
    );
    assert_eq!(
        code(&[("host", "kept.example")], models),
        (403, "host_not_allowed".into())
    );
    assert_eq!(
        code(&[("origin", "https://evil.example")], models),
        (403, "origin_not_allowed".into())
    );
    assert_eq!(code(&[("origin", "https://chat.example")], models).0, 200);
    assert_eq!(code(&[("authorization", "none")], "/health").0, 200);
    assert_eq!(code(&[], "/v1/embeddings"), (404, "unknown_url".into()));
    let (status, _) = server.send(
        "OPTIONS",
        models,
        &[
            ("origin", "http://localhost:3000"),
            ("authorization", "none"),
        ],
        b"",
    );
    assert_eq!(status, 204);
}

#[test]
fn bad_requests_get_one_sentence_each() {
    let server = Server::start(&[]);
    let hello = user("Hello");
    for (request, status, code, named) in [
        (
            json!({"messages": [hello], "model": "gpt-5"}),
            404,
            "model_not_found",
            "\"gpt-5\"",
        ),
        (json!({"messages": []}), 400, "invalid_value", "no message"),
        (json!({"messages": [user(" ")]}), 400, "refused", "question"),
        (
            json!({"messages": [hello], "n": 2}),
            400,
            "invalid_value",
            "one answer",
        ),
        (
            json!({"messages": [hello], "budget": "much"}),
            400,
            "invalid_value",
            "much",
        ),
        (
            json!({"messages": [hello], "method": "magic"}),
            400,
            "invalid_value",
            "magic",
        ),
        (
            json!({"messages": [hello], "max_tokens": 0}),
            400,
            "invalid_value",
            "max_tokens",
        ),
        (
            json!({"messages": [hello], "temperature": -1}),
            400,
            "refused",
            "temperature",
        ),
        (
            json!({"messages": [hello], "tools": [{}]}),
            400,
            "invalid_value",
            "tools",
        ),
        (
            json!({"messages": [hello], "documents": ["file-0"]}),
            404,
            "file_not_found",
            "file-0",
        ),
        (
            json!({"messages": "hello"}),
            400,
            "invalid_value",
            "messages must be a list of objects, each with a role and a content, and is \"hello\"",
        ),
        (
            json!({"messages": [hello], "max_tokens": -1}),
            400,
            "invalid_value",
            "max_tokens must be a whole number from 1, and is -1",
        ),
        (
            json!({"messages": [hello], "logprobs": true}),
            400,
            "invalid_value",
            "logprobs is not supported",
        ),
        (
            json!({"messages": [hello], "logit_bias": {"5": 1}}),
            400,
            "invalid_value",
            "logit_bias is not supported",
        ),
        (
            json!([]),
            400,
            "invalid_value",
            "must be a JSON object, and is []",
        ),
        (
            json!({"messages": [user(&"word ".repeat(90_000))]}),
            400,
            "context_length_exceeded",
            "tokens",
        ),
    ] {
        let (found, error) = server.json("POST", "/v1/chat/completions", &request);
        let message = error["error"]["message"].as_str().unwrap_or_default();
        assert_eq!(
            (found, &error["error"]["code"]),
            (status, &json!(code)),
            "{error}"
        );
        assert!(message.contains(named), "{message}");
    }
}

#[test]
fn an_error_names_its_field_and_a_wrong_method_what_is_possible() {
    let server = Server::start(&[]);
    let hello = user("Hello");
    for (field, value) in [
        ("model", json!("gpt-5")),
        ("max_completion_tokens", json!(0)),
        ("temperature", json!(-1)),
        ("top_p", json!("high")),
        ("presence_penalty", json!(0.5)),
        ("functions", json!([{"name": "f"}])),
        ("function_call", json!({"name": "f"})),
        ("tool_choice", json!("required")),
        ("top_logprobs", json!(2)),
        ("modalities", json!(["text", "audio"])),
    ] {
        let request = json!({"messages": [hello], field: value});
        let (_, error) = server.json("POST", "/v1/chat/completions", &request);
        assert_eq!(error["error"]["param"], field, "{error}");
    }
    let nothing = json!({
        "messages": [hello], "max_tokens": 1, "logprobs": false, "logit_bias": {}, "stop": null,
        "top_logprobs": null, "tool_choice": "none", "functions": [], "function_call": "auto",
        "modalities": ["text"], "top_k": 0, "top_p": 0, "min_p": 0,
    });
    server.ask(&nothing);

    let large = vec![b' '; (64 << 20) + 1];
    let (status, error) = server.send("POST", "/v1/chat/completions", &[], &large);
    assert_eq!(status, 413);
    assert!(
        error.contains("more than 64") && error.contains("body_too_large"),
        "{error}"
    );

    for (method, path, allowed) in [
        ("GET", "/v1/chat/completions", "POST"),
        ("DELETE", "/v1/models", "GET,HEAD"),
    ] {
        let (head, error) = server.exchange(method, path, &[], b"");
        assert!(head.starts_with("HTTP/1.1 405"), "{head}");
        let allow = head.lines().find_map(|line| line.strip_prefix("allow: "));
        assert_eq!(allow, Some(allowed), "{head}");
        let error: Value = serde_json::from_str(&error).expect("JSON");
        assert_eq!(error["error"]["code"], "method_not_supported");
    }
}

#[test]
fn a_picture_no_form_a_port_in_use_no_origin_and_a_short_token_are_refused() {
    let server = Server::start(&[]);
    let (status, error) = server.upload("photo.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0");
    assert_eq!(
        (status, &error["error"]["code"]),
        (400, &json!("unreadable_document"))
    );
    let long = "x".repeat(5000);
    let (status, error) = server.upload_with("a.txt", b"text", &[("purpose", &long)]);
    let sentence = error["error"]["message"].as_str().expect("a sentence");
    assert!(
        status == 400 && sentence.contains("purpose has more than 4.0 KiB"),
        "{sentence}"
    );
    let (status, error) = server.send("POST", "/v1/files", &[], b"no form");
    let error: Value = serde_json::from_str(&error).expect("JSON");
    assert_eq!(
        (status, &error["error"]["code"]),
        (400, &json!("invalid_upload"))
    );
    let port = server.address.rsplit(':').next().expect("a port");
    kept(["serve", "--model", "mini", "--port", port]).refused(&["port", "in use", "--port"]);
    kept(["serve", "--model", "mini", "--host", "nowhere"]).refused(&["'nowhere'", "127.0.0.1"]);
    let port = ["--port", port, "--host", "localhost"];
    kept(["serve", "--model", "mini"].iter().chain(&port)).refused(&["in use"]);
    kept(["serve", "--model", "mini", "--allow-origin", "chat"]).refused(&[
        "'chat'",
        "--allow-origin",
        "https://chat.example",
    ]);
    kept([
        "serve", "--model", "mini", "--port", "0", "--token", "short",
    ])
    .refused(&["--token"]);
}

#[test]
fn completions_and_manual_pages_name_every_command() {
    let folder = tempfile::tempdir().expect("a folder");
    let pages = folder.path().join("man");
    kept(["manual".as_ref(), pages.as_os_str()]).succeeded();
    let page = |name: &str| std::fs::read_to_string(Path::join(&pages, name)).expect(name);
    assert!(page("kept.1").contains("serve"));
    assert!(page("kept-ask.1").contains("question"));
    for shell in ["bash", "zsh", "fish"] {
        let run = kept(["completions", shell]);
        let script = &run.succeeded().stdout;
        for word in ["vault-budget", "pyramidkv", "q4_0", "q8_0", "cuda"] {
            assert!(script.contains(word), "{shell} {word}");
        }
    }
}
