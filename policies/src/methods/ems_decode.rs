//! EMS during decode (appendix A, figure 4b): one KV head's scores, and the one class that is merged or evicted after
//! each token.
//!
//! Per step: the new token becomes an entry and a class of its own; its probabilities are added to `glo` and `cur`.
//! Every `w` steps `cur` replaces `past` (`loc = past + cur`). The last `w` entries are local. When the oldest of them
//! is no longer local, its class becomes one of the centres. If there are then too many centres, the least important
//! class is merged into the most similar class if their similarity R is at least `tau`; else it is evicted with all of
//! its entries. Finally, a table that is too long loses one entry; the class of that entry does not change.
//!
//! The paper leaves open, decided here: a class is as important as its best member; the entry removed from a full table
//! is the one of lowest score in a class of two or more members; on equal scores the class of lower position ranks
//! higher, and the first entry is removed.
//!
//! ```text
//! centres 3, w = 2        classes  0  1  2 | 8  9     + 10      8 becomes a centre: one of {0 1 2 8} is removed
//! least important: 1      R(1, 2) >= tau:  0  2+1  8 | 9 10     entries of 1 now read row 2
//!                         else:            0  2    8 | 9 10     entries of 1 are evicted
//! ```

use crate::snapshot::{self, Snapshot};
use crate::{ClassChange, ClassHead, ClassMerge, ClassStep, MergedHead, Pos, Row};

/// Limits and thresholds, shared by all heads.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Rules {
    /// Number of local entries, w.
    pub(crate) window: usize,
    /// Number of last tokens of the prompt that are centres: the window, or more.
    pub(crate) recent: usize,
    /// The most classes that are not local.
    pub(crate) centres: usize,
    /// The most entries.
    pub(crate) entries: usize,
    /// Minimum redundancy R of a merge.
    pub(crate) tau: f32,
    /// Number of top classes that accept no members.
    pub(crate) protect: usize,
    /// Number of first tokens, which are never evicted.
    pub(crate) sinks: usize,
}

/// The most entries and rows that a head fills.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Capacity {
    pub(crate) entries: usize,
    pub(crate) rows: usize,
}

impl Rules {
    /// Minimum weight of a member, also without any attention.
    pub(crate) const MIN_WEIGHT: f32 = 1e-9;
}

/// One KV head's entries in order of position.
#[derive(Debug, Clone, Default)]
pub(crate) struct Head {
    rules: Rules,
    /// Attention from all queries so far.
    glo: Vec<f32>,
    /// Attention from the local window before the current one.
    past: Vec<f32>,
    /// Attention from the current window.
    cur: Vec<f32>,
    /// Steps in the current window.
    steps: usize,
    /// `[entries]` scratch buffer: local attention.
    loc: Vec<f32>,
    /// `[entries]` scratch buffer: scores.
    scores: Vec<f32>,
    /// `[rows]` scratch buffer: importance of each class; `None` for a local class or a row without a class.
    importance: Vec<Option<ClassImportance>>,
    /// `[rows]` scratch buffer: centres with their ranks.
    order: Vec<Ranked>,
    /// `[rows]` scratch buffer: centres that accept members.
    open: Vec<u32>,
    /// `[rows]` scratch buffer: cosine of each of these centres' keys with the key of the class to remove.
    similarity: Vec<f32>,
}

/// The importance of a class.
#[derive(Debug, Clone, Copy)]
struct ClassImportance {
    sink: bool,
    score: f32,
    members: u32,
}

/// A centre with its rank; a smaller value is more important.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Ranked {
    /// From the highest bit: 0 for a sink, else 1; 31 bits that decrease as the score increases; the centre's position.
    rank: u64,
    class: u32,
}

impl Ranked {
    fn new(importance: &ClassImportance, class: u32, centre: Pos) -> Self {
        // The bit patterns of non-negative floats have the same order as their values.
        let score = u64::from(i32::MAX as u32 - importance.score.abs().to_bits());
        Self {
            rank: u64::from(!importance.sink) << 63 | score << 32 | u64::from(centre.0),
            class,
        }
    }
}

/// Upper bound of a cosine, including rounding errors.
const MAX_COSINE: f32 = 1.001;

