//! Questions with known answers about documents (`tests/qa`): the file that holds them, and how an answer is scored.
//!
//! ```text
//! {"document":"lease.txt","question":"How much is the deposit?","answers":["2,820 euros","2820 euros"]}
//! ```
//!
//! A question without accepted answers is one that its document does not answer; a right answer says so.
//!
//! `kept eval qa` asks the questions.

use std::path::Path;

use serde::Deserialize;

use crate::benchmark::{BenchmarkError, f1, read_lines};

/// One question.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QaQuestion {
    /// File name in the `documents` folder of the set.
    pub document: String,
    /// The question.
    pub question: String,
    /// Accepted answers; empty if the document does not contain the answer.
    pub answers: Vec<String>,
}

/// Score of one answer.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct QaScore {
    /// Whether the words of an accepted answer occur consecutively in the answer.
    pub included: bool,
    /// The best token F1 over all accepted answers, 0 to 1 (as in SQuAD).
    pub f1: f64,
    /// Whether the answer says that the document does not contain the information.
    pub declined: bool,
}

/// The files of a set of questions.
const LAYOUT: &str = "give a folder with questions.jsonl and documents/, such as tests/qa";

impl QaQuestion {
    /// Reads the questions of `folder`, in the order of its `questions.jsonl`.
    ///
    /// # Errors
    /// [`BenchmarkError`], also for a line whose document is missing in the folder's `documents`.
    pub fn read_all(folder: &Path) -> Result<Vec<Self>, BenchmarkError> {
        let path = folder.join("questions.jsonl");
        read_lines(&path, LAYOUT, |question: &Self| question.check(folder))
    }

    fn check(&self, folder: &Path) -> Result<(), String> {
        let name = Path::new(&self.document);
        if name.file_name() != Some(name.as_os_str()) {
            return Err(format!("'{}' is not a file name", self.document));
        }
        if !self.path(folder).is_file() {
            return Err(format!("there is no documents/{}", self.document));
        }
        Ok(())
    }

    /// Path of the question's document.
    pub fn path(&self, folder: &Path) -> std::path::PathBuf {
        folder.join("documents").join(&self.document)
    }

    /// Scores `answer`.
    pub fn score(&self, answer: &str) -> QaScore {
        let words = words(answer);
        let accepted: Vec<Vec<String>> = self.answers.iter().map(|a| self::words(a)).collect();
        QaScore {
            included: accepted.iter().any(|accepted| contains(&words, accepted)),
            f1: accepted.iter().map(|a| f1(&words, a)).fold(0.0, f64::max),
            declined: DECLINES
                .iter()
                .any(|said| contains(&words, &self::words(said))),
        }
    }

    /// Whether an answer with this score is right.
    pub fn is_right(&self, score: &QaScore) -> bool {
        if self.answers.is_empty() {
            score.declined
        } else {
            score.included
        }
    }
}

/// Phrases with which models say that a document does not contain the answer.
const DECLINES: [&str; 22] = [
    "does not say",
    "doesn't say",
    "does not mention",
    "doesn't mention",
    "does not state",
    "doesn't state",
    "does not specify",
    "doesn't specify",
    "does not provide",
    "doesn't provide",
    "does not contain",
    "does not include",
    "not mentioned",
    "not stated",
    "not specified",
    "not provided",
    "not given",
    "not known",
    "no information",
    "no mention",
    "cannot be determined",
    "do not know",
];

/// Splits into lower-case words, without punctuation, articles and the possessive `'s`.
fn words(text: &str) -> Vec<String> {
    let word = |word: &str| -> String {
        let word = word.to_lowercase().replace('’', "'");
        let word = word.trim_end_matches(|c: char| c.is_ascii_punctuation() && c != '\'');
        let word = word.strip_suffix("'s").unwrap_or(word);
        let kept = word
            .chars()
            .filter(|c| !c.is_ascii_punctuation() && !"“”‘’—–…".contains(*c));
        kept.collect()
    };
    let articles = ["", "a", "an", "the"];
    let words = text.split_whitespace().map(word);
    words
        .filter(|word| !articles.contains(&word.as_str()))
        .collect()
}

fn contains(answer: &[String], accepted: &[String]) -> bool {
    !accepted.is_empty() && answer.windows(accepted.len()).any(|part| part == accepted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(answers: &[&str]) -> QaQuestion {
        QaQuestion {
            document: "lease.txt".to_owned(),
            question: "How much is the deposit?".to_owned(),
            answers: answers.iter().map(|&a| a.to_owned()).collect(),
        }
    }

    #[test]
    fn answer_is_right_if_it_contains_an_accepted_one() {
        let deposit = question(&["2,820 euros", "Mrs. Halloway"]);
        let right = deposit.score("The deposit is 2820 Euros.");
        assert!(right.included && !right.declined && deposit.is_right(&right));
        // Common words: 2820, euros; of 4 and 2 words.
        assert!((right.f1 - 2.0 * 2.0 / 6.0).abs() < 1e-9);
        assert!(deposit.score("Mrs. Halloway's fridge").included);
        for wrong in ["2,82", "euros 2,820", "", "12,820 euros"] {
            let score = deposit.score(wrong);
            assert!(!score.included && !deposit.is_right(&score), "{wrong}");
        }
        assert_eq!(deposit.score("no idea").f1, 0.0);
    }

    #[test]
    fn unanswerable_question_must_be_declined() {
        let unanswerable = question(&[]);
        let declined = unanswerable.score("The document doesn’t mention the deposit.");
        assert!(declined.declined && unanswerable.is_right(&declined));
        let made_up = unanswerable.score("The deposit is 500 euros.");
        assert!(!unanswerable.is_right(&made_up));
    }

    #[test]
    fn invalid_line_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let read = |text: &str| {
            std::fs::write(folder.path().join("questions.jsonl"), text).unwrap();
            QaQuestion::read_all(folder.path())
        };
        assert!(matches!(
            QaQuestion::read_all(folder.path()),
            Err(BenchmarkError::File { .. })
        ));
        std::fs::create_dir(folder.path().join("documents")).unwrap();
        std::fs::write(folder.path().join("documents/a.txt"), "text").unwrap();
        let good = r#"{"document":"a.txt","question":"Why?","answers":[]}"#;
        assert_eq!(read(&format!("{good}\n\n{good}\n")).unwrap().len(), 2);
        for broken in [
            "{",
            r#"{"document":"b.txt","question":"Why?","answers":[]}"#,
            r#"{"document":"../a.txt","question":"Why?","answers":[]}"#,
            r#"{"document":"a.txt","question":"Why?"}"#,
        ] {
            let error = read(&format!("{good}\n{broken}\n")).unwrap_err();
            assert!(
                matches!(error, BenchmarkError::Content { line: Some(2), .. }),
                "{broken}"
            );
        }
    }
}
