//! `kept compare`: compares methods and budgets with the full cache on one document and question. Prints a table, or
//! one object per line with `--json`; a budget that a method refuses is a row with the reason.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use kept_engine::documents::Document;
use kept_engine::kernels::Stop;
use kept_engine::policies::{self, Budget, Parameters, PolicyError};
use kept_engine::{Engine, EngineError, Event, MethodSpec};
use kept_eval::fidelity::{Drawn, MethodRun, Reference, RunReport, pictures};

use crate::arguments::CompareArguments;
use crate::output::{self, bytes, count};
use crate::progress::{ReadingBar, stop_on_ctrl_c};

/// One method at one budget.
pub struct Row {
    pub method: MethodSpec,
    pub budget: Budget,
    pub result: Result<MethodRun, String>,
}

pub fn run(arguments: &CompareArguments) -> anyhow::Result<()> {
    let methods = chosen_methods(arguments.methods.as_deref(), &arguments.set)?;
    let budgets = chosen_budgets(&arguments.budgets)?;
    ensure!(
        (1..=MAX_ANSWER_TOKENS).contains(&arguments.max_tokens),
        "--max-tokens {} is not between 1 and {MAX_ANSWER_TOKENS}",
        arguments.max_tokens
    );
    if let Some(folder) = &arguments.pictures {
        check_folder(folder)?;
    }
    let engine = arguments.engine.open()?;
    let document = arguments.question.open()?;
    let stop = stop_on_ctrl_c();
    let reference = reference(&engine, &document, arguments, &stop)?;
    let names = methods.iter().map(|method| method.to_string().len());
    let wide = names.max().unwrap_or(0).max(NAME);
    if arguments.json {
        output::print_json(&reference.report)?
    } else {
        output::print_text(&heading(&engine, &reference, wide))?
    }
    let print = |row: &Row| {
        if arguments.json {
            output::print_json(&run_json(&reference, row))
        } else {
            output::print_text(&table_line(row, &engine, wide))
        }
    };
    let runs: Vec<_> = runs(&methods, &budgets).iter().map(Run::pair).collect();
    let rows = measure(&engine, &reference, &runs, &print, &stop)?;
    if !arguments.json {
        output::print_text(&answers(&reference, &rows))?;
    }
    ensure!(
        rows.iter().any(|row| row.result.is_ok()),
        "every run was refused; give another budget"
    );
    match &arguments.pictures {
        Some(folder) => write_pictures(folder, &reference, &rows),
        None => Ok(()),
    }
}

/// The answer of the full cache.
fn reference(
    engine: &Engine,
    document: &Document,
    arguments: &CompareArguments,
    stop: &Stop,
) -> anyhow::Result<Reference> {
    let bar = ReadingBar::new();
    bar.label("full cache");
    let question = &arguments.question.question;
    let reference = Reference::read(
        engine,
        document,
        question,
        arguments.max_tokens,
        None,
        &mut |event| bar.event(&event),
        stop,
    );
    bar.clear();
    Ok(reference?)
}

/// Measures every run, and passes the rows to `print` in the order of `runs`; results arrive in another order.
fn measure(
    engine: &Engine,
    reference: &Reference,
    runs: &[(MethodSpec, Budget)],
    print: &dyn Fn(&Row) -> anyhow::Result<()>,
    stop: &Stop,
) -> anyhow::Result<Vec<Row>> {
    let mut known = BTreeMap::new();
    let mut rows: Vec<Row> = Vec::new();
    let bar = ReadingBar::new();
    let mut read = |sharing: Range<usize>, event: Event<'_>| {
        if let Event::Progress(progress, _) = event {
            let (method, budget) = &runs[sharing.start];
            let others = match sharing.len() {
                1 => String::new(),
                runs => format!(" and {} more", runs - 1),
            };
            bar.label(&format!("{method} {budget}{others}"));
            bar.show(&progress);
        }
    };
    let mut found = |run: usize, result: Result<MethodRun, EngineError>| -> anyhow::Result<()> {
        let (method, budget) = runs[run].clone();
        let row = Row {
            method,
            budget,
            result: result.map_err(|refusal| refusal.to_string()),
        };
        known.insert(run, row);
        while let Some(row) = known.remove(&rows.len()) {
            bar.suspend(|| print(&row))?;
            rows.push(row);
        }
        Ok(())
    };
    let done = MethodRun::measure_each(engine, reference, runs, None, &mut read, &mut found, stop);
    bar.clear();
    done?;
    Ok(rows)
}

