//! Bytes to text in any encoding.
//!
//! Encodings are tried in this order: a byte-order mark, UTF-16 without a byte-order mark (if the file contains NUL
//! bytes), UTF-8 (or ISO-2022-JP), UTF-8 with a few malformed bytes, then a guess by chardetng among the encodings of
//! the web. Line ends, form feeds and spaces are kept. Binary data is an error, never a page of replacement characters.

use std::borrow::Cow;

use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};
use encoding_rs::{Encoding, ISO_2022_JP, UTF_16BE, UTF_16LE};

use crate::Why;

/// A decoded text and its encoding.
pub(crate) struct Decoded {
    pub text: String,
    pub encoding: &'static str,
    /// Length of the byte-order mark in bytes.
    pub skipped_bytes: usize,
    /// Number of U+FFFD that replace malformed bytes.
    pub malformed: usize,
}

/// The guess uses this many bytes, from the first one that is not ASCII; it uses all bytes only if that guess fails.
const SAMPLE_BYTES: usize = 1 << 20;
/// A NUL byte among this many first bytes makes a file binary, as in git.
const HEAD_BYTES: usize = 8 << 10;

/// Decodes a file that `sniff` classified as text.
pub(crate) fn decode(bytes: Vec<u8>) -> Result<Decoded, Why> {
    let decoded = decode_any(bytes).map_err(|looks_like| Why::Binary {
        looks_like: looks_like.into(),
    })?;
    if decoded.text.trim().is_empty() {
        return Err(Why::Empty);
    }
    Ok(decoded)
}

/// Decodes a text whose encoding is known.
pub(crate) fn decode_as(encoding: &'static Encoding, bytes: &[u8]) -> Decoded {
    let text = encoding.decode_without_bom_handling(bytes).0.into_owned();
    named(text, encoding, 0)
}

/// What a file that is not text resembles.
type NotText = &'static str;
/// A short text may have so many control characters, such as a bell.
const FEW_CONTROLS: usize = 3;
const BINARY: NotText = "a binary file";
const UNKNOWN: NotText = "a binary file or in an encoding that is not known";

fn decode_any(mut bytes: Vec<u8>) -> Result<Decoded, NotText> {
    if bytes.starts_with(b"\xef\xbb\xbf") {
        bytes.drain(..3);
        let mut decoded = utf8_lossy(bytes);
        decoded.skipped_bytes = 3;
        return text_only(decoded);
    }
    // UTF-32 before UTF-16, because the little-endian mark of UTF-32 begins with that of UTF-16.
    if bytes.starts_with(b"\xff\xfe\0\0") && bytes.len().is_multiple_of(4) {
        return text_only(utf32(&bytes[4..], u32::from_le_bytes, "UTF-32LE"));
    }
    if bytes.starts_with(b"\0\0\xfe\xff") {
        return text_only(utf32(&bytes[4..], u32::from_be_bytes, "UTF-32BE"));
    }
    for (mark, encoding) in [(b"\xff\xfe", UTF_16LE), (b"\xfe\xff", UTF_16BE)] {
        if bytes.starts_with(mark) {
            let (text, _) = encoding.decode_without_bom_handling(&bytes[2..]);
            return text_only(named(text.into_owned(), encoding, 2));
        }
    }

    if bytes.contains(&0)
        && let Some(decoded) = utf16_without_mark(&bytes)
    {
        return Ok(decoded);
    }
    match String::from_utf8(bytes) {
        Ok(text) => {
            if let Some(decoded) = iso_2022_jp(&text) {
                return Ok(decoded);
            }
            text_only(Decoded {
                text,
                encoding: "UTF-8",
                skipped_bytes: 0,
                malformed: 0,
            })
        }
        Err(error) => {
            let bytes = error.into_bytes();
            if is_binary(&bytes) {
                Err(BINARY)
            } else if is_damaged_utf8(&bytes) {
                Ok(utf8_lossy(bytes))
            } else {
                guessed(&bytes)
            }
        }
    }
}

fn named(text: String, encoding: &'static Encoding, skipped_bytes: usize) -> Decoded {
    let malformed = text.matches('\u{fffd}').count();
    Decoded {
        text,
        encoding: encoding.name(),
        skipped_bytes,
        malformed,
    }
}

fn utf8_lossy(bytes: Vec<u8>) -> Decoded {
    let (text, malformed) = match String::from_utf8(bytes) {
        Ok(text) => (text, 0),
        Err(error) => {
            let bytes = error.into_bytes();
            let malformed = bytes
                .utf8_chunks()
                .filter(|c| !c.invalid().is_empty())
                .count();
            (String::from_utf8_lossy(&bytes).into_owned(), malformed)
        }
    };
    Decoded {
        text,
        encoding: "UTF-8",
        skipped_bytes: 0,
        malformed,
    }
}

fn utf32(bytes: &[u8], unit: fn([u8; 4]) -> u32, encoding: &'static str) -> Decoded {
    let (units, rest) = bytes.as_chunks::<4>();
    let mut malformed = usize::from(!rest.is_empty());
    let text = units
        .iter()
        .map(|u| {
            char::from_u32(unit(*u)).unwrap_or_else(|| {
                malformed += 1;
                char::REPLACEMENT_CHARACTER
            })
        })
        .collect();
    Decoded {
        text,
        encoding,
        skipped_bytes: 4,
        malformed,
    }
}

