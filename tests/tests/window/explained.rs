//! What explains the map: the page with less memory, the replay of an answer, two memories side by side, the grid of layers,
//! the details of a word, and what can be saved of them.
use kept_tests::window::{ANSWER, App, Dialog, Home, Launch, QUESTION, answered, first_start};
use serde_json::{Value, json};

/// [`answered`] with SnapKV, which looks at the question.
#[track_caller]
fn answered_by_snapkv(home: &Home) -> App<'_> {
    let app = first_start(home);
    app.choose_method("snapkv");
    app.ask(QUESTION);
    app.is_answered();
    app.until("the document is painted", |app| {
        app.runs().iter().any(|&share| share > 0)
    });
    app
}

/// The middle of the first element with this id, in pixels of the page.
#[track_caller]
fn middle(app: &App<'_>, id: &str) -> (i64, i64) {
    let script = "const r = $(args[0]).getBoundingClientRect()
        return [r.left + r.width / 2, r.top + r.height / 2].map(Math.round)";
    let place = app.script(script, id);
    let at = |i: usize| place[i].as_i64().expect("a number");
    (at(0), at(1))
}

/// The percentage of the slider.
#[track_caller]
fn memory(app: &App<'_>) -> i64 {
    let now = app.attribute("memory-slider", "aria-valuenow");
    now.and_then(|now| now.parse().ok()).expect("a percentage")
}

#[test]
fn the_page_is_shown_with_less_memory() {
    let Some(home) = Home::new() else { return };
    let app = answered_by_snapkv(&home);
    let own = memory(&app);
    app.script("$('memory-slider').focus()", Value::Null);
    app.until("what smaller budgets keep is known", |app| {
        app.snapshot()["turns"][0]["levelsDone"] == true
    });
    app.until("it is on the page", |app| {
        let said = app.text("memory-said")?;
        (said.contains("is forgotten") || said.contains("is left")).then_some(())
    });
    let before = app.runs();
    app.picture("own");
    app.driver().keys(&["\u{E011}"]).expect("Home");
    app.until("the smallest memory is shown", |app| {
        let fewer = app.runs().len() < before.len() || app.runs().iter().all(|&share| share == 0);
        memory(app) < own && fewer
    });
    let said = app.text("kept-share").expect("words");
    assert!(said.contains("With a memory of"), "{said}");
    app.picture("least");
    app.driver().keys(&["\u{E010}"]).expect("End");
    app.until("with everything nothing is highlighted", |app| {
        memory(app) == 100 && app.runs().iter().all(|&share| share == 0)
    });
    app.click("memory-own");
    app.until("the answer's own map is back", |app| {
        memory(app) == own && app.runs() == before
    });
    app.close();
}

/// TreeKV forgets while it answers: the answer is replayed with what was remembered at each moment, also after a restart.
#[test]
fn an_answer_is_replayed_with_what_was_forgotten_during_it() {
    let Some(home) = Home::new() else { return };
    let app = first_start(&home);
    app.choose_method("treekv");
    app.ask(QUESTION);
    app.is_answered();
    let summary = |app: &App<'_>| {
        app.text("replay-said")
            .filter(|said| said.starts_with("While answering, the model forgot"))
    };
    let end = app.runs_because_of_the_question();
    let forgot = app.until("what was forgotten is said", summary);
    let moment = |app: &App<'_>| -> Option<u64> {
        let now = app.attribute("replay-slider", "aria-valuenow")?;
        now.parse().ok()
    };
    let steps = moment(&app).expect("a number");
    // What flashes is gone soon.
    let watch = "window.flashed = 0
        new MutationObserver(() => (window.flashed = Math.max(window.flashed, $$('strip-lost').length)))
            .observe($('strip').parentElement, { childList: true })
        $('replay-slider').focus()";
    app.script(watch, Value::Null);
    app.driver().keys(&["\u{E011}"]).expect("Home");
    app.until("the map from before the answer is shown", |app| {
        let share = app.text("kept-share")?;
        (moment(app)? == 0 && share.starts_with("At this moment")).then_some(())
    });
    assert_eq!(
        app.text("replay-said").as_deref(),
        Some("Before the answer")
    );
    app.picture("replay-before");
    for step in 1..=steps {
        app.driver().keys(&["\u{E014}"]).expect("ArrowRight");
        app.until("the next moment is shown", |app| {
            (moment(app)? == step).then_some(())
        });
    }
    let flashed = app.script("return window.flashed", Value::Null);
    assert!(flashed.as_u64() > Some(0), "{flashed}");
    let said = app.text("replay-said").expect("words");
    assert!(
        said.contains(ANSWER) && said.contains("forgotten"),
        "{said}"
    );
    app.picture("replay");
    app.click("replay-play");
    app.until("it plays from the beginning to the end", |app| {
        let plays = app.attribute("replay-play", "aria-label")? == "Pause";
        (moment(app)? == steps && !plays).then_some(())
    });
    app.click("replay-end");
    app.until("the answer's own map is back", |app| {
        summary(app).filter(|_| app.runs() == end)
    });
    app.close();
    let app = Launch::plain().open(&home);
    let again = app.until("it is known after a restart", summary);
    assert_eq!(again, forgot);
    app.choose_method("snapkv");
    app.click("ask-again");
    app.until("a method that forgets nothing while it answers", |app| {
        let turns = app.snapshot()["turns"].clone();
        (turns.as_array()?.len() == 2 && turns[1]["state"] == "done").then_some(())
    });
    app.until("has no replay", |app| !app.is_shown("replay"));
    app.close();
}

