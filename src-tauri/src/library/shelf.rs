//! Converts the models and downloads of the hub crate to the page's types.

use std::path::Path;

use kept_engine::{FEW_PAGES_PER_MINUTE, pages_per_minute};
use kept_hub::{
    Download, Entry, Fit, FoundModel, HubCache, Offer, Phase, Place, RepoId, Settings, Unfinished,
};
use kept_worker::protocol::Speed;

use super::{State, cache, is_ours};
use crate::contract::{self, CatalogueModel, HubOffer, Library, ModelFolder, UnfinishedModel};
use crate::messages;
use crate::names::file_name;
use crate::state::{BegunDownload, ModelEntry};

/// The models page without the downloads of the queue.
pub(super) fn library(state: &mut State, models: &[ModelEntry], free: Option<u64>) -> Library {
    let settings = Settings::from_env();
    let State {
        ids,
        found,
        folders,
        queue,
        speed,
        measuring,
        ..
    } = state;
    let nothing = kept_hub::Found::default();
    let found = found.as_ref().unwrap_or(&nothing);
    let mut shown = vec![mini()];
    for model in &found.models {
        let id = ids.id_of(&model.path);
        shown.push(found_model(model, id, models));
    }
    // Entries of the download list are not shown twice.
    let cache = HubCache::new(&settings.cache);
    let downloads = queue.entries().iter();
    let listed: Vec<_> = downloads
        .flat_map(|entry| entry.transfer.files())
        .map(|file| cache.partial(&file.repo, &file.sha256))
        .collect();
    let rest = found
        .unfinished
        .iter()
        .filter(|one| !listed.contains(&one.path));
    Library {
        unfinished: rest
            .map(|one| unfinished(one, ids.id_of(&one.path), &cache))
            .collect(),
        troubles: found
            .troubles
            .iter()
            .map(|trouble| messages::as_sentence(trouble))
            .collect(),
        folders: folders
            .iter()
            .map(|folder| ModelFolder {
                id: ids.id_of(folder),
                path: at_home(folder),
            })
            .collect(),
        catalogue: (!*measuring || speed.is_some()).then(|| catalogue(free, *speed, &shown)),
        found: shown,
        free_memory: free,
        free_disk: cache.free_space(),
        offline: settings.offline,
    }
}

fn mini() -> contract::FoundModel {
    contract::FoundModel {
        id: kept_engine::MINI.to_owned(),
        name: kept_engine::MINI.to_owned(),
        title: None,
        architecture: None,
        quantisation: None,
        bytes: 0,
        parts: 1,
        parameters: None,
        context: None,
        place: "in the box".to_owned(),
        lies: String::new(),
        reason: None,
        chats: true,
        choice: Some(kept_engine::MINI.to_owned()),
        in_box: true,
        removable: false,
    }
}

fn found_model(model: &FoundModel, id: String, models: &[ModelEntry]) -> contract::FoundModel {
    let choice = models.iter().find(|m| Path::new(&m.path) == model.path);
    contract::FoundModel {
        id,
        name: model.name.clone(),
        title: model.title.clone(),
        architecture: model.architecture.clone(),
        quantisation: model.quantisation.clone(),
        bytes: model.bytes,
        parts: model.parts,
        parameters: model.parameters,
        context: model.context,
        place: model.place.name().to_owned(),
        lies: at_home(&model.path),
        reason: (!model.supported).then(|| match &model.reason {
            Some(reason) => messages::as_sentence(reason),
            None => messages::NOT_SUPPORTED.to_owned(),
        }),
        chats: model.instruct,
        choice: choice.map(|m| m.choice.id.clone()),
        in_box: false,
        removable: is_ours(model.place),
    }
}

fn unfinished(one: &Unfinished, id: String, cache: &HubCache) -> UnfinishedModel {
    UnfinishedModel {
        id,
        name: one.name.clone(),
        bytes: one.bytes,
        place: one.place.name().to_owned(),
        ours: is_ours(one.place) && cache.partial_of(&one.path).is_some(),
    }
}

fn catalogue(
    free: Option<u64>,
    speed: Option<Speed>,
    found: &[contract::FoundModel],
) -> Vec<CatalogueModel> {
    let pages = |entry: &Entry| {
        speed.map(|speed| pages_per_minute(entry.parameters_per_token(), speed.product_rate))
    };
    let slow = |entry: &Entry| pages(entry).is_some_and(|pages| pages < FEW_PAGES_PER_MINUTE);
    let ranked = Entry::ranked(free, slow).into_iter();
    ranked
        .map(|(entry, fit)| catalogue_model(entry, fit, pages(entry), found))
        .collect()
}

