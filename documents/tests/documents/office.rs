//! Office files, books, web pages, e-mails and subtitles: the text that a reader sees.

use std::io::Write;
use std::path::{Path, PathBuf};

use kept_documents::{Document, DocumentError, Format, Kind, outline};

const FIXTURES: &[(&str, Format)] = &[
    ("report.docx", Format::Docx),
    ("contract.docx", Format::Docx),
    ("slides.pptx", Format::Pptx),
    ("book.xlsx", Format::Xlsx),
    ("strings.xlsx", Format::Xlsx),
    ("report.odt", Format::Odt),
    ("contract.odt", Format::Odt),
    ("book.ods", Format::Ods),
    ("slides.odp", Format::Odp),
    ("book.epub", Format::Epub),
    ("page.html", Format::Html),
    ("plain.eml", Format::Email),
    ("web.eml", Format::Email),
    ("film.srt", Format::Subtitles),
    ("film.vtt", Format::Subtitles),
];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

#[test]
fn every_fixture_has_the_text_that_a_reader_sees() {
    let mut wrong = Vec::new();
    for (name, format) in FIXTURES {
        let document = Document::open(&fixture(name)).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(document.kind, Kind::Extracted { format: *format }, "{name}");
        let expected = std::fs::read_to_string(fixture(&format!("{name}.expected"))).unwrap();
        if document.text != expected {
            println!("==== {name}\n{}\n---- expected\n{expected}", document.text);
            wrong.push(name);
        }
        // Pages tile the text.
        let mut end = 0;
        for (page, number) in document.pages.iter().zip(1..) {
            assert_eq!((page.number, page.range.start), (number, end), "{name}");
            end = page.range.end;
        }
        assert!(document.pages.is_empty() || end == document.text.len());
    }
    assert_eq!(wrong, Vec::<&&str>::new());
}

fn from(name: &str, bytes: &[u8]) -> Result<Document, DocumentError> {
    Document::from_bytes(name, bytes.to_vec())
}

fn said(result: Result<Document, DocumentError>) -> String {
    result.expect_err("this file must not open").to_string()
}

fn of_html(html: &str) -> String {
    from("a.html", html.as_bytes()).expect("a page").text
}

#[test]
fn pages_are_slides_sheets_and_chapters() {
    for (name, noun, pages) in [
        ("slides.pptx", "slide", 3),
        ("slides.odp", "slide", 2),
        ("book.xlsx", "sheet", 2),
        ("book.ods", "sheet", 2),
        ("book.epub", "chapter", 2),
        ("pages.pdf", "page", 3),
        ("report.docx", "page", 0),
    ] {
        let document = Document::open(&fixture(name)).expect("a document");
        let nouns = (document.pages.iter()).map(|page| document.page_noun_at(page.range.start));
        assert_eq!(nouns.collect::<Vec<_>>(), vec![noun; pages], "{name}");
    }
    // Joined documents keep what they call their pages.
    let open = |name: &str| Document::open(&fixture(name)).expect("a document");
    let joined = Document::join(vec![open("pages.pdf"), open("book.xlsx")]);
    let at = joined.text.find("far away").expect("a cell");
    assert_eq!(joined.page_of(at), Some(1));
    assert_eq!(joined.page_noun_at(at), "sheet");
}

#[test]
fn a_format_is_known_by_its_content() {
    let read = |name: &str| std::fs::read(fixture(name)).expect("a fixture");
    let kind = |named: &str, fixture: &str| from(named, &read(fixture)).expect("a document").kind;
    for (name, format) in FIXTURES {
        let kind_as = |named| kind(named, name);
        if name.ends_with("x") || name.contains(".o") || name.ends_with(".epub") {
            assert_eq!(
                kind_as("a.zip"),
                Kind::Extracted { format: *format },
                "{name}"
            );
            assert_eq!(kind_as("a"), Kind::Extracted { format: *format }, "{name}");
        }
        assert_eq!(Format::from_name(format.name()), Some(*format));
    }
    assert_eq!(
        kind("mail", "plain.eml"),
        Kind::Extracted {
            format: Format::Email
        }
    );
    assert_eq!(kind("mail.txt", "plain.eml"), Kind::PlainText);
    let page = from("page", b"\xef\xbb\xbf<!doctype HTML><p>words").expect("a page");
    assert_eq!(page.text, "words\n");
    let code = from("page.txt", b"<!doctype html><p>words").expect("a text");
    assert_eq!(code.text, "<!doctype html><p>words");
    assert!(said(from("a.docx", &read("archive.zip"))).contains("a ZIP archive"));
}

fn locked_odt() -> Vec<u8> {
    let mut archive = zip::write::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, content) in [
        ("mimetype", "application/vnd.oasis.opendocument.text"),
        ("META-INF/manifest.xml", "<manifest:encryption-data/>"),
        ("content.xml", "nothing that can be read"),
    ] {
        let options = zip::write::SimpleFileOptions::default();
        archive.start_file(name, options).expect("a part");
        archive.write_all(content.as_bytes()).expect("bytes");
    }
    archive.finish().expect("an archive").into_inner()
}

