//! `kept eval needle`: one planted fact asked for at every length and depth, with every method and budget. A line for each case
//! with `--json`, a table without, and a picture if asked for.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use kept_engine::documents::Document;
use kept_engine::kernels::Stop;
use kept_engine::needle::{Haystack, Needle, NeedleGrid, needle_picture};
use kept_engine::policies::Budget;
use kept_engine::{Ask, Engine, EngineError, Method, Sampling};
use serde::Serialize;

use crate::arguments::{NeedleArguments, open};
use crate::compare::{chosen_budgets, parts, plain_methods};
use crate::model::model_path;
use crate::output;
use crate::progress::{CountBar, stop_on_ctrl_c};

/// An answer restates its question before the value.
const ANSWER_TOKENS: usize = 32;

#[derive(Serialize)]
struct CaseJson<'a> {
    method: &'a str,
    budget: &'a str,
    length: usize,
    depth: f64,
    seed: u64,
    prompt_tokens: Option<usize>,
    expected: &'a str,
    answer: Option<&'a str>,
    correct: bool,
    refused: Option<String>,
}

#[derive(Serialize)]
struct SummaryJson {
    summary: Vec<SummaryRow>,
}

#[derive(Serialize)]
struct SummaryRow {
    method: String,
    budget: String,
    share: Option<f64>,
}

pub fn needle(arguments: &NeedleArguments) -> anyhow::Result<()> {
    let methods = plain_methods(arguments.methods.as_deref())?;
    let budgets = chosen_budgets(&arguments.budgets)?;
    let lengths = numbers(
        "--lengths",
        &arguments.lengths,
        |l: &usize| *l >= 256,
        "a whole number from 256",
    )?;
    let depths = numbers(
        "--depths",
        &arguments.depths,
        |d: &f64| (0.0..=100.0).contains(d),
        "a number from 0 to 100",
    )?;
    let depths: Vec<f64> = depths.iter().map(|d| d / 100.0).collect();
    ensure!(
        (1..=1000).contains(&arguments.repeats),
        "--repeats {} is not between 1 and 1000",
        arguments.repeats
    );
    model_path(&arguments.model)?;
    if let Some(path) = &arguments.picture {
        output::check_target(path, &[arguments.data.as_path()])?;
    }
    let engine = open(&arguments.model, arguments.threads, &arguments.stretch)?;
    let context = engine.model().config().context;
    for &length in &lengths {
        ensure!(
            length + ANSWER_TOKENS <= context,
            "--lengths {length} is too long: the model reads {context} tokens and needs {ANSWER_TOKENS} for the answer"
        );
    }
    let text = text_of(&arguments.data)?;
    let haystack = Haystack::new(&engine, &text)?;
    let longest = lengths.iter().max().copied().unwrap_or(0);
    ensure!(
        haystack.tokens() >= longest,
        "'{}' has {} tokens of sentences, fewer than the {longest} asked for; give more text",
        arguments.data.display(),
        haystack.tokens()
    );
    let mut grids = Vec::new();
    let stop = stop_on_ctrl_c();
    let runs = |method: &Method| {
        if method.name == "full" {
            1
        } else {
            budgets.len()
        }
    };
    let cells = lengths.len() * depths.len() * arguments.repeats as usize;
    let bar = CountBar::new(cells * methods.iter().map(runs).sum::<usize>());
    for method in &methods {
        for budget in budgets.iter().take(runs(method)) {
            let shown = match method.name.as_str() {
                "full" => String::new(),
                _ => budget.to_string(),
            };
            let mut grid = NeedleGrid {
                method: method.name.clone(),
                budget: shown.clone(),
                shares: vec![vec![None; lengths.len()]; depths.len()],
            };
            for (d, &depth) in depths.iter().enumerate() {
                for (l, &length) in lengths.iter().enumerate() {
                    let mut correct = 0;
                    let mut asked = 0;
                    for seed in 0..arguments.repeats {
                        bar.next(&format!("{} {shown}", method.name));
                        let needle = haystack
                            .needle(length, depth, seed)
                            .context("the text is too short")?;
                        let found = ask(&engine, &needle, method, *budget, &stop)?;
                        let right = found.as_ref().is_ok_and(|f| needle.is_in(&f.0));
                        correct += usize::from(right);
                        asked += usize::from(found.is_ok());
                        if arguments.json {
                            output::print_json(&CaseJson {
                                method: &method.name,
                                budget: &shown,
                                length,
                                depth,
                                seed,
                                prompt_tokens: found.as_ref().ok().map(|f| f.1),
                                expected: &needle.value,
                                answer: found.as_ref().ok().map(|f| f.0.as_str()),
                                correct: right,
                                refused: found.as_ref().err().cloned(),
                            })?;
                        }
                    }
                    grid.shares[d][l] = (asked > 0).then(|| correct as f64 / asked as f64);
                }
            }
            grids.push(grid);
        }
    }
    bar.clear();
    let budgets: Vec<String> = budgets.iter().map(Budget::to_string).collect();
    match arguments.json {
        true => output::print_json(&SummaryJson {
            summary: grids
                .iter()
                .map(|grid| SummaryRow {
                    method: grid.method.clone(),
                    budget: grid.budget.clone(),
                    share: grid.mean(),
                })
                .collect(),
        })?,
        false => output::print_text(&table(&grids, &budgets))?,
    }
    if let Some(path) = &arguments.picture {
        let title = format!("A needle in a haystack: {}", engine.model().name());
        let svg = needle_picture(&title, &grids, &budgets, &lengths, &depths);
        output::write_file(path, |out| out.write_all(svg.as_bytes()))?;
    }
    Ok(())
}