fn catalogue_model(
    entry: &Entry,
    suits: Fit,
    pages_per_minute: Option<f64>,
    found: &[contract::FoundModel],
) -> CatalogueModel {
    let reference = entry.reference().to_string();
    CatalogueModel {
        name: entry.name.clone(),
        about_bytes: entry.about_bytes,
        needs_bytes: entry.minimum_memory_bytes,
        parameters: entry.parameters,
        context: entry.context,
        licence: entry.licence.clone(),
        good_for: entry.good_for.clone(),
        suits,
        pages_per_minute,
        here: id_in_cache(found, &reference),
        reference,
    }
}

/// The id of the model with this name in the hub's cache.
fn id_in_cache(found: &[contract::FoundModel], reference: &str) -> Option<String> {
    let is_it = |model: &&contract::FoundModel| model.removable && model.name == reference;
    found.iter().find(is_it).map(|model| model.id.clone())
}

/// How weights of `bytes` bytes suit the free memory: reading a document well takes a quarter more than the weights.
fn suits(bytes: u64, free: Option<u64>) -> Fit {
    match free {
        None => Fit::Unknown,
        Some(free) if free >= bytes.saturating_add(bytes / 4) => Fit::Fits,
        Some(free) if free > bytes => Fit::Tight,
        Some(_) => Fit::TooLarge,
    }
}

/// The models of a repository.
pub(super) fn offers(
    state: &mut State,
    repo: &RepoId,
    offers: &[Offer],
    meant: Option<&str>,
    free: Option<u64>,
) -> Vec<HubOffer> {
    let State { ids, found, .. } = state;
    let models = found.as_ref().map_or(&[][..], |found| &found.models);
    let offer = |offer: &Offer| {
        let reference = format!("{repo}:{}", offer.path());
        let is_it = |model: &&FoundModel| is_ours(model.place) && model.name == reference;
        HubOffer {
            file: offer.path().to_owned(),
            bytes: offer.bytes,
            parts: offer.parts,
            quantisation: offer.quantisation.clone(),
            suits: suits(offer.bytes, free),
            meant: meant == Some(offer.path()),
            here: models
                .iter()
                .find(is_it)
                .map(|model| ids.id_of(&model.path)),
            reference,
        }
    };
    offers.iter().map(offer).collect()
}

/// All downloads of the list.
pub(super) fn downloads(state: &mut State) -> Vec<contract::Download> {
    let State { ids, queue, .. } = state;
    let shown = queue.entries().iter().map(|entry| {
        let path = entry.transfer.status().path;
        entry.shown(path.map(|path| ids.id_of(&path)))
    });
    shown.collect()
}

/// Unfinished downloads that have, or may have, files on disk; they are stored for the next start.
pub(super) fn begun(state: &State) -> Vec<BegunDownload> {
    let begun = |download: &Download| {
        let (status, files) = (download.status(), download.files());
        let ended = matches!(status.phase, Phase::Finished | Phase::Cancelled);
        let reference = status.reference.parse().ok()?;
        (!ended && !files.is_empty()).then_some(BegunDownload { reference, files })
    };
    let entries = state.queue.entries().iter();
    entries.filter_map(|entry| begun(&entry.transfer)).collect()
}

/// A short name of the model at `path` for menus and answers, which is never the name of a blob.
pub(super) fn label(state: &State, path: &Path) -> String {
    let found = state.found.as_ref();
    let model = found.and_then(|found| found.models.iter().find(|model| model.path == path));
    match model {
        Some(model) if model.place == Place::Ollama => model.name.clone(),
        _ => file_name(path),
    }
}

/// A path for display: the home folder is `~`, and a snapshot in the hub's cache is shortened to its repository.
fn at_home(path: &Path) -> String {
    let root = cache().root().to_owned();
    let path = match path.strip_prefix(&root) {
        Ok(rest) => rest
            .components()
            .next()
            .map_or(root.clone(), |repo| root.join(repo)),
        Err(_) => path.to_owned(),
    };
    let home = std::env::home_dir();
    match home.and_then(|home| Some(path.strip_prefix(home).ok()?.to_owned())) {
        Some(rest) => Path::new("~").join(rest).display().to_string(),
        None => path.display().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_decides_what_suits() {
        for (bytes, free, means) in [
            (100, Some(125), Fit::Fits),
            (100, Some(124), Fit::Tight),
            (100, Some(100), Fit::TooLarge),
            (100, None, Fit::Unknown),
            (u64::MAX, Some(u64::MAX), Fit::Fits),
        ] {
            assert_eq!(suits(bytes, free), means, "{bytes} of {free:?}");
        }
    }
}
