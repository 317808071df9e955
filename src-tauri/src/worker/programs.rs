//! The worker programs: the plain one, and one for GPUs in the same folder. Decides which one is started with which
//! arguments, and asks them for the GPUs of this computer and the speed of its processor.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use kept_worker::protocol::{Gpus, Speed};
use serde::de::DeserializeOwned;
use tokio::process::{Child, Command};

use super::process::cannot_start;

/// The environment variable that names another worker program.
pub const PROGRAM_VARIABLE: &str = "KEPT_WORKER";
/// The environment variable that names another worker program for GPUs.
pub const GPU_PROGRAM_VARIABLE: &str = "KEPT_WORKER_CUDA";
/// Time limit for the GPU driver to answer, and for measuring the processor.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// See the module documentation.
#[derive(Debug, Clone)]
pub struct Programs {
    plain: PathBuf,
    /// `None` if there is no program for GPUs: no GPU can be used then.
    gpu: Option<PathBuf>,
}

/// A program and its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
}

impl Programs {
    /// The programs in the folder of this program, or those named by the environment variables.
    pub fn installed() -> Self {
        let beside = |name: &str| {
            let name = format!("{name}{}", std::env::consts::EXE_SUFFIX);
            match std::env::current_exe() {
                Ok(this) => this.with_file_name(name),
                Err(_) => name.into(),
            }
        };
        let named = |variable: &str| std::env::var_os(variable).filter(|name| !name.is_empty());
        let gpu = || Some(beside("kept-worker-cuda")).filter(|program| program.exists());
        Self {
            plain: named(PROGRAM_VARIABLE).map_or_else(|| beside("kept-worker"), PathBuf::from),
            gpu: named(GPU_PROGRAM_VARIABLE).map(PathBuf::from).or_else(gpu),
        }
    }

    /// Creates it from the program `plain` and the program `gpu` for GPUs.
    pub fn new(plain: PathBuf, gpu: Option<PathBuf>) -> Self {
        Self { plain, gpu }
    }

    /// The program to start for `device` (as in the settings) and the detected `gpus`.
    pub fn start(&self, device: Option<&str>, gpus: &Gpus) -> Start {
        let (program, device) = match (device, &self.gpu) {
            (None, Some(gpu)) if !gpus.gpus.is_empty() => (gpu, Some("auto")),
            (None | Some("cpu"), _) => (&self.plain, None),
            // The engine refuses a missing or unusable GPU; no other device is substituted.
            (Some(named), gpu) => (gpu.as_ref().unwrap_or(&self.plain), Some(named)),
        };
        let words = device.map(|device| ["--device".to_owned(), device.to_owned()]);
        Start {
            program: program.clone(),
            arguments: words.into_iter().flatten().collect(),
        }
    }

    /// Measures the speed of the processor, in about a second; `None` if that fails.
    pub async fn measure_speed(&self) -> Option<Speed> {
        let speed = ask_once(&self.plain, "--speed").await;
        speed
            .inspect_err(|why| tracing::warn!(?why, "the processor was not measured"))
            .ok()
    }

    /// Detects the GPUs, or the reason why there is none.
    pub async fn detect_gpus(&self) -> Gpus {
        let Some(program) = &self.gpu else {
            return none("this build of Kept has no GPU support");
        };
        match ask_once(program, "--gpus").await {
            Ok(gpus) => gpus,
            Err(NoAnswer::NotStarted(error)) => {
                none(&cannot_start(program, GPU_PROGRAM_VARIABLE, &error))
            }
            Err(NoAnswer::TooLate) => none("the GPU driver did not answer"),
            Err(why @ NoAnswer::NotUnderstood { .. }) => {
                tracing::warn!(?why, "the engine for GPUs did not list them");
                none("the engine for GPUs did not list the GPUs")
            }
        }
    }
}

