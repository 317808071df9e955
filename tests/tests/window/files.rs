//! Files of a user: dropped by a real drag from another window, valid ones and every kind of invalid one. Whatever is
//! dropped, the app survives, shows one message, and keeps its document.
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use kept_engine::documents::recognised_languages;
use kept_tests::golden;
use kept_tests::window::{App, Home, Notice, QUESTION, first_start, pages_pdf};
use serde_json::Value;

/// The dialogs that ask about a file before it is opened.
const PENDING: [&str; 2] = ["unlock", "recognise"];

fn sample() -> String {
    fs::read_to_string(golden::repository().join("assets/sample.txt")).expect("the sample")
}

/// The sample with another code: an answer with this code must come from this file.
fn with_another_code() -> String {
    sample().replace("4711", "6382")
}

/// Drops files and waits for the message about them; the earlier document remains, and the app still responds.
#[track_caller]
fn refused(app: &App<'_>, paths: &[&Path], words: &[&str]) -> Notice {
    app.close_notices();
    let before = app.snapshot()["document"]["id"].clone();
    app.drop_files(paths);
    still_works(app, &before, words)
}

#[track_caller]
fn still_works(app: &App<'_>, before: &Value, words: &[&str]) -> Notice {
    let notice = app.says(words);
    let sentence = notice.text.lines().next().unwrap_or_default();
    assert!(
        sentence.len() > 15 && sentence.contains(' '),
        "a sentence: {sentence:?}"
    );
    let reasons = ["os error", "Error:", "Err(", "panicked"];
    assert!(
        reasons.iter().all(|r| !sentence.contains(r)),
        "for a person: {sentence:?}"
    );
    let now = app.snapshot();
    assert_eq!(
        &now["document"]["id"], before,
        "the document from before stays"
    );
    assert!(
        now["opening"].is_null(),
        "nothing is being opened any more: {}",
        now["opening"]
    );
    assert!(!app.is_shown("drop-zone"), "the drop zone is gone");
    assert_eq!(app.notices().len(), 1, "one sentence: {:?}", app.notices());
    notice
}

#[test]
fn a_file_name_may_have_spaces_and_accents() {
    let Some(home) = Home::new() else { return };
    let app = first_start(&home);
    let name = "Lettres d’été – cahier 2 (été).txt";
    let held = app.home().file(name, with_another_code());
    let held = app.hold(&[&held]);
    assert_eq!(
        app.attribute("drop-zone", "data-refused")
            .filter(|r| r != "false"),
        None
    );
    app.picture("held-over");
    held.let_go();
    app.shows_document(name);
    app.is_ready();
    app.ask(QUESTION);
    app.is_answered();
    assert!(
        app.answer().contains("6382"),
        "from the dropped file: {}",
        app.answer()
    );
    assert_eq!(app.notices(), []);
    app.close();
}

#[test]
fn sources_and_table_name_the_pages_of_a_pdf() {
    let Some(home) = Home::new() else { return };
    let app = first_start(&home);
    let text = with_another_code();
    let words: Vec<&str> = text.split_whitespace().filter(|w| w.is_ascii()).collect();
    let pages: Vec<String> = words
        .chunks(words.len().div_ceil(5))
        .map(|page| {
            page.chunks(11)
                .map(|line| line.join(" "))
                .collect::<Vec<_>>()
                .join("\n")
        })
        .collect();
    assert_eq!(pages.len(), 5);
    let path = home.file("harbour report.pdf", pages_pdf(&pages));
    app.drop_files(&[&path]);
    app.shows_document("harbour report.pdf");
    assert_eq!(
        app.snapshot()["document"]["pages"].as_array().map(Vec::len),
        Some(5)
    );
    app.is_ready();
    app.ask(QUESTION);
    app.is_answered();
    let sources = app.texts("source");
    assert!(!sources.is_empty(), "there are sources");
    for source in &sources {
        let page = source.split_once("page ").and_then(|(_, rest)| {
            rest.split([' ', ' ', '\n', '·'])
                .next()?
                .parse::<u32>()
                .ok()
        });
        assert!(
            page.is_some_and(|p| (1..=5).contains(&p)),
            "a source names its page: {source}"
        );
    }
    app.click("table-button");
    app.click("table-parts");
    app.until("the table has a row for each page", |app| {
        let table = app.text("table")?.to_lowercase();
        (1..=5)
            .all(|p| table.contains(&format!("page {p}")))
            .then_some(())
    });
    app.picture("pdf-table");
    app.close();
}

