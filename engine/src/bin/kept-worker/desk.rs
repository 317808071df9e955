//! What is open, what is being opened, what is being asked: every decision is made here, one at a time.
//!
//! A question or an estimate that needs something which is still being opened waits for it; one that needs something nobody
//! opens is refused.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use kept_engine::kernels::{Stop, UnknownCacheType};
use kept_engine::policies::Budget;
use kept_engine::protocol::{Failure, MethodChoice, Reply, Request};
use kept_engine::{DocumentLength, Engine, EngineError, Estimate};

use crate::asking::{self, Job, Question, Work};
use crate::comparing::Comparison;
use crate::facts;
use crate::joining;
use crate::keeping::Keeping;
use crate::opening::{self, ModelName, OpenDocument, OpenModel, Outcome};
use crate::output::Output;

/// What the desk hears.
pub enum Input {
    /// From the window, with its bytes.
    Request(Request, Vec<u8>),
    /// A message that was JSON, but no request; the sentence says why.
    NotUnderstood(String),
    /// Opening a model has ended; the number tells which.
    ModelOpened(u64, Outcome<Arc<OpenModel>>),
    /// Opening a document has ended.
    DocumentOpened(u64, Outcome<Arc<OpenDocument>>),
    /// The document's tokens were counted.
    Counted(u64, Outcome<DocumentLength>),
    /// The question has ended with this reply; `broken` after a bug in the engine.
    Ended { reply: Reply, broken: bool },
}

/// The question or comparison that runs.
struct Running {
    ticket: u64,
    stop: Stop,
}

/// A model that is being opened.
struct Opening {
    number: u64,
    /// Whether the window asked for it, and so is told when it is there.
    asked: bool,
}

/// See the head of this file.
pub struct Desk {
    output: Output,
    inbox: Sender<Input>,
    jobs: Sender<Job>,
    model: Option<Arc<OpenModel>>,
    document: Option<Arc<OpenDocument>>,
    /// The open document's length for the open model, once it is counted.
    length: Option<Outcome<DocumentLength>>,
    /// Numbers of what is being opened or counted now. What ends under another number is no longer wanted.
    opening_model: Option<Opening>,
    opening_document: Option<u64>,
    /// Whether that is one more, beside what is open.
    adding: bool,
    counting: Option<u64>,
    /// The last number given.
    number: u64,
    running: Option<Running>,
    /// Questions, comparisons and estimates that wait for something to be opened or counted.
    waiting: Vec<Request>,
    /// How documents are kept for later questions.
    keeping: Keeping,
}

impl Desk {
    /// A desk with nothing on it. Whatever works for it reports to `inbox`.
    pub fn new(output: Output, inbox: Sender<Input>) -> Self {
        Self {
            jobs: asking::start(output.clone(), inbox.clone()),
            output,
            inbox,
            model: None,
            document: None,
            length: None,
            opening_model: None,
            opening_document: None,
            adding: false,
            counting: None,
            number: 0,
            running: None,
            waiting: Vec::new(),
            keeping: Keeping::default(),
        }
    }

    /// Decides until nobody is left to say anything.
    pub fn run(mut self, inputs: Receiver<Input>) {
        for input in inputs {
            match input {
                Input::Request(request, bytes) => self.request(request, bytes),
                Input::NotUnderstood(why) => self.fail(
                    None,
                    Failure::Request,
                    format!("the engine was asked for something it does not know ({why}); install window and engine of the same version"),
                ),
                Input::ModelOpened(number, outcome) => self.model_opened(number, outcome),
                Input::DocumentOpened(number, outcome) => self.document_opened(number, outcome),
                Input::Counted(number, outcome) if self.counting == Some(number) => {
                    self.counting = None;
                    self.tell_length(&outcome);
                    self.length = Some(outcome);
                    self.settle();
                }
                Input::Counted(..) => {}
                Input::Ended { reply, broken } => self.ended(&reply, broken),
            }
        }
    }

