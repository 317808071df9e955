//! Progress bars on stderr, shown only in a terminal and removed when the work is done.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use kept_engine::kernels::Stop;
use kept_engine::{Event, Progress};
use kept_hub::{Phase, Status};

use crate::output::bytes;

/// A bar that is drawn at most `hz` times a second.
fn bar(hz: u8, template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(hz));
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("━╸─"));
    }
    bar
}

/// Progress bar of prefill.
pub struct ReadingBar(ProgressBar);

impl ReadingBar {
    /// Creates a bar, which is drawn if stderr is a terminal.
    pub fn new() -> Self {
        Self(bar(
            20,
            "reading{prefix} {bar:24} {percent:>3} %  {wide_msg}",
        ))
    }

    /// Adds a label: `reading (snapkv 25%) ...`.
    pub fn label(&self, label: &str) {
        self.0.set_prefix(format!(" ({label})"));
    }

    /// Runs `print` while the bar is hidden, so that output and bar do not mix.
    pub fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        self.0.suspend(print)
    }

    /// Shows the progress of prefill.
    pub fn show(&self, progress: &Progress) {
        self.0.set_length(progress.tokens_total as u64);
        self.0.set_position(progress.tokens_done as u64);
        self.0.set_message(format!(
            "{:.0} tokens/s, {} left{}",
            progress.tokens_per_second,
            duration(progress.seconds_left),
            match progress.tokens_from_vault {
                0 => "",
                _ => ", from the vault",
            }
        ));
    }

    /// Shows the event if it is progress of prefill.
    pub fn event(&self, event: &Event<'_>) {
        if let Event::Progress(progress, _) = event
            && progress.phase == kept_engine::Phase::Reading
        {
            self.show(progress);
        }
    }

    /// Removes the bar.
    pub fn clear(&self) {
        self.0.finish_and_clear();
    }
}

/// Progress bar over a number of questions.
pub struct CountBar(ProgressBar);

impl CountBar {
    /// Creates a bar over `total` questions, which is drawn if stderr is a terminal.
    pub fn new(total: usize) -> Self {
        let bar = bar(20, "{bar:24} {pos}/{len}  {wide_msg}");
        bar.set_length(total as u64);
        Self(bar)
    }

    /// Advances to the next question, of the run `label`.
    pub fn next(&self, label: &str) {
        self.0.set_message(label.trim().to_owned());
        self.0.inc(1);
    }

    /// Removes the bar.
    pub fn clear(&self) {
        self.0.finish_and_clear();
    }
}

/// Progress bar of a download.
pub struct TransferBar(ProgressBar);

impl TransferBar {
    /// Creates a bar, which is drawn if stderr is a terminal.
    pub fn new() -> Self {
        Self(bar(10, "{prefix} {bar:24} {percent:>3} %  {wide_msg}"))
    }

    /// Shows the progress of the download.
    pub fn show(&self, status: &Status) {
        let doing = match status.phase {
            Phase::Checking => "checking what is here",
            Phase::Downloading => "downloading",
            Phase::Waiting => "waiting",
            _ => "asking the hub",
        };
        let part = match status.parts {
            2.. => format!(" part {} of {}", status.part, status.parts),
            _ => String::new(),
        };
        self.0.set_prefix(format!("{doing}{part}"));
        self.0.set_length(status.bytes_total.max(1));
        self.0.set_position(status.bytes_done);
        self.0
            .set_message(match (&status.message, status.bytes_total) {
                (Some(message), _) => message.clone(),
                (None, 0) => String::new(),
                (None, total) => {
                    let (done, total) = (bytes(status.bytes_done), bytes(total));
                    let speed = status
                        .bytes_per_second
                        .map_or_else(String::new, |speed| format!(", {}/s", bytes(speed as u64)));
                    let left = status.seconds_left.map_or_else(String::new, |seconds| {
                        format!(", {} left", duration(seconds))
                    });
                    format!("{done} of {total}{speed}{left}")
                }
            });
    }

    /// Removes the bar.
    pub fn clear(&self) {
        self.0.finish_and_clear();
    }
}

/// Formats a duration: `45 s`, `3 min 20 s`.
pub fn duration(seconds: f64) -> String {
    let whole = Duration::from_secs_f64(seconds.clamp(0.0, 1e9)).as_secs();
    match whole {
        0..10 => format!("{seconds:.1} s"),
        10..60 => format!("{seconds:.0} s"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}

/// Creates a `Stop` that Ctrl-C and SIGTERM request. A second one ends the program at once.
pub fn stop_on_ctrl_c() -> Stop {
    let stop = Stop::new();
    let requested = stop.clone();
    let installed = ctrlc::set_handler(move || {
        if requested.is_requested() {
            std::process::exit(i32::from(crate::STOPPED));
        }
        requested.request();
    });
    if let Err(error) = installed {
        tracing::warn!(%error, "Ctrl-C ends the program without a summary");
    }
    stop
}
