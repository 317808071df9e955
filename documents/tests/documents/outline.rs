//! The headings of a document, and all the lines that only look like headings.

use kept_documents::{Heading, Kind, outline, shorten};

/// The headings of `text`, each indented by its level.
fn of(kind: &Kind, text: &str) -> Vec<String> {
    let found = outline(text, kind);
    let first = |start: usize| text[start..].chars().next().expect("a character");
    for heading in &found {
        assert!(!first(heading.start).is_whitespace(), "{heading:?}");
        assert!(heading.title.chars().count() <= 120 && !heading.title.contains('\n'));
    }
    let indented = found.iter().map(|heading| {
        let indent = "  ".repeat(usize::from(heading.level) - 1);
        format!("{indent}{}", heading.title)
    });
    indented.collect()
}

fn prose(text: &str) -> Vec<String> {
    of(&Kind::PlainText, text)
}

fn none(text: &str) {
    assert_eq!(prose(text), Vec::<String>::new());
    assert_eq!(of(&Kind::Pdf, text), Vec::<String>::new());
}

const BODY: &str =
    "The keeper of the archive counts every page twice and writes the number in the margin.";

#[test]
fn markdown_headings_have_hashes_or_a_line_below() {
    let text = "---\ntitle: Keys\n---\n# The **archive** ##\n\nText.\n\n## [Doors](a.md) and `keys`\n\n```sh\n# no heading\n```\n\n\
        ~~~~\n# none\n~~~\n# none\n~~~~\n\nLoans\n=====\n\nTwo lines\nof a heading\n---\n\n- item\n---\n\n---\n\n\
        #hashtag\n\n    # code\n\n| a |\n|---|\n\n####### seven\n\n###### six\n\n#\n";
    let expected = [
        "The archive",
        "  Doors and keys",
        "Loans",
        "  Two lines",
        "          six",
    ];
    assert_eq!(of(&Kind::Markdown, text), expected);
    let crlf = text.replace('\n', "\r\n");
    assert_eq!(of(&Kind::Markdown, &crlf), expected);
    assert_eq!(of(&Kind::SourceCode, text), Vec::<String>::new());
}

#[test]
fn offsets_are_those_of_the_headings() {
    let text = "Voilà.\r\n\r\n  1. Schlüssel\r\n\r\nÜber Schlüssel.\r\n\r\n2. Türen\r\n\r\nÜber Türen.\r\n";
    let found = outline(text, &Kind::PlainText);
    let at = |words: &str| text.find(words).expect("a heading");
    let starts: Vec<usize> = found.iter().map(|heading| heading.start).collect();
    assert_eq!(starts, [at("1. S"), at("2. T")]);
    // Old Mac line ends.
    assert_eq!(
        prose(&text.replace("\r\n", "\r")),
        ["1. Schlüssel", "2. Türen"]
    );
}

#[test]
fn a_contract_has_numbered_sections() {
    let text = format!(
        "LEASE AGREEMENT\n\nbetween the archive and the keeper\n\n1. Rent\n{BODY}\n\n2. Term\n\n2.1 Beginning\n{BODY}\n\n\
         2.2 Notice period and return\nof the keys\n\n{BODY}\n\nThe keeper brings:\n\n1. the keys\n\n2. the lamp\n\n\
         3. Liability\n\nHere is what counts:\n\n1. Doors\n\n2. Windows\n\n{BODY}\n\n4. Final provisions\n{BODY}\n"
    );
    let expected = [
        "LEASE AGREEMENT",
        "1. Rent",
        "2. Term",
        "  2.1 Beginning",
        "  2.2 Notice period and return",
        "3. Liability",
        "4. Final provisions",
    ];
    assert_eq!(prose(&text), expected);
    assert_eq!(of(&Kind::Pdf, &text), expected);
    assert_eq!(
        of(&Kind::Markdown, &text),
        expected,
        "without marks of Markdown"
    );
}

