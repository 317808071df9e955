//! The `kept` terminal program: runs the engine from the command line, with results on stdout, progress and errors on
//! stderr.
//!
//! A command only parses its arguments, calls the engine and prints; all other work is the engine's.

mod arguments;
mod ask;
mod bench;
mod chat;
mod compare;
mod doctor;
mod eval;
mod fit;
mod inspect;
mod list;
mod logits;
mod map;
mod map_page;
mod map_table;
mod methods;
mod model;
mod options;
mod output;
mod own_vaults;
mod paint;
mod progress;
mod pull;
mod reference;
mod remove;
mod select;
mod serve;
mod tokenize;
mod use_model;
mod vaults;

use std::error::Error;
use std::io::{IsTerminal, Write};
use std::num::{IntErrorKind, ParseFloatError, ParseIntError};
use std::process::ExitCode;

use anyhow::Context;
use clap::CommandFactory;
use clap::error::{ContextKind, ErrorKind};
use tracing_subscriber::filter::{EnvFilter, filter_fn};
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::arguments::{Arguments, Command, EvalCommand, ModelsCommand, VaultsCommand};

#[global_allocator]
static ALLOCATOR: kept_engine::kernels::CountingAllocator = kept_engine::kernels::CountingAllocator;

fn main() -> ExitCode {
    let tasks = [kept_documents::READING, kept_engine::models::RENDERING];
    kept_sandbox::enter(&tasks, kept_engine::kernels::OUT_OF_MEMORY);
    report_bugs_in_one_line();
    kept_engine::kernels::threads::configure(None);
    let arguments = match Arguments::read() {
        Ok(arguments) => arguments,
        Err(refusal) => return refuse_arguments(&refusal),
    };
    match start().and_then(|()| run(arguments.command)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_stopped(&error) => {
            output::say(&output::one_line(&format!("error: {error}")));
            output::say("\n");
            ExitCode::from(STOPPED)
        }
        Err(error) if error.is::<pull::Paused>() => {
            output::say(&format!("{}\n", output::one_line(&error.to_string())));
            ExitCode::from(STOPPED)
        }
        // The reader of our output has closed the pipe (`kept map | head`).
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let options = options::for_error(&error);
            let options = options.map_or(String::new(), |options| format!(" ({options})"));
            let sentence = output::one_line(&format!("{error:#}"));
            output::say(&format!("error: {sentence}{options}\n"));
            ExitCode::FAILURE
        }
    }
}

/// Prints help and version unchanged, and any other refusal as one line, like every other error.
fn refuse_arguments(refusal: &clap::Error) -> ExitCode {
    if !refusal.use_stderr() {
        let printed = refusal.print().and_then(|()| std::io::stdout().flush());
        return match printed {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                output::say(&format!(
                    "error: the output could not be written: {error}\n"
                ));
                ExitCode::FAILURE
            }
            _ => ExitCode::SUCCESS,
        };
    }
    if refusal.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = refusal.print();
        return ExitCode::from(2);
    }
    let text = refusal.to_string();
    let sentence = text.split("\n\n").next().unwrap_or_default();
    let sentence = sentence.strip_prefix("error: ").unwrap_or(sentence);
    let sentence = about_number(refusal).unwrap_or_else(|| sentence.to_owned());
    // `kept vaults read`
    let (mut command, mut help) = (&Arguments::command(), String::new());
    for word in std::env::args().skip(1) {
        let Some(asked) = command.find_subcommand(&word) else {
            break;
        };
        help += &format!(" {word}");
        command = asked;
    }
    let way = match help.as_str() {
        "" => "",
        _ => hint(refusal, command),
    };
    let sentence = output::one_line(&sentence);
    output::say(&format!("error: {sentence}{way}; see kept{help} --help\n"));
    ExitCode::from(2)
}

/// The refusal of a value that is no number, or none of its type.
fn about_number(refusal: &clap::Error) -> Option<String> {
    let cause = refusal.source()?;
    let expected = match cause.downcast_ref::<ParseIntError>() {
        Some(cause) if *cause.kind() == IntErrorKind::PosOverflow => "a smaller number",
        Some(_) => "a whole number from 0",
        None => cause
            .downcast_ref::<ParseFloatError>()
            .map(|_| "a number")?,
    };
    let value = refusal.get(ContextKind::InvalidValue)?;
    let option = refusal.get(ContextKind::InvalidArg)?;
    Some(format!(
        "invalid value '{value}' for '{option}': it takes {expected}"
    ))
}

