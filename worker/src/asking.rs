//! The thread that runs questions, comparisons and readings, one after another, and reports the progress of each.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};

use kept_engine::policies::Budget;
use kept_engine::{
    Ask, Engine, EngineError, LEVELS, Limits, MapGrid, NEUTRAL_QUESTIONS, Progress, ReadRequest,
    Sampling,
};
use kept_worker::protocol::{AskRequest, EstimateRequest, Failure, Fault, FaultCode, Reply};

use crate::comparing::compare;
use crate::keeping::Keeping;
use crate::output::Output;
use crate::watching::{Filling, Watching};
use crate::work::{
    Ending, EngineHealth, Input, Job, Work, engine_health, parse_budget, with_cache_type,
};

/// Starts the thread. Progress goes directly to `output`; the final reply of each job goes to the dispatcher through
/// `inbox`.
pub fn start(output: Output, inbox: Sender<Input>) -> Sender<Job> {
    let (jobs, queue) = channel::<Job>();
    let named = std::thread::Builder::new().name("questions".to_owned());
    let started = named.spawn(move || {
        for job in queue {
            let (ticket, what) = (job.ticket, job.work.failure());
            let (reply, engine_health) = run_caught(ticket, what, || match &job.work {
                Work::Ask(ask, keeping) => answer(&job, ask, keeping, &output),
                Work::Compare(comparison) => compare(&job, comparison, &output),
                Work::Read(of, keeping) => read(&job, of, keeping, &output),
                Work::Neutral(ask, keeping) => neutral(&job, ask, keeping, &output),
                Work::Levels(ask, keeping) => levels(&job, ask, keeping, &output),
            });
            if inbox
                .send(Input::Ended {
                    reply,
                    engine_health,
                })
                .is_err()
            {
                return;
            }
        }
    });
    if let Err(error) = started {
        eprintln!("kept-worker: no thread could be started ({error})");
        std::process::exit(crate::BROKEN);
    }
    jobs
}

/// Runs `work` and returns its final reply; a panic becomes [`Reply::Failed`] with [`EngineHealth::Broken`].
fn run_caught(ticket: u64, what: Failure, work: impl FnOnce() -> Ending) -> Ending {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(ending) => ending,
        Err(_) => {
            let reply = Reply::Failed {
                ticket: Some(ticket),
                what,
                message: "the engine stopped over an internal error; ask again, and if it happens again, choose another method or model".to_owned(),
                code: FaultCode::Other,
                stopped: false,
            };
            (reply, EngineHealth::Broken)
        }
    }
}

fn failed(
    ticket: u64,
    what: Failure,
    fault: Fault,
    stopped: bool,
    engine_health: EngineHealth,
) -> Ending {
    let reply = Reply::Failed {
        ticket: Some(ticket),
        what,
        message: fault.message,
        code: fault.code,
        stopped,
    };
    (reply, engine_health)
}

fn failed_with(ticket: u64, what: Failure, error: &EngineError) -> Ending {
    let stopped = matches!(error, EngineError::Stopped);
    failed(ticket, what, error.into(), stopped, engine_health(error))
}

/// Reads the document into its vault; returns the final reply.
fn read(job: &Job, of: &EstimateRequest, keeping: &Keeping, output: &Output) -> Ending {
    let ticket = job.ticket;
    let Some(vaults) = keeping.vaults() else {
        let reply = Reply::DocumentRead {
            ticket,
            tokens: 0,
            stored: 0,
            notes: Vec::new(),
        };
        return (reply, EngineHealth::Sound);
    };
    let refused = |fault: Fault| failed(ticket, Failure::Read, fault, false, EngineHealth::Sound);
    let budget = match parse_budget(of.budget.as_deref()) {
        Ok(budget) => budget,
        Err(why) => return refused(why),
    };
    let engine = match with_cache_type(&job.model.engine, of.cache.as_deref()) {
        Ok(engine) => engine,
        Err(why) => return refused(why),
    };
    let request = ReadRequest {
        document: &job.document.document,
        method: &of.method,
        budget,
        max_tokens: of.max_tokens.unwrap_or(Engine::DEFAULT_MAX_TOKENS),
        vaults,
        memory: of.memory,
    };
    let mut progress = |progress: &Progress| {
        let progress = *progress;
        output.send(&Reply::ReadAhead { ticket, progress });
    };
    match engine.read_document(&request, &mut progress, &job.stop) {
        Ok(read) => {
            let reply = Reply::DocumentRead {
                ticket,
                tokens: read.tokens,
                stored: read.stored,
                notes: read.notes,
            };
            (reply, EngineHealth::Sound)
        }
        Err(error) => failed_with(ticket, Failure::Read, &error),
    }
}

