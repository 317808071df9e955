//! The app's end of the worker's pipes: starts `kept-worker`, sends requests, collects replies. Any output on its
//! stdout that is not a frame fails the test.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::golden::repository;
use crate::terminal;
use kept_engine::MethodSpec;
use kept_worker::protocol::{
    Access, AskRequest, EstimateRequest, ProtocolError, Reply, Request, read_message, write_message,
};

/// Longer than anything takes even on a busy machine; a longer wait is a hang.
const TIMEOUT: Duration = Duration::from_secs(240);

/// A reply with its binary payload.
pub type Said = (Reply, Vec<u8>);

/// A running worker. Dropping it kills it.
pub struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    replies: Receiver<Result<Said, ProtocolError>>,
    stderr: Option<JoinHandle<String>>,
    vaults: tempfile::TempDir,
}

/// How a worker exited.
pub struct Ended {
    /// Exit code; `None` after a signal.
    pub code: Option<i32>,
    /// Everything that the worker wrote to stderr.
    pub stderr: String,
    /// Time until the exit.
    pub after: Duration,
    /// Replies that were not yet received before the exit.
    pub said: Vec<Said>,
    /// Names of the files in the vault folder.
    pub left: Vec<String>,
}

impl Worker {
    /// Starts a worker and receives its first message.
    pub fn start() -> Self {
        let worker = Self::start_with(&[]);
        let (hello, _) = worker.next();
        assert!(matches!(hello, Reply::Hello), "{hello:?}");
        worker
    }

    /// Starts a worker with environment variables set.
    pub fn start_with(variables: &[(&str, &str)]) -> Self {
        Self::start_as(&[], variables)
    }

    /// Starts a worker with command-line arguments and environment variables.
    pub fn start_as(words: &[&str], variables: &[(&str, &str)]) -> Self {
        let name = format!("kept-worker{}", std::env::consts::EXE_SUFFIX);
        // Never the user's vault folder.
        let vaults = tempfile::tempdir().expect("a temporary folder");
        let mut child = Command::new(terminal::program().with_file_name(name))
            .args(words)
            .env_remove("KEPT_LOG")
            .env("KEPT_VAULTS", vaults.path())
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kept-worker starts");
        let mut stdout = child.stdout.take().expect("a pipe");
        let mut stderr = child.stderr.take().expect("a pipe");
        let (send, replies) = channel();
        std::thread::spawn(move || {
            while let Some(said) = read_message(&mut stdout).transpose() {
                let failed = said.is_err();
                if send.send(said).is_err() || failed {
                    break;
                }
            }
        });
        let stderr = std::thread::spawn(move || {
            let mut text = String::new();
            stderr
                .read_to_string(&mut text)
                .expect("standard error is UTF-8");
            text
        });
        Self {
            input: child.stdin.take(),
            child,
            replies,
            stderr: Some(stderr),
            vaults,
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a request.
    pub fn say(&mut self, request: &Request) {
        self.say_with_bytes(request, &[]);
    }

    /// Sends a request with bytes.
    pub fn say_with_bytes(&mut self, request: &Request, bytes: &[u8]) {
        let mut frame = Vec::new();
        write_message(&mut frame, request, bytes).expect("a frame");
        self.say_raw(&frame);
    }

    /// Sends bytes that need not be a frame.
    pub fn say_raw(&mut self, bytes: &[u8]) {
        let input = self.input.as_mut().expect("the input is open");
        input.write_all(bytes).expect("the worker listens");
        input.flush().expect("the worker listens");
    }

    /// The next reply.
    pub fn next(&self) -> Said {
        match self.replies.recv_timeout(TIMEOUT) {
            Ok(said) => said.expect("nothing but frames"),
            Err(error) => panic!("no reply: {error}"),
        }
    }

    /// All replies up to the first one for which `wanted` is true.
    pub fn until(&self, wanted: impl Fn(&Reply) -> bool) -> Vec<Said> {
        let mut heard = Vec::new();
        loop {
            let said = self.next();
            let found = wanted(&said.0);
            heard.push(said);
            if found {
                return heard;
            }
        }
    }

    /// The first reply for which `wanted` is true.
    pub fn find(&self, wanted: impl Fn(&Reply) -> bool) -> Said {
        self.until(wanted).pop().expect("the one that was found")
    }

    /// Closes the worker's stdin and waits for its exit.
    pub fn close(mut self) -> Ended {
        self.input = None;
        self.wait()
    }

    /// Stops reading the worker's replies, as an app that dies, then closes its stdin and waits for its exit.
    pub fn abandon(mut self) -> Ended {
        // The reader thread ends at the next reply and closes the pipe.
        self.replies = channel().1;
        std::thread::sleep(Duration::from_millis(300));
        self.close()
    }

    /// Waits for the worker's exit.
    pub fn wait(mut self) -> Ended {
        let started = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("the worker is waited for") {
                break status;
            }
            assert!(started.elapsed() < TIMEOUT, "the worker does not end");
            std::thread::sleep(Duration::from_millis(2));
        };
        let after = started.elapsed();
        let stderr = self.stderr.take().expect("waited for once");
        Ended {
            code: status.code(),
            after,
            stderr: stderr.join().expect("standard error is read"),
            // A reply that the exit truncated is not a failure; all earlier ones were complete.
            said: self.replies.iter().filter_map(Result::ok).collect(),
            left: (self.vaults.path().read_dir().expect("a folder"))
                .map(|file| {
                    file.expect("a file")
                        .file_name()
                        .into_string()
                        .expect("UTF-8")
                })
                .collect(),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The worker may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The sample document.
pub fn sample() -> PathBuf {
    repository().join("assets/sample.txt")
}

/// A request that opens `path` as the document.
pub fn open_document(path: PathBuf) -> Request {
    Request::OpenDocument {
        path,
        adds: false,
        access: Access::Plain,
    }
}

/// A request that adds `path` to the open document.
pub fn add_document(path: PathBuf) -> Request {
    Request::OpenDocument {
        path,
        adds: true,
        access: Access::Plain,
    }
}

/// A request to open `model`.
pub fn open_model(model: &str) -> Request {
    Request::OpenModel {
        model: model.to_owned(),
        stretch: None,
    }
}

/// A question with the method `name` and the default budget.
pub fn question(question: &str, name: &str) -> AskRequest {
    AskRequest {
        turns: Vec::new(),
        instructions: String::new(),
        question: question.to_owned(),
        method: MethodSpec::plain(name),
        budget: None,
        max_tokens: 48,
        temperature: 0.0,
        seed: 0,
        repeat_penalty: None,
        thinking: false,
        cache: None,
        memory: None,
    }
}

/// As [`question`], with 64 rows and a temperature at which the answer never ends by itself.
pub fn endless(text: &str, name: &str, max_tokens: usize) -> AskRequest {
    AskRequest {
        budget: Some("64".to_owned()),
        max_tokens,
        temperature: 100.0,
        seed: 3,
        ..question(text, name)
    }
}

/// Asks a [`question`].
pub fn ask(ticket: u64, text: &str, name: &str) -> Request {
    let ask = question(text, name);
    Request::Ask { ticket, ask }
}

/// Questions with the method `name`, for an estimate.
pub fn questions(name: &str) -> EstimateRequest {
    EstimateRequest {
        method: MethodSpec::plain(name),
        budget: None,
        cache: None,
        memory: None,
        max_tokens: None,
    }
}

/// Whether a reply is the last one for a question.
pub fn is_end(reply: &Reply) -> bool {
    matches!(reply, Reply::Answered { .. } | Reply::Failed { .. })
}
