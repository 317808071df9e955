//! The real window, driven as a person drives it: a display of its own, WebDriver for keys, clicks and what is on the page,
//! a second window to drag files from.
//!
//! Nothing here knows how the app works inside: it sees the page through its `data-testid`s, the processes through `/proc`,
//! and what the app logs. Linux alone: other systems have no driver for their web view that is a plain program.
//!
//! `KEPT_SCREENSHOTS=folder` saves pictures of every story, `KEPT_E2E_RUNS=20` tells the main one twenty times over.

mod app;
mod dialog;
mod display;
mod drag;
mod files;
mod page;
mod picture;
mod process;
mod webdriver;

pub use app::{App, Launch, PATIENCE};
pub use dialog::Dialog;
pub use display::Display;
pub use files::{Home, pages_pdf, words};
pub use page::{ANSWER, Notice, OFFERED, QUESTION, answered, first_start};
pub use process::{Process, built, processes_below};
pub use webdriver::{DriverError, WebDriver};

use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard};

/// One window at a time: each story has the whole machine to itself.
static TURN: Mutex<()> = Mutex::new(());

/// What the tests in a window need, as `(program, Debian package)`.
const NEEDED: [(&str, &str); 4] = [
    ("Xvfb", "xvfb"),
    ("WebKitWebDriver", "webkit2gtk-driver"),
    ("xdotool", "xdotool"),
    ("dbus-run-session", "dbus"),
];

/// Waits for the other stories of this program to end, then says whether a window can be opened here. `None`, with a line
/// that says which package is missing, where it cannot.
///
/// # Panics
/// Where a package is missing and `CI=true`: there the window has to be tested.
#[must_use]
pub fn turn() -> Option<MutexGuard<'static, ()>> {
    // A story that failed does not spoil the ones after it.
    let turn = TURN
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let missing: Vec<&str> = (NEEDED.iter())
        .filter(|(program, _)| !is_installed(program))
        .map(|&(_, package)| package)
        .collect();
    if missing.is_empty() {
        return Some(turn);
    }
    let what = format!("apt-get install {}", missing.join(" "));
    assert!(
        std::env::var("CI").as_deref() != Ok("true"),
        "the window cannot be tested here; it needs: {what}"
    );
    eprintln!("skipped, as the window cannot be tested here; it needs: {what}");
    None
}

fn is_installed(program: &str) -> bool {
    Command::new("sh")
        .args(["-c", "command -v \"$0\"", program])
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
