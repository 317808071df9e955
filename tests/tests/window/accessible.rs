//! Every view of the window under axe-core, light and dark: it finds nothing.
use std::fs;

use kept_tests::golden;
use kept_tests::hub::{Hub, REPO};
use kept_tests::window::{App, Home, Launch, QUESTION, first_start};
use serde_json::{Value, json};

use crate::earlier::conversation;
use crate::library::{click_in, download_is, page_of_models, with_hub};

const ESCAPE: &str = "\u{E00C}";

/// What axe finds, over all views.
struct Audit {
    source: String,
    found: Vec<String>,
}

impl Audit {
    /// An audit with axe-core of the page's packages; `None`, with a line, if these are not installed.
    fn begin() -> Option<Self> {
        let path = golden::repository().join("ui/node_modules/axe-core/axe.min.js");
        match fs::read_to_string(&path) {
            Ok(source) => Some(Self {
                source,
                found: Vec::new(),
            }),
            Err(error) => {
                let why = format!("{}: {error}; make run installs it", path.display());
                assert!(std::env::var("CI").as_deref() != Ok("true"), "{why}");
                eprintln!("skipped: {why}");
                None
            }
        }
    }

    /// Looks at the page as it is now, in both themes.
    #[track_caller]
    fn look(&mut self, app: &App<'_>, view: &str) {
        let loaded = app.script("return typeof window.axe === 'object'", Value::Null);
        if loaded == false {
            let run = app.driver().execute(&self.source, &json!([]));
            run.unwrap_or_else(|error| app.give_up(&format!("axe does not load: {error}")));
        }
        for theme in ["light", "dark"] {
            // Transitions would be measured half-way.
            let script = "const done = arguments[arguments.length - 1]
                document.documentElement.dataset.theme = arguments[0]
                const still = document.getElementById('axe-still') ?? document.head.appendChild(Object.assign(document.createElement('style'), { id: 'axe-still' }))
                still.textContent = '*, *::before, *::after { transition: none !important; animation: none !important }'
                const place = (node) => `${node.target.join(' ')} ${node.html.slice(0, 160)}`
                const why = (node) => [...node.any, ...node.all, ...node.none].map((check) => check.message).join('; ')
                axe.run(document, { resultTypes: ['violations'] }).then(
                    ({ violations }) => done(violations.flatMap((v) => v.nodes.map((node) => `${v.id}: ${place(node)} (${why(node)})`))),
                    (error) => done([`axe failed: ${error}`]))";
            let found = app.driver().execute_async(script, &json!([theme]));
            let found = found.unwrap_or_else(|error| app.give_up(&format!("{view}: {error}")));
            let found = found.as_array().into_iter().flatten();
            let found = found.filter_map(Value::as_str);
            self.found
                .extend(found.map(|what| format!("{view}, {theme}: {what}")));
            app.picture(&format!("{view}-{theme}"));
        }
    }

    /// Nothing was found.
    fn ends(self) {
        assert!(self.found.is_empty(), "{}", self.found.join("\n"));
    }
}

fn escape(app: &App<'_>) {
    app.driver().keys(&[ESCAPE]).expect("a key");
}

#[track_caller]
fn is_there(app: &App<'_>, id: &str) {
    app.until(&format!("{id} is shown"), |app| app.is_shown(id));
}

/// Clicks `button`, audits what it opens as `shown`, and closes it with Escape.
#[track_caller]
fn sheet(audit: &mut Audit, app: &App<'_>, button: &str, shown: &str) {
    app.click(button);
    is_there(app, shown);
    audit.look(app, shown);
    escape(app);
    app.until(&format!("{shown} closes"), |app| !app.is_shown(shown));
}

