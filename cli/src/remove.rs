//! `kept models remove`: removes a model from the hub's cache, or the partial files of unfinished downloads.

use std::io::IsTerminal;
use std::path::PathBuf;

use kept_hub::{Finder, FoundModel, HubCache, HubError, Place, is_same_file};
use serde_json::json;

use crate::arguments::RemoveModelArguments;
use crate::output::{self, bytes};

/// A file to be removed.
struct Doomed {
    name: String,
    path: PathBuf,
    bytes: u64,
}

pub fn run(arguments: &RemoveModelArguments) -> anyhow::Result<()> {
    let finder = Finder::from_env()?;
    let doomed = if arguments.unfinished {
        unfinished(&finder, arguments.name.as_deref())?
    } else {
        vec![model(
            &finder,
            arguments.name.as_deref().unwrap_or_default(),
        )?]
    };
    if !arguments.yes && !confirm(&doomed)? {
        output::say("nothing is removed\n");
        return Ok(());
    }
    let cache: &HubCache = finder.cache();
    let (mut removed, mut freed) = (Vec::new(), 0);
    for one in doomed {
        freed += if arguments.unfinished {
            cache.remove_partial(&one.path)?
        } else {
            cache.remove(&one.path)?
        };
        removed.push(one.name);
    }
    if arguments.json {
        return output::print_json(&json!({"removed": removed, "freed_bytes": freed}));
    }
    output::print_text(&output::printable(&format!(
        "removed {}; {} are free again\n",
        removed.join(", "),
        bytes(freed)
    )))
}

fn model(finder: &Finder, name: &str) -> anyhow::Result<Doomed> {
    anyhow::ensure!(
        name != kept_engine::MINI,
        "mini is the built-in model; it stays"
    );
    let path = finder.choose(name)?;
    let models = finder.find().models;
    let is_it = |model: &&FoundModel| is_same_file(&model.path, &path);
    let Some(model) = models.iter().find(is_it) else {
        return Err(HubError::NotOurs(path.display().to_string()).into());
    };
    anyhow::ensure!(
        model.place == Place::HubCache,
        "'{}' is a model of {}; Kept removes only what lies in the hub's cache: remove it there ({})",
        model.name,
        match model.place {
            Place::Folder => "a folder of yours",
            Place::Kept => "the folder that `make models` fills",
            place => place.name(),
        },
        model.path.display()
    );
    Ok(Doomed {
        name: model.name.clone(),
        path: model.path.clone(),
        bytes: model.bytes,
    })
}

fn unfinished(finder: &Finder, name: Option<&str>) -> anyhow::Result<Vec<Doomed>> {
    let all = finder.find().unfinished;
    let ours = all.into_iter().filter(|one| {
        let of_cache = finder.cache().partial_of(&one.path).is_some();
        of_cache && name.is_none_or(|name| name.eq_ignore_ascii_case(&one.name))
    });
    let doomed: Vec<Doomed> = ours
        .map(|one| Doomed {
            name: one.name,
            path: one.path,
            bytes: one.bytes.unwrap_or(0),
        })
        .collect();
    match name {
        _ if !doomed.is_empty() => Ok(doomed),
        Some(name) => anyhow::bail!(
            "nothing of '{name}' is unfinished in the hub's cache; kept models list shows what is"
        ),
        None => anyhow::bail!("nothing is unfinished in the hub's cache"),
    }
}

/// Asks the user once for confirmation. Without a terminal the answer is no.
fn confirm(doomed: &[Doomed]) -> anyhow::Result<bool> {
    let names: Vec<String> = doomed
        .iter()
        .map(|one| format!("{} ({})", one.name, bytes(one.bytes)))
        .collect();
    let what = names.join(", ");
    anyhow::ensure!(
        std::io::stdin().is_terminal(),
        "remove {what}? There is no terminal to ask in; add --yes to remove it"
    );
    output::say(&output::printable(&format!(
        "remove {what} for good? [y/N] "
    )));
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
