//! A download with its controls: start, pause, resume, cancel, watch.

use std::any::Any;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use crate::cache::{is_sha256, remove_file};
use crate::choose::{Listed, choose};
use crate::progress::{Phase, Status};
use crate::reference::is_file_name;
use crate::remote::Connection;
use crate::reporter::Reporter;
use crate::request_failure::RequestFailure;
use crate::transfer::{DownloadCommand, End, fetch, repeat};
use crate::{HubCache, HubError, HubFile, ModelRef, Settings};

/// A download of one model from the hub to the cache.
///
/// A new download is idle until [`start`](Self::start). It runs on its own thread, so it can be used with or without a
/// runtime. Clones are handles to the same download. Dropping the last handle does not stop it.
#[derive(Clone)]
pub struct Download {
    shared: Arc<Shared>,
}

struct Shared {
    settings: Settings,
    reference: ModelRef,
    command: watch::Sender<DownloadCommand>,
    status: watch::Sender<Status>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Whether the download's thread runs.
    running: bool,
    /// The model's files, from the hub's list; empty before the list is received.
    files: Vec<HubFile>,
    /// The files that are not linked into a snapshot yet; cancelling removes them.
    unnamed: Vec<HubFile>,
    /// The error if the download failed; the status has its message.
    failure: Option<HubError>,
}

impl Download {
    pub(crate) fn new(settings: Settings, reference: ModelRef) -> Download {
        let status = Status::idle(reference.to_string());
        Download {
            shared: Arc::new(Shared {
                settings,
                reference,
                command: watch::channel(DownloadCommand::Run).0,
                status: watch::channel(status).0,
                state: Mutex::default(),
            }),
        }
    }

    /// A download that an earlier run started; see [`Settings::begun`]. Files with names or hashes that no hub uses
    /// are ignored.
    pub(crate) fn begun(settings: Settings, reference: ModelRef, files: Vec<HubFile>) -> Download {
        let cache = HubCache::new(&settings.cache);
        let is_plain = |file: &HubFile| is_sha256(&file.sha256) && is_file_name(&file.path);
        let files: Vec<HubFile> = files.into_iter().filter(is_plain).collect();
        let download = Download::new(settings, reference);
        download.shared.change(|status| {
            status.phase = Phase::Paused;
            status.bytes_total = files.iter().map(|file| file.bytes).sum();
            status.bytes_done = files.iter().map(|file| bytes_on_disk(&cache, file)).sum();
            status.parts = files.len();
        });
        let mut state = download.shared.state();
        let unnamed = files.iter().filter(|file| cache.present(file).is_none());
        state.unnamed = unnamed.cloned().collect();
        state.files = files;
        drop(state);
        download
    }

    /// The model's files, from the hub's list; empty before the list is received. A caller can save the files to show
    /// and resume the download in a later run.
    pub fn files(&self) -> Vec<HubFile> {
        self.shared.state().files.clone()
    }

    /// The model that is downloaded.
    pub fn reference(&self) -> &ModelRef {
        &self.shared.reference
    }

    /// Starts the download, or resumes it after a pause, a failure, or an earlier run of any program. Has no effect
    /// while the download runs.
    pub fn start(&self) {
        let mut state = self.shared.state();
        self.shared.command.send_replace(DownloadCommand::Run);
        if state.running {
            return;
        }
        state.running = true;
        state.failure = None;
        self.shared.change(|status| {
            *status = Status::idle(status.reference.clone());
            status.phase = Phase::Asking;
        });
        let shared = Arc::clone(&self.shared);
        let thread = thread::Builder::new().name("kept-download".to_owned());
        if let Err(error) = thread.spawn(move || shared.run()) {
            state.running = false;
            let what = format!("no thread can be started: {error}");
            self.shared.fail(&mut state, HubError::Bug(what));
        }
    }

    /// Stops the download and keeps the received bytes. Returns at once; the phase is [`Phase::Paused`] once it has
    /// stopped.
    pub fn pause(&self) {
        self.shared.command.send_if_modified(|command| {
            let runs = *command == DownloadCommand::Run;
            if runs {
                *command = DownloadCommand::Pause;
            }
            runs
        });
    }

