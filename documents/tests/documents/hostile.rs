//! Damaged and malicious documents: an answer in bounded time, and no panic.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use kept_documents::{Document, DocumentError, MAX_SOURCE_BYTES, Why};
use zip::write::{SimpleFileOptions, ZipWriter};

const NAMES: &[&str] = &[
    "report.docx",
    "contract.docx",
    "slides.pptx",
    "book.xlsx",
    "strings.xlsx",
    "report.odt",
    "contract.odt",
    "book.ods",
    "slides.odp",
    "book.epub",
    "page.html",
    "plain.eml",
    "web.eml",
    "film.srt",
    "film.vtt",
];

fn fixture(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    std::fs::read(folder.join(name)).expect("a fixture")
}

fn pack(parts: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, content) in parts {
        archive
            .start_file(*name, SimpleFileOptions::default())
            .expect("a part");
        archive.write_all(content).expect("bytes");
    }
    archive.finish().expect("an archive").into_inner()
}

/// The parts of an archive.
fn unpack(bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut archive = zip::ZipArchive::new(std::io::Cursor::new(bytes)).expect("an archive");
    (0..archive.len())
        .map(|i| {
            let mut file = archive.by_index(i).expect("a part");
            let mut content = Vec::new();
            std::io::Read::read_to_end(&mut file, &mut content).expect("bytes");
            (file.name().expect("a name").into_owned(), content)
        })
        .collect()
}

fn docx(document: &[u8]) -> Vec<u8> {
    pack(&[
        ("[Content_Types].xml", b"<Types/>"),
        ("word/document.xml", document),
    ])
}

fn open(name: &str, bytes: Vec<u8>) -> Result<Document, DocumentError> {
    let start = Instant::now();
    let result = Document::from_bytes(name, bytes);
    assert!(
        start.elapsed() < Duration::from_secs(60),
        "{name}: {:?}",
        start.elapsed()
    );
    if let Ok(document) = &result {
        for page in &document.pages {
            assert!(document.text.get(page.range.clone()).is_some(), "{name}");
        }
    }
    result
}

/// Numbers that differ each time and are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as usize % limit.max(1)
    }

    /// Damages some bytes, or cuts the end off.
    fn damage(&mut self, bytes: &mut Vec<u8>) {
        match self.below(4) {
            0 => bytes.truncate(self.below(bytes.len())),
            1 => {
                let (at, other) = (self.below(bytes.len()), self.below(bytes.len()));
                let length = self.below(40).min(bytes.len() - at.max(other));
                bytes.copy_within(other..other + length, at);
            }
            _ => {
                for _ in 0..=self.below(8) {
                    let at = self.below(bytes.len());
                    bytes[at] ^= 1 << self.below(8);
                }
            }
        }
    }
}

#[test]
fn damaged_files_open_or_do_not() {
    let mut numbers = Numbers(1);
    let mut opened = 0;
    for name in NAMES {
        let whole = fixture(name);
        for _ in 0..150 {
            let mut bytes = whole.clone();
            numbers.damage(&mut bytes);
            opened += usize::from(open(name, bytes).is_ok());
        }
        for cut in 0..64.min(whole.len()) {
            let _ = open(name, whole[..cut].to_vec());
        }
    }
    println!("{opened} damaged files opened");
}

/// The checksums of an archive hide its parts from damage, so the parts are damaged before they are packed.
#[test]
fn damaged_parts_open_or_do_not() {
    let mut numbers = Numbers(2);
    let mut opened = 0;
    for name in NAMES.iter().filter(|name| fixture(name).starts_with(b"PK")) {
        let parts = unpack(&fixture(name));
        let texts: Vec<usize> = (0..parts.len())
            .filter(|&i| !parts[i].0.contains("ayout") && !parts[i].1.is_empty())
            .collect();
        for _ in 0..150 {
            let mut damaged = parts.clone();
            let part = texts[numbers.below(texts.len())];
            numbers.damage(&mut damaged[part].1);
            let parts: Vec<(&str, &[u8])> = (damaged.iter())
                .map(|(name, content)| (name.as_str(), content.as_slice()))
                .collect();
            opened += usize::from(open(name, pack(&parts)).is_ok());
        }
    }
    println!("{opened} documents with damaged parts opened");
}

#[test]
fn a_bomb_is_an_error() {
    // Three parts of 200 MB of spaces: few bytes in the archive, more than the limit when unpacked.
    let blank = vec![b' '; 200 << 20];
    let relations = b"<Relationships><Relationship Id='1' Type='/styles' Target='s.xml'/>\
        <Relationship Id='2' Type='/numbering' Target='n.xml'/></Relationships>";
    let bomb = pack(&[
        ("[Content_Types].xml", b"<Types/>"),
        ("word/document.xml", b"<document><body/></document>"),
        ("word/_rels/document.xml.rels", relations),
        ("word/s.xml", &blank),
        ("word/n.xml", &[&blank[..], &blank[..]].concat()),
    ]);
    assert!(bomb.len() < 1 << 20);
    let result = open("bomb.docx", bomb);
    assert!(
        matches!(&result, Err(e) if matches!(e.why, Why::TooMuchText { limit: MAX_SOURCE_BYTES })),
        "{result:?}"
    );
}