/// The answer and the prompt's tokens, or the sentence of a method that refuses the budget.
fn ask(
    engine: &Engine,
    needle: &Needle,
    method: &Method,
    budget: Budget,
    stop: &Stop,
) -> anyhow::Result<Result<(String, usize), String>> {
    let document = Document::from_bytes("haystack", needle.document.clone().into_bytes())?;
    let ask = Ask {
        document: &document,
        question: &needle.question,
        method,
        budget: Some(budget),
        sampling: &Sampling::default(),
        max_tokens: ANSWER_TOKENS,
        thinking: false,
    };
    match engine.ask(&ask, &mut |_| {}, stop) {
        Ok(_) if stop.is_requested() => Err(EngineError::Stopped.into()),
        Ok(answer) => Ok(Ok((answer.text, answer.prompt.len()))),
        Err(EngineError::Policy(refusal)) => Ok(Err(refusal.to_string())),
        Err(error) => Err(error.into()),
    }
}

/// A Markdown table: methods down, budgets across.
fn table(grids: &[NeedleGrid], budgets: &[String]) -> String {
    let mut text = format!("| method | {} |\n", budgets.join(" | "));
    text += &format!("| --- |{}\n", " --- |".repeat(budgets.len()));
    let mut last = "";
    for grid in grids {
        if grid.method != last {
            last = &grid.method;
            let of = |budget: &str| {
                let mut same = grids.iter().filter(|g| g.method == grid.method);
                let found = same.find(|g| g.budget == budget || g.budget.is_empty());
                let mean = found.and_then(NeedleGrid::mean);
                mean.map_or("refused".into(), |m| format!("{:.0} %", 100.0 * m))
            };
            let cells: Vec<String> = budgets.iter().map(|b| of(b)).collect();
            text += &format!("| `{}` | {} |\n", grid.method, cells.join(" | "));
        }
    }
    text
}

/// The text of a file, or of every .txt file of a folder in the order of their names.
fn text_of(path: &PathBuf) -> anyhow::Result<String> {
    let mut files = vec![path.clone()];
    if path.is_dir() {
        let entries = std::fs::read_dir(path)
            .with_context(|| format!("'{}' cannot be read", path.display()))?;
        files = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .collect();
        files.retain(|file| file.extension().is_some_and(|e| e == "txt"));
        files.sort();
        ensure!(
            !files.is_empty(),
            "'{}' has no .txt file; give a text or a folder of texts",
            path.display()
        );
    }
    let mut text = String::new();
    for file in files {
        text += &Document::open(&file)?.text;
        text += "\n\n";
    }
    Ok(text)
}

fn numbers<T: std::str::FromStr>(
    name: &str,
    list: &str,
    allowed: impl Fn(&T) -> bool,
    range: &str,
) -> anyhow::Result<Vec<T>> {
    let numbers = parts(list)
        .map(|part| {
            let number = part.parse::<T>().ok().filter(|n| allowed(n));
            number.with_context(|| format!("{name} {part} is not allowed; it takes {range}"))
        })
        .collect::<anyhow::Result<Vec<T>>>()?;
    ensure!(!numbers.is_empty(), "{name} names none; it takes {range}");
    Ok(numbers)
}