    fn request(&mut self, request: Request, bytes: Vec<u8>) {
        match request {
            Request::OpenModel { model, stretch } => {
                self.open_model(ModelName { model, stretch }, true);
            }
            Request::InspectModel {
                ticket,
                model,
                stretch,
            } => opening::inspect(ticket, ModelName { model, stretch }, self.output.clone()),
            Request::OpenDocument { path } => self.open_document(path, false),
            Request::AddDocument { path } => self.open_document(path, true),
            Request::RemoveDocument { part } => self.remove_document(part),
            Request::AdoptDocument { document } => {
                self.give_up_document();
                let adopted = String::from_utf8(bytes)
                    .map_err(|_| {
                        format!(
                            "the text of {} is not UTF-8; open the file again",
                            document.name
                        )
                    })
                    .and_then(|text| facts::adopted(&document, text));
                match adopted {
                    Ok(text) => self.place(Arc::new(OpenDocument {
                        info: document,
                        document: text,
                    })),
                    Err(why) => self.fail(None, Failure::Request, why),
                }
            }
            Request::Estimate { .. } | Request::Ask { .. } | Request::Compare { .. } => {
                self.consider(request)
            }
            Request::KeepDocuments {
                ticket,
                kind,
                budget,
            } => match Keeping::named(&kind, budget) {
                Ok(keeping) => {
                    self.keeping = keeping;
                    self.tell_vaults(ticket);
                }
                Err(why) => self.fail(Some(ticket), Failure::Vaults, why),
            },
            Request::Vaults { ticket } => self.tell_vaults(ticket),
            Request::ClearVaults { ticket } => match self.keeping.clear() {
                Ok(()) => self.tell_vaults(ticket),
                Err(why) => self.fail(Some(ticket), Failure::Vaults, why),
            },
            Request::Stop { ticket: 0 } => self.give_up_document(),
            Request::Stop { ticket } => self.stop(ticket),
        }
    }

    fn tell_vaults(&self, ticket: u64) {
        match self.keeping.now().told(ticket) {
            Ok(reply) => self.output.say(&reply),
            Err(why) => self.fail(Some(ticket), Failure::Vaults, why),
        }
    }

    /// Opens the model that `name` means, because the window asked for it or because it must be made anew.
    fn open_model(&mut self, name: ModelName, asked: bool) {
        let number = self.next_number();
        let before = self.opening_model.replace(Opening { number, asked });
        if before.is_some_and(|before| before.asked) {
            self.stopped(None, Failure::Model);
        }
        opening::model(number, name, self.inbox.clone());
    }

    fn model_opened(&mut self, number: u64, outcome: Outcome<Arc<OpenModel>>) {
        let Some(opening) = self.opening_model.take_if(|o| o.number == number) else {
            return;
        };
        match outcome {
            Ok(model) => {
                if opening.asked {
                    self.output.say(&Reply::Model {
                        model: model.facts.clone(),
                    });
                }
                self.model = Some(model);
                self.count();
            }
            // The model before stays open.
            Err(why) => self.fail(None, Failure::Model, why),
        }
        self.settle();
    }

    fn open_document(&mut self, path: PathBuf, adding: bool) {
        self.give_up_document();
        self.adding = adding;
        self.opening_document = Some(self.next_number());
        opening::document(self.number, path, self.inbox.clone());
    }

    fn document_opened(&mut self, number: u64, outcome: Outcome<Arc<OpenDocument>>) {
        if self.opening_document != Some(number) {
            return;
        }
        self.opening_document = None;
        let outcome = outcome.and_then(|document| match &self.document {
            Some(open) if self.adding => joining::added(open, &document).map(Arc::new),
            _ => Ok(document),
        });
        self.tell_document(outcome);
    }

    /// Takes one of several joined documents away.
    fn remove_document(&mut self, part: usize) {
        self.give_up_document();
        let outcome = match &self.document {
            Some(open) => joining::removed(open, part).map(Arc::new),
            None => Err("no document is open; open one first".to_owned()),
        };
        self.tell_document(outcome);
    }

    fn tell_document(&mut self, outcome: Outcome<Arc<OpenDocument>>) {
        match outcome {
            Ok(document) => {
                let reply = Reply::Document {
                    document: document.info.clone(),
                };
                let text = document.document.text.as_bytes();
                self.output.say_with(&reply, text);
                self.place(document);
            }
            // The document before stays open.
            Err(why) => self.fail(None, Failure::Document, why),
        }
        self.settle();
    }

