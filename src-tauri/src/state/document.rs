//! An open document, with its facts in the page's units.

mod outline;

use std::sync::Arc;

use kept_engine::document_notes;
use kept_engine::documents::{Document, Kind, Part};

use crate::contract::{DocumentFacts, DocumentPart, OutlineEntry, PageRange};
use crate::messages;
use crate::offsets::utf16_offsets;
use crate::sample;

/// A document with its text.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenDocument {
    /// The document without its text, with pages in bytes.
    pub info: Document,
    /// The text.
    pub text: Arc<str>,
    /// The facts for the page, in UTF-16 units.
    pub facts: DocumentFacts,
}

/// The facts of a plain text without a file.
pub fn plain_text(name: String, text: &str) -> Document {
    Document {
        name,
        source_bytes: text.len() as u64,
        ..Document::empty()
    }
}

impl OpenDocument {
    /// Creates a document from the worker's facts. Page boundaries outside the text or inside a character are moved to
    /// the nearest boundary below.
    pub fn new(id: u64, info: Document, text: Arc<str>, sample: bool) -> Self {
        let bytes: Vec<usize> = info
            .pages
            .iter()
            .flat_map(|page| [page.range.start, page.range.end])
            .collect();
        let parts = info
            .parts
            .iter()
            .flat_map(|part| [part.range.start, part.range.end]);
        let edges: Vec<usize> = parts.chain([text.len()]).collect();
        let units = utf16_offsets(&text, &bytes);
        let pages: Vec<PageRange> = info
            .pages
            .iter()
            .zip(units.chunks_exact(2))
            .map(|(page, ends)| PageRange {
                number: page.number,
                start: ends[0],
                end: ends[1],
            })
            .collect();
        let edges = utf16_offsets(&text, &edges);
        let documents = (info.parts.iter().zip(edges.chunks_exact(2)))
            .map(|(part, ends)| DocumentPart {
                name: part.document.name.clone(),
                kind: part.document.kind.code().to_owned(),
                start: ends[0],
                end: ends[1],
                pages: part.document.pages.len(),
            })
            .collect();
        let length = edges.last().copied().unwrap_or(0);
        let headings = outline::headings(&info, &text);
        let starts: Vec<usize> = headings.iter().map(|heading| heading.start).collect();
        let outline: Vec<OutlineEntry> = (headings.iter())
            .zip(utf16_offsets(&text, &starts))
            .map(|(heading, start)| OutlineEntry {
                level: heading.level,
                title: heading.title.clone(),
                start,
                page: page_at(&pages, start),
            })
            .collect();
        let suggestions = if sample {
            sample::suggestions()
        } else {
            outline::questions(&headings, &outline, length)
        };
        let facts = DocumentFacts {
            id,
            name: info.name.clone(),
            kind: info.kind.code().to_owned(),
            source_bytes: info.source_bytes,
            length,
            pages,
            page_noun: page_noun(&info).to_owned(),
            documents,
            outline,
            notes: (document_notes(&info).iter())
                .map(|note| messages::about_file(&info.name, note))
                .collect(),
            tokens: None,
            tokens_estimated: false,
            too_long: None,
            streaming: None,
            sample,
            beyond_box: *text != *kept_engine::SAMPLE,
            suggestions,
        };
        Self { info, text, facts }
    }

    /// The document that contains the UTF-16 unit `at`, if there are several.
    pub fn part_at(&self, at: usize) -> Option<&DocumentPart> {
        let holds = |part: &&DocumentPart| (part.start..part.end).contains(&at);
        self.facts.documents.iter().find(holds)
    }

    /// The page that contains the UTF-16 unit `at`.
    pub fn page_at(&self, at: usize) -> Option<u32> {
        page_at(&self.facts.pages, at)
    }
}

/// What the pages of a document are called; of several documents with different pages, `page`.
fn page_noun(info: &Document) -> &'static str {
    let paged = |part: &&Part| !part.document.pages.is_empty();
    let paged = info.parts.iter().filter(paged);
    let mut nouns = paged.map(|part| part.document.kind.page_noun());
    match nouns.next() {
        None if info.parts.is_empty() => info.kind.page_noun(),
        Some(first) if nouns.all(|noun| noun == first) => first,
        _ => Kind::PlainText.page_noun(),
    }
}

fn page_at(pages: &[PageRange], at: usize) -> Option<u32> {
    let after = pages.partition_point(|page| page.start <= at);
    let page = pages.get(after.checked_sub(1)?)?;
    (at < page.end).then_some(page.number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kept_engine::documents::Page;

    #[test]
    fn pages_are_given_in_utf16_units() {
        let text: Arc<str> = "aé\u{1F600}b".into(); // bytes 1+2+4+1, units 1+1+2+1
        let info = Document {
            pages: vec![
                Page {
                    number: 1,
                    range: 0..3,
                },
                Page {
                    number: 2,
                    range: 3..8,
                },
            ],
            ..plain_text(String::new(), "")
        };
        let document = OpenDocument::new(1, info, text, false);
        assert_eq!(document.facts.length, 5);
        let range = |page: &PageRange| (page.start, page.end);
        assert_eq!(
            document.facts.pages.iter().map(range).collect::<Vec<_>>(),
            [(0, 2), (2, 5)]
        );
        assert_eq!(document.page_at(1), Some(1));
        assert_eq!(document.page_at(2), Some(2));
        assert_eq!(document.page_at(5), None);
    }
}
