//! Runs `kept` as a user or a script does: arguments in; standard output, standard error and an exit code out.

use std::ffi::OsStr;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

/// The `kept` under test: `$KEPT_BIN` if set (for example an installed one), otherwise built next to this test.
///
/// Cargo builds only the programs of a test's own package, so this function runs `cargo build`. That takes no time when
/// nothing changed, and a stale program is never tested. It builds the whole workspace so that features unify as in
/// `cargo test`.
pub fn program() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        if let Some(given) = std::env::var_os("KEPT_BIN") {
            return given.into();
        }
        // target/<profile>/deps/<this test>
        let this = std::env::current_exe().expect("the path of this test");
        let profile_folder = this
            .ancestors()
            .nth(2)
            .expect("a test lies in target/<profile>/deps");
        let profile = match profile_folder.file_name().and_then(OsStr::to_str) {
            Some("debug") | None => "dev",
            Some(named) => named,
        };
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        // Remove cargo's variables of this package. A dependency's build script that reads one of them would rerun, and
        // everything that depends on it would be recompiled, in this build and in the next manual one.
        let of_this_package = |name: &OsStr| {
            name.to_str().is_some_and(|name| {
                name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
            })
        };
        for (name, _) in std::env::vars_os().filter(|(name, _)| of_this_package(name)) {
            cargo.env_remove(name);
        }
        let built = cargo
            .args(["build", "--quiet", "--workspace", "--bins", "--profile"])
            .arg(profile)
            .arg("--target-dir")
            .arg(profile_folder.parent().expect("target"))
            .current_dir(crate::golden::repository())
            .status()
            .expect("cargo runs");
        assert!(built.success(), "kept does not build");
        let program = profile_folder.join(format!("kept{}", std::env::consts::EXE_SUFFIX));
        assert!(
            program.exists(),
            "{} was not built; set KEPT_BIN to the program to test",
            program.display()
        );
        program
    })
}

/// Result of a `kept` run.
#[derive(Debug)]
pub struct Run {
    /// The arguments, for failure messages.
    pub arguments: String,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Exit code; `None` if a signal ended it.
    pub code: Option<i32>,
}

/// Longer than any run of the tests takes, even on a slow and busy machine; a longer run hangs.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Runs `kept` with `arguments`, without a terminal and without settings from the test's environment.
pub fn kept<I, S>(arguments: I) -> Run
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    // Never the user's vault folder.
    let vaults = tempfile::tempdir().expect("a temporary folder");
    kept_in(vaults.path(), arguments)
}

/// [`kept`] with vaults in a persistent folder.
pub fn kept_in<I, S>(vaults: &Path, arguments: I) -> Run
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    // An empty home: no model on this computer is found, and no user setting applies.
    let home = tempfile::tempdir().expect("a temporary folder");
    let mut command = crate::hub::at_home(home.path());
    command.args(arguments).env("KEPT_VAULTS", vaults);
    for name in ["KEPT_SIMD", "KEPT_ASSETS"] {
        command.envs(std::env::var_os(name).map(|value| (name, value)));
    }
    run(command)
}

/// [`kept_in`] with `input` on its standard input.
pub fn kept_with_input<I, S>(vaults: &Path, arguments: I, input: impl AsRef<[u8]>) -> Run
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(input.as_ref()).expect("written");
    file.rewind().expect("rewound");
    let home = tempfile::tempdir().expect("a temporary folder");
    let mut command = crate::hub::at_home(home.path());
    command.args(arguments).env("KEPT_VAULTS", vaults);
    run_reading(command, file.into())
}

/// Runs a command to completion, without a terminal and with an empty input.
pub fn run(command: Command) -> Run {
    run_reading(command, Stdio::null())
}