impl ClassHead for Head {
    fn step(&mut self, step: &ClassStep<'_>) -> ClassChange {
        let rules = self.rules;
        for list in [&mut self.glo, &mut self.past, &mut self.cur] {
            list.push(0.0);
        }
        debug_assert_eq!(self.glo.len(), step.positions.len());
        self.loc.resize(self.glo.len(), 0.0);
        step.mean(&mut self.loc);
        for sums in [&mut self.glo, &mut self.cur] {
            sums.iter_mut().zip(&self.loc).for_each(|(s, p)| *s += p);
        }
        self.steps += 1;
        if self.steps == rules.window {
            std::mem::swap(&mut self.past, &mut self.cur);
            self.cur.fill(0.0);
            self.steps = 0;
        }
        let mut change = ClassChange::default();
        let old = step.positions.len().saturating_sub(rules.window);
        self.score();
        self.rank(step, old);
        if self.order.len() > rules.centres {
            let gone = self.worst();
            change.removed_class = Some(Row(gone));
            change.merged_into = self.destination(step, gone);
            if change.merged_into.is_none() {
                self.retain(|entry| step.classes[entry] != gone);
            }
        }
        if self.glo.len() > rules.entries {
            // Reached only after a merge or without a change: evicting a class also removes its entries.
            let mut dropped: Option<usize> = None;
            for entry in 0..old {
                if dropped.is_none_or(|d| self.scores[entry] < self.scores[d])
                    && self.members_after(step.classes[entry], &change) > 1
                {
                    dropped = Some(entry);
                }
            }
            change.removed_entry = dropped;
            if let Some(entry) = dropped {
                for list in [&mut self.glo, &mut self.past, &mut self.cur] {
                    list.remove(entry);
                }
            }
        }
        change
    }

    fn snapshot(&mut self, through: &mut dyn Snapshot) {
        for list in [&mut self.glo, &mut self.past, &mut self.cur] {
            snapshot::floats(through, list);
        }
        through.count(&mut self.steps, self.rules.window);
    }
}

impl Head {
    /// f32 elements per entry: three persistent and two scratch.
    pub(crate) const ELEMENTS: usize = 5;

    /// Bytes of scratch buffers per row.
    pub(crate) const ROW_BYTES: usize = size_of::<Option<ClassImportance>>()
        + size_of::<Ranked>()
        + size_of::<u32>()
        + size_of::<f32>();

    /// A head after prefill. `glo` and `loc` are `[n]`.
    pub(crate) fn after_prefill(
        rules: Rules,
        kept: &MergedHead,
        glo: &[f32],
        loc: &[f32],
        capacity: Capacity,
    ) -> Box<dyn ClassHead> {
        let held = |scores: &[f32]| {
            let entries = kept.entries.iter().map(|e| scores[e.pos.0 as usize]);
            entries.collect::<Vec<f32>>()
        };
        let mut head = Self {
            rules,
            glo: held(glo),
            past: held(loc),
            cur: vec![0.0; kept.entries.len()],
            ..Self::default()
        };
        // Allocate everything now, and only what this head can fill.
        for list in [&mut head.glo, &mut head.past, &mut head.cur] {
            list.reserve_exact(capacity.entries.saturating_sub(list.len()));
        }
        head.loc.reserve_exact(capacity.entries);
        head.scores.reserve_exact(capacity.entries);
        head.importance.reserve_exact(capacity.rows);
        head.order.reserve_exact(capacity.rows);
        head.open.reserve_exact(capacity.rows);
        head.similarity.reserve_exact(capacity.rows);
        Box::new(head)
    }

    /// Scores of all entries, eq. 2.
    fn score(&mut self) {
        self.loc.clear();
        let both = self.past.iter().zip(&self.cur);
        self.loc.extend(both.map(|(past, cur)| past + cur));
        self.scores.clear();
        self.scores.resize(self.loc.len(), 0.0);
        global_local(&self.glo, &self.loc, &mut self.scores);
    }

    /// Ranks the classes of the first `old` entries.
    fn rank(&mut self, step: &ClassStep<'_>, old: usize) {
        self.importance.clear();
        self.importance.resize(step.centres.len(), None);
        self.order.clear();
        for entry in 0..old {
            let class = step.classes[entry];
            let sink = (step.positions[entry].0 as usize) < self.rules.sinks;
            match &mut self.importance[class as usize] {
                Some(importance) => {
                    importance.sink |= sink;
                    importance.score = importance.score.max(self.scores[entry]);
                    importance.members += 1;
                }
                none => {
                    *none = Some(ClassImportance {
                        sink,
                        score: self.scores[entry].max(0.0),
                        members: 1,
                    });
                    self.order.push(Ranked { rank: 0, class });
                }
            }
        }
        for ranked in &mut self.order {
            let class = ranked.class as usize;
            if let Some(importance) = &self.importance[class] {
                *ranked = Ranked::new(importance, ranked.class, step.centres[class]);
            }
        }
    }