    /// Nobody waits any more for the document that is being opened. Its thread finds out when it is done.
    fn give_up_document(&mut self) {
        if self.opening_document.take().is_some() {
            self.stopped(None, Failure::Document);
            self.settle();
        }
    }

    fn place(&mut self, document: Arc<OpenDocument>) {
        self.document = Some(document);
        self.count();
        self.settle();
    }

    /// Counts the document's tokens for the model, if both are there.
    fn count(&mut self) {
        (self.length, self.counting) = (None, None);
        if let (Some(model), Some(document)) = (self.model.clone(), self.document.clone()) {
            self.counting = Some(self.next_number());
            opening::count(self.number, model, document, self.inbox.clone());
        }
    }

    fn tell_length(&self, counted: &Outcome<DocumentLength>) {
        let Some(model) = &self.model else { return };
        let (tokens, at_least, refusal, streaming) = match counted {
            Ok(length) => {
                let refusal = length.too_long.as_ref().map(ToString::to_string);
                (
                    length.tokens,
                    length.at_least,
                    refusal,
                    length.streaming.clone(),
                )
            }
            Err(why) => (0, false, Some(why.clone()), None),
        };
        self.output.say(&Reply::Tokens {
            tokens,
            at_least,
            context: model.facts.context,
            fits: refusal.is_none(),
            streams: refusal.is_none() && streaming.is_some(),
            message: refusal.or(streaming),
        });
    }

    /// Goes through what waited, now that something has changed.
    fn settle(&mut self) {
        for request in std::mem::take(&mut self.waiting) {
            self.consider(request);
        }
    }

    /// Answers, refuses or puts off a question, a comparison or an estimate.
    fn consider(&mut self, request: Request) {
        let (ticket, what) = match &request {
            Request::Ask { ticket, .. } => (*ticket, Failure::Ask),
            Request::Compare { ticket, .. } => (*ticket, Failure::Compare),
            Request::Estimate { ticket, .. } => (*ticket, Failure::Estimate),
            _ => return,
        };
        if works(&request) && (self.running.is_some() || self.waiting.iter().any(works)) {
            let why = "another question is being answered; wait for it or stop it, then ask again";
            return self.fail(Some(ticket), what, why.to_owned());
        }
        let (model, document) = match (self.model.clone(), self.document.clone()) {
            (Some(model), Some(document)) => (model, document),
            (None, _) if self.opening_model.is_none() => {
                let why = "no model is open; choose a model first";
                return self.fail(Some(ticket), what, why.to_owned());
            }
            (_, None) if self.opening_document.is_none() => {
                let why = "no document is open; open one first";
                return self.fail(Some(ticket), what, why.to_owned());
            }
            _ => return self.waiting.push(request),
        };
        match request {
            Request::Estimate {
                method,
                budget,
                cache,
                ..
            } => match &self.length {
                None => self.waiting.push(Request::Estimate {
                    ticket,
                    method,
                    budget,
                    cache,
                }),
                Some(length) => {
                    let told = stored(&model.engine, cache.as_deref()).and_then(|engine| {
                        estimate(&engine, length, &method, budget, &self.keeping)
                    });
                    match told {
                        Ok(estimate) => self.output.say(&Reply::Estimate { ticket, estimate }),
                        Err(why) => self.fail(Some(ticket), what, why),
                    }
                }
            },
            Request::Ask {
                question,
                method,
                budget,
                max_tokens,
                temperature,
                seed,
                thinking,
                cache,
                ..
            } => {
                let question = Question {
                    text: question,
                    method,
                    budget,
                    max_tokens,
                    temperature,
                    seed,
                    keeping: self.keeping.now(),
                    thinking,
                    cache,
                };
                self.start(ticket, model, document, Work::Ask(question));
            }
            Request::Compare {
                question,
                max_tokens,
                runs,
                cache,
                ..
            } => {
                let comparison = Comparison {
                    question,
                    max_tokens,
                    runs,
                    cache,
                };
                self.start(ticket, model, document, Work::Compare(comparison));
            }
            _ => {}
        }
    }