#[test]
fn axe_finds_nothing_in_documents_conversations_and_their_dialogs() {
    let Some(mut audit) = Audit::begin() else {
        return;
    };
    let Some(home) = Home::new() else { return };
    let app = conversation(&home);
    audit.look(&app, "answered");
    app.script(
        "const e = $('document'); e.scrollTop = e.scrollHeight",
        Value::Null,
    );
    is_there(&app, "earlier");
    audit.look(&app, "earlier-turns");
    for (button, shown) in [
        ("settings-button", "settings"),
        ("table-button", "table"),
        ("method-menu", "method-menu-option"),
        ("model-menu", "model-menu-option"),
        ("advanced", "advanced-panel"),
    ] {
        sheet(&mut audit, &app, button, shown);
    }
    app.click("contents-button");
    is_there(&app, "outline");
    audit.look(&app, "outline");
    app.click("contents-button");
    app.driver().keys(&["\u{E031}"]).expect("F1");
    is_there(&app, "shortcuts");
    audit.look(&app, "shortcuts");
    escape(&app);
    app.click("table-button");
    app.click("table-parts");
    audit.look(&app, "table-parts");
    app.click("table-layers");
    audit.look(&app, "table-layers");
    escape(&app);
    app.driver().keys(&["\u{E009}", "f"]).expect("keys");
    is_there(&app, "find-bar");
    app.write("find", "the");
    audit.look(&app, "find");
    escape(&app);
    app.click("sidebar-button");
    is_there(&app, "conversations");
    audit.look(&app, "conversations");
    app.write("conversation-search", "harbour");
    app.until("passages are found", |app| app.count("found-passage") > 0);
    audit.look(&app, "found");
    app.close();
    audit.ends();
}

#[test]
fn axe_finds_nothing_in_what_explains_the_map() {
    let Some(mut audit) = Audit::begin() else {
        return;
    };
    let Some(home) = Home::new() else { return };
    let app = first_start(&home);
    app.choose_method("snapkv");
    app.ask(QUESTION);
    app.is_answered();
    app.until("the answer explains its words", |app| {
        (app.attribute("answer", "data-explains")? == "true").then_some(())
    });
    app.script("$('answer').focus()", Value::Null);
    app.until("a word shows what it looked at", |app| {
        app.driver().keys(&["\u{E014}"]).expect("ArrowRight");
        app.is_shown("looked")
    });
    audit.look(&app, "looked");
    app.script("$('memory-slider').focus()", Value::Null);
    app.until("what smaller budgets keep is known", |app| {
        app.snapshot()["turns"][0]["levelsDone"] == true
    });
    audit.look(&app, "less-memory");
    app.click("grid-button");
    is_there(&app, "grid");
    audit.look(&app, "grid");
    app.click("grid-close");
    let script = "const box = $('document').getBoundingClientRect()
        const r = $$('run').map((run) => run.getClientRects()[0]).find((r) => r && r.width > 4 && r.top > box.top + 4 && r.bottom < box.bottom - 4)
        return [r.left + r.width / 2, r.top + r.height / 2].map(Math.round)";
    let place = app.script(script, Value::Null);
    let at = |i: usize| place[i].as_i64().expect("a number");
    app.driver().point(at(0), at(1), true).expect("a click");
    is_there(&app, "word-card");
    audit.look(&app, "word-card");
    escape(&app);
    app.choose_method("streaming_llm");
    app.click("ask-again");
    app.until("another version is there", |app| {
        let turns = app.snapshot()["turns"].clone();
        (turns.as_array()?.len() == 2 && turns[1]["state"] == "done").then_some(())
    });
    audit.look(&app, "versions");
    app.click("versions-compare");
    is_there(&app, "versions-compared");
    audit.look(&app, "versions-compared");
    escape(&app);
    app.click("compare");
    is_there(&app, "compare-setup");
    audit.look(&app, "compare-setup");
    app.click("compare-start");
    app.until("it is done", |app| {
        (app.attribute("compare-status", "data-state")? == "done").then_some(())
    });
    audit.look(&app, "compared");
    app.click("compare-figures");
    audit.look(&app, "compare-figures");
    app.click("compare-details");
    audit.look(&app, "compare-details");
    app.close();
    audit.ends();
}

