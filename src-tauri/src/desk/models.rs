//! Models and settings: what can be chosen, what is open, and what happens when a choice cannot be opened.

use std::path::{Path, PathBuf};

use kept_engine::policies::{self, Budget};
use kept_engine::protocol::{self, Request};

use super::{Desk, Effect, ModelEntry, Save};
use crate::contract::{
    AppEvent, Choice, Life, ModelChoice, ModelFacts, NoticeKind, Parameters, Place, Settings,
};
use crate::desk::documents::file_name;
use crate::sentences::{self, for_window};

/// The longest answer that can be set, in tokens.
pub const MOST_TOKENS: usize = 32_768;
/// Sizes of the text that can be set, in percent.
pub const ZOOM: std::ops::RangeInclusive<u16> = 50..=300;

/// The budget as typed: empty is the default budget.
pub fn parse_budget(budget: Option<&str>) -> Result<Option<Budget>, String> {
    match budget {
        None => Ok(None),
        Some(text) => text
            .parse()
            .map(Some)
            .map_err(|error: policies::PolicyError| for_window(&error.to_string())),
    }
}

/// Whether the method exists and takes these parameters.
pub fn check_method(method: &str, parameters: &Parameters) -> Result<(), String> {
    policies::build(method, &assigned(parameters))
        .map(drop)
        .map_err(|error| sentences::method(&error))
}

/// Whether a choice can be had, as far as that shows without a document.
pub fn check_choice(choice: &Choice) -> Result<(), String> {
    check_method(&choice.method, &choice.parameters)?;
    parse_budget(choice.budget.as_deref()).map(drop)
}

/// Parameters as the engine takes them.
pub fn assigned(parameters: &Parameters) -> Vec<(String, String)> {
    parameters.clone().into_iter().collect()
}