    /// Stops the download and removes the received bytes. Returns at once; the phase is [`Phase::Cancelled`] once they
    /// are removed. A finished download is kept.
    pub fn cancel(&self) {
        let mut state = self.shared.state();
        self.shared.command.send_replace(DownloadCommand::Cancel);
        if !state.running && self.status().phase != Phase::Finished {
            self.shared.remove_received(&mut state);
        }
    }

    /// Whether a stop was requested and the download was not started again.
    pub fn is_stopping(&self) -> bool {
        *self.shared.command.borrow() != DownloadCommand::Run
    }

    /// The current status.
    pub fn status(&self) -> Status {
        self.shared.status.borrow().clone()
    }

    /// A watch channel of statuses; a status that is not read in time is replaced by the next.
    pub fn watch(&self) -> watch::Receiver<Status> {
        self.shared.status.subscribe()
    }

    /// The error, if the download failed.
    pub fn failure(&self) -> Option<HubError> {
        self.shared.state().failure.clone()
    }

    /// Blocks the thread until the download is at rest (finished, paused, cancelled or failed), and passes every status
    /// to `show`.
    ///
    /// # Errors
    /// [`HubError::Bug`] if no runtime can be created.
    pub fn at_rest_blocking(&self, mut show: impl FnMut(&Status)) -> Result<Status, HubError> {
        let mut watch = self.watch();
        runtime()?.block_on(async {
            loop {
                let status = watch.borrow_and_update().clone();
                show(&status);
                if status.phase.is_at_rest() || watch.changed().await.is_err() {
                    return Ok(status);
                }
            }
        })
    }
}

fn runtime() -> Result<Runtime, HubError> {
    let made = Builder::new_current_thread().enable_all().build();
    made.map_err(|error| HubError::Bug(format!("no runtime can be made: {error}")))
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Status)) {
        self.status.send_modify(change);
    }

    fn fail(&self, state: &mut State, error: HubError) {
        self.change(|status| {
            status.phase = Phase::Failed;
            status.set_speed(None);
            status.message = Some(error.to_string());
            status.can_retry = error.is_retryable();
        });
        state.failure = Some(error);
    }

    /// Removes the received bytes of files that are not in a snapshot yet.
    fn remove_received(&self, state: &mut State) {
        let cache = HubCache::new(&self.settings.cache);
        let mut failure = None;
        for file in state.unnamed.drain(..) {
            // Skip files that another process is downloading.
            let Ok(_lock) = cache.lock(&file) else {
                continue;
            };
            // Another process may have completed it since.
            let pointer = cache.pointer(&file.repo, &file.commit, &file.path);
            if pointer.exists() {
                continue;
            }
            let partial = cache.partial(&file.repo, &file.sha256);
            let blob = cache.blob(&file.repo, &file.sha256);
            for path in [partial, blob] {
                if let Err(error) = remove_file(&path) {
                    failure = Some(error);
                }
            }
        }
        match failure {
            Some(error) => self.fail(state, error),
            None => self.change(|status| {
                let bytes_received = status.bytes_received;
                *status = Status::idle(status.reference.clone());
                (status.phase, status.bytes_received) = (Phase::Cancelled, bytes_received);
            }),
        }
    }

    /// Main function of the download's thread.
    fn run(&self) {
        loop {
            let outcome = catch_unwind(AssertUnwindSafe(|| self.run_once()));
            let outcome = outcome
                .unwrap_or_else(|panic| Err(End::Failed(HubError::Bug(panic_message(&*panic)))));
            let mut state = self.state();
            let command = *self.command.borrow();
            match outcome {
                // Started again before it had stopped.
                Err(End::Stopped) if command == DownloadCommand::Run => continue,
                Err(End::Stopped) if command == DownloadCommand::Pause => self.change(|status| {
                    status.phase = Phase::Paused;
                    status.message = None;
                    status.set_speed(None);
                }),
                Err(End::Stopped) => self.remove_received(&mut state),
                Err(End::Failed(_)) if command == DownloadCommand::Cancel => {
                    self.remove_received(&mut state)
                }
                Err(End::Failed(error)) => self.fail(&mut state, error),
                Err(End::Changed) => {
                    let file = self.reference.to_string();
                    self.fail(&mut state, HubError::Changing(file));
                }
                Ok(path) => {
                    state.unnamed.clear();
                    self.change(|status| {
                        status.phase = Phase::Finished;
                        status.bytes_done = status.bytes_total;
                        status.message = None;
                        status.set_speed(None);
                        status.path = Some(path);
                    });
                }
            }
            state.running = false;
            return;
        }
    }

    fn run_once(&self) -> Result<PathBuf, End> {
        if self.settings.offline {
            return Err(End::Failed(HubError::Offline(self.reference.to_string())));
        }
        runtime()?.block_on(async {
            let connection = Connection::open(&self.settings)?;
            let mut command = self.command.subscribe();
            match self.pull(&connection, &mut command).await {
                // The list was outdated. Get it again, once.
                Err(End::Changed) => self.pull(&connection, &mut command).await,
                outcome => outcome,
            }
        })
    }

    async fn pull(
        &self,
        connection: &Connection,
        command: &mut watch::Receiver<DownloadCommand>,
    ) -> Result<PathBuf, End> {
        let cache = HubCache::new(&self.settings.cache);
        let retries = self.settings.retries;
        let mut reporter = Reporter::new(&self.status);
        let files = self.plan(connection, command, &mut reporter).await?;
        {
            let mut state = self.state();
            let unnamed = files.iter().filter(|file| cache.present(file).is_none());
            state.unnamed = unnamed.cloned().collect();
            state.files.clone_from(&files);
        }
        check_space(&cache, &files)?;
        for (index, file) in files.iter().enumerate() {
            reporter.part(index + 1);
            fetch(connection, &cache, file, retries, command, &mut reporter).await?;
        }
        let mut paths = Vec::with_capacity(files.len());
        for file in &files {
            paths.push(cache.publish(file)?);
        }
        Ok(paths.swap_remove(0))
    }

    /// Gets the files to download from the hub.
    async fn plan(
        &self,
        connection: &Connection,
        command: &mut watch::Receiver<DownloadCommand>,
        reporter: &mut Reporter<'_>,
    ) -> Result<Vec<HubFile>, End> {
        // Nothing was received so far, so the likely cause is a missing connection, which should be reported soon.
        let retries = self.settings.retries.min(1);
        let repo = &self.reference.repo;
        let (commit, listed) = repeat(retries, command, reporter, async |_, _| {
            connection.list(repo).await
        })
        .await?;
        let offer = choose(repo, &listed, self.reference.what.as_deref())?;
        let mut files = Vec::with_capacity(offer.files.len());
        for listed in &offer.files {
            let info = async |_: &mut Reporter<'_>, _: &mut watch::Receiver<DownloadCommand>| {
                connection.file_info(repo, &commit, listed).await
            };
            files.push(repeat(self.settings.retries, command, reporter, info).await?);
        }
        self.change(|status| {
            let first = &files[0].path;
            status.reference = format!("{repo}:{first}");
            status.bytes_total = files.iter().map(|file| file.bytes).sum();
            status.parts = files.len();
        });
        Ok(files)
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panic".to_owned())
}

