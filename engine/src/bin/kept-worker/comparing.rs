//! A comparison: the full cache's run, then run after run, each told as soon as it is done.

use std::time::Instant;

use kept_engine::fidelity::{Reference, ReferenceReport, RunReport};
use kept_engine::policies::Budget;
use kept_engine::protocol::{CompareRun, Failure, Reply};
use kept_engine::{Engine, EngineError, Event};

use crate::asking::{Ending, EngineHealth, Job, engine_health};
use crate::dispatcher::{parse_budget, stored};
use crate::output::Output;

/// The full cache's attention and logits along its answer are held in memory: no longer answer than this.
const MOST_TOKENS: usize = 1024;

/// A comparison as it was asked for.
pub struct Comparison {
    pub question: String,
    pub max_tokens: usize,
    pub runs: Vec<CompareRun>,
    pub cache: Option<String>,
}

/// Makes one comparison; gives the last word on it. What is wrong with a single run is that run's; the others go on.
pub fn compare(job: &Job, comparison: &Comparison, output: &Output) -> Ending {
    let failed = |error: &EngineError| {
        let reply = Reply::Failed {
            ticket: Some(job.ticket),
            what: Failure::Compare,
            message: error.to_string(),
            stopped: matches!(error, EngineError::Stopped),
        };
        (reply, engine_health(error))
    };
    let engine = match stored(&job.model.engine, comparison.cache.as_deref()) {
        Ok(engine) => engine,
        Err(message) => {
            let reply = Reply::Failed {
                ticket: Some(job.ticket),
                what: Failure::Compare,
                message,
                stopped: false,
            };
            return (reply, EngineHealth::Sound);
        }
    };
    let engine = &engine;
    let started = Instant::now();
    let reference = engine.reference(
        &job.document.document,
        &comparison.question,
        comparison.max_tokens.clamp(1, MOST_TOKENS),
        &mut |event| tell(job, (None, 1), &event, output),
        &job.stop,
    );
    let reference = match reference {
        Ok(reference) => reference,
        Err(error) => return failed(&error),
    };
    output.say(&Reply::Reference {
        ticket: job.ticket,
        seconds: started.elapsed().as_secs_f64(),
        report: Box::new(ReferenceReport::new(engine.model().name(), &reference)),
    });
    match run_all(job, engine, &reference, &comparison.runs, output) {
        Ok(()) => (Reply::Compared { ticket: job.ticket }, EngineHealth::Sound),
        Err(error) => failed(&error),
    }
}

/// Every run beside the full cache, told in its turn; runs share readings of the document.
fn run_all(
    job: &Job,
    engine: &Engine,
    reference: &Reference,
    runs: &[CompareRun],
    output: &Output,
) -> Result<(), EngineError> {
    let tokens = reference.prompt.len();
    let mut told = Instant::now();
    let mut tell_run = |index: usize, budget: &str, result| {
        output.say(&Reply::Run {
            ticket: job.ticket,
            run: index,
            seconds: told.elapsed().as_secs_f64(),
            report: Box::new(RunReport::new(&runs[index].method, budget, tokens, result)),
        });
        told = Instant::now();
    };
    let budgets: Vec<_> = runs.iter().map(|run| budget(engine, run, tokens)).collect();
    let mut planned: Vec<usize> = Vec::new();
    let mut pairs = Vec::new();
    for (index, (run, budget)) in runs.iter().zip(&budgets).enumerate() {
        match budget {
            Ok(budget) => {
                planned.push(index);
                pairs.push((run.method.clone(), *budget));
            }
            Err(why) => {
                let written = run.budget.as_deref().unwrap_or_default();
                tell_run(index, written, Err(why.clone()));
            }
        }
    }
    engine.fidelity_each(
        reference,
        &pairs,
        &mut |sharing, event| {
            tell(
                job,
                (Some(planned[sharing.start]), sharing.len()),
                &event,
                output,
            )
        },
        &mut |which, run| {
            let budget = pairs[which].1.to_string();
            let refused = |error: EngineError| error.to_string();
            tell_run(planned[which], &budget, run.map_err(refused));
            Ok::<(), EngineError>(())
        },
        &job.stop,
    )
}

/// The budget as a person wrote it; none is what a question without one gets.
fn budget(engine: &Engine, run: &CompareRun, tokens: usize) -> Result<Budget, String> {
    if let Some(budget) = parse_budget(run.budget.as_deref())? {
        return Ok(budget);
    }
    let rows = engine.budget_rows(None, tokens);
    rows.map(Budget::Rows).map_err(|error| error.to_string())
}

fn tell(job: &Job, (run, sharing): (Option<usize>, usize), event: &Event, output: &Output) {
    if let Event::Progress(progress) = event {
        output.say(&Reply::Comparing {
            ticket: job.ticket,
            run,
            sharing,
            progress: *progress,
        });
    }
}