#[test]
fn unreadable_files_are_refused_with_one_sentence() {
    let Some(home) = Home::new() else { return };
    let app = first_start(&home);

    let folder = home.path().join("files/a folder");
    fs::create_dir(&folder).expect("a folder");
    refused(&app, &[&folder], &["folder", "files"]);
    let beside = home.file("beside.txt", sample());
    refused(&app, &[&beside, &folder], &["folder", "files"]);

    refused(
        &app,
        &[&home.file("empty.txt", "")],
        &["empty.txt", "empty"],
    );
    refused(&app, &[&home.file("blank.txt", " \n \n")], &["blank.txt"]);

    let noise: Vec<u8> = (0..40_000u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    refused(&app, &[&home.file("noise.dat", &noise)], &["noise.dat"]);
    refused(
        &app,
        &[&home.file("picture.gif", b"GIF89a\x01\0\x01\0\0\0\0;")],
        &["picture.gif", "a GIF image"],
    );
    let whole = pages_pdf(&["one".into(), "two".into()]);
    refused(
        &app,
        &[&home.file("beginning.pdf", &whole[..whole.len() / 8])],
        &["beginning.pdf"],
    );
    for name in ["zero-pages.pdf", "garbage.pdf"] {
        let fixture = golden::repository()
            .join("documents/tests/fixtures")
            .join(name);
        refused(&app, &[&fixture], &[name]);
    }
    app.picture("refused");

    // After all refusals, a valid file.
    app.close_notices();
    app.drop_files(&[&home.file("good.txt", with_another_code())]);
    app.shows_document("good.txt");
    app.close();
}

#[test]
fn a_pdf_with_a_password_is_opened_by_typing_it() {
    let Some(home) = Home::new() else { return };
    let app = first_start(&home);
    let locked = golden::repository().join("documents/tests/fixtures/password.pdf");
    app.drop_files(&[&locked]);
    let asked = app.until("the password is asked for", |app| app.text("unlock"));
    assert!(asked.contains("password.pdf is protected"), "{asked}");
    app.picture("asked");
    // A page that loads later asks too: at the start, the file is read before the page is there.
    app.reload();
    app.until("it is asked for again", |app| app.text("unlock"));
    app.write("unlock-password", "Open Sesame\u{E007}");
    app.until("it is refused", |app| {
        (app.text("unlock")).filter(|text| text.contains("does not open"))
    });
    app.picture("wrong");
    app.script("$('unlock-password').value = ''", Value::Null);
    app.write("unlock-password", "open sesame\u{E007}");
    app.shows_document("password.pdf");
    assert!(!app.is_shown("unlock"));
    // Given up, another one changes nothing.
    app.drop_files(&[&locked]);
    app.until("it is asked for again", |app| app.text("unlock"));
    app.click("unlock-no");
    app.until("the dialog is gone", |app| !app.is_shown("unlock"));
    assert_eq!(app.text("document-name").as_deref(), Some("password.pdf"));
    assert_eq!(app.notices(), []);
    app.close();
}

#[test]
fn a_scan_is_opened_by_recognising_its_text() {
    if !recognised_languages()
        .iter()
        .any(|language| language == "eng")
    {
        eprintln!("skipped: tesseract with English, or pdftoppm, is not installed");
        return;
    }
    let Some(home) = Home::new() else { return };
    let app = first_start(&home);
    let scan = golden::repository().join("documents/tests/fixtures/scan.pdf");
    app.drop_files(&[&scan]);
    let asked = app.until("it is asked for", |app| app.text("recognise"));
    assert!(
        asked.contains("scan.pdf has 2 pages of images without text"),
        "{asked}"
    );
    app.picture("asked");
    // Given up, nothing changes.
    app.click("recognise-no");
    app.until("the dialog is gone", |app| !app.is_shown("recognise"));
    assert_eq!(app.text("document-name").as_deref(), Some("sample.txt"));
    app.drop_files(&[&scan]);
    app.until("it is asked for again", |app| app.text("recognise"));
    app.click("recognise-yes");
    app.shows_document("scan.pdf");
    assert!(!app.is_shown("recognise"));
    app.until("the text is on the page", |app| {
        (app.text("document")).filter(|text| text.contains("The number of the mooring is 5173."))
    });
    app.picture("recognised");
    assert_eq!(app.notices(), []);
    // Images without text.
    let fixture = |name: &str| {
        golden::repository()
            .join("documents/tests/fixtures")
            .join(name)
    };
    app.drop_files(&[&fixture("scanned.pdf")]);
    app.until("it is asked for", |app| app.text("recognise"));
    app.click("recognise-yes");
    app.says(&["scanned.pdf", "no text was recognised"]);
    assert_eq!(app.text("document-name").as_deref(), Some("scan.pdf"));
    app.close_notices();
    // Some pages of images: the document is open, and says which.
    app.drop_files(&[&fixture("text-and-scan.pdf")]);
    app.shows_document("text-and-scan.pdf");
    app.until("the text of its image is offered", |app| {
        app.text("image-pages")
    });
    let shown = app.text("document").expect("a document");
    let note = "No text was read from these pages of text-and-scan.pdf, which are images: 2.";
    assert!(shown.contains(note), "{shown}");
    app.picture("image-pages");
    app.click("image-pages-recognise");
    app.until("it is asked for", |app| app.text("recognise"));
    app.click("recognise-yes");
    app.until("its text is on the page", |app| {
        (app.text("document")).filter(|text| text.contains("The number of the mooring is 5173."))
    });
    assert!(!app.is_shown("image-pages"));
    app.close();
}

#[test]
fn the_drop_zone_shows_a_refusal_before_the_drop() {
    let Some(home) = Home::new() else { return };
    let app = first_start(&home);
    let folder = home.path().join("files/a folder");
    fs::create_dir(&folder).expect("a folder");
    let held = app.hold(&[&home.file("1.txt", "One."), &folder]);
    let refusal = app.until("the drop zone says why not", |app| {
        app.text("drop-zone").filter(|t| t.contains("folder"))
    });
    assert!(refusal.contains(' '), "{refusal}");
    let marked = app.attribute("drop-zone", "data-refused");
    assert!(
        marked.is_some_and(|m| m != "false"),
        "the drop zone is marked as refusing"
    );
    app.picture("held-refused");
    held.carry_away();
    app.until("the drop zone is gone", |app| !app.is_shown("drop-zone"));
    assert_eq!(app.notices(), [], "nothing was dropped");
    assert!(
        app.text("document-name")
            .is_some_and(|n| n.contains("sample.txt"))
    );
    app.close();
}

#[test]
fn a_file_deleted_during_the_drag_is_named() {
    let Some(home) = Home::new() else { return };
    let app = first_start(&home);
    let before = app.snapshot()["document"]["id"].clone();
    let path = home.file("gone.txt", sample());
    let held = app.hold(&[&path]);
    fs::remove_file(&path).expect("the file is removed");
    held.let_go();
    still_works(&app, &before, &["gone.txt"]);
    app.close();
}

#[test]
fn a_file_without_permission_is_named() {
    let Some(home) = Home::new() else { return };
    let app = first_start(&home);
    let path = home.file("private.txt", sample());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).expect("no permission");
    let path = if fs::read(&path).is_err() {
        path
    } else {
        // Root ignores permissions, but some kernel files are write-only even for root.
        PathBuf::from("/sys/bus/platform/drivers_probe")
    };
    match fs::read(&path).map_err(|e| e.kind()) {
        Err(std::io::ErrorKind::PermissionDenied) => {
            let name = path.file_name().and_then(|n| n.to_str()).expect("a name");
            refused(&app, &[&path], &[name, "permission"]);
        }
        other => eprintln!(
            "skipped: root may read everything here, {} too ({other:?})",
            path.display()
        ),
    }
    app.close();
}

