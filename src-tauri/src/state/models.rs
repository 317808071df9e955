//! Models and settings: the choices, the open model, and the fallback if a chosen model cannot be opened.

use std::path::{Path, PathBuf};

use kept_engine::REPEAT_PENALTY;
use kept_worker::protocol::Request;
use tokio::sync::oneshot;

use super::AppState;
use super::checks::{
    MAX_ANSWER_TOKENS, MAX_INSTRUCTION_CHARS, TEMPERATURE, ZOOM, check_method, check_stretch,
    parse_budget,
};
use super::effect::{Effect, Save};
use super::gpus::check_device;
use super::limits::{check_cache, check_memory};
use super::parts::OpenModel;
use super::remembered::ModelEntry;
use super::vault::check_keeping;
use super::waiting::Wanted;
use crate::contract::{
    AppEvent, Inspection, ModelChoice, ModelFacts, NoticeKind, Parameters, Place, Refusal,
    Settings, WorkerStatus,
};
use crate::messages::{self, as_sentence};
use crate::names::file_name;

impl AppState {
    /// The current settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(super) fn choices(&self) -> Vec<ModelChoice> {
        self.models.all.iter().map(|m| m.choice.clone()).collect()
    }

    /// Applies new settings, all or none.
    pub fn save_settings(&mut self, mut settings: Settings) -> Result<Settings, Refusal> {
        check_method(&settings.method, &Parameters::new())?;
        for (method, parameters) in &settings.parameters {
            check_method(method, parameters)?;
        }
        parse_budget(settings.budget.as_deref())?;
        if !(1..=MAX_ANSWER_TOKENS).contains(&settings.max_tokens) {
            return Err(messages::max_tokens(settings.max_tokens, MAX_ANSWER_TOKENS).into());
        }
        settings.instructions = settings.instructions.trim().to_owned();
        let length = settings.instructions.chars().count();
        if length > MAX_INSTRUCTION_CHARS {
            return Err(messages::instructions(length, MAX_INSTRUCTION_CHARS).into());
        }
        if !TEMPERATURE.contains(&settings.temperature) {
            return Err(messages::temperature(settings.temperature, &TEMPERATURE).into());
        }
        if let Some(penalty) = settings.repeat_penalty
            && !REPEAT_PENALTY.contains(&penalty)
        {
            return Err(messages::repeat_penalty(penalty).into());
        }
        if !ZOOM.contains(&settings.zoom) {
            return Err(messages::zoom(settings.zoom, &ZOOM).into());
        }
        check_keeping(&settings)?;
        check_cache(settings.cache.as_deref())?;
        check_memory(settings.memory.as_deref())?;
        check_device(settings.device.as_deref())?;
        if !self
            .models
            .all
            .iter()
            .any(|m| m.choice.id == settings.model)
        {
            return Err(messages::unknown_model(&settings.model).into());
        }
        let keeping = |settings: &Settings| (settings.keep.clone(), settings.keep_budget.clone());
        let keeping_changed = keeping(&settings) != keeping(&self.settings);
        let model_changed = settings.model != self.settings.model;
        if model_changed && self.is_busy() {
            return Err(messages::BUSY_MODEL.to_owned().into());
        }
        let device_changed = settings.device != self.settings.device;
        if device_changed && (self.is_busy() || self.file.opening.is_some()) {
            return Err(messages::BUSY_DEVICE.to_owned().into());
        }
        if settings.theme != self.settings.theme {
            self.effects.push(Effect::Theme(settings.theme));
        }
        self.settings = settings;
        self.save(Save::Settings(Box::new(self.settings.clone())));
        if device_changed {
            // A running engine cannot change its device.
            self.restart_worker();
        } else if model_changed {
            self.open_model();
        }
        if keeping_changed {
            self.send_vault_settings();
        }
        self.read_for_other_questions();
        Ok(self.settings.clone())
    }

    /// Opens a model file that the user chose, dropped or passed, and makes it the setting.
    pub fn choose_model_file(&mut self, path: PathBuf) {
        self.choose(path, None, None);
    }

    /// As [`AppState::choose_model_file`], for a model of the library: `label` is its displayed name, and `stretch` is
    /// the RoPE scaling of its context. Returns the reason for a refusal in one sentence.
    pub fn choose_model(
        &mut self,
        path: PathBuf,
        label: String,
        stretch: Option<String>,
    ) -> Result<(), String> {
        if self.is_busy() {
            return Err(messages::BUSY_MODEL.to_owned());
        }
        check_stretch(stretch.as_deref())?;
        self.choose(path, Some(label), Some(stretch));
        Ok(())
    }

    fn choose(&mut self, path: PathBuf, label: Option<String>, stretch: Option<Option<String>>) {
        let Some(text) = path.to_str().map(str::to_owned) else {
            let message = messages::not_utf8(&path);
            return self.notice(NoticeKind::Error, Place::Model, message);
        };
        if self.is_busy() {
            return self.notice(NoticeKind::Error, Place::Model, messages::BUSY_MODEL);
        }
        let id = match self.models.all.iter().find(|m| m.path == text) {
            Some(known) => known.choice.id.clone(),
            None => self.add_model(&path, text, label),
        };
        if let (Some(stretch), Some(entry)) = (stretch, self.entry_mut(&id)) {
            entry.choice.stretch = stretch;
        }
        self.settings.model = id;
        self.emit_models();
        self.save(Save::Settings(Box::new(self.settings.clone())));
        self.open_model();
    }

    fn add_model(&mut self, path: &Path, text: String, label: Option<String>) -> String {
        let mut label = label.unwrap_or_else(|| file_name(path));
        if self.models.all.iter().any(|m| m.choice.label == label)
            && let Some(folder) = path.parent().and_then(Path::file_name)
        {
            label = format!("{label} ({})", folder.to_string_lossy());
        }
        let entry = ModelEntry::file(&self.models.all, label, text);
        let id = entry.choice.id.clone();
        self.models.all.push(entry);
        id
    }

    fn emit_models(&mut self) {
        let models = self.choices();
        let settings = self.settings.clone();
        self.emit(AppEvent::Models { models, settings });
    }

    /// The displayed name of the chosen model.
    pub(super) fn model_label(&self) -> String {
        let chosen = |m: &&ModelEntry| m.choice.id == self.settings.model;
        let chosen = self.models.all.iter().find(chosen);
        chosen.map_or_else(String::new, |m| match &m.choice.stretch {
            Some(stretch) => format!("{} ({stretch})", m.choice.label),
            None => m.choice.label.clone(),
        })
    }

    fn entry_mut(&mut self, id: &str) -> Option<&mut ModelEntry> {
        self.models.all.iter_mut().find(|m| m.choice.id == id)
    }

    /// The models that the user can choose, with their paths.
    pub fn models(&self) -> &[ModelEntry] {
        &self.models.all
    }

    fn wanted(&self) -> Option<Wanted> {
        let chosen = |m: &&ModelEntry| m.choice.id == self.settings.model;
        self.models.all.iter().find(chosen).map(|m| Wanted {
            path: m.path.clone(),
            stretch: m.choice.stretch.clone(),
        })
    }

    /// The file of the chosen model, or `mini`.
    pub fn chosen_path(&self) -> Option<String> {
        self.wanted().map(|wanted| wanted.path)
    }

    /// Removes a model from the list, because its file was deleted.
    pub fn forget_model(&mut self, path: &Path) {
        let is_it = |m: &ModelEntry| Path::new(&m.path) == path;
        let Some(entry) = self.models.all.iter().find(|m| is_it(m)) else {
            return;
        };
        let id = entry.choice.id.clone();
        if id == self.settings.model {
            return;
        }
        self.models.all.retain(|m| !is_it(m));
        self.save(Save::NoModel(id));
        self.emit_models();
    }

    /// Inspects what the model at `path` can read with the free memory; the receiver gets the result.
    pub fn inspect(
        &mut self,
        path: PathBuf,
        stretch: Option<String>,
    ) -> Result<oneshot::Receiver<Result<Inspection, String>>, String> {
        check_stretch(stretch.as_deref())?;
        self.worker.check_ready()?;
        let model = path
            .to_str()
            .ok_or_else(|| messages::not_utf8(&path))?
            .to_owned();
        let ticket = self.ticket();
        let (send, receive) = oneshot::channel();
        self.worker.inspections.insert(ticket, (path, send));
        self.send(
            Request::InspectModel {
                ticket,
                model,
                stretch,
            },
            None,
        );
        Ok(receive)
    }

    pub(super) fn inspected(&mut self, ticket: u64, inspection: Result<Inspection, &str>) {
        if let Some((path, waiting)) = self.worker.inspections.remove(&ticket) {
            let answer = inspection.map_err(|message| messages::model_failed(message, &path));
            // The page may have stopped waiting.
            let _ = waiting.send(answer);
        }
    }

    /// Switches the thinking mode of models for this conversation.
    pub fn set_thinking(&mut self, thinking: bool) {
        if self.open.thinking != thinking {
            self.open.thinking = thinking;
            self.save(Save::Thinking(thinking));
            self.emit(AppEvent::Thinking { thinking });
        }
    }

    /// Opens the model of the settings.
    pub(super) fn open_model(&mut self) {
        self.set_model(OpenModel::Opening);
        self.forget_tokens();
        self.reset_reading();
        match self.worker.status() {
            // The engine may have crashed on the previous model: a new choice justifies a restart.
            WorkerStatus::Failed => self.restart_worker(),
            _ => self.send_model(),
        }
    }

    /// Sends the chosen model to the worker. If the worker is still opening another model, this happens after its
    /// reply.
    pub(super) fn send_model(&mut self) {
        if self.worker.status() != WorkerStatus::Ready || self.models.in_flight.is_some() {
            return;
        }
        if let Some(wanted) = self.wanted() {
            self.models.in_flight = Some(wanted.clone());
            let Wanted {
                path: model,
                stretch,
            } = wanted;
            self.send(Request::OpenModel { model, stretch }, None);
        }
    }

    pub(super) fn set_model(&mut self, open: OpenModel) {
        let (model, error) = (open.facts().cloned(), open.error().map(str::to_owned));
        self.models.open = open;
        self.emit(AppEvent::Model { model, error });
    }

    /// Whether the model that the worker just answered for is still the chosen one. If not, the chosen one is sent.
    fn model_wanted(&mut self) -> bool {
        let wanted = self.models.in_flight.take() == self.wanted();
        if !wanted {
            self.send_model();
        }
        wanted
    }

    pub(super) fn model_arrived(&mut self, mut model: ModelFacts) {
        if !self.model_wanted() {
            return;
        }
        let chosen = self.settings.model.clone();
        let now = Some((chosen.clone(), model.stretch.clone()));
        let same = std::mem::replace(&mut self.models.before, now.clone()) == now;
        if let Some(entry) = self.entry_mut(&chosen)
            && !entry.choice.in_box
            && !(entry.opened && same)
        {
            entry.opened = true;
            let entry = entry.clone();
            self.save(Save::Model(entry));
        }
        model.why_processor = model.why_processor.map(|why| as_sentence(&why));
        self.set_model(OpenModel::Open(Box::new(model)));
    }

    pub(super) fn model_failed(&mut self, message: &str) {
        if !self.model_wanted() {
            return;
        }
        let Wanted { path, stretch } = self.wanted().unwrap_or(Wanted {
            path: String::new(),
            stretch: None,
        });
        tracing::warn!(path, message, "a model was not opened");
        let message = messages::model_failed(message, Path::new(&path));
        let chosen = self.settings.model.clone();
        let failed = (chosen.clone(), stretch);
        let before = self.models.before.take().filter(|before| *before != failed);
        // A file that was never opened successfully is removed from the list.
        let (keep, failed) = (self.models.all.len(), chosen);
        self.models
            .all
            .retain(|m| m.opened || m.choice.id != failed);
        let removed = self.models.all.len() < keep;
        match before {
            Some((before, stretch)) => {
                // The RoPE scaling of the failed model may be the cause, so its previous one is restored, if any.
                let of_failed = stretch.filter(|_| before == failed);
                if let Some(entry) = self.entry_mut(&failed) {
                    entry.choice.stretch = of_failed;
                }
                self.settings.model = before;
                self.save(Save::Settings(Box::new(self.settings.clone())));
                self.emit_models();
                self.notice(NoticeKind::Error, Place::Model, message);
                self.open_model();
            }
            None if removed => {
                self.settings.model = kept_engine::MINI.to_owned();
                self.save(Save::Settings(Box::new(self.settings.clone())));
                self.emit_models();
                self.notice(NoticeKind::Error, Place::Model, message);
                self.open_model();
            }
            None => self.set_model(OpenModel::Failed(message)),
        }
    }
}
