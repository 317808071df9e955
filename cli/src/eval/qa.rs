//! `kept eval qa`: questions with known answers about documents, with every method and budget. Prints a line per answer
//! and a summary with `--json`, a table without.
//!
//! A document is prefilled once: later questions and methods read its rows, stored as f16, from a temporary vault that
//! is deleted when the command ends.

use std::collections::BTreeMap;

use anyhow::ensure;
use kept_engine::documents::{Document, sentences};
use kept_engine::kernels::{PackedRows, Stop};
use kept_engine::vault::Vaults;
use kept_engine::{Answer, Ask, Citation, Engine, EngineError};
use kept_eval::needle::NeedleCell;
use kept_eval::qa::{QaQuestion, QaScore};
use serde::Serialize;

use crate::arguments::QaArguments;
use crate::compare::{Run, chosen_budgets, chosen_methods, runs};
use crate::output;
use crate::own_vaults::OwnVaults;
use crate::progress::{CountBar, stop_on_ctrl_c};

#[derive(Serialize)]
struct CaseJson<'a> {
    method: &'a str,
    budget: &'a str,
    #[serde(flatten)]
    question: QuestionJson<'a>,
    answer: Option<&'a str>,
    /// Why there is no answer.
    refused: Option<&'a str>,
    right: bool,
    #[serde(flatten)]
    score: Option<QaScore>,
    /// Whether a passage that the accepted answer stands on holds an accepted answer; `None` if none is clear.
    passage_right: Option<bool>,
}

/// An answer.
struct Answered {
    text: String,
    passage_right: Option<bool>,
}

#[derive(Serialize)]
struct QuestionJson<'a> {
    document: &'a str,
    question: &'a str,
    answers: &'a [String],
}

#[derive(Serialize)]
struct SummaryJson {
    model: String,
    summary: Vec<SummaryRow>,
}

/// `low` and `high` are the bounds of the 95 % confidence interval of the share.
#[derive(Serialize, Default)]
struct SummaryRow {
    method: String,
    budget: String,
    /// Number of questions that the documents answer.
    answerable: u32,
    /// Share of answers that include an accepted answer.
    included: Option<f64>,
    low: Option<f64>,
    high: Option<f64>,
    f1: Option<f64>,
    /// Answers to these questions that claim the document does not contain the answer.
    wrongly_declined: u32,
    /// Number of questions that the documents do not answer, and of answers that report this.
    unanswerable: u32,
    rightly_declined: u32,
    /// Accepted answers that stand on a clear passage, and those one of whose passages holds an accepted answer.
    cited: u32,
    rightly_cited: u32,
    /// Questions without an answer: the document is too long for the model, or the budget too small for the method.
    refused: u32,
}

/// Counts for one method at one budget.
#[derive(Default)]
struct Tally {
    answerable: NeedleCell,
    f1: f64,
    wrongly_declined: u32,
    unanswerable: NeedleCell,
    cited: NeedleCell,
    refused: u32,
}

impl Tally {
    fn add(&mut self, question: &QaQuestion, score: Option<QaScore>, passage_right: Option<bool>) {
        if let Some(right) = passage_right {
            self.cited.asked += 1;
            self.cited.right += u32::from(right);
        }
        let right = score.is_some_and(|score| question.is_right(&score));
        let cell = if question.answers.is_empty() {
            &mut self.unanswerable
        } else {
            &mut self.answerable
        };
        cell.asked += 1;
        cell.right += u32::from(right);
        self.refused += u32::from(score.is_none());
        if let Some(score) = score.filter(|_| !question.answers.is_empty()) {
            self.f1 += score.f1;
            self.wrongly_declined += u32::from(score.declined && !score.included);
        }
    }

    fn row(&self, run: &Run) -> SummaryRow {
        let interval = self.answerable.interval();
        let asked = self.answerable.asked;
        SummaryRow {
            method: run.method.to_string(),
            budget: run.budget_text.clone(),
            answerable: asked,
            included: self.answerable.share(),
            low: interval.map(|(low, _)| low),
            high: interval.map(|(_, high)| high),
            f1: (asked > 0).then(|| self.f1 / f64::from(asked)),
            wrongly_declined: self.wrongly_declined,
            unanswerable: self.unanswerable.asked,
            rightly_declined: self.unanswerable.right,
            cited: self.cited.asked,
            rightly_cited: self.cited.right,
            refused: self.refused,
        }
    }
}

pub fn qa(arguments: &QaArguments) -> anyhow::Result<()> {
    let methods = chosen_methods(Some(&arguments.methods), &arguments.set)?;
    let budgets = chosen_budgets(&arguments.budgets)?;
    ensure!(
        arguments.max_tokens > 0,
        "--max-tokens 0 leaves no answer; give at least 1"
    );
    let questions = QaQuestion::read_all(&arguments.data)?;
    ensure!(
        !questions.is_empty(),
        "'{}' has no questions in questions.jsonl",
        arguments.data.display()
    );
    let engine = arguments.engine.open()?;
    let runs = runs(&methods, &budgets);
    let rows = ask_all(&engine, arguments, &questions, &runs)?;
    if arguments.json {
        output::print_json(&SummaryJson {
            model: engine.model().name().to_owned(),
            summary: rows,
        })
    } else {
        output::print_text(&table(&rows))
    }
}

