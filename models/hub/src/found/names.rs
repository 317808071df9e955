//! Resolves a name given by the user to the file of a model on this computer.

use std::path::PathBuf;

use super::{Finder, FoundModel};
use crate::choose::{Listed, choose};
use crate::{HubError, ModelRef};

impl Finder {
    /// The file of the model `name`: `owner/name:FILE` in the hub's cache, a model of Ollama, or the name of any file
    /// found. Matching ignores case, and a part of a name suffices if it is unique. Nothing is downloaded.
    ///
    /// # Errors
    /// [`HubError::NotHere`], [`HubError::NoModel`], [`HubError::SeveralModels`], [`HubError::Ambiguous`],
    /// [`HubError::Unfinished`], and those of [`choose`].
    pub fn choose(&self, name: &str) -> Result<PathBuf, HubError> {
        let reference: Option<ModelRef> = name.parse().ok();
        if let Some(reference) = &reference {
            let files = self.in_hub_cache(&reference.repo);
            let listed: Vec<Listed> = files
                .iter()
                .map(|(path, _, bytes)| Listed {
                    path: path.clone(),
                    bytes: *bytes,
                    sha256: None,
                })
                .collect();
            match choose(&reference.repo, &listed, reference.what.as_deref()) {
                Ok(offer) => {
                    let file = files.iter().find(|(path, ..)| path == offer.path());
                    if let Some((_, path, _)) = file {
                        return Ok(path.clone());
                    }
                }
                // The name may still be that of an Ollama model.
                Err(HubError::NoFile { .. } | HubError::NoGguf { .. }) => {}
                Err(other) => return Err(other),
            }
        }
        let found = self.find();
        if let Some(path) = by_name(&found.models, name)? {
            return Ok(path);
        }
        if let Some(reference) = reference {
            let repo = reference.repo.to_string();
            let begun = found.unfinished.iter().find(|one| one.name == repo);
            return Err(match begun.and_then(|one| one.bytes) {
                Some(bytes) => HubError::Unfinished {
                    name: reference.to_string(),
                    bytes,
                },
                None => HubError::NotHere(reference.to_string()),
            });
        }
        Err(HubError::NoModel {
            near: similar_names(&found.models, name),
            name: name.to_owned(),
        })
    }
}

/// The unique model with this name. Full names take precedence over parts of names.
fn by_name(models: &[FoundModel], name: &str) -> Result<Option<PathBuf>, HubError> {
    let wanted = name.to_lowercase();
    if wanted.is_empty() {
        return Ok(None);
    }
    let in_full: Vec<&FoundModel> = models
        .iter()
        .filter(|model| names(model).contains(&wanted))
        .collect();
    let fitting = if in_full.is_empty() {
        let part = |model: &&FoundModel| names(model).iter().any(|name| name.contains(&wanted));
        models.iter().filter(part).collect()
    } else {
        in_full
    };
    match fitting.as_slice() {
        [] => Ok(None),
        [one] => Ok(Some(one.path.clone())),
        several => Err(HubError::SeveralModels {
            name: name.to_owned(),
            candidates: unique_names(several),
        }),
    }
}

/// All names of a model, in lower case.
fn names(model: &FoundModel) -> Vec<String> {
    let file = model.path.file_name().unwrap_or_default().to_string_lossy();
    let stem = model.path.file_stem().unwrap_or_default().to_string_lossy();
    let latest = model.name.strip_suffix(":latest").map(str::to_owned);
    let mut names = vec![model.name.clone(), file.into_owned(), stem.into_owned()];
    names.extend(latest);
    names.extend(model.title.clone());
    for name in &mut names {
        *name = name.to_lowercase();
    }
    names
}

/// The models' names, or paths for models with equal names.
fn unique_names(models: &[&FoundModel]) -> Vec<String> {
    let same = |name: &str| models.iter().filter(|model| model.name == name).count();
    let unique = |model: &&FoundModel| match same(&model.name) {
        1 => model.name.clone(),
        _ => model.path.display().to_string(),
    };
    models.iter().map(unique).collect()
}

/// Names that share a word with the given one.
fn similar_names(models: &[FoundModel], name: &str) -> Vec<String> {
    let words = |text: &str| -> Vec<String> {
        let text = text.to_lowercase();
        let words = text.split(|c: char| !c.is_alphanumeric());
        words.filter(|w| w.len() > 2).map(str::to_owned).collect()
    };
    let typed = words(name);
    let resembles = |model: &&FoundModel| {
        let known = words(&model.name);
        typed.iter().any(|word| known.contains(word))
    };
    let some = models.iter().filter(resembles).take(3);
    some.map(|model| model.name.clone()).collect()
}