/// Computes what is kept whatever is asked; returns the final reply. The document comes from its vault.
fn neutral(job: &Job, asked: &AskRequest, keeping: &Keeping, output: &Output) -> Ending {
    let ticket = job.ticket;
    let budget = match parse_budget(asked.budget.as_deref()) {
        Ok(budget) => budget,
        Err(why) => return failed(ticket, Failure::Neutral, why, false, EngineHealth::Sound),
    };
    let engine = match with_cache_type(&job.model.engine, asked.cache.as_deref()) {
        Ok(engine) => engine,
        Err(why) => return failed(ticket, Failure::Neutral, why, false, EngineHealth::Sound),
    };
    let mut maps = Vec::new();
    for question in NEUTRAL_QUESTIONS {
        match map_of(job, &engine, asked, question, budget, keeping) {
            Ok(map) => maps.push(map),
            Err(error) => return failed_with(ticket, Failure::Neutral, &error),
        }
    }
    if let Some(mean) = MapGrid::mean_of(&maps) {
        output.send_with_bytes(&Reply::NeutralMap { ticket }, &mean.to_bytes());
    }
    (Reply::NeutralDone { ticket }, EngineHealth::Sound)
}

/// Computes what a question keeps with each of [`LEVELS`]; returns the final reply.
fn levels(job: &Job, asked: &AskRequest, keeping: &Keeping, output: &Output) -> Ending {
    let ticket = job.ticket;
    let engine = match with_cache_type(&job.model.engine, asked.cache.as_deref()) {
        Ok(engine) => engine,
        Err(why) => return failed(ticket, Failure::Levels, why, false, EngineHealth::Sound),
    };
    for percent in LEVELS {
        let budget = Some(Budget::Share(f64::from(percent) / 100.0));
        match map_of(job, &engine, asked, &asked.question, budget, keeping) {
            Ok(map) => {
                output.send_with_bytes(&Reply::Level { ticket, percent }, &map.shares());
            }
            // The method needs more rows.
            Err(error) if error.is_refusal() => {}
            Err(error) => return failed_with(ticket, Failure::Levels, &error),
        }
    }
    (Reply::LevelsDone { ticket }, EngineHealth::Sound)
}

/// What `question` keeps with `budget`, without an answer. The document comes from its vault.
fn map_of(
    job: &Job,
    engine: &Engine,
    asked: &AskRequest,
    question: &str,
    budget: Option<Budget>,
    keeping: &Keeping,
) -> Result<MapGrid, EngineError> {
    let ask = Ask {
        turns: &asked.turns,
        document: &job.document.document,
        question,
        method: &asked.method,
        budget,
        sampling: &Sampling::default(),
        max_tokens: 0,
        thinking: asked.thinking,
        limits: Limits {
            memory: asked.memory,
            ..Limits::default()
        },
        vault: keeping.vaults(),
    };
    let mut filling = Filling::new(&job.model, &job.document);
    engine.ask_watched(&ask, &mut filling, &job.stop)?;
    Ok(filling.grid)
}

/// Answers one question; returns the final reply.
fn answer(job: &Job, asked: &AskRequest, keeping: &Keeping, output: &Output) -> Ending {
    let ticket = job.ticket;
    let refused = |fault: Fault| failed(ticket, Failure::Ask, fault, false, EngineHealth::Sound);
    if asked.max_tokens == 0 {
        return refused("an answer of at most 0 tokens is no answer; allow at least 1".into());
    }
    let budget = match parse_budget(asked.budget.as_deref()) {
        Ok(budget) => budget,
        Err(why) => return refused(why),
    };
    let sampling = Sampling {
        temperature: f64::from(asked.temperature),
        seed: asked.seed,
        repeat_penalty: asked.repeat_penalty,
        ..Sampling::default()
    };
    let ask = Ask {
        turns: &asked.turns,
        document: &job.document.document,
        question: &asked.question,
        method: &asked.method,
        budget,
        sampling: &sampling,
        max_tokens: asked.max_tokens,
        thinking: asked.thinking,
        limits: Limits {
            memory: asked.memory,
            ..Limits::default()
        },
        vault: keeping.vaults(),
    };
    let engine = match with_cache_type(&job.model.engine, asked.cache.as_deref()) {
        Ok(engine) => engine,
        Err(why) => return refused(why),
    };
    let mut watching = Watching::new(job, asked, &engine, output);
    match engine.ask_watched(&ask, &mut watching, &job.stop) {
        Ok(answer) => {
            watching.report_evictions(&answer);
            let answer = watching.facts(answer);
            let answer = Box::new(answer);
            (Reply::Answered { ticket, answer }, EngineHealth::Sound)
        }
        Err(error) => failed_with(ticket, Failure::Ask, &error),
    }
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
