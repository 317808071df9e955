//! `ToUnicode` maps (ISO 32000-1, 9.10.3), rewritten for the drawing library.
//!
//! A map that the library cannot read loses every page with its font: one of an odd number of digits, of fewer entries
//! than it says, or of half a surrogate pair. So all maps are read here, as far as they make sense, and written in the
//! one form that the library reads.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use pdf_extract::{Dictionary, Document as Pdf, Object, ObjectId, Stream};

/// The largest code that the library reads.
const MAX_CODE: u32 = 0xffff;
const KEY: &[u8] = b"ToUnicode";

/// Rewrites the maps of all fonts of `pdf`. A font with no readable map keeps what its encoding says.
pub(crate) fn rewrite(pdf: &mut Pdf) {
    let unnamed = pdf.objects.iter();
    let unnamed = unnamed.filter(|(_, object)| lacks_encoding(pdf, object));
    let unnamed: Vec<ObjectId> = unnamed.map(|(&id, _)| id).collect();
    for font in unnamed {
        if let Ok(font) = pdf.get_object_mut(font).and_then(Object::as_dict_mut) {
            font.set("Encoding", Dictionary::new());
        }
    }
    let mut maps = BTreeSet::new();
    for object in pdf.objects.values_mut() {
        if let Ok(font) = object.as_dict_mut() {
            // The library fails on names that it does not know; `Identity-H` says nothing that it would use.
            if font.get(KEY).is_ok_and(|map| map.as_reference().is_err()) {
                font.remove(KEY);
            }
        }
        collect(object, &mut maps);
    }
    for map in maps {
        let stream = pdf.get_object(map).and_then(Object::as_stream);
        let bytes = stream.and_then(Stream::get_plain_content);
        let codes = bytes.map_or_else(|_| BTreeMap::new(), |bytes| read(&bytes));
        pdf.objects.insert(map, written(&codes));
    }
}

/// Whether `object` is a simple font with a map and nothing else that names its characters. The library then fails on a
/// character that the map lacks, with an empty encoding it does not.
fn lacks_encoding(pdf: &Pdf, object: &Object) -> bool {
    let Ok(font) = object.as_dict() else {
        return false;
    };
    let kind = font.get(b"Subtype").and_then(Object::as_name);
    let is_simple = kind.is_ok_and(|kind| matches!(kind, b"Type1" | b"TrueType" | b"MMType1"));
    let descriptor = font.get_deref(b"FontDescriptor", pdf);
    let is_embedded = descriptor.and_then(Object::as_dict).is_ok_and(|about| {
        let files: [&[u8]; 3] = [b"FontFile", b"FontFile2", b"FontFile3"];
        files.iter().any(|file| about.has(file))
    });
    is_simple && font.has(KEY) && !font.has(b"Encoding") && !is_embedded
}

/// The maps to which fonts within `object` refer.
fn collect(object: &Object, maps: &mut BTreeSet<ObjectId>) {
    let dictionary = match object {
        Object::Dictionary(dictionary) => dictionary,
        Object::Stream(stream) => &stream.dict,
        Object::Array(objects) => return objects.iter().for_each(|object| collect(object, maps)),
        _ => return,
    };
    for (key, value) in dictionary {
        match value {
            Object::Reference(id) if key == KEY => drop(maps.insert(*id)),
            value => collect(value, maps),
        }
    }
}

/// A map as the library reads it.
pub(crate) fn written(codes: &BTreeMap<u32, String>) -> Object {
    let mut map = format!("begincmap\n{} beginbfchar\n", codes.len());
    for (code, text) in codes {
        let _ = write!(map, "<{code:04x}> <");
        for unit in text.encode_utf16() {
            let _ = write!(map, "{unit:04x}");
        }
        map.push_str(">\n");
    }
    map.push_str("endbfchar\nendcmap\n");
    Object::Stream(Stream::new(Dictionary::new(), map.into_bytes()))
}

/// What is being read of a map.
#[derive(Clone, Copy, PartialEq)]
enum Section {
    None,
    /// `code text`
    Chars,
    /// `first last text`, or `first last [text ...]`
    Ranges,
}

fn read(map: &[u8]) -> BTreeMap<u32, String> {
    let mut codes = BTreeMap::new();
    let (mut section, mut pending, mut in_list) = (Section::None, Vec::new(), false);
    let mut rest = map;
    while let Some(token) = next_token(&mut rest) {
        match (token, section) {
            (b"beginbfchar", _) => (section, pending, in_list) = (Section::Chars, vec![], false),
            (b"beginbfrange", _) => (section, pending, in_list) = (Section::Ranges, vec![], false),
            (b"endbfchar" | b"endbfrange", _) => section = Section::None,
            ([b'<', digits @ ..], Section::Chars) if !pending.is_empty() => {
                insert(&mut codes, pending[0], text(digits));
                pending.clear();
            }
            ([b'<', digits @ ..], Section::Ranges) if pending.len() == 2 => {
                let (first, last) = (pending[0], pending[1]);
                if in_list && first <= last {
                    insert(&mut codes, first, text(digits));
                    pending[0] = first.saturating_add(1);
                } else if !in_list {
                    insert_range(&mut codes, first, last, text(digits));
                    pending.clear();
                }
            }
            ([b'<', digits @ ..], _) => pending.extend(code(digits)),
            (b"[", _) => in_list = true,
            _ => (pending, in_list) = (vec![], false),
        }
    }
    codes
}

