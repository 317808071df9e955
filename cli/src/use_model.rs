//! `kept models use`: chooses the default model.

use anyhow::Context;
use kept_engine::MINI;
use kept_engine::models::Model;
use kept_engine::models::gguf::Header;
use kept_hub::{AUTO, Finder, ModelChoice, Preferred, PreferredBy};
use serde_json::json;

use crate::arguments::UseArguments;
use crate::model::{model_path, preferred, reason};
use crate::output;

pub fn run(arguments: &UseArguments) -> anyhow::Result<()> {
    let choice = ModelChoice::from_env();
    match arguments.name.as_deref() {
        Some(AUTO) => drop(choice.clear()?),
        None if arguments.clear => drop(choice.clear()?),
        None => {}
        Some(name) => choice.set(&storable_name(name)?)?,
    }
    let Preferred { name, path, by } = preferred()?;
    if arguments.json {
        return output::print_json(&json!({
            "model": name,
            "path": path.map(|path| path.display().to_string()),
            "why": match by {
                PreferredBy::Choice => "chosen",
                PreferredBy::Size => "best",
                PreferredBy::Nothing => "in the box",
            },
        }));
    }
    output::print_text(&output::printable(&format!("{name}: {}\n", reason(by))))
}

/// The form of `name` to store, which refers to the same model from every folder. A model that cannot be opened is
/// refused now instead of at the next question.
fn storable_name(name: &str) -> anyhow::Result<String> {
    let path = model_path(name)?;
    if name == MINI {
        return Ok(MINI.to_owned());
    }
    let supported = Header::read(&path).and_then(|header| header.supported);
    // Opening checks the tensors too.
    supported
        .and_then(|()| Model::open(&path).map(drop))
        .with_context(|| format!("'{name}' cannot be chosen"))?;
    Ok(Finder::from_env()?.name_of(&path))
}