impl Desk {
    /// The settings as they are.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(super) fn choices(&self) -> Vec<ModelChoice> {
        self.models.iter().map(|m| m.choice.clone()).collect()
    }

    /// Takes new settings, whole or not at all.
    pub fn save_settings(&mut self, settings: Settings) -> Result<Settings, String> {
        check_method(&settings.method, &Parameters::new())?;
        for (method, parameters) in &settings.parameters {
            check_method(method, parameters)?;
        }
        parse_budget(settings.budget.as_deref())?;
        if !(1..=MOST_TOKENS).contains(&settings.max_tokens) {
            return Err(sentences::max_tokens(settings.max_tokens, MOST_TOKENS));
        }
        if !ZOOM.contains(&settings.zoom) {
            return Err(sentences::zoom(settings.zoom, &ZOOM));
        }
        if !self.models.iter().any(|m| m.choice.id == settings.model) {
            return Err(sentences::unknown_model(&settings.model));
        }
        let model_changed = settings.model != self.settings.model;
        if model_changed && self.is_busy() {
            return Err(sentences::BUSY_MODEL.to_owned());
        }
        if settings.theme != self.settings.theme {
            self.effects.push(Effect::Theme(settings.theme));
        }
        self.settings = settings;
        self.save(Save::Settings(self.settings.clone()));
        if model_changed {
            self.open_model();
        }
        Ok(self.settings.clone())
    }

    /// Opens a model file that the person chose, dropped or passed, and makes it the setting.
    pub fn choose_model_file(&mut self, path: PathBuf) {
        let Some(text) = path.to_str().map(str::to_owned) else {
            let message = sentences::not_utf8(&path);
            return self.notice(NoticeKind::Error, Place::Model, message);
        };
        if self.is_busy() {
            return self.notice(NoticeKind::Error, Place::Model, sentences::BUSY_MODEL);
        }
        let id = match self.models.iter().find(|m| m.path == text) {
            Some(known) => known.choice.id.clone(),
            None => self.add_model(&path, text),
        };
        self.settings.model = id;
        self.tell_models();
        self.save(Save::Settings(self.settings.clone()));
        self.open_model();
    }

    fn add_model(&mut self, path: &Path, text: String) -> String {
        let number = |entry: &ModelEntry| entry.choice.id.strip_prefix('m')?.parse::<u64>().ok();
        let highest = self.models.iter().filter_map(number).max().unwrap_or(0);
        let id = format!("m{}", highest + 1);
        let mut label = file_name(path);
        if self.models.iter().any(|m| m.choice.label == label)
            && let Some(folder) = path.parent().and_then(Path::file_name)
        {
            label = format!("{label} ({})", folder.to_string_lossy());
        }
        self.models.push(ModelEntry {
            choice: ModelChoice {
                id: id.clone(),
                label,
                in_box: false,
            },
            path: text,
            opened: false,
        });
        id
    }

    fn tell_models(&mut self) {
        let models = self.choices();
        let settings = self.settings.clone();
        self.tell(AppEvent::Models { models, settings });
    }

    /// What to show for the chosen model.
    pub(super) fn model_label(&self) -> String {
        let chosen = |m: &&ModelEntry| m.choice.id == self.settings.model;
        let label = self.models.iter().find(chosen);
        label.map_or_else(String::new, |m| m.choice.label.clone())
    }

    fn chosen_path(&self) -> Option<String> {
        let chosen = |m: &&ModelEntry| m.choice.id == self.settings.model;
        self.models.iter().find(chosen).map(|m| m.path.clone())
    }

    /// Opens the model of the settings.
    pub(super) fn open_model(&mut self) {
        self.set_model(None, None);
        self.forget_tokens();
        match self.worker.state {
            // Perhaps it was the model that the engine died of: a new choice is worth a new start.
            Life::Failed => self.restart_worker(),
            _ => self.send_model(),
        }
    }

    /// Sends the chosen model, unless the worker still opens another: then once that is answered.
    pub(super) fn send_model(&mut self) {
        if self.worker.state != Life::Ready || self.model_in_flight.is_some() {
            return;
        }
        if let Some(model) = self.chosen_path() {
            self.model_in_flight = Some(model.clone());
            self.say(Request::OpenModel { model }, None);
        }
    }

    fn set_model(&mut self, model: Option<ModelFacts>, error: Option<String>) {
        self.model = model.clone();
        self.model_error = error.clone();
        self.tell(AppEvent::Model { model, error });
    }

    /// Whether the model that was just answered for is still the chosen one. If not, the chosen one is sent.
    fn model_wanted(&mut self) -> bool {
        let wanted = self.model_in_flight.take() == self.chosen_path();
        if !wanted {
            self.send_model();
        }
        wanted
    }

    pub(super) fn model_arrived(&mut self, model: protocol::ModelFacts) {
        if !self.model_wanted() {
            return;
        }
        let chosen = self.settings.model.clone();
        self.model_before = Some(chosen.clone());
        if let Some(entry) = self.models.iter_mut().find(|m| m.choice.id == chosen)
            && !entry.opened
        {
            entry.opened = true;
            let entry = entry.clone();
            self.save(Save::Model(entry));
        }
        self.set_model(Some(facts(model)), None);
    }

    pub(super) fn model_failed(&mut self, message: &str) {
        if !self.model_wanted() {
            return;
        }
        let path = self.chosen_path().unwrap_or_default();
        tracing::warn!(path, message, "a model was not opened");
        let message = sentences::model_failed(message, Path::new(&path));
        let chosen = self.settings.model.clone();
        let before = self.model_before.take().filter(|before| *before != chosen);
        // A file that never worked is no choice.
        let (keep, failed) = (self.models.len(), chosen);
        self.models.retain(|m| m.opened || m.choice.id != failed);
        let removed = self.models.len() < keep;
        match before {
            Some(before) => {
                self.settings.model = before;
                self.save(Save::Settings(self.settings.clone()));
                self.tell_models();
                self.notice(NoticeKind::Error, Place::Model, message);
                self.open_model();
            }
            None if removed => {
                self.settings.model = kept_engine::MINI.to_owned();
                self.save(Save::Settings(self.settings.clone()));
                self.tell_models();
                self.notice(NoticeKind::Error, Place::Model, message);
                self.open_model();
            }
            None => self.set_model(None, Some(message)),
        }
    }
}

fn facts(model: protocol::ModelFacts) -> ModelFacts {
    ModelFacts {
        name: model.name,
        file: model.file,
        quantisation: model.quantisation,
        architecture: model.architecture,
        layers: model.layers,
        q_heads: model.q_heads,
        kv_heads: model.kv_heads,
        head_dim: model.head_dim,
        context: model.context,
        parameters: model.parameters,
        weights_bytes: model.weights_bytes,
        bytes_per_row: model.bytes_per_row,
    }
}
