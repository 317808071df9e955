//! `kept eval longbench` and `kept eval gsm8k`: published benchmarks with every method and budget. Prints a line per answer
//! and a summary with `--json`, a table without.
//!
//! A prompt is prefilled once for all methods.

use std::collections::BTreeMap;

use anyhow::ensure;
use kept_engine::kernels::Stop;
use kept_engine::{Engine, EngineError};
use kept_eval::benchmark::{Case, Gsm8k, LongBench};
use serde::Serialize;

use crate::arguments::{BenchmarkArguments, Gsm8kArguments, LongBenchArguments};
use crate::compare::{Run, chosen_budgets, named_methods, parts, runs};
use crate::output;
use crate::progress::{CountBar, stop_on_ctrl_c};

#[derive(Serialize)]
struct AnswerJson<'a> {
    method: &'a str,
    budget: &'a str,
    task: &'a str,
    /// Number of the case within its task, from 0.
    case: usize,
    prompt_tokens: usize,
    answer: Option<&'a str>,
    /// Why the method refused the budget.
    refused: Option<&'a str>,
    answers: &'a [String],
    /// 0 to 1.
    score: Option<f64>,
}

#[derive(Serialize)]
struct SummaryJson {
    model: String,
    summary: Vec<SummaryRow>,
}

/// The scores of one method at one budget.
#[derive(Serialize)]
struct SummaryRow {
    method: String,
    budget: String,
    tasks: BTreeMap<&'static str, TaskScore>,
    /// Mean over the tasks, 0 to 100; `None` if all were refused.
    average: Option<f64>,
}

/// The score of one task.
#[derive(Serialize, Clone, Copy)]
struct TaskScore {
    answered: usize,
    refused: usize,
    /// Mean over the answers, 0 to 100; `None` if all were refused.
    score: Option<f64>,
    /// Half the width of its 95 % confidence interval.
    uncertainty: Option<f64>,
}

/// The scores of the answers to one task, 0 to 1; `None` for a refusal.
type Scores = Vec<Option<f64>>;

pub fn longbench(arguments: &LongBenchArguments) -> anyhow::Result<()> {
    let data = LongBench::open(&arguments.data)?;
    let limit = limit(&arguments.benchmark)?;
    let tasks: Vec<&str> = match &arguments.tasks {
        Some(tasks) => parts(tasks).collect(),
        None => data.tasks(),
    };
    let mut cases = Vec::new();
    for task in tasks {
        cases.extend(data.cases(task, limit)?);
    }
    ensure!(
        !cases.is_empty(),
        "'{}' has no task in data/: unpack LongBench's data there, or name tasks with --tasks",
        arguments.data.display()
    );
    run(&arguments.benchmark, cases)
}

pub fn gsm8k(arguments: &Gsm8kArguments) -> anyhow::Result<()> {
    let data = Gsm8k::open(&arguments.data)?;
    let shots = arguments.shots;
    ensure!(
        (1..=data.examples()).contains(&shots),
        "--shots {shots} is not between 1 and {}, the number of solved examples",
        data.examples()
    );
    run(
        &arguments.benchmark,
        data.cases(shots, limit(&arguments.benchmark)?),
    )
}

fn limit(arguments: &BenchmarkArguments) -> anyhow::Result<usize> {
    let limit = arguments.limit.unwrap_or(usize::MAX);
    ensure!(limit > 0, "--limit 0 leaves no case; give at least 1");
    Ok(limit)
}

fn run(arguments: &BenchmarkArguments, cases: Vec<Case>) -> anyhow::Result<()> {
    let methods = named_methods(Some(&arguments.methods))?;
    let runs = runs(&methods, &chosen_budgets(&arguments.budgets)?);
    let engine = arguments.engine.open()?;
    let stop = stop_on_ctrl_c();
    let bar = CountBar::new(cases.len());
    let mut scores: Vec<BTreeMap<&str, Scores>> = vec![BTreeMap::new(); runs.len()];
    let mut tasks: Vec<&str> = Vec::new();
    for case in cases {
        let task = case.task;
        if tasks.last() != Some(&task) {
            tasks.push(task);
        }
        let number = scores
            .first()
            .and_then(|of| of.get(task))
            .map_or(0, Vec::len);
        bar.next(&format!("{task} {}", number + 1));
        let found = match ask(&engine, arguments, case, number, &runs, &stop) {
            // What was answered so far is summed up.
            Err(_) if stop.is_requested() => break,
            found => found?,
        };
        for (scores, score) in scores.iter_mut().zip(found) {
            scores.entry(task).or_default().push(score);
        }
    }
    bar.clear();
    let rows: Vec<SummaryRow> = runs.iter().zip(&scores).map(summary).collect();
    match arguments.json {
        true => output::print_json(&SummaryJson {
            model: engine.model().name().to_owned(),
            summary: rows,
        })?,
        false => output::print_text(&table(&tasks, &rows))?,
    }
    match stop.is_requested() {
        true => Err(EngineError::Stopped.into()),
        false => Ok(()),
    }
}

