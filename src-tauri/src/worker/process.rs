//! How the worker ended, or why it could not be started, in one sentence.

use std::io;
use std::path::Path;
use std::process::ExitStatus;

use kept_engine::kernels::OUT_OF_MEMORY;

/// The exit code of the worker after a GPU error (`worker/src/main.rs`).
const GPU_LOST: i32 = 71;

/// Why the worker cannot be started, in one sentence that names the program and the environment variable `variable`
/// that can name another program.
pub fn cannot_start(program: &Path, variable: &str, error: &io::Error) -> String {
    let why = match error.kind() {
        io::ErrorKind::NotFound => "there is no such file".to_owned(),
        io::ErrorKind::PermissionDenied => "it may not be run by this user".to_owned(),
        _ => error.to_string(),
    };
    format!(
        "The engine ({}) could not be started: {why}. Install Kept again, or set {variable} to the program, then start it again.",
        program
            .file_name()
            .unwrap_or(program.as_os_str())
            .to_string_lossy()
    )
}

/// How the worker ended, in one sentence. `last_words` is the last line of its log.
pub fn ending(status: ExitStatus, last_words: Option<&str>) -> String {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return match signal {
            9 => "The engine crashed, probably because memory ran out (signal 9).".to_owned(),
            1 | 2 | 15 => format!("Another program stopped the engine (signal {signal})."),
            4 => "The engine used an instruction this processor does not have (signal 4); set KEPT_SIMD=scalar.".to_owned(),
            7 => "The engine crashed, perhaps because the disk of a file it was reading was removed (signal 7).".to_owned(),
            _ => format!("The engine crashed (signal {signal})."),
        };
    }
    if status.code() == Some(GPU_LOST) {
        return "The GPU failed, and the engine stopped.".to_owned();
    }
    if status.code() == Some(OUT_OF_MEMORY) {
        return "The engine ran out of memory and stopped: close other programs, choose a smaller budget, or set a memory limit in Settings.".to_owned();
    }
    let code = status
        .code()
        .map_or("without a code".to_owned(), |code| format!("code {code}"));
    match last_words.filter(|_| !status.success()) {
        Some(words) => format!("The engine stopped unexpectedly ({code}: {words})."),
        None => format!("The engine stopped unexpectedly ({code})."),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn a_window_knows_no_flags_where_memory_was_refused() {
        let said = ending(ExitStatus::from_raw(OUT_OF_MEMORY << 8), Some("error: ..."));
        assert!(
            said.contains("out of memory") && said.contains("in Settings"),
            "{said}"
        );
        assert!(!said.contains("--"), "{said}");
        let status = ExitStatus::from_raw(1 << 8);
        assert!(ending(status, Some("another word")).contains("code 1: another word"));
    }
}
