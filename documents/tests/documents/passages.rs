//! The sentence or line around a byte.

use kept_documents::Document;

fn passage(name: &str, text: &str, at: &str) -> String {
    let document = Document::from_bytes(name, text.as_bytes().to_vec()).unwrap();
    let byte = document.text.find(at).unwrap();
    document.text[document.passage_at(byte)].to_owned()
}

#[test]
fn a_passage_of_prose_is_a_sentence() {
    let text = "He left. Dr. Mora, i.e. the owner, signed p. 12 of the\r\nform on 3.5 pages (\"Really?\" he asked.) Then J. S. Mill came. The end!";
    assert_eq!(passage("a.txt", text, "He"), "He left.");
    let middle = "Dr. Mora, i.e. the owner, signed p. 12 of the\r\nform on 3.5 pages (\"Really?\" he asked.)";
    for at in ["Dr.", "owner", "form", "Really", "asked"] {
        assert_eq!(passage("a.txt", text, at), middle, "at {at}");
    }
    assert_eq!(passage("a.txt", text, "Mill"), "Then J. S. Mill came.");
    assert_eq!(passage("a.txt", text, "end"), "The end!");
    // The space before a word belongs to the word.
    assert_eq!(passage("a.txt", text, " The end"), "The end!");
}

#[test]
fn german_dates_and_abbreviations_end_no_passage() {
    let text = "Die Frist endet am 30. September. Am 1. Januar 2025 tritt sie in Kraft, z. B. für \
                40 Euro. Nach § 3 Abs. 2 gilt er, d. h. Miete ist fällig. Er ist 14. Julia kam. Die Wohnung im 3. Obergeschoss ist frei. It fell to 12. August was \
                worse. Solve for x. Then stop.\nDer Umzug der ganzen Werkstatt findet am Montag, dem 14.\nMärz um 7:30 Uhr statt.";
    let expected = [
        ("Frist", "Die Frist endet am 30. September."),
        (
            "Januar",
            "Am 1. Januar 2025 tritt sie in Kraft, z. B. für 40 Euro.",
        ),
        ("Nach", "Nach § 3 Abs. 2 gilt er, d. h. Miete ist fällig."),
        ("Er ", "Er ist 14."),
        ("Julia", "Julia kam."),
        ("frei", "Die Wohnung im 3. Obergeschoss ist frei."),
        ("It", "It fell to 12."),
        ("August", "August was worse."),
        ("Solve", "Solve for x."),
        (
            "Umzug",
            "Der Umzug der ganzen Werkstatt findet am Montag, dem 14.\nMärz um 7:30 Uhr statt.",
        ),
    ];
    for (at, whole) in expected {
        assert_eq!(passage("a.txt", text, at), whole);
    }
}

#[test]
fn paragraphs_and_headings_end_a_passage() {
    let text = "CHAPTER ONE\n\nIt rained on the old roof of the archive all day\nand all night. Nobody came\n\nAnother thing";
    assert_eq!(passage("a.txt", text, "ONE"), "CHAPTER ONE");
    assert_eq!(
        passage("a.txt", text, "night"),
        "It rained on the old roof of the archive all day\nand all night."
    );
    assert_eq!(passage("a.txt", text, "came"), "Nobody came");
    assert_eq!(passage("a.txt", text, "thing"), "Another thing");
}

#[test]
fn chinese_sentences_are_passages() {
    let text = "管理员每天把每一页都数两遍。然后她走回家！「对吗？」她问。";
    assert_eq!(passage("a.txt", text, "她走"), "然后她走回家！");
    assert_eq!(
        passage("a.txt", text, "管理"),
        "管理员每天把每一页都数两遍。"
    );
}

#[test]
fn lines_of_code_and_markdown_are_passages() {
    let code = "fn main() {\n    let a = b. c;\n\n}\n";
    assert_eq!(passage("a.rs", code, "b. c"), "let a = b. c;");
    let notes = "# Title\nText that runs on\nover lines. More.\n- first item\n- second item. With two sentences.\n| a | b |\n| c | d |\n";
    // Without the marks of a heading; its number ends no sentence.
    assert_eq!(passage("a.md", notes, "Title"), "Title");
    let sections = "## 5. Confidential. Secret\nIn 1901. The end.\n6.1. Rent. Is due.\n#hash\n";
    assert_eq!(passage("a.md", sections, "Confid"), "5. Confidential.");
    assert_eq!(passage("a.md", sections, "1901"), "In 1901.");
    assert_eq!(passage("a.md", sections, "Rent"), "6.1. Rent.");
    assert_eq!(passage("a.md", sections, "hash"), "#hash");
    assert_eq!(
        passage("a.md", notes, "runs"),
        "Text that runs on\nover lines."
    );
    assert_eq!(passage("a.md", notes, "first"), "- first item");
    assert_eq!(passage("a.md", notes, "c | d"), "| c | d |");
}

#[test]
fn a_passage_has_at_most_400_bytes() {
    for text in [
        "a",
        "  x  ",
        "\n\n\n\nx",
        "é\u{301}🙂🙂. 🙂",
        &"x".repeat(5000),
        &"界".repeat(3000),
        &"word ".repeat(2000),
        &"\n".repeat(3000),
        &"A sentence, here. ".repeat(300),
        "... ?! \"'\" )",
    ] {
        for name in ["a.txt", "a.rs", "a.md"] {
            let Ok(document) = Document::from_bytes(name, text.as_bytes().to_vec()) else {
                continue;
            };
            for byte in (0..document.text.len() + 2).step_by(1 + text.len() / 500) {
                let range = document.passage_at(byte);
                assert!(range.len() <= 400, "{range:?}");
                let shown = &document.text[range.clone()];
                assert_eq!(shown, shown.trim());
                let again = document.passage_at(range.start);
                assert!(
                    text.len() > 400 || again == range,
                    "{byte} of {text:?}: {range:?}, {again:?}"
                );
            }
        }
    }
}

#[test]
fn passages_cover_a_range_in_order() {
    let text = "One is here. Two is there.  Three is gone.\n\nFour stays.";
    let document = Document::from_bytes("a.txt", text.as_bytes().to_vec()).unwrap();
    let shown = |range| -> Vec<&str> {
        document
            .passages(range)
            .into_iter()
            .map(|r| &document.text[r])
            .collect()
    };
    assert_eq!(
        shown(0..text.len()),
        [
            "One is here.",
            "Two is there.",
            "Three is gone.",
            "Four stays."
        ]
    );
    assert_eq!(shown(15..30), ["Two is there.", "Three is gone."]);
    assert!(shown(3..3).is_empty());
}
