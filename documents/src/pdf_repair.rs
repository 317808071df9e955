//! A new cross-reference table for a PDF whose own is damaged or missing, as after an incomplete download.

use std::collections::BTreeMap;
use std::fmt::Write;

/// The file with a table of the objects that are found by their marks, `12 0 obj` to `endobj`; `None` without a document
/// catalogue, and for an encrypted file, whose keys are in what is damaged.
pub(crate) fn with_new_table(bytes: &[u8]) -> Option<Vec<u8>> {
    if find(bytes, b"/Encrypt", 0).is_some() {
        return None;
    }
    let objects = objects(bytes);
    let root = root(bytes).or_else(|| catalogue(bytes, &objects))?;
    let size = objects.keys().next_back()? + 1;
    let mut table = String::from("\nxref\n0 1\n0000000000 65535 f \n");
    for (number, object) in &objects {
        let _ = write!(
            table,
            "{number} 1\n{:010} {:05} n \n",
            object.start, object.generation
        );
    }
    let start = bytes.len() + 1;
    let _ = write!(
        table,
        "trailer\n<< /Size {size} /Root {root} >>\nstartxref\n{start}\n%%EOF\n"
    );
    Some([bytes, table.as_bytes()].concat())
}

struct Object {
    generation: u32,
    start: usize,
    end: usize,
}

/// The objects that are complete; the last of each number counts.
fn objects(bytes: &[u8]) -> BTreeMap<u32, Object> {
    let mut found = BTreeMap::new();
    let mut at = 0;
    while let Some(mark) = find(bytes, b" obj", at) {
        at = mark + 4;
        let Some((generation, before)) = number_before(bytes, mark) else {
            continue;
        };
        let is_apart = before > 0 && bytes[before - 1] == b' ';
        let Some((number, start)) = is_apart.then(|| number_before(bytes, before - 1)).flatten()
        else {
            continue;
        };
        let Some(end) = find(bytes, b"endobj", at) else {
            break;
        };
        let object = Object {
            generation,
            start,
            end,
        };
        found.insert(number, object);
    }
    found
}

/// The number that ends before `end`, and where it begins.
fn number_before(bytes: &[u8], end: usize) -> Option<(u32, usize)> {
    let digits = bytes[..end].iter().rev();
    let length = digits.take_while(|byte| byte.is_ascii_digit()).count();
    let start = end - length;
    let number = std::str::from_utf8(&bytes[start..end]).ok()?.parse().ok()?;
    Some((number, start))
}

/// The reference to the catalogue in the last trailer that is there.
fn root(bytes: &[u8]) -> Option<String> {
    let last = bytes.windows(5).rposition(|window| window == b"/Root")?;
    let rest = &bytes[last + 5..];
    let text = String::from_utf8_lossy(&rest[..rest.len().min(40)]).into_owned();
    let mut words = text.split_whitespace();
    let number: u32 = words.next()?.parse().ok()?;
    let generation: u32 = words.next()?.parse().ok()?;
    words
        .next()?
        .starts_with('R')
        .then(|| format!("{number} {generation} R"))
}

/// The last object that is a catalogue.
fn catalogue(bytes: &[u8], objects: &BTreeMap<u32, Object>) -> Option<String> {
    let mut catalogues = objects.iter().filter(|(_, object)| {
        let own = &bytes[object.start..object.end];
        find(own, b"/Catalog", 0).is_some()
    });
    let (number, object) = catalogues.next_back()?;
    Some(format!("{number} {} R", object.generation))
}

fn find(bytes: &[u8], wanted: &[u8], from: usize) -> Option<usize> {
    let rest = &bytes[from..];
    let at = rest
        .windows(wanted.len())
        .position(|window| window == wanted);
    at.map(|at| from + at)
}