    /// The least important class. Moves it to the end of `order`.
    fn worst(&mut self) -> u32 {
        let last = self.order.len() - 1;
        let at = (0..=last).max_by_key(|&at| self.order[at]);
        self.order.swap(at.unwrap_or(last), last);
        self.order[last].class
    }

    /// The class into which `gone`, the last of `order`, is merged; `None` if no class reaches `tau`.
    fn destination(&mut self, step: &ClassStep<'_>, gone: u32) -> Option<ClassMerge> {
        let rules = self.rules;
        let last = self.order.len() - 1;
        let sinks = self.order.iter().filter(|c| self.is_sink(c.class)).count();
        let guarded = rules.protect.max(sinks).min(last);
        let others = &mut self.order[..last];
        if 0 < guarded && guarded < last {
            // Partition: the top `guarded` classes come first, unordered.
            others.select_nth_unstable(guarded);
        }
        self.open.clear();
        self.open.extend(others[guarded..].iter().map(|c| c.class));
        self.similarity.clear();
        self.similarity.resize(self.open.len(), 0.0);
        step.rows
            .keys_alike(Row(gone), &self.open, &mut self.similarity);
        let mut best: Option<(f32, Pos, u32)> = None;
        for (&class, keys) in self.open.iter().zip(&self.similarity) {
            let wanted = best.map_or(rules.tau, |(similarity, ..)| similarity);
            // Most classes are rejected by their key alone: even equal values could not raise R enough.
            if keys.abs() * MAX_COSINE < wanted {
                continue;
            }
            let mut values = [0.0];
            step.rows.values_alike(Row(gone), &[class], &mut values);
            let similarity = keys * values[0];
            let centre = step.centres[class as usize];
            let better = match best {
                Some((most, other, _)) => {
                    similarity > most || (similarity == most && centre < other)
                }
                None => similarity >= rules.tau,
            };
            if better {
                best = Some((similarity, centre, class));
            }
        }
        let (_, _, into) = best?;
        Some(ClassMerge {
            row: Row(into),
            weight: self.weight(step, into),
            removed_weight: self.weight(step, gone),
        })
    }

    fn is_sink(&self, class: u32) -> bool {
        self.importance[class as usize].is_some_and(|s| s.sink)
    }

    /// Sum of the local attention of all members.
    fn weight(&self, step: &ClassStep<'_>, class: u32) -> f32 {
        let of_class = step.classes.iter().zip(&self.loc);
        of_class
            .filter(|(c, _)| **c == class)
            .map(|(_, loc)| loc.max(Rules::MIN_WEIGHT))
            .sum()
    }

    /// Number of members, after `change`, of the class that contains the entries of `class`.
    fn members_after(&self, class: u32, change: &ClassChange) -> u32 {
        let members = |c: u32| self.importance[c as usize].map_or(0, |s| s.members);
        match (change.removed_class, change.merged_into) {
            (Some(Row(gone)), Some(ClassMerge { row: Row(into), .. }))
                if class == gone || class == into =>
            {
                members(gone) + members(into)
            }
            _ => members(class),
        }
    }

    /// Removes entries from all lists and keeps the order.
    fn retain(&mut self, stays: impl Fn(usize) -> bool) {
        for list in [&mut self.glo, &mut self.past, &mut self.cur] {
            let mut entry = 0;
            list.retain(|_| {
                entry += 1;
                stays(entry - 1)
            });
        }
    }
}

/// EMS's score of each token (eq. 2), `max(glo * sum(loc) / sum(glo), loc)`, written to `scores`.
pub fn global_local(glo: &[f32], loc: &[f32], scores: &mut [f32]) {
    let factor = (sum(loc) / sum(glo)) as f32;
    for ((s, g), l) in scores.iter_mut().zip(glo).zip(loc) {
        *s = (g * factor).max(*l);
    }
}

/// Sums in 8 lanes, which the compiler vectorises: a head has thousands of entries, and decode sums them at every
/// token.
fn sum(terms: &[f32]) -> f64 {
    let mut sums = [0.0f64; 8];
    let (lanes, rest) = terms.as_chunks::<8>();
    for lane in lanes {
        for i in 0..8 {
            sums[i] += f64::from(lane[i]);
        }
    }
    sums.iter().sum::<f64>() + rest.iter().map(|&x| f64::from(x)).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn global_scores_are_scaled_to_local_ones() {
        // Sums 8 and 2: the factor is 1/4.
        let mut scores = [0.0; 3];
        global_local(&[4.0, 2.0, 2.0], &[0.2, 0.8, 1.0], &mut scores);
        assert_eq!(scores, [1.0, 0.8, 1.0]);
    }
}
