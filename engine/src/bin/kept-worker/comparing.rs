//! A comparison: the full cache's run, then run after run, each told as soon as it is done.

use std::time::Instant;

use kept_engine::fidelity::{MethodRun, Reference, ReferenceReport, RunReport};
use kept_engine::policies::Budget;
use kept_engine::protocol::{CompareRun, Failure, Reply};
use kept_engine::{Engine, EngineError, Event};

use crate::asking::{Ending, Job, Left, left};
use crate::desk::{parse_budget, stored};
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
        (reply, left(error))
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
            return (reply, Left::Sound);
        }
    };
    let engine = &engine;
    let started = Instant::now();
    let reference = engine.reference(
        &job.document.document,
        &comparison.question,
        comparison.max_tokens.clamp(1, MOST_TOKENS),
        &mut |event| tell(job, None, &event, output),
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
    for (index, run) in comparison.runs.iter().enumerate() {
        let started = Instant::now();
        let tokens = reference.prompt.len();
        let budget = budget(engine, run, tokens);
        let shown = match &budget {
            Ok(budget) => budget.to_string(),
            Err(_) => run.budget.clone().unwrap_or_default(),
        };
        let result = match budget {
            Ok(budget) => one_run(job, engine, &reference, index, run, budget, output),
            Err(why) => Ok(Err(why)),
        };
        let result = match result {
            Ok(result) => result,
            Err(error) => return failed(&error),
        };
        output.say(&Reply::Run {
            ticket: job.ticket,
            run: index,
            seconds: started.elapsed().as_secs_f64(),
            report: Box::new(RunReport::new(&run.method, &shown, tokens, result)),
        });
    }
    let reply = Reply::Compared { ticket: job.ticket };
    (reply, Left::Sound)
}

/// The budget as a person wrote it; none is what a question without one gets.
fn budget(engine: &Engine, run: &CompareRun, tokens: usize) -> Result<Budget, String> {
    if let Some(budget) = parse_budget(run.budget.as_deref())? {
        return Ok(budget);
    }
    let rows = engine.budget_rows(None, tokens);
    rows.map(Budget::Rows).map_err(|error| error.to_string())
}

/// The run, or why there is none; an error only where nothing can come after it.
fn one_run(
    job: &Job,
    engine: &Engine,
    reference: &Reference,
    index: usize,
    run: &CompareRun,
    budget: Budget,
    output: &Output,
) -> Result<Result<MethodRun, String>, EngineError> {
    let mut listen = |event: Event| tell(job, Some(index), &event, output);
    match engine.fidelity(reference, &run.method, budget, &mut listen, &job.stop) {
        Ok(run) => Ok(Ok(run)),
        Err(error @ EngineError::Stopped) => Err(error),
        Err(error) if error.loses_card() => Err(error),
        Err(error) => Ok(Err(error.to_string())),
    }
}

fn tell(job: &Job, run: Option<usize>, event: &Event, output: &Output) {
    if let Event::Progress(progress) = event {
        output.say(&Reply::Comparing {
            ticket: job.ticket,
            run,
            progress: *progress,
        });
    }
}