/// A hint for a file or question that was given without its option.
fn hint(refusal: &clap::Error, command: &clap::Command) -> &'static str {
    let given = refusal
        .get(ContextKind::InvalidArg)
        .map(|given| given.to_string());
    let unnamed = refusal.kind() == ErrorKind::UnknownArgument
        && given.is_some_and(|given| !given.starts_with('-'));
    let has = |name: &str| {
        command
            .get_arguments()
            .any(|argument| argument.get_id() == name)
    };
    match (unnamed && has("document"), has("question")) {
        (false, _) => "",
        (true, true) => ": documents are given with --document and questions with --question",
        (true, false) => ": documents are given with --document",
    }
}

/// The exit code that shells expect after Ctrl-C.
const STOPPED: u8 = 130;

/// Whether the user stopped the operation.
fn is_stopped(error: &anyhow::Error) -> bool {
    (error.downcast_ref()).is_some_and(kept_engine::EngineError::is_stopped)
}

fn start() -> anyhow::Result<()> {
    kept_engine::kernels::check_simd_level().map_err(anyhow::Error::msg)?;
    start_log()
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Ask(arguments) => ask::run(arguments),
        Command::Chat(arguments) => chat::run(&arguments),
        Command::Map(arguments) => map::run(arguments),
        Command::Compare(arguments) => compare::run(&arguments),
        Command::Eval(EvalCommand::Qa(arguments)) => eval::qa(&arguments),
        Command::Eval(EvalCommand::Needle(arguments)) => eval::needle(&arguments),
        Command::Eval(EvalCommand::Longbench(arguments)) => eval::longbench(&arguments),
        Command::Eval(EvalCommand::Gsm8k(arguments)) => eval::gsm8k(&arguments),
        Command::Eval(EvalCommand::Perplexity(arguments)) => eval::perplexity(&arguments),
        Command::Methods(arguments) => methods::run(&arguments),
        Command::Select(arguments) => select::run(&arguments),
        Command::Tokenize(arguments) => tokenize::run(&arguments),
        Command::Logits(arguments) => logits::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Models(ModelsCommand::List(arguments)) => list::run(&arguments),
        Command::Models(ModelsCommand::Pull(arguments)) => pull::run(&arguments),
        Command::Models(ModelsCommand::Add(arguments)) => list::add(&arguments),
        Command::Models(ModelsCommand::Forget(arguments)) => list::forget(&arguments),
        Command::Models(ModelsCommand::Use(arguments)) => use_model::run(&arguments),
        Command::Models(ModelsCommand::Remove(arguments)) => remove::run(&arguments),
        Command::Models(ModelsCommand::Inspect(arguments)) => inspect::run(&arguments),
        Command::Vaults(VaultsCommand::List(arguments)) => vaults::list(&arguments),
        Command::Vaults(VaultsCommand::Read(arguments)) => vaults::read(&arguments),
        Command::Vaults(VaultsCommand::Remove(arguments)) => vaults::remove(&arguments),
        Command::Vaults(VaultsCommand::Clear(arguments)) => vaults::clear(&arguments),
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Completions(arguments) => reference::completions(&arguments),
        Command::Manual(arguments) => reference::manual(&arguments),
    }
}

/// `KEPT_LOG=kept_engine=debug` prints spans and events to stderr; the default is none. Only events of our own crates
/// are printed, because a library that reads the document may log its text.
fn start_log() -> anyhow::Result<()> {
    let Some(asked) = std::env::var_os("KEPT_LOG").filter(|asked| !asked.is_empty()) else {
        return Ok(());
    };
    let asked = asked.to_string_lossy();
    let filter = EnvFilter::try_new(&*asked).ok().with_context(|| {
        format!("KEPT_LOG={asked} is not understood; write for example KEPT_LOG=kept_engine=debug")
    })?;
    let lines = tracing_subscriber::fmt::layer()
        .with_span_events(FmtSpan::CLOSE)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_filter(filter_fn(|metadata| metadata.target().starts_with("kept")));
    tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .init();
    Ok(())
}

/// Reports a panic as a bug, in one line.
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
        output::say(&format!(
            "error: kept has a bug{place}: {}; please report it with the command you ran\n",
            output::one_line(&what)
        ));
    }));
}
