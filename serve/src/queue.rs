//! The engine's thread: one question at a time, in the order of arrival.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kept_engine::documents::Document;
use kept_engine::kernels::{PackedRows, Stop};
use kept_engine::policies::Budget;
use kept_engine::vault::{VaultFolder, Vaults};
use kept_engine::{Answer, Ask, Engine, EngineError, Event, Limits, MethodSpec, Sampling, Turn};
use serde_json::Value;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use crate::error::ApiError;
use crate::response::{self, Ended};
use crate::stop_text::StopText;

/// Questions that may wait.
const WAITING: usize = 32;

/// A question with all that its answer depends on.
pub(crate) struct Question {
    pub(crate) document: Document,
    pub(crate) turns: Vec<Turn>,
    pub(crate) question: String,
    pub(crate) method: MethodSpec,
    pub(crate) budget: Option<Budget>,
    pub(crate) sampling: Sampling,
    pub(crate) max_tokens: usize,
    pub(crate) thinking: bool,
    pub(crate) limits: Limits,
    pub(crate) vault: Option<(VaultFolder, PackedRows)>,
    pub(crate) stop_texts: Vec<String>,
    /// Whether the answer has the retention map.
    pub(crate) map: bool,
}

/// What the engine says about a question.
pub(crate) enum Said {
    /// The next piece of the answer.
    Text(String),
    /// The end.
    End(Result<Box<Ended>, ApiError>),
}

struct Job {
    question: Question,
    stop: Stop,
    said: UnboundedSender<Said>,
}

/// A question in the queue. Dropping it ends the question.
pub(crate) struct Waiting {
    pub(crate) said: UnboundedReceiver<Said>,
    stop: Stop,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.stop.request();
    }
}

/// What the engine's thread does.
#[derive(Default)]
struct Now {
    /// Ends the question that is being answered.
    running: Option<Stop>,
    /// No further question is answered.
    ending: bool,
}

/// The questions that wait for the engine.
pub(crate) struct Queue {
    jobs: mpsc::Sender<Job>,
    now: Arc<Mutex<Now>>,
}

fn lock(now: &Mutex<Now>) -> MutexGuard<'_, Now> {
    now.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes that `job` is answered from now on; false if no further question is.
fn begin(now: &Mutex<Now>, job: &Job) -> bool {
    let mut now = lock(now);
    now.running = Some(job.stop.clone());
    !now.ending
}

impl Queue {
    /// Starts the engine's thread; it ends with the queue.
    pub(crate) fn start(engine: Engine) -> Self {
        let (jobs, mut waiting) = mpsc::channel::<Job>(WAITING);
        let now = Arc::new(Mutex::new(Now::default()));
        let seen = now.clone();
        std::thread::spawn(move || {
            while let Some(job) = waiting.blocking_recv() {
                if job.stop.is_requested() {
                    continue;
                }
                if begin(&seen, &job) {
                    run(&engine, &job);
                } else {
                    let _ = job.said.send(Said::End(Err(ApiError::Ending)));
                }
            }
        });
        Self { jobs, now }
    }

    /// Ends the answer that is being written, with its text so far, and refuses all questions that wait.
    pub(crate) fn end(&self) {
        let mut now = lock(&self.now);
        now.ending = true;
        if let Some(stop) = &now.running {
            stop.request();
        }
    }

    /// Adds a question.
    ///
    /// # Errors
    /// [`ApiError::Busy`] if too many wait.
    pub(crate) fn add(&self, question: Question) -> Result<Waiting, ApiError> {
        let (said, hears) = mpsc::unbounded_channel();
        let stop = Stop::new();
        let job = Job {
            question,
            stop: stop.clone(),
            said,
        };
        let waiting = Waiting { said: hears, stop };
        let full = |_| ApiError::Busy(WAITING);
        self.jobs.try_send(job).map_err(full)?;
        Ok(waiting)
    }
}

/// Answers a question. A panic ends only this question.
fn run(engine: &Engine, job: &Job) {
    let answered = catch_unwind(AssertUnwindSafe(|| answer(engine, job)));
    let end = answered.unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().cloned();
        let said = said.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        Err(ApiError::Bug(said.unwrap_or_default()))
    });
    // A client that has gone hears nothing.
    let _ = job.said.send(Said::End(end.map(Box::new)));
}

fn answer(engine: &Engine, job: &Job) -> Result<Ended, ApiError> {
    let Question {
        document,
        turns,
        question,
        method,
        budget,
        sampling,
        max_tokens,
        thinking,
        limits,
        vault,
        stop_texts,
        map,
    } = &job.question;
    let ask = Ask {
        document,
        turns,
        question,
        method,
        budget: *budget,
        sampling,
        max_tokens: *max_tokens,
        thinking: *thinking,
        limits: *limits,
        vault: vault.as_ref().map(|(folder, kind)| Vaults {
            folder,
            kind: *kind,
        }),
    };
    let mut cut = StopText::new(stop_texts.clone());
    let mut text = String::new();
    let mut say = |piece: String| {
        text += &piece;
        if !piece.is_empty() && job.said.send(Said::Text(piece)).is_err() {
            job.stop.request();
        }
    };
    let answer: Result<Answer, EngineError> = engine.ask(
        &ask,
        &mut |event| {
            if let Event::Token { text } = event {
                say(cut.push(&text));
                if cut.found() {
                    job.stop.request();
                }
            }
        },
        &job.stop,
    );
    let answer = answer.map_err(|error| match error {
        EngineError::Stopped => ApiError::Ending,
        error => ApiError::Engine(error),
    })?;
    if !cut.found() {
        say(cut.rest());
    }
    let map = map.then(|| remembered(document, &answer));
    Ok(response::ended(text, &answer, cut.found(), map))
}

/// The document's text in ranges of equal share.
fn remembered(document: &Document, answer: &Answer) -> Value {
    let runs = kept_engine::runs(&document.text, &answer.prompt, &answer.map);
    let runs = runs.into_iter().map(|run| {
        serde_json::json!({"start": run.range.start, "end": run.range.end, "share": run.share})
    });
    runs.collect()
}