/// Opening a pipe without a writer would block.
#[test]
fn a_pipe_does_not_block_the_app() {
    let Some(home) = Home::new() else { return };
    let app = first_start(&home);
    let pipe = home.path().join("files/pipe.txt");
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .is_ok_and(|s| s.success()),
        "mkfifo"
    );
    refused(&app, &[&pipe], &["pipe.txt"]);
    app.close_notices();
    app.drop_files(&[&home.file("good.txt", with_another_code())]);
    app.shows_document("good.txt");
    app.close();
}

#[test]
fn a_dropped_model_is_opened_and_a_damaged_one_refused() {
    let Some(home) = Home::new() else { return };
    let app = first_start(&home);
    let whole = fs::read(golden::model("group2-llama3-tied")).expect("a golden model");
    let damaged = home.file("damaged.gguf", &whole[..whole.len() / 3]);
    app.drop_files(&[&damaged]);
    app.says(&["damaged.gguf"]);
    app.picture("damaged-model");
    app.close_notices();
    let good = home.file("tiny random.gguf", &whole);
    app.drop_files(&[&good]);
    app.until("the dropped model is open", |app| {
        let now = app.snapshot();
        now["model"]["file"] == "tiny random.gguf"
    });
    assert!(
        app.text("document-name")
            .is_some_and(|n| n.contains("sample.txt")),
        "the document stays"
    );
    app.ask(QUESTION);
    app.is_answered();
    app.close();
}

/// Damaged, hostile and unusual PDFs: each is opened or refused, and the app accepts the next one.
#[test]
fn damaged_pdfs_do_not_crash_the_app() {
    let Some(home) = Home::new() else { return };
    let app = first_start(&home);
    let folder = fs::read_dir(golden::repository().join("documents/tests/fixtures"));
    let mut paths: Vec<PathBuf> = folder
        .expect("the fixtures")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|e| e == "pdf"))
        .collect();
    paths.sort();
    assert!(paths.len() > 10, "{paths:?}");
    for path in &paths {
        let name = path.file_name().and_then(|n| n.to_str()).expect("a name");
        app.close_notices();
        app.drop_files(&[path]);
        let refused = app.until(&format!("{name} is opened or refused"), |app| {
            let opened = app.text("document-name").is_some_and(|n| n.contains(name));
            let settled = opened && app.snapshot()["opening"].is_null();
            let refused = app.notices().iter().any(|n| n.text.contains(name));
            let pending = PENDING.iter().any(|dialog| app.is_shown(dialog));
            (settled || refused || pending).then_some(refused || pending)
        });
        for dialog in PENDING.iter().filter(|dialog| app.is_shown(dialog)) {
            app.click(&format!("{dialog}-no"));
        }
        println!("{name} is {}", if refused { "refused" } else { "opened" });
        assert!(app.worker().is_some(), "the engine outlives {name}");
    }
    app.close();
}