#[test]
fn entities_and_depth_are_limited() {
    let laughs = b"<!DOCTYPE d [<!ENTITY a 'ha'><!ENTITY b '&a;&a;&a;&a;'>]><document><body><p><r><t>&b;</t></r></p></body></document>";
    let document = open("laughs.docx", docx(laughs)).expect("a document");
    assert_eq!(document.text, "&b;\n");
    let external = b"<!DOCTYPE d [<!ENTITY x SYSTEM 'file:///etc/passwd'>]><document><body><p><r><t>&x;</t></r></p></body></document>";
    assert_eq!(
        open("x.docx", docx(external)).expect("a document").text,
        "&x;\n"
    );
    for name in ["p", "tbl", "sdt", "ins", "r", "txbxContent"] {
        let deep = format!("<document><body>{}", format!("<{name}>").repeat(500_000));
        let result = open("deep.docx", docx(deep.as_bytes()));
        assert!(
            matches!(&result, Err(e) if matches!(e.why, Why::Damaged { .. })),
            "{result:?}"
        );
    }
}

#[test]
fn sparse_and_repeated_cells_are_limited() {
    let ods = |content: String| {
        let content = format!(
            "<document-content><body><spreadsheet><table name='A'>{content}</table></spreadsheet></body></document-content>"
        );
        let mimetype: &[u8] = b"application/vnd.oasis.opendocument.spreadsheet";
        pack(&[("mimetype", mimetype), ("content.xml", content.as_bytes())])
    };
    let cell = "<table-cell number-columns-repeated='1000000000'><p>x</p></table-cell>";
    let row =
        |cells: &str| format!("<table-row number-rows-repeated='1000000000'>{cells}</table-row>");
    let result = open("full.ods", ods(row(cell)));
    assert!(
        matches!(&result, Err(e) if matches!(e.why, Why::TooMuchText { .. })),
        "{result:?}"
    );
    let result = open("many.ods", ods(row(&cell.repeat(3000))));
    assert!(result.is_err(), "{result:?}");
    let empty = row("<table-cell number-columns-repeated='18446744073709551615'/>");
    let words = "<table-row><table-cell><p>words</p></table-cell></table-row>";
    let document = open("empty.ods", ods(empty.repeat(1000) + words)).expect("a document");
    assert_eq!(document.text, "# A\n\nwords\n");

    let rows: String = (1..20_000)
        .map(|row| {
            format!("<row><c r='XFD{row}'><v>{row}</v></c><c r='ZZZZZZZZZ{row}'><v>9</v></c></row>")
        })
        .collect();
    // A program that does not calculate writes formulas without values.
    let formula = "<row><c r='XFC1' t='str'><f>A1</f><v></v></c><c r='XFD1'><f>SUM(A1:A9)</f><v></v></c></row>";
    let sheet = format!("<worksheet><sheetData>{rows}{formula}</sheetData></worksheet>");
    let relations: &[u8] =
        b"<Relationships><Relationship Id='1' Type='/worksheet' Target='s.xml'/></Relationships>";
    let xlsx = pack(&[
        ("[Content_Types].xml", b"<Types/>"),
        (
            "xl/workbook.xml",
            b"<workbook><sheets><sheet name='A' r:id='1'/></sheets></workbook>",
        ),
        ("xl/_rels/workbook.xml.rels", relations),
        ("xl/s.xml", sheet.as_bytes()),
    ]);
    let document = open("sparse.xlsx", xlsx).expect("a document");
    assert!(document.text.starts_with("# A\n\n1\n2\n3\n"));
    assert!(document.text.ends_with("\n19999\n=SUM(A1:A9)\n"));
}

#[test]
fn long_and_nested_markup_takes_linear_time() {
    let pages = [
        "<div>".repeat(1_000_000),
        "<table><tr><td>x".repeat(300_000),
        "<ul><li>x".repeat(300_000),
        "<blockquote>x".repeat(300_000),
        "<b><i><a>".repeat(300_000) + "x",
        "<p title=\"".repeat(300_000),
        "&amp".repeat(1_000_000),
        "<ruby>x<rt>".repeat(300_000),
        "<!--".repeat(500_000),
        "<svg>".repeat(500_000),
    ];
    for page in pages {
        let _ = open("page.html", page.into_bytes());
    }
    let parts = "--x\r\nContent-Type: multipart/mixed; boundary=x\r\n\r\n".repeat(20_000);
    let mail = format!("From: a@b.c\r\nContent-Type: multipart/mixed; boundary=x\r\n\r\n{parts}");
    let _ = open("a.eml", mail.into_bytes());
    let nested = "Content-Type: message/rfc822\r\n\r\n".repeat(50_000);
    let _ = open("a.eml", format!("From: a@b.c\r\n{nested}x").into_bytes());
    let _ = open(
        "a.eml",
        format!("From: {}", "a@b.c, ".repeat(300_000)).into_bytes(),
    );
    let _ = open(
        "a.srt",
        "00:00:01,000 --> 99999999999999999999:00:00\nx\n"
            .repeat(200_000)
            .into_bytes(),
    );
    let _ = open(
        "a.srt",
        format!("00:00:01,000 --> 00:00:02,000\n{}", "<a".repeat(300_000)).into_bytes(),
    );
}
