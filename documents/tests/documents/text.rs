//! Text files: encodings, offsets, and the error messages for files that are not text.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use kept_documents::{Document, DocumentError, Kind, MAX_SOURCE_BYTES, Why};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

fn from(name: &str, bytes: &[u8]) -> Result<Document, DocumentError> {
    Document::from_bytes(name, bytes.to_vec())
}

fn said(result: Result<Document, DocumentError>) -> String {
    result.expect_err("this file must not open").to_string()
}

#[test]
fn every_encoding_gives_the_same_text() {
    for (name, language, encoding, mark) in [
        ("utf8.txt", "russian", "UTF-8", 0),
        ("utf8-mark.txt", "german", "UTF-8", 3),
        ("utf16le-mark.txt", "russian", "UTF-16LE", 2),
        ("utf16be-mark.txt", "japanese", "UTF-16BE", 2),
        ("utf16le.txt", "german", "UTF-16LE", 0),
        ("utf16be.txt", "chinese", "UTF-16BE", 0),
        ("utf32le-mark.txt", "french", "UTF-32LE", 4),
        ("latin1.txt", "german", "windows-1252", 0),
        ("windows-1252.txt", "french", "windows-1252", 0),
        ("windows-1251.txt", "russian", "windows-1251", 0),
        ("koi8-r.txt", "russian", "KOI8-U", 0),
        ("shift-jis.txt", "japanese", "Shift_JIS", 0),
        ("euc-jp.txt", "japanese", "EUC-JP", 0),
        ("iso-2022-jp.txt", "japanese", "ISO-2022-JP", 0),
        ("gb18030.txt", "chinese", "GBK", 0),
    ] {
        let document = Document::open(&fixture(name)).unwrap();
        let expected = fs::read_to_string(fixture(&format!("{language}.expected"))).unwrap();
        assert_eq!(
            document.text, expected,
            "{name} read as {}",
            document.encoding
        );
        assert_eq!(document.encoding, encoding, "{name}");
        assert_eq!(document.skipped_bytes, mark, "{name}");
        assert_eq!(document.malformed, 0, "{name}");
        assert_eq!(
            document.source_bytes,
            fs::metadata(fixture(name)).unwrap().len()
        );
        assert_eq!(document.name, name);
        assert!(document.pages.is_empty() && document.page_of(0).is_none());
    }
}

#[test]
fn utf8_offsets_are_file_offsets() {
    let bytes = "\u{feff}one\r\ntwo\r\n\x0cthrée\n".as_bytes();
    let document = from("a.txt", bytes).unwrap();
    assert_eq!(document.text.as_bytes(), &bytes[document.skipped_bytes..]);
    assert_eq!(document.text, "one\r\ntwo\r\n\x0cthrée\n");
}

#[test]
fn a_few_malformed_bytes_leave_the_encoding_utf8() {
    let mut bytes = "Été après été, l’île reste là, près de la forêt. "
        .repeat(5)
        .into_bytes();
    bytes.insert(30, 0xff);
    let document = from("a.txt", &bytes).unwrap();
    assert_eq!((&*document.encoding, document.malformed), ("UTF-8", 1));
    let cut = "Un été".as_bytes();
    let document = from("a.txt", &cut[..cut.len() - 1]).unwrap();
    assert_eq!(
        (&*document.encoding, document.text.as_str()),
        ("UTF-8", "Un ét\u{fffd}")
    );
}

#[test]
fn the_file_extension_gives_the_kind() {
    let kind = |name| from(name, b"let x = 1;\n").unwrap().kind;
    assert_eq!(kind("a.txt"), Kind::PlainText);
    assert_eq!(kind("README"), Kind::PlainText);
    assert_eq!(kind("notes.MD"), Kind::Markdown);
    assert_eq!(kind("src/main.rs"), Kind::SourceCode);
    assert_eq!(kind("Makefile"), Kind::SourceCode);
}

