//! PDFs: text and pages of valid files, one error message for each other file, and no panic or hang for any.

use std::fs;
use std::path::{Path, PathBuf};

use kept_documents::{Document, Why};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

fn open(name: &str) -> Document {
    let document = Document::open(&fixture(name)).unwrap_or_else(|e| panic!("{e}"));
    check(&document);
    document
}

/// Pages cover the text in order and without gaps, on character boundaries.
fn check(document: &Document) {
    let mut end = 0;
    for (i, page) in document.pages.iter().enumerate() {
        assert_eq!(page.number as usize, i + 1);
        assert_eq!(page.range.start, end);
        assert!(document.text.get(page.range.clone()).is_some());
        for byte in page.range.clone() {
            assert_eq!(document.page_of(byte), Some(page.number));
        }
        end = page.range.end;
    }
    assert_eq!(end, document.text.len());
    assert_eq!(document.page_of(end), None);
}

const PLAIN: &str =
    "The keeper of the archive counts every page twice.\nShe writes the number in the margin.";

#[test]
fn one_page_gives_its_text() {
    assert_eq!(open("plain.pdf").text, PLAIN);
}

#[test]
fn pages_have_their_text_and_ranges() {
    let document = open("pages.pdf");
    assert_eq!(document.pages.len(), 3);
    assert!(document.unread_pages.is_empty());
    let page = |i: usize| &document.text[document.pages[i].range.clone()];
    assert_eq!(page(0), format!("{PLAIN}\n\n"));
    assert_eq!(
        page(1),
        "L’été dernier, la gardienne a relié les cahiers à la main.\nC’était très soigné, déjà un chef-d’œuvre.\n\n"
    );
    assert_eq!(
        page(2),
        "Die Wärterin zählt jede Seite zweimal.\nÜbung macht müde, sagt sie, und schließt die Tür."
    );
    let byte = document.text.find("soigné").unwrap();
    assert_eq!(document.page_of(byte), Some(2));
    assert_eq!(
        &document.text[document.passage_at(byte)],
        "C’était très soigné, déjà un chef-d’œuvre."
    );
}

#[test]
fn unicode_and_ligatures_are_decoded() {
    let text = open("unicode.pdf").text;
    for line in [
        "Потом она закрывает тяжёлую дверь архива.",
        "Ο φύλακας μετρά κάθε σελίδα.",
        "Efficient files flow through the office.",
        "x² ≤ 3 €",
    ] {
        assert!(text.lines().any(|l| l == line), "no {line:?} in {text:?}");
    }
}

#[test]
fn gaps_between_glyphs_become_spaces() {
    assert_eq!(
        open("gaps.pdf").text,
        "The keeper waits for AVA.\nShe reads on."
    );
}

#[test]
fn wide_letter_spacing_separates_words() {
    assert_eq!(open("letter-spacing.pdf").text, "SPACED\none, two, three");
}

#[test]
fn accents_join_their_letters() {
    assert_eq!(open("accents.pdf").text, "école, über, façade, `a`");
}

#[test]
fn a_font_without_widths_keeps_double_letters() {
    assert_eq!(open("no-widths.pdf").text, "A lattice, `all` correct.");
}

#[test]
fn a_file_without_its_end_is_read() {
    for name in ["pages.pdf", "columns.pdf", "headings.pdf"] {
        let whole = fs::read(fixture(name)).unwrap();
        let text = open(name).text;
        let last = |mark: &[u8]| whole.windows(mark.len()).rposition(|w| w == mark).unwrap();
        let wrong_place = [&whole[..last(b"startxref")], b"startxref\n5\n%%EOF\n"].concat();
        for damaged in [
            &whole[..last(b"startxref")],
            &whole[..last(b"trailer")],
            &whole[..last(b"\nxref") + 9],
            &wrong_place,
        ] {
            let read = Document::from_bytes(name.to_owned(), damaged.to_vec());
            let read = read.unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(read.text, text, "{name}, {} bytes", damaged.len());
            check(&read);
        }
        // What is cut off in the middle is read as far as it goes, or refused.
        for end in (whole.len() / 2..whole.len()).step_by(997) {
            let _ = Document::from_bytes(name.to_owned(), whole[..end].to_vec());
        }
    }
}

