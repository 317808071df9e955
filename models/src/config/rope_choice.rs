//! A context extension, as users write it.

use std::fmt;
use std::str::FromStr;

/// A context extension that the user requests: `yarn:4`, `linear:2`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeChoice {
    /// YaRN with this factor.
    Yarn(f64),
    /// Linear scaling with this factor.
    Linear(f64),
}

impl FromStr for RopeChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<RopeChoice, String> {
        let wrong = || format!("{text:?} is not a RoPE scaling; write yarn:4 or linear:2");
        let (kind, factor) = text.split_once(':').ok_or_else(wrong)?;
        let factor = factor
            .parse::<f64>()
            .ok()
            .filter(|f| (1.0..=64.0).contains(f) && *f > 1.0);
        let factor =
            factor.ok_or_else(|| format!("{text:?}: the factor is a number above 1, up to 64"))?;
        match kind {
            "yarn" => Ok(RopeChoice::Yarn(factor)),
            "linear" => Ok(RopeChoice::Linear(factor)),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for RopeChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RopeChoice::Yarn(factor) => write!(f, "yarn:{factor}"),
            RopeChoice::Linear(factor) => write!(f, "linear:{factor}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rope_choice_round_trips_through_text() {
        for text in ["yarn:4", "linear:2.5"] {
            assert_eq!(text.parse::<RopeChoice>().unwrap().to_string(), text);
        }
        for text in [
            "yarn",
            "yarn:",
            "yarn:1",
            "yarn:-2",
            "yarn:nan",
            "ntk:4",
            "linear:65",
        ] {
            assert!(text.parse::<RopeChoice>().is_err(), "{text}");
        }
    }
}
