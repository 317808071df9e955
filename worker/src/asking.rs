//! The thread that runs questions, comparisons and readings, one after another, and reports the progress of each.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};

use kept_engine::policies::Budget;
use kept_engine::{
    Ask, DocumentReadRequest, Engine, EngineError, LEVELS, Limits, MapGrid, NEUTRAL_QUESTIONS,
    Progress, Sampling,
};
use kept_worker::protocol::{AskRequest, EstimateRequest, Failure, Fault, Reply, Request};

use crate::comparing::compare;
use crate::opening::spawn_named;
use crate::output::Output;
use crate::watching::{MapBuilder, QuestionReporter};
use crate::work::{EngineHealth, Failed, Input, Job, parse_budget, with_cache_type};

/// Starts the thread. Progress goes directly to `output`; the final reply of each job goes to the dispatcher through
/// `inbox`.
pub fn start(output: Output, inbox: Sender<Input>) -> Sender<Job> {
    let (jobs, queue) = channel::<Job>();
    spawn_named("questions", move || {
        for job in queue {
            let (reply, engine_health) = run_caught(job.ticket, job.what, || match &job.request {
                Request::Ask { ask, .. } => answer(&job, ask, &output),
                Request::Compare { compare: of, .. } => compare(&job, of, &output),
                Request::ReadDocument { of, .. } => read(&job, of, &output),
                Request::Neutral { ask, .. } => neutral(&job, ask, &output),
                Request::Levels { ask, .. } => levels(&job, ask, &output),
                _ => unreachable!("the dispatcher does the rest"),
            });
            let ended = Input::Ended {
                reply,
                engine_health,
            };
            if inbox.send(ended).is_err() {
                return;
            }
        }
    });
    jobs
}

/// Runs `work` and returns its final reply and the state of the engine. A panic becomes [`Reply::Failed`] with
/// [`EngineHealth::Broken`].
fn run_caught(
    ticket: u64,
    what: Failure,
    work: impl FnOnce() -> Result<Reply, Failed>,
) -> (Reply, EngineHealth) {
    let caught = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        Err(Failed {
            fault: "the engine stopped over an internal error; ask again, and if it happens again, choose another method or model".into(),
            stopped: false,
            engine_health: EngineHealth::Broken,
        })
    });
    match caught {
        Ok(reply) => (reply, EngineHealth::Sound),
        Err(failed) => {
            let reply = Reply::failed(Some(ticket), what, failed.fault, failed.stopped);
            (reply, failed.engine_health)
        }
    }
}

/// Reads the document into its vault; returns the final reply.
fn read(job: &Job, of: &EstimateRequest, output: &Output) -> Result<Reply, Failed> {
    let ticket = job.ticket;
    let Some(vaults) = job.vault_settings.vaults() else {
        return Ok(Reply::DocumentRead {
            ticket,
            tokens: 0,
            stored: 0,
            notes: Vec::new(),
        });
    };
    let budget = parse_budget(of.budget.as_deref())?;
    let engine = with_cache_type(&job.model.engine, of.cache.as_deref())?;
    let request = DocumentReadRequest {
        document: &job.document.document,
        method: &of.method,
        budget,
        max_tokens: of.max_tokens.unwrap_or(Engine::DEFAULT_MAX_TOKENS),
        vaults,
        memory: of.memory,
        pause: Some(&job.pause),
    };
    let mut progress = |progress: &Progress| {
        let progress = *progress;
        output.send(&Reply::ReadAhead { ticket, progress });
    };
    let read = engine.read_document(&request, &mut progress, &job.stop)?;
    Ok(Reply::DocumentRead {
        ticket,
        tokens: read.tokens,
        stored: read.stored,
        notes: read.notes,
    })
}

