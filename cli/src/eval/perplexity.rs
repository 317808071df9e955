//! `kept eval perplexity`: perplexity of a long text in streaming mode, for each method. Prints a line of JSON per
//! method and budget with `--json`, a table without.

use anyhow::ensure;
use kept_engine::policies::Budget;
use kept_engine::{Engine, EngineError, MethodSpec};
use kept_eval::{Perplexity, PerplexityTask};
use serde::Serialize;

use crate::arguments::PerplexityArguments;
use crate::compare::{chosen_budgets, chosen_methods};
use crate::output::{self, bytes, count};
use crate::progress::{ReadingBar, stop_on_ctrl_c};

#[derive(Serialize)]
struct LineJson<'a> {
    model: &'a str,
    method: &'a str,
    /// The method with its parameters: `h2o[recent=508]`.
    label: String,
    budget: String,
    tokens_per_second: Option<f64>,
    #[serde(flatten)]
    measured: Option<&'a Perplexity>,
    refused: Option<&'a str>,
}

/// A method at a budget, and its result.
struct Line {
    method: MethodSpec,
    budget: String,
    result: Result<Perplexity, String>,
}

pub fn perplexity(arguments: &PerplexityArguments) -> anyhow::Result<()> {
    let methods = chosen_methods(Some(&arguments.methods), &arguments.set)?;
    let budgets: Vec<Option<Budget>> = match &arguments.budgets {
        Some(list) => chosen_budgets(list)?.into_iter().map(Some).collect(),
        None => vec![None],
    };
    for budget in budgets.iter().flatten() {
        ensure!(
            !matches!(budget, Budget::Share(_)),
            "--budgets {budget} is a share of a text that may have any length; give rows per head (1024) or bytes (64MiB)"
        );
    }
    ensure!(
        arguments.chunk != Some(0),
        "--chunk 0 reads nothing; give at least 1"
    );
    let engine = arguments.engine.open()?;
    let text = super::read_text(&arguments.data)?;
    let mut ids = engine.model().tokenizer()?.encode(&text).ids;
    drop(text);
    let mut lengths = match &arguments.lengths {
        Some(list) => super::parse_numbers(
            "--lengths",
            list,
            |l: &usize| *l >= 2,
            "a whole number from 2",
        )?,
        None => vec![ids.len()],
    };
    lengths.sort_unstable();
    let longest = lengths.last().copied().unwrap_or(0);
    ensure!(
        longest <= ids.len(),
        "'{}' has {} tokens, fewer than the {longest} asked for; give more text",
        arguments.data.display(),
        ids.len()
    );
    ids.truncate(longest);
    let lines = measure_all(&engine, arguments, &methods, &budgets, &ids, &lengths)?;
    if !arguments.json {
        output::print_text(&table(&engine, &lines, &lengths))?;
    }
    ensure!(
        lines.iter().any(|line| line.result.is_ok()),
        "every run was refused; see the reasons above"
    );
    Ok(())
}

fn measure_all(
    engine: &Engine,
    arguments: &PerplexityArguments,
    methods: &[MethodSpec],
    budgets: &[Option<Budget>],
    ids: &[u32],
    lengths: &[usize],
) -> anyhow::Result<Vec<Line>> {
    let stop = stop_on_ctrl_c();
    let context = engine.model().config().context;
    let mut lines = Vec::new();
    for method in methods {
        let full = method.is_full();
        let budgets = if full { &[None] } else { budgets };
        // The full cache is measured up to the context length.
        let fitting = lengths.iter().filter(|&&length| length <= context).max();
        let ids = match (full, fitting) {
            (true, Some(&fitting)) => &ids[..fitting],
            _ => ids,
        };
        for budget in budgets {
            let shown = budget.map_or(String::new(), |budget| budget.to_string());
            let bar = ReadingBar::new();
            bar.label(format!("{method} {shown}").trim());
            let rows = budget.map(|budget| engine.budget_rows(budget, ids.len()));
            let task = PerplexityTask {
                ids,
                method,
                rows: rows.transpose()?,
                chunk: arguments.chunk,
                lengths,
            };
            let measured =
                Perplexity::measure(engine, &task, &mut |event| bar.event(&event), &stop);
            bar.clear();
            let result = match measured {
                Err(EngineError::Stopped) => return Err(EngineError::Stopped.into()),
                Err(refusal) => Err(refusal.to_string()),
                Ok(measured) => Ok(measured),
            };
            let line = Line {
                method: method.clone(),
                budget: shown,
                result,
            };
            if arguments.json {
                output::print_json(&json(engine, &line))?;
            }
            lines.push(line);
        }
    }
    Ok(lines)
}

fn json<'a>(engine: &'a Engine, line: &'a Line) -> LineJson<'a> {
    let measured = line.result.as_ref().ok();
    LineJson {
        model: engine.model().name(),
        method: &line.method.name,
        label: line.method.to_string(),
        budget: line.budget.clone(),
        tokens_per_second: measured.map(|m| (m.tokens + 1) as f64 / m.seconds),
        measured,
        refused: line.result.as_ref().err().map(String::as_str),
    }
}

/// A Markdown table with a row per method and a column per length.
fn table(engine: &Engine, lines: &[Line], lengths: &[usize]) -> String {
    let heads: Vec<String> = lengths.iter().map(|&length| count(length)).collect();
    let mut text = format!(
        "| method | rows | {} | tokens/s | cache |\n| --- | ---: |{} ---: | ---: |\n",
        heads.join(" | "),
        " ---: |".repeat(lengths.len())
    );
    for line in lines {
        match &line.result {
            Err(refusal) => {
                let name = format!("{} {}", line.method, line.budget);
                let empty = " - |".repeat(lengths.len() + 1);
                text += &format!("| `{}` | - |{empty} {refusal} |\n", name.trim());
            }
            Ok(measured) => {
                let of = |length: &usize| {
                    let at = measured.at.iter().find(|at| at.tokens == *length);
                    at.map_or("-".to_owned(), |at| format!("{:.2}", at.perplexity))
                };
                let cells: Vec<String> = lengths.iter().map(of).collect();
                text += &format!(
                    "| `{}` | {} | {} | {:.0} | {} |\n",
                    line.method,
                    count(measured.rows),
                    cells.join(" | "),
                    (measured.tokens + 1) as f64 / measured.seconds,
                    bytes(measured.kv_bytes),
                );
            }
        }
    }
    let Some(measured) = lines.iter().find_map(|line| line.result.as_ref().ok()) else {
        return text;
    };
    text + &format!(
        "\nPerplexity of the first tokens of the text, read by {} in streaming mode, whose window is {} tokens; in chunks of {}: a token also sees the tokens of its own chunk before it, whatever the budget (--chunk 1 is the papers' token by token).\n",
        engine.model().name(),
        count(engine.model().config().context),
        count(measured.chunk),
    )
}
