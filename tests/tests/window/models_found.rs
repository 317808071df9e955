//! The models page without a network: models on this computer and whether they can be opened, folders that the user
//! adds, the context length that fits before opening, a stretched context, and removing a model.
use std::fs;
use std::path::Path;

use crate::library::{click_in, nothing_sticks_out, of_row, open_page, page_of_models, row_text};
use kept_models::testing::{MetaValue, TinyLlama};
use kept_tests::golden;
use kept_tests::hub::in_cache;
use kept_tests::window::{ANSWER, Dialog, Home, Launch, QUESTION};
use serde_json::json;

fn mini() -> Vec<u8> {
    fs::read(golden::repository().join("assets/mini.gguf")).expect("the built-in model")
}

fn put(path: &Path, bytes: impl AsRef<[u8]>) {
    fs::create_dir_all(path.parent().expect("a folder")).expect("made");
    fs::write(path, bytes).expect("written");
}

/// A model of an unknown architecture.
fn unheard_of(path: &Path) {
    let mut writer = TinyLlama::default().writer();
    writer.set(
        "general.architecture",
        MetaValue::Text("hyperion".to_owned()),
    );
    fs::create_dir_all(path.parent().expect("a folder")).expect("made");
    writer.write(path).expect("written");
}

#[test]
fn models_of_other_programs_are_found_and_used() {
    let Some(home) = Home::new() else { return };
    let studio = home.path().join(".lmstudio/models/maker/repo");
    put(&studio.join("harbour-Q8_0.gguf"), mini());
    unheard_of(&studio.join("other-F32.gguf"));
    let app = page_of_models(&Launch::plain(), &home);
    let text = row_text(&app, "found", "name", "harbour-Q8_0").expect("it is found");
    for word in ["LM Studio", "llama", "Q8_0", "MiB"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let refused = row_text(&app, "found", "name", "other-F32").expect("it is found");
    assert!(refused.contains("hyperion"), "it says why not: {refused}");
    let disabled = of_row(
        &app,
        "found",
        "name",
        "other-F32",
        "inside('use-model').disabled",
    );
    assert_eq!(disabled, Some(json!(true)));
    let in_use = of_row(&app, "found", "name", "mini", "row.dataset.inUse");
    assert_eq!(in_use, Some(json!("true")), "the one in use is marked");
    app.picture("found");

    // The context length that fits, before opening.
    click_in(&app, "found", "name", "harbour-Q8_0", "found-more");
    app.until("what it can read is said", |app| app.count("fit-line") > 0);
    let verdict = app.text("verdict").expect("a sentence");
    assert!(verdict.contains("It fits"), "{verdict}");
    let lines = app.texts("fit-line");
    assert!(lines[0].contains("Everything") && lines[0].contains("tokens"));
    app.picture("details");

    // Chosen with one click; the conversation and its document remain.
    click_in(&app, "found", "name", "harbour-Q8_0", "use-model");
    app.until("it is open", |app| {
        let now = app.snapshot();
        now["model"]["file"] == "harbour-Q8_0.gguf"
    });
    app.until("it is marked as the one in use", |app| {
        let now = of_row(app, "found", "name", "harbour", "row.dataset.inUse")?;
        (now == "true").then_some(())
    });
    app.driver().keys(&["\u{E00C}"]).expect("a key");
    app.until("the page is closed", |app| !app.is_shown("models"));
    app.ask(QUESTION);
    app.is_answered();
    assert!(app.answer().contains(ANSWER), "{}", app.answer());
    app.close();

    // It is still the model in use after a restart.
    let app = page_of_models(&Launch::plain(), &home);
    app.until("it is marked again", |app| {
        let now = of_row(app, "found", "name", "harbour", "row.dataset.inUse")?;
        (now == "true").then_some(())
    });
    app.close();
}

/// The system's dialog for folders.
const DIALOG: Dialog = Dialog {
    title: "Add a folder",
    button: "add-folder",
};

#[test]
fn a_model_folder_is_added_and_removed_from_the_list() {
    let Some(home) = Home::new() else { return };
    let folder = home.path().join("my models");
    let file = folder.join("deep/one.gguf");
    put(&file, mini());
    let app = page_of_models(&Launch::plain(), &home);
    assert_eq!(row_text(&app, "found", "name", "one"), None);
    DIALOG.choose(&app, folder.to_str().expect("a path"), |app| {
        let Some(shown) = app.text("model-folder") else {
            return false;
        };
        let right = shown.contains("my models") && app.count("model-folder") == 1;
        if !right {
            app.click("forget-folder");
        }
        right
    });
    app.until("its model is found", |app| {
        row_text(app, "found", "name", "one")
    });
    let shown = app.text("model-folder").expect("the folder is shown");
    assert!(shown.contains("my models"), "{shown}");
    app.picture("folder");
    app.close();

    // Added folders are stored where the terminal program finds them too, and survive a restart.
    let app = page_of_models(&Launch::plain(), &home);
    assert!(row_text(&app, "found", "name", "one").is_some());
    app.click("forget-folder");
    app.until("its model is no longer listed", |app| {
        row_text(app, "found", "name", "one").is_none() && app.count("model-folder") == 0
    });
    assert!(file.exists(), "its files stay");
    app.close();
}

#[test]
fn a_context_is_extended_unless_the_file_has_rope_scaling() {
    let Some(home) = Home::new() else { return };
    let studio = home.path().join(".lmstudio/models/maker/repo");
    put(&studio.join("short-F32.gguf"), []);
    let short = TinyLlama {
        context: 2048,
        ..TinyLlama::default()
    };
    short
        .write(&studio.join("short-F32.gguf"))
        .expect("written");
    // A file with its own RoPE scaling.
    let mut writer = short.writer();
    for (key, value) in [
        ("llama.rope.scaling.type", MetaValue::Text("linear".into())),
        ("llama.rope.scaling.factor", MetaValue::Number(2.0)),
    ] {
        writer.set(key, value);
    }
    writer
        .write(&studio.join("scaled-F32.gguf"))
        .expect("written");
    let app = page_of_models(&Launch::plain(), &home);
    click_in(&app, "found", "name", "short-F32", "found-more");
    app.until("what it can read", |app| {
        app.text("verdict").filter(|v| v.contains("2,048"))
    });
    app.choose("stretch", "yarn:4");
    app.until("what it can read, stretched", |app| {
        app.text("verdict").filter(|v| v.contains("8,192"))
    });
    app.picture("stretched");
    app.click("use-stretched");
    app.until("it is open, stretched", |app| {
        let now = app.snapshot();
        now["model"]["context"] == 8192 && now["model"]["stretch"] == "yarn:4"
    });
    // A file that cannot be stretched again: the message is shown, and the file is not opened with the setting.
    click_in(&app, "found", "name", "scaled-F32", "found-more");
    app.until("its own details", |app| {
        of_row(
            app,
            "found",
            "name",
            "scaled-F32",
            "inside('verdict') ? 1 : null",
        )
    });
    app.choose("stretch", "yarn:4");
    let why = app.until("why not", |app| app.text("details-error"));
    assert!(why.contains("scaled-F32.gguf"), "{why}");
    assert!(
        app.script("return $('use-stretched').disabled", json!(null)) == true,
        "it is not offered"
    );
    app.close();
    // It is still stretched after a restart.
    let app = Launch::plain().open(&home);
    app.is_ready();
    assert_eq!(app.snapshot()["model"]["context"], 8192);
    app.close();
}

#[test]
fn only_a_model_of_the_hub_cache_is_removed_by_two_clicks() {
    let Some(home) = Home::new() else { return };
    let cache = home.path().join("cache/huggingface/hub");
    in_cache(&cache, "maker/tiny-GGUF", "tiny-Q8_0.gguf", &mini());
    let repo = cache.join("models--maker--tiny-GGUF");
    let studio = home.path().join(".lmstudio/models/maker/repo/own.gguf");
    put(&studio, mini());
    let app = page_of_models(&Launch::plain(), &home);
    click_in(&app, "found", "name", "own", "found-more");
    app.until("its details", |app| {
        of_row(app, "found", "name", "own", "inside('details') ? 1 : null")
    });
    assert_eq!(app.count("remove-model"), 0, "it is LM Studio's");
    click_in(&app, "found", "name", "tiny-Q8_0", "found-more");
    app.until("its details", |app| {
        of_row(
            app,
            "found",
            "name",
            "tiny-Q8_0",
            "inside('details') ? 1 : null",
        )
    });
    app.click("remove-model");
    let asked = app.until("it asks once", |app| {
        app.text("remove-model").filter(|t| t.contains("for good"))
    });
    assert!(asked.contains("tiny-Q8_0"), "{asked}");
    assert!(repo.exists(), "not yet");
    app.click("remove-model");
    let notice = app.says(&["tiny-Q8_0.gguf", "MiB are free again"]);
    assert_eq!(notice.place, "models");
    app.until("it is no longer listed", |app| {
        row_text(app, "found", "name", "tiny-Q8_0").is_none()
    });
    assert!(!repo.exists() && studio.exists());
    app.picture("removed");
    app.close();
}

#[test]
fn the_models_page_fits_a_small_window_and_the_keyboard() {
    let Some(home) = Home::new() else { return };
    let studio = home.path().join(".lmstudio/models/maker/repo");
    let long =
        "a-model-with-a-name-that-goes-on-and-on-and-on-for-the-whole-width-of-a-line-Q4_K_M.gguf";
    put(&studio.join(long), mini());
    unheard_of(&studio.join("other-F32.gguf"));
    let app = page_of_models(&Launch::plain(), &home);
    app.driver().resize(900, 600).expect("resized");
    click_in(&app, "found", "name", "a-model-with", "found-more");
    app.until("what it can read is said", |app| app.count("fit-line") > 0);
    nothing_sticks_out(&app);
    for theme in ["light", "dark"] {
        app.set(json!({"theme": theme}));
        app.script(
            "document.documentElement.dataset.theme = args[0]; $('models').scrollTop = 0",
            json!([theme]),
        );
        app.picture(&format!("small-{theme}"));
        app.script("$('models').scrollTop = 420", json!(null));
        app.picture(&format!("small-{theme}-below"));
    }
    // Every button has an accessible name, and the keyboard moves from one to the next.
    let nameless = app.script(
        "return [...$('models').querySelectorAll('button, input, select')].filter(e =>
           !(e.getAttribute('aria-label') || e.innerText || e.labels?.length)).map(e => e.outerHTML)",
        json!(null),
    );
    assert_eq!(nameless, json!([]));
    app.script("$('models').focus()", json!(null));
    let mut reached = Vec::new();
    for _ in 0..8 {
        app.driver().keys(&["\u{E004}"]).expect("a key");
        let now = app.script(
            "return document.activeElement.dataset.testid || ''",
            json!(null),
        );
        reached.push(now.as_str().unwrap_or_default().to_owned());
    }
    for id in ["models-look", "models-close", "add-folder", "found-more"] {
        assert!(reached.iter().any(|r| r == id), "{id} in {reached:?}");
    }
    app.driver().keys(&["\u{E00C}"]).expect("a key");
    app.until("Escape closes it", |app| !app.is_shown("models"));
    open_page(&app);
    app.close();
}