/// Received bytes of a file.
fn bytes_on_disk(cache: &HubCache, file: &HubFile) -> u64 {
    match cache.present(file) {
        Some(_) => file.bytes,
        None => fs::metadata(cache.partial(&file.repo, &file.sha256))
            .map_or(0, |about| about.len().min(file.bytes)),
    }
}

/// Checks that the remaining bytes fit on the disk.
fn check_space(cache: &HubCache, files: &[HubFile]) -> Result<(), HubError> {
    let needed = files
        .iter()
        .map(|file| file.bytes - bytes_on_disk(cache, file))
        .fold(0, u64::saturating_add);
    match cache.free_space() {
        Some(free) if free < needed => Err(HubError::NoSpace {
            folder: cache.root().display().to_string(),
            free,
            needed,
        }),
        _ => Ok(()),
    }
}

/// The files of a repository, for a page on which the user selects a model. Runs on the caller's runtime.
pub(crate) async fn ask(
    settings: &Settings,
    reference: &ModelRef,
) -> Result<Vec<Listed>, HubError> {
    if settings.offline {
        return Err(HubError::Offline(reference.to_string()));
    }
    let connection = Connection::open(settings)?;
    match connection.list(&reference.repo).await {
        Ok((_, files)) => Ok(files),
        Err(RequestFailure::Permanent(error) | RequestFailure::Retryable { error, .. }) => {
            Err(error)
        }
        Err(RequestFailure::FileChanged | RequestFailure::RestartDownload) => {
            Err(HubError::Changing(reference.to_string()))
        }
    }
}
