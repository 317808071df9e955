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
use crate::response::{self, CompletedAnswer};
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

/// A part of the answer to a question.
pub(crate) enum AnswerEvent {
    /// The next piece of the answer.
    Text(String),
    /// The end.
    End(Result<Box<CompletedAnswer>, ApiError>),
}

struct Job {
    question: Question,
    stop: Stop,
    events: UnboundedSender<AnswerEvent>,
}

/// A question in the queue. Dropping it ends the question.
pub(crate) struct WaitingQuestion {
    pub(crate) events: UnboundedReceiver<AnswerEvent>,
    stop: Stop,
}

impl Drop for WaitingQuestion {
    fn drop(&mut self) {
        self.stop.request();
    }
}

/// What the engine's thread does.
#[derive(Default)]
struct QueueState {
    /// Ends the question that is being answered.
    running: Option<Stop>,
    /// No further question is answered.
    ending: bool,
}

/// The questions that wait for the engine.
pub(crate) struct Queue {
    jobs: mpsc::Sender<Job>,
    state: Arc<Mutex<QueueState>>,
}

fn lock(state: &Mutex<QueueState>) -> MutexGuard<'_, QueueState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes that `job` is answered from now on; false if no further question is.
fn begin(state: &Mutex<QueueState>, job: &Job) -> bool {
    let mut state = lock(state);
    state.running = Some(job.stop.clone());
    !state.ending
}

impl Queue {
    /// Starts the engine's thread; it ends with the queue.
    pub(crate) fn start(engine: Engine) -> Self {
        let (jobs, mut waiting) = mpsc::channel::<Job>(WAITING);
        let state = Arc::new(Mutex::new(QueueState::default()));
        let shared = state.clone();
        std::thread::spawn(move || {
            while let Some(job) = waiting.blocking_recv() {
                if job.stop.is_requested() {
                    continue;
                }
                if begin(&shared, &job) {
                    run(&engine, &job);
                } else {
                    let _ = job.events.send(AnswerEvent::End(Err(ApiError::Ending)));
                }
            }
        });
        Self { jobs, state }
    }

    /// Ends the answer that is being written, with its text so far, and refuses all questions that wait.
    pub(crate) fn end(&self) {
        let mut state = lock(&self.state);
        state.ending = true;
        if let Some(stop) = &state.running {
            stop.request();
        }
    }

    /// Adds a question.
    ///
    /// # Errors
    /// [`ApiError::Busy`] if too many wait.
    pub(crate) fn add(&self, question: Question) -> Result<WaitingQuestion, ApiError> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let stop = Stop::new();
        let job = Job {
            question,
            stop: stop.clone(),
            events: sender,
        };
        let waiting = WaitingQuestion {
            events: receiver,
            stop,
        };
        let full = |_| ApiError::Busy(WAITING);
        self.jobs.try_send(job).map_err(full)?;
        Ok(waiting)
    }
}

/// Answers a question. A panic ends only this question.
fn run(engine: &Engine, job: &Job) {
    let answered = catch_unwind(AssertUnwindSafe(|| answer(engine, job)));
    let end = answered.unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<String>().cloned();
        let message = message.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        Err(ApiError::Bug(message.unwrap_or_default()))
    });
    // Fails if the client has disconnected.
    let _ = job.events.send(AnswerEvent::End(end.map(Box::new)));
}

fn answer(engine: &Engine, job: &Job) -> Result<CompletedAnswer, ApiError> {
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
        vault: vault
            .as_ref()
            .map(|(folder, kind)| Vaults::new(folder, *kind)),
    };
    let mut cut = StopText::new(stop_texts.clone());
    let mut text = String::new();
    let mut say = |piece: String| {
        text += &piece;
        if !piece.is_empty() && job.events.send(AnswerEvent::Text(piece)).is_err() {
            job.stop.request();
        }
    };
    let answer: Result<Answer, EngineError> = engine.ask(
        &ask,
        &mut |event| {
            if let Event::Token { text } = event {
                say(cut.push(text));
                if cut.found() {
                    job.stop.request();
                }
            }
        },
        &job.stop,
    );
    let answer = answer.map_err(|error| match error {
        error if error.is_stopped() => ApiError::Ending,
        error => ApiError::Engine(error),
    })?;
    if !cut.found() {
        say(cut.rest());
    }
    let map = map.then(|| remembered(document, &answer));
    Ok(response::completed_answer(text, &answer, cut.found(), map))
}

/// The document's text in ranges of equal share.
fn remembered(document: &Document, answer: &Answer) -> Value {
    let runs = kept_engine::runs(&document.text, &answer.prompt, &answer.map);
    let runs = runs.into_iter().map(|run| {
        serde_json::json!({"start": run.range.start, "end": run.range.end, "share": run.share})
    });
    runs.collect()
}
