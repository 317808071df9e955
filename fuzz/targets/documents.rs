//! Documents of all formats but PDF. The first byte is the format; archives are written as their parts, so that what
//! changes is a part and not the archive around it:
//!
//! ```text
//! d=== [Content_Types].xml
//! <Types/>
//! === word/document.xml
//! <w:document>
//! ```
#![no_main]

use kept_documents::Document;
use kept_fuzz::{check, forgive_libraries};
use libfuzzer_sys::fuzz_target;

/// First byte, extension, and whether the rest is the parts of an archive.
const FORMATS: [(u8, &str, bool); 17] = [
    (b'd', "docx", true),
    (b't', "odt", true),
    (b'p', "pptx", true),
    (b'i', "odp", true),
    (b'x', "xlsx", true),
    (b's', "ods", true),
    (b'e', "epub", true),
    (b'z', "docx", false),
    (b'h', "html", false),
    (b'm', "eml", false),
    (b'r', "srt", false),
    (b'v', "vtt", false),
    (b'k', "md", false),
    (b'a', "txt", false),
    (b'c', "csv", false),
    (b'b', "rs", false),
    (b'n', "", false),
];

fuzz_target!(init: forgive_libraries(), |data: &[u8]| {
    let Some((first, rest)) = data.split_first() else {
        return;
    };
    let named = FORMATS.iter().find(|(name, ..)| name == first);
    let (_, extension, parts) = named.unwrap_or(&FORMATS[usize::from(*first) % FORMATS.len()]);
    let bytes = match parts {
        true => archive(rest),
        false => rest.to_vec(),
    };
    if let Ok(document) = Document::from_bytes(format!("a.{extension}"), bytes) {
        check(&document);
        check(&Document::join(vec![document.clone(), document]));
    }
});

/// An archive of uncompressed parts, each after a line with its name.
fn archive(parts: &[u8]) -> Vec<u8> {
    const MARK: &[u8] = b"=== ";
    let is_mark =
        |&at: &usize| parts[at..].starts_with(MARK) && (at == 0 || parts[at - 1] == b'\n');
    let starts: Vec<usize> = (0..parts.len()).filter(is_mark).take(60).collect();
    let ends = starts.iter().skip(1).copied().chain([parts.len()]);
    let (mut out, mut list) = (Vec::new(), Vec::new());
    for (start, end) in starts.iter().zip(ends) {
        let part = &parts[start + MARK.len()..end];
        let line = part.iter().position(|byte| *byte == b'\n');
        let (name, content) = part.split_at(line.unwrap_or(part.len()));
        let content = content.get(1..).unwrap_or_default();
        let mut facts = vec![20, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        facts.extend(crc32fast::hash(content).to_le_bytes());
        facts.extend((content.len() as u32).to_le_bytes());
        facts.extend((content.len() as u32).to_le_bytes());
        facts.extend((name.len() as u16).to_le_bytes());
        list.extend(b"PK\x01\x02\x14\0");
        list.extend(&facts);
        list.extend([0; 12]);
        list.extend((out.len() as u32).to_le_bytes());
        list.extend(name);
        out.extend(b"PK\x03\x04");
        out.extend(&facts);
        out.extend([0; 2]);
        out.extend(name);
        out.extend(content);
    }
    let (start, size, count) = (out.len() as u32, list.len() as u32, starts.len() as u16);
    out.extend(list);
    out.extend(b"PK\x05\x06\0\0\0\0");
    out.extend(count.to_le_bytes());
    out.extend(count.to_le_bytes());
    out.extend(size.to_le_bytes());
    out.extend(start.to_le_bytes());
    out.extend([0; 2]);
    out
}