#[test]
fn a_numbered_paragraph_can_begin_with_its_title() {
    let text = "RESIDENTIAL LEASE\n\n1. Premises. The Landlord lets to the Tenant the flat at 27 Harbour Lane,\nsecond floor.\n\n\
        2. Return of the keys. The Tenant returns all keys on the last day of the lease, without exception.\n\n\
        2.1 Copies. Copies of keys that the Tenant has made belong to the Landlord.\n\n\
        2.2 Lost keys. The Tenant pays for each lost key, and for the lock if need be.\n\n\
        3. Notice. Either party may end the lease with three months' notice.\n";
    let expected = [
        "RESIDENTIAL LEASE",
        "1. Premises",
        "2. Return of the keys",
        "  2.1 Copies",
        "  2.2 Lost keys",
        "3. Notice",
    ];
    assert_eq!(prose(text), expected);
    let law = "Section 1. Doors. Every door has a key, and the keeper has every key.\n\n\
        Section 2. Keys. The keeper lends a key only for a day, and in writing.\n";
    assert_eq!(prose(law), ["Section 1. Doors", "Section 2. Keys"]);
    none(
        "1. Turn the key. Then open the door, slowly and with care.\n\n2. Close it. The lamp must not go out in the wind.\n",
    );
    none(
        "1. Keeper, A. The lamp and the door, a history in letters.\n\n2. Keeper B. The door and the lamp, another history.\n",
    );
    none("1. Milk. Two litres of it, from the farm.\n2. Bread. One loaf, from the bakery.\n");
}

#[test]
fn a_law_has_words_with_numbers() {
    let text = format!(
        "PART ONE\nGeneral Provisions\n\nChapter II: Scope\n\n§ 1 Purpose\n{BODY}\n\n§ 1a\n{BODY}\n\nArt. 2 — Keepers\n{BODY}\n\n\
         The Second Part\n\n{BODY}\n\nPart Twenty-one\n\n{BODY}\n\nPart Twenty-two\n\n{BODY}\n\nBook the First--lights\n\n{BODY}\n\n\
         Appendix B: Forms\n\n{BODY}\n\nAbschnitt 3 Schluss\n\n{BODY}\n"
    );
    let expected = [
        "PART ONE: General Provisions",
        "  Chapter II: Scope",
        "    § 1 Purpose",
        "    § 1a",
        "      Art. 2 — Keepers",
        "The Second Part",
        "Part Twenty-one",
        "Part Twenty-two",
        "  Book the First--lights",
        "Appendix B: Forms",
        "  Abschnitt 3 Schluss",
    ];
    assert_eq!(prose(&text), expected);
}

#[test]
fn a_book_has_its_contents_page_left_out() {
    let chapters = ["The Door", "A Key Is Lost", "The Keeper’s Lamp"];
    let listed: String = (chapters.iter().zip(["I", "II", "III"]))
        .map(|(title, number)| format!("CHAPTER {number}. {title}\n\n"))
        .collect();
    let told: String = (chapters.iter().zip(["I", "II", "III"]))
        .map(|(title, number)| format!("CHAPTER {number}.\n\n{title}\n\n{BODY}\n\n“No!”\n\n"))
        .collect();
    let text = format!("THE ARCHIVE\n\nContents\n\n{listed}PREFACE\n\n{BODY}\n\n{told}THE END\n");
    let expected = [
        "THE ARCHIVE",
        "PREFACE",
        "CHAPTER I. The Door",
        "CHAPTER II. A Key Is Lost",
        "CHAPTER III. The Keeper’s Lamp",
    ];
    assert_eq!(prose(&text), expected);
    // Titles without numbers are known from the contents page, with or without page numbers.
    for gap in ["", " . . . . . 12", "........ 7", "\t104", " 12"] {
        let listed: String = (chapters.iter())
            .map(|title| format!("{title}{gap}\n"))
            .collect();
        let told: String = (chapters.iter())
            .map(|title| format!("{title}\n\n{BODY}\n\n"))
            .collect();
        let text = format!("Contents\n\n{listed}\n{told}");
        assert_eq!(of(&Kind::Pdf, &text), chapters, "{gap:?}");
    }
}

