//! Several documents joined as one: adds a document to the open ones, or removes one.

use kept_engine::documents::Document;
use kept_worker::protocol::MAX_PAYLOAD_BYTES;

use crate::work::{OpenDocument, Outcome};

/// `open` followed by `new`.
pub fn add(open: &OpenDocument, new: &OpenDocument) -> Outcome<OpenDocument> {
    let mut all = open.document.split();
    all.push(new.document.clone());
    join(all)
}

/// `open` without its part number `part`.
pub fn remove(open: &OpenDocument, part: usize) -> Outcome<OpenDocument> {
    let mut all = open.document.split();
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

fn join(all: Vec<Document>) -> Outcome<OpenDocument> {
    let document = Document::join(all);
    if document.text.len() > MAX_PAYLOAD_BYTES {
        return Err(format!(
            "together the documents have {} bytes of text, more than the {MAX_PAYLOAD_BYTES} that can be shown: remove one first",
            document.text.len()
        )
        .into());
    }
    Ok(OpenDocument::new(document))
}