fn run_reading(mut command: Command, input: Stdio) -> Run {
    command
        .stdin(input)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let arguments = (command.get_args())
        .map(|a| a.to_string_lossy().chars().take(60).collect::<String>())
        .collect::<Vec<_>>()
        .join(" ");
    let mut child = command.spawn().expect("kept starts");
    let stdout = read_to_end(child.stdout.take());
    let stderr = read_to_end(child.stderr.take());
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("kept is waited for") {
            break status;
        }
        if started.elapsed() > TIMEOUT {
            child.kill().expect("kept is stopped");
            panic!("kept {arguments} hangs: stopped after {TIMEOUT:?}");
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let text = |reader: JoinHandle<Vec<u8>>| {
        String::from_utf8(reader.join().expect("output is read")).expect("output is UTF-8")
    };
    Run {
        stdout: text(stdout),
        stderr: text(stderr),
        arguments,
        code: status.code(),
    }
}

/// Reads a pipe on a separate thread, so that neither pipe fills up and blocks the process.
fn read_to_end(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    let mut pipe = pipe.expect("a pipe");
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).expect("output is read");
        bytes
    })
}

impl Run {
    /// Asserts success and returns standard output as one JSON value.
    #[track_caller]
    pub fn json(&self) -> Value {
        self.succeeded();
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|e| panic!("kept {}: {e} in {:?}", self.arguments, self.stdout))
    }

    /// Asserts success and returns one JSON value per line of standard output.
    #[track_caller]
    pub fn json_lines(&self) -> Vec<Value> {
        self.succeeded();
        let line = |text: &str| {
            serde_json::from_str(text)
                .unwrap_or_else(|e| panic!("kept {}: {e} in {text:?}", self.arguments))
        };
        self.stdout.lines().map(line).collect()
    }

    /// Asserts exit code 0.
    #[track_caller]
    pub fn succeeded(&self) -> &Self {
        assert_eq!(
            self.code,
            Some(0),
            "kept {} failed: {}",
            self.arguments,
            self.stderr
        );
        self
    }

    /// Asserts a user-visible refusal: a non-zero exit code, nothing on standard output, and on standard error one line
    /// that starts with `error: ` and contains every string of `says` (ignoring case). Returns that line.
    #[track_caller]
    pub fn refused(&self, says: &[&str]) -> &str {
        let Self {
            arguments,
            stdout,
            stderr,
            code,
        } = self;
        let code = code.unwrap_or_else(|| panic!("kept {arguments} was killed: {stderr}"));
        assert_ne!(
            code, 0,
            "kept {arguments} was expected to refuse, but said {stdout:?}"
        );
        assert!(
            !stderr.contains("panicked") && !stderr.contains("has a bug") && code != 101,
            "kept {arguments} panicked: {stderr}"
        );
        assert_eq!(
            stderr.trim_end().lines().count(),
            1,
            "kept {arguments} says one line: {stderr}"
        );
        let line = stderr.trim_end();
        assert!(
            line.starts_with("error: "),
            "kept {arguments} starts with 'error: ': {line}"
        );
        assert!(
            stdout.is_empty(),
            "kept {arguments} refuses without an answer: {stdout}"
        );
        let lower = line.to_lowercase();
        for word in says {
            assert!(
                lower.contains(&word.to_lowercase()),
                "kept {arguments} mentions {word:?}: {line}"
            );
        }
        line
    }
}

/// By how many bytes the resident pages of one program vary with how the system has cached its file: between 16.0 and
/// 19.5 MiB were measured, the most right after it was linked.
pub const CODE_VARIES: u64 = 4 << 20;

/// Asserts that a process whose memory peaked at `peak` bytes was expected to peak at `expected`: beside what its code
/// varies by, it takes at most a fiftieth more, and at most a tenth less.
#[track_caller]
pub fn assert_peak(expected: f64, peak: f64, what: &str) {
    let code = CODE_VARIES as f64;
    let met = peak <= 1.02 * expected + code && expected - peak < 0.1 * peak + code;
    assert!(met, "{what}: {expected} expected, {peak} measured");
}
