//! The models page: models on this computer, recommended models, and downloads.
//!
//! Converts the types of the hub crate to those of the page, and the page's ids to calls of the hub crate: searching
//! folders, downloading, removing. Everything that waits for a disk or a network runs on its own thread. The app state
//! decides which model is open and what it can read.

mod queue;
mod shelf;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kept_engine::available_memory;
use kept_hub::choose::{Listed, choose};
use kept_hub::{
    Download, Finder, Folders, Found, HubCache, HubError, ModelChoice, ModelRef, Phase, Place,
    Preferred, Settings, is_same_file,
};
use kept_worker::protocol::Speed;

use self::queue::Queue;
use crate::contract::{self, AppEvent, HubOffer, Inspection, NoticeKind};
use crate::effects::Effects;
use crate::messages;
use crate::state::{BegunDownload, Remembered, Save};
use crate::worker::Programs;

/// Sets the model of the first start to the default of the terminal program. Later starts have settings, so nothing is
/// searched and no choice is overridden.
pub fn first_model(remembered: &mut Remembered) {
    if remembered.settings.is_some() {
        return;
    }
    let (finder, memory) = (Finder::from_env(), available_memory());
    let choice = ModelChoice::from_env();
    let preferred = finder.and_then(|f| f.preferred(&choice, kept_engine::MINI, memory));
    match preferred {
        Ok(Preferred { name, path, .. }) => {
            if let Some(path) = path {
                remembered.prefer(&path, &name);
            }
        }
        // The built-in model is used, and the models page reports the problem with the folder.
        Err(error) => tracing::warn!(%error, "no model was looked for"),
    }
}

/// See the module documentation.
pub struct Library {
    effects: Arc<Effects>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    ids: Ids,
    /// Result of the last search.
    found: Option<Found>,
    /// Folders that the user added.
    folders: Vec<PathBuf>,
    looking: bool,
    /// Something changed during the search, so another search must follow.
    again: bool,
    queue: Queue<Download>,
    /// Downloads as last saved.
    saved: Vec<BegunDownload>,
    /// Speed of the processor, as measured last.
    speed: Option<Speed>,
    /// It was measured since the start.
    measured: bool,
    measuring: bool,
}

/// Ids that the page uses in place of paths.
#[derive(Default)]
struct Ids {
    paths: Vec<PathBuf>,
    known: HashMap<PathBuf, usize>,
}

impl Ids {
    fn id_of(&mut self, path: &Path) -> String {
        let next = self.paths.len();
        let number = *self.known.entry(path.to_owned()).or_insert_with(|| {
            self.paths.push(path.to_owned());
            next
        });
        format!("f{number}")
    }

    fn path(&self, id: &str) -> Option<&PathBuf> {
        let number: usize = id.strip_prefix('f')?.parse().ok()?;
        self.paths.get(number)
    }
}

