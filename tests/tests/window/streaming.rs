//! A document longer than the model's context length: the app states that it is read approximately, before, during and
//! after prefill, offers the methods that support streaming mode, and shows the kept rows in the map.
use crate::slow_models::small_model;
use kept_tests::window::{App, Home, Launch, TIMEOUT, first_start, words};
use serde_json::{Value, json};

/// Several times the built-in model's context length.
const BYTES: usize = 60_000;

#[test]
fn a_too_long_document_is_read_in_pieces() {
    let Some(home) = Home::new() else { return };
    let app = first_start(&home);
    assert_eq!(app.count("streaming"), 0, "the sample is short");
    app.drop_files(&[&home.file("long.txt", words(BYTES))]);
    app.shows_document("long.txt");
    is_announced(&app);
    other_methods_are_disabled(&app);
    an_unsuitable_method_is_refused(&app);
    answers_in_streaming_mode(&app);
    first_and_last_tokens_are_painted(&app);

    // The next question starts from the document's end, also after a restart.
    app.until("it is said that it need not be read", |app| {
        app.text("how-read").filter(|t| t.contains("Already read"))
    });
    app.close();
    let app = Launch::plain().open(&home);
    app.is_ready();
    the_next_question_uses_the_vault(&app);
    // Features that need the full cache explain its absence.
    app.click("compare-button");
    app.until("the comparison says why it cannot be made", |app| {
        app.text("compare-streaming")
            .filter(|t| t.contains("too long"))
    });
    app.picture("compare");
    app.close();
}

/// Before it is read, the page states that the document exceeds the context length.
fn is_announced(app: &App<'_>) {
    let says = app.until("it is said before it is read", |app| app.text("streaming"));
    for part in ["approximate", "in pieces", "may miss"] {
        assert!(says.contains(part), "{says}");
    }
    let now = app.snapshot();
    assert_eq!(now["document"]["tooLong"], Value::Null);
    assert_eq!(now["settings"]["method"], "auto");
    let context = now["model"]["context"].as_u64().expect("a number");
    let tokens = now["document"]["tokens"].as_u64().expect("a number");
    assert!(tokens > context, "{tokens} {context}");
    app.picture("before");
}

/// Methods without streaming mode are listed with the reason, and cannot be chosen.
fn other_methods_are_disabled(app: &App<'_>) {
    let methods = app.snapshot()["methods"].as_array().map(Vec::len);
    let methods = methods.expect("methods");
    app.click("method-menu");
    let offered = app.until("the menu is open", |app| {
        let offered = app.script(
            "return $$('method-menu-option').map(o => [o.dataset.value, o.getAttribute('aria-disabled')])",
            Value::Null,
        );
        (offered.as_array()?.len() == methods + 1).then_some(offered)
    });
    let able: Vec<&str> = (offered.as_array().expect("a list").iter())
        .filter(|o| o[1] == "false")
        .filter_map(|o| o[0].as_str())
        .collect();
    assert_eq!(
        able,
        ["auto", "streaming_llm", "h2o", "tova", "treekv", "ems"]
    );
    app.picture("menu");
    app.script(
        "$$('method-menu-option').find(o => o.dataset.value === 'snapkv').click()",
        Value::Null,
    );
    assert_eq!(app.snapshot()["settings"]["method"], "auto");
    app.driver().keys(&["\u{E00C}"]).expect("a key");
}

/// An earlier choice is not changed silently: it is refused, and others are offered.
fn an_unsuitable_method_is_refused(app: &App<'_>) {
    app.set(json!({"method": "snapkv", "maxTokens": 24}));
    app.reload();
    app.until("it says that this method cannot", |app| {
        app.count("streaming-stuck") == 1
    });
    app.write("composer", "Who counted the boxes?\u{E007}");
    app.says(&["snapkv cannot read"]);
    assert_eq!(app.count("turn"), 0, "nothing is asked in vain");
    assert!(app.field("composer").starts_with("Who counted"));
    app.picture("stuck");
    app.until("another method is one click away", |app| {
        let click = "const b = $$('streaming-method').find(b => b.dataset.value === 'streaming_llm'); b?.click(); return !!b";
        app.script(click, Value::Null) == true
});
    app.until("it is taken", |app| {
        app.snapshot()["settings"]["method"] == "streaming_llm"
    });
    assert_eq!(app.count("streaming-stuck"), 0);
}

/// Sends the question in the composer; progress and answer state that they are approximate.
fn answers_in_streaming_mode(app: &App<'_>) {
    app.driver()
        .click("[data-testid=composer]")
        .expect("a click");
    app.driver().keys(&["\u{E007}"]).expect("a key");
    app.until("it is said while it is read", |app| {
        app.text("progress")
            .filter(|t| t.contains("in pieces, approximate") && t.contains('%'))
    });
    app.picture("reading");
    app.is_answered();
    let facts = app.snapshot()["turns"][0]["facts"].clone();
    assert_eq!(facts["streamed"], true, "{facts}");
    let text = app.texts("turn").pop().expect("a turn");
    assert!(text.contains("Read in pieces"), "{text}");
}

