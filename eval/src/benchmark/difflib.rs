//! The similarity of two texts that Python's `difflib.SequenceMatcher` computes (Ratcliff and Obershelp's pattern
//! matching), which is behind `fuzz.ratio` in LongBench's score of code.

use std::collections::HashMap;
use std::ops::Range;

/// Second texts from this length have popular characters, which start no match.
const POPULAR_FROM: usize = 200;

/// Twice the number of matching characters divided by that of all, 0 to 1.
pub(super) fn ratio(a: &str, b: &str) -> f64 {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    if a.len() + b.len() == 0 {
        return 1.0;
    }
    let mut places: HashMap<char, Vec<usize>> = HashMap::new();
    for (at, &c) in b.iter().enumerate() {
        places.entry(c).or_default().push(at);
    }
    if b.len() >= POPULAR_FROM {
        let most = b.len() / 100 + 1;
        places.retain(|_, places| places.len() <= most);
    }
    let mut matching = 0;
    let mut open = vec![(0..a.len(), 0..b.len())];
    while let Some((in_a, in_b)) = open.pop() {
        let (i, j, size) = longest_match(&a, &b, &places, &in_a, &in_b);
        if size > 0 {
            matching += size;
            open.push((in_a.start..i, in_b.start..j));
            open.push((i + size..in_a.end, j + size..in_b.end));
        }
    }
    2.0 * matching as f64 / (a.len() + b.len()) as f64
}

/// Begin in `a`, begin in `b` and length of the longest match within the ranges, the first of equal ones. It begins with a
/// character of `places` and is extended by all equal ones.
fn longest_match(
    a: &[char],
    b: &[char],
    places: &HashMap<char, Vec<usize>>,
    in_a: &Range<usize>,
    in_b: &Range<usize>,
) -> (usize, usize, usize) {
    let (mut i, mut j, mut size) = (in_a.start, in_b.start, 0);
    // Length of the match that ends at each position of `b`, and at the character before in `a`.
    let mut ending: HashMap<usize, usize> = HashMap::new();
    for at in in_a.clone() {
        let mut now = HashMap::new();
        let found = places.get(&a[at]).map_or(&[][..], Vec::as_slice);
        for &place in found.iter().filter(|place| in_b.contains(place)) {
            let before = place.checked_sub(1).and_then(|place| ending.get(&place));
            let length = before.copied().unwrap_or(0) + 1;
            now.insert(place, length);
            if length > size {
                (i, j, size) = (at + 1 - length, place + 1 - length, length);
            }
        }
        ending = now;
    }
    while i > in_a.start && j > in_b.start && a[i - 1] == b[j - 1] {
        (i, j, size) = (i - 1, j - 1, size + 1);
    }
    while i + size < in_a.end && j + size < in_b.end && a[i + size] == b[j + size] {
        size += 1;
    }
    (i, j, size)
}
