//! Supervises kept-worker: starts it, passes requests and replies, detects a crash, restarts it.
//!
//! This module does not know documents or questions: the app state decides what a crash means for them
//! ([`AppState`](crate::state::AppState)). After three crashes in a row, each within ten seconds of the start, the supervisor stops
//! restarting until the user requests it.

pub mod order;
mod process;
mod programs;
mod stream;

use std::sync::Arc;
use std::time::{Duration, Instant};

use kept_worker::protocol::{ProtocolError, Reply, Request, header};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::effects::Effects;
use order::Order;

pub use programs::{GPU_PROGRAM_VARIABLE, PROGRAM_VARIABLE, Programs};

/// Time within which the worker must send its hello.
const HELLO: Duration = Duration::from_secs(30);
/// A crash this soon after the start counts towards [`MAX_EARLY_CRASHES`].
const SOON: Duration = Duration::from_secs(10);
/// Number of consecutive early crashes after which the supervisor stops restarting.
const MAX_EARLY_CRASHES: usize = 3;
/// Maximum number of characters of a log line of the worker that is shown to the user.
const LAST_WORDS: usize = 200;

/// How one run of the worker ended.
enum End {
    /// By itself or killed from outside; a sentence.
    Died(String),
    /// The user requested a restart.
    Restart,
    /// All senders of orders are dropped, or the last order was to end.
    Closed(Option<oneshot::Sender<()>>),
}

/// Time that a worker has to exit after its input is closed: as long as it waits for what runs to stop.
const GRACE: Duration = Duration::from_secs(3);

/// Supervises the worker until all senders of orders are dropped.
pub async fn supervise(
    programs: Programs,
    mut orders: UnboundedReceiver<Order>,
    effects: Arc<Effects>,
) {
    let mut generation = 0;
    let mut soon = 0;
    loop {
        generation += 1;
        let gpus = programs.detect_gpus().await;
        let started = Instant::now();
        let device = effects.with(|state| state.settings().device.clone());
        let start = programs.start(device.as_deref(), &gpus);
        effects.with(|state| state.gpus_found(gpus));
        let end = match start.spawn() {
            Ok(child) => run_worker(child, generation, &mut orders, &effects).await,
            Err(error) => {
                tracing::error!(program = %start.program.display(), %error, "the engine cannot be started");
                let variable = start.variable(&programs);
                let message = process::cannot_start(&start.program, variable, &error);
                effects.with(|state| state.worker_gone(&message));
                wait_for_restart(&mut orders).await
            }
        };
        match end {
            End::Closed(done) => return confirm_end(done),
            End::Restart => soon = 0,
            End::Died(what) => {
                tracing::warn!(what, "the engine is dead");
                soon = if started.elapsed() < SOON {
                    soon + 1
                } else {
                    0
                };
                if soon < MAX_EARLY_CRASHES {
                    effects.with(|state| state.worker_died(&what));
                    continue;
                }
                let message = format!(
                    "{what} It was not started again, because this was the third time in a row: choose another model or document, or start it again."
                );
                effects.with(|state| state.worker_gone(&message));
                if let End::Closed(done) = wait_for_restart(&mut orders).await {
                    return confirm_end(done);
                }
                soon = 0;
            }
        }
    }
}

/// Reports that the worker has ended, if requested.
fn confirm_end(done: Option<oneshot::Sender<()>>) {
    if let Some(done) = done {
        // The receiver may have timed out.
        let _ = done.send(());
    }
}

/// Waits until the user requests a restart, or all senders of orders are dropped.
async fn wait_for_restart(orders: &mut UnboundedReceiver<Order>) -> End {
    loop {
        match orders.recv().await {
            Some(Order::Restart) => return End::Restart,
            Some(Order::Send { .. }) => {} // for a worker that has ended
            Some(Order::End(done)) => return End::Closed(Some(done)),
            None => return End::Closed(None),
        }
    }
}

/// One run of the worker.
async fn run_worker(
    mut child: Child,
    generation: u64,
    orders: &mut UnboundedReceiver<Order>,
    effects: &Effects,
) -> End {
    let (Some(stdin), Some(stdout), Some(stderr)) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return End::Died("The engine was started without its pipes.".to_owned());
    };
    let (requests, to_write) = mpsc::unbounded_channel();
    let writer = tokio::spawn(write(stdin, to_write));
    let log = tokio::spawn(log(BufReader::new(stderr)));
    let (received, mut replies) = mpsc::channel(64);
    let reader = tokio::spawn(read(stdout, received));

    let end = relay(generation, orders, effects, &requests, &mut replies).await;
    reader.abort();
    writer.abort();
    match end {
        Some(end) => {
            if let End::Closed(_) | End::Restart = end {
                // Closing the input makes the worker exit without incomplete writes; a suspended process does not
                // notice.
                let _ = writer.await;
                let _ = tokio::time::timeout(GRACE, child.wait()).await;
            }
            end_child(&mut child).await;
            end
        }
        // The output is closed: the worker has exited, or is about to.
        None => {
            let status = match tokio::time::timeout(Duration::from_secs(5), child.wait()).await {
                Ok(status) => status,
                Err(_) => {
                    end_child(&mut child).await;
                    return End::Died(
                        "The engine closed its output but did not exit, so it was stopped."
                            .to_owned(),
                    );
                }
            };
            let last_words = last_words(log).await;
            match status {
                Ok(status) => End::Died(process::ending(status, last_words.as_deref())),
                Err(error) => End::Died(format!("The engine was lost ({error}).")),
            }
        }
    }
}