/// Writes every picture into `folder`.
fn write_pictures(folder: &Path, reference: &Reference, rows: &[Row]) -> anyhow::Result<()> {
    let labels: Vec<String> = rows.iter().map(|row| row.method.to_string()).collect();
    let runs: Vec<Drawn<'_>> = rows
        .iter()
        .zip(&labels)
        .filter_map(|(row, label)| {
            let run = row.result.as_ref().ok()?;
            Some(Drawn {
                method: label,
                budget: row.budget.to_string(),
                run,
            })
        })
        .collect();
    for (name, svg) in pictures(reference, &runs) {
        output::write_file(&folder.join(name), |out| out.write_all(svg.as_bytes()))?;
    }
    output::say(&output::printable(&format!(
        "pictures are in {}\n",
        folder.display()
    )));
    Ok(())
}

/// The attention and the logits of the full cache's answer are held in memory, which limits its tokens.
const MAX_ANSWER_TOKENS: usize = 1024;
/// Minimum width of the column of method names.
const NAME: usize = 20;

/// The methods of a list (all methods if `None`) with the parameters in their brackets and those of `set`, given as
/// method:name=value, or name=value for every method that has it. Every parameter is checked before prefill.
pub fn chosen_methods(list: Option<&str>, set: &str) -> anyhow::Result<Vec<MethodSpec>> {
    let mut methods = named_methods(list)?;
    let mut further: Vec<Vec<(String, String)>> = vec![Vec::new(); methods.len()];
    let mut assignments = Parameters::parse_assignments(set)?;
    // What is set for one method comes after what is set for all.
    assignments.sort_by_key(|(name, _)| name.contains(':'));
    for (name, value) in &assignments {
        let (method, parameter) = match name.split_once(':') {
            Some((method, parameter)) => (Some(method.trim()), parameter.trim()),
            None => (None, name.as_str()),
        };
        ensure!(
            method != Some(""),
            "--set {name}={value} names no method before the colon; write {parameter}={value} for all methods"
        );
        let mut used = false;
        for (known, values) in methods.iter().zip(&mut further) {
            let takes = match method {
                Some(method) => known.name == method,
                None => known.has(parameter),
            };
            if takes {
                values.push((parameter.to_owned(), value.clone()));
            }
            used |= takes;
        }
        match method {
            Some(method) => ensure!(
                used,
                "--set {name}={value} is for {method}, which is not among --methods; add it there"
            ),
            None => ensure!(
                used,
                "--set {name}={value}: none of the methods has {name}; kept methods lists what they have"
            ),
        }
    }
    for (method, values) in methods.iter_mut().zip(&further) {
        method.set_further(values);
    }
    if let Some(label) = first_duplicate(&methods) {
        bail!(
            "with --set, --methods names {label} twice; set another value in the brackets of one"
        );
    }
    for method in &methods {
        method.build()?;
    }
    Ok(methods)
}

/// The methods of a list (all methods if `None`) with the parameters in their brackets. Duplicates are refused.
pub fn named_methods(list: Option<&str>) -> anyhow::Result<Vec<MethodSpec>> {
    let methods = match list {
        None => (policies::methods().iter())
            .map(|info| MethodSpec::plain(info.name))
            .collect(),
        Some(list) => {
            ensure!(
                parts(list).next().is_some(),
                "--methods names none; give for example --methods snapkv,h2o"
            );
            MethodSpec::list(list)?
        }
    };
    for method in &methods {
        policies::find(&method.name)?;
        method.build()?;
    }
    match first_duplicate(&methods) {
        None => Ok(methods),
        Some(label) => bail!("--methods names {label} twice; name each once"),
    }
}

/// The first duplicate in a list.
fn first_duplicate(methods: &[MethodSpec]) -> Option<String> {
    let mut seen = HashSet::new();
    let mut labels = methods.iter().map(MethodSpec::to_string);
    labels.find(|label| !seen.insert(label.clone()))
}

/// Parses a list of budgets.
pub fn chosen_budgets(list: &str) -> anyhow::Result<Vec<Budget>> {
    let budgets = parts(list)
        .map(str::parse)
        .collect::<Result<Vec<_>, PolicyError>>();
    // Options are named at the edge: here it is another one than that of a single budget.
    let budgets = budgets.map_err(|error| anyhow::anyhow!("--budgets: {error}"))?;
    ensure!(
        !budgets.is_empty(),
        "--budgets names none; give for example --budgets 128,25%"
    );
    for (i, budget) in budgets.iter().enumerate() {
        ensure!(
            !budgets[..i].contains(budget),
            "--budgets names {budget} twice; name each once"
        );
    }
    Ok(budgets)
}

/// The parts between the commas.
pub fn parts(list: &str) -> impl Iterator<Item = &str> {
    list.split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
}

/// Creates the folder before prefill, so that an unusable folder does not cost the result of a long comparison.
fn check_folder(folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| {
        format!(
            "the folder '{}' for the pictures cannot be made; choose another place",
            folder.display()
        )
    })
}

