//! The models page with a local hub: a download with pause, kill and resume; several in sequence; and faults, each with
//! a message that names the remedy.
use std::fs;

use crate::library::{
    click_in, download_is, of_row, open_page, page_of_models, row_text, with_hub,
};
use kept_tests::golden;
use kept_tests::hub::pulling::{MIB, assert_whole, length, wait_until};
use kept_tests::hub::{Faults, Hub, Origin, REPO, Refusal, some_bytes};
use kept_tests::window::{ANSWER, App, Home, QUESTION};

const FILE: &str = "harbour-Q8_0.gguf";

fn mini() -> Vec<u8> {
    fs::read(golden::repository().join("assets/mini.gguf")).expect("the built-in model")
}

/// Types the repository's name and downloads one of its files.
#[track_caller]
fn download(app: &App<'_>, file: &str) {
    app.script("$('hub-name').value = ''", serde_json::Value::Null);
    app.write("hub-name", &format!("{REPO}\u{E007}"));
    click_in(app, "hub-offer", "reference", file, "get");
}

fn click(app: &App<'_>, file: &str, id: &str) {
    click_in(app, "download", "reference", file, id);
}

/// Waits until this download has failed with a message of these words, and returns the message. The row still shows the
/// last failure for a moment after "Resume".
#[track_caller]
fn fails(app: &App<'_>, file: &str, words: &[&str]) -> String {
    let text = app.until(&format!("{file} fails and says {words:?}"), |app| {
        let state = of_row(app, "download", "reference", file, "row.dataset.state")?;
        let text = row_text(app, "download", "reference", file)?;
        (state == "failed" && words.iter().all(|word| text.contains(word))).then_some(text)
    });
    for terminal in ["run the same", "kept models", "set HF_TOKEN", "os error"] {
        assert!(!text.contains(terminal), "for a window: {text}");
    }
    text
}

#[test]
fn a_download_resumes_after_a_pause_and_a_kill() {
    let bytes = mini();
    let hub = Hub::with(&[(FILE, &bytes), ("README.md", b"hello")]);
    let partial = hub.partial(&bytes);
    let Some(home) = Home::new() else { return };
    let app = page_of_models(&with_hub(&hub), &home);
    assert_eq!(hub.requests().len(), 0, "nothing is asked before a click");
    hub.gate(MIB as u64);
    download(&app, FILE);
    download_is(&app, FILE, "downloading");
    wait_until("a part has arrived", || length(&partial) == MIB as u64);
    app.until("the page says how much", |app| {
        row_text(app, "download", "reference", FILE).filter(|t| t.contains("1.0 MiB of"))
    });
    app.picture("downloading");
    click(&app, FILE, "download-pause");
    download_is(&app, FILE, "paused");
    assert_eq!(length(&partial), MIB as u64, "what has arrived is kept");
    click(&app, FILE, "download-resume");
    hub.gate(2 * MIB as u64);
    wait_until("more has arrived", || length(&partial) == 2 * MIB as u64);
    app.process().signal("KILL");
    drop(app);

    let app = page_of_models(&with_hub(&hub), &home);
    download_is(&app, FILE, "paused");
    let text = row_text(&app, "download", "reference", FILE).expect("its row");
    assert!(text.contains("2.0 MiB of"), "with its bytes: {text}");
    assert_eq!(app.count("unfinished"), 0, "and not twice");
    app.picture("after-restart");
    hub.gate(u64::MAX);
    click(&app, FILE, "download-resume");
    download_is(&app, FILE, "finished");
    assert_whole(&hub, FILE, &bytes);
    assert_eq!(hub.served(), bytes.len() as u64, "nothing came twice");
    app.picture("finished");
    app.until("it is among the found ones", |app| {
        row_text(app, "found", "name", FILE).filter(|t| t.contains("hub cache"))
    });
    click(&app, FILE, "download-use");
    app.until("it is open", |app| app.snapshot()["model"]["file"] == FILE);
    app.until("the download is done with", |app| {
        app.count("download") == 0
    });
    app.click("models-close");
    app.ask(QUESTION);
    app.is_answered();
    assert!(app.answer().contains(ANSWER), "{}", app.answer());
    app.close();
}

#[test]
fn downloads_are_queued_and_a_cancelled_one_is_deleted() {
    let (first, second) = (some_bytes(2 * MIB, 1), some_bytes(MIB, 2));
    let hub = Hub::with(&[("first-Q8_0.gguf", &first), ("second-Q4_0.gguf", &second)]);
    let Some(home) = Home::new() else { return };
    let app = page_of_models(&with_hub(&hub), &home);
    hub.gate(MIB as u64 / 2);
    download(&app, "first-Q8_0");
    download_is(&app, "first-Q8_0", "downloading");
    click_in(&app, "hub-offer", "reference", "second-Q4_0", "get");
    download_is(&app, "second-Q4_0", "queued");
    wait_until("half has arrived", || {
        length(&hub.partial(&first)) == MIB as u64 / 2
    });
    assert_eq!(length(&hub.partial(&second)), 0, "it waits");
    app.picture("two");
    // The first click asks for confirmation.
    click(&app, "first-Q8_0", "download-cancel");
    let asked = of_row(
        &app,
        "download",
        "reference",
        "first-Q8_0",
        "inside('download-cancel').innerText",
    );
    assert_eq!(asked, Some("Remove".into()));
    assert!(hub.partial(&first).exists());
    click(&app, "first-Q8_0", "download-cancel");
    app.until("it is gone", |app| {
        row_text(app, "download", "reference", "first-Q8_0").is_none()
    });
    assert!(!hub.partial(&first).exists() && !hub.blob(&first).exists());
    hub.gate(u64::MAX);
    download_is(&app, "second-Q4_0", "finished");
    assert_whole(&hub, "second-Q4_0.gguf", &second);
    app.until("a file that is no model says so", |app| {
        row_text(app, "found", "name", "second-Q4_0")
    });
    app.close();
}