/// Part of the built-in model's warning about documents that it was not made for.
const BEYOND: &str = "one plain sentence";

/// Until another model is opened, a line explains the built-in model's purpose and links to this page; with a user's
/// own document it names the model's limits before any question.
#[test]
fn the_built_in_model_states_its_limits() {
    let Some(home) = Home::new() else { return };
    let app = Launch::plain().open(&home);
    app.is_ready();
    let line = app.until("the line", |app| app.text("trying"));
    assert!(line.contains("demo model"), "{line}");
    assert!(!line.contains(BEYOND), "the sample it can read: {line}");
    app.picture("trying");
    let own = home.file(
        "own.txt",
        "The keeper went to the harbour and came back late.\n",
    );
    app.drop_files(&[&own]);
    app.shows_document("own.txt");
    let line = app.until("what it cannot do", |app| {
        app.text("trying").filter(|line| line.contains(BEYOND))
    });
    assert_eq!(app.count("turn"), 0, "before anything is asked: {line}");
    app.picture("beyond");
    app.click("trying-models");
    app.until("the page of models", |app| app.is_shown("models"));
    app.until("recommended models are there", |app| {
        app.count("catalogue-entry") >= 5
    });
    let entries = app.until("how fast this computer reads with each", |app| {
        let entries = app.texts("catalogue-entry");
        let measured = entries.iter().all(|e| e.contains("a minute here"));
        measured.then_some(entries)
    });
    assert!(
        entries
            .iter()
            .all(|e| e.contains("licence") && e.contains("of memory")),
        "{entries:?}"
    );
    app.picture("page");
    app.close();
}
