//! LongBench's scores of one answer against one accepted answer, 0 to 1, with the same results as its `metrics.py`
//! (`tests/golden/longbench_scores.json`). ROUGE-L is in `rouge.rs`.

use std::collections::HashMap;
use std::hash::Hash;

use super::difflib;

/// F1 of the words, without ASCII punctuation, articles and case.
pub(super) fn token_f1(answer: &str, accepted: &str) -> f64 {
    let (answer, accepted) = (normalised(answer), normalised(accepted));
    let answer: Vec<&str> = answer.split_whitespace().collect();
    let accepted: Vec<&str> = accepted.split_whitespace().collect();
    f1(&answer, &accepted)
}

/// F1 of the words of an answer: as precise as the share of them that are accepted, as complete as the share of the
/// accepted ones that it has.
pub(crate) fn f1<W: Hash + Eq>(answer: &[W], accepted: &[W]) -> f64 {
    let mut left: HashMap<&W, usize> = HashMap::new();
    for word in accepted {
        *left.entry(word).or_default() += 1;
    }
    let mut common = 0;
    for word in answer {
        if let Some(count) = left.get_mut(word).filter(|count| **count > 0) {
            *count -= 1;
            common += 1;
        }
    }
    match common {
        0 => 0.0,
        common => 2.0 * f64::from(common) / (answer.len() + accepted.len()) as f64,
    }
}

/// `text` in lower case without ASCII punctuation; the words a, an and the are spaces.
fn normalised(text: &str) -> String {
    let text: String = text
        .to_lowercase()
        .chars()
        .filter(|c| !c.is_ascii_punctuation())
        .collect();
    let mut found = String::with_capacity(text.len());
    let mut word = String::new();
    // A word is a run of letters and digits, so that quotation marks do not hide an article.
    for c in text.chars().map(Some).chain([None]) {
        if let Some(c) = c.filter(|c| c.is_alphanumeric()) {
            word.push(c);
            continue;
        }
        match word.as_str() {
            "a" | "an" | "the" => found.push(' '),
            other => found += other,
        }
        word.clear();
        found.extend(c);
    }
    found
}

/// 1 / the number of class names that the answer holds, if the accepted one is among them.
pub(super) fn class_share(answer: &str, accepted: &str, classes: &[String]) -> f64 {
    let held = classes.iter().filter(|class| answer.contains(*class));
    let mut found: Vec<&str> = held.map(String::as_str).collect();
    // A name that is a part of the accepted one does not count. LongBench removes these names from the list that it walks
    // through, so the one behind a removed one is not looked at.
    let mut at = 0;
    while at < found.len() {
        let name = found[at];
        if accepted.contains(name) && name != accepted {
            found.remove(at);
        }
        at += 1;
    }
    match found.contains(&accepted) {
        true => 1.0 / found.len() as f64,
        false => 0.0,
    }
}

/// Share of the numbers in the answer that are the accepted one.
pub(super) fn count_share(answer: &str, accepted: &str) -> f64 {
    let numbers = numbers(answer);
    let right = numbers.iter().filter(|number| **number == accepted).count();
    match numbers.len() {
        0 => 0.0,
        all => right as f64 / all as f64,
    }
}

/// [`count_share`] for the number that follows `word` in `accepted`.
pub(super) fn retrieval_share(answer: &str, accepted: &str, word: &str) -> f64 {
    let mut after = accepted.split(word).skip(1);
    let number = after.find_map(|rest| {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        (digits > 0).then(|| &rest[..digits])
    });
    number.map_or(0.0, |number| count_share(answer, number))
}

/// All runs of digits.
fn numbers(text: &str) -> Vec<&str> {
    let runs = text.split(|c: char| !c.is_ascii_digit());
    runs.filter(|run| !run.is_empty()).collect()
}

/// Similarity of the first line of the answer that is code: without a backtick or a comment.
pub(super) fn code_similarity(answer: &str, accepted: &str) -> f64 {
    let mut lines = answer.trim_start_matches('\n').split('\n');
    let code = lines.find(|line| !["`", "#", "//"].iter().any(|mark| line.contains(mark)));
    let ratio = difflib::ratio(code.unwrap_or_default(), accepted);
    (100.0 * ratio).round_ties_even() / 100.0
}