/// Why a program did not answer a question on its command line.
#[derive(Debug)]
enum NoAnswer {
    NotStarted(io::Error),
    TooLate,
    // Read by Debug, for the log.
    #[expect(dead_code)]
    NotUnderstood {
        error: serde_json::Error,
        status: ExitStatus,
    },
}

/// The line of JSON that `program` prints for `argument`.
async fn ask_once<T: DeserializeOwned>(program: &Path, argument: &str) -> Result<T, NoAnswer> {
    let asked = Command::new(program)
        .arg(argument)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .output();
    let asked = tokio::time::timeout(PROBE_TIMEOUT, asked);
    let output = asked.await.map_err(|_| NoAnswer::TooLate)?;
    let output = output.map_err(NoAnswer::NotStarted)?;
    serde_json::from_slice(&output.stdout).map_err(|error| NoAnswer::NotUnderstood {
        error,
        status: output.status,
    })
}

/// Only the plain program.
impl From<PathBuf> for Programs {
    fn from(plain: PathBuf) -> Self {
        Self::new(plain, None)
    }
}

fn none(why: &str) -> Gpus {
    Gpus {
        gpus: Vec::new(),
        why_none: Some(why.to_owned()),
    }
}

impl Start {
    /// Starts the worker. It ends when its stdin is closed, and at the latest when the handle is dropped.
    pub fn spawn(&self) -> io::Result<Child> {
        Command::new(&self.program)
            .args(&self.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
    }

    /// The environment variable that names another program in place of this one.
    pub fn variable(&self, programs: &Programs) -> &'static str {
        if programs.gpu.as_ref() == Some(&self.program) {
            GPU_PROGRAM_VARIABLE
        } else {
            PROGRAM_VARIABLE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kept_engine::Gpu;
    use std::path::Path;

    fn one() -> Gpus {
        Gpus {
            gpus: vec![Gpu {
                device: "cuda:0".into(),
                name: "NVIDIA RTX 4090".into(),
                capability: "8.9".into(),
                memory: 24 << 30,
                free: 22 << 30,
            }],
            why_none: None,
        }
    }

    #[test]
    fn the_program_for_gpus_is_started_where_there_is_a_gpu_and_where_one_is_named() {
        let both = Programs::new("plain".into(), Some("gpu".into()));
        let plain = Programs::from(PathBuf::from("plain"));
        let none = none("there is none");
        for (programs, device, gpus, program, words) in [
            (&both, None, &one(), "gpu", &["--device", "auto"][..]),
            (&both, None, &none, "plain", &[]),
            (&both, Some("cpu"), &one(), "plain", &[]),
            (
                &both,
                Some("cuda:0"),
                &one(),
                "gpu",
                &["--device", "cuda:0"],
            ),
            // The engine refuses the GPU with a sentence; no other device is substituted silently.
            (&both, Some("cuda:0"), &none, "gpu", &["--device", "cuda:0"]),
            (
                &plain,
                Some("cuda:0"),
                &none,
                "plain",
                &["--device", "cuda:0"],
            ),
            (&plain, None, &none, "plain", &[]),
        ] {
            let start = programs.start(device, gpus);
            assert_eq!(start.program, Path::new(program), "{device:?}");
            assert_eq!(start.arguments, words, "{device:?}");
        }
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_program_that_says_nothing_of_gpus_is_as_good_as_none() {
        for (program, says) in [
            ("/bin/true", "did not list the GPUs"),
            ("/no/such/program", "could not be started"),
        ] {
            let programs = Programs::new("plain".into(), Some(program.into()));
            let gpus = programs.detect_gpus().await;
            assert!(gpus.gpus.is_empty());
            assert!(
                gpus.why_none.is_some_and(|why| why.contains(says)),
                "{program}"
            );
        }
        let gpus = Programs::from(PathBuf::from("plain")).detect_gpus().await;
        assert!(
            gpus.why_none
                .is_some_and(|why| why.contains("no GPU support"))
        );
    }
}
