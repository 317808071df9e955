//! The cases of a grid: one line of JSON each, in a file that a later run resumes from.
//!
//! ```text
//! {"model": "mini", "haystack_tokens": 9120, "answer_tokens": 32}          what all cases share
//! {"method": "snapkv", "budget": "64", "length": 512, ..., "correct": true}
//! ```

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

/// The first line of the file. Cases of another model or text do not belong to this grid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heading {
    pub model: String,
    pub haystack_tokens: usize,
    pub answer_tokens: usize,
    /// Type of the kept rows; f32 in files without this field.
    #[serde(default = "default_cache")]
    pub cache: String,
}

fn default_cache() -> String {
    "f32".to_owned()
}

/// The document of a case.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Place {
    /// Approximate prompt length in tokens.
    pub length: usize,
    /// Position of the fact, as a share of the document.
    pub depth: f64,
    pub seed: u64,
}

/// One question, answered with one method.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Case {
    pub method: String,
    /// The method with its parameters, `snapkv[w=8]`; missing in old files, which had no parameters.
    #[serde(default)]
    pub label: Option<String>,
    /// The budget as given by the user; empty for the full cache.
    pub budget: String,
    #[serde(flatten)]
    pub place: Place,
    pub prompt_tokens: Option<usize>,
    pub expected: String,
    pub answer: Option<String>,
    pub correct: bool,
    /// Why the method refused the budget.
    pub refused: Option<String>,
}

/// Label, budget, length, depth in thousandths of a percent, seed.
type Key = (String, String, usize, u64, u64);

fn key(label: &str, budget: &str, place: Place) -> Key {
    let depth = (place.depth * 1e5).round() as u64;
    let (label, budget) = (label.to_owned(), budget.to_owned());
    (label, budget, place.length, depth, place.seed)
}

/// All known cases, and the file that stores them.
#[derive(Default)]
pub struct Cases {
    known: HashMap<Key, Case>,
    file: Option<File>,
}

impl Cases {
    /// Opens the file at `path`, or creates it. An incomplete last line is dropped.
    pub fn open(path: &Path, heading: &Heading) -> anyhow::Result<Self> {
        let shown = path.display();
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(path)
            .with_context(|| format!("'{shown}' cannot be opened for writing"))?;
        let mut text = String::new();
        file.read_to_string(&mut text)
            .with_context(|| format!("'{shown}' cannot be read as text"))?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        let mut lines = text[..whole].lines().enumerate();
        if let Some((_, line)) = lines.next() {
            let found: Heading = serde_json::from_str(line)
                .ok()
                .with_context(|| format!("'{shown}' is no grid of needles; name another file"))?;
            ensure!(
                found == *heading,
                "'{shown}' has cases of {} over {} tokens of text, not of {} over {}; name another file",
                found.model,
                found.haystack_tokens,
                heading.model,
                heading.haystack_tokens
            );
        } else {
            ensure!(
                text.is_empty() || text.starts_with('{'),
                "'{shown}' is no grid of needles; name another file"
            );
        }
        let mut cases = Self::default();
        for (number, line) in lines {
            let case: Case = serde_json::from_str(line)
                .ok()
                .with_context(|| format!("line {} of '{shown}' is no case", number + 1))?;
            cases.note(case);
        }
        file.set_len(whole as u64)
            .with_context(|| format!("'{shown}' cannot be written"))?;
        if whole == 0 {
            let line = serde_json::to_string(heading)? + "\n";
            file.write_all(line.as_bytes())
                .with_context(|| format!("'{shown}' cannot be written"))?;
        }
        cases.file = Some(file);
        Ok(cases)
    }

    /// Looks up a case of the method with this label.
    pub fn find(&self, label: &str, budget: &str, place: Place) -> Option<&Case> {
        self.known.get(&key(label, budget, place))
    }

    /// Adds cases, to the file first.
    pub fn add(&mut self, cases: Vec<Case>) -> anyhow::Result<()> {
        if let Some(file) = &mut self.file {
            let lines = cases.iter().map(serde_json::to_string);
            let lines = lines.collect::<Result<Vec<_>, _>>()?.join("\n") + "\n";
            file.write_all(lines.as_bytes())
                .context("the file of the grid cannot be written")?;
        }
        cases.into_iter().for_each(|case| self.note(case));
        Ok(())
    }

    fn note(&mut self, case: Case) {
        let at = key(
            case.label.as_ref().unwrap_or(&case.method),
            &case.budget,
            case.place,
        );
        self.known.insert(at, case);
    }
}
