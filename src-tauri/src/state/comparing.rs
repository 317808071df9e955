//! A comparison: starting, filling run by run, stopping, continuing, exporting. A document has one, which is stored
//! with it.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::time::Instant;

use kept_eval::fidelity::{ReferenceReport, RunReport};
use kept_worker::protocol::{CompareRequest, CompareRun, Request};
use serde_json::json;

use super::asking::method_of;
use super::background::{ComparedMaps, StoredComparison};
use super::checks::check_choice;
use super::parts::Compared;
use super::waiting::Running;
use super::{AppState, Save};
use crate::contract::{
    AppEvent, Choice, Comparison, ComparisonRun, ComparisonState, NoticeKind, Place, Progress,
    ReferenceResult, RunResult,
};
use crate::messages::{self, as_sentence};
use crate::names::file_name;

/// Maximum number of runs of one comparison.
const MAX_RUNS: usize = 200;
/// Maximum answer length of the full cache that the methods are compared along, in tokens: as in the terminal program.
const ANSWER_TOKENS: usize = 64;

impl AppState {
    /// The ends of the cells of a comparison's maps, or the shares of one `run`; see
    /// [`kept_worker::protocol::Reply::Run`].
    ///
    /// # Errors
    /// One sentence, if there is no such map.
    pub fn compared_map(&self, comparison: u64, run: Option<usize>) -> Result<Vec<u8>, String> {
        let Compared {
            comparison: of,
            maps,
            ..
        } = &self.compared;
        let found = match run {
            None => Some(&maps.ends),
            Some(run) => maps.shares.get(&run),
        };
        let is_of = of.as_ref().is_some_and(|of| of.id == comparison);
        let found = found.filter(|found| is_of && !found.is_empty());
        found.cloned().ok_or_else(|| messages::NO_MAP.to_owned())
    }

    /// Starts a comparison and returns its id, or the reason for a refusal in one sentence.
    pub fn compare(&mut self, question: &str, runs: Vec<Choice>) -> Result<u64, String> {
        let question = question.trim();
        if question.is_empty() {
            return Err(messages::EMPTY_QUESTION.to_owned());
        }
        self.ready_to_compare()?;
        if runs.is_empty() {
            return Err(messages::NOTHING_TO_COMPARE.to_owned());
        }
        if runs.len() > MAX_RUNS {
            return Err(messages::too_many_runs(runs.len(), MAX_RUNS));
        }
        runs.iter().try_for_each(check_choice)?;
        let ticket = self.ticket();
        self.compared.document = self.document().map_or(0, |document| document.facts.id);
        self.compared.maps = ComparedMaps::default();
        self.compared.comparison = Some(Comparison {
            id: ticket,
            question: question.to_owned(),
            document: (self.document()).map_or_else(String::new, |d| d.info.name.clone()),
            model: self.model_label(),
            max_tokens: self.settings.max_tokens.min(ANSWER_TOKENS),
            cache: self.settings.cache.clone(),
            state: ComparisonState::Running,
            error: None,
            reference: None,
            runs: (runs.into_iter())
                .map(|choice| ComparisonRun {
                    choice,
                    result: None,
                })
                .collect(),
            current: None,
            sharing: 1,
            progress: None,
        });
        self.request_runs(0);
        Ok(ticket)
    }

    /// Does the runs that a comparison lacks, because it was stopped or has failed. Its other runs remain.
    ///
    /// # Errors
    /// One sentence, if it lacks none, is of another model, or something else runs.
    pub fn continue_comparison(&mut self) -> Result<(), String> {
        self.ready_to_compare()?;
        let (model, ticket) = (self.model_label(), self.ticket());
        let Some(comparison) = &mut self.compared.comparison else {
            return Err(messages::NOTHING_TO_CONTINUE.to_owned());
        };
        let Some(from) = (comparison.runs.iter()).position(|run| run.result.is_none()) else {
            return Err(messages::NOTHING_TO_CONTINUE.to_owned());
        };
        if comparison.model != model {
            return Err(messages::compared_with(&comparison.model));
        }
        comparison.id = ticket;
        comparison.sharing = 1;
        (comparison.state, comparison.error) = (ComparisonState::Running, None);
        self.request_runs(from);
        Ok(())
    }

    /// # Errors
    /// One sentence, if nothing can be compared now.
    fn ready_to_compare(&self) -> Result<(), String> {
        self.ready_for_questions(&self.open)?;
        if self.is_comparing() {
            return Err(messages::BUSY_COMPARING.to_owned());
        }
        if self.is_running() {
            return Err(messages::BUSY.to_owned());
        }
        if let Some(opening) = &self.file.opening {
            return Err(messages::still_opening(&opening.name));
        }
        if self.open.is_streamed() {
            return Err(messages::COMPARE_STREAMED.to_owned());
        }
        Ok(())
    }