/// Windows tools sometimes omit the byte-order mark. Spaces and line ends, with one NUL byte each, identify UTF-16.
fn utf16_without_mark(bytes: &[u8]) -> Option<Decoded> {
    let whole = &bytes[..bytes.len() & !1];
    // The wrong byte order can pass too, because byte-swapped ideographs are often ideographs. Take the byte order with
    // more spaces, line ends and full stops, which every text contains.
    let ends = |c: char| matches!(c, ' ' | '\n' | '\u{3000}'..='\u{3002}' | '\u{ff0c}');
    [UTF_16LE, UTF_16BE]
        .into_iter()
        .filter_map(|encoding| {
            let text = encoding.decode_without_bom_handling_and_without_replacement(whole)?;
            let (mut characters, mut strange, mut separators) = (0_usize, 0_usize, 0_usize);
            for c in text.chars() {
                characters += 1;
                separators += usize::from(ends(c));
                strange += usize::from(!is_text(c));
            }
            // Numbers in a binary file decode to control characters and to characters of no script.
            let is_plausible = separators > 0 && strange * 50 <= characters;
            is_plausible.then(|| (separators, named(text.into_owned(), encoding, 0)))
        })
        .max_by_key(|(separators, _)| *separators)
        .map(|(_, decoded)| decoded)
}

fn is_text(c: char) -> bool {
    c.is_alphanumeric() || c.is_whitespace() || c.is_ascii_punctuation() || is_sign(c)
}

/// Punctuation, symbols, CJK signs and full-width forms, emoji.
fn is_sign(c: char) -> bool {
    matches!(c, '\u{a1}'..='\u{bf}' | '\u{300}'..='\u{36f}' | '\u{2010}'..='\u{2bff}' | '\u{3000}'..='\u{303f}'
        | '\u{ff00}'..='\u{ffef}' | '\u{1f000}'..='\u{1faff}')
}

/// ISO-2022-JP consists of ASCII bytes with escapes, so it is also valid UTF-8.
fn iso_2022_jp(text: &str) -> Option<Decoded> {
    let bytes = text.as_bytes();
    if !bytes.contains(&0x1b)
        || !bytes.is_ascii()
        || !(text.contains("\x1b$B") || text.contains("\x1b$@"))
    {
        return None;
    }
    let decoded = ISO_2022_JP.decode_without_bom_handling_and_without_replacement(bytes)?;
    Some(named(decoded.into_owned(), ISO_2022_JP, 0))
}

/// Whether the bytes are mostly valid UTF-8. One bad byte in a long file must not decode every accented letter as two
/// letters of windows-1252.
fn is_damaged_utf8(bytes: &[u8]) -> bool {
    let (mut multibyte, mut invalid, mut cut_at_end) = (0_usize, 0_usize, false);
    for chunk in bytes.utf8_chunks() {
        multibyte += chunk.valid().bytes().filter(|b| *b >= 0xc0).count();
        if !chunk.invalid().is_empty() {
            invalid += 1;
            cut_at_end = bytes.as_ptr_range().end == chunk.invalid().as_ptr_range().end;
        }
    }
    multibyte >= 10 * invalid.max(1) || (invalid == 1 && cut_at_end && multibyte > 0)
}

fn guessed(bytes: &[u8]) -> Result<Decoded, NotText> {
    let start = bytes.iter().position(|b| !b.is_ascii()).unwrap_or(0);
    let sample_end = bytes.len().min(start + SAMPLE_BYTES);
    let (mut encoding, mut text) =
        decode_as_guessed(bytes, &bytes[start..sample_end], sample_end == bytes.len());
    if matches!(text, Cow::Borrowed(_)) || text.contains('\u{fffd}') {
        (encoding, text) = decode_as_guessed(bytes, bytes, true);
    }
    let decoded = named(text.into_owned(), encoding, 0);
    if decoded.malformed * 50 > decoded.text.len() {
        return Err(UNKNOWN);
    }
    Ok(decoded)
}

fn decode_as_guessed<'a>(
    bytes: &'a [u8],
    sample: &[u8],
    is_rest: bool,
) -> (&'static Encoding, Cow<'a, str>) {
    let mut detector = EncodingDetector::new(Iso2022JpDetection::Deny);
    detector.feed(sample, is_rest);
    let encoding = detector.guess(None, Utf8Detection::Deny);
    (encoding, encoding.decode_without_bom_handling(bytes).0)
}

/// Rejects text decoded by a byte-order mark or as UTF-8 that contains NULs or too many control characters.
fn text_only(decoded: Decoded) -> Result<Decoded, NotText> {
    if is_binary(decoded.text.as_bytes()) || decoded.malformed * 50 > decoded.text.len() {
        return Err(BINARY);
    }
    Ok(decoded)
}

/// Whether the first bytes contain a NUL, or more than 1 % are control characters, and more than [`FEW_CONTROLS`].
/// Random bytes have 10 %; a log file has a few.
fn is_binary(bytes: &[u8]) -> bool {
    if bytes[..bytes.len().min(HEAD_BYTES)].contains(&0) {
        return true;
    }
    // Allowed: backspace to carriage return, the DOS end-of-file character, and the escape of terminal colours.
    let control = bytes
        .iter()
        .filter(|b| **b < 0x20 && !matches!(**b, 0x08..=0x0d | 0x1a | 0x1b))
        .count();
    control > FEW_CONTROLS.max(bytes.len() / 100)
}