#[test]
fn lone_numbers_are_chapters_only_in_a_row_and_with_titles() {
    let chapters: String = (["The Door", "A Key", "Lamps"].iter().zip(1..))
        .map(|(title, number)| format!("{number}\n\n{title}\n\n{BODY}\n\n"))
        .collect();
    assert_eq!(prose(&chapters), ["1. The Door", "2. A Key", "3. Lamps"]);
    assert_eq!(
        of(&Kind::Pdf, &chapters),
        Vec::<String>::new(),
        "page numbers"
    );
    let roman = format!("I\n\n{BODY}\n\nII\n\n{BODY}\n\nIII. Lamps\n\n{BODY}\n");
    assert_eq!(prose(&roman), ["I", "II", "III. Lamps"]);
    none(&format!(
        "{BODY}\n\n1984\n\n{BODY}\n\n1985\n\n{BODY}\n\n12\n\n{BODY}\n\nX\n\n{BODY}\n"
    ));
}

#[test]
fn running_headers_are_no_headings() {
    let page = |number: usize, section: &str| {
        format!("THE ARCHIVE\n\n{section}\n\n{BODY}\n{BODY}\n\n{number}\n\n")
    };
    let sections = [
        "Chapter 1 Doors",
        "Chapter 1 Doors",
        "Chapter 2 Keys",
        "Chapter 2 Keys",
    ];
    let text: String = (sections.iter().zip(1..))
        .map(|(section, number)| page(number, section))
        .collect();
    assert_eq!(of(&Kind::Pdf, &text), ["Chapter 1 Doors", "Chapter 2 Keys"]);
    let numbered: String = (1..=6)
        .map(|number| format!("ANNUAL REPORT {number}\n\n{BODY}\n\n"))
        .collect();
    none(&numbered);
    // The same number in another book is another chapter.
    let books: String = (["BOOK ONE", "BOOK TWO", "BOOK THREE", "BOOK FOUR"].iter())
        .map(|book| format!("{book}\n\nCHAPTER I\n\n{BODY}\n\n"))
        .collect();
    assert_eq!(prose(&books).len(), 8);
}

#[test]
fn lists_are_no_headings() {
    none("We need:\n\n1. Milk\n2. Bread\n3. Eggs\n\nand nothing else.\n");
    none("We need:\n\n1. Milk\n\n2. Bread\n\n3. Eggs\n\nand nothing else.\n");
    none(&format!("1. {BODY}\n\n2. {BODY}\n\n3. {BODY}\n"));
    none("I. Milk\nII. Bread\nIII. Eggs\n");
    none("1. Turn the key. Then open\n\nthe door slowly.\n\n2. Close it. Go away\n\nat once.\n");
    none(
        "1. The keeper opens the door and then\nlooks at the lamp, which is old.\n\n2. The keeper closes the\ndoor, at last.\n",
    );
}

#[test]
fn tables_prices_and_logs_are_no_headings() {
    none(
        "PRICES\n3 Apples 1.20\n12 Pears 3.50\n\n1.50 Apples\n\n2.00 Pears\n\n10.30 Coffee\n\n12 Lamps\n",
    );
    none("APPLES   1.20\n\nPEARS\t3.50\n\nLAMPS ........ 12.00\n\nTOTAL   16.70\n");
    none(
        "2024-01-02 12:00:01 INFO Opened\n\n12:00:02 ERROR CLOSED\n\nERROR 17: NO KEY!\n\n[WARN] DOOR OPEN\n",
    );
    none("Year\tVolumes\n1901\t12\n1902\t15\n\n1 Introduction 3\n2 Method 7\n3 Results 12\n");
    none("HX-12/44 B7\n\nABC\n\nA1B2-C3D4-9\n\n*****\n\n----\n\n- 12 -\n");
}

