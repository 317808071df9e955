//! Several documents joined into one text. Each document is unchanged; a line between two documents names both.
//!
//! ```text
//! the text of a.txt
//!
//! (Here ends the document "a.txt". The next document is "b.txt".)
//!
//! the text of b.txt
//!
//! (Here ends the document "b.txt".)
//! ```
//!
//! The name of a document follows its text. If a document is appended to a joined text, the beginning of the text
//! therefore stays the same, and what was computed for that beginning stays valid.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{Document, Page};

/// One of several joined documents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The document without its text: `text` is empty. Page ranges are those of the document alone.
    pub document: Document,
    /// Byte range of the document in the joined text.
    #[serde(flatten)]
    pub range: Range<usize>,
}

impl Document {
    /// Joins `documents` in this order; a single document is returned unchanged. Page numbers are those of each
    /// document. Of several with one name, the later ones get a number: `a (2).txt`.
    ///
    /// # Panics
    /// If `documents` is empty.
    pub fn join(mut documents: Vec<Document>) -> Document {
        assert!(!documents.is_empty(), "no documents to join");
        if documents.len() == 1 {
            return documents.remove(0);
        }
        let mut names: Vec<String> = Vec::new();
        for document in &documents {
            names.push(unused(&document.name, &names));
        }
        let mut joined = Document {
            name: names.join(" + "),
            source_bytes: documents.iter().map(|d| d.source_bytes).sum(),
            ..Document::empty()
        };
        for (i, mut document) in documents.into_iter().enumerate() {
            document.name.clone_from(&names[i]);
            let start = joined.text.len();
            joined.text += &std::mem::take(&mut document.text);
            let range = start..joined.text.len();
            joined.pages.extend(document.pages.iter().map(|page| Page {
                number: page.number,
                range: start + page.range.start..start + page.range.end,
            }));
            let next = names.get(i + 1);
            let next = next.map_or(String::new(), |next| {
                format!(" The next document is \"{next}\".")
            });
            let ended = format!("\n\n(Here ends the document \"{}\".{next})", names[i]);
            joined.text += &ended;
            if i + 1 < names.len() {
                joined.text += "\n\n";
            }
            joined.parts.push(Part { document, range });
        }
        joined
    }

    /// The joined documents, each with its own text; for a single document, a copy of it.
    pub fn split(&self) -> Vec<Document> {
        if self.parts.is_empty() {
            return vec![self.clone()];
        }
        let apart = |part: &Part| Document {
            text: self.text[part.range.clone()].to_owned(),
            ..part.document.clone()
        };
        self.parts.iter().map(apart).collect()
    }

    /// The joined document that contains `byte`; `None` for a single document or for a byte between two documents.
    pub fn part_of(&self, byte: usize) -> Option<&Part> {
        self.parts.iter().find(|part| part.range.contains(&byte))
    }
}

/// `name`, numbered if `others` have it.
fn unused(name: &str, others: &[String]) -> String {
    let (stem, extension) = match name.rfind('.') {
        Some(dot) if dot > 0 => name.split_at(dot),
        _ => (name, ""),
    };
    let numbered = |number| match number {
        1 => name.to_owned(),
        _ => format!("{stem} ({number}){extension}"),
    };
    (1..)
        .map(numbered)
        .find(|name| !others.contains(name))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(name: &str, text: &str) -> Document {
        Document::from_bytes(name, text.as_bytes().to_vec()).expect("a text")
    }

    #[test]
    fn joined_text_has_every_document_and_its_name() {
        let (a, b) = (
            document("a.txt", "One. Two."),
            document("b.rs", "fn b() {}\nlet c;\n"),
        );
        let joined = Document::join(vec![a, b]);
        assert_eq!(joined.name, "a.txt + b.rs");
        assert_eq!(joined.text[joined.parts[0].range.clone()], *"One. Two.");
        assert_eq!(
            joined.text[joined.parts[1].range.clone()],
            *"fn b() {}\nlet c;\n"
        );
        assert_eq!(
            joined.text,
            "One. Two.\n\n(Here ends the document \"a.txt\". The next document is \"b.rs\".)\n\nfn b() {}\nlet c;\n\n\n(Here ends the document \"b.rs\".)"
        );
        let named = |byte: usize| joined.part_of(byte).map(|part| part.document.name.as_str());
        assert_eq!((named(3), named(12)), (Some("a.txt"), None));
        let at = joined.text.find("let").expect("code");
        assert_eq!(named(at), Some("b.rs"));
        // Code is cut by lines, prose by sentences, and no passage crosses into another document.
        assert_eq!(joined.text[joined.passage_at(at)], *"let c;");
        assert_eq!(joined.text[joined.passage_at(6)], *"Two.");
    }

    #[test]
    fn documents_of_one_name_are_numbered() {
        let documents = ["a.txt", "a (2).txt", "a.txt", ".env", ".env"];
        let joined = Document::join(documents.map(|name| document(name, "One.")).to_vec());
        let named: Vec<&str> = (joined.parts.iter())
            .map(|part| part.document.name.as_str())
            .collect();
        assert_eq!(
            named,
            ["a.txt", "a (2).txt", "a (3).txt", ".env", ".env (2)"]
        );
        let ended = "(Here ends the document \"a (3).txt\". The next document is \".env\".)";
        assert!(joined.text.contains(ended), "{}", joined.text);
        assert_eq!(Document::join(joined.split()).text, joined.text);
    }

    #[test]
    fn joining_one_more_keeps_the_text_before_it() {
        let texts = [("a.txt", "One."), ("b.txt", "Two."), ("c.txt", "Three.")];
        let all = |count: usize| {
            let documents = texts[..count]
                .iter()
                .map(|(name, text)| document(name, text));
            Document::join(documents.collect())
        };
        assert!(all(2).text.starts_with(&all(1).text));
        let shared = all(2)
            .text
            .replace("(Here ends the document \"b.txt\".)", "");
        assert!(all(3).text.starts_with(shared.trim_end()));
        assert!(all(1).parts.is_empty(), "one is what it was");
        // The inverse: split.
        for count in 1..=3 {
            let apart = all(count).split();
            let found: Vec<(&str, &str)> = (apart.iter())
                .map(|d| (d.name.as_str(), d.text.as_str()))
                .collect();
            assert_eq!(found, texts[..count]);
            assert_eq!(Document::join(apart).text, all(count).text);
        }
    }

    #[test]
    fn page_ranges_move_with_their_document() {
        let mut b = document("b.pdf.txt", "first page second page");
        b.pages = vec![
            Page {
                number: 1,
                range: 0..11,
            },
            Page {
                number: 2,
                range: 11..22,
            },
        ];
        let joined = Document::join(vec![document("a.txt", "No pages."), b]);
        let start = joined.parts[1].range.start;
        assert_eq!(joined.page_of(2), None);
        assert_eq!(joined.page_of(start + 12), Some(2));
        assert_eq!(joined.text[joined.passage_at(2)], *"No pages.");
        assert_eq!(joined.text[joined.passage_at(start + 12)], *"second page");
    }
}
