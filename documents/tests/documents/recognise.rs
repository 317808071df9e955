//! Text recognition of scans, with the real programs.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use kept_documents::{
    Document, DocumentError, Kind, Recognition, Unrecognised, Why, recognised_languages,
};

const FIRST: &str = "MINUTES OF THE BOAT CLUB\n\nThe meeting began at seven in the hall.\nThe treasurer of the \
                     club is Olga Brandt.\nShe counted the money twice.";
const SECOND: &str =
    "SECOND PAGE\n\nThe number of the mooring is 5173.\nNobody objected, and the meeting ended.";

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

fn recognise(name: &str, language: &str) -> Result<Document, DocumentError> {
    let languages = [language.to_owned()];
    Document::recognise(
        &fixture(name),
        name,
        &Recognition {
            languages: &languages,
            progress: &|_, _| (),
            is_stopped: &|| false,
        },
    )
}

fn why(outcome: Result<Document, DocumentError>) -> Unrecognised {
    match outcome.map(|document| document.text) {
        Err(DocumentError {
            why: Why::Recognition(why),
            ..
        }) => why,
        other => panic!("{other:?}"),
    }
}

/// Whether English can be recognised here; otherwise the test says that it was skipped.
fn can_recognise() -> bool {
    let can = recognised_languages().iter().any(|l| l == "eng");
    if !can {
        eprintln!("skipped: tesseract with English, or pdftoppm, is not installed");
    }
    can
}

#[test]
fn scanned_pages_become_text() {
    if !can_recognise() {
        return;
    }
    let scan = Document::open(&fixture("scan.pdf")).expect_err("it has no text");
    assert_eq!(scan.pages_to_recognise(), Some(2));
    let steps = Mutex::new(Vec::new());
    let languages = ["eng".to_owned()];
    let recognition = Recognition {
        languages: &languages,
        progress: &|done, pages| steps.lock().expect("no panic").push((done, pages)),
        is_stopped: &|| false,
    };
    let document = Document::recognise(&fixture("scan.pdf"), "scan.pdf", &recognition);
    let document = document.expect("text");
    assert_eq!(document.text, format!("{FIRST}\n\n{SECOND}"));
    assert_eq!(document.kind, Kind::Pdf);
    let pages: Vec<_> = document.pages.iter().map(|p| p.range.clone()).collect();
    let second = FIRST.len() + 2;
    assert_eq!(pages, [0..second, second..document.text.len()]);
    assert_eq!(
        steps.into_inner().expect("no panic"),
        [(0, 2), (1, 2), (2, 2)]
    );
    assert_eq!(document.unread_pages, [0_u32; 0]);
}

#[test]
fn pages_with_text_keep_it() {
    if !can_recognise() {
        return;
    }
    let plain = Document::open(&fixture("plain.pdf")).expect("text");
    let unread = Document::open(&fixture("text-and-scan.pdf")).expect("text");
    assert_eq!(
        (unread.image_pages.as_slice(), plain.image_pages.as_slice()),
        (&[2_u32][..], &[][..])
    );
    let mixed = recognise("text-and-scan.pdf", "eng").expect("text");
    assert_eq!(mixed.image_pages, [0_u32; 0]);
    assert_eq!(mixed.text, format!("{}\n\n{SECOND}", plain.text));
    // Nothing is to be recognised, so no language is missing.
    assert_eq!(
        recognise("plain.pdf", "tlh").expect("text").text,
        plain.text
    );
    assert_eq!(recognise("page.html", "none").expect("no pages").kind, {
        Document::open(&fixture("page.html")).expect("text").kind
    });
}

/// A page that is too large to be drawn, and one of text.
#[test]
fn pages_without_recognised_text_are_named() {
    if !can_recognise() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("large.pdf");
    let scan = std::fs::read(fixture("scan.pdf")).expect("a scan");
    let at = scan
        .windows(9)
        .position(|w| w == b"/MediaBox")
        .expect("a page");
    let end = at
        + scan[at..]
            .iter()
            .position(|b| *b == b']')
            .expect("its size")
        + 1;
    // As many bytes as before: nothing else moves.
    let mut size = b"/MediaBox[0 0 99999 99999".to_vec();
    assert!(size.len() < end - at, "{} of {}", size.len(), end - at);
    size.resize(end - at - 1, b' ');
    size.push(b']');
    let large = [&scan[..at], &size, &scan[end..]].concat();
    std::fs::write(&path, large).expect("written");
    let languages = ["eng".to_owned()];
    let recognition = Recognition {
        languages: &languages,
        progress: &|_, _| (),
        is_stopped: &|| false,
    };
    let document = Document::recognise(&path, "large.pdf", &recognition).expect("text");
    assert_eq!(document.text, format!("\n\n{SECOND}"));
    let without: Vec<u32> = [document.image_pages, document.unread_pages].concat();
    assert_eq!(without, [1]);
}

#[test]
fn an_image_becomes_text() {
    if !can_recognise() {
        return;
    }
    let image = Document::open(&fixture("scan.png")).expect_err("it is an image");
    assert_eq!(image.pages_to_recognise(), Some(1));
    let document = recognise("scan.png", "eng").expect("text");
    assert_eq!(
        (document.text.as_str(), document.kind),
        (SECOND, Kind::PlainText)
    );
    assert_eq!(document.pages, []);
}

#[test]
fn what_cannot_be_recognised_is_refused() {
    if !can_recognise() {
        return;
    }
    for without in ["scanned.pdf", "picture.png"] {
        assert_eq!(
            why(recognise(without, "eng")),
            Unrecognised::Nothing,
            "{without}"
        );
    }
    let unknown = why(recognise("scan.pdf", "tlh")).to_string();
    assert!(
        unknown.contains("no language tlh") && unknown.contains("eng"),
        "{unknown}"
    );
    let languages = ["eng".to_owned()];
    let stopped = Recognition {
        languages: &languages,
        progress: &|_, _| (),
        is_stopped: &|| true,
    };
    let stopped = Document::recognise(&fixture("scan.pdf"), "scan.pdf", &stopped);
    assert_eq!(why(stopped), Unrecognised::Stopped);
    assert!(matches!(
        recognise("garbage.pdf", "eng"),
        Err(DocumentError {
            why: Why::PdfBroken { .. },
            ..
        })
    ));
}
