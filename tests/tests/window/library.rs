//! Helpers for the models page: opening it, and finding its rows.

use std::fs;

use kept_tests::hub::Hub;
use kept_tests::window::{App, Home, Launch};
use serde_json::{Value, json};

/// A hub, with its cache in the user's home, for [`Launch`].
pub fn with_hub(hub: &Hub) -> Launch {
    let home = hub.home.path().join(".cache/huggingface");
    Launch::plain()
        .variable("HF_ENDPOINT", &hub.endpoint())
        .variable("HF_HOME", home.to_str().expect("a path in UTF-8"))
}

/// Opens the app with the built-in model as the stored choice, and its models page.
#[track_caller]
pub fn page_of_models<'h>(launch: &Launch, home: &'h Home) -> App<'h> {
    // Without a stored choice the first start uses a model found in the home folder.
    let chosen = home.path().join("config/kept/model");
    fs::create_dir_all(chosen.parent().expect("a folder")).expect("the folder");
    fs::write(chosen, "mini").expect("the choice");
    let app = launch.open(home);
    app.is_ready();
    open_page(&app);
    app
}

/// Opens the models page by its keyboard shortcut.
#[track_caller]
pub fn open_page(app: &App<'_>) {
    app.until("the page of models is there", |app| {
        app.script(
            "document.activeElement?.blur(); document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'm', ctrlKey: true, bubbles: true}))",
            Value::Null,
        );
        app.is_shown("models") && app.count("found") > 0
});
}

/// Evaluates `what`, an expression of `row`, on the row whose `attribute` is `name`. `None` if no row matches.
#[track_caller]
pub fn of_row(app: &App<'_>, rows: &str, attribute: &str, name: &str, what: &str) -> Option<Value> {
    let script = format!(
        "const row = $$(args[0]).find(e => (e.dataset[args[1]] || '').includes(args[2])); if (!row) return null
         const inside = id => row.querySelector(`[data-testid=\"${{id}}\"]`); return {what}"
    );
    let found = app.script(&script, json!([rows, attribute, name]));
    (!found.is_null()).then_some(found)
}

/// Clicks on an element inside a row, once it is clickable.
#[track_caller]
pub fn click_in(app: &App<'_>, rows: &str, attribute: &str, name: &str, id: &str) {
    app.until(&format!("{id} of {name} can be clicked"), |app| {
        let click = format!(
            "(e => e && !e.disabled ? (e.scrollIntoView({{block: 'center'}}), e.click(), true) : null)(inside('{id}'))"
        );
        of_row(app, rows, attribute, name, &click)
    });
}

/// The text of a row.
#[track_caller]
pub fn row_text(app: &App<'_>, rows: &str, attribute: &str, name: &str) -> Option<String> {
    let text = of_row(app, rows, attribute, name, "row.innerText")?;
    Some(text.as_str()?.replace(['\u{a0}', '\u{202f}'], " "))
}

/// Waits until the download of this file is in this state.
#[track_caller]
pub fn download_is(app: &App<'_>, file: &str, state: &str) {
    app.until(&format!("the download of {file} is {state}"), |app| {
        let now = of_row(app, "download", "reference", file, "row.dataset.state")?;
        (now == state).then_some(())
    });
}

/// Asserts that no line of the page is wider than the page, and that no element crosses its edge.
#[track_caller]
pub fn nothing_sticks_out(app: &App<'_>) {
    let wide = app.script(
        "const page = $('models'); const right = page.getBoundingClientRect().right
         return [...page.querySelectorAll('*')].filter(e => {
           const r = e.getBoundingClientRect(); return r.width > 1 && r.right > right + 1 }).map(e => e.outerHTML.slice(0, 120))",
        Value::Null,
    );
    assert_eq!(wide, json!([]), "nothing lies over the edge");
}
