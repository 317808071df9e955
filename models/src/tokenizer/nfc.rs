//! Unicode NFC (composed characters), for vocabularies trained on it, with a mapping back to the bytes as written.
//!
//! ```text
//! written   "Cafe\u{301} x"   bytes  C a f [e cc 81] 20 x
//! composed  "Café x"          bytes  C a f [c3 a9] 20 x        one change: 3..5 maps to 3..6
//! ```

use std::borrow::Cow;

use unicode_normalization_alignments::char::canonical_combining_class;
use unicode_normalization_alignments::{IsNormalized, UnicodeNormalization, is_nfc_quick};

/// The most bytes of a text that one byte of its NFC form can represent (three Korean letters composed to one
/// character).
pub(crate) const MAX_BYTES_PER_NFC_BYTE: usize = 3;

/// A segment that composition changed.
struct Change {
    /// Byte range in the composed text.
    composed: std::ops::Range<usize>,
    /// Byte range in the text as written.
    written: std::ops::Range<usize>,
}

/// A text in NFC.
pub(crate) struct Composed<'a> {
    pub(crate) text: Cow<'a, str>,
    changes: Vec<Change>,
}

impl<'a> Composed<'a> {
    /// The text itself, without composition.
    pub(crate) fn as_written(text: &'a str) -> Self {
        Composed {
            text: Cow::Borrowed(text),
            changes: Vec::new(),
        }
    }

    /// Composes a text. Segments that start at a normalisation boundary are composed separately, with the same result.
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
            if written.is_ascii() {
                stretch.push_str(written)
            } else {
                stretch.extend(written.nfc().map(|(c, _)| c))
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

    /// Maps ascending end offsets in the composed text to end offsets in the text as written, which tile that text too.
    pub(crate) fn ends_as_written(&self, ends: &mut [u32]) {
        let mut changes = self.changes.iter().peekable();
        let mut passed: Option<&Change> = None;
        for end in ends {
            let at = *end as usize;
            while let Some(change) = changes.next_if(|change| change.composed.end <= at) {
                passed = Some(change);
            }
            let written = match changes.peek() {
                // Inside a change, bytes have no exact counterpart: map them in order, up to the end of the change.
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

/// Whether `c` is a normalisation boundary: no character before it can combine with it.
fn begins_anew(c: char) -> bool {
    c < '\u{300}'
        || (canonical_combining_class(c) == 0
            && is_nfc_quick(std::iter::once(c)) == IsNormalized::Yes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn composition_equals_nfc_and_ends_map_back() {
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
            assert!(text.len() <= MAX_BYTES_PER_NFC_BYTE * whole.len());
        }
        let mut ends = [3, 4, 5, 6];
        Composed::new("Cafe\u{301} x").ends_as_written(&mut ends);
        assert_eq!(ends, [3, 4, 6, 7]);
    }
}
