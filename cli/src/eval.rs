//! `kept eval needle`: retrieves one planted fact at every length and depth, with every method and budget. Prints a
//! line per case with `--json`, a table without; optionally draws a picture.
//!
//! A document is prefilled once for all methods. `eval/cases.rs` defines the cases and the file that stores them.

mod benchmark;
mod cases;
mod perplexity;
mod qa;

use std::path::PathBuf;

use anyhow::{Context, ensure};
use kept_engine::documents::Document;
use kept_engine::kernels::Stop;
use kept_engine::policies::Budget;
use kept_engine::{Engine, MethodSpec, PromptText};
use kept_eval::needle::{Haystack, NeedleCell, NeedleGrid, needle_picture};
use serde::Serialize;

use crate::arguments::NeedleArguments;
use crate::compare::{Run, chosen_budgets, named_methods, parts, runs};
use crate::output;
use crate::progress::{CountBar, stop_on_ctrl_c};
pub use benchmark::{gsm8k, longbench};
use cases::{Case, Cases, Heading, Place};
pub use perplexity::perplexity;
pub use qa::qa;

/// Answer length in tokens: an answer repeats the question before the value.
const ANSWER_TOKENS: usize = 32;

#[derive(Serialize)]
struct SummaryJson {
    summary: Vec<SummaryRow>,
}

/// `low` and `high` are the bounds of the 95 % confidence interval of the share.
#[derive(Serialize)]
struct SummaryRow {
    method: String,
    /// The method with its parameters: `snapkv[w=8]`.
    label: String,
    budget: String,
    cases: u32,
    share: Option<f64>,
    low: Option<f64>,
    high: Option<f64>,
}

/// The grid: every method at every budget, at every length and depth.
struct Questions {
    methods: Vec<MethodSpec>,
    budgets: Vec<Budget>,
    lengths: Vec<usize>,
    /// Depths as shares of the document.
    depths: Vec<f64>,
    repeats: u64,
}

impl Questions {
    fn new(arguments: &NeedleArguments) -> anyhow::Result<Self> {
        let methods = named_methods(arguments.methods.as_deref())?;
        let budgets = chosen_budgets(&arguments.budgets)?;
        let lengths = parse_numbers(
            "--lengths",
            &arguments.lengths,
            |l: &usize| *l >= 256,
            "a whole number from 256",
        )?;
        let depths = parse_numbers(
            "--depths",
            &arguments.depths,
            |d: &f64| (0.0..=100.0).contains(d),
            "a number from 0 to 100",
        )?;
        ensure!(
            (1..=1000).contains(&arguments.repeats),
            "--repeats {} is not between 1 and 1000",
            arguments.repeats
        );
        Ok(Self {
            methods,
            budgets,
            lengths,
            depths: depths.iter().map(|d| d / 100.0).collect(),
            repeats: arguments.repeats,
        })
    }
}

pub fn needle(arguments: &NeedleArguments) -> anyhow::Result<()> {
    let questions = Questions::new(arguments)?;
    for path in [&arguments.picture, &arguments.grid].into_iter().flatten() {
        output::check_target(path, &[arguments.data.as_path()])?;
    }
    let engine = arguments.engine.open()?;
    let context = engine.model().config().context;
    for &length in &questions.lengths {
        ensure!(
            length + ANSWER_TOKENS <= context,
            "--lengths {length} is too long: the model reads {context} tokens and needs {ANSWER_TOKENS} for the answer"
        );
    }
    let text = read_text(&arguments.data)?;
    let haystack = Haystack::new(&engine, &text)?;
    let longest = questions.lengths.iter().max().copied().unwrap_or(0);
    ensure!(
        haystack.tokens() >= longest,
        "'{}' has {} tokens of sentences, fewer than the {longest} asked for; give more text",
        arguments.data.display(),
        haystack.tokens()
    );
    let heading = Heading {
        model: engine.model().name().to_owned(),
        haystack_tokens: haystack.tokens(),
        answer_tokens: ANSWER_TOKENS,
        cache: engine.cache_type().name().to_owned(),
    };
    let mut cases = match &arguments.grid {
        Some(path) => Cases::open(path, &heading)?,
        None => Cases::default(),
    };
    ask_all(&engine, &questions, &haystack, &mut cases, arguments.json)?;

    let grids = grids(&questions, &cases);
    let budgets: Vec<String> = questions.budgets.iter().map(Budget::to_string).collect();
    if arguments.json {
        output::print_json(&SummaryJson {
            summary: grids.iter().map(summary).collect(),
        })?
    } else {
        output::print_text(&table(&grids, &budgets))?
    }
    if let Some(path) = &arguments.picture {
        let title = format!("A needle in a haystack: {}", engine.model().name());
        let (lengths, depths) = (&questions.lengths, &questions.depths);
        let svg = needle_picture(&title, &grids, &budgets, lengths, depths);
        output::write_file(path, |out| out.write_all(svg.as_bytes()))?;
    }
    Ok(())
}

