//! The `kept` terminal program: the engine behind commands, results on stdout, progress and errors on stderr.
//!
//! Not here: anything the engine does. A command reads its arguments, calls the engine and prints.

mod arguments;
mod ask;
mod bench;
mod doctor;
mod inspect;
mod logits;
mod map;
mod map_page;
mod output;
mod paint;
mod progress;
mod select;
mod tokenize;

use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::filter::{EnvFilter, filter_fn};
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::arguments::{Arguments, Command, ModelsCommand};

#[global_allocator]
static ALLOCATOR: kept_engine::kernels::CountingAllocator = kept_engine::kernels::CountingAllocator;

fn main() -> ExitCode {
    report_bugs_in_one_line();
    kept_engine::kernels::threads::configure(None);
    let arguments = Arguments::parse();
    start_log();
    match run(arguments.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_stopped(&error) => {
            eprintln!("error: stopped before the document was read; nothing was kept");
            ExitCode::from(STOPPED)
        }
        // Whoever read our output has seen enough (`kept map | head`).
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", one_line(&format!("{error:#}")));
            ExitCode::FAILURE
        }
    }
}

/// What shells expect of a program that Ctrl-C ended.
const STOPPED: u8 = 130;

fn is_stopped(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref::<kept_engine::EngineError>(),
        Some(kept_engine::EngineError::Stopped)
    )
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Ask(arguments) => ask::run(arguments),
        Command::Map(arguments) => map::run(arguments),
        Command::Select(arguments) => select::run(&arguments),
        Command::Tokenize(arguments) => tokenize::run(&arguments),
        Command::Logits(arguments) => logits::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Models(ModelsCommand::Inspect(arguments)) => inspect::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
    }
}

/// Errors are one sentence on one line, whatever a file name or a library put into them.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// `KEPT_LOG=kept_engine=debug` shows spans and events on stderr; by default nothing. Only our own are ever shown: a library
/// that reads the document may log its words.
fn start_log() {
    let Ok(filter) = EnvFilter::try_from_env("KEPT_LOG") else {
        return;
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_span_events(FmtSpan::CLOSE)
        .with_writer(std::io::stderr)
        .with_filter(filter_fn(|metadata| metadata.target().starts_with("kept")));
    tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .init();
}

/// A panic is our bug: it is reported in one line that says so.
fn report_bugs_in_one_line() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic
            .location()
            .map_or(String::new(), |l| format!(" at {}:{}", l.file(), l.line()));
        let what = panic
            .payload()
            .downcast_ref::<&str>()
            .map(|s| (*s).to_owned())
            .or_else(|| panic.payload().downcast_ref::<String>().cloned())
            .unwrap_or_default();
        eprintln!(
            "error: kept has a bug{place}: {}; please report it with the command you ran",
            one_line(&what)
        );
    }));
}
