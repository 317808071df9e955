//! The content of `measured.json`: figures of every method at every measured share, on a chat model and a base model,
//! and the best method at a share.

use std::sync::OnceLock;

use kept_policies::FULL;
use serde::Deserialize;

/// A mean divergence below this, in nats, makes no visible difference in an answer.
pub(super) const LEVEL: f64 = 0.01;

/// A mean over fewer prompts is not reliable.
const ENOUGH_PROMPTS: usize = 10;

/// A method at a share of the prompt's rows, with rows stored as f32: means over the prompts of one model.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct Run {
    pub(super) method: String,
    pub(super) share: f64,
    /// KL divergence from the full cache along its answer, in nats.
    pub(super) kl: f64,
    /// Share of planted facts that were answered, of those that the full cache answers.
    pub(super) right: f64,
}

/// A method reading a book in streaming mode.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct StreamedRun {
    pub(super) method: String,
    pub(super) perplexity: f64,
}

/// Divergence caused by a cache type alone, with every row kept.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct CacheRun {
    pub(super) cache: String,
    pub(super) kl: f64,
}

/// Measurements of one model, and the prompts used.
#[derive(Debug, Deserialize)]
pub(super) struct MeasuredModel {
    pub(super) name: String,
    /// Whether the file has a chat template. Methods rank differently on the two kinds: KVzip has the model repeat
    /// the text, which a base model cannot do.
    pub(super) chat: bool,
    /// Number of parameters in the model's file.
    pub(super) parameters: u64,
    /// Number of prompts, each with a planted fact.
    pub(super) prompts: usize,
    /// Tokens of the shortest and of the longest prompt.
    pub(super) tokens: [usize; 2],
    /// Number of facts that the full cache answers.
    pub(super) answered: usize,
    pub(super) runs: Vec<Run>,
}

#[derive(Debug, Deserialize)]
pub(super) struct MeasuredTable {
    /// Chat models, with the first of which `caches` and `streaming` were measured too, and a base model.
    pub(super) models: Vec<MeasuredModel>,
    pub(super) caches: Vec<CacheRun>,
    pub(super) streaming: Vec<StreamedRun>,
}

pub(super) fn measured() -> &'static MeasuredTable {
    static MEASURED: OnceLock<MeasuredTable> = OnceLock::new();
    MEASURED.get_or_init(|| {
        serde_json::from_str(include_str!("measured.json")).expect("the table is ours and valid")
    })
}

impl MeasuredModel {
    fn runs_of(&self, method: &str) -> Vec<&Run> {
        self.runs
            .iter()
            .filter(|run| run.method == method)
            .collect()
    }

    /// The measurement of `method` at the largest share up to `share`; at its smallest share if all are larger.
    pub(super) fn run_at(&self, method: &str, share: f64) -> Option<&Run> {
        let mut own = self.runs_of(method);
        own.sort_by(|a, b| a.share.total_cmp(&b.share));
        let below = own.iter().rev().find(|run| run.share <= share + 1e-9);
        below.or(own.first()).copied()
    }

    /// [`MeasuredModel::run_at`] of every method, in the order of the table; where some were measured at `share` or less,
    /// only of those.
    fn runs_at(&self, share: f64) -> Vec<&Run> {
        let methods = self.methods().into_iter();
        let mut runs: Vec<&Run> = methods
            .filter_map(|method| self.run_at(method, share))
            .collect();
        let is_near = |run: &&Run| run.share <= share + 1e-9;
        if runs.iter().any(is_near) {
            runs.retain(is_near);
        }
        runs
    }

    /// Model name, number of prompts and their lengths, in words.
    pub(super) fn basis(&self) -> String {
        let [shortest, longest] = self.tokens;
        format!(
            "{} on {} prompts of {shortest} to {longest} tokens",
            self.name, self.prompts
        )
    }

    /// Tokens of the longest measured prompt.
    pub(super) fn longest(&self) -> usize {
        self.tokens[1]
    }

