//! The header and a program in C.

use std::path::Path;
use std::process::Command;

use kept_tests::fetched::skip;

use crate::{asset, exists, library_folder, run};

/// The folder of the crate.
const CRATE: &str = env!("CARGO_MANIFEST_DIR");

#[test]
fn the_header_is_up_to_date() {
    let config = cbindgen::Config::from_root_or_default(CRATE);
    let bindings = cbindgen::generate_with_config(CRATE, config).expect("a header");
    let mut header = Vec::new();
    bindings.write(&mut header);
    let header = String::from_utf8(header).expect("UTF-8");
    let path = Path::new(CRATE).join("include/kept.h");
    if std::env::var_os("KEPT_UPDATE").is_some() {
        std::fs::write(&path, &header).expect("the header is written");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == header,
        "{} is out of date; run this test with KEPT_UPDATE=1",
        path.display()
    );
}

#[test]
fn a_c_program_asks_and_reads_the_map() {
    let compiler = Path::new("cc");
    if !exists(compiler) {
        return skip("there is no C compiler (cc)");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("ask");
    let library = library_folder();
    run(Command::new(compiler)
        .args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I"])
        .arg(Path::new(CRATE).join("include"))
        .arg(Path::new(CRATE).join("tests/embedding/ask.c"))
        .arg("-o")
        .arg(&program)
        .arg(format!("-L{}", library.display()))
        .arg(format!("-Wl,-rpath,{}", library.display()))
        .arg("-lkept"));
    let output = run(Command::new(&program)
        .arg(asset("mini.gguf"))
        .arg(asset("sample.txt"))
        .arg("What is the gate code of Edgar Tollen?")
        .arg("2906"));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.contains("2906") && said.ends_with("all checks passed\n"),
        "{said}"
    );
}
