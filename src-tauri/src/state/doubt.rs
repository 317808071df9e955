//! Whether an answer's figures give clear reason for doubt. A wrong doubt is worse than none: everything that is not
//! clear is no doubt. Of right answers that the benchmarks measured, up to a third cite no passage (docs/benchmarks.md,
//! "Passages"), so that a missing citation alone is none either: the evidence must also be scattered.

use std::collections::HashSet;

use crate::contract::{Citation, Doubt, Source};

/// Less than this share of a passage is "forgotten", as the window draws it at first (`THRESHOLD` of
/// `ui/src/lib/map.svelte.ts`).
const FORGOTTEN: f64 = 0.25;
/// A passage is also forgotten only if it is remembered this much less than the text as a whole.
const OF_MEAN: f64 = 0.5;
/// Evidence is scattered if no passage has this share of it.
const CLEAR: f32 = 0.2;

/// The doubt about an answer on a document, which ended by itself. `share` of all tokens is remembered, 0 to 1.
pub(super) fn doubt(share: f64, citations: &[Citation], sources: &[Source]) -> Option<Doubt> {
    let cited: HashSet<usize> = citations.iter().map(|cited| cited.source).collect();
    let is_used = |i: &usize| cited.is_empty() || cited.contains(i);
    let mut used = (0..sources.len()).filter(is_used).peekable();
    let most = FORGOTTEN.min(share * OF_MEAN);
    if share < 1.0 && used.peek().is_some() && used.all(|i| f64::from(sources[i].kept) < most) {
        return Some(Doubt::Forgotten);
    }
    let scattered = sources.iter().all(|source| source.weight < CLEAR);
    (cited.is_empty() && scattered).then_some(Doubt::Unseen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(weight: f32, kept: f32) -> Source {
        let text = "The quay.".to_owned();
        Source {
            start: 0,
            end: 9,
            page: None,
            document: None,
            text,
            weight,
            kept,
        }
    }

    /// The doubt about an answer that cites the first `cited` sources.
    fn doubt(share: f64, cited: usize, sources: &[Source]) -> Option<Doubt> {
        let citations = (0..cited).map(|source| Citation { end: 8, source });
        super::doubt(share, &citations.collect::<Vec<_>>(), sources)
    }

    #[test]
    fn a_cited_passage_that_is_remembered_far_less_than_the_rest_is_doubtful() {
        let forgotten = Some(Doubt::Forgotten);
        assert_eq!(doubt(0.25, 1, &[source(1.0, 0.05)]), forgotten);
        // An eighth of a passage is not clear.
        assert_eq!(doubt(0.25, 1, &[source(1.0, 0.13)]), None);
        // With a budget of 2 %, a tenth is much.
        assert_eq!(doubt(0.02, 1, &[source(1.0, 0.1)]), None);
        // One of two cited passages is enough; a passage that is not cited does not count.
        let two = [source(0.5, 0.05), source(0.5, 0.6)];
        assert_eq!(doubt(0.25, 2, &two), None);
        assert_eq!(doubt(0.25, 1, &two), forgotten);
        // Nothing is forgotten with the full cache.
        assert_eq!(doubt(1.0, 1, &[source(1.0, 0.01)]), None);
    }

    #[test]
    fn scattered_evidence_is_doubtful_whatever_is_remembered() {
        let unseen = Some(Doubt::Unseen);
        assert_eq!(
            doubt(0.25, 0, &[source(0.1, 0.3), source(0.1, 0.3)]),
            unseen
        );
        assert_eq!(doubt(0.25, 0, &[]), unseen);
        // Some right answers cite no passage: one with a clear share of the evidence is enough.
        assert_eq!(doubt(0.25, 0, &[source(0.3, 0.3)]), None);
        assert_eq!(doubt(0.6, 0, &[]), unseen);
        assert_eq!(doubt(1.0, 0, &[source(0.1, 1.0)]), unseen);
        assert_eq!(doubt(1.0, 0, &[source(0.3, 1.0)]), None);
    }
}