    /// Requests the runs of the comparison from run `from` on.
    fn request_runs(&mut self, from: usize) {
        let question = self
            .compared
            .comparison
            .as_ref()
            .map(|c| c.question.clone());
        // It is found again in the list.
        self.add_question(&question.unwrap_or_default(), 0);
        self.compared.conversation = self.open.conversation;
        let Some(comparison) = &self.compared.comparison else {
            return;
        };
        let ticket = comparison.id;
        // The memory limit of the settings does not apply, and the page states this: a comparison requires the full
        // cache with its attention along the whole answer, of which nothing can be left out.
        let request = Request::Compare {
            ticket,
            compare: CompareRequest {
                question: comparison.question.clone(),
                max_tokens: comparison.max_tokens,
                runs: (comparison.runs[from..].iter())
                    .map(|ComparisonRun { choice, .. }| CompareRun {
                        method: method_of(choice),
                        budget: choice.budget.clone(),
                    })
                    .collect(),
                cache: comparison.cache.clone(),
            },
        };
        self.compared.from = from;
        self.emit_comparison();
        if self.running.is_some() {
            // The question of a deleted conversation is still ending.
            self.compared.held = Some(request);
        } else {
            self.start_comparing(request, ticket);
        }
    }

    pub(super) fn start_comparing(&mut self, request: Request, ticket: u64) {
        self.running = Some(Running::without_turn(ticket));
        self.send(request, None);
    }

    /// Stops the running comparison, if any; finished runs remain.
    pub fn stop_comparison(&mut self) {
        let Some(ticket) = self.compared.ticket() else {
            return;
        };
        if self.compared.held.take().is_some() {
            return self.end_comparison(ticket, ComparisonState::Stopped, None);
        }
        self.send(Request::Stop { ticket }, None);
    }

    /// Sets the comparison of the document that was opened, as it was stored.
    pub(super) fn load_comparison(&mut self, stored: Option<StoredComparison>) {
        let mut compared = Compared::default();
        if let Some(StoredComparison {
            mut comparison,
            maps,
        }) = stored
        {
            if comparison.state == ComparisonState::Running {
                comparison.state = ComparisonState::Stopped;
            }
            comparison.id = self.ticket();
            compared.comparison = Some(comparison);
            compared.maps = maps;
        }
        self.set_comparison(compared);
    }

    /// Sets the comparison of the document that was opened.
    pub(super) fn set_comparison(&mut self, compared: Compared) {
        self.compared = compared;
        self.emit_comparison();
    }

    /// Stores that the open document has no comparison.
    pub(super) fn forget_comparison(&mut self) {
        self.load_comparison(None);
        if let Some(document) = self.document().map(|document| document.facts.id) {
            let comparison = None;
            self.save(Save::Comparison {
                document,
                comparison,
            });
        }
    }

    /// Stores the comparison `ticket` as it is. Without a result it does not replace an earlier one.
    fn save_comparison(&mut self, ticket: u64) {
        let Some(compared) = self.compared_of(ticket) else {
            return;
        };
        let document = compared.document;
        let comparison = compared.comparison.clone().map(Box::new);
        if comparison.as_ref().is_some_and(|c| c.reference.is_some()) {
            self.save(Save::Comparison {
                document,
                comparison,
            });
        }
    }

    /// Whether the page shows the comparison `ticket`; otherwise it says how far that is.
    fn shows_comparison(&mut self, ticket: u64) -> bool {
        let open = self.compared.comparison.as_ref();
        let is_open = open.is_some_and(|comparison| comparison.id == ticket);
        if !is_open {
            self.emit_elsewhere();
        }
        is_open
    }

    fn emit_comparison(&mut self) {
        let comparison = self.compared.comparison.clone().map(Box::new);
        self.emit(AppEvent::Comparison { comparison });
    }

    /// The comparison with the id `ticket`, unless it was dropped.
    fn comparison_of(&mut self, ticket: u64) -> Option<&mut Comparison> {
        self.compared_of(ticket)?.comparison.as_mut()
    }

    fn compared_of(&mut self, ticket: u64) -> Option<&mut Compared> {
        self.comparisons_mut().find(|compared| {
            let comparison = compared.comparison.as_ref();
            comparison.is_some_and(|comparison| comparison.id == ticket)
        })
    }

    pub(super) fn compared_progress(
        &mut self,
        now: Instant,
        ticket: u64,
        run: Option<usize>,
        sharing: usize,
        progress: Progress,
    ) {
        let Some(compared) = self.compared_of(ticket) else {
            return;
        };
        let run = run.map(|run| run + compared.from);
        if let Some(comparison) = &mut compared.comparison {
            (comparison.current, comparison.progress) = (run, Some(progress));
            comparison.sharing = sharing;
        }
        // Progress that comes too soon is dropped: the next progress is newer, and the end is sent separately.
        if self.throttle.comparing.want(now) && self.shows_comparison(ticket) {
            self.emit(AppEvent::ComparisonProgress {
                comparison: ticket,
                run,
                sharing,
                progress,
            });
        }
        self.throttle.comparing.forget();
    }