#[test]
fn two_methods_are_compared_side_by_side() {
    let Some(home) = Home::new() else { return };
    let app = answered_by_snapkv(&home);
    app.click("compare");
    app.until("what to compare can be chosen", |app| {
        app.is_shown("compare-setup")
    });
    app.click("compare-none");
    for method in ["snapkv", "streaming_llm"] {
        let tick = "$$('compare-method').find(e => e.dataset.value === args[0]).click()";
        app.script(tick, method);
    }
    let budgets = "$$('compare-budget').forEach(e => { if (e.checked !== (e.dataset.value === '25%')) e.click() })";
    app.script(budgets, Value::Null);
    app.click("compare-start");
    app.until("it is done", |app| {
        (app.attribute("compare-status", "data-state")? == "done").then_some(())
    });
    let chosen = app.until("both are there", |app| {
        let names = app.script(
            "return ['a', 'b'].map(s => { const e = $('sides-choose-' + s); return e && e.selectedOptions[0].innerText })",
            Value::Null,
        );
        let all = names[0].is_string() && names[1].is_string();
        (all && app.is_shown("sides-mark")).then_some(names)
    });
    assert_eq!(chosen, json!(["SnapKV, 25 %", "StreamingLLM, 25 %"]));
    let passage = app.text("sides-passage").expect("words");
    assert!(
        passage.contains("B 0 %") || passage.contains("B < "),
        "the passage is not recent: {passage}"
    );
    let shares = app.texts("sides-share");
    assert!(shares.iter().all(|share| share.contains('%')), "{shares:?}");
    assert!(
        app.count("sides-sentence") > 0,
        "some are remembered by one only"
    );
    let (x, y) = middle(&app, "sides-lane");
    app.driver().point(x, y, false).expect("the mouse moves");
    app.until("the place is named", |app| app.text("sides-hint"));
    app.picture("sides");
    app.click("sides-use-b");
    app.until("the next question uses it", |app| {
        app.snapshot()["settings"]["method"] == "streaming_llm"
    });
    // The same question with it: another version of the answer.
    app.click("ask-again");
    app.until("it is answered", |app| {
        let turns = app.snapshot()["turns"].clone();
        (turns.as_array()?.len() == 2 && turns[1]["state"] == "done").then_some(())
    });
    app.click("versions-compare");
    app.until("both versions are side by side", |app| {
        app.text("sides-passage")
    });
    app.picture("versions");
    app.click("sides-sentence");
    app.until("a sentence leads to the page", |app| {
        !app.is_shown("versions-compared")
    });
    app.close();
}

