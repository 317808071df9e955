//! What `measured.json` says: figures of every method at every share that was measured, and who is best where.

use std::sync::OnceLock;

use serde::Deserialize;

/// A mean divergence below this, in nats, is no difference that an answer shows.
const LEVEL: f64 = 0.01;

/// One line of what was measured, with rows of f32.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Run {
    pub(super) method: String,
    pub(super) share: f64,
    pub(super) kl: f64,
    pub(super) right: f64,
}

/// A method along a book in streaming.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct StreamedRun {
    pub(super) method: String,
    pub(super) perplexity: f64,
}

/// What storing every row in a type costs, with nothing cut.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct CacheRun {
    pub(super) cache: String,
    pub(super) kl: f64,
}

#[derive(Debug, Deserialize)]
pub(super) struct Measured {
    /// Its name.
    pub(super) model: String,
    pub(super) runs: Vec<Run>,
    pub(super) caches: Vec<CacheRun>,
    pub(super) streaming: Vec<StreamedRun>,
}

pub(super) fn measured() -> &'static Measured {
    static MEASURED: OnceLock<Measured> = OnceLock::new();
    MEASURED.get_or_init(|| {
        serde_json::from_str(include_str!("measured.json")).expect("the table is ours and valid")
    })
}

impl Measured {
    /// What was measured of `method` at the largest share up to `share`; at the smallest there is, if all are larger.
    fn at(&self, method: &str, share: f64) -> Option<&Run> {
        let own = || self.runs.iter().filter(|run| run.method == method);
        let below = own().filter(|run| run.share <= share + 1e-9);
        let best = below.max_by(|a, b| a.share.total_cmp(&b.share));
        best.or_else(|| own().min_by(|a, b| a.share.total_cmp(&b.share)))
    }

    /// What keeping `share` of a prompt under `method` costs in nats, between what was measured on both sides of it by the logarithm of
    /// the share; nothing where everything is kept. Of a method that was not measured the most that one costs there.
    pub(super) fn cutting(&self, method: &str, share: f64) -> f64 {
        let of = |method: &str| {
            let own = self.runs.iter().filter(|run| run.method == method);
            let mut points: Vec<(f64, f64)> = own.map(|run| (run.share.ln(), run.kl)).collect();
            points.push((0.0, 0.0));
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            let at = share.clamp(1e-9, 1.0).ln();
            match points.iter().position(|point| point.0 >= at) {
                None => 0.0,
                // Fewer rows than were ever measured cost more: as much more as there are fewer.
                Some(0) => points[0].1 * (points[0].0 - at).exp(),
                Some(above) => {
                    let (low, high) = (points[above - 1], points[above]);
                    low.1 + (high.1 - low.1) * (at - low.0) / (high.0 - low.0)
                }
            }
        };
        match self.knows(method) {
            true => of(method),
            false => self
                .runs
                .iter()
                .map(|run| of(&run.method))
                .fold(0.0, f64::max),
        }
    }

    /// Whether a method was measured, or loses nothing.
    pub(super) fn knows(&self, method: &str) -> bool {
        method == "full" || self.runs.iter().any(|run| run.method == method)
    }

    /// What storing rows as `cache` costs in nats.
    pub(super) fn rounding(&self, cache: &str) -> f64 {
        let found = self.caches.iter().find(|run| run.cache == cache);
        found.map_or(0.0, |run| run.kl)
    }

    /// The best method at `share`: of those that are level with the best there, the first of the table.
    pub(super) fn best(&self, share: f64) -> Option<&Run> {
        let mut names: Vec<&str> = Vec::new();
        for run in &self.runs {
            if !names.contains(&run.method.as_str()) {
                names.push(&run.method);
            }
        }
        let runs: Vec<&Run> = names
            .iter()
            .filter_map(|name| self.at(name, share))
            .collect();
        let least = runs.iter().map(|run| run.kl).fold(f64::INFINITY, f64::min);
        let most = runs.iter().filter(|run| run.kl <= least + LEVEL);
        let right = most.clone().map(|run| run.right).fold(0.0, f64::max);
        let mut level = most.filter(|run| run.right >= right);
        level.next().copied()
    }

    /// The smallest share at which the best method is level with the full cache; the largest there is, if none is.
    pub(super) fn enough(&self) -> f64 {
        let mut shares: Vec<f64> = self.runs.iter().map(|run| run.share).collect();
        shares.sort_by(f64::total_cmp);
        let level = |share: &&f64| {
            let best = self.best(**share);
            best.is_some_and(|run| run.kl <= LEVEL && run.right >= 1.0)
        };
        let found = shares.iter().find(level).or(shares.last());
        found.copied().unwrap_or(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Measured {
        let run = |method: &str, share, kl, right| Run {
            method: method.to_owned(),
            share,
            kl,
            right,
        };
        Measured {
            model: "a model".to_owned(),
            runs: vec![
                run("a", 0.1, 0.3, 0.8),
                run("a", 0.5, 0.0, 1.0),
                run("b", 0.1, 0.1, 0.9),
                run("b", 0.5, 0.005, 1.0),
                run("c", 0.1, 0.1, 1.0),
            ],
            caches: [("f16", 1e-6), ("q8_0", 1e-3), ("q4_0", 0.05)]
                .map(|(cache, kl)| CacheRun {
                    cache: cache.to_owned(),
                    kl,
                })
                .into(),
            streaming: Vec::new(),
        }
    }

    #[test]
    fn between_two_shares_the_price_is_between_theirs() {
        let table = table();
        let cost = |method, share| (table.cutting(method, share) * 1e6).round() / 1e6;
        assert_eq!(cost("a", 0.1), 0.3);
        assert_eq!(cost("a", 1.0), 0.0);
        assert_eq!(cost("a", 0.05), 0.6, "twice as few rows as were measured");
        let between = cost("b", 0.2);
        assert!(between < 0.1 && between > 0.005, "{between}");
        assert_eq!(cost("nobody", 0.1), 0.3, "the most that one costs");
        assert_eq!((table.rounding("q4_0"), table.rounding("f32")), (0.05, 0.0));
    }

    #[test]
    fn the_best_is_nearest_to_the_full_cache_then_most_often_right_then_first() {
        let table = table();
        let name = |share| table.best(share).map(|run| run.method.as_str());
        assert_eq!(name(0.1), Some("c"), "level with b, and more often right");
        assert_eq!(name(0.3), Some("c"), "nothing was measured in between");
        assert_eq!(name(0.5), Some("a"), "level with b, and before it");
        assert_eq!(name(0.01), Some("c"), "below all that was measured");
        assert_eq!(table.enough(), 0.5);
    }

    #[test]
    fn the_committed_table_is_whole() {
        let table = measured();
        for run in &table.runs {
            assert!(kept_policies::find(&run.method).is_ok(), "{}", run.method);
            assert!(run.share > 0.0 && run.share < 1.0 && run.kl >= 0.0);
            assert!((0.0..=1.0).contains(&run.right));
        }
        let rounding = ["f32", "f16", "q8_0", "q4_0"].map(|cache| table.rounding(cache));
        assert!(
            rounding.is_sorted() && rounding[3] > rounding[1],
            "{rounding:?}"
        );
        assert!(table.best(0.25).is_some() && table.enough() < 1.0);
        let named = table.streaming.iter().map(|run| run.method.as_str());
        let mut named: Vec<&str> = named.collect();
        let mut able = kept_policies::STREAMING.to_vec();
        named.sort_unstable();
        able.sort_unstable();
        assert_eq!(named, able);
    }
}
