//! The desktop app: reads the command line, then opens the window. Everything else is in the library.

#![cfg_attr(not(debug_assertions), windows_subsystem = "windows")]

use std::process::ExitCode;

use clap::Parser;
use kept_app::arguments::Arguments;
use kept_app::window;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::{EnvFilter, Layer, layer::SubscriberExt, util::SubscriberInitExt};

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(refusal) if refusal.use_stderr() => return refuse(&in_one_line(&refusal), 2),
        Err(asked) => asked.exit(),
    };
    if let Err(error) = start_log() {
        return refuse(&error, 2);
    }
    #[cfg(target_os = "linux")]
    with_safe_renderer();
    kept_sandbox::make_file_limit_an_error();
    match window::run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => refuse(&error.to_string(), 1),
    }
}

/// `KEPT_LOG=kept=debug` prints more to stderr; the default is warnings. Only events of our own crates are printed,
/// because a library that handles the document may log its text.
fn start_log() -> Result<(), String> {
    let asked = std::env::var_os("KEPT_LOG").filter(|asked| !asked.is_empty());
    let asked = asked.map_or("warn".into(), |asked| asked.to_string_lossy().into_owned());
    let filter = EnvFilter::try_new(&asked).map_err(|_| {
        format!("KEPT_LOG={asked} is not understood; write for example KEPT_LOG=kept_app=debug")
    })?;
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_filter(filter_fn(|metadata| metadata.target().starts_with("kept")));
    tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .init();
    Ok(())
}

/// A refusal of the command line.
fn in_one_line(refusal: &clap::Error) -> String {
    let text = refusal.to_string();
    let sentence = text.split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = sentence.split_whitespace().collect();
    let sentence = words.join(" ");
    let sentence = sentence.strip_prefix("error: ").unwrap_or(&sentence);
    format!("{sentence}; see kept-app --help")
}

fn refuse(error: &str, code: u8) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::from(code)
}

/// Starts this program again with WebKit's DMA-BUF renderer off, unless the user has set the variable: with the
/// renderer on, the app window stays blank with many drivers. WebKit's own processes read the variable from the
/// environment, which can only be set for a new process.
#[cfg(target_os = "linux")]
fn with_safe_renderer() {
    use std::os::unix::process::CommandExt;
    const VARIABLE: &str = "WEBKIT_DISABLE_DMABUF_RENDERER";
    if std::env::var_os(VARIABLE).is_some() {
        return;
    }
    let mut words = std::env::args_os();
    let error = match std::env::current_exe() {
        Ok(program) => {
            let mut command = std::process::Command::new(program);
            if let Some(name) = words.next() {
                command.arg0(name);
            }
            command.args(words).env(VARIABLE, "1").exec()
        }
        Err(error) => error,
    };
    tracing::warn!(%error, "the window opens with WebKit's own choice of renderer");
}