#[test]
fn pages_that_are_cut_off_are_named() {
    let page = |number: usize| {
        format!(
            "{number} 0 obj\n<< /Type /Page /Parent 2 0 R /Contents {} 0 R /Resources << /Font << /F1 3 0 R >> >> >>\nendobj\n\
             {} 0 obj\n<< /Length 50 >>\nstream\nBT /F1 12 Tf 50 500 Td (A page of the file.) Tj ET\nendstream\nendobj\n",
            number + 1,
            number + 1
        )
    };
    let head = "%PDF-1.7\n1 0 obj\n<< /Type /Catalog /Pages 2 0 R >>\nendobj\n\
        2 0 obj\n<< /Type /Pages /Kids [4 0 R 6 0 R 8 0 R] /Count 3 >>\nendobj\n\
        3 0 obj\n<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>\nendobj\n";
    let cut = format!("{head}{}8 0 obj\n<< /Type /Pa", page(4) + &page(6));
    let read = Document::from_bytes("cut.pdf", cut.into_bytes()).expect("two pages");
    assert_eq!((read.pages.len(), read.unread_pages), (3, vec![3]));
    assert_eq!(
        read.text.trim(),
        "A page of the file.\n\nA page of the file."
    );
}

#[test]
fn fonts_with_predefined_cmaps_are_read() {
    let document = open("predefined-cmaps.pdf");
    let [first, second] = &document.pages[..] else {
        panic!("two pages")
    };
    let first = &document.text[first.range.clone()];
    for line in [
        "The code is 4417.",
        "管理员 counts 四千",
        "每一页都数两遍 twice",
        "司書はﾍﾟｰｼﾞ count",
        "毎日数える",
        "重い扉",
        "沉重的大門",
        "기록을 센다",
        "書庫の鍵",
    ] {
        assert!(first.lines().any(|found| found == line), "{line}: {first}");
    }
    assert_eq!(&document.text[second.range.clone()], "書庫の鍵");
    assert_eq!(document.unread_pages, [] as [u32; 0]);
}

#[test]
fn columns_are_read_in_order() {
    let document = open("columns.pdf");
    let words = document
        .text
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    let left = words
        .find("In the left column the keeper describes how the archive was built: slowly, by hand")
        .unwrap();
    let right = words.find("The right column follows it. Here the story goes on, in lines that are stretched to both margins").unwrap();
    assert!(left < words.find("Every shelf was measured twice.").unwrap());
    assert!(words.find("Every shelf").unwrap() < right, "{words}");
}

/// Level, title, and the line at its place.
fn headings(name: &str) -> Vec<(u8, String, String)> {
    let document = open(name);
    let line = |start: usize| document.text[start..].lines().next().unwrap().to_owned();
    let found = document.outline(&document.text).into_iter();
    found
        .map(|heading| (heading.level, heading.title, line(heading.start)))
        .collect()
}

const BOOK: [(u8, &str, &str); 6] = [
    (1, "The Keeper of the Archive", "The Keeper of the Archive"),
    (2, "1 The shelves", "1 The shelves"),
    (3, "How they were measured", "How they were measured"),
    (
        2,
        "2 A second story of the house that the keeper wrote down in the winter",
        "2 A second story of the house that the keeper wrote down",
    ),
    (3, "What the mason said", "What the mason said"),
    (2, "Notes", "Notes"),
];

/// The running head in the largest letters and the authors below the title are no headings.
#[test]
fn lines_in_larger_letters_are_headings() {
    let expected = BOOK.map(|(level, title, line)| (level, title.to_owned(), line.to_owned()));
    assert_eq!(headings("headings.pdf"), expected);
}

/// A bookmark leads to the line with its title, also after a number, or to its page.
#[test]
fn bookmarks_are_headings() {
    for name in ["bookmarks.pdf", "bookmarks-circle.pdf"] {
        let found = headings(name);
        let titles: Vec<_> = found
            .iter()
            .map(|(level, title, _)| (*level, title.as_str()))
            .collect();
        let expected = BOOK.map(|(level, title, _)| match title {
            "1 The shelves" => (level, "The shelves"),
            "What the mason said" => (level, "An entry that no line has"),
            title => (level, title),
        });
        assert_eq!(titles, expected, "{name}");
        for ((_, title, line), (_, _, own)) in found.iter().zip(BOOK) {
            assert!(
                line == own || title == "An entry that no line has",
                "{name}: {line}"
            );
        }
    }
}