#[test]
fn errors_name_the_type_of_files_that_are_not_text() {
    let png = said(Document::open(&fixture("picture.png")));
    assert!(
        png.contains("picture.png is a PNG image, without text: recognise"),
        "{png}"
    );
    assert!(said(Document::open(&fixture("archive.zip"))).contains("a ZIP archive"));
    let download = said(from("x.pdf", b"<!DOCTYPE html><p>words</p>"));
    assert!(download.contains("a failed download"), "{download}");
    assert!(from("x.txt", b"<!DOCTYPE html><p>words</p>").is_ok());
    assert!(said(from("x.rtf", b"{\\rtf1 words}")).contains("rich text"));
    assert!(
        said(from(
            "x.bin",
            &(0..=255).cycle().take(5000).collect::<Vec<u8>>()
        ))
        .contains("a binary file")
    );
    assert!(said(from("x.bin", &[0; 64])).contains("a binary file"));
    // A short text may ring the bell.
    assert!(from("x.txt", b"Done.\x07\n").is_ok());
    assert!(said(from("x", b"\x7fELF\x02\x01\x01\0")).contains("a program"));
}

#[test]
fn random_bytes_are_refused_as_binary() {
    let mut state = 7_u64;
    let mut random = |n: usize| -> Vec<u8> {
        (0..n)
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (state >> 33) as u8
            })
            .collect()
    };
    for size in [200, 999, 4000, 40_000] {
        for _ in 0..20 {
            let bytes = random(size);
            assert!(
                matches!(from("x.txt", &bytes), Err(e) if matches!(e.why, Why::Binary { .. })),
                "{size} bytes"
            );
        }
    }
}

#[test]
fn missing_empty_and_special_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("nowhere.txt");
    assert!(said(Document::open(&missing)).contains("does not exist"));
    assert!(said(Document::open(folder.path())).contains("is a folder"));
    let empty = folder.path().join("empty.txt");
    fs::write(&empty, "").unwrap();
    assert!(said(Document::open(&empty)).contains("is empty"));
    assert!(said(from("a.txt", b" \r\n\t \n")).contains("is empty"));
    assert!(said(from("a.txt", b"\xef\xbb\xbf")).contains("is empty"));
    assert!(said(Document::open(Path::new("/dev/zero"))).contains("not an ordinary file"));
    // A sparse file of a terabyte takes no disk space, and must take no time to reject.
    let huge = folder.path().join("huge.txt");
    fs::File::create(&huge).unwrap().set_len(1 << 40).unwrap();
    let huge = said(Document::open(&huge));
    assert!(huge.contains(&MAX_SOURCE_BYTES.to_string()), "{huge}");
}

#[test]
fn every_error_is_one_line() {
    for error in [
        said(Document::open(&fixture("picture.png"))),
        said(from("a.txt", b"")),
        said(from("a.html", b"<p>")),
        said(Document::open(&fixture("drm.epub"))),
        said(from("a.docx", b"PK\x03\x04")),
        said(from("a.doc", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1")),
        said(Document::open(&fixture("scanned.pdf"))),
        said(Document::open(&fixture("password.pdf"))),
        said(Document::open(&fixture("garbage.pdf"))),
    ] {
        assert!(
            !error.contains('\n') && !error.ends_with('.') && error.len() < 300,
            "{error}"
        );
        assert!(!error.contains("  "), "{error}");
    }
}

#[test]
fn a_file_of_50_megabytes_opens() {
    // Prints the time but has no limit: the machine may be busy.
    for (what, line) in [
        (
            "ASCII",
            &b"An ordinary line of forty-two bytes, or so.\n"[..],
        ),
        ("latin-1", b"Une journ\xe9e d'\xe9t\xe9 \xe0 la montagne.\n"),
    ] {
        let bytes = line.repeat(50_000_000 / line.len());
        let start = Instant::now();
        let document = from("big.txt", &bytes).unwrap();
        println!(
            "50 MB of {what}: {:?} as {}",
            start.elapsed(),
            document.encoding
        );
        assert!(document.text.len() >= bytes.len());
    }
}
