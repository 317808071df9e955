//! A document's outline, and questions from its headings.

use kept_engine::documents::{self, Document, Heading};

use crate::contract::OutlineEntry;

/// Number of offered questions.
const QUESTIONS: usize = 4;
/// Fewer headings than this offer no questions.
const MIN_ENTRIES: usize = 3;
/// The deepest level whose headings offer questions.
const MAX_LEVEL: u8 = 2;
/// The longest heading in a question, in characters.
const MAX_TITLE_CHARS: usize = 60;
/// A heading with less text below it, in UTF-16 units, has nothing to ask about.
const TEXT: usize = 60;
/// Headings above text that nobody asks about, in lower case.
const DULL: &str = "\
    acknowledgements, acknowledgments, annexes, appendices, appendix, bibliography, contents, endnotes, footnotes, \
    index, references, table of contents";

/// The headings of a document with this `text`. The headings of several documents follow the name of each.
pub(super) fn headings(info: &Document, text: &str) -> Vec<Heading> {
    if info.parts.is_empty() {
        return info.outline(text);
    }
    let mut all = Vec::new();
    for part in &info.parts {
        all.push(Heading {
            level: 0,
            title: part.document.name.clone(),
            start: part.range.start,
        });
        let own = text.get(part.range.clone()).unwrap_or("");
        let found = part.document.outline(own);
        all.extend(found.into_iter().map(|heading| Heading {
            start: part.range.start + heading.start,
            ..heading
        }));
    }
    documents::shorten(all)
}

/// Questions about sections spread over the document, which ends at the UTF-16 unit `length`. `headings` are those of
/// `entries`.
pub(super) fn questions(
    headings: &[Heading],
    entries: &[OutlineEntry],
    length: usize,
) -> Vec<String> {
    if headings.iter().filter(|heading| heading.level > 0).count() < MIN_ENTRIES {
        return Vec::new();
    }
    let mut offered: Vec<String> = Vec::new();
    for (i, heading) in headings.iter().enumerate() {
        let end = entries.get(i + 1).map_or(length, |next| next.start);
        let title = heading.title.encode_utf16().count();
        let has_text = end.saturating_sub(entries[i].start) > title + TEXT;
        let is_title = i == 0 && heading.name() == heading.title;
        if let Some(question) = question(heading).filter(|_| has_text && !is_title)
            && !offered.contains(&question)
        {
            offered.push(question);
        }
    }
    let count = offered.len().min(QUESTIONS);
    let middle = |i: usize| (2 * i + 1) * offered.len() / (2 * count);
    (0..count).map(|i| offered[middle(i)].clone()).collect()
}

