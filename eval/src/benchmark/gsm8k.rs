//! GSM8K (Cobbe et al., 2021): arithmetic word problems behind solved examples, which are the text that methods compress,
//! as in ChunkKV's tables 6 and 7. The model continues the examples, without a chat template: in one it solves the problem
//! in its own way, and the examples do not matter.

use std::path::Path;

use kept_engine::PromptForm;
use serde::Deserialize;

use super::{BenchmarkError, Case, Scoring, read_lines};

/// The problems of a GSM8K folder.
#[derive(Debug)]
pub struct Gsm8k {
    examples: Vec<Problem>,
    problems: Vec<Problem>,
}

/// One problem with its solution, whose last line is `#### ` and the result.
#[derive(Debug, Deserialize)]
struct Problem {
    question: String,
    answer: String,
}

const LAYOUT: &str = "give a folder with GSM8K's train.jsonl and test.jsonl (grade_school_math/data in its repository)";

/// How a further problem begins, with which a model goes on after its solution.
const NEXT: &str = "Question:";

/// What stands before the result of a solution.
const RESULT: &str = "####";

impl Gsm8k {
    /// Longest answer, in tokens.
    pub const MAX_TOKENS: usize = 256;

    /// Reads `train.jsonl` and `test.jsonl` of `folder`.
    ///
    /// # Errors
    /// [`BenchmarkError`] if one is missing, or a line is no problem with a result.
    pub fn open(folder: &Path) -> Result<Self, BenchmarkError> {
        let read = |name: &str| {
            read_lines(&folder.join(name), LAYOUT, |problem: &Problem| {
                let missing = || format!("the answer has no {RESULT} and a number");
                problem.result().map(|_| ()).ok_or_else(missing)
            })
        };
        Ok(Self {
            examples: read("train.jsonl")?,
            problems: read("test.jsonl")?,
        })
    }

    /// The first `limit` problems of the test set, each behind the first `shots` solved ones of the training set.
    pub fn cases(&self, shots: usize, limit: usize) -> Vec<Case> {
        let examples = self.examples.iter().take(shots);
        let document: String = examples.map(Problem::solved).collect();
        let problems = self.problems.iter().take(limit);
        problems
            .map(|problem| Case {
                task: "gsm8k",
                document: document.clone(),
                question: format!("{NEXT} {}\nAnswer:", problem.question.trim()),
                form: PromptForm::Plain,
                max_tokens: Self::MAX_TOKENS,
                until: Some(NEXT),
                answers: problem.result().into_iter().map(str::to_owned).collect(),
                scoring: Scoring::Number,
            })
            .collect()
    }

    /// Number of solved examples.
    pub fn examples(&self) -> usize {
        self.examples.len()
    }
}

impl Problem {
    fn result(&self) -> Option<&str> {
        let (_, result) = self.answer.rsplit_once(RESULT)?;
        number(result).map(|_| result.trim())
    }

    /// The problem with its solution in words, without the annotations of a calculator (`<<48/2=24>>`).
    fn solved(&self) -> String {
        let (mut solution, result) = match self.answer.rsplit_once(RESULT) {
            Some((solution, result)) => (solution.trim().to_owned(), result.trim()),
            None => (self.answer.clone(), ""),
        };
        while let Some((from, to)) = solution.find("<<").zip(solution.find(">>"))
            && from < to
        {
            solution.replace_range(from..to + 2, "");
        }
        let question = self.question.trim();
        format!("{NEXT} {question}\nAnswer: {solution}\nThe answer is {result}.\n\n")
    }
}

/// 1 if the answer's result is the accepted one: the number behind its last "answer is", else its last number. What
/// follows a further question of the model's own does not count.
pub(super) fn score(answer: &str, accepted: &[String]) -> f64 {
    let answer = answer.split(NEXT).next().unwrap_or_default();
    let named = answer.rsplit_once("answer is");
    let result = named
        .and_then(|(_, rest)| number(rest))
        .or_else(|| numbers(answer).pop());
    let right = |accepted: &String| {
        let pair = result.zip(number(accepted));
        pair.is_some_and(|(result, accepted)| (result - accepted).abs() < 1e-6)
    };
    f64::from(u8::from(accepted.iter().any(right)))
}

/// The first number of `text`.
fn number(text: &str) -> Option<f64> {
    numbers(text).first().copied()
}

/// The numbers of `text`: digits, with commas between them, a point and digits behind them, and a minus sign before them
/// that is no subtraction.
fn numbers(text: &str) -> Vec<f64> {
    let bytes = text.as_bytes();
    let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        if !digit(at) {
            at += 1;
            continue;
        }
        let begin = at;
        while digit(at) || (matches!(bytes.get(at), Some(b',' | b'.')) && digit(at + 1)) {
            at += 1;
        }
        let before = |back: usize| begin.checked_sub(back).map(|at| bytes[at]);
        let negative =
            before(1) == Some(b'-') && !before(2).is_some_and(|b| b.is_ascii_alphanumeric());
        if let Ok(number) = text[begin..at].replace(',', "").parse::<f64>() {
            found.push(if negative { -number } else { number });
        }
    }
    found
}