#[test]
fn tables_are_written_by_rows() {
    assert_eq!(
        open("table.pdf").text,
        "Year | Volumes | Pages\n1901 | 12 | 3400\n1902 | 15 | 4100"
    );
    let document = open("tables.pdf");
    let [tables, others, two] = [0, 1, 2].map(|i| &document.text[document.pages[i].range.clone()]);
    let expected = "\
Sold by the archive
 | 2021 | 2022 | 2023
Lamp oil | 1,204 |  | 1,310
Candles and wicks | 987 | 1,020 | 1,111
Keys |  | 455 | 502
Total | 2,191 | 1,475 | 2,923

Who | What | By when
The keeper | Count every page in all of the rooms, and write down the encyclopedia. | the last day of a month
The mason | Mend the wall.
The deputy keeper | Carry the lamps, oil and wicks down the stairs. | each evening at six

Bolt | 12 | 0.40 | 4.80
Nut |  | 0.20 | 2.40
Washer | 100 | 0.05 | 5.00";
    assert_eq!(tables.trim_end(), expected);
    // A line between two tables is in neither, and each has its own columns.
    let expected = "\
Part | Mason | Date | Payer | Sum
Tower | Carrow | 15 June | Parish | 18,250
Stair | Whitby | 1 July | Archive | 7,980
Charges
Year | Budget | Share
2023 | 14,200 | 5,396
2024 | 14,900 | 5,662";
    assert_eq!(two.trim_end(), expected);
    // A source is the whole row.
    for (at, row) in [
        ("1,310", "Lamp oil | 1,204 |  | 1,310"),
        ("wall", "The mason | Mend the wall."),
    ] {
        let at = document.text.find(at).unwrap();
        assert_eq!(&document.text[document.passage_at(at)], row);
    }
    // Neither lists nor contents are tables.
    assert!(!others.contains('|'), "{others}");
    assert!(others.contains("• Leave the lamp."), "{others}");
}

#[test]
fn every_text_operator_is_read() {
    let text = open("operators.pdf").text;
    let lines: Vec<&str> = text.lines().filter(|l| !l.is_empty()).collect();
    assert_eq!(
        lines,
        ["First line", "Second line", "Third line", "Inside a form"]
    );
}

#[test]
fn defects_outside_the_text_keep_the_text() {
    for name in [
        "odd-colours.pdf",
        "self-drawing-form.pdf",
        "deep.pdf",
        "empty-part.pdf",
    ] {
        assert_eq!(open(name).text, "A single honest sentence.", "{name}");
    }
    assert_eq!(open("no-font.pdf").text, "Found again.");
}

#[test]
fn fields_of_a_form_are_read_behind_their_labels() {
    let text = open("filled-form.pdf").text;
    let lines: Vec<&str> = text.lines().filter(|l| !l.is_empty()).collect();
    assert_eq!(
        lines,
        [
            "Tenant: | Anna Quill",
            "Deposit: | 2,340 euros",
            "Place of the meter",
            "In the cellar",
            "Signed | Paid in May",
            "Town: | Łódź",
            "Notes: | The key is lost. A new one comes.",
            "Code:",
            "[x] married\t[ ] single",
            "[ ]"
        ]
    );
}

#[test]
fn forms_are_drawn_in_their_place_with_their_own_fonts() {
    let text = open("placed-form.pdf").text;
    let mut words: Vec<&str> = text.split_whitespace().collect();
    words.retain(|&word| word != "|");
    assert_eq!(words, ["Rent:", "940", "Flat:", "940"], "{text}");
}

#[test]
fn odd_maps_to_unicode_lose_only_what_they_do_not_say() {
    let text = open("odd-maps.pdf").text;
    let lines: Vec<&str> = text.lines().filter(|l| !l.is_empty()).collect();
    assert_eq!(lines, ["\u{1f600}BX", "abc", "ABC", "ABC", "X C"]);
}

#[test]
fn widths_of_ranges_keep_words_apart() {
    assert_eq!(open("width-ranges.pdf").text, "42 3");
}

#[test]
fn an_empty_password_is_tried() {
    for name in [
        "empty-password-rc4.pdf",
        "empty-password-aes128.pdf",
        "empty-password-aes256.pdf",
    ] {
        assert_eq!(open(name).text, PLAIN, "{name}");
    }
}

#[test]
fn a_password_opens_a_pdf() {
    let open = |name: &str, password| Document::open_with(&fixture(name), name, password);
    for (name, password) in [
        ("password.pdf", "open sesame"),
        ("password.pdf", "the owner's"),
        ("password-rc4.pdf", "open sesame"),
        ("empty-password-rc4.pdf", "not needed"),
    ] {
        let opened = open(name, Some(password)).expect("it opens");
        assert_eq!(opened.text, PLAIN, "{name}");
    }
    for name in ["password.pdf", "password-rc4.pdf"] {
        let wrong = open(name, Some("Open Sesame")).expect_err("another password");
        assert!(matches!(wrong.why, Why::PdfPassword), "{wrong}");
    }
    // Where none is needed, none is checked.
    assert_eq!(open("plain.pdf", Some("x")).expect("a PDF").text, PLAIN);
}