#[test]
fn the_grid_shows_layers_and_heads_with_the_cursor_of_the_page() {
    let Some(home) = Home::new() else { return };
    let app = answered(&home);
    let layers = app.snapshot()["model"]["layers"].as_u64().expect("layers");
    let heads = app.snapshot()["model"]["kvHeads"].as_u64().expect("heads");
    let rows = |app: &App<'_>| -> Option<u64> {
        let ready = app.attribute("grid-cells", "data-drawn")? == "true";
        let rows = app.attribute("grid-cells", "data-rows")?.parse().ok()?;
        ready.then_some(rows)
    };
    app.click("grid-button");
    app.until("it has a row for each layer", |app| {
        (rows(app)? == layers).then_some(())
    });
    app.click("grid-heads");
    app.until("and one for each head", |app| {
        (rows(app)? == layers * (1 + heads)).then_some(())
    });
    let (x, y) = middle(&app, "grid-cells");
    let mut nudge = 0;
    let said = app.until("the cell under the mouse is named", |app| {
        nudge = 1 - nudge;
        let moved = app.driver().point(x + nudge, y, false);
        moved.expect("the mouse moves");
        app.text("grid-said")
            .filter(|said| said.starts_with("Layer"))
    });
    assert!(said.contains("remembered"), "{said}");
    app.picture("grid");
    // What the answer looked at, by layer and head.
    app.click("grid-attention");
    let said = app.until(
        "the cell says what share of the attention went there",
        |app| {
            nudge = 1 - nudge;
            let moved = app.driver().point(x + nudge, y, false);
            moved.expect("the mouse moves");
            let said = app.text("grid-said")?;
            (rows(app)? == layers * (1 + heads) && said.contains("of its attention"))
                .then_some(said)
        },
    );
    assert!(said.starts_with("Layer"), "{said}");
    app.picture("grid-attention");
    app.click("grid-memory");
    app.until("memory is drawn again", |app| rows(app));
    app.driver().point(x, y, true).expect("a click");
    app.until("the page goes there, with the word's card", |app| {
        app.text("word-said").filter(|said| said.contains("slot"))
    });
    app.until("its heads are drawn", |app| app.is_shown("word-matrix"));
    app.picture("card");
    app.driver().keys(&["\u{E00C}"]).expect("Escape");
    app.until("the card is closed", |app| !app.is_shown("word-card"));
    // The other way: the page's cursor is the grid's.
    let word = app.until("a painted word is on the screen", |app| {
        let script = "const box = $('document').getBoundingClientRect()
            const run = $$('run').find(e => { const r = e.getBoundingClientRect(); return r.top > box.top + 8 && r.bottom < box.bottom - 8 })
            if (!run) { $('document').scrollBy(0, 40); return null }
            const r = run.getBoundingClientRect(); return [r.left + 4, r.top + r.height / 2].map(Math.round)";
        let place = app.script(script, Value::Null);
        Some((place[0].as_i64()?, place[1].as_i64()?))
    });
    app.until("the grid shows where it is", |app| {
        nudge = 1 - nudge;
        let moved = app.driver().point(word.0 + nudge, word.1, false);
        moved.expect("the mouse moves");
        app.is_shown("grid-cursor")
    });
    app.close();
}

/// The grid as a picture, and the list of sentences as a table.
#[test]
fn pictures_and_sentences_are_saved() {
    let Some(home) = Home::new() else { return };
    let app = answered(&home);
    app.click("grid-button");
    app.until("the grid is drawn", |app| {
        (app.attribute("grid-cells", "data-drawn")? == "true").then_some(())
    });
    let save = |title, button, name: &str| {
        let path = home.path().join(name);
        let dialog = Dialog { title, button };
        let text = path.to_str().expect("a path in UTF-8");
        dialog.choose(&app, text, |_| path.metadata().is_ok_and(|m| m.len() > 0));
        std::fs::read(&path).expect("the file")
    };
    let png = save("Save the picture", "grid-png", "grid.png");
    assert!(png.starts_with(b"\x89PNG"), "{} bytes", png.len());
    let svg = save("Save the picture", "grid-svg", "grid.svg");
    let svg = String::from_utf8(svg).expect("text");
    assert!(
        svg.contains("What each layer remembers") && svg.contains("<path"),
        "{svg:.300}"
    );
    app.click("table-button");
    app.until("the sentences are there", |app| app.count("sentence") > 0);
    let csv = save("Save the table", "sentences-save", "sentences.csv");
    let csv = String::from_utf8(csv).expect("text");
    assert!(csv.starts_with("\u{feff}sentence,page,"), "{csv:.100}");
    assert!(
        csv.contains("The locker code of Ann Quorvin is 4711."),
        "{csv:.300}"
    );
    app.close();
}

#[test]
fn a_word_of_the_answer_shows_what_it_looked_at() {
    let Some(home) = Home::new() else { return };
    let app = answered_by_snapkv(&home);
    let explains = "return $('answer')?.dataset.explains === 'true'";
    app.until("the answer explains its words", |app| {
        app.script(explains, Value::Null) == true
    });
    assert_eq!((app.count("glow"), app.count("looked")), (0, 0));
    app.script("$('answer').focus()", Value::Null);
    let shown = "return document.querySelector('.said.shown')?.textContent ?? null";
    app.until("the code is shown", |app| {
        app.driver().keys(&["\u{E014}"]).expect("ArrowRight");
        app.script(shown, Value::Null) == ANSWER
    });
    app.until("what it looked at is said", |app| {
        app.text("looked")?.contains(ANSWER).then_some(())
    });
    assert!(app.count("strip-glow") > 0);
    app.driver().keys(&["\u{E007}"]).expect("Enter");
    app.until("the page shows it", |app| app.count("glow") > 0);
    app.picture("looked");
    app.driver().keys(&["\u{E00C}"]).expect("Escape");
    app.until("nothing glows", |app| {
        app.count("glow") + app.count("strip-glow") + app.count("looked") == 0
    });
    app.close();
}