fn ask_all(
    engine: &Engine,
    arguments: &QaArguments,
    questions: &[QaQuestion],
    runs: &[Run],
) -> anyhow::Result<Vec<SummaryRow>> {
    let stop = stop_on_ctrl_c();
    let vaults = OwnVaults::new();
    let bar = CountBar::new(questions.len());
    let mut tallies: Vec<Tally> = runs.iter().map(|_| Tally::default()).collect();
    let mut documents = BTreeMap::new();
    for question in questions {
        bar.next(&question.document);
        let document = match documents.entry(&question.document) {
            std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::btree_map::Entry::Vacant(new) => {
                new.insert(Document::open(&question.path(&arguments.data))?)
            }
        };
        for (run, tally) in runs.iter().zip(&mut tallies) {
            let answer = ask(engine, arguments, document, question, run, &vaults, &stop)?;
            let score = answer
                .as_ref()
                .ok()
                .map(|answer| question.score(&answer.text));
            let passage_right = answer.as_ref().ok().and_then(|answer| answer.passage_right);
            tally.add(question, score, passage_right);
            if arguments.json {
                output::print_json(&CaseJson {
                    method: &run.method.to_string(),
                    budget: &run.budget_text,
                    question: QuestionJson {
                        document: &question.document,
                        question: &question.question,
                        answers: &question.answers,
                    },
                    answer: answer.as_ref().ok().map(|answer| &*answer.text),
                    refused: answer.as_ref().err().map(String::as_str),
                    right: score.is_some_and(|score| question.is_right(&score)),
                    score,
                    passage_right,
                })?;
            }
        }
    }
    bar.clear();
    let rows = runs.iter().zip(&tallies);
    Ok(rows.map(|(run, tally)| tally.row(run)).collect())
}

/// The answer, or the reason for a refusal: the document is too long for the model, or the method refuses the budget.
fn ask(
    engine: &Engine,
    arguments: &QaArguments,
    document: &Document,
    question: &QaQuestion,
    run: &Run,
    vaults: &OwnVaults,
    stop: &Stop,
) -> anyhow::Result<Result<Answered, String>> {
    let asked = engine.ask(
        &Ask {
            budget: run.budget,
            max_tokens: arguments.max_tokens,
            vault: Some(Vaults::new(&vaults.folder, PackedRows::F16)),
            ..Ask::new(document, &question.question, &run.method)
        },
        &mut |_| (),
        stop,
    );
    match asked {
        Ok(answer) => {
            if stop.is_requested() {
                return Err(EngineError::Stopped.into());
            }
            Ok(Ok(Answered {
                text: answer.text.trim().to_owned(),
                passage_right: passage_right(question, &answer),
            }))
        }
        Err(
            error @ (EngineError::TooLong { .. }
            | EngineError::TooLongFor { .. }
            | EngineError::QuestionTooLong { .. }),
        ) => Ok(Err(error.to_string())),
        Err(error) if error.is_refusal() => Ok(Err(error.to_string())),
        Err(error) => Err(error.into()),
    }
}

/// Whether a passage that the first sentence with an accepted answer stands on holds an accepted answer, too.
fn passage_right(question: &QaQuestion, answer: &Answer) -> Option<bool> {
    let sentences = sentences(&answer.text);
    let mut accepted = sentences.into_iter().filter(|sentence| {
        let said = &answer.text[sentence.clone()];
        question.score(said).included
    });
    let sentence = accepted.next()?;
    let cited = (answer.citations.iter()).filter(|citation| citation.end == sentence.end);
    let holds = |citation: &Citation| {
        let passage = &answer.sources[citation.source].text;
        question.score(passage).included
    };
    cited.map(holds).reduce(|a, b| a || b)
}

/// The summary as a Markdown table.
fn table(rows: &[SummaryRow]) -> String {
    let mut text = "| method | budget | right | F1 | wrongly declined | rightly declined | right passage | not answered |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n".to_owned();
    let percent = |share: Option<f64>| 100.0 * share.unwrap_or_default();
    for row in rows {
        text += &format!(
            "| `{}` | {} | {:.0} % ({:.0} to {:.0}) | {:.2} | {} of {} | {} of {} | {} of {} | {} |\n",
            row.method,
            row.budget,
            percent(row.included),
            percent(row.low),
            percent(row.high),
            row.f1.unwrap_or_default(),
            row.wrongly_declined,
            row.answerable,
            row.rightly_declined,
            row.unanswerable,
            row.rightly_cited,
            row.cited,
            row.refused,
        );
    }
    text += "\nRight: share of the answerable questions whose answer includes an accepted one; in brackets where it lies with 95 % confidence. Right passage: of the accepted answers that stand on a clear passage, those one of whose passages holds an accepted answer.\n";
    text
}