#[test]
fn each_fault_has_its_error() {
    let error = |name: &str| Document::open(&fixture(name)).unwrap_err();
    for name in ["password.pdf", "password-rc4.pdf"] {
        assert!(
            matches!(error(name).why, Why::PdfEncrypted),
            "{}",
            error(name)
        );
    }
    let scanned = error("scanned.pdf");
    assert!(
        matches!(scanned.why, Why::PdfWithoutText { pages: 2 }),
        "{scanned}"
    );
    assert!(scanned.to_string().contains("2 pages") && scanned.to_string().contains("ocrmypdf"));
    // The last PDF has no fonts for its text, because its page tree is cyclic.
    for name in [
        "garbage.pdf",
        "zero-pages.pdf",
        "recursive-pages.pdf",
        "bomb.pdf",
        "huge-length.pdf",
        "negative-length.pdf",
        "recursive-parents.pdf",
    ] {
        assert!(
            matches!(error(name).why, Why::PdfBroken { .. }),
            "{}",
            error(name)
        );
    }
    let named = Document::from_bytes("a.pdf", b"only words".to_vec());
    assert!(
        named.is_err(),
        "a file that is no PDF must not pass for one"
    );
}

#[test]
fn truncated_files_never_panic() {
    for name in ["plain.pdf", "pages.pdf", "empty-password-aes256.pdf"] {
        let bytes = fs::read(fixture(name)).unwrap();
        for cut in (0..bytes.len()).step_by(1 + bytes.len() / 40) {
            if let Ok(document) = Document::from_bytes(name, bytes[..cut].to_vec()) {
                check(&document);
            }
        }
    }
}

#[test]
fn a_table_without_its_first_entry_makes_no_page_its_own_form() {
    let stream = |keys: &str, text: &str| {
        format!("<<{keys}/Length {}>>stream\n{text}\nendstream", text.len())
    };
    let objects = [
        "<</Type/Catalog/Pages 2 0 R>>".to_owned(),
        "<</Type/Pages/Kids[3 0 R]/Count 1>>".to_owned(),
        "<</Type/Page/Parent 2 0 R/Contents 4 0 R/Resources<</Font<</F 5 0 R>>/XObject<</X 6 0 R>>>>>>".to_owned(),
        stream("", "BT /F 12 Tf 50 500 Td (On the page) Tj ET /X Do"),
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>".to_owned(),
        stream("/Type/XObject/Subtype/Form", "BT /F 12 Tf 50 300 Td (In a form) Tj ET"),
    ];
    // Counted from 0, as the entry of the free object is missing: the last object has a number that looks free.
    let (mut pdf, mut table) = ("%PDF-1.7\n".to_owned(), "xref\n0 6\n".to_owned());
    for (number, object) in (1..).zip(objects) {
        table += &format!("{:010} 00000 n \n", pdf.len());
        pdf += &format!("{number} 0 obj\n{object}\nendobj\n");
    }
    let start = pdf.len();
    pdf += &format!("{table}trailer<</Size 7/Root 1 0 R>>\nstartxref\n{start}\n%%EOF");
    let document = Document::from_bytes("a.pdf", pdf.into_bytes()).expect("a page");
    check(&document);
    assert_eq!(document.text, "On the page\n\nIn a form");
}

#[test]
fn flipped_bytes_never_panic_or_hang() {
    let mut state = 1_u64;
    let mut random = |below: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let mut opened = 0;
    for name in [
        "plain.pdf",
        "pages.pdf",
        "unicode.pdf",
        "operators.pdf",
        "gaps.pdf",
        "empty-password-rc4.pdf",
        "table.pdf",
    ] {
        let whole = fs::read(fixture(name)).unwrap();
        for _ in 0..60 {
            let mut bytes = whole.clone();
            for _ in 0..1 + random(6) {
                let at = random(bytes.len());
                bytes[at] ^= 1 << random(8);
            }
            match Document::from_bytes(name, bytes) {
                Ok(document) => {
                    check(&document);
                    opened += 1;
                }
                Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
            }
        }
    }
    println!("{opened} of 420 still opened");
}
