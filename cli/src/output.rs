//! Writing results: to stdout, to files, as JSON, with errors that say what could not be written and why.

use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::Path;

use anyhow::Context;
use serde::Serialize;

/// stdout, buffered; call `finish` so that a full disk is noticed.
pub struct Stdout(BufWriter<io::StdoutLock<'static>>);

impl Stdout {
    pub fn new() -> Self {
        Self(BufWriter::new(io::stdout().lock()))
    }

    /// Writes what is buffered.
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

/// Prints text as it is.
pub fn print_text(text: &str) -> anyhow::Result<()> {
    let mut out = Stdout::new();
    out.write_all(text.as_bytes()).context(CANNOT_PRINT)?;
    out.finish()
}

/// Writes a whole file through `write`. A file that could not be completed is not left behind.
pub fn write_file(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> anyhow::Result<()> {
    let attempt = || -> io::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        write(&mut file)?;
        file.flush()
    };
    attempt().map_err(|error| {
        // Only what we created and could not finish; never a device or a folder that was there before.
        if path.is_file() && error.kind() != ErrorKind::PermissionDenied {
            let _ = std::fs::remove_file(path);
        }
        anyhow::anyhow!(
            "'{}' could not be written ({error}); free some space or choose another place",
            path.display()
        )
    })
}

/// Whether the error is that the reader of our output went away.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<io::Error>()
            .is_some_and(|e| e.kind() == ErrorKind::BrokenPipe)
    })
}

/// Bytes for people: `4.8 MiB`.
pub fn bytes(count: u64) -> String {
    let count = count as f64;
    match count {
        c if c < 1024.0 => format!("{c} bytes"),
        c if c < 1024.0 * 1024.0 => format!("{:.1} KiB", c / 1024.0),
        c if c < 1024.0 * 1024.0 * 1024.0 => format!("{:.1} MiB", c / 1048576.0),
        c => format!("{:.2} GiB", c / 1073741824.0),
    }
}

/// Counts for people: `12,345`.
pub fn count(number: usize) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people() {
        assert_eq!(count(7), "7");
        assert_eq!(count(1234567), "1,234,567");
        assert_eq!(bytes(512), "512 bytes");
        assert_eq!(bytes(5 << 20), "5.0 MiB");
    }
}