fn question(heading: &Heading) -> Option<String> {
    let name = heading.name();
    let is_word = |word: &str| word.chars().filter(|c| c.is_alphabetic()).count() >= 4;
    let fits = (1..=MAX_LEVEL).contains(&heading.level)
        && name.split_whitespace().any(is_word)
        && name.chars().count() <= MAX_TITLE_CHARS
        && !name.contains(['"', '“', '”'])
        && !DULL.split(", ").any(|dull| dull == name.to_lowercase());
    let question = || {
        if name.ends_with('?') {
            name.to_owned()
        } else {
            format!("What does “{name}” say?")
        }
    };
    fits.then(question)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kept_engine::documents::{Kind, Page, Part};

    use super::*;
    use crate::state::document::{OpenDocument, plain_text};

    const BODY: &str =
        "Der Schlüssel liegt in der Lade, und die Lade ist offen, so lange die Lampe brennt.";

    fn sections(titles: &[&str]) -> String {
        let section = |title: &&str| format!("{title}\n\n{BODY}\n\n");
        titles.iter().map(section).collect()
    }

    fn open(info: Document, text: &str) -> OpenDocument {
        OpenDocument::new(1, info, Arc::from(text), false)
    }

    fn plain(text: &str) -> Document {
        plain_text("a.txt".to_owned(), text)
    }

    #[test]
    fn entries_have_utf16_offsets_and_pages() {
        let text = sections(&["1. Schlüssel", "2. Türen"]);
        let second = text.find("2.").expect("a heading");
        let page = |number, range| Page { number, range };
        let info = Document {
            kind: Kind::Pdf,
            pages: vec![page(1, 0..second), page(2, second..text.len())],
            ..plain(&text)
        };
        let facts = open(info, &text).facts;
        let found: Vec<_> = (facts.outline.iter())
            .map(|entry| (entry.level, entry.title.as_str(), entry.start, entry.page))
            .collect();
        let units = text[..second].encode_utf16().count();
        assert_eq!(
            found,
            [
                (1, "1. Schlüssel", 0, Some(1)),
                (1, "2. Türen", units, Some(2))
            ]
        );
        assert!(facts.suggestions.is_empty(), "two headings");
    }

    #[test]
    fn the_headings_of_several_documents_follow_their_names() {
        let (prose, marked) = (sections(&["1. Schlüssel", "2. Türen"]), "# Lampen\n\ntext");
        let text = format!("{prose}\n\n{marked}");
        let start = text.len() - marked.len();
        let part = |kind: &str, start, end| Part {
            document: Document {
                kind: Kind::from_code(kind),
                ..plain_text(format!("{kind}.txt"), "")
            },
            range: start..end,
        };
        let info = Document {
            parts: vec![
                part("text", 0, prose.len()),
                part("markdown", start, text.len()),
                part("code", text.len(), text.len() + 9),
            ],
            ..plain(&text)
        };
        let facts = open(info, &text).facts;
        let found: Vec<_> = (facts.outline.iter())
            .map(|entry| (entry.level, entry.title.as_str()))
            .collect();
        assert_eq!(
            found,
            [
                (0, "text.txt"),
                (1, "1. Schlüssel"),
                (1, "2. Türen"),
                (0, "markdown.txt"),
                (1, "Lampen"),
                (0, "code.txt"),
            ]
        );
        let units = text[..start].encode_utf16().count();
        assert_eq!(
            (facts.outline[3].start, facts.outline[4].start),
            (units, units)
        );
    }

    #[test]
    fn questions_are_about_sections_all_over_the_document() {
        let of = |titles: &[&str]| {
            let text = sections(titles);
            open(plain(&text), &text).facts.suggestions
        };
        assert_eq!(
            of(&[
                "1. Rent",
                "2. Term",
                "3. Who brings the keys?",
                "4. Liability"
            ]),
            [
                "What does “Rent” say?",
                "What does “Term” say?",
                "Who brings the keys?",
                "What does “Liability” say?"
            ]
        );
        let many: Vec<String> = (1..=40).map(|n| format!("Section {n}: Door {n}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let asked = of(&many);
        let doors = [6, 16, 26, 36].map(|n| format!("What does “Door {n}” say?"));
        assert_eq!(asked, doors);
        // Numbers alone, short words, quotations and lists of references are nothing to ask about.
        let dull = [
            "Chapter 1",
            "Chapter 2: Of us",
            "Chapter 3: “Doors”",
            "References",
        ];
        assert!(of(&dull).is_empty());
        // Nor is the document's title,
        let asked = of(&["LEASE AGREEMENT", "1. Rent", "2. Term"]);
        assert_eq!(asked, ["What does “Rent” say?", "What does “Term” say?"]);
        // or a heading without text.
        let text = format!(
            "PART I: Doors\n\n{}",
            sections(&["Chapter 1: Keys", "Chapter 2"])
        );
        let asked = open(plain(&text), &text).facts.suggestions;
        assert_eq!(asked, ["What does “Keys” say?"]);
    }

    #[test]
    fn the_sample_has_its_own_questions() {
        let text = kept_engine::SAMPLE;
        let sample = OpenDocument::new(1, plain(text), Arc::from(text), true);
        assert_eq!(sample.facts.suggestions, crate::sample::suggestions());
    }
}