/// A method at a budget.
#[derive(Clone)]
pub struct Run {
    pub method: MethodSpec,
    /// `None` for the full cache.
    pub budget: Option<Budget>,
    /// Empty for the full cache.
    pub budget_text: String,
}

impl Run {
    /// The method and its budget, which is everything for the full cache.
    pub fn pair(&self) -> (MethodSpec, Budget) {
        let budget = self.budget.unwrap_or(Budget::Share(1.0));
        (self.method.clone(), budget)
    }
}

/// Every method at every budget; the full cache runs once because it has no budget.
pub fn runs(methods: &[MethodSpec], budgets: &[Budget]) -> Vec<Run> {
    let of_method = |method: &MethodSpec| -> Vec<Run> {
        let budgets: Vec<Option<Budget>> = match method.is_full() {
            true => vec![None],
            false => budgets.iter().copied().map(Some).collect(),
        };
        let at = |budget: Option<Budget>| Run {
            method: method.clone(),
            budget,
            budget_text: budget.map(|b| b.to_string()).unwrap_or_default(),
        };
        budgets.into_iter().map(at).collect()
    };
    methods.iter().flat_map(of_method).collect()
}

fn run_json(reference: &Reference, row: &Row) -> RunReport {
    let budget = row.budget.to_string();
    RunReport::new(
        &row.method,
        &budget,
        reference.prompt.len(),
        row.result.clone(),
    )
}

/// What is compared, and the head of the table, whose name column is `wide` characters wide.
fn heading(engine: &Engine, reference: &Reference, wide: usize) -> String {
    let answer = output::one_line(&reference.report.answer);
    let text = format!(
        "{} · {} tokens · the full cache ({} as f32, first token after {}, {:.1} tokens/s) answers in {} tokens:\n  {answer}\n\nrows below are {}\n",
        engine.model().name(),
        count(reference.prompt.len()),
        bytes(reference.report.kv_bytes),
        short_duration(reference.report.first_token_seconds),
        reference.report.decode_tokens_per_second,
        count(reference.answer_ids.len()),
        engine.cache_type(),
    );
    let head = format!(
        "{:<wide$} {:>8} {:>6} {:>10} {:>9} {:>7} {:>7} {:>8} {:>8} {:>9}  {}\n",
        "method",
        "budget",
        "rows",
        "cache",
        "KL",
        "top-1",
        "recall",
        "Jaccard",
        "first",
        "tokens/s",
        "answer"
    );
    output::printable(&text) + &head
}

fn table_line(row: &Row, engine: &Engine, wide: usize) -> String {
    let (method, budget) = (row.method.to_string(), row.budget.to_string());
    let name = format!("{method:<wide$} {budget:>8}");
    let run = match &row.result {
        Ok(run) => run,
        Err(sentence) => return output::printable(&format!("{name}  refused: {sentence}\n")),
    };
    let percent = |share: Option<f64>| share.map_or("-".into(), |s| format!("{:.1} %", 100.0 * s));
    let fidelity = &run.fidelity;
    // With a budget in bytes, the cache type is chosen to fit.
    let narrowed = if run.cache == engine.cache_type().name() {
        String::new()
    } else {
        format!(" {}", run.cache)
    };
    format!(
        "{name} {:>6} {:>10} {:>9} {:>7} {:>7} {:>8} {:>8} {:>9.1}  {}\n",
        count(run.map.mean_rows().round() as usize),
        bytes(run.kv_bytes) + &narrowed,
        fidelity.kl.map_or("-".into(), |kl| format!("{kl:.4}")),
        percent(fidelity.top1),
        percent(fidelity.attention_recall),
        percent(run.indices.jaccard),
        short_duration(run.first_token_seconds),
        run.decode_tokens_per_second,
        if run.same_answer { "same" } else { "differs" },
    )
}

/// The answers that differ from the full cache's.
fn answers(reference: &Reference, rows: &[Row]) -> String {
    let mut text = String::new();
    for row in rows {
        if let Ok(run) = &row.result
            && !run.same_answer
        {
            text += &format!(
                "\n{} at {} answers:\n  {}\n",
                row.method,
                row.budget,
                output::one_line(&run.answer)
            );
        }
    }
    if reference.answer_ids.is_empty() {
        text += "\nthe full cache ends without an answer, so there is nothing to compare along; ask in other words\n";
    }
    output::printable(&text)
}

/// Formats a duration; short times get decimals: `0.42 s`.
fn short_duration(seconds: f64) -> String {
    match Duration::from_secs_f64(seconds.clamp(0.0, 1e9)).as_secs() {
        0..10 => format!("{seconds:.2} s"),
        _ => crate::progress::duration(seconds),
    }
}
