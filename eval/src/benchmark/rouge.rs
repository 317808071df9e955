//! ROUGE-L as the Python package `rouge` 1.0.1 computes it, which LongBench uses: over sets of words, with the union of
//! the longest common subsequences of all pairs of sentences.

use std::collections::HashSet;

/// F score of `answer` against `accepted`, 0 to 1; 0 for an empty text.
pub(super) fn rouge_l(answer: &str, accepted: &str) -> f64 {
    let (answer, accepted) = (sentences(answer), sentences(accepted));
    if answer.is_empty() || accepted.is_empty() {
        return 0.0;
    }
    let mut common: HashSet<&str> = HashSet::new();
    for accepted in &accepted {
        for answer in &answer {
            common.extend(common_subsequence(accepted, answer));
        }
    }
    let share = |of: &[Vec<&str>]| {
        let words: HashSet<&str> = of.iter().flatten().copied().collect();
        common.len() as f64 / words.len() as f64
    };
    let (precision, recall) = (share(&answer), share(&accepted));
    2.0 * (precision * recall / (precision + recall + 1e-8))
}

/// The words of each sentence; a sentence ends at a full stop. One of white space has one empty word.
fn sentences(text: &str) -> Vec<Vec<&str>> {
    let parts = text.split('.').filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let words: Vec<&str> = part.split_whitespace().collect();
            if words.is_empty() { vec![""] } else { words }
        })
        .collect()
}

/// The words of a longest common subsequence. Where there are several, the one that is found from the end when words of
/// `b` are dropped first.
fn common_subsequence<'a>(a: &[&'a str], b: &[&str]) -> Vec<&'a str> {
    let width = b.len() + 1;
    let mut lengths = vec![0u32; (a.len() + 1) * width];
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            lengths[i * width + j] = if a[i - 1] == b[j - 1] {
                lengths[(i - 1) * width + j - 1] + 1
            } else {
                lengths[(i - 1) * width + j].max(lengths[i * width + j - 1])
            };
        }
    }
    let (mut i, mut j) = (a.len(), b.len());
    let mut words = Vec::new();
    while i > 0 && j > 0 {
        if a[i - 1] == b[j - 1] {
            words.push(a[i - 1]);
            (i, j) = (i - 1, j - 1);
        } else if lengths[(i - 1) * width + j] > lengths[i * width + j - 1] {
            i -= 1;
        } else {
            j -= 1;
        }
    }
    words
}
