//! `kept models list`: the models on this computer, and those worth downloading. `kept models add` and `forget`: the
//! folders to search.

use std::path::PathBuf;

use kept_engine::backend::Gpus;
use kept_engine::kernels::product_rate;
use kept_engine::{FEW_PAGES_PER_MINUTE, available_memory, pages_per_minute};
use kept_engine_cuda::CudaGpus;
use kept_hub::{Entry, Finder, Fit, Folders, Found, FoundModel};
use serde_json::{Value, json};

use crate::arguments::{FolderArguments, ListArguments};
use crate::output::{self, bytes, count};

pub fn run(arguments: &ListArguments) -> anyhow::Result<()> {
    if arguments.catalogue {
        return catalogue(arguments.json);
    }
    let mut finder = Finder::from_env()?;
    for folder in &arguments.folder {
        anyhow::ensure!(
            folder.is_dir(),
            "'{}' is no folder; give the folder that holds the models",
            folder.display()
        );
        finder = finder.with_folder(folder);
    }
    let found = finder.find();
    if arguments.json {
        output::print_json(&as_json(&found))
    } else {
        for trouble in &found.troubles {
            output::say(&format!("note: {trouble}\n"));
        }
        output::print_text(&as_text(&found))
    }
}

fn as_json(found: &Found) -> Value {
    let model = |model: &FoundModel| {
        json!({
            "name": model.name,
            "title": model.title,
            "path": model.path.display().to_string(),
            "parts": model.parts,
            "bytes": model.bytes,
            "architecture": model.architecture,
            "quantisation": model.quantisation,
            "parameters": model.parameters,
            "context": model.context,
            "place": model.place.name(),
            "supported": model.supported,
            "reason": model.reason,
        })
    };
    let unfinished = found.unfinished.iter().map(|one| {
        json!({
            "name": one.name,
            "path": one.path.display().to_string(),
            "bytes": one.bytes,
            "place": one.place.name(),
        })
    });
    json!({
        "models": found.models.iter().map(model).collect::<Vec<_>>(),
        "unfinished": unfinished.collect::<Vec<_>>(),
        "troubles": found.troubles,
    })
}

fn as_text(found: &Found) -> String {
    if found.models.is_empty() && found.unfinished.is_empty() {
        return "no model but the built-in one (--model mini); kept models list --catalogue shows some that are worth downloading\n"
            .to_owned();
    }
    let mut text = String::new();
    let mut place = None;
    for model in &found.models {
        if place != Some(model.place) {
            place = Some(model.place);
            text.push_str(&format!("{}\n", model.place.name()));
        }
        let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        let context = model.context.map_or_else(
            || "-".to_owned(),
            |tokens| format!("{} tokens", count(tokens as usize)),
        );
        text.push_str(&format!(
            "  {}\n      {} {}, {}, {context}\n",
            model.name,
            or_dash(&model.architecture),
            or_dash(&model.quantisation),
            bytes(model.bytes),
        ));
        if let Some(reason) = &model.reason {
            text.push_str(&format!("      cannot be opened: {reason}\n"));
        }
    }
    if !found.unfinished.is_empty() {
        text.push_str("not finished\n");
    }
    for one in &found.unfinished {
        let arrived = one.bytes.map_or_else(String::new, |count| {
            format!(", {} have arrived", bytes(count))
        });
        text.push_str(&format!(
            "  {} ({}{arrived})\n      {}\n",
            one.name,
            one.place.name(),
            one.path.display()
        ));
    }
    output::printable(&text)
}

fn catalogue(as_json: bool) -> anyhow::Result<()> {
    let memory = available_memory();
    // With a GPU, the processor's speed says little.
    let on_gpu = CudaGpus.list().is_ok_and(|gpus| !gpus.is_empty());
    let rate = match on_gpu {
        true => None,
        false => Some(product_rate()?),
    };
    let pages =
        |entry: &Entry| rate.map(|rate| pages_per_minute(entry.parameters_per_token(), rate));
    let slow = |entry: &Entry| pages(entry).is_some_and(|pages| pages < FEW_PAGES_PER_MINUTE);
    let entries = Entry::ranked(memory, slow);
    if as_json {
        let entry = |(entry, fit): &(&Entry, Fit)| {
            json!({
                "name": entry.name,
                "reference": entry.reference().to_string(),
                "about_bytes": entry.about_bytes,
                "architecture": entry.architecture,
                "parameters": entry.parameters,
                "context": entry.context,
                "licence": entry.licence,
                "minimum_memory_bytes": entry.minimum_memory_bytes,
                "good_for": entry.good_for,
                "pages_per_minute": pages(entry).map(f64::round),
                "fit": fit_label(*fit),
            })
        };
        return output::print_json(&entries.iter().map(entry).collect::<Vec<_>>());
    }
    let mut text = match memory {
        Some(free) => format!(
            "{} of memory are free; what suits that and the processor comes first\n",
            bytes(free)
        ),
        None => "the free memory is not known on this system; the smallest come first\n".to_owned(),
    };
    for (entry, fit) in entries {
        let reads = match pages(entry) {
            None => String::new(),
            Some(..1.5) => "; reads about a page a minute here".to_owned(),
            Some(pages) => format!(
                "; reads about {} pages a minute here",
                count(pages.round() as usize)
            ),
        };
        text.push_str(&format!(
            "\n{}: {}\n  {}\n  about {} to download, wants {} of memory ({}){reads}; {} tokens; {}; licence: {}\n  kept models pull {}\n",
            entry.name,
            fit_label(fit),
            entry.good_for,
            bytes(entry.about_bytes),
            bytes(entry.minimum_memory_bytes),
            parameters(entry.parameters),
            count(entry.context as usize),
            entry.architecture,
            entry.licence,
            entry.reference(),
        ));
    }
    text.push_str(
        "\nnames and sizes were not checked on the hub: kept models pull says so if a file is gone, and what there is instead\n",
    );
    output::print_text(&text)
}

fn fit_label(fit: Fit) -> &'static str {
    match fit {
        Fit::Fits => "fits",
        Fit::Tight => "fits tightly",
        Fit::Unknown => "unknown",
        Fit::TooLarge => "too large now",
    }
}

fn parameters(number: u64) -> String {
    match number {
        0..1_000_000_000 => format!("{} million parameters", number / 1_000_000),
        _ => format!("{:.1} billion parameters", number as f64 / 1e9),
    }
}

pub fn add(arguments: &FolderArguments) -> anyhow::Result<()> {
    let new = Folders::from_env().add(&arguments.folder)?;
    let models = Finder::from_env()?.find().models;
    let folder = dunce::canonicalize(&arguments.folder).unwrap_or_else(|_| PathBuf::new());
    let below = models
        .iter()
        .filter(|model| model.path.starts_with(&folder))
        .count();
    let word = if new { "added" } else { "was added before" };
    output::print_text(&format!(
        "{} {word}; models in it: {below}\n",
        folder.display()
    ))
}

pub fn forget(arguments: &FolderArguments) -> anyhow::Result<()> {
    let folder = arguments.folder.display();
    anyhow::ensure!(
        Folders::from_env().forget(&arguments.folder)?,
        "'{folder}' was never added; see {}",
        Folders::from_env().file().display()
    );
    output::print_text(&format!(
        "{folder} is no longer looked through; its files stay\n"
    ))
}