#[test]
fn documents_that_cannot_be_read_say_what_to_do() {
    let drm = said(Document::open(&fixture("drm.epub")));
    assert!(drm.contains("copy protection"), "{drm}");
    assert!(Document::open(&fixture("fonts.epub")).is_ok());
    let locked = said(from("a.odt", &locked_odt()));
    assert!(locked.contains("protected by a password"), "{locked}");
    let mut old = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1".to_vec();
    old.resize(1024, 0);
    let with = |stream: &str| {
        let mut bytes = old.clone();
        bytes.extend(stream.encode_utf16().flat_map(u16::to_le_bytes));
        bytes.resize(1152, 0);
        said(from("a.doc", &bytes))
    };
    assert!(with("WordDocument").contains("save it as DOCX"));
    assert!(with("Workbook").contains("save it as XLSX"));
    assert!(with("PowerPoint Document").contains("save it as PPTX"));
    assert!(with("__properties_version1.0").contains("save it as EML"));
    assert!(with("EncryptedPackage").contains("protected by a password"));
    let docx = std::fs::read(fixture("report.docx")).expect("a fixture");
    let cut = said(from("a.docx", &docx[..docx.len() / 2]));
    assert!(
        cut.contains("a.docx is a Word document, but damaged (its end is missing)"),
        "{cut}"
    );
    let empty = said(from(
        "a.html",
        b"<html><script>var page = 1;</script></html>",
    ));
    assert!(empty.contains("a web page without any text"), "{empty}");
    assert!(said(from("a.srt", b" ")).contains("is empty"));
}

#[test]
fn headings_are_the_outline_and_lines_the_passages() {
    let document = Document::open(&fixture("contract.docx")).expect("a document");
    let found = outline(&document.text, &document.kind);
    let titles: Vec<&str> = found.iter().map(|heading| heading.title.as_str()).collect();
    let expected = [
        "Lease",
        "§ 1 Rent",
        "§ 2 Term",
        "2.1 Beginning",
        "2.2 Notice",
        "§ 3 Signed",
    ];
    assert_eq!(titles, expected);
    let passage = |at: &str| {
        let byte = document.text.find(at).expect("words");
        &document.text[document.passage_at(byte)]
    };
    assert_eq!(passage("floor"), "Key | Door and floor");
    assert_eq!(passage("bank"), "- to the bank");
    assert_eq!(passage("landlord"), "The landlord says so");
    let blank = "From: a@b.c\r\nContent-Type: multipart/alternative; boundary=x\r\n\r\n--x\r\n\r\n \r\n\
        --x\r\nContent-Type: text/html\r\n\r\n<p>words\r\n--x--\r\n";
    let blank = from("a.eml", blank.as_bytes()).expect("an e-mail");
    assert_eq!(blank.text, "From: a@b.c\n\nwords\n");
    let mail = Document::open(&fixture("plain.eml")).expect("an e-mail");
    let byte = mail.text.find("offen").expect("words");
    assert!(mail.text[mail.passage_at(byte)].ends_with("schliefen."));
    let rows = from(
        "a.html",
        b"<table><tr><td>Mr. A. Left. He did.<td>No. Yes.</table>",
    )
    .expect("a page");
    assert_eq!(
        &rows.text[rows.passage_at(12)],
        "Mr. A. Left. He did. | No. Yes."
    );
}

#[test]
fn pages_declare_their_encoding_or_it_is_found() {
    let meta = "<meta charset='iso-8859-2'><p>Příliš žluťoučký kůň";
    let (latin2, _, _) = encoding_rs::ISO_8859_2.encode(meta);
    let page = from("a.html", &latin2).expect("a page");
    assert_eq!(
        (&*page.encoding, page.text.as_str()),
        ("ISO-8859-2", "Příliš žluťoučký kůň\n")
    );
    // A page that was saved as UTF-8 and still says otherwise.
    let page = from("a.html", meta.as_bytes()).expect("a page");
    assert_eq!(
        (&*page.encoding, page.text.as_str()),
        ("UTF-8", "Příliš žluťoučký kůň\n")
    );
    let (cyrillic, _, _) =
        encoding_rs::WINDOWS_1251.encode("<p>Хранительница считает каждую страницу дважды.");
    let page = from("a.html", &cyrillic).expect("a page");
    assert_eq!(page.text, "Хранительница считает каждую страницу дважды.\n");
    let utf16: Vec<u8> = [0xfeff]
        .into_iter()
        .chain("<p>Tür".encode_utf16())
        .flat_map(u16::to_le_bytes)
        .collect();
    let page = from("a.html", &utf16).expect("a page");
    assert_eq!((&*page.encoding, page.text.as_str()), ("UTF-16LE", "Tür\n"));
}

#[test]
fn pages_may_be_malformed() {
    assert_eq!(
        of_html("<p>One<p>Two</b></div></table></td></ul>Three"),
        "One\n\nTwo\n\nThree\n"
    );
    assert_eq!(
        of_html("<td>cell<tr><li>item</ol></ol><h2>head<h3>next</h3>x"),
        "cell\n\n- item\n\n## head\n\n### next\n\nx\n"
    );
    assert_eq!(
        of_html("<p>&amp;lt; &#0; &nosuch; &#x1F600; 1 < 2"),
        "&lt; \u{fffd} &nosuch; 😀 1 < 2\n"
    );
    assert_eq!(of_html("<p>ex&shy;tra"), "extra\n");
    assert_eq!(of_html("<title>T</title><p>a<h2>b"), "# T\n\na\n\n## b\n");
    assert_eq!(of_html("<title>T</title><h1>H</h1><p>a"), "# H\n\na\n");
    let xhtml = "<?xml version='1.0'?><html xmlns='http://www.w3.org/1999/xhtml'><head><title/><script/>\
        <script>//<![CDATA[\nif (a < b) '<script>'\n//]]></script></head><body><p/><p>a<br/>b</p><![CDATA[c]]></body></html>";
    assert_eq!(of_html(xhtml), "a\nb\n\nc\n");
    let nested = "<table><tr><td>".repeat(2000) + "deep" + &"<div>".repeat(100_000) + "deeper";
    assert_eq!(of_html(&nested), "deep deeper\n");
}