#[test]
fn letters_poems_and_shouting_are_no_headings() {
    none(
        "DEAR MADAM,\n\nI write about the key.\n\nYours,\n\nW. J. KEEPER\n\nLONDON, 1901\n\nR.W.\n\nA. KEEPER.\n",
    );
    none(
        "The lamp is out,\nThe door is shut,\n\nI wait alone\nAnd count the keys.\n\nNO LIGHT,\nNO KEY\n",
    );
    let shout =
        "NOBODY OPENS THE DOOR AT NIGHT AND NOBODY TAKES THE LAMP OUT OF THE ARCHIVE EVER AGAIN.";
    none(&format!(
        "{shout}\n\n{shout}\n\nCLOSE THE DOOR\nAND TAKE THE KEY\n\nSTOP\n\n{shout}\n\nWHO IS THERE?\n\n{shout}\n"
    ));
    none(
        "Part 2 of the form is empty.\n\nChapter 4 describes the lamp.\n\nArticle 5, second sentence\n\nSection 3 applies.\n",
    );
    none("I went home\n\n“I.”\n\nC. Keeper wrote it.\n\nAct now\n\nPart of the door\n");
}

#[test]
fn a_page_break_begins_a_heading() {
    let text = format!("{BODY}\n\u{c}Chapter 1\n\n{BODY}\n\u{c}Chapter 2\n\n{BODY}\n");
    assert_eq!(prose(&text), ["Chapter 1", "Chapter 2"]);
}

#[test]
fn underlined_titles_and_hashes_are_headings_in_plain_text_too() {
    let text = format!(
        "Doors\n=====\n\n{BODY}\n\nKeys\n----\n{BODY}\n\n### Lamps\n\n{BODY}\n\nSTOP\n\nApples 3\nPears 2\n----\n"
    );
    assert_eq!(prose(&text), ["Doors", "  Keys", "    Lamps"]);
}

#[test]
fn a_heading_has_a_name_without_its_number() {
    let name = |title: &str| {
        let heading = Heading {
            level: 1,
            title: title.to_owned(),
            start: 0,
        };
        heading.name().to_owned()
    };
    for title in [
        "3.2 Notice period",
        "§ 4 Notice period",
        "IV: Notice period",
        "Chapter Two. Notice period",
        "Notice period",
    ] {
        assert_eq!(name(title), "Notice period", "{title}");
    }
    assert_eq!(name("Chapter 4"), "");
}

#[test]
fn an_outline_is_short() {
    let sections: String = (1..=40)
        .map(|chapter| {
            let parts: String = (1..=20)
                .map(|part| format!("{chapter}.{part} Part\n\n{BODY}\n\n"))
                .collect();
            format!("{chapter} Chapter\n\n{parts}")
        })
        .collect();
    assert_eq!(outline(&sections, &Kind::Pdf).len(), 40, "one level less");
    let many: String = (1..=900)
        .map(|n| format!("Section {n}\n\n{BODY}\n\n"))
        .collect();
    assert_eq!(outline(&many, &Kind::Pdf).len(), 500);
    let long = format!("# {}\n", "word ".repeat(100));
    let title = &outline(&long, &Kind::Markdown)[0].title;
    assert_eq!((title.chars().count(), title.ends_with('…')), (120, true));
    assert_eq!(prose(""), Vec::<String>::new());
    // The names of joined documents stay.
    let joined = (0..600).map(|i| Heading {
        level: u8::from(i % 300 > 0),
        title: "Door".to_owned(),
        start: i,
    });
    let starts: Vec<usize> = (shorten(joined.collect()).iter())
        .map(|heading| heading.start)
        .collect();
    assert_eq!(starts, [0, 300]);
}