/// Runs the cases that `cases` does not have yet, one document at a time, with one prefill for all methods.
fn ask_all(
    engine: &Engine,
    questions: &Questions,
    haystack: &Haystack,
    cases: &mut Cases,
    json: bool,
) -> anyhow::Result<()> {
    let stop = stop_on_ctrl_c();
    let runs = runs(&questions.methods, &questions.budgets);
    let documents = questions.lengths.len() * questions.depths.len() * questions.repeats as usize;
    let bar = CountBar::new(documents);
    for &length in &questions.lengths {
        for seed in 0..questions.repeats {
            for &depth in &questions.depths {
                bar.next(&format!("{length} tokens, depth {:.0} %", 100.0 * depth));
                let place = Place {
                    length,
                    depth,
                    seed,
                };
                let missing = |run: &&Run| {
                    let label = run.method.to_string();
                    cases.find(&label, &run.budget_text, place).is_none()
                };
                let missing: Vec<Run> = runs.iter().filter(missing).cloned().collect();
                if missing.is_empty() {
                    continue;
                }
                let found = ask(engine, haystack, &missing, place, &stop)?;
                if json {
                    for case in &found {
                        output::print_json(case)?;
                    }
                }
                cases.add(found)?;
            }
        }
    }
    bar.clear();
    Ok(())
}

/// The answers of every run to one document.
fn ask(
    engine: &Engine,
    haystack: &Haystack,
    runs: &[Run],
    place: Place,
    stop: &Stop,
) -> anyhow::Result<Vec<Case>> {
    let needle = haystack
        .needle_for(engine, place.length, ANSWER_TOKENS, place.depth, place.seed)?
        .context("the text is too short")?;
    let asked: Vec<_> = runs.iter().map(Run::pair).collect();
    let text = PromptText::new(&needle.document, &needle.question);
    let answers = engine.ask_each(&text, &asked, ANSWER_TOKENS, None, &mut |_| {}, stop)?;
    let mut found = Vec::new();
    for (run, text) in runs.iter().zip(answers.texts) {
        let (answer, refused) = match text {
            Ok(answer) => (Some(answer), None),
            Err(refusal) => (None, Some(refusal.to_string())),
        };
        found.push(Case {
            method: run.method.name.clone(),
            label: Some(run.method.to_string()),
            budget: run.budget_text.clone(),
            place,
            prompt_tokens: answer.as_ref().map(|_| answers.prompt_tokens),
            expected: needle.value.clone(),
            correct: answer.as_ref().is_some_and(|a| needle.is_in(a)),
            answer,
            refused,
        });
    }
    Ok(found)
}

/// One grid per method and budget, from the requested cases.
fn grids(questions: &Questions, cases: &Cases) -> Vec<NeedleGrid> {
    let cell = |label: &str, budget: &str, length: usize, depth: f64| {
        let mut cell = NeedleCell::default();
        for seed in 0..questions.repeats {
            let place = Place {
                length,
                depth,
                seed,
            };
            let case = cases.find(label, budget, place);
            if let Some(case) = case.filter(|case| case.refused.is_none()) {
                cell.asked += 1;
                cell.right += u32::from(case.correct);
            }
        }
        cell
    };
    let grid = |run: Run| {
        let (label, budget) = (run.method.to_string(), run.budget_text);
        let row = |&depth: &f64| {
            let of = |&length: &usize| cell(&label, &budget, length, depth);
            questions.lengths.iter().map(of).collect()
        };
        NeedleGrid {
            cells: questions.depths.iter().map(row).collect(),
            method: label,
            budget,
        }
    };
    let runs = runs(&questions.methods, &questions.budgets);
    runs.into_iter().map(grid).collect()
}

fn summary(grid: &NeedleGrid) -> SummaryRow {
    let whole = grid.whole();
    let interval = whole.interval();
    SummaryRow {
        method: name_of(&grid.method).to_owned(),
        label: grid.method.clone(),
        budget: grid.budget.clone(),
        cases: whole.asked,
        share: whole.share(),
        low: interval.map(|(low, _)| low),
        high: interval.map(|(_, high)| high),
    }
}

/// The method's name in a label.
fn name_of(label: &str) -> &str {
    label.split('[').next().unwrap_or(label)
}

/// A Markdown table with a row per method and a column per budget.
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
                let cell = found.map(NeedleGrid::whole).unwrap_or_default();
                let known = cell.share().zip(cell.interval());
                known.map_or("refused".into(), |(share, (low, high))| {
                    let [share, low, high] = [share, low, high].map(|x| 100.0 * x);
                    format!("{share:.0} % ({low:.0} to {high:.0})")
                })
            };
            let cells: Vec<String> = budgets.iter().map(|b| of(b)).collect();
            text += &format!("| `{}` | {} |\n", grid.method, cells.join(" | "));
        }
    }
    let asked = grids.iter().map(|grid| grid.whole().asked).max();
    text += &format!(
        "\nShare of right answers out of up to {}; in brackets where it lies with 95 % confidence.\n",
        asked.unwrap_or(0)
    );
    text
}

/// The text of a file, or of every .txt file in a folder, sorted by name.
fn read_text(path: &PathBuf) -> anyhow::Result<String> {
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

fn parse_numbers<T: std::str::FromStr>(
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