/// The map of StreamingLLM, which keeps the first tokens and the last.
fn first_and_last_tokens_are_painted(app: &App<'_>) {
    app.script(
        "$('document').scrollTop = $('document').scrollHeight",
        Value::Null,
    );
    app.until("the end is painted", |app| {
        app.runs().iter().any(|&s| s > 0)
    });
    app.picture("answered");
    app.script(
        "$('document').scrollTop = $('document').scrollHeight / 2",
        Value::Null,
    );
    app.until("the middle is not", |app| {
        app.runs().iter().all(|&s| s == 0)
    });
    let share = app.text("kept-share").expect("how much is remembered");
    assert!(share.contains('%') && !share.contains("100"), "{share}");
    app.click("table-button");
    app.click("table-parts");
    let rows = app.until("the table has its rows", |app| {
        Some(app.count("table-row")).filter(|&rows| rows == 10)
    });
    assert_eq!(rows, 10);
    app.driver().keys(&["\u{E00C}"]).expect("a key");
}

fn the_next_question_uses_the_vault(app: &App<'_>) {
    app.ask("Who came back with the boxes?");
    app.is_answered();
    let facts = app.snapshot()["turns"][1]["facts"].clone();
    let (prompt, known) = (&facts["promptTokens"], &facts["tokensFromVault"]);
    let (prompt, known) = (prompt.as_u64(), known.as_u64());
    let (prompt, known) = (prompt.expect("a number"), known.expect("a number"));
    assert!(known * 10 > prompt * 9, "{known} of {prompt}");
    let said = app.texts("facts").pop().expect("facts");
    assert!(said.contains("tokens from the vault"), "{said}");
    app.picture("again");
}

/// Tokens of a document whose map has cells of several tokens: the maximum number of cells
/// (`engine/src/grid/cells.rs`).
const MAX_CELLS: u64 = 1 << 18;

/// A map of so many tokens is sent, painted and described in cells of several tokens.
#[test]
fn a_very_long_document_is_painted_in_cells() {
    let Some(home) = Home::new() else { return };
    let model = small_model(&home, "narrow.gguf", 2048);
    let app = Launch::plain()
        .argument("--model")
        .argument(model)
        .argument(home.file("vast.txt", words(400_000)))
        .open(&home);
    app.shows_document("vast.txt");
    let tokens = app.until("its tokens are counted", |app| {
        app.snapshot()["document"]["tokens"].as_u64()
    });
    assert!(tokens > MAX_CELLS, "{tokens}");
    app.choose_method("streaming_llm");
    app.set(json!({"maxTokens": 8, "budget": "64"}));
    app.reload();
    app.shows_document("vast.txt");
    app.ask("Who counted the boxes?");
    // This prefill takes longer than any wait of the other tests.
    let started = std::time::Instant::now();
    while app.state().as_deref() != Some("done") {
        let state = app.state();
        assert!(
            started.elapsed() < 6 * TIMEOUT && state.as_deref() != Some("failed"),
            "{state:?}: {:?}",
            app.texts("turn")
        );
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let turn = app.snapshot()["turns"][0]["id"].clone();
    let cell = |number: u64| app.invoke("map_token", &json!({"turn": turn, "token": number}));
    let first = cell(0).expect("a cell");
    assert_eq!(first["tokens"], 2, "two tokens share a cell: {first}");
    assert!(cell(MAX_CELLS).is_err(), "no more cells than that");
    let last = cell((tokens - 1) / 2).expect("the last cell");
    let length = app.snapshot()["document"]["length"].clone();
    assert_eq!(last["end"], length, "they reach to the end of the text");

    // The newest tokens are kept, and painted at their place; the middle is not.
    app.script(
        "$('document').scrollTop = $('document').scrollHeight",
        Value::Null,
    );
    app.until("the end is painted", |app| {
        app.runs().iter().any(|&share| share > 0)
    });
    app.picture("cells");
    app.script(
        "$('document').scrollTop = $('document').scrollHeight / 2",
        Value::Null,
    );
    app.until("the middle is not", |app| {
        app.runs().iter().all(|&share| share == 0)
    });
    app.click("table-button");
    app.click("table-parts");
    app.until(
        "the table has its rows, and only the last keeps much",
        |app| {
            let rows = app.texts("table-row");
            let kept = |row: &String| !row.contains("0 %\t0 %");
            rows.len() == 10 && kept(&rows[9])
        },
    );
    app.close();
}