    fn start(
        &mut self,
        ticket: u64,
        model: Arc<OpenModel>,
        document: Arc<OpenDocument>,
        work: Work,
    ) {
        let stop = Stop::new();
        let job = Job {
            ticket,
            model,
            document,
            stop: stop.clone(),
            work,
        };
        match self.jobs.send(job) {
            Ok(()) => self.running = Some(Running { ticket, stop }),
            // Its thread never ends by itself.
            Err(_) => std::process::exit(crate::BROKEN),
        }
    }

    fn ended(&mut self, reply: &Reply, broken: bool) {
        self.running = None;
        self.output.say(reply);
        if broken && let Some(model) = self.model.take() {
            // Nothing that the bug may have left behind is used again.
            if self.opening_model.is_none() {
                let name = ModelName {
                    model: model.facts.choice.clone(),
                    stretch: model.facts.stretch.clone(),
                };
                self.open_model(name, false);
            }
        }
    }

    fn stop(&mut self, ticket: u64) {
        if let Some(running) = self.running.as_ref().filter(|r| r.ticket == ticket) {
            running.stop.request();
            return;
        }
        let of_ticket = |request: &Request| match request {
            Request::Ask { ticket: t, .. } if *t == ticket => Some(Failure::Ask),
            Request::Compare { ticket: t, .. } if *t == ticket => Some(Failure::Compare),
            _ => None,
        };
        let what = self.waiting.iter().find_map(of_ticket);
        if let Some(what) = what {
            self.waiting.retain(|request| of_ticket(request).is_none());
            self.stopped(Some(ticket), what);
        }
    }

    fn fail(&self, ticket: Option<u64>, what: Failure, message: String) {
        self.output.say(&Reply::Failed {
            ticket,
            what,
            message,
            stopped: false,
        });
    }

    fn stopped(&self, ticket: Option<u64>, what: Failure) {
        self.output.say(&Reply::Failed {
            ticket,
            what,
            message: "stopped".to_owned(),
            stopped: true,
        });
    }

    fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }
}

/// Whether a request keeps the engine busy: one of these at a time.
fn works(request: &Request) -> bool {
    matches!(request, Request::Ask { .. } | Request::Compare { .. })
}

/// What a question of ordinary length would cost, or why it cannot be asked.
fn estimate(
    engine: &Engine,
    length: &Outcome<DocumentLength>,
    method: &MethodChoice,
    budget: Option<String>,
    keeping: &Keeping,
) -> Result<Estimate, String> {
    let length = length.as_ref().map_err(Clone::clone)?;
    if let Some(refusal) = &length.too_long {
        return Err(refusal.to_string());
    }
    let budget = parse_budget(budget.as_deref())?;
    let room = Engine::DEFAULT_MAX_TOKENS;
    let said = |error: EngineError| error.to_string();
    let mut estimate = engine
        .estimate(&length.prompt, method, budget, room)
        .map_err(said)?;
    if let Some(vaults) = keeping.vaults() {
        let (method, budget) = match &estimate.chosen {
            Some(chosen) => (&chosen.method, Some(Budget::Rows(chosen.rows))),
            None => (method, budget),
        };
        estimate.tokens_from_vault = engine
            .foresee_vault(&length.begins, &length.prompt, method, budget, room, vaults)
            .map_err(said)?;
    }
    Ok(estimate)
}

/// The engine that stores kept rows as `cache`, if that is named.
pub fn stored(engine: &Engine, cache: Option<&str>) -> Result<Engine, String> {
    match cache {
        Some(name) => match name.parse() {
            Ok(cache) => Ok(engine.clone().with_cache(cache)),
            Err(error) => Err(UnknownCacheType::to_string(&error)),
        },
        None => Ok(engine.clone()),
    }
}

/// The budget as a person wrote it.
pub fn parse_budget(budget: Option<&str>) -> Result<Option<Budget>, String> {
    budget
        .map(|text| text.parse::<Budget>().map_err(|error| error.to_string()))
        .transpose()
}

#[cfg(all(test, unix))]
mod tests;
