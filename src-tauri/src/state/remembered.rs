//! What an earlier start left: settings, models, document, conversations.

use std::collections::BTreeMap;
use std::path::Path;

use kept_hub::{HubFile, ModelRef};
use kept_worker::protocol::Speed;
use serde::{Deserialize, Serialize};

use super::background::StoredComparison;
use super::document::OpenDocument;
use crate::contract::{
    ConversationEntry, Drafts, ModelChoice, Settings, Theme, Turn, ordinary_zoom, usual_keeping,
};
use crate::names::file_name;

/// A model that the user can choose, with its path, which the page never receives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelEntry {
    /// The part for the page.
    pub choice: ModelChoice,
    /// The part for the worker: a path, or `mini`.
    pub path: String,
    /// It was opened successfully before. A model that never was is removed from the list when opening fails.
    pub opened: bool,
}

impl ModelEntry {
    /// A chosen model file that was not opened yet, with an id that is unused in `others`.
    pub(super) fn file(others: &[ModelEntry], label: String, path: String) -> Self {
        let number = |entry: &ModelEntry| entry.choice.id.strip_prefix('m')?.parse::<u64>().ok();
        let highest = others.iter().filter_map(number).max().unwrap_or(0);
        Self {
            choice: ModelChoice {
                id: format!("m{}", highest + 1),
                label,
                in_box: false,
                stretch: None,
            },
            path,
            opened: false,
        }
    }

    /// The built-in model.
    pub fn mini() -> Self {
        Self {
            choice: ModelChoice {
                id: kept_engine::MINI.to_owned(),
                label: kept_engine::MINI.to_owned(),
                in_box: true,
                stretch: None,
            },
            path: kept_engine::MINI.to_owned(),
            opened: true,
        }
    }
}

/// The stored state of an earlier start, or the empty state.
#[derive(Default)]
pub struct Remembered {
    /// Settings.
    pub settings: Option<Settings>,
    /// Model files chosen before.
    pub models: Vec<ModelEntry>,
    /// The open document.
    pub document: Option<OpenDocument>,
    /// Its comparison.
    pub comparison: Option<StoredComparison>,
    /// The open conversation.
    pub conversation: Option<u64>,
    /// Its turns; maps remain in the store.
    pub turns: Vec<Turn>,
    /// All conversations.
    pub conversations: Vec<ConversationEntry>,
    /// Those with questions that had no answer when Kept was closed.
    pub interrupted: Vec<u64>,
    /// The draft questions.
    pub drafts: Drafts,
    /// Names of documents whose vaults are to be removed.
    pub vaults_to_clear: Vec<String>,
    /// Whether models with a thinking mode think before they answer, in this conversation.
    pub thinking: bool,
    /// Unfinished downloads, which `library` handles.
    pub downloads: Vec<BegunDownload>,
    /// The processor's speed, as measured last.
    pub speed: Option<Speed>,
    /// The highest document id ever assigned, so that ids are unique.
    pub last_document: u64,
    /// The highest turn id ever assigned.
    pub last_turn: u64,
    /// The highest conversation id ever assigned.
    pub last_conversation: u64,
    /// Whether Kept was started before.
    pub started_before: bool,
}

impl Remembered {
    /// Makes the model at `path` the setting of a first start, as if the user had chosen it; `name` is the label for a
    /// file without a meaningful name of its own.
    pub fn prefer(&mut self, path: &Path, name: &str) {
        // A path that is not valid Unicode cannot be a setting; the user has to choose a model.
        let Some(text) = path.to_str() else {
            return;
        };
        let known = self.models.iter().find(|known| known.path == text);
        let model = match known.map(|known| known.choice.id.clone()) {
            Some(id) => id,
            None => {
                let named = path.extension().is_some();
                let label = if named {
                    file_name(path)
                } else {
                    name.to_owned()
                };
                let entry = ModelEntry::file(&self.models, label, text.to_owned());
                self.models.push(entry);
                self.models[self.models.len() - 1].choice.id.clone()
            }
        };
        self.settings = Some(Settings {
            model,
            ..default_settings()
        });
    }
}

/// An unfinished download in its stored form: enough to list it after a restart, and to resume it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BegunDownload {
    /// The model.
    pub reference: ModelRef,
    /// Its files, as listed by the hub.
    pub files: Vec<HubFile>,
}

/// Settings of a first start.
pub fn default_settings() -> Settings {
    Settings {
        theme: Theme::System,
        model: kept_engine::MINI.to_owned(),
        method: kept_engine::AUTO.to_owned(),
        parameters: BTreeMap::new(),
        budget: None,
        max_tokens: kept_engine::Engine::DEFAULT_MAX_TOKENS,
        instructions: String::new(),
        temperature: 0.0,
        repeat_penalty: None,
        zoom: ordinary_zoom(),
        keep: usual_keeping(),
        keep_budget: None,
        cache: None,
        memory: None,
        device: None,
        sidebar: None,
    }
}
