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

/// The objects that end before the next one begins, so that no byte is looked at for two of them; the last of each number
/// counts.
fn objects(bytes: &[u8]) -> BTreeMap<u32, Object> {
    let marks: Vec<(u32, Object)> = marks(bytes);
    let starts = marks.iter().skip(1).map(|(_, next)| next.start);
    let limits: Vec<usize> = starts.chain([bytes.len()]).collect();
    let complete = marks
        .into_iter()
        .zip(limits)
        .filter_map(|((number, object), limit)| {
            let end = find(&bytes[..limit], b"endobj", object.end)?;
            Some((number, Object { end, ..object }))
        });
    complete.collect()
}

/// Every `12 0 obj`: its number, and the object up to there.
fn marks(bytes: &[u8]) -> Vec<(u32, Object)> {
    let mut found = Vec::new();
    let mut end = 0;
    while let Some(mark) = find(bytes, b" obj", end) {
        end = mark + 4;
        let numbers = number_before(bytes, mark).and_then(|(generation, before)| {
            let space = before.checked_sub(1).filter(|&at| bytes[at] == b' ')?;
            let (number, start) = number_before(bytes, space)?;
            Some((number, generation, start))
        });
        if let Some((number, generation, start)) = numbers {
            let object = Object {
                generation,
                start,
                end,
            };
            found.push((number, object));
        }
    }
    found
}

/// The number that ends before `end`, and where it begins.
fn number_before(bytes: &[u8], end: usize) -> Option<(u32, usize)> {
    let digits = bytes[..end].iter().rev();
    // Longer ones are no numbers of objects.
    let digits = digits.take(11);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_without_an_end_are_left_out() {
        let found = objects(
            b"1 0 obj\n<< >>\nendobj 2 0 obj << 3 1 obj [] endobj 1 0 obj 5 endobj 4 0 obj <",
        );
        let found: Vec<(u32, u32, usize)> = (found.iter())
            .map(|(number, object)| (*number, object.generation, object.start))
            .collect();
        assert_eq!(found, [(1, 0, 50), (3, 1, 32)]);
    }

    #[test]
    fn a_file_of_marks_takes_no_longer_than_its_bytes() {
        let many = [b"1 0 obj ".repeat(500_000), b"/Catalog endobj".to_vec()].concat();
        let found = objects(&many);
        assert_eq!(found[&1].end - found[&1].start, "1 0 obj /Catalog ".len());
        assert!(with_new_table(&many).is_some());
    }
}
