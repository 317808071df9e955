//! `kept models pull`: downloads a model from the hub. Ctrl-C pauses; the same command resumes.

use std::time::{Duration, Instant};

use kept_engine::models::gguf::Header;
use kept_hub::{ModelRef, Phase, Settings, Status};
use serde::Serialize;

use crate::arguments::PullArguments;
use crate::output::{self, bytes};
use crate::progress::TransferBar;

/// The user paused the download, which is no error but also not finished.
#[derive(Debug, thiserror::Error)]
#[error("paused: {} of {} are kept; go on with: kept models pull {reference}", bytes(*.done), bytes(*.total))]
pub struct Paused {
    reference: String,
    done: u64,
    total: u64,
}

#[derive(Serialize)]
struct PullJson {
    reference: String,
    path: String,
    bytes: u64,
    downloaded_bytes: u64,
    seconds: f64,
    supported: bool,
    reason: Option<String>,
}

pub fn run(arguments: &PullArguments) -> anyhow::Result<()> {
    let reference: ModelRef = arguments.reference.parse()?;
    anyhow::ensure!(
        (1..=3600).contains(&arguments.timeout),
        "--timeout {} is not between 1 and 3600 seconds",
        arguments.timeout
    );
    let settings = Settings {
        retries: arguments.retries,
        timeout: Duration::from_secs(arguments.timeout),
        ..Settings::from_env()
    };
    let started = Instant::now();
    let download = settings.download(reference);
    download.start();
    let stopping = download.clone();
    let installed = ctrlc::set_handler(move || {
        // A second Ctrl-C ends the program at once; the downloaded part is kept.
        if stopping.status().phase.is_at_rest() || stopping.is_stopping() {
            std::process::exit(i32::from(crate::STOPPED));
        }
        stopping.pause();
    });
    if let Err(error) = installed {
        tracing::warn!(%error, "Ctrl-C ends the program without a word; what has arrived is kept");
    }
    let bar = TransferBar::new();
    let status = download.at_rest_blocking(|status| bar.show(status));
    bar.clear();
    let status = status?;
    match (status.phase, download.failure()) {
        (Phase::Finished, _) => print_result(&status, started.elapsed(), arguments.json),
        (_, Some(error)) => Err(error.into()),
        _ => Err(Paused {
            reference: status.reference,
            done: status.bytes_done,
            total: status.bytes_total,
        }
        .into()),
    }
}

fn print_result(status: &Status, time: Duration, json: bool) -> anyhow::Result<()> {
    let path = status.path.clone().unwrap_or_default();
    let supported = match Header::read(&path) {
        Ok(header) => header.supported,
        Err(error) => Err(error),
    };
    let reason = supported.err().map(|error| error.to_string());
    let report = PullJson {
        reference: status.reference.clone(),
        path: path.display().to_string(),
        bytes: status.bytes_total,
        downloaded_bytes: status.bytes_received,
        seconds: time.as_secs_f64(),
        supported: reason.is_none(),
        reason,
    };
    if json {
        return output::print_json(&report);
    }
    let what = match report.downloaded_bytes {
        0 => "was here already".to_owned(),
        count => format!("downloaded {} and checked", bytes(count)),
    };
    output::say(&format!(
        "{what}; use it with: --model {}\n",
        report.reference
    ));
    if let Some(reason) = &report.reason {
        output::say(&format!("note: Kept cannot open it: {reason}\n"));
    }
    output::print_text(&format!("{}\n", report.path))
}