/// The score of every run's answer to `case`.
fn ask(
    engine: &Engine,
    arguments: &BenchmarkArguments,
    case: Case,
    number: usize,
    runs: &[Run],
    stop: &Stop,
) -> anyhow::Result<Scores> {
    let context = engine.model().config().context;
    let longest = context.saturating_sub(case.max_tokens);
    let length = arguments.length.unwrap_or(longest);
    ensure!(
        (1..=longest).contains(&length),
        "--length {length} is not between 1 and {longest}: the model reads {context} tokens, and an answer to {} has up to {}",
        case.task,
        case.max_tokens
    );
    let case = case.within(engine, length, stop)?;
    let asked: Vec<_> = runs.iter().map(Run::pair).collect();
    let (text, most) = (case.text(), case.max_tokens);
    let answers = engine.ask_each(&text, &asked, most, case.until, &mut |_| {}, stop)?;
    let mut scores = Vec::with_capacity(runs.len());
    for (run, text) in runs.iter().zip(answers.texts) {
        let (answer, refused) = match text {
            Ok(answer) => (Some(answer), None),
            Err(refusal) => (None, Some(refusal.to_string())),
        };
        let score = answer.as_deref().map(|answer| case.score(answer));
        if arguments.json {
            output::print_json(&AnswerJson {
                method: &run.method.to_string(),
                budget: &run.budget_text,
                task: case.task,
                case: number,
                prompt_tokens: answers.prompt_tokens,
                answer: answer.as_deref(),
                refused: refused.as_deref(),
                answers: &case.answers,
                score,
            })?;
        }
        scores.push(score);
    }
    Ok(scores)
}

fn summary((run, scores): (&Run, &BTreeMap<&'static str, Scores>)) -> SummaryRow {
    let tasks: BTreeMap<_, _> = scores
        .iter()
        .map(|(&task, scores)| (task, TaskScore::of(scores)))
        .collect();
    let means: Vec<f64> = tasks.values().filter_map(|task| task.score).collect();
    SummaryRow {
        method: run.method.to_string(),
        budget: run.budget_text.clone(),
        average: (!means.is_empty()).then(|| means.iter().sum::<f64>() / means.len() as f64),
        tasks,
    }
}

impl TaskScore {
    fn of(scores: &[Option<f64>]) -> Self {
        let known: Vec<f64> = scores.iter().flatten().copied().collect();
        let count = known.len() as f64;
        let mean = known.iter().sum::<f64>() / count;
        let squares: f64 = known.iter().map(|score| (score - mean).powi(2)).sum();
        let answered = known.len();
        Self {
            answered,
            refused: scores.len() - answered,
            score: (answered > 0).then_some(100.0 * mean),
            uncertainty: (answered > 1).then(|| 196.0 * (squares / (count - 1.0) / count).sqrt()),
        }
    }
}

/// A Markdown table with a row per method and budget and a column per task.
fn table(tasks: &[&str], rows: &[SummaryRow]) -> String {
    let several = tasks.len() > 1;
    let mut text = format!("| method | budget | {} |", tasks.join(" | "));
    text += if several { " average |\n" } else { "\n" };
    text += &"| --- ".repeat(2 + tasks.len() + usize::from(several));
    text += "|\n";
    for row in rows {
        let cell = |task: &&str| {
            let Some(found) = row.tasks.get(task) else {
                return "-".to_owned();
            };
            match (found.score, found.uncertainty) {
                (Some(score), Some(uncertainty)) => format!("{score:.1} ± {uncertainty:.1}"),
                (Some(score), None) => format!("{score:.1}"),
                (None, _) => "refused".to_owned(),
            }
        };
        let cells: Vec<String> = tasks.iter().map(cell).collect();
        text += &format!(
            "| `{}` | {} | {} |",
            row.method,
            row.budget,
            cells.join(" | ")
        );
        if several {
            let average = row
                .average
                .map_or("refused".to_owned(), |mean| format!("{mean:.1}"));
            text += &format!(" {average} |");
        }
        text += "\n";
    }
    let cases = rows.iter().flat_map(|row| row.tasks.values());
    let refused: usize = cases.clone().map(|task| task.refused).sum();
    let most = cases.map(|task| task.answered).max().unwrap_or(0);
    text += &format!(
        "\nMean score, 0 to 100, of up to {most} answers to a task, and where it lies with 95 % confidence.\n"
    );
    if refused > 0 {
        text += &format!(
            "{refused} questions were refused: the budget is too small for the method. They do not count.\n"
        );
    }
    text
}
