//! The Python wheel, installed into an environment of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use kept_tests::fetched::skip;
use kept_tests::golden::repository;

use crate::{asset, exists, library_folder, run};

/// Packs the library into a wheel in `folder`. Its path.
fn wheel(folder: &Path) -> PathBuf {
    let packed = run(Command::new(repository().join("scripts/wheel"))
        .arg(library_folder().join("libkept.so"))
        .arg(folder)
        .env("SOURCE_DATE_EPOCH", "1800000000"));
    String::from_utf8(packed.stdout)
        .expect("a path")
        .trim()
        .into()
}

/// Python in a new environment in `folder` with numpy, which `make test` installs for the system's Python; or why there
/// is none.
fn python(folder: &Path) -> Result<PathBuf, String> {
    let succeeds = |program: &str, words: &[&str]| {
        let done = Command::new(program).args(words).output();
        done.is_ok_and(|done| done.status.success())
    };
    let has_numpy = |python: &&str| succeeds(python, &["-c", "import numpy, ensurepip"]);
    let Some(python) = ["/usr/bin/python3", "python3"].into_iter().find(has_numpy) else {
        return Err("no Python has numpy (python3-numpy, python3-venv)".to_owned());
    };
    let made = succeeds(
        python,
        &[
            "-m",
            "venv",
            "--system-site-packages",
            &folder.to_string_lossy(),
        ],
    );
    match made {
        true => Ok(folder.join("bin/python")),
        false => Err(format!("{python} makes no environments (python3-venv)")),
    }
}

#[test]
fn the_wheel_answers_with_arrays() {
    for tool in ["objdump", "strip"] {
        if !exists(Path::new(tool)) {
            return skip(&format!("there is no {tool}"));
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    let python = match python(&folder.path().join("environment")) {
        Ok(python) => python,
        Err(why) => return skip(&why),
    };
    let packed = wheel(&folder.path().join("one"));
    let again = wheel(&folder.path().join("two"));
    assert_eq!(packed.file_name(), again.file_name());
    let same = std::fs::read(&packed).expect("a wheel") == std::fs::read(again).expect("a wheel");
    assert!(same, "the same commit and library give the same wheel");
    run(Command::new(&python)
        .args(["-m", "pip", "install", "--quiet", "--no-deps"])
        .arg(&packed));
    let asked = run(Command::new(&python)
        .arg(repository().join("python/tests/ask.py"))
        .arg(asset("sample.txt"))
        .args(["What is the gate code of Edgar Tollen?", "2906"])
        .current_dir(folder.path())
        .env_remove("KEPT_ASSETS"));
    let said = String::from_utf8_lossy(&asked.stdout);
    assert!(said.ends_with("all checks passed\n"), "{said}");
    let complaints = String::from_utf8_lossy(&asked.stderr);
    assert!(complaints.is_empty(), "{complaints}");
    for page in ["docs/embedding.md", "python/README.md"] {
        let shown = run(Command::new(&python).args(["-c", &example(page)]));
        let shown = String::from_utf8_lossy(&shown.stdout);
        let (_, best) = shown.split_once("best remembered: ").expect("a passage");
        let text = std::fs::read_to_string(asset("sample.txt")).expect("the sample");
        let best = best.trim();
        assert!(!best.is_empty() && text.contains(best), "{page}: {best}");
    }
}

/// The Python program on a page, with the built-in model and its sample.
fn example(page: &str) -> String {
    let page = std::fs::read_to_string(repository().join(page)).expect("a page");
    let (_, begins) = page.split_once("```python\n").expect("a program");
    let (program, _) = begins.split_once("```").expect("its end");
    let path = |name: &str| asset(name).display().to_string();
    (program.replace("lease.pdf", &path("sample.txt"))).replace("model.gguf", &path("mini.gguf"))
}
