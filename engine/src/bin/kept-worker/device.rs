//! What computes: what the command line says of it, which cards there are, and a model put where it fits.

use std::process::ExitCode;
use std::sync::OnceLock;

use kept_engine::protocol::Cards;
use kept_engine::{ComputeDevice, Engine, fitting_card, graphics_cards};

/// What the program was started for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// To answer a window.
    Serve,
    /// `--cards`: to say which graphics cards there are, as one line of JSON ([`Cards`]), and to end.
    SayCards,
}

/// What `--device` said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// `auto`: a graphics card for each model that fits one, the processor for the others.
    Auto,
    /// This one and no other.
    Named(ComputeDevice),
}

static WANTED: OnceLock<Wanted> = OnceLock::new();

/// Reads the command line: `--device auto|cpu|cuda:N`, or `--cards` alone.
///
/// # Errors
/// What of it is not known, in a sentence.
pub fn read_arguments(mut arguments: impl Iterator<Item = String>) -> Result<Task, String> {
    while let Some(argument) = arguments.next() {
        match (argument.as_str(), arguments.next()) {
            ("--cards", None) if WANTED.get().is_none() => return Ok(Task::SayCards),
            ("--device", Some(device)) => {
                if WANTED.set(wanted(&device)?).is_err() {
                    return Err("--device is given once".to_owned());
                }
            }
            _ => {
                return Err(format!(
                    "{argument} is not known; it takes --device auto|cpu|cuda:N, or --cards alone"
                ));
            }
        }
    }
    Ok(Task::Serve)
}

fn wanted(device: &str) -> Result<Wanted, String> {
    match device {
        "auto" => Ok(Wanted::Auto),
        named => (named.parse().map(Wanted::Named)).map_err(|error| format!("{error}")),
    }
}

/// Says on standard output which graphics cards there are.
pub fn say_cards() -> ExitCode {
    let (cards, why_none) = match graphics_cards() {
        Ok(cards) => (cards, None),
        Err(why) => (Vec::new(), Some(why)),
    };
    match serde_json::to_string(&Cards { cards, why_none }) {
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

/// The engine where it is to compute; and, where a card was looked for in vain, why that is the processor.
///
/// # Errors
/// Why it cannot be on the device that was named, in a sentence.
pub fn place(engine: Engine) -> Result<(Engine, Option<String>), String> {
    match WANTED.get() {
        None => Ok((engine, None)),
        Some(Wanted::Named(device)) => {
            let placed = engine.on(*device).map_err(|error| error.to_string())?;
            Ok((placed, None))
        }
        Some(Wanted::Auto) => {
            let weights = engine.model().weights_bytes();
            let found = graphics_cards().and_then(|cards| fitting_card(&cards, weights));
            let placed = found
                .and_then(|device| (engine.clone().on(device)).map_err(|error| error.to_string()));
            Ok(match placed {
                Ok(placed) => (placed, None),
                Err(why) => (engine, Some(why)),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_taken_by_name_and_nonsense_is_refused_with_what_there_is() {
        assert_eq!(wanted("auto"), Ok(Wanted::Auto));
        assert_eq!(wanted("cpu"), Ok(Wanted::Named(ComputeDevice::Cpu)));
        assert_eq!(wanted("cuda:1"), Ok(Wanted::Named(ComputeDevice::Cuda(1))));
        assert!(wanted("gpu").is_err_and(|why| why.contains("cuda:0")));
        let read = |words: &[&str]| read_arguments(words.iter().map(|w| (*w).to_owned()));
        assert_eq!(read(&[]), Ok(Task::Serve));
        assert_eq!(read(&["--cards"]), Ok(Task::SayCards));
        for words in [&["--cards", "now"][..], &["--device"], &["--fast", "x"]] {
            let refusal = read(words).expect_err("nonsense");
            assert!(refusal.contains("--device auto|cpu|cuda:N"), "{refusal}");
        }
    }
}
