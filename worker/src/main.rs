//! `kept-worker`: the engine in a separate process, so that the app survives its failures. Requests come on standard
//! input, replies go to standard output, both as frames (`kept_worker::protocol`). The end of standard input stops
//! all work and ends the process.
//!
//! The main thread reads requests. A second thread runs the dispatcher (`dispatcher.rs`), a third one questions and
//! comparisons (`asking.rs`, `comparing.rs`); every file is opened on a thread of its own.

mod asking;
mod comparing;
mod device;
mod dispatcher;
mod facts;
mod joining;
mod opening;
mod output;
mod vault_settings;
mod watching;
mod work;

use std::io::{BufReader, Read};
use std::process::ExitCode;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use kept_engine::kernels::{
    CountingAllocator, OUT_OF_MEMORY, check_simd_level, simd_level, threads,
};
use kept_worker::protocol::{ProtocolError, Reply, read_message};
use tracing_subscriber::filter::{EnvFilter, filter_fn};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::device::Task;
use crate::dispatcher::Dispatcher;
use crate::output::Output;
use crate::work::Input;

/// A refused allocation ends this process with a sentence on standard error; the app starts another process.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Exit code for an invalid command line, or for input that is not a stream of frames.
const MALFORMED: u8 = 2;
/// How long the process waits for running work to stop after the end of standard input.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// Exit code after an unrecoverable bug.
const BROKEN: i32 = 70;

/// Exit code after a GPU failure, known to the app: this process cannot use the GPU any more.
const GPU_LOST: i32 = 71;

fn main() -> ExitCode {
    let tasks = [
        kept_engine::documents::READING,
        kept_engine::models::RENDERING,
    ];
    kept_sandbox::enter(&tasks, OUT_OF_MEMORY);
    match device::read_arguments(std::env::args().skip(1)) {
        Ok(Task::Serve) => serve(),
        Ok(Task::PrintGpus) => device::print_gpus(),
        Ok(Task::PrintSpeed) => device::print_speed(),
        Err(refusal) => {
            eprintln!("kept-worker: {refusal}");
            ExitCode::from(MALFORMED)
        }
    }
}

/// Serves the app until standard input ends.
fn serve() -> ExitCode {
    let output = match Output::take_stdout() {
        Ok(output) => output,
        Err(error) => {
            eprintln!("kept-worker: standard output could not be set up ({error})");
            return ExitCode::FAILURE;
        }
    };
    threads::configure(None);
    set_panic_hook();
    start_log();
    if let Err(refusal) = check_simd_level() {
        tracing::warn!("{refusal}");
    }
    let version = env!("CARGO_PKG_VERSION");
    tracing::info!(version, simd = ?simd_level(), threads = threads::count(), "started");
    output.send(&Reply::Hello);
    let (inbox, inputs) = channel();
    let dispatcher = Dispatcher::new(output, inbox.clone());
    let named = std::thread::Builder::new().name("dispatcher".to_owned());
    let (ended, end) = channel();
    let started = named.spawn(move || {
        let work = std::panic::AssertUnwindSafe(|| dispatcher.run(inputs));
        if std::panic::catch_unwind(work).is_err() {
            std::process::exit(BROKEN);
        }
        // The receiver is gone if the wait for the dispatcher timed out.
        let _ = ended.send(());
    });
    if let Err(error) = started {
        eprintln!("kept-worker: no thread could be started ({error})");
        return ExitCode::FAILURE;
    }
    let read = read_requests(&mut BufReader::new(std::io::stdin()), &inbox);
    // Running work is stopped, so that no file is left half-written. Work that does not stop in time is abandoned.
    if inbox.send(Input::NothingMore).is_ok() && end.recv_timeout(STOP_TIMEOUT).is_err() {
        tracing::warn!("what ran did not stop within {STOP_TIMEOUT:?}");
    }
    match read {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kept-worker: {error}");
            ExitCode::from(MALFORMED)
        }
    }
}

/// Reads requests until the input ends. JSON that is not a valid request is reported to the dispatcher; any other
/// error ends the stream.
fn read_requests(from: &mut impl Read, inbox: &Sender<Input>) -> Result<(), ProtocolError> {
    loop {
        let input = match read_message(from) {
            Ok(None) => break,
            Ok(Some((request, bytes))) => Input::Request(request, bytes),
            Err(ProtocolError::Message(error)) if !error.is_syntax() && !error.is_eof() => {
                Input::NotUnderstood(error.to_string())
            }
            Err(error) => return Err(error),
        };
        if inbox.send(input).is_err() {
            break; // The dispatcher has ended and ends the process.
        }
    }
    Ok(())
}

/// A panic reports its location only: its message may contain text of the document.
fn set_panic_hook() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic
            .location()
            .map_or(String::new(), |l| format!(" at {}:{}", l.file(), l.line()));
        eprintln!("kept-worker: the engine has a bug{place}");
    }));
}

/// `KEPT_LOG=kept_engine=debug` prints spans and events on standard error; the default is warnings only. Only targets
/// of Kept are printed: a library that reads the document may log its text.
fn start_log() {
    let asked = std::env::var("KEPT_LOG").unwrap_or_default();
    let filter = if asked.is_empty() {
        EnvFilter::new("warn")
    } else {
        EnvFilter::try_new(&asked).unwrap_or_else(|_| {
            eprintln!("kept-worker: KEPT_LOG={asked} is not understood; write for example KEPT_LOG=kept_engine=debug");
            EnvFilter::new("warn")
        })
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
