//! The vault in the app: a document is read once; the next question, also after a restart, uses the vault on disk, and
//! the app states it. The settings show the stored documents, and can change and delete them.
use std::fs;

use kept_tests::window::{ANSWER, App, Home, Launch, QUESTION};
use serde_json::Value;

/// Records every text that the progress of a question shows.
fn listen(app: &App<'_>) {
    app.script(
        "window.__said = []
         const look = () => { const said = $('progress')?.innerText.trim()
           if (said && window.__said.at(-1) !== said) window.__said.push(said) }
         window.__ear?.disconnect()
         window.__ear = new MutationObserver(look)
         window.__ear.observe(document.body, {subtree: true, childList: true, characterData: true})",
        Value::Null,
    );
}

fn said(app: &App<'_>) -> Vec<String> {
    let said = app.script("return window.__said", Value::Null);
    let said = said.as_array().expect("a list").iter();
    said.map(|s| s.as_str().expect("a text").to_owned())
        .collect()
}

/// Tokens of the last prompt, and the part of them from the vault.
fn tokens(app: &App<'_>) -> (u64, u64) {
    let turns = app.snapshot()["turns"].clone();
    let facts = &turns.as_array().expect("turns").last().expect("a turn")["facts"];
    let number = |name: &str| facts[name].as_u64().expect("a number");
    (number("promptTokens"), number("tokensFromVault"))
}

/// Waits for the line that describes the next prefill.
fn reads(app: &App<'_>, words: &str) {
    app.until(&format!("the line says {words:?}"), |app| {
        app.text("how-read").filter(|t| t.contains(words))
    });
}

fn asks(app: &App<'_>, question: &str) {
    app.ask(question);
    app.is_answered();
}

#[test]
fn later_questions_use_the_vault_even_after_a_restart() {
    let Some(home) = Home::new() else { return };
    let text = fs::read(kept_tests::golden::repository().join("assets/sample.txt"));
    let path = home.file("mine.txt", text.expect("the sample"));
    let app = Launch::plain().argument(&path).open(&home);
    app.shows_document("mine.txt");
    app.is_ready();
    reads(&app, "The first question reads");
    listen(&app);
    asks(&app, QUESTION);
    assert!(app.answer().contains(ANSWER), "{}", app.answer());
    let first = said(&app);
    assert!(
        first.iter().any(|s| s.starts_with("Reading")) && !first.join(" ").contains("vault"),
        "a first reading is a reading: {first:?}"
    );
    assert_eq!(tokens(&app).1, 0);
    reads(&app, "Already read");
    app.until("the memory bar shows what lies on the disk", |app| {
        app.text("memory-vault").filter(|t| t.contains("MiB"))
    });

    listen(&app);
    asks(&app, "Who keeps the light?");
    let second = said(&app);
    assert!(
        second.iter().any(|s| s.starts_with("Already read")),
        "{second:?}"
    );
    assert!(
        !second.iter().any(|s| s.starts_with("Reading")),
        "nothing is said to be read that is not: {second:?}"
    );
    let (prompt, known) = tokens(&app);
    assert!(known * 10 > prompt * 9, "{known} of {prompt}");
    let facts = app.texts("facts").pop().expect("facts");
    assert!(facts.contains("tokens from the vault"), "{facts}");
    app.picture("second-question");
    app.close();

    let app = Launch::plain().open(&home);
    app.shows_document("mine.txt");
    app.is_ready();
    reads(&app, "Already read");
    app.picture("after-a-restart");
    asks(&app, QUESTION);
    assert!(app.answer().contains(ANSWER), "{}", app.answer());
    let (prompt, known) = tokens(&app);
    assert!(known * 10 > prompt * 9, "{known} of {prompt}");
    app.close();
}

#[test]
fn the_settings_show_limit_and_delete_the_vault() {
    let Some(home) = Home::new() else { return };
    let app = kept_tests::window::first_start(&home);
    asks(&app, QUESTION);
    reads(&app, "Already read");
    app.click("settings-button");
    let uses = app.until("the settings say how much is kept", |app| {
        app.text("vault-use").filter(|t| t.contains("1 document"))
    });
    let vaults = home.path().join("cache/kept/vaults");
    assert!(
        uses.contains("MiB of") && uses.contains(&*vaults.to_string_lossy()),
        "{uses}"
    );
    let files = || {
        let files = fs::read_dir(&vaults).expect("the folder of vaults");
        let files = files.map(|file| file.expect("a file").path());
        let vault = |path: &std::path::PathBuf| path.extension().is_some_and(|e| e == "vault");
        files.filter(vault).count()
    };
    assert_eq!(files(), 1);
    app.script(
        "$('settings-keep').scrollIntoView({block: 'center'})",
        Value::Null,
    );
    app.picture("settings");

    // Invalid input is named, and the earlier value remains.
    app.write("settings-keep-budget", "much\u{E007}");
    app.says(&["“much”", "20 gib"]);
    assert_eq!(app.snapshot()["settings"]["keepBudget"], Value::Null);
    app.until("the field shows what holds", |app| {
        app.field("settings-keep-budget").is_empty()
    });
    app.write("settings-keep-budget", "1 GiB\u{E007}");
    app.until("the new limit is shown", |app| {
        app.text("vault-use").filter(|t| t.contains("of 1.0 GiB"))
    });

    app.choose("settings-keep", "off");
    reads(&app, "the vault is off");
    app.choose("settings-keep", "q8_0");
    reads(&app, "Already read");
    app.click("forget-vault");
    assert_eq!(files(), 1, "one click forgets nothing");
    app.click("forget-vault");
    app.says(&["the vault is empty"]);
    app.until("the settings say so", |app| {
        app.text("vault-use").filter(|t| t.contains("0 documents"))
    });
    assert_eq!(files(), 0);
    reads(&app, "The first question reads");
    app.picture("forgotten");
    app.driver().keys(&["\u{E00C}"]).expect("a key");
    app.until("the settings close", |app| !app.is_shown("settings"));
    asks(&app, QUESTION);
    assert_eq!(tokens(&app).1, 0, "it was read again");
    app.close();
}