    pub(super) fn reference_arrived(
        &mut self,
        ticket: u64,
        seconds: f64,
        report: ReferenceReport,
        ends: &[u8],
    ) {
        let result = ReferenceResult { seconds, report };
        let Some(compared) = self.compared_of(ticket) else {
            return;
        };
        let (document, from) = (compared.document, compared.from);
        if let Some(comparison) = &mut compared.comparison {
            comparison.reference = Some(result.clone());
            (comparison.current, comparison.progress) = (Some(from), None);
        }
        let is_new = compared.maps.ends != ends;
        if is_new {
            compared.maps = ComparedMaps {
                ends: ends.to_vec(),
                shares: HashMap::new(),
            };
        }
        self.save_comparison(ticket);
        if is_new {
            self.save(Save::ComparedMap {
                document,
                run: None,
                bytes: ends.to_vec(),
            });
        }
        if self.shows_comparison(ticket) {
            self.emit(AppEvent::ComparisonReference {
                comparison: ticket,
                result: Box::new(result),
            });
        }
    }

    /// # Errors
    /// If the comparison has no such run.
    pub(super) fn run_arrived(
        &mut self,
        ticket: u64,
        run: usize,
        seconds: f64,
        mut report: RunReport,
        shares: Vec<u8>,
    ) -> Result<(), String> {
        report.refused = report.refused.map(|sentence| as_sentence(&sentence));
        let result = RunResult { seconds, report };
        let Some(compared) = self.compared_of(ticket) else {
            return Ok(());
        };
        let (document, run) = (compared.document, run + compared.from);
        let comparison = compared.comparison.as_mut();
        let Some(place) = comparison.and_then(|comparison| comparison.runs.get_mut(run)) else {
            return Err(format!("a run {run} of a comparison"));
        };
        place.result = Some(result.clone());
        compared.maps.shares.insert(run, shares.clone());
        self.save_comparison(ticket);
        self.save(Save::ComparedMap {
            document,
            run: Some(run),
            bytes: shares,
        });
        if self.shows_comparison(ticket) {
            self.emit(AppEvent::ComparisonRun {
                comparison: ticket,
                run,
                result: Box::new(result),
            });
        }
        Ok(())
    }

    /// The engine has finished the comparison.
    pub(super) fn compared(&mut self, ticket: u64, state: ComparisonState, error: Option<String>) {
        self.end_comparison(ticket, state, error);
        self.release_worker(ticket);
    }

    pub(super) fn end_comparison(
        &mut self,
        ticket: u64,
        state: ComparisonState,
        error: Option<String>,
    ) {
        if let Some(comparison) = self.comparison_of(ticket) {
            comparison.state = state;
            comparison.error = error.clone();
            (comparison.current, comparison.progress) = (None, None);
            self.save_comparison(ticket);
            if self.shows_comparison(ticket) {
                self.emit(AppEvent::ComparisonEnded {
                    comparison: ticket,
                    state,
                    error,
                });
            }
        }
    }

    /// A file name and the comparison as JSON, with each run as in `kept compare --json`; or the reason why there is
    /// none.
    pub fn exported_comparison(&self) -> Result<(String, String), String> {
        let Some(comparison) = &self.compared.comparison else {
            return Err(messages::NO_COMPARISON.to_owned());
        };
        let Some(reference) = &comparison.reference else {
            return Err(messages::NO_COMPARISON.to_owned());
        };
        let done = comparison.runs.iter().filter_map(|run| run.result.as_ref());
        let runs: Vec<&RunReport> = done.map(|result| &result.report).collect();
        let exported = json!({
            "document": comparison.document,
            "question": comparison.question,
            "model": comparison.model,
            "max_tokens": comparison.max_tokens,
            "complete": comparison.state == ComparisonState::Done,
            "reference": reference.report,
            "runs": runs,
        });
        let stem = Path::new(&comparison.document).file_stem();
        let stem = stem.map_or_else(|| "document".into(), |stem| stem.to_string_lossy());
        serde_json::to_string_pretty(&exported)
            .map(|json| (format!("{stem} compared.json"), json))
            .map_err(|error| {
                tracing::error!(%error, "a comparison cannot be written as JSON");
                messages::not_exported("the comparison")
            })
    }

    /// Reports the result of saving the comparison or a conversation (`what`) at `path`.
    pub fn exported(&mut self, place: Place, what: &str, path: &Path, error: Option<io::Error>) {
        let name = file_name(path);
        match error {
            None => self.notice(NoticeKind::Info, place, messages::exported(what, &name)),
            Some(error) => {
                tracing::warn!(%error, path = %path.display(), what, "not saved");
                self.notice(NoticeKind::Error, place, messages::not_exported(&name));
            }
        }
    }
}
