//! Published benchmarks whose data the user has: LongBench and GSM8K, with their prompts and scores.
//!
//! A case is one prompt and what its answer is scored by. Every method answers it; `Case::score` rates the answer.

mod difflib;
mod gsm8k;
mod longbench;
mod rouge;
mod scores;
#[cfg(test)]
mod tests;

use kept_engine::{Engine, EngineError, Prompt, PromptForm, PromptText};
use kept_kernels::Stop;

pub use gsm8k::Gsm8k;
pub use longbench::LongBench;
pub(crate) use scores::f1;

/// One prompt of a benchmark.
#[derive(Debug, Clone)]
pub struct Case {
    /// The task: `qasper`, `gsm8k`.
    pub task: &'static str,
    /// The part of the prompt that methods compress.
    pub document: String,
    /// What follows it.
    pub question: String,
    /// Whether the model's chat template stands around both.
    pub form: PromptForm,
    /// Longest answer, in tokens.
    pub max_tokens: usize,
    /// A text that ends the answer when it is written.
    pub until: Option<&'static str>,
    /// Accepted answers.
    pub answers: Vec<String>,
    scoring: Scoring,
}

/// How an answer is scored.
#[derive(Debug, Clone)]
enum Scoring {
    LongBench {
        metric: longbench::Metric,
        /// The names of all classes, of a task that classifies.
        classes: Vec<String>,
    },
    Number,
}

/// Why questions cannot be read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum BenchmarkError {
    /// The file is missing or cannot be read.
    #[error("'{path}' cannot be read: {error}; {layout}")]
    File {
        path: String,
        error: std::io::Error,
        layout: &'static str,
    },
    /// The file has other content than expected.
    #[error("'{path}'{}: {problem}", line.map(|line| format!(", line {line}")).unwrap_or_default())]
    Content {
        path: String,
        /// The line number, from 1.
        line: Option<usize>,
        problem: String,
    },
    /// The task is unknown, or its score needs what Kept lacks.
    #[error("the task {task} {problem}; known are {known}")]
    Task {
        task: String,
        problem: &'static str,
        known: String,
    },
}

impl Case {
    /// Score of `answer`, 0 to 1: the best over all accepted answers.
    pub fn score(&self, answer: &str) -> f64 {
        match &self.scoring {
            Scoring::LongBench { metric, classes } => metric.best(answer, &self.answers, classes),
            Scoring::Number => gsm8k::score(answer, &self.answers),
        }
    }

    /// The prompt's texts.
    pub fn text(&self) -> PromptText<'_> {
        PromptText {
            form: self.form,
            ..PromptText::new(&self.document, &self.question)
        }
    }

    /// The case with a prompt of at most `most` tokens: a longer one loses tokens from its middle, as in LongBench's own
    /// program.
    ///
    /// # Errors
    /// [`EngineError::QuestionTooLong`] if the question alone is too long, and those of the tokenizer.
    pub fn within(self, engine: &Engine, most: usize, stop: &Stop) -> Result<Self, EngineError> {
        let mut case = self;
        loop {
            let prompt = Prompt::of_any_length(engine.model(), &case.text(), stop)?;
            let Some(excess) = prompt.len().checked_sub(most).filter(|&excess| excess > 0) else {
                return Ok(case);
            };
            let tokens = prompt.document.len();
            if excess > tokens {
                return Err(EngineError::QuestionTooLong {
                    model: engine.model().name().to_owned(),
                    tokens: prompt.len() - tokens,
                    context: most,
                });
            }
            // The tokens around the gap may become more when they are encoded again: the loop then removes those, too.
            let first = (most / 2)
                .saturating_sub(prompt.document.start)
                .min(tokens - excess);
            let spans = prompt.spans();
            let (from, to) = (spans[first].start, spans[first + excess - 1].end);
            let from = case.document.floor_char_boundary(from as usize);
            let to = case.document.ceil_char_boundary(to as usize);
            case.document.replace_range(from..to, "");
        }
    }
}

/// The text of the file at `path`.
fn read(path: &std::path::Path, layout: &'static str) -> Result<String, BenchmarkError> {
    std::fs::read_to_string(path).map_err(|error| BenchmarkError::File {
        path: path.display().to_string(),
        error,
        layout,
    })
}

/// The objects of a file with one on each line, which `check` accepts; empty lines are skipped.
pub(crate) fn read_lines<T: serde::de::DeserializeOwned>(
    path: &std::path::Path,
    layout: &'static str,
    check: impl Fn(&T) -> Result<(), String>,
) -> Result<Vec<T>, BenchmarkError> {
    let text = read(path, layout)?;
    let lines = text.lines().enumerate();
    let lines = lines.filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(at, line)| {
            let parsed = serde_json::from_str(line).map_err(|error| error.to_string());
            let checked = parsed.and_then(|object| check(&object).map(|()| object));
            checked.map_err(|problem| BenchmarkError::Content {
                path: path.display().to_string(),
                line: Some(at + 1),
                problem,
            })
        })
        .collect()
}