/// Computes what is kept for every question (the baseline); returns the final reply. The document comes from its vault.
fn neutral(job: &Job, asked: &AskRequest, output: &Output) -> Result<Reply, Failed> {
    let ticket = job.ticket;
    let budget = parse_budget(asked.budget.as_deref())?;
    let engine = with_cache_type(&job.model.engine, asked.cache.as_deref())?;
    let mut maps = Vec::new();
    for question in NEUTRAL_QUESTIONS {
        maps.push(map_of(job, &engine, asked, question, budget)?);
    }
    if let Some(mean) = MapGrid::mean_of(&maps) {
        output.send_with_bytes(&Reply::NeutralMap { ticket }, &mean.to_bytes());
    }
    Ok(Reply::NeutralDone { ticket })
}

/// Computes what a question keeps with each of [`LEVELS`]; returns the final reply.
fn levels(job: &Job, asked: &AskRequest, output: &Output) -> Result<Reply, Failed> {
    let ticket = job.ticket;
    let engine = with_cache_type(&job.model.engine, asked.cache.as_deref())?;
    for percent in LEVELS {
        let budget = Some(Budget::Share(f64::from(percent) / 100.0));
        match map_of(job, &engine, asked, &asked.question, budget) {
            Ok(map) => {
                output.send_with_bytes(&Reply::Level { ticket, percent }, &map.shares());
            }
            // The method needs more rows.
            Err(error) if error.is_refusal() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Reply::LevelsDone { ticket })
}

/// `question` with everything else of `asked` but its budget and sampling.
fn ask_of<'a>(
    job: &'a Job,
    asked: &'a AskRequest,
    question: &'a str,
    budget: Option<Budget>,
    sampling: &'a Sampling,
) -> Ask<'a> {
    Ask {
        turns: &asked.turns,
        document: &job.document.document,
        question,
        method: &asked.method,
        budget,
        sampling,
        max_tokens: asked.max_tokens,
        thinking: asked.thinking,
        limits: Limits {
            memory: asked.memory,
            ..Limits::default()
        },
        vault: job.vault_settings.vaults(),
    }
}

/// What `question` keeps with `budget` under the instructions of `asked`, without an answer. The document comes from its vault.
fn map_of(
    job: &Job,
    engine: &Engine,
    asked: &AskRequest,
    question: &str,
    budget: Option<Budget>,
) -> Result<MapGrid, EngineError> {
    let (question, sampling) = (asked.instructed(question), Sampling::default());
    let ask = Ask {
        max_tokens: 0,
        ..ask_of(job, asked, &question, budget, &sampling)
    };
    let mut map = MapBuilder::new(&job.model, &job.document);
    engine.ask(&ask, &mut |event| map.receive(event), &job.stop)?;
    Ok(map.grid)
}

/// Answers one question; returns the final reply.
fn answer(job: &Job, asked: &AskRequest, output: &Output) -> Result<Reply, Failed> {
    let ticket = job.ticket;
    if asked.max_tokens == 0 {
        let why = "an answer of at most 0 tokens is no answer; allow at least 1";
        return Err(Fault::from(why).into());
    }
    let budget = parse_budget(asked.budget.as_deref())?;
    let sampling = Sampling {
        temperature: asked.temperature,
        seed: asked.seed,
        repeat_penalty: asked.repeat_penalty,
        ..Sampling::default()
    };
    let question = asked.instructed(&asked.question);
    let ask = ask_of(job, asked, &question, budget, &sampling);
    let engine = with_cache_type(&job.model.engine, asked.cache.as_deref())?;
    let mut reporter = QuestionReporter::new(job, asked, output);
    let answer = engine.ask(&ask, &mut |event| reporter.receive(event), &job.stop)?;
    reporter.report_evictions(&answer);
    let answer = Box::new(reporter.facts(answer));
    Ok(Reply::Answered { ticket, answer })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_in_a_question_becomes_a_failed_reply() {
        let (reply, engine_health) = run_caught(5, Failure::Ask, || panic!("a bug, on purpose"));
        assert_eq!(engine_health, EngineHealth::Broken);
        let Reply::Failed {
            ticket, message, ..
        } = reply
        else {
            panic!("{reply:?}")
        };
        assert_eq!(ticket, Some(5));
        assert!(message.contains("internal error"), "{message}");
    }
}
