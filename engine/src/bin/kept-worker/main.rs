//! `kept-worker`: the engine in a process of its own, for a window that must outlive it. Requests come on standard input,
//! replies go to standard output, both as frames (`kept_engine::protocol`); the end of the input stops what runs and ends the process.
//!
//! This thread reads. The desk (`dispatcher.rs`) decides, on a second thread; questions and comparisons run on a third (`asking.rs`, `comparing.rs`); every file that
//! is opened has a thread of its own. Not here: anything the engine does.

mod asking;
mod comparing;
mod device;
mod dispatcher;
mod facts;
mod joining;
mod keeping;
mod opening;
mod output;

use std::io::{BufReader, Read};
use std::process::ExitCode;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use kept_engine::kernels::{CountingAllocator, threads};
use kept_engine::protocol::{HEADER_BYTES, ProtocolError, Request, read_frame};
use tracing_subscriber::filter::{EnvFilter, filter_fn};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::device::Task;
use crate::dispatcher::{Dispatcher, Input};
use crate::output::Output;

/// Memory that the system refuses ends this process with a sentence, and the window starts another one.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Exit code where the command line is not understood, or the input is no stream of frames.
const MALFORMED: u8 = 2;
/// How long a process that nobody needs any more waits for what runs to stop.
const PATIENCE: Duration = Duration::from_secs(3);

/// Exit code after a bug that nothing can go on after.
const BROKEN: i32 = 70;

/// Exit code after a GPU failed: this process can use it no more. The window knows it.
const GPU_LOST: i32 = 71;

fn main() -> ExitCode {
    match device::read_arguments(std::env::args().skip(1)) {
        Ok(Task::Serve) => serve(),
        Ok(Task::SayGpus) => device::say_gpus(),
        Err(refusal) => {
            eprintln!("kept-worker: {refusal}");
            ExitCode::from(MALFORMED)
        }
    }
}

/// Answers a window until it ends the input.
fn serve() -> ExitCode {
    let output = match Output::take_stdout() {
        Ok(output) => output,
        Err(error) => {
            eprintln!("kept-worker: standard output could not be set up ({error})");
            return ExitCode::FAILURE;
        }
    };
    threads::configure(None);
    report_bugs_without_words();
    start_log();
    output.say(&facts::hello());
    let (inbox, inputs) = channel();
    let dispatcher = Dispatcher::new(output, inbox.clone());
    let named = std::thread::Builder::new().name("desk".to_owned());
    let (ended, end) = channel();
    let started = named.spawn(move || {
        let work = std::panic::AssertUnwindSafe(|| dispatcher.run(inputs));
        if std::panic::catch_unwind(work).is_err() {
            std::process::exit(BROKEN);
        }
        // Nobody waits for it any more where that took too long.
        let _ = ended.send(());
    });
    if let Err(error) = started {
        eprintln!("kept-worker: no thread could be started ({error})");
        return ExitCode::FAILURE;
    }
    let read = read_requests(&mut BufReader::new(std::io::stdin()), &inbox);
    // What runs is stopped, and leaves nothing half-written. What does not hear is not waited for.
    if inbox.send(Input::NothingMore).is_ok() && end.recv_timeout(PATIENCE).is_err() {
        tracing::warn!("what ran did not stop within {PATIENCE:?}");
    }
    match read {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kept-worker: {error}");
            ExitCode::from(MALFORMED)
        }
    }
}

/// Reads until the input ends. A message that is understood as JSON but not as a request is told to the desk; anything else
/// that is wrong ends the stream.
fn read_requests(from: &mut impl Read, inbox: &Sender<Input>) -> Result<(), ProtocolError> {
    while let Some(frame) = read_frame(from)? {
        let input = match frame.message::<Request>() {
            Ok(request) => {
                let bytes = match request.has_bytes() {
                    true => next_bytes(from)?,
                    false => Vec::new(),
                };
                Input::Request(request, bytes)
            }
            Err(ProtocolError::Message(error)) if !error.is_syntax() && !error.is_eof() => {
                Input::NotUnderstood(error.to_string())
            }
            Err(error) => return Err(error),
        };
        if inbox.send(input).is_err() {
            break; // The desk is gone and ends the process.
        }
    }
    Ok(())
}

fn next_bytes(from: &mut impl Read) -> Result<Vec<u8>, ProtocolError> {
    match read_frame(from)? {
        Some(frame) => frame.into_bytes(),
        None => Err(ProtocolError::Cut {
            have: 0,
            need: HEADER_BYTES,
        }),
    }
}

/// A panic says where, not what: its message may hold a piece of the document.
fn report_bugs_without_words() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic
            .location()
            .map_or(String::new(), |l| format!(" at {}:{}", l.file(), l.line()));
        eprintln!("kept-worker: the engine has a bug{place}");
    }));
}

/// `KEPT_LOG=kept_engine=debug` shows spans and events on standard error; without it only warnings. Only our own are ever
/// shown: a library that reads the document may log its words.
fn start_log() {
    let asked = std::env::var("KEPT_LOG").unwrap_or_default();
    let filter = match asked.is_empty() {
        true => EnvFilter::new("warn"),
        false => EnvFilter::try_new(&asked).unwrap_or_else(|_| {
            eprintln!("kept-worker: KEPT_LOG={asked} is not understood; write for example KEPT_LOG=kept_engine=debug");
            EnvFilter::new("warn")
        }),
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_span_events(tracing_subscriber::fmt::format::FmtSpan::CLOSE)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_filter(filter_fn(|metadata| metadata.target().starts_with("kept")));
    tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .init();
}
