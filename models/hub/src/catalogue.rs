//! Recommended models, smallest first: `models/catalogue.json`, embedded.
//!
//! Sizes are approximate; a download takes exact lengths and hashes from the hub. Nothing is downloaded until the user
//! requests it.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::found::MAX_PREFERRED_BYTES;
use crate::{ModelRef, RepoId};

const CATALOGUE: &str = include_str!("../../catalogue.json");

/// A recommended model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[serde(rename_all(serialize = "camelCase"))]
pub struct Entry {
    /// Display name.
    pub name: String,
    /// The repository.
    pub repo: RepoId,
    /// The file in the repository.
    pub file: String,
    /// Approximate length of the file in bytes.
    pub about_bytes: u64,
    /// `general.architecture`.
    pub architecture: String,
    /// Approximate number of parameters.
    pub parameters: u64,
    /// Those of them that a token is multiplied with: fewer with experts, or with an embedding in each layer.
    pub active_parameters: Option<u64>,
    /// Context length of the model, in tokens.
    pub context: u64,
    /// SPDX identifier, or the licence's own name.
    pub licence: String,
    /// Minimum memory for reasonable use, in bytes: weights, KV cache and working memory.
    pub minimum_memory_bytes: u64,
    /// Recommended use, in one sentence.
    pub good_for: String,
}

/// How well a model fits in a machine's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub enum Fit {
    /// The minimum memory is available.
    Fits,
    /// The weights fit, but little memory is left for the document.
    Tight,
    /// The free memory is unknown.
    Unknown,
    /// The weights do not fit.
    TooLarge,
}

impl Entry {
    /// The argument of `kept models pull`.
    pub fn reference(&self) -> ModelRef {
        ModelRef {
            repo: self.repo.clone(),
            what: Some(self.file.clone()),
        }
    }

    /// Approximate number of parameters that a token is multiplied with.
    pub fn parameters_per_token(&self) -> u64 {
        self.active_parameters.unwrap_or(self.parameters)
    }

    /// How well the model fits in `available` bytes of free memory.
    pub fn fit(&self, available: Option<u64>) -> Fit {
        match available {
            None => Fit::Unknown,
            Some(free) if free >= self.minimum_memory_bytes => Fit::Fits,
            Some(free) if free > self.about_bytes => Fit::Tight,
            Some(_) => Fit::TooLarge,
        }
    }

    /// The model to start with: the largest of those that fit and are small enough to be selected automatically, else
    /// the smallest.
    pub fn first(available: Option<u64>) -> Option<&'static Entry> {
        let all = catalogue().iter();
        let suits = |entry: &&Entry| {
            entry.fit(available) == Fit::Fits && entry.about_bytes <= MAX_PREFERRED_BYTES
        };
        all.rev().find(suits).or_else(|| catalogue().first())
    }

    /// All models, the best for `available` bytes of free memory first: those that fit and are not `slow` by descending
    /// size, then those that fit by descending speed, then the others by ascending size.
    pub fn ranked(
        available: Option<u64>,
        slow: impl Fn(&Entry) -> bool,
    ) -> Vec<(&'static Entry, Fit)> {
        let mut entries: Vec<(&Entry, Fit)> = catalogue()
            .iter()
            .map(|entry| (entry, entry.fit(available)))
            .collect();
        entries.sort_by_cached_key(|(entry, fit)| {
            let size = entry.about_bytes.cast_signed();
            match *fit {
                Fit::Fits if slow(entry) => {
                    (*fit, true, entry.parameters_per_token().cast_signed())
                }
                Fit::Fits => (*fit, false, -size),
                _ => (*fit, false, size),
            }
        });
        entries
    }
}

/// The catalogue, smallest first.
pub fn catalogue() -> &'static [Entry] {
    static ENTRIES: OnceLock<Vec<Entry>> = OnceLock::new();
    // A test parses it. If it were invalid nevertheless, the catalogue would be empty.
    ENTRIES.get_or_init(|| serde_json::from_str(CATALOGUE).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;

    use super::*;
    use crate::choose::{is_model_file, quantisation_of};

    #[test]
    fn catalogue_entries_are_valid_and_plausible() {
        let entries: Vec<Entry> = serde_json::from_str(CATALOGUE).unwrap();
        assert!((8..=16).contains(&entries.len()));
        for entry in &entries {
            let Entry { name, file, .. } = entry;
            assert!(is_model_file(file), "{name}: {file}");
            assert!(quantisation_of(file).is_some(), "{name}: {file}");
            let reference: ModelRef = entry.reference().to_string().parse().unwrap();
            assert_eq!(reference, entry.reference());
            // Between three and nine bits per parameter, and memory for more than the weights.
            let bits = entry.about_bytes as f64 * 8.0 / entry.parameters as f64;
            assert!(
                (3.0..9.0).contains(&bits),
                "{name}: {bits} bits a parameter"
            );
            assert!(entry.parameters_per_token() <= entry.parameters, "{name}");
            let partly = ["qwen3moe", "qwen35moe", "gpt-oss", "gemma4"];
            let partly = partly.contains(&entry.architecture.as_str());
            assert_eq!(entry.active_parameters.is_some(), partly, "{name}");
            assert!(
                entry.minimum_memory_bytes > entry.about_bytes * 5 / 4,
                "{name}"
            );
            assert!(
                entry.context >= 4096 && entry.context.is_power_of_two(),
                "{name}"
            );
            assert!(
                entry.good_for.ends_with('.') && !entry.licence.is_empty(),
                "{name}"
            );
        }
        let sorted = entries.is_sorted_by_key(|entry| entry.minimum_memory_bytes);
        assert!(sorted, "smallest first");
    }

    #[test]
    fn the_largest_that_fits_comes_first() {
        let gib = 1u64 << 30;
        let fast = |_: &Entry| false;
        let sorted = Entry::ranked(Some(6 * gib), fast);
        assert_eq!(sorted.len(), catalogue().len());
        assert_eq!(sorted[0].1, Fit::Fits);
        let largest = catalogue()
            .iter()
            .filter(|entry| entry.minimum_memory_bytes <= 6 * gib)
            .map(|entry| entry.about_bytes)
            .max();
        assert_eq!(Some(sorted[0].0.about_bytes), largest);
        assert!(sorted.is_sorted_by_key(|(_, fit)| *fit));
        assert!(Entry::ranked(None, fast).is_sorted_by_key(|(entry, _)| entry.about_bytes));
        let slow = |entry: &Entry| entry.parameters_per_token() > 1_500_000_000;
        let sorted = Entry::ranked(Some(64 * gib), slow);
        let fast = sorted.iter().take_while(|(entry, _)| !slow(entry));
        assert!(
            fast.clone()
                .is_sorted_by_key(|(entry, _)| Reverse(entry.about_bytes))
        );
        let rest = &sorted[fast.count()..];
        assert!(rest.len() > 1 && rest.iter().all(|(entry, _)| slow(entry)));
        assert!(rest.is_sorted_by_key(|(entry, _)| entry.parameters_per_token()));
        assert_eq!(catalogue()[0].fit(Some(gib)), Fit::Fits);
        assert_eq!(catalogue()[0].fit(Some(gib / 2)), Fit::Tight);
        assert_eq!(catalogue()[0].fit(Some(gib / 4)), Fit::TooLarge);
    }
}
