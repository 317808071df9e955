//! Unicode's form C (composed characters), for vocabularies that were trained on it, with the way back to the bytes as written.
//!
//! ```text
//! written   "Cafe\u{301} x"   bytes  C a f [e cc 81] 20 x
//! composed  "Café x"          bytes  C a f [c3 a9] 20 x        one change: 3..5 stands for 3..6
//! ```

use std::borrow::Cow;

use unicode_normalization_alignments::char::canonical_combining_class;
use unicode_normalization_alignments::{IsNormalized, UnicodeNormalization, is_nfc_quick};

/// The most bytes of a text that one byte of its form C can stand for (three letters of Korean for one).
pub(crate) const MOST_BYTES: usize = 3;

/// A stretch that composing changed.
struct Change {
    /// Where it stands in the composed text.
    composed: std::ops::Range<usize>,
    /// Where it stood in the text as written.
    written: std::ops::Range<usize>,
}

/// A text in form C.
pub(crate) struct Composed<'a> {
    pub(crate) text: Cow<'a, str>,
    changes: Vec<Change>,
}

impl<'a> Composed<'a> {
    /// The text itself, where nothing is to be composed.
    pub(crate) fn as_written(text: &'a str) -> Self {
        Composed {
            text: Cow::Borrowed(text),
            changes: Vec::new(),
        }
    }

    /// Composes a text. Stretches between characters that begin anew are composed one by one, which is the same.
    pub(crate) fn new(text: &'a str) -> Self {
        if is_nfc_quick(text.chars()) == IsNormalized::Yes {
            return Composed::as_written(text);
        }
        let mut composed = String::with_capacity(text.len());
        let mut changes = Vec::new();
        let mut start = 0;
        let ends = text
            .char_indices()
            .skip(1)
            .filter(|&(_, c)| begins_anew(c))
            .map(|(at, _)| at);
        let mut stretch = String::new();
        for end in ends.chain([text.len()]) {
            let written = &text[start..end];
            stretch.clear();
            match written.is_ascii() {
                true => stretch.push_str(written),
                false => stretch.extend(written.nfc().map(|(c, _)| c)),
            }
            let at = composed.len();
            composed.push_str(&stretch);
            if stretch != written {
                changes.push(Change {
                    composed: at..composed.len(),
                    written: start..end,
                });
            }
            start = end;
        }
        Composed {
            text: Cow::Owned(composed),
            changes,
        }
    }

    /// Turns ascending ends in the composed text into ends in the text as written, which tile it as well.
    pub(crate) fn ends_as_written(&self, ends: &mut [u32]) {
        let mut changes = self.changes.iter().peekable();
        let mut passed: Option<&Change> = None;
        for end in ends {
            let at = *end as usize;
            while let Some(change) = changes.next_if(|change| change.composed.end <= at) {
                passed = Some(change);
            }
            let written = match changes.peek() {
                // Inside a change no byte belongs to another: as far as it goes.
                Some(change) if change.composed.start < at => {
                    let within = at - change.composed.start;
                    change.written.start + within.min(change.written.len())
                }
                _ => passed.map_or(at, |c| c.written.end + (at - c.composed.end)),
            };
            *end = written as u32;
        }
    }
}

/// Whether nothing before this character can change with it.
fn begins_anew(c: char) -> bool {
    c < '\u{300}'
        || (canonical_combining_class(c) == 0
            && is_nfc_quick(std::iter::once(c)) == IsNormalized::Yes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_composed_as_a_whole_and_ends_lead_back() {
        let texts = [
            "plain",
            "Cafe\u{301} x",
            "q\u{307}\u{323}a\u{308}\u{304}e",
            "\u{301}\u{301}",
            "\u{1112}\u{1161}\u{11ab}글",
            "A\u{212b}\u{2126}B\u{344}",
            "\u{fb1d}\u{958}\u{1d15e}日本",
        ];
        for text in texts {
            let composed = Composed::new(text);
            let whole: String = text.nfc().map(|(c, _)| c).collect();
            assert_eq!(composed.text, whole, "{text:?}");
            let mut ends: Vec<u32> = (1..=whole.len() as u32).collect();
            composed.ends_as_written(&mut ends);
            assert!(ends.is_sorted(), "{text:?} {ends:?}");
            assert_eq!(ends.last().map(|&end| end as usize), Some(text.len()));
            assert!(text.len() <= MOST_BYTES * whole.len());
        }
        let mut ends = [3, 4, 5, 6];
        Composed::new("Cafe\u{301} x").ends_as_written(&mut ends);
        assert_eq!(ends, [3, 4, 6, 7]);
    }
}
