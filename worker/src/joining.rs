//! Several documents joined as one: adds a document to the open ones, or removes one.

use kept_engine::documents::Document;
use kept_worker::protocol::{DocumentInfo, MAX_PAYLOAD_BYTES, PartInfo};

use crate::facts;
use crate::work::{OpenDocument, Outcome};

/// `open` followed by `new`.
pub fn add(open: &OpenDocument, new: &OpenDocument) -> Outcome<OpenDocument> {
    let mut all = split(open);
    all.push((new.info.clone(), new.document.clone()));
    join(all)
}

/// `open` without its part number `part`.
pub fn remove(open: &OpenDocument, part: usize) -> Outcome<OpenDocument> {
    let mut all = split(open);
    if all.len() < 2 || part >= all.len() {
        return Err(format!(
            "there is no document number {} among {}; choose one of those that are shown",
            part + 1,
            all.len()
        )
        .into());
    }
    all.remove(part);
    join(all)
}

/// The documents that `open` was joined from, each with its facts.
fn split(open: &OpenDocument) -> Vec<(DocumentInfo, Document)> {
    let documents = open.document.split();
    if open.info.parts.is_empty() {
        documents
            .into_iter()
            .map(|d| (open.info.clone(), d))
            .collect()
    } else {
        let infos = open.info.parts.iter().map(|part| part.document.clone());
        infos.zip(documents).collect()
    }
}

/// Joins documents. Their notes and counts come from their facts: a document restored by the app does not hold them
/// any more.
fn join(all: Vec<(DocumentInfo, Document)>) -> Outcome<OpenDocument> {
    let (infos, documents): (Vec<_>, Vec<_>) = all.into_iter().unzip();
    let document = Document::join(documents);
    if document.text.len() > MAX_PAYLOAD_BYTES {
        return Err(format!(
            "together the documents have {} bytes of text, more than the {MAX_PAYLOAD_BYTES} that can be shown: remove one first",
            document.text.len()
        )
        .into());
    }
    if let [info] = infos.as_slice() {
        return Ok(OpenDocument {
            info: info.clone(),
            document,
        });
    }
    let info = DocumentInfo {
        malformed: infos.iter().map(|info| info.malformed).sum(),
        notes: infos.iter().flat_map(|info| info.notes.clone()).collect(),
        parts: (infos.into_iter().zip(&document.parts))
            .map(|(document, part)| PartInfo {
                document,
                start: part.range.start,
                end: part.range.end,
            })
            .collect(),
        ..facts::document(&document)
    };
    Ok(OpenDocument { info, document })
}
