//! The real app window, driven like a user would: a separate display, WebDriver for keys, clicks and page contents, and
//! a second window to drag files from.
//!
//! The tests do not use the app's internals: they see the page through its `data-testid`s, the processes through
//! `/proc`, and the app's log. Linux only: other systems have no standalone driver for their web view. What does not come
//! about, or not in time, is a panic.
//!
//! `KEPT_SCREENSHOTS=folder` saves screenshots of every test, `KEPT_E2E_RUNS=20` runs the main test twenty times.

mod app;
mod dialog;
mod display;
mod drag;
mod files;
mod page;
mod picture;
mod process;
mod webdriver;

pub use app::{App, Launch, TIMEOUT};
pub use dialog::Dialog;
pub use display::Display;
pub use files::{Home, pages_pdf, words};
pub use page::{ANSWER, Notice, OFFERED, QUESTION, answered, first_start};
pub use process::{Process, built, processes_below};
pub use webdriver::{DriverError, WebDriver};

use std::process::{Command, Stdio};

/// Programs that the window tests need, as `(program, Debian package)`.
const NEEDED: [(&str, &str); 4] = [
    ("Xvfb", "xvfb"),
    ("WebKitWebDriver", "webkit2gtk-driver"),
    ("xdotool", "xdotool"),
    ("dbus-run-session", "dbus"),
];

/// Whether an app window can be opened here. If not, says so and names the missing packages.
fn can_open() -> bool {
    let missing: Vec<&str> = (NEEDED.iter())
        .filter(|(program, _)| !is_installed(program))
        .map(|&(_, package)| package)
        .collect();
    if missing.is_empty() {
        return true;
    }
    let what = format!("apt-get install {}", missing.join(" "));
    assert!(
        std::env::var("CI").as_deref() != Ok("true"),
        "the window cannot be tested here; it needs: {what}"
    );
    eprintln!("skipped, as the window cannot be tested here; it needs: {what}");
    false
}

fn is_installed(program: &str) -> bool {
    Command::new("sh")
        .args(["-c", "command -v \"$0\"", program])
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
