//! Compute devices: the command line, the list of GPUs, the processor's speed, and the placement of a model on a device.

use std::process::ExitCode;
use std::sync::OnceLock;

use kept_engine::backend::Gpus as _;
use kept_engine::kernels::product_rate;
use kept_engine::{ComputeDevice, Engine};
use kept_engine_cuda::CudaGpus;
use kept_worker::protocol::{Gpus, Speed};

/// The mode that the command line selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Serve the app.
    Serve,
    /// `--gpus`: print the GPUs as one line of JSON ([`Gpus`]) and exit.
    PrintGpus,
    /// `--speed`: measure the processor, print one line of JSON ([`Speed`]) and exit.
    PrintSpeed,
}

static CHOSEN: OnceLock<ComputeDevice> = OnceLock::new();

/// Parses the command line: `--device auto|cpu|cuda:N`, or `--gpus` or `--speed` alone.
///
/// # Errors
/// An unknown argument or value, in one sentence.
pub fn read_arguments(mut arguments: impl Iterator<Item = String>) -> Result<Task, String> {
    while let Some(argument) = arguments.next() {
        match (argument.as_str(), arguments.next()) {
            ("--gpus", None) if CHOSEN.get().is_none() => return Ok(Task::PrintGpus),
            ("--speed", None) if CHOSEN.get().is_none() => return Ok(Task::PrintSpeed),
            ("--device", Some(device)) => {
                if CHOSEN.set(parse_device(&device)?).is_err() {
                    return Err("--device is given once".to_owned());
                }
            }
            _ => {
                return Err(format!(
                    "{argument} is not known; it takes --device auto|cpu|cuda:N, or --gpus or --speed alone"
                ));
            }
        }
    }
    Ok(Task::Serve)
}

fn parse_device(device: &str) -> Result<ComputeDevice, String> {
    device.parse().map_err(|error| format!("{error}"))
}

/// Prints the GPUs on standard output.
pub fn print_gpus() -> ExitCode {
    let (gpus, why_none) = match CudaGpus.list() {
        Ok(gpus) => (gpus, None),
        Err(why) => (Vec::new(), Some(why)),
    };
    print_line(&Gpus { gpus, why_none })
}

/// Measures the processor and prints its speed on standard output.
pub fn print_speed() -> ExitCode {
    match product_rate() {
        Ok(product_rate) => print_line(&Speed { product_rate }),
        Err(error) => {
            eprintln!("kept-worker: {error}");
            ExitCode::FAILURE
        }
    }
}

fn print_line(what: &impl serde::Serialize) -> ExitCode {
    match serde_json::to_string(what) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("kept-worker: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The engine on the chosen device; and, where no GPU could be used, the reason for the CPU.
///
/// # Errors
/// Why the engine cannot use the named device, in one sentence.
pub fn on_chosen_device(engine: Engine) -> Result<(Engine, Option<String>), String> {
    match CHOSEN.get() {
        None => Ok((engine, None)),
        Some(choice) => engine
            .placed(choice.clone(), &CudaGpus)
            .map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_arguments_are_parsed_or_refused() {
        assert_eq!(parse_device("auto"), Ok(ComputeDevice::Auto));
        assert_eq!(parse_device("cpu"), Ok(ComputeDevice::Cpu));
        let second = ComputeDevice::Gpu("cuda:1".to_owned());
        assert_eq!(parse_device("cuda:1"), Ok(second));
        assert!(parse_device("GPU").is_err_and(|why| why.contains("cuda:0")));
        let read = |words: &[&str]| read_arguments(words.iter().map(|w| (*w).to_owned()));
        assert_eq!(read(&[]), Ok(Task::Serve));
        assert_eq!(read(&["--gpus"]), Ok(Task::PrintGpus));
        assert_eq!(read(&["--speed"]), Ok(Task::PrintSpeed));
        for words in [&["--gpus", "now"][..], &["--device"], &["--fast", "x"]] {
            let refusal = read(words).expect_err("nonsense");
            assert!(refusal.contains("--device auto|cpu|cuda:N"), "{refusal}");
        }
    }
}
