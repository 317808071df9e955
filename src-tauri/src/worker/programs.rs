//! The programs that the engine's process can be: the plain one, and one for GPUs beside it. Which of them is started, with
//! which words, and asking the second which GPUs there are.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use kept_engine::protocol::Gpus;
use tokio::process::Command;

use super::process::cannot_start;

/// The variable that names another program.
pub const PROGRAM_VARIABLE: &str = "KEPT_WORKER";
/// The variable that names another program for GPUs.
pub const GPU_PROGRAM_VARIABLE: &str = "KEPT_WORKER_CUDA";
/// A driver that has not answered by then is not going to.
const LOOKING: Duration = Duration::from_secs(10);

/// See the head of this file.
#[derive(Debug, Clone)]
pub struct Programs {
    plain: PathBuf,
    /// `None` where there is none: then there is no way to a GPU.
    gpu: Option<PathBuf>,
}

/// A program and its words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
}

impl Programs {
    /// Those beside this program, or what the variables name.
    pub fn here() -> Self {
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

    /// `plain`, and `gpu` for GPUs.
    pub fn new(plain: PathBuf, gpu: Option<PathBuf>) -> Self {
        Self { plain, gpu }
    }

    /// What to start where `device` is wanted (as in the settings) and `gpus` were found.
    pub fn start(&self, device: Option<&str>, gpus: &Gpus) -> Start {
        let (program, device) = match (device, &self.gpu) {
            (None, Some(gpu)) if !gpus.gpus.is_empty() => (gpu, Some("auto")),
            (None | Some("cpu"), _) => (&self.plain, None),
            // A GPU that is not there, or that nothing could use, is refused by the engine: nothing else is taken for it.
            (Some(named), gpu) => (gpu.as_ref().unwrap_or(&self.plain), Some(named)),
        };
        let words = device.map(|device| ["--device".to_owned(), device.to_owned()]);
        Start {
            program: program.clone(),
            arguments: words.into_iter().flatten().collect(),
        }
    }

    /// The GPUs that there are now, or why there is none.
    pub async fn look(&self) -> Gpus {
        let Some(program) = &self.gpu else {
            return none("this Kept has no engine for GPUs (kept-worker-cuda) beside it");
        };
        let asked = Command::new(program)
            .arg("--gpus")
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .output();
        match tokio::time::timeout(LOOKING, asked).await {
            Ok(Ok(output)) => serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
                tracing::warn!(%error, status = %output.status, "the engine for GPUs did not say which there are");
                none("the engine for GPUs did not say which there are")
            }),
            Ok(Err(error)) => none(&cannot_start(program, GPU_PROGRAM_VARIABLE, &error)),
            Err(_) => none("the driver of the GPU did not answer"),
        }
    }
}

/// The plain program alone.
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
    /// The variable that names another program in the place of this one.
    pub fn variable(&self, programs: &Programs) -> &'static str {
        match programs.gpu.as_ref() == Some(&self.program) {
            true => GPU_PROGRAM_VARIABLE,
            false => PROGRAM_VARIABLE,
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
            // Refused there in a sentence, not silently another device.
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
            ("/bin/true", "did not say which there are"),
            ("/no/such/program", "could not be started"),
        ] {
            let programs = Programs::new("plain".into(), Some(program.into()));
            let gpus = programs.look().await;
            assert!(gpus.gpus.is_empty());
            assert!(
                gpus.why_none.is_some_and(|why| why.contains(says)),
                "{program}"
            );
        }
        let gpus = Programs::from(PathBuf::from("plain")).look().await;
        assert!(
            gpus.why_none
                .is_some_and(|why| why.contains("kept-worker-cuda"))
        );
    }
}
