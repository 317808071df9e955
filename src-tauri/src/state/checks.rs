//! Checks of what the user sets, as far as possible without a document.

use kept_engine::AUTO;
use kept_engine::models::RopeChoice;
use kept_engine::policies::{self, Budget};

use crate::contract::{Choice, Parameters, Refusal, RefusalCode};
use crate::messages::{self, as_sentence};

/// Maximum setting for the longest answer, in tokens.
pub const MAX_ANSWER_TOKENS: usize = 32_768;
/// Maximum length of instructions, in characters.
pub const MAX_INSTRUCTION_CHARS: usize = 4_000;
/// Valid temperatures.
pub const TEMPERATURE: std::ops::RangeInclusive<f64> = 0.0..=2.0;
/// Valid text sizes, in percent.
pub const ZOOM: std::ops::RangeInclusive<u16> = 50..=300;

/// Parses the budget as typed by the user: empty is the default budget.
pub fn parse_budget(budget: Option<&str>) -> Result<Option<Budget>, String> {
    let why = |error: policies::PolicyError| as_sentence(&error.to_string());
    budget.map(|text| text.parse().map_err(why)).transpose()
}

/// Whether the method exists and takes these parameters.
pub fn check_method(method: &str, parameters: &Parameters) -> Result<(), Refusal> {
    // `auto` has no parameters.
    if method == AUTO && parameters.is_empty() {
        return Ok(());
    }
    policies::build(method, &assigned(parameters))
        .map(drop)
        .map_err(|error| Refusal {
            message: messages::method(&error),
            code: (error.parameter()).map(|name| RefusalCode::Parameter {
                name: name.to_owned(),
            }),
        })
}

/// Checks a method and budget, as far as possible without a document.
pub fn check_choice(choice: &Choice) -> Result<(), Refusal> {
    check_method(&choice.method, &choice.parameters)?;
    Ok(parse_budget(choice.budget.as_deref()).map(drop)?)
}

/// Checks a RoPE scaling, as far as possible without a model.
pub fn check_stretch(stretch: Option<&str>) -> Result<(), String> {
    match stretch.map(str::parse::<RopeChoice>) {
        Some(Err(why)) => Err(as_sentence(&why)),
        _ => Ok(()),
    }
}

/// Parameters in the form of the engine's protocol.
pub fn assigned(parameters: &Parameters) -> Vec<(String, String)> {
    parameters.clone().into_iter().collect()
}
