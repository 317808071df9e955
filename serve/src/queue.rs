//! The engine's thread: one question at a time, in the order of arrival.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use kept_engine::documents::Document;
use kept_engine::kernels::{DeviceError, PackedRows, Stop};
use kept_engine::policies::Budget;
use kept_engine::vault::{VaultFolder, Vaults};
use kept_engine::{Answer, Ask, Engine, EngineError, Event, Limits, MethodSpec, Sampling, Turn};
use serde_json::Value;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::error::ApiError;
use crate::response::{self, CompletedAnswer};
use crate::stop_text::StopText;

/// Questions that may wait.
const WAITING: usize = 32;

/// A question with all that its answer depends on.
pub(crate) struct Question {
    /// They are joined when the question is asked.
    pub(crate) documents: Vec<Arc<Document>>,
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

#[derive(Default)]
struct QueueState {
    /// The questions that wait, in the order of arrival.
    waiting: VecDeque<Job>,
    /// Ends the question that is being answered.
    running: Option<Stop>,
    /// No further question is answered.
    ending: bool,
    /// The sentence of an error after which the engine answers nothing.
    lost: Option<String>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<QueueState>,
    /// A question came, or the queue ends.
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next question, which is answered from now on; `None` if no further one is.
    fn next(&self) -> Option<Job> {
        let idle = |state: &mut QueueState| state.waiting.is_empty() && !state.ending;
        let waited = self.changed.wait_while(self.lock(), idle);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        let job = state.waiting.pop_front().filter(|_| !state.ending)?;
        state.running = Some(job.stop.clone());
        Some(job)
    }

    /// Ends the answer that is being written, with its text so far, and refuses all questions that wait.
    fn end(&self) {
        let mut state = self.lock();
        state.ending = true;
        if let Some(stop) = &state.running {
            stop.request();
        }
        for job in state.waiting.drain(..) {
            // Fails if the client has disconnected.
            let _ = job.events.send(AnswerEvent::End(Err(ApiError::Ending)));
        }
        self.changed.notify_all();
    }
}

/// The questions that wait for the engine.
pub(crate) struct Queue(Arc<Shared>);

impl Queue {
    /// Starts the engine's thread. After an error that no later question survives it requests `stop`.
    pub(crate) fn start(engine: Engine, stop: Stop) -> Self {
        let shared = Arc::new(Shared::default());
        let own = shared.clone();
        std::thread::spawn(move || {
            while let Some(job) = own.next() {
                // Its client may have disconnected.
                if job.stop.is_requested() {
                    continue;
                }
                if let Some(lost) = run(&engine, &job) {
                    own.lock().lost = Some(lost);
                    own.end();
                    stop.request();
                }
            }
        });
        Self(shared)
    }

    /// Ends the answer that is being written, with its text so far, and refuses all questions that wait.
    pub(crate) fn end(&self) {
        self.0.end();
    }

    /// The sentence of an error after which the engine answers nothing.
    pub(crate) fn lost(&self) -> Option<String> {
        self.0.lock().lost.clone()
    }

    /// Adds a question.
    ///
    /// # Errors
    /// [`ApiError::Busy`] if too many wait, [`ApiError::Ending`].
    pub(crate) fn add(&self, question: Question) -> Result<WaitingQuestion, ApiError> {
        let mut state = self.0.lock();
        if state.ending {
            return Err(ApiError::Ending);
        }
        // Without those whose clients have disconnected.
        state.waiting.retain(|job| !job.stop.is_requested());
        if state.waiting.len() >= WAITING {
            return Err(ApiError::Busy(WAITING));
        }
        let (sender, receiver) = unbounded_channel();
        let stop = Stop::new();
        state.waiting.push_back(Job {
            question,
            stop: stop.clone(),
            events: sender,
        });
        self.0.changed.notify_one();
        Ok(WaitingQuestion {
            events: receiver,
            stop,
        })
    }
}

/// Answers a question. A panic ends only this question. Returns the sentence of an error after which the engine answers
/// nothing.
fn run(engine: &Engine, job: &Job) -> Option<String> {
    let answered = catch_unwind(AssertUnwindSafe(|| answer(engine, job)));
    let end = answered.unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<String>().cloned();
        let message = message.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        Err(ApiError::Bug(message.unwrap_or_default()))
    });
    let lost = match &end {
        Err(ApiError::Engine(error @ EngineError::Gpu(DeviceError::Failed { .. }))) => {
            Some(error.to_string())
        }
        _ => None,
    };
    // Fails if the client has disconnected.
    let _ = job.events.send(AnswerEvent::End(end.map(Box::new)));
    lost
}

fn answer(engine: &Engine, job: &Job) -> Result<CompletedAnswer, ApiError> {
    let Question {
        documents,
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
    let joined = match documents.as_slice() {
        [_] => None,
        [] => Some(Document::empty()),
        several => Some(Document::join(
            several.iter().map(|one| Document::clone(one)).collect(),
        )),
    };
    let document = joined.as_ref().unwrap_or_else(|| &documents[0]);
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