    /// The methods, in the order of the table.
    pub(super) fn methods(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for run in &self.runs {
            if !names.contains(&run.method.as_str()) {
                names.push(&run.method);
            }
        }
        names
    }

    /// Whether the method was measured, or is lossless.
    pub(super) fn has_measured(&self, method: &str) -> bool {
        method == FULL || !self.runs_of(method).is_empty()
    }

    /// Estimated divergence of keeping `share` of a prompt under `method`, in nats: interpolated linearly over the
    /// logarithm of the share between measured points; 0 when everything is kept. For a method without measurements:
    /// the largest divergence of all measured methods at this share.
    pub(super) fn eviction_kl(&self, method: &str, share: f64) -> f64 {
        if !self.has_measured(method) {
            let all = self.methods().into_iter();
            return all
                .map(|method| self.eviction_kl(method, share))
                .fold(0.0, f64::max);
        }
        let own = self.runs_of(method).into_iter();
        let mut points: Vec<(f64, f64)> = own.map(|run| (run.share.ln(), run.kl)).collect();
        points.push((0.0, 0.0));
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let at = share.clamp(1e-9, 1.0).ln();
        match points.iter().position(|point| point.0 >= at) {
            None => 0.0,
            // Below the smallest measured share, the divergence grows in inverse proportion to the share.
            Some(0) => points[0].1 * (points[0].0 - at).exp(),
            Some(above) => {
                let (low, high) = (points[above - 1], points[above]);
                low.1 + (high.1 - low.1) * (at - low.0) / (high.0 - low.0)
            }
        }
    }

    /// Divergence of a run from [`MeasuredModel::runs_at`] at `share`: as measured, or estimated below all measurements.
    pub(super) fn kl_of(&self, run: &Run, share: f64) -> f64 {
        match run.share <= share + 1e-9 {
            true => run.kl,
            false => self.eviction_kl(&run.method, share),
        }
    }

    /// The best method at `share`: among those level with the lowest divergence, the one that answers the most facts,
    /// then the first in the table.
    pub(super) fn best(&self, share: f64) -> Option<&Run> {
        let runs = self.runs_at(share);
        let kl = |run: &Run| self.kl_of(run, share);
        let least = runs.iter().map(|run| kl(run)).fold(f64::INFINITY, f64::min);
        let most = runs.iter().filter(|run| kl(run) <= least + LEVEL);
        let right = most.clone().map(|run| run.right).fold(0.0, f64::max);
        let mut level = most.filter(|run| run.right >= right);
        level.next().copied()
    }

    /// The smallest share at which the best method is level with the full cache. The largest measured share if no
    /// method is level, if the prompt is longer than all measured prompts, or if too few prompts were measured.
    pub(super) fn sufficient_share(&self, tokens: usize) -> f64 {
        let mut shares: Vec<f64> = self.runs.iter().map(|run| run.share).collect();
        shares.sort_by(f64::total_cmp);
        let level = |share: &&f64| self.best(**share).is_some_and(|run| run.kl <= LEVEL);
        let known = tokens <= self.longest() && self.prompts >= ENOUGH_PROMPTS;
        let found = shares.iter().find(|share| known && level(share));
        found.or(shares.last()).copied().unwrap_or(1.0)
    }
}

impl MeasuredTable {
    /// Of the models of the same kind (with or without a chat template) the one whose number of parameters is nearest, as
    /// a ratio.
    pub(super) fn model_for(&self, chat: bool, parameters: u64) -> &MeasuredModel {
        let ratio = |model: &&MeasuredModel| {
            (model.parameters as f64 / parameters.max(1) as f64)
                .ln()
                .abs()
        };
        let same = self.models.iter().filter(|model| model.chat == chat);
        let found = same.min_by(|a, b| ratio(a).total_cmp(&ratio(b)));
        found.unwrap_or(&self.models[0])
    }

