//! Questions, comparisons and estimates: accepts, defers or refuses requests, and handles the state of the engine
//! after each.
//!
//! A request that needs a model or document still being opened waits for it; a request whose model or document is
//! neither open nor being opened is refused.

use std::sync::Arc;

use kept_engine::kernels::Stop;
use kept_engine::{Engine, Estimate, Limits, PlanRequest, Turn};
use kept_worker::protocol::{EstimateRequest, Failure, Fault, Reply, Request};

use super::{Dispatcher, Running};
use crate::opening;
use crate::work::{EngineHealth, Job, OpenDocument, OpenModel, parse_budget, with_cache_type};

impl Dispatcher {
    /// Dispatches all deferred requests again after a change.
    pub(super) fn retry_waiting(&mut self) {
        for (request, document) in std::mem::take(&mut self.waiting) {
            // A question stays one about the document for which it was asked.
            let document = document.filter(|_| occupies_engine(&request));
            let document = document.or_else(|| self.document.clone());
            self.dispatch_about(request, document);
        }
    }

    /// Answers, refuses or defers a question, a comparison or an estimate.
    pub(super) fn dispatch(&mut self, request: Request) {
        self.dispatch_about(request, self.document.clone());
    }

    fn dispatch_about(&mut self, request: Request, document: Option<Arc<OpenDocument>>) {
        let Some((ticket, what)) = request.about_document() else {
            return;
        };
        let waits = self
            .waiting
            .iter()
            .any(|(request, _)| occupies_engine(request));
        if let Some(running) = self
            .running
            .as_ref()
            .filter(|running| running.is_background)
            && matches!(what, Failure::Ask | Failure::Compare)
            && !waits
        {
            // The app asks for it again. A reading goes on after the section that is being read, which the question would
            // read otherwise.
            running.pause.request();
            return self.waiting.push((request, document));
        }
        if occupies_engine(&request) && (self.running.is_some() || waits) {
            let why = "another question is being answered; wait for it or stop it, then ask again";
            return self.fail(Some(ticket), what, why);
        }
        match (self.model.clone(), document) {
            (Some(model), Some(document)) => {
                self.run_request(ticket, what, request, model, document)
            }
            (None, _) if self.opening_model.is_none() => {
                let why = "no model is open; choose a model first";
                self.fail(Some(ticket), what, why);
            }
            (_, None) if self.opening_document.is_none() => {
                let why = "no document is open; open one first";
                self.fail(Some(ticket), what, why);
            }
            (_, document) => self.waiting.push((request, document)),
        }
    }

    /// Answers an estimate, once the document's tokens are counted, or starts a question or comparison.
    fn run_request(
        &mut self,
        ticket: u64,
        what: Failure,
        request: Request,
        model: Arc<OpenModel>,
        document: Arc<OpenDocument>,
    ) {
        match request {
            Request::Estimate { .. } if self.length.is_none() => {
                self.waiting.push((request, None));
            }
            Request::Estimate { of, turns, .. } => {
                let estimate = opening::catch_bug(|| {
                    let engine = with_cache_type(&model.engine, of.cache.as_deref())?;
                    self.estimate(&engine, &document, &of, &turns)
                });
                match estimate {
                    Ok(estimate) => self.output.send(&Reply::Estimate { ticket, estimate }),
                    Err(why) => self.fail(Some(ticket), Failure::Estimate, why),
                }
            }
            request => self.start(ticket, what, request, model, document),
        }
    }

    /// The cost of a question of ordinary length, or why the question cannot be asked.
    fn estimate(
        &self,
        engine: &Engine,
        document: &OpenDocument,
        asked: &EstimateRequest,
        turns: &[Turn],
    ) -> Result<Estimate, Fault> {
        let length = match &self.length {
            Some(length) => length.as_ref().map_err(Clone::clone)?,
            None => return Err("the document is not counted yet".into()),
        };
        if let Some(refusal) = &length.too_long {
            return Err(refusal.into());
        }
        let vaults = self.vault_settings.vaults();
        let prompt = length.prompt_after(engine.model(), turns)?;
        let budget = parse_budget(asked.budget.as_deref())?;
        let max_new_tokens = asked.max_tokens.unwrap_or(Engine::DEFAULT_MAX_TOKENS);
        let request = PlanRequest {
            limits: Limits {
                memory: asked.memory,
                ..Limits::default()
            },
            text_bytes: document.document.text.len() as u64,
            vault: vaults.map(|vaults| vaults.kind),
            ..PlanRequest::new(&prompt, &asked.method, budget, max_new_tokens)
        };
        let estimate = match vaults {
            Some(vaults) => engine.estimate_with_vault(&request, &length.prefix_ids, vaults),
            None => engine.estimate(&request),
        };
        Ok(estimate?)
    }

    fn start(
        &mut self,
        ticket: u64,
        what: Failure,
        request: Request,
        model: Arc<OpenModel>,
        document: Arc<OpenDocument>,
    ) {
        let stop = Stop::new();
        let pause = match what {
            Failure::Read => Stop::new(),
            _ => stop.clone(),
        };
        let job = Job {
            ticket,
            what,
            request,
            vault_settings: self.vault_settings.refreshed(),
            model,
            document,
            stop: stop.clone(),
            pause: pause.clone(),
        };
        match self.jobs.send(job) {
            Ok(()) => {
                self.running = Some(Running {
                    ticket,
                    stop,
                    pause,
                    is_background: !matches!(what, Failure::Ask | Failure::Compare),
                });
            }
            // The worker thread ends only after a bug.
            Err(_) => std::process::exit(crate::BROKEN),
        }
    }

    pub(super) fn finish_job(&mut self, reply: &Reply, engine_health: EngineHealth) {
        self.running = None;
        self.output.send(reply);
        self.clear_vaults();
        match engine_health {
            EngineHealth::Sound => {}
            // State that the bug may have corrupted is not used again.
            EngineHealth::Broken => self.reopen_model(),
            // After a GPU failure every later call in this process fails too: the app starts a new process.
            EngineHealth::GpuLost => std::process::exit(crate::GPU_LOST),
        }
        self.retry_waiting();
    }

    fn reopen_model(&mut self) {
        match (&mut self.opening_model, &self.model) {
            (Some(opening), _) => {
                opening.spoiled = true;
                self.model = None;
            }
            (None, Some(model)) => {
                let name = model.name.clone();
                self.open_model(name, true);
                // Unless the old model must be freed first, [`Dispatcher::open_model`] left it in place.
                self.model = None;
            }
            (None, None) => {}
        }
    }

    pub(super) fn stop(&mut self, ticket: u64) {
        if let Some(running) = self.running.as_ref().filter(|r| r.ticket == ticket) {
            running.stop();
            return;
        }
        let of_ticket = |request: &Request| {
            let (of, what) = request.about_document()?;
            (of == ticket && occupies_engine(request)).then_some(what)
        };
        let what = self
            .waiting
            .iter()
            .find_map(|(request, _)| of_ticket(request));
        if let Some(what) = what {
            self.waiting
                .retain(|(request, _)| of_ticket(request).is_none());
            self.report_stopped(Some(ticket), what);
        }
    }
}

/// Whether a request occupies the engine: one such request runs at a time.
fn occupies_engine(request: &Request) -> bool {
    (request.about_document()).is_some_and(|(_, what)| what != Failure::Estimate)
}
