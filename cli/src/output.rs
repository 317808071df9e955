//! Output to stdout, stderr, files and JSON. Errors name what could not be written and why.

use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::Path;

use anyhow::Context;
use serde::Serialize;

pub use kept_hub::text::{bytes, count};

/// Buffered stdout. The caller must call `finish`, which reports a full disk.
pub struct Stdout(BufWriter<io::StdoutLock<'static>>);

impl Stdout {
    pub fn new() -> Self {
        Self(BufWriter::new(io::stdout().lock()))
    }

    /// Flushes the buffer.
    pub fn finish(mut self) -> anyhow::Result<()> {
        self.0.flush().context(CANNOT_PRINT)
    }
}

const CANNOT_PRINT: &str = "the result could not be written to the output";

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Prints one JSON object on one line.
pub fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    let mut out = Stdout::new();
    serde_json::to_writer(&mut out, value)
        .map_err(io::Error::from)
        .context(CANNOT_PRINT)?;
    writeln!(out).context(CANNOT_PRINT)?;
    out.finish()
}

/// Prints text unchanged.
pub fn print_text(text: &str) -> anyhow::Result<()> {
    let mut out = Stdout::new();
    out.write_all(text.as_bytes()).context(CANNOT_PRINT)?;
    out.finish()
}

/// Writes to stderr and ignores errors, because stderr may be closed.
pub fn say(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Replaces control characters other than line break and tab, and those that reorder what follows, by a mark, so that a
/// document cannot control the terminal.
pub fn printable(text: &str) -> String {
    text.chars()
        .filter(|&c| c != '\r')
        .map(|c| match c {
            '\n' | '\t' => c,
            '\x0c' => '\n',
            c if c.is_control() => '\u{FFFD}',
            '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}' => '\u{FFFD}',
            c => c,
        })
        .collect()
}

/// Joins a text into one printable line, whatever line breaks a model, a file name or a library put into it.
pub fn one_line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    printable(&words.join(" "))
}

/// Largest input file that is read into memory. Documents have their own limit.
const MAX_INPUT_BYTES: u64 = 2 << 30;

/// Reads a whole input file. Pipes and devices are refused because they may never end.
pub fn read_file(path: &Path) -> anyhow::Result<Vec<u8>> {
    let shown = path.display();
    let about = std::fs::metadata(path)
        .with_context(|| format!("'{shown}' could not be read; check the path"))?;
    anyhow::ensure!(
        about.is_file(),
        "'{shown}' is not a file; give the path of a file"
    );
    anyhow::ensure!(
        about.len() <= MAX_INPUT_BYTES,
        "'{shown}' has {}; at most {} are read",
        bytes(about.len()),
        bytes(MAX_INPUT_BYTES)
    );
    std::fs::read(path).with_context(|| format!("'{shown}' could not be read"))
}

/// Checks an output path before any work is done: its folder must exist, and it must not be one of the `inputs`.
pub fn check_target(path: &Path, inputs: &[&Path]) -> anyhow::Result<()> {
    let shown = path.display();
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    anyhow::ensure!(
        path.file_name().is_some() && !path.is_dir(),
        "'{shown}' is not a file name; say which file to write"
    );
    anyhow::ensure!(
        folder.is_dir(),
        "'{shown}' cannot be written: there is no folder '{}'; make it first",
        folder.display()
    );
    if let Ok(target) = std::fs::canonicalize(path) {
        for input in inputs {
            anyhow::ensure!(
                std::fs::canonicalize(input).ok().as_ref() != Some(&target),
                "'{shown}' is what is read and would be lost; choose another file to write"
            );
        }
    }
    Ok(())
}

/// Writes a file through `write`, atomically: first a temporary file in the same folder, then a rename. An existing
/// file is replaced completely or not at all. Devices and pipes are written directly.
pub fn write_file(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> anyhow::Result<()> {
    let direct = std::fs::metadata(path).is_ok_and(|about| !about.is_file());
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}.part", std::process::id()));
    let place = if direct {
        path.to_owned()
    } else {
        path.with_file_name(name)
    };
    let attempt = || -> io::Result<()> {
        let mut file = BufWriter::new(File::create(&place)?);
        write(&mut file)?;
        file.flush()?;
        if direct {
            Ok(())
        } else {
            std::fs::rename(&place, path)
        }
    };
    attempt().map_err(|error| {
        if !direct {
            let _ = std::fs::remove_file(&place);
        }
        let way_out = match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "free some space",
            _ => "choose another place",
        };
        anyhow::anyhow!(
            "'{}' could not be written ({error}); {way_out}",
            path.display()
        )
    })
}

/// Whether the error is a broken pipe: the reader of our output has closed it.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<io::Error>()
            .is_some_and(|e| e.kind() == ErrorKind::BrokenPipe)
    })
}
