//! The library from other languages: its header, a program in C, the Python package.
#![cfg(target_os = "linux")]

mod c;
mod python;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use kept_tests::golden::repository;

/// The folder of the library that was built with these tests.
fn library_folder() -> PathBuf {
    let this = std::env::current_exe().expect("the path of this test");
    let folder = this.parent().expect("a folder").to_owned();
    assert!(folder.join("libkept.so").exists(), "{}", folder.display());
    folder
}

/// Runs a command. Its output, or panics with what it printed.
fn run(command: &mut Command) -> Output {
    let output = command.output().expect("it starts");
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Whether a program can be started.
fn exists(program: &Path) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

/// A file of the built-in model or its sample.
fn asset(name: &str) -> PathBuf {
    repository().join("assets").join(name)
}
