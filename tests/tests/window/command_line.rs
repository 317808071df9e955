//! The app without a display: its arguments, and a machine without a display. One error message, no panic.
use std::process::{Command, Output, Stdio};

use kept_tests::window::{Home, built};

/// Runs the program on a machine without a display.
fn kept_app(arguments: &[&str]) -> Output {
    let home = Home::unused();
    let mut command = Command::new(built("kept-app"));
    home.apply(&mut command);
    command
        .args(arguments)
        .env_remove("DISPLAY")
        .env_remove("WAYLAND_DISPLAY")
        .env_remove("KEPT_LOG")
        .env_remove("RUST_BACKTRACE")
        .stdin(Stdio::null())
        .output()
        .expect("kept-app starts")
}

fn refused(output: &Output, code: i32, words: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert_eq!(said.trim_end().lines().count(), 1, "one line: {said}");
    assert!(!said.contains("panicked"), "{said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is in: {said}");
    }
    assert!(output.stdout.is_empty(), "nothing on standard output");
}

#[test]
fn without_a_display_the_terminal_program_is_named() {
    refused(&kept_app(&[]), 1, &["display", "kept ask"]);
    refused(&kept_app(&["some file.txt"]), 1, &["display", "kept ask"]);
}

#[test]
fn unknown_arguments_are_named() {
    refused(&kept_app(&["--colour", "blue"]), 2, &["--colour"]);
    refused(&kept_app(&["--model"]), 2, &["--model"]);
}

#[test]
fn help_and_version_need_no_display() {
    let help = kept_app(&["--help"]);
    let text = String::from_utf8_lossy(&help.stdout);
    assert!(
        help.status.success() && text.contains("--model"),
        "{help:?}"
    );
    let version = kept_app(&["--version"]);
    let text = String::from_utf8_lossy(&version.stdout);
    assert!(
        version.status.success() && text.contains(env!("CARGO_PKG_VERSION")),
        "{version:?}"
    );
}