fn insert(codes: &mut BTreeMap<u32, String>, code: u32, text: Option<String>) {
    if let Some(text) = text.filter(|_| code <= MAX_CODE) {
        codes.insert(code, text);
    }
}

/// The last character of `text` counts up from code to code.
fn insert_range(codes: &mut BTreeMap<u32, String>, first: u32, last: u32, text: Option<String>) {
    let Some(mut text) = text else { return };
    let Some(end) = text.pop() else { return };
    for (code, char) in (first..=last.min(MAX_CODE)).zip(end..=char::MAX) {
        insert(codes, code, Some(format!("{text}{char}")));
    }
}

fn code(digits: &[u8]) -> Option<u32> {
    let digits: Vec<u8> = without_spaces(digits).collect();
    u32::from_str_radix(str::from_utf8(&digits).ok()?, 16).ok()
}

fn without_spaces(digits: &[u8]) -> impl Iterator<Item = u8> {
    digits
        .iter()
        .copied()
        .filter(|byte| !byte.is_ascii_whitespace())
}

/// The text of digits: UTF-16, or the number of one character if they are not whole units.
fn text(digits: &[u8]) -> Option<String> {
    let digits: Vec<u8> = without_spaces(digits).collect();
    if !digits.len().is_multiple_of(4) {
        return char::from_u32(code(&digits)?).map(String::from);
    }
    let units = digits.chunks_exact(4).filter_map(code);
    let text: String = char::decode_utf16(units.map(|unit| unit as u16))
        .filter_map(Result::ok)
        .collect();
    (!text.is_empty() || digits.is_empty()).then_some(text)
}

/// The next token: `<` and the digits of a string, a bracket, or a word.
fn next_token<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let is_end = |byte: &u8| byte.is_ascii_whitespace() || b"\0<>[]%".contains(byte);
    loop {
        let start = rest
            .iter()
            .position(|byte| !byte.is_ascii_whitespace() && *byte != 0)?;
        *rest = &rest[start..];
        match *rest {
            [b'%', ..] => {
                let end = rest.iter().position(|byte| b"\r\n".contains(byte));
                *rest = &rest[end.unwrap_or(rest.len())..];
            }
            [b'>', after @ ..] | [b'<', b'<', after @ ..] => *rest = after,
            _ => break,
        }
    }
    let length = match rest[0] {
        b'[' | b']' => 1,
        b'<' => rest
            .iter()
            .position(|byte| *byte == b'>')
            .unwrap_or(rest.len()),
        _ => 1 + rest[1..].iter().position(is_end).unwrap_or(rest.len() - 1),
    };
    let (token, after) = rest.split_at(length);
    *rest = after;
    Some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn reads(map: &str, expected: &[(u32, &str)]) {
        let expected = expected
            .iter()
            .map(|(code, text)| (*code, (*text).to_owned()));
        assert_eq!(read(map.as_bytes()), expected.collect());
    }

    #[test]
    fn maps_are_read_as_far_as_they_make_sense() {
        reads(
            "1 begincodespacerange <00> <ff> endcodespacerange\n\
             3 beginbfchar <01> <0041> % a comment <02>\n<02><0066 0069> <03> <d83dde00> endbfchar\n\
             2 beginbfrange <10> <12> <0061> <0020> <0021> [<0078> <0079007a>] endbfrange",
            &[
                (1, "A"),
                (2, "fi"),
                (3, "\u{1f600}"),
                (0x10, "a"),
                (0x11, "b"),
                (0x12, "c"),
                (0x20, "x"),
                (0x21, "yz"),
            ],
        );
        // As ReportLab writes characters above U+FFFF.
        reads(
            "1 beginbfchar <7f> <1F600> endbfchar",
            &[(0x7f, "\u{1f600}")],
        );
        // A wrong number of entries, single bytes, names, half a pair, an empty text, the end of the file.
        reads(
            "9 beginbfchar <01> <41> <02> /space <03> <0042>",
            &[(1, "A"), (3, "B")],
        );
        reads("2 beginbfchar <01> <d83d> <02> <> endbfchar", &[(2, "")]);
        reads(
            "1 beginbfrange <00> <02> [<0041> <0042>",
            &[(0, "A"), (1, "B")],
        );
        for nothing in [
            "",
            "<",
            "beginbfchar",
            "beginbfchar <zz> <0041>",
            "beginbfrange <00> <01> [",
        ] {
            reads(nothing, &[]);
        }
        let bomb = read(b"1 beginbfrange <00000000> <ffffffff> <0041> endbfrange");
        assert_eq!(bomb.len(), 1 << 16);
    }
}