    /// Divergence caused by storing rows as `cache`, in nats.
    pub(super) fn rounding_kl(&self, cache: &str) -> f64 {
        let found = self.caches.iter().find(|run| run.cache == cache);
        found.map_or(0.0, |run| run.kl)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(method: &str, share: f64, kl: f64, right: f64) -> Run {
        Run {
            method: method.to_owned(),
            share,
            kl,
            right,
        }
    }

    fn table() -> MeasuredModel {
        MeasuredModel {
            name: "a model".to_owned(),
            chat: true,
            parameters: 1,
            prompts: 10,
            tokens: [500, 7000],
            answered: 4,
            runs: vec![
                run("a", 0.1, 0.3, 0.8),
                run("a", 0.5, 0.0, 1.0),
                run("b", 0.1, 0.1, 0.9),
                run("b", 0.5, 0.005, 1.0),
                run("c", 0.1, 0.1, 1.0),
            ],
        }
    }

    #[test]
    fn kl_is_interpolated_between_measured_shares() {
        let table = table();
        let cost = |method, share| (table.eviction_kl(method, share) * 1e6).round() / 1e6;
        assert_eq!(cost("a", 0.1), 0.3);
        assert_eq!(cost("a", 1.0), 0.0);
        assert_eq!(cost("a", 0.05), 0.6, "twice as few rows as were measured");
        let between = cost("b", 0.2);
        assert!(between < 0.1 && between > 0.005, "{between}");
        assert_eq!(cost("unknown", 0.1), 0.3, "the most that one costs");
    }

    #[test]
    fn methods_rank_by_kl_then_right_answers_then_order() {
        let table = table();
        let name = |share| table.best(share).map(|run| run.method.as_str());
        assert_eq!(name(0.1), Some("c"), "level with b, and more often right");
        assert_eq!(name(0.3), Some("c"), "nothing was measured in between");
        assert_eq!(name(0.5), Some("a"), "level with b, and before it");
        assert_eq!(name(0.01), Some("c"), "below all that was measured");
        let mut later = self::table();
        later.runs.insert(0, run("e", 0.2, 0.09, 1.0));
        let name_later = later.best(0.05).map(|run| run.method.as_str());
        assert_eq!(
            name_later,
            Some("c"),
            "e is measured with more rows: 0.36 against 0.2"
        );
        let mut table = self::table();
        table.runs.push(run("d", 0.5, 0.0, 1.0));
        let name = table.best(0.2).map(|run| run.method.as_str());
        assert_eq!(name, Some("c"), "d was measured with more rows");
        assert_eq!(table.sufficient_share(7000), 0.5);
    }

    #[test]
    fn unmeasured_prompts_keep_the_largest_share() {
        let mut table = table();
        table.runs.push(run("d", 0.1, 0.0, 1.0));
        assert_eq!(table.sufficient_share(7000), 0.1);
        assert_eq!(table.sufficient_share(7001), 0.5);
        table.prompts = 9;
        assert_eq!(table.sufficient_share(7000), 0.5);
    }

    #[test]
    fn committed_table_is_valid() {
        let table = measured();
        for model in &table.models {
            assert!(model.answered > 0 && model.answered <= model.prompts);
            for run in &model.runs {
                assert!(kept_policies::find(&run.method).is_ok(), "{}", run.method);
                assert!(run.share > 0.0 && run.share < 1.0 && run.kl >= 0.0);
                assert!((0.0..=1.0).contains(&run.right));
            }
        }
        let rounding = ["f32", "f16", "q8_0", "q4_0"].map(|cache| table.rounding_kl(cache));
        assert!(
            rounding.is_sorted() && rounding[3] > rounding[1],
            "{rounding:?}"
        );
        for measured in &table.models {
            let model = table.model_for(measured.chat, measured.parameters * 5 / 4);
            assert_eq!(model.name, measured.name);
            assert!(model.best(0.25).is_some() && model.sufficient_share(1000) < 1.0);
        }
        let named = table.streaming.iter().map(|run| run.method.as_str());
        let mut named: Vec<&str> = named.collect();
        let mut able = kept_policies::STREAMING.to_vec();
        named.sort_unstable();
        able.sort_unstable();
        assert_eq!(named, able);
    }
}