impl Library {
    /// Creates the library with the unfinished downloads of earlier starts, which stay paused until the user resumes
    /// them.
    pub fn new(
        effects: Arc<Effects>,
        begun: Vec<BegunDownload>,
        speed: Option<Speed>,
    ) -> Arc<Self> {
        let library = Arc::new(Self {
            effects,
            state: Mutex::default(),
        });
        let mut state = library.state();
        state.speed = speed;
        let hub = Settings::from_env();
        for BegunDownload { reference, files } in &begun {
            state.queue.add(hub.begun(reference.clone(), files.clone()));
        }
        state.saved = begun;
        drop(state);
        library
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Searches for models and sends the result to the page. A call during a search causes one more search.
    pub async fn search(self: &Arc<Self>) {
        {
            let mut state = self.state();
            if std::mem::replace(&mut state.looking, true) {
                state.again = true;
                return;
            }
        }
        loop {
            let by_hand: Vec<PathBuf> = self.effects.with(|state| {
                let chosen = state.models().iter().filter(|m| !m.choice.in_box);
                chosen.map(|m| PathBuf::from(&m.path)).collect()
            });
            let looked = tokio::task::spawn_blocking(move || find(by_hand)).await;
            let mut state = self.state();
            match looked {
                Ok((found, folders)) => (state.found, state.folders) = (Some(found), folders),
                Err(error) => tracing::error!(%error, "looking for models ended"),
            }
            state.looking = std::mem::take(&mut state.again);
            if !state.looking {
                break;
            }
        }
        self.emit();
    }

    /// Searches for models, then measures the processor once, while nothing else computes, and sends the recommended
    /// models, which their speed ranks. With a GPU, the processor's speed says little.
    pub async fn search_and_measure(self: &Arc<Self>) {
        let may_measure = || self.effects.with(|state| state.may_measure());
        let measures = may_measure() && {
            let mut state = self.state();
            let due = !state.measured && !state.measuring;
            state.measuring |= due;
            due
        };
        self.search().await;
        if measures {
            let speed = Programs::installed().measure_speed().await;
            // A question that was asked meanwhile slowed it down.
            let speed = speed.filter(|_| may_measure());
            let mut state = self.state();
            state.measuring = false;
            if let Some(speed) = speed {
                (state.speed, state.measured) = (Some(speed), true);
                self.effects.save(Save::Speed(speed));
            }
            drop(state);
            self.emit();
        }
    }

    /// Sends the current list to the page without a new search.
    pub fn emit(&self) {
        let models = self.effects.with(|state| state.models().to_vec());
        let mut state = self.state();
        let library = shelf::library(&mut state, &models, available_memory());
        self.effects.emit(AppEvent::Library {
            library: Box::new(library),
        });
        self.effects.emit(AppEvent::Downloads {
            downloads: shelf::downloads(&mut state),
        });
    }

    fn emit_downloads(&self, state: &mut State) {
        self.effects.emit(AppEvent::Downloads {
            downloads: shelf::downloads(state),
        });
    }

    /// The path for an id of the page; `mini` for the built-in model.
    fn path_of(&self, id: &str) -> Result<PathBuf, String> {
        if id == kept_engine::MINI {
            return Ok(PathBuf::from(id));
        }
        let found = self.state().ids.path(id).cloned();
        found.ok_or_else(|| messages::unknown_model(id))
    }

    /// Adds a folder of models.
    pub async fn add_folder(self: &Arc<Self>, folder: PathBuf) {
        let added = blocking(move || Folders::from_env().add(&folder)).await;
        self.outcome(added.map(|_| None)).await;
    }

    /// Removes a folder of models from the search; its files are not deleted.
    pub async fn forget_folder(self: &Arc<Self>, id: &str) -> Result<(), String> {
        let folder = self.path_of(id)?;
        let forgotten = blocking(move || Folders::from_env().forget(&folder)).await;
        self.outcome(forgotten.map(|_| None)).await;
        Ok(())
    }

    /// Reports the outcome of a change (a sentence, an error, or nothing) and searches again.
    async fn outcome(self: &Arc<Self>, outcome: Result<Option<String>, HubError>) {
        let (kind, message) = match outcome {
            Ok(message) => (NoticeKind::Info, message),
            Err(error) => {
                let sentence = messages::as_sentence(&error.to_string());
                (NoticeKind::Error, Some(sentence))
            }
        };
        if let Some(message) = message {
            self.effects
                .with(|state| state.notice(kind, contract::Place::Models, message));
        }
        self.search().await;
    }

    /// The longest document that a model can read with the free memory.
    pub async fn inspect(&self, id: &str, stretch: Option<String>) -> Result<Inspection, String> {
        let path = self.path_of(id)?;
        let answer = self.effects.with(|state| state.inspect(path, stretch))?;
        answer
            .await
            .map_err(|_| messages::ENGINE_ENDED.to_owned())?
    }

    /// Opens a model and makes it the setting.
    pub fn choose(&self, id: &str, stretch: Option<String>) -> Result<(), String> {
        let path = self.path_of(id)?;
        let label = shelf::label(&self.state(), &path);
        self.effects
            .with(|state| state.choose_model(path, label, stretch))?;
        self.emit();
        Ok(())
    }

    /// Removes a model from the hub's cache.
    pub async fn remove_model(self: &Arc<Self>, id: &str) -> Result<(), String> {
        let path = self.path_of(id)?;
        let label = shelf::label(&self.state(), &path);
        let chosen = self.effects.with(|state| state.chosen_path());
        if chosen.is_some_and(|chosen| is_same_file(Path::new(&chosen), &path)) {
            return Err(messages::model_in_use(&label));
        }
        let removed = blocking({
            let path = path.clone();
            move || cache().remove(&path)
        })
        .await;
        if removed.is_ok() {
            self.effects.with(|state| state.forget_model(&path));
        }
        self.outcome(removed.map(|bytes| Some(messages::removed(&label, bytes))))
            .await;
        Ok(())
    }

    /// Removes the partial file of an unfinished download.
    pub async fn remove_unfinished(self: &Arc<Self>, id: &str) -> Result<(), String> {
        let path = self.path_of(id)?;
        let removed = blocking(move || cache().remove_partial(&path)).await;
        let says = |bytes| Some(messages::removed("What had arrived", bytes));
        self.outcome(removed.map(says)).await;
        Ok(())
    }

    /// Resumes an unfinished download of any program; the hub identifies the file.
    pub async fn resume_unfinished(self: &Arc<Self>, id: &str) -> Result<(), String> {
        let path = self.path_of(id)?;
        let Some((repo, sha256)) = cache().partial_of(&path) else {
            return Err(messages::unknown_model(id));
        };
        let reference = Settings::from_env().model_of(&repo, &sha256).await;
        let reference = reference.map_err(|error| messages::as_sentence(&error.to_string()))?;
        self.download(reference);
        self.search().await;
        Ok(())
    }

    /// The models of a repository, for `owner/name` or `owner/name:file`.
    pub async fn offers(&self, written: &str) -> Result<Vec<HubOffer>, String> {
        let said = |error: HubError| messages::as_sentence(&error.to_string());
        let reference: ModelRef = written.parse().map_err(said)?;
        let offers = Settings::from_env()
            .offers(&reference.repo)
            .await
            .map_err(said)?;
        let meant = match &reference.what {
            None => None,
            Some(what) => {
                let files: Vec<Listed> = offers.iter().flat_map(|o| o.files.clone()).collect();
                let meant = choose(&reference.repo, &files, Some(what)).map_err(said)?;
                Some(meant.path().to_owned())
            }
        };
        Ok(shelf::offers(
            &mut self.state(),
            &reference.repo,
            &offers,
            meant.as_deref(),
            available_memory(),
        ))
    }

    /// Queues the download of a model and returns its id.
    pub fn start(self: &Arc<Self>, reference: &str) -> Result<u64, String> {
        let reference: ModelRef = reference
            .parse()
            .map_err(|error: HubError| messages::as_sentence(&error.to_string()))?;
        Ok(self.download(reference))
    }

    fn download(self: &Arc<Self>, reference: ModelRef) -> u64 {
        let name = reference.to_string();
        let mut state = self.state();
        let known = state.queue.entries().iter().find(|entry| {
            let status = entry.transfer.status();
            status.reference == name && status.phase != Phase::Finished
        });
        let id = match known.map(|entry| entry.id) {
            Some(id) => id,
            None => state.queue.add(Settings::from_env().download(reference)),
        };
        drop(state);
        self.resume(id);
        id
    }

    /// Queues a paused download.
    pub fn resume(self: &Arc<Self>, id: u64) {
        let mut state = self.state();
        // The environment is read again, because a token may have been set since.
        let fresh = state.queue.resume(id, |before| {
            let reference = before.status().reference.parse();
            let reference = reference.unwrap_or_else(|_| before.reference().clone());
            Settings::from_env().begun(reference, before.files())
        });
        if let Some(download) = fresh.cloned() {
            self.watch(&download);
        }
        drop(state);
        self.changed();
    }

    /// Pauses a download; the downloaded part is kept.
    pub fn pause(self: &Arc<Self>, id: u64) {
        self.state().queue.pause(id);
        self.changed();
    }

    /// Cancels a download and removes the downloaded part; a finished download is only removed from the list.
    pub fn cancel(self: &Arc<Self>, id: u64) {
        self.state().queue.cancel(id);
        self.changed();
    }

    /// Watches the status of a download until the download is dropped.
    fn watch(self: &Arc<Self>, download: &Download) {
        let library = Arc::clone(self);
        let mut statuses = download.watch();
        tauri::async_runtime::spawn(async move {
            while statuses.changed().await.is_ok() {
                library.changed();
            }
        });
    }

    /// Handles a changed download: starts the next one, updates the page, and saves the unfinished ones.
    fn changed(self: &Arc<Self>) {
        let mut state = self.state();
        let finished = state.queue.advance();
        let begun = shelf::begun(&state);
        if begun != state.saved {
            state.saved.clone_from(&begun);
            self.effects.save(Save::Downloads(begun));
        }
        self.emit_downloads(&mut state);
        drop(state);
        if !finished.is_empty() {
            let library = Arc::clone(self);
            tauri::async_runtime::spawn(async move { library.search().await });
        }
    }
}

fn cache() -> HubCache {
    Settings::from_env().hub_cache()
}

/// Searches for models, and lists the folders that the user added.
fn find(by_hand: Vec<PathBuf>) -> (Found, Vec<PathBuf>) {
    let (finder, trouble) = match Finder::from_env() {
        Ok(finder) => (finder, None),
        Err(error) => {
            let variable = |name: &str| std::env::var_os(name);
            let home = std::env::home_dir();
            let finder = Finder::from_variables(&variable, home.as_deref());
            (finder, Some(error.to_string()))
        }
    };
    let finder = by_hand.into_iter().fold(finder, Finder::with_file);
    let mut found = finder.find();
    found.troubles.extend(trouble);
    let folders = Folders::from_env().list().unwrap_or_default();
    (found, folders)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, HubError> + Send + 'static,
) -> Result<T, HubError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(HubError::Bug(error.to_string())))
}

/// Whether Kept may remove files there.
fn is_ours(place: Place) -> bool {
    place == Place::HubCache
}
