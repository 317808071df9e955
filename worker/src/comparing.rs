//! Comparisons: a run with the full cache, then the runs of the methods, which load the document from its vault. Each run
//! is reported as soon as it is complete.

use std::ops::Range;
use std::time::Instant;

use kept_engine::policies::Budget;
use kept_engine::{Engine, EngineError, Event, MapGrid, RetentionMap, ends16};
use kept_eval::fidelity::{MethodRun, Reference, RunReport};
use kept_worker::protocol::{CompareRequest, CompareRun, Fault, Reply};

use crate::output::Output;
use crate::work::{Failed, Job, parse_budget, with_cache_type};

/// Limit of the answer length, in tokens: the full cache's attention and logits along its answer are held in memory.
const MAX_ANSWER_TOKENS: usize = 1024;

/// Runs one comparison; returns the final reply. An error of a single run is reported for this run; the others
/// continue.
pub fn compare(job: &Job, comparison: &CompareRequest, output: &Output) -> Result<Reply, Failed> {
    let engine = &with_cache_type(&job.model.engine, comparison.cache.as_deref())?;
    let started = Instant::now();
    let reference = Reference::read(
        engine,
        &job.document.document,
        &comparison.question,
        comparison.max_tokens.clamp(1, MAX_ANSWER_TOKENS),
        job.vault_settings.vaults(),
        &mut |event| report_progress(job, None, 1, &event, output),
        &job.stop,
    )?;
    let report = reference.report.clone();
    let ends = ends16(&job.document.document.text, reference.prompt.spans());
    // Rows of the reference are not compared by layer.
    let cells = MapGrid::bounded(1, engine.model().config().kv_heads, ends);
    let bytes = cells.ends16().iter().flat_map(|end| end.to_le_bytes());
    output.send_with_bytes(
        &Reply::Reference {
            ticket: job.ticket,
            seconds: started.elapsed().as_secs_f64(),
            report: Box::new(report),
        },
        &bytes.collect::<Vec<u8>>(),
    );
    run_all(job, engine, &reference, &comparison.runs, &cells, output)?;
    Ok(Reply::Compared { ticket: job.ticket })
}

/// Compares every run with the full cache and reports each as soon as it is complete. Runs share a prefill of the
/// document.
fn run_all(
    job: &Job,
    engine: &Engine,
    reference: &Reference,
    runs: &[CompareRun],
    cells: &MapGrid,
    output: &Output,
) -> Result<(), EngineError> {
    let tokens = reference.prompt.len();
    let mut reported = Instant::now();
    let mut report_run = |index: usize, budget: &str, result: Result<MethodRun, String>| {
        let document = reference.prompt.document.clone();
        let shares = (result.as_ref().ok()).map(|run| shares_of(&run.map, document, cells));
        output.send_with_bytes(
            &Reply::Run {
                ticket: job.ticket,
                run: index,
                seconds: reported.elapsed().as_secs_f64(),
                report: Box::new(RunReport::new(&runs[index].method, budget, tokens, result)),
            },
            &shares.unwrap_or_default(),
        );
        reported = Instant::now();
    };
    let budgets: Vec<_> = runs.iter().map(|run| budget(run, tokens)).collect();
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
                report_run(index, written, Err(why.message.clone()));
            }
        }
    }
    let vaults = job.vault_settings.vaults();
    let document = &job.document.document;
    MethodRun::measure_each(
        engine,
        reference,
        &pairs,
        vaults.map(|vaults| engine.vault_access(vaults, &document.name)),
        &mut |sharing, event| {
            let first = planned[sharing.start];
            report_progress(job, Some(first), sharing.len(), &event, output)
        },
        &mut |which, run| {
            let budget = pairs[which].1.to_string();
            let refused = |error: EngineError| error.to_string();
            report_run(planned[which], &budget, run.map_err(refused));
            Ok::<(), EngineError>(())
        },
        &job.stop,
    )
}

/// `[cells]`: the share of the slots that keep each cell of the document at the positions `document`, 0 to 255.
fn shares_of(map: &RetentionMap, document: Range<usize>, cells: &MapGrid) -> Vec<u8> {
    let tokens = &map.shares()[document];
    let cell = |tokens: &[f32]| {
        let mean = tokens.iter().sum::<f32>() / tokens.len() as f32;
        let share = (mean * 255.0).round() as u8; // saturates
        if mean > 0.0 { share.max(1) } else { 0 }
    };
    tokens.chunks(cells.tokens_per_cell()).map(cell).collect()
}

/// Parses the budget of `run`; without one, the default budget of a question with `tokens` prompt tokens.
fn budget(run: &CompareRun, tokens: usize) -> Result<Budget, Fault> {
    if let Some(budget) = parse_budget(run.budget.as_deref())? {
        return Ok(budget);
    }
    Ok(Budget::Rows(Engine::default_rows(tokens)))
}

/// Reports the progress of `sharing` runs from `run` on; without `run` that of the reference.
fn report_progress(
    job: &Job,
    run: Option<usize>,
    sharing: usize,
    event: &Event<'_>,
    output: &Output,
) {
    if let Event::Progress(progress, _) = event {
        output.send(&Reply::Comparing {
            ticket: job.ticket,
            run,
            sharing,
            progress: *progress,
        });
    }
}