/// Passes orders and replies until the run ends; `None` if the worker's output is closed.
async fn relay(
    generation: u64,
    orders: &mut UnboundedReceiver<Order>,
    effects: &Effects,
    requests: &UnboundedSender<(Request, Option<Arc<str>>)>,
    replies: &mut mpsc::Receiver<Result<stream::WithBytes, ProtocolError>>,
) -> Option<End> {
    let silent = tokio::time::sleep(HELLO);
    tokio::pin!(silent);
    let mut greeted = false;
    loop {
        tokio::select! {
            received = replies.recv() => match received {
                None => return None,
                Some(Err(error)) => return Some(End::Died(unintelligible(&error.to_string()))),
                Some(Ok((Reply::Hello, _))) if !greeted => {
                    greeted = true;
                    tracing::info!("the engine is there");
                    effects.with(|state| state.worker_hello(generation));
                }
                Some(Ok(_)) if !greeted => {
                    return Some(End::Died(unintelligible("its first message was no hello")));
                }
                Some(Ok((reply, bytes))) => {
                    let now = Instant::now();
                    if let Err(error) = effects.with(|state| state.worker_reply(now, reply, bytes)) {
                        return Some(End::Died(unintelligible(&error)));
                    }
                }
            },
            order = orders.recv() => match order {
                None => return Some(End::Closed(None)),
                Some(Order::End(done)) => return Some(End::Closed(Some(done))),
                Some(Order::Restart) => return Some(End::Restart),
                Some(Order::Send { generation: meant, request, bytes }) if meant == generation => {
                    // A failure means that the worker has ended, which its closed output reports.
                    let _ = requests.send((*request, bytes));
                }
                Some(Order::Send { .. }) => {}
            },
            () = &mut silent, if !greeted => {
                return Some(End::Died(format!(
                    "The engine did not answer within {} seconds of its start and was stopped.",
                    HELLO.as_secs()
                )));
            }
        }
    }
}

fn unintelligible(what: &str) -> String {
    format!("The engine sent something that Kept does not understand ({what}) and was stopped.")
}

async fn end_child(child: &mut Child) {
    if let Err(error) = child.kill().await {
        tracing::warn!(%error, "the engine could not be ended");
    }
}

async fn read(
    mut stdout: tokio::process::ChildStdout,
    replies: mpsc::Sender<Result<stream::WithBytes, ProtocolError>>,
) {
    loop {
        let next = stream::read_reply(&mut stdout).await.transpose();
        let Some(next) = next else { return };
        let last = next.is_err();
        if replies.send(next).await.is_err() || last {
            return;
        }
    }
}

async fn write(
    mut stdin: ChildStdin,
    mut requests: UnboundedReceiver<(Request, Option<Arc<str>>)>,
) {
    while let Some((request, bytes)) = requests.recv().await {
        let bytes = bytes.as_deref().unwrap_or_default().as_bytes();
        match write_request(&mut stdin, &request, bytes).await {
            Ok(()) => {}
            Err(ProtocolError::Io(error)) => {
                // The worker is ending; its closed output reports how.
                tracing::debug!(%error, "the pipe to the engine is closed");
                return;
            }
            Err(error) => tracing::error!(%error, "a request could not be written"),
        }
    }
}

async fn write_request(
    stdin: &mut ChildStdin,
    request: &Request,
    bytes: &[u8],
) -> Result<(), ProtocolError> {
    let json = serde_json::to_vec(request)?;
    stdin.write_all(&header(json.len(), bytes.len())?).await?;
    stdin.write_all(&json).await?;
    stdin.write_all(bytes).await?;
    Ok(stdin.flush().await?)
}

/// Forwards the worker's log line by line, and returns the last line.
async fn log(mut stderr: BufReader<tokio::process::ChildStderr>) -> Option<String> {
    let mut last = None;
    let mut line = Vec::new();
    while matches!(stderr.read_until(b'\n', &mut line).await, Ok(n) if n > 0) {
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        line.clear();
        if text.is_empty() {
            continue;
        }
        pass_on(&text);
        last = Some(text);
    }
    last
}

/// Logs a line of the worker's log at its own level; a line without a level (a bug, a loader's complaint) is a warning.
fn pass_on(line: &str) {
    let mut words = line.splitn(2, char::is_whitespace);
    let (_time, rest) = (words.next(), words.next().unwrap_or("").trim_start());
    let (level, said) = rest.split_once(' ').unwrap_or(("", ""));
    match level {
        "ERROR" => tracing::error!(target: "kept_worker", "{said}"),
        "WARN" => tracing::warn!(target: "kept_worker", "{said}"),
        "INFO" => tracing::info!(target: "kept_worker", "{said}"),
        "DEBUG" => tracing::debug!(target: "kept_worker", "{said}"),
        "TRACE" => tracing::trace!(target: "kept_worker", "{said}"),
        _ => tracing::warn!(target: "kept_worker", "{line}"),
    }
}

async fn last_words(log: JoinHandle<Option<String>>) -> Option<String> {
    // A child process of the worker may hold stderr open, so the wait is limited.
    let line = tokio::time::timeout(Duration::from_secs(1), log).await;
    let line = line.ok()?.ok()??;
    Some(line.chars().take(LAST_WORDS).collect())
}
