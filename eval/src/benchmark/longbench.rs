//! LongBench (Bai et al., 2023): the prompts and answer lengths of its repository, and its scores. Of its 21 tasks the 16
//! in English and code, and two in Chinese; the scores of the others need a Chinese word segmenter.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use kept_engine::PromptForm;
use serde::Deserialize;

use super::scores::{class_share, code_similarity, count_share, retrieval_share, token_f1};
use super::{BenchmarkError, Case, Scoring, read, read_lines, rouge};

/// A LongBench folder.
#[derive(Debug)]
pub struct LongBench {
    folder: PathBuf,
    /// The prompt of each task, with `{context}` and `{input}`.
    prompts: HashMap<String, String>,
    /// Longest answer of each task, in tokens.
    lengths: HashMap<String, usize>,
}

/// How answers to a task are scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Metric {
    TokenF1,
    /// ROUGE-L; of the first line only, if `first_line`.
    RougeL {
        first_line: bool,
    },
    /// Token F1 of the first line.
    FirstLineF1,
    Classes,
    /// The number of the paragraph, which the answer names after this word.
    Retrieval(&'static str),
    Count,
    Code,
}

/// The tasks in the order of LongBench's own table, and their metrics.
const TASKS: [(&str, Metric); 18] = [
    ("narrativeqa", Metric::TokenF1),
    ("qasper", Metric::TokenF1),
    ("multifieldqa_en", Metric::TokenF1),
    ("hotpotqa", Metric::TokenF1),
    ("2wikimqa", Metric::TokenF1),
    ("musique", Metric::TokenF1),
    ("gov_report", Metric::RougeL { first_line: false }),
    ("qmsum", Metric::RougeL { first_line: false }),
    ("multi_news", Metric::RougeL { first_line: false }),
    ("trec", Metric::Classes),
    ("triviaqa", Metric::FirstLineF1),
    ("samsum", Metric::RougeL { first_line: true }),
    ("passage_count", Metric::Count),
    ("passage_retrieval_en", Metric::Retrieval("Paragraph ")),
    ("lcc", Metric::Code),
    ("repobench-p", Metric::Code),
    ("lsht", Metric::Classes),
    ("passage_retrieval_zh", Metric::Retrieval("段落")),
];

/// Tasks whose score needs a Chinese word segmenter.
const SEGMENTED: [&str; 3] = ["multifieldqa_zh", "dureader", "vcsum"];

/// Tasks without a chat template, as in LongBench's own program: the model continues examples or code.
const PLAIN: [&str; 6] = ["trec", "triviaqa", "samsum", "lsht", "lcc", "repobench-p"];

const LAYOUT: &str = "give the folder LongBench of its repository, with config/dataset2prompt.json, config/dataset2maxlen.json, and the data unpacked into data/";

/// One line of a task's file.
#[derive(Deserialize)]
struct Line {
    input: String,
    context: String,
    answers: Vec<String>,
    #[serde(default)]
    all_classes: Option<Vec<String>>,
}

impl LongBench {
    /// Opens the folder `LongBench` of its repository, with the data in `data/`.
    ///
    /// # Errors
    /// [`BenchmarkError`] if prompts or answer lengths cannot be read.
    pub fn open(folder: &Path) -> Result<Self, BenchmarkError> {
        Ok(Self {
            folder: folder.to_owned(),
            prompts: read_config(&folder.join("config/dataset2prompt.json"))?,
            lengths: read_config(&folder.join("config/dataset2maxlen.json"))?,
        })
    }

    /// The names of the tasks in `data/`, in the order of LongBench's table.
    pub fn tasks(&self) -> Vec<&'static str> {
        let there = |task: &&str| self.path(task).exists();
        TASKS.iter().map(|&(task, _)| task).filter(there).collect()
    }

    fn path(&self, task: &str) -> PathBuf {
        self.folder.join("data").join(format!("{task}.jsonl"))
    }

    /// The first `limit` cases of `task`.
    ///
    /// # Errors
    /// [`BenchmarkError`] for an unknown task, a missing file, or a line that is no case.
    pub fn cases(&self, task: &str, limit: usize) -> Result<Vec<Case>, BenchmarkError> {
        let known = TASKS.iter().find(|(name, _)| *name == task);
        let &(task, metric) = known.ok_or_else(|| BenchmarkError::Task {
            task: task.to_owned(),
            problem: match SEGMENTED.contains(&task) {
                true => "is scored by Chinese words, which Kept cannot tell apart",
                false => "is not of LongBench",
            },
            known: TASKS.map(|(name, _)| name).join(", "),
        })?;
        let missing = |what: &str| BenchmarkError::Content {
            path: self.folder.join("config").display().to_string(),
            line: None,
            problem: format!("no {what} for {task}"),
        };
        let prompt = self.prompts.get(task).ok_or_else(|| missing("prompt"))?;
        let (before, after) = prompt
            .split_once("{context}")
            .ok_or_else(|| missing("prompt with {context}"))?;
        // The two passage retrieval tasks share a length.
        let mut lengths = [task, "passage_retrieval"].into_iter();
        let max_tokens = lengths.find_map(|name| self.lengths.get(name));
        let max_tokens = *max_tokens.ok_or_else(|| missing("answer length"))?;
        let lines: Vec<Line> = read_lines(&self.path(task), LAYOUT, |_| Ok(()))?;
        let case = |line: Line| Case {
            task,
            document: before.replace("{input}", &line.input) + &line.context,
            question: after.replace("{input}", &line.input),
            form: match PLAIN.contains(&task) {
                true => PromptForm::Plain,
                false => PromptForm::Chat,
            },
            max_tokens,
            // Only the first line counts, and models go on with a dialogue of their own.
            until: (task == "samsum").then_some("\nDialogue"),
            answers: line.answers,
            scoring: Scoring::LongBench {
                metric,
                classes: line.all_classes.unwrap_or_default(),
            },
        };
        Ok(lines.into_iter().take(limit).map(case).collect())
    }
}

fn read_config<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, BenchmarkError> {
    serde_json::from_str(&read(path, LAYOUT)?).map_err(|error| BenchmarkError::Content {
        path: path.display().to_string(),
        line: None,
        problem: error.to_string(),
    })
}

impl Metric {
    /// The best score of `answer` over all accepted answers.
    pub(super) fn best(self, answer: &str, accepted: &[String], classes: &[String]) -> f64 {
        let first = answer.trim_start_matches('\n');
        let first = first.split('\n').next().unwrap_or_default();
        let score = |accepted: &String| match self {
            Self::TokenF1 => token_f1(answer, accepted),
            Self::FirstLineF1 => token_f1(first, accepted),
            Self::RougeL { first_line: false } => rouge::rouge_l(answer, accepted),
            Self::RougeL { first_line: true } => rouge::rouge_l(first, accepted),
            Self::Classes => class_share(first, accepted, classes),
            Self::Retrieval(word) => retrieval_share(answer, accepted, word),
            Self::Count => count_share(answer, accepted),
            Self::Code => code_similarity(answer, accepted),
        };
        accepted.iter().map(score).fold(0.0, f64::max)
    }
}
