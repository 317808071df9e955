//! Arabic and Hebrew: PDFs show them in the order of the page, from left to right; here they get the order in which they are
//! read (the opposite of the Unicode Bidirectional Algorithm, UAX #9, which has no inverse: this one serves lines of prose).

use crate::pdf_tables::Piece;

/// Whether a character is written from right to left; Arabic digits are not.
pub(crate) fn is_rtl(c: char) -> bool {
    matches!(c,
        '\u{590}'..='\u{65f}' | '\u{66e}'..='\u{6ef}' | '\u{6fa}'..='\u{8ff}'
        | '\u{fb1d}'..='\u{fdff}' | '\u{fe70}'..='\u{fefe}')
}

/// Puts each piece of `text` into the order in which it is read. No byte moves out of its piece.
pub(crate) fn reorder(text: &mut String, pieces: &[Piece]) {
    let ends = pieces.iter().skip(1).map(|piece| piece.start);
    let ends: Vec<usize> = ends.chain([text.len()]).collect();
    for (piece, end) in pieces.iter().zip(ends) {
        let own = text[piece.start..end].trim_end();
        if own.contains(is_rtl) {
            let range = piece.start..piece.start + own.len();
            let read = as_read(own);
            text.replace_range(range, &read);
        }
    }
}

fn as_read(line: &str) -> String {
    let mut chars: Vec<char> = line.chars().collect();
    let rtl = chars.iter().filter(|c| is_rtl(**c)).count();
    let ltr = chars.iter().filter(|c| is_ltr(**c)).count();
    if rtl > ltr {
        reverse(&mut chars);
        return chars.into_iter().collect();
    }
    let mut at = 0;
    while let Some(start) = (at..chars.len()).find(|&i| is_rtl(chars[i])) {
        let next = (start..chars.len()).find(|&i| is_ltr(chars[i]));
        let until = next.unwrap_or(chars.len());
        let last = (start..until).rev().find(|&i| is_rtl(chars[i]));
        at = last.map_or(until, |last| last + 1);
        reverse(&mut chars[start..at]);
    }
    chars.into_iter().collect()
}

/// Reverses a run from right to left, but not the numbers and words from left to right in it.
fn reverse(run: &mut [char]) {
    run.reverse();
    // A mark stands behind its letter.
    for i in 1..run.len() {
        if is_mark(run[i - 1]) && !is_mark(run[i]) {
            run.swap(i - 1, i);
        }
    }
    // Some files name the bracket that is seen, others the one that is read.
    if closes_first(run) {
        run.iter_mut().for_each(|c| *c = mirrored(*c));
    }
    let mut at = 0;
    while at < run.len() {
        if !is_ltr(run[at]) && !run[at].is_numeric() {
            at += 1;
            continue;
        }
        let mut end = at + 1;
        let mut last = at;
        while end < run.len() && !is_rtl(run[end]) && joins(run, last, end) {
            if is_ltr(run[end]) || run[end].is_numeric() {
                last = end;
            }
            end += 1;
        }
        run[at..=last].reverse();
        at = last + 1;
    }
}

/// Whether what is at `end` may belong to the run from left to right whose last letter or digit is at `last`: spaces do
/// between words, but not between numbers.
fn joins(run: &[char], last: usize, end: usize) -> bool {
    if !run[end].is_whitespace() {
        return true;
    }
    let next = run[end..].iter().find(|c| c.is_alphanumeric());
    is_ltr(run[last]) && next.is_some_and(|next| is_ltr(*next))
}

fn is_ltr(c: char) -> bool {
    c.is_alphabetic() && !is_rtl(c)
}

/// Vowel signs of both scripts.
fn is_mark(c: char) -> bool {
    matches!(c, '\u{591}'..='\u{5bd}' | '\u{5bf}' | '\u{5c1}' | '\u{5c2}' | '\u{64b}'..='\u{65f}' | '\u{670}')
}

const PAIRS: [char; 8] = ['(', ')', '[', ']', '{', '}', '«', '»'];

fn mirrored(c: char) -> char {
    let at = PAIRS.iter().position(|known| *known == c);
    at.map_or(c, |at| PAIRS[at ^ 1])
}

/// Whether the first bracket is a closing one, and not that of a number in a list.
fn closes_first(run: &[char]) -> bool {
    let brackets = run
        .iter()
        .filter_map(|c| PAIRS.iter().position(|known| known == c));
    let closes: Vec<bool> = brackets.map(|at| at % 2 == 1).collect();
    let closing = closes.iter().filter(|closes| **closes).count();
    closes.first() == Some(&true) && 2 * closing == closes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_from_right_to_left() {
        for (shown, read) in [
            ("ملاعلاب ابحرم", "مرحبا بالعالم"),
            // The price, 1,140.50 euros, is in the (second) paragraph of Kept Ltd.
            (
                ".Kept Ltd לש )ינש( ףיעסב וריא 1,140.50 ריחמה",
                "המחיר 1,140.50 אירו בסעיף (שני) של Kept Ltd.",
            ),
            ("34 12 םירפסמ", "מספרים 12 34"),
            ("(ינש) ףיעסב", "בסעיף (שני)"),
            ("ןושאר )1", "1) ראשון"),
            ("The word םולש is old.", "The word שלום is old."),
            ("No letters: 12.", "No letters: 12."),
        ] {
            assert_eq!(as_read(shown), read);
            assert_eq!(shown.len(), read.len());
        }
    }
}
