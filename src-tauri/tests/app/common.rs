//! The app without Tauri: the app state, a real store, a real worker, and a page that records its events.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kept_app::contract::{AppEvent, Choice, Relation, Snapshot, WorkerStatus};
use kept_app::effects::Effects;
use kept_app::store;
use kept_engine::models::testing::TinyLlama;
use tempfile::TempDir;

/// Time limit: long enough for a loaded machine; a test that works never waits this long.
const DEADLINE: Duration = Duration::from_secs(120);

/// The real worker program, in the target folder of this test.
pub fn kept_worker() -> PathBuf {
    let this = std::env::current_exe().expect("the path of this test");
    let folder = this.ancestors().nth(2).expect("target/<profile>/deps");
    let program = folder.join(format!("kept-worker{}", std::env::consts::EXE_SUFFIX));
    assert!(
        program.exists(),
        "{} is missing; build it with: cargo build --workspace --bins",
        program.display()
    );
    program
}

/// An app under test, with its files.
pub struct Window {
    pub effects: Arc<Effects>,
    pub events: Arc<Mutex<Vec<AppEvent>>>,
    pub folder: TempDir,
}

impl Window {
    /// Opens the app with the real worker.
    pub async fn open() -> Self {
        Self::open_in(tempfile::tempdir().expect("a folder")).await
    }

    /// Opens the app with the real worker and the files of `folder`.
    pub async fn open_in(folder: TempDir) -> Self {
        let program = noting_its_id(folder.path(), &kept_worker());
        Self::with(folder, program).await
    }

    /// Opens the app with any program as the worker.
    pub async fn with(folder: TempDir, program: PathBuf) -> Self {
        let opened = store::open(folder.path()).await.expect("a store");
        let lock = store::lock(folder.path()).expect("a lock");
        let effects = kept_app::window::start(opened, lock, program);
        let events = Arc::new(Mutex::new(Vec::new()));
        effects.subscribe(Box::new({
            let events = events.clone();
            move |event| events.lock().expect("whole").push(event)
        }));
        Self {
            effects,
            events,
            folder,
        }
    }

    pub fn snapshot(&self) -> Snapshot {
        self.effects.with(|state| state.snapshot())
    }

    /// Waits until the snapshot satisfies `wanted`.
    pub async fn until(&self, what: &str, wanted: impl Fn(&Snapshot) -> bool) -> Snapshot {
        let started = Instant::now();
        loop {
            let snapshot = self.snapshot();
            if wanted(&snapshot) {
                return snapshot;
            }
            assert!(
                started.elapsed() < DEADLINE,
                "waited in vain: {what}; worker {:?}, model error {:?}, last turn {:?}",
                snapshot.worker,
                snapshot.model_error,
                snapshot.turns.last()
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until the page has received an event that satisfies `wanted`.
    pub async fn until_event(&self, what: &str, wanted: impl Fn(&AppEvent) -> bool) {
        let started = Instant::now();
        while !self.events.lock().expect("whole").iter().any(&wanted) {
            assert!(started.elapsed() < DEADLINE, "waited in vain: {what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until a question can be asked.
    pub async fn until_ready(&self) -> Snapshot {
        self.until("ready for a question", |snapshot| {
            snapshot.worker.state == WorkerStatus::Ready
                && snapshot.model.is_some()
                && snapshot
                    .document
                    .as_ref()
                    .is_some_and(|d| d.tokens.is_some())
        })
        .await
    }

    pub fn ask(&self, question: &str) -> u64 {
        self.effects
            .with(|state| state.ask(question, Choice::plain("snapkv", None), Relation::default()))
            .expect("accepted")
    }

    /// Process ids of all workers so far.
    pub fn workers(&self) -> Vec<String> {
        let ids = std::fs::read_to_string(self.folder.path().join("workers")).unwrap_or_default();
        ids.lines().map(str::to_owned).collect()
    }

    /// Sends SIGKILL to the newest worker.
    pub fn kill(&self) {
        let id = self.workers().pop().expect("a worker");
        let killed = std::process::Command::new("kill")
            .args(["-9", &id])
            .status();
        assert!(killed.expect("kill runs").success(), "worker {id}");
    }

    /// Writes a document and opens it.
    pub async fn open_text(&self, name: &str, text: &str) {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        self.effects.with(|state| state.open_path(path));
        self.until("the document", |snapshot| {
            snapshot.document.as_ref().is_some_and(|d| d.name == name)
        })
        .await;
    }

    /// Opens a slow model with random weights.
    pub async fn open_slow_model(&self) {
        let path = self.folder.path().join("slow.gguf");
        let model = TinyLlama {
            layers: 16,
            width: 512,
            ffn: 2048,
            q_heads: 8,
            context: 32_768,
            kind: "Q8_0",
            ..TinyLlama::default()
        };
        model.write(&path).expect("written");
        self.effects.with(|state| state.open_path(path));
        self.until("the slow model", |snapshot| {
            snapshot
                .model
                .as_ref()
                .is_some_and(|m| m.file == "slow.gguf")
        })
        .await;
        self.until_ready().await;
    }

    /// Closes the app as a user does: all pending writes are completed.
    pub async fn close(self) -> TempDir {
        self.effects.close().await;
        self.folder
    }
}

/// A script that records its process id and then executes `program`.
fn noting_its_id(folder: &Path, program: &Path) -> PathBuf {
    script(
        folder,
        &format!(
            "echo $$ >> '{}'\nexec '{}'",
            folder.join("workers").display(),
            program.display()
        ),
    )
}

/// An executable shell script that stands for the worker. Vaults are in `folder`, not in the user's cache.
pub fn script(folder: &Path, lines: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join("worker.sh");
    let vaults = folder.join("vaults");
    let vaults = format!("export KEPT_VAULTS='{}'", vaults.display());
    std::fs::write(&path, format!("#!/bin/sh\n{vaults}\n{lines}\n")).expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("runnable");
    path
}

/// Text of about `words` words.
pub fn prose(words: usize) -> String {
    (0..words)
        .map(|word| {
            if word % 12 == 11 {
                "world.\n"
            } else {
                "and the "
            }
        })
        .collect()
}