#[test]
fn axe_finds_nothing_while_files_arrive() {
    let Some(mut audit) = Audit::begin() else {
        return;
    };
    const FILE: &str = "harbour-Q8_0.gguf";
    let hub = Hub::with(&[(FILE, &vec![0; 3 << 20])]);
    let Some(home) = Home::new() else { return };
    let app = page_of_models(&with_hub(&hub), &home);
    hub.gate(1 << 20);
    app.write("hub-name", &format!("{REPO}\u{E007}"));
    is_there(&app, "hub-offer");
    audit.look(&app, "offers");
    click_in(&app, "hub-offer", "reference", FILE, "get");
    download_is(&app, FILE, "downloading");
    audit.look(&app, "downloading");
    click_in(&app, "download", "reference", FILE, "download-pause");
    download_is(&app, FILE, "paused");
    audit.look(&app, "paused");
    escape(&app);
    let text = home.file("harbour.txt", "The ferry leaves at noon.");
    let held = app.hold(&[&text]);
    audit.look(&app, "drop-zone");
    // An engine that does not answer opens nothing.
    let worker = app.worker().expect("the engine");
    worker.signal("STOP");
    held.let_go();
    is_there(&app, "opening");
    audit.look(&app, "opening");
    worker.signal("CONT");
    app.shows_document("harbour.txt");
    app.drop_files(&[&golden::repository().join("documents/tests/fixtures/password.pdf")]);
    is_there(&app, "unlock");
    audit.look(&app, "unlock");
    app.click("unlock-no");
    // With languages to choose from, or with what to install.
    app.drop_files(&[&golden::repository().join("documents/tests/fixtures/scan.pdf")]);
    is_there(&app, "recognise");
    audit.look(&app, "recognise");
    app.click("recognise-no");
    app.close();
    audit.ends();
}

#[test]
fn axe_finds_nothing_in_models_errors_and_the_empty_window() {
    let Some(mut audit) = Audit::begin() else {
        return;
    };
    let Some(home) = Home::new() else { return };
    let app = first_start(&home);
    audit.look(&app, "first-start");
    app.click("model-menu");
    app.click("models-button");
    is_there(&app, "models");
    app.until("the models are listed", |app| {
        app.count("catalogue-entry") > 0
    });
    audit.look(&app, "models");
    app.script(
        "$('models').scrollTop = $('models').scrollHeight",
        Value::Null,
    );
    audit.look(&app, "models-below");
    escape(&app);
    // A document that cannot be read, and one beyond the context length.
    app.drop_files(&[&home.file("broken.pdf", "%PDF-1.7 nothing")]);
    app.until("a notice says why", |app| !app.notices().is_empty());
    audit.look(&app, "notice");
    app.close_notices();
    let long = "The ferry leaves at noon from the old quay. ".repeat(2000);
    let long = home.file("long.txt", long);
    app.ask("Who was told about the safe, and by whom, and when was it?");
    app.drop_files(&[&long]);
    app.shows_document("long.txt");
    // Unless the answer was there before the document.
    if app.is_shown("elsewhere") {
        audit.look(&app, "elsewhere");
    }
    is_there(&app, "streaming");
    audit.look(&app, "streaming");
    // No document, and a conversation without one.
    app.click("settings-button");
    app.click("close-document");
    is_there(&app, "empty");
    audit.look(&app, "empty");
    app.click("chat");
    app.until("a conversation without a document", |app| {
        !app.is_shown("chat")
    });
    app.ask("Hello, who are you?");
    app.is_answered();
    audit.look(&app, "chat");
    app.close();

    // An engine that cannot start.
    let app = Launch::plain()
        .variable("KEPT_WORKER", "/nowhere/kept-worker")
        .open(&home);
    app.until("the failure is shown", |app| {
        app.is_shown("worker-message") || app.is_shown("restart-button")
    });
    audit.look(&app, "engine-failed");
    app.close();
    audit.ends();
}