#[test]
fn download_errors_name_the_remedy() {
    let bytes = mini();
    let hub = Hub::with(&[(FILE, &bytes)]);
    let Some(home) = Home::new() else { return };
    let app = page_of_models(&with_hub(&hub), &home);

    // Wrong bytes: they are deleted, and the second download is correct.
    hub.set(Faults {
        wrong_bytes: true,
        ..Faults::default()
    });
    download(&app, FILE);
    fails(&app, FILE, &["SHA-256", "start it again"]);
    assert!(!hub.blob(&bytes).exists() && !hub.partial(&bytes).exists());
    app.picture("wrong-hash");

    // A private repository: the message explains where to put a token.
    let token_file = hub.home.path().join(".cache/huggingface/token");
    hub.set(Faults {
        token: Some("hf_right".to_owned()),
        ..Faults::default()
    });
    click(&app, FILE, "download-resume");
    fails(
        &app,
        FILE,
        &["private", token_file.to_str().expect("UTF-8")],
    );
    app.picture("private");
    fs::write(&token_file, "hf_wrong").expect("written");
    click(&app, FILE, "download-resume");
    fails(&app, FILE, &["does not accept the token"]);

    // The server asks for a delay of one second; the download waits and finishes.
    let refusal = |status, retry_after, times| Faults {
        refusal: Some(Refusal {
            origin: Origin::Hub,
            file: false,
            status,
            code: "",
            retry_after,
            times,
        }),
        ..Faults::default()
    };
    fs::remove_file(&token_file).expect("removed");
    hub.set(refusal(429, Some(1), 1));
    click(&app, FILE, "download-resume");
    download_is(&app, FILE, "finished");
    assert_whole(&hub, FILE, &bytes);

    // Names that do not exist.
    for (name, words) in [
        ("maker/none", ["maker/none", "check the spelling"]),
        ("nonsense", ["'nonsense'", "OWNER/NAME"]),
        (
            &format!("{REPO}:Q2_K") as &str,
            ["has no model 'Q2_K'", "Q8_0"],
        ),
    ] {
        app.script(
            "$('hub-name').value = ''; $('hub-name').dispatchEvent(new Event('input'))",
            serde_json::Value::Null,
        );
        app.write("hub-name", &format!("{name}\u{E007}"));
        app.until(&format!("{name} is refused"), |app| {
            let text = app.text("hub-problem")?;
            words.iter().all(|word| text.contains(word)).then_some(())
        });
    }
    app.picture("no-such");
    app.close();
}

#[test]
fn offline_mode_makes_no_request() {
    let hub = Hub::with(&[(FILE, &mini())]);
    let Some(home) = Home::new() else { return };
    let app = page_of_models(&with_hub(&hub).variable("HF_HUB_OFFLINE", "1"), &home);
    assert!(
        app.text("offline")
            .is_some_and(|t| t.contains("HF_HUB_OFFLINE"))
    );
    app.write("hub-name", &format!("{REPO}\u{E007}"));
    app.until("it says so", |app| {
        app.text("hub-problem")
            .filter(|t| t.contains("HF_HUB_OFFLINE") && t.contains("start Kept without it"))
    });
    assert_eq!(hub.requests().len(), 0);
    app.close();
}

/// A partial download of another program: resumed, or removed.
#[test]
fn a_partial_download_is_resumed_or_removed() {
    let bytes = mini();
    let hub = Hub::with(&[(FILE, &bytes)]);
    let partial = hub.partial(&bytes);
    let begin = || {
        fs::create_dir_all(partial.parent().expect("a folder")).expect("made");
        fs::write(&partial, &bytes[..MIB]).expect("written");
    };
    begin();
    let Some(home) = Home::new() else { return };
    let app = page_of_models(&with_hub(&hub), &home);
    let text = row_text(&app, "unfinished", "name", REPO).expect("it is shown");
    assert!(text.contains("1.0 MiB downloaded"), "{text}");
    app.picture("begun");
    for _ in 0..2 {
        assert!(partial.exists(), "it asks first");
        click_in(&app, "unfinished", "name", REPO, "unfinished-remove");
    }
    app.says(&["1.0 MiB are free again"]);
    app.until("it is gone", |app| app.count("unfinished") == 0);
    assert!(!partial.exists());
    begin();
    app.click("models-look");
    click_in(&app, "unfinished", "name", REPO, "unfinished-resume");
    download_is(&app, FILE, "finished");
    assert_whole(&hub, FILE, &bytes);
    assert_eq!(hub.served(), (bytes.len() - MIB) as u64);
    open_page(&app);
    app.close();
}
