//! A new user's first steps: the sample document, a question, the answer. The map, files, the worker's death, restarts
//! and long documents are tested in the other files of this folder.
use kept_tests::window::{ANSWER, Home, Launch, OFFERED, QUESTION, answered, first_start};
use serde_json::{Value, json};

#[test]
fn a_first_start_shows_the_sample_and_a_question() {
    let Some(home) = Home::new() else { return };
    let app = first_start(&home);
    assert_eq!(
        app.texts("suggestion").first().map(String::as_str),
        Some(OFFERED)
    );
    let text = app.text("document").expect("a document");
    let sample =
        std::fs::read_to_string(kept_tests::golden::repository().join("assets/sample.txt"));
    let sample = sample.expect("the sample");
    let first = sample.lines().next().expect("a line");
    assert!(text.contains(first), "{text}");
    assert_eq!(app.count("turn"), 0);
    assert_eq!(app.notices(), []);
    let says = app.until("what the question would take is shown", |app| {
        app.text("memory-weights")
            .filter(|t| t.chars().any(|c| c.is_ascii_digit()))
    });
    assert!(says.contains('B'), "a size has a unit: {says}");
    app.picture("first-start");
    app.click("suggestion");
    let question = app.until(
        "the offered question is asked or stands in the field",
        |app| {
            let asked = app.text("question");
            asked.or_else(|| Some(app.field("composer")).filter(|f| !f.is_empty()))
        },
    );
    assert!(question.contains(OFFERED), "{question}");
    app.close();
}

/// The main test. `KEPT_E2E_RUNS=20` runs it twenty times.
#[test]
fn an_answer_is_streamed_and_the_kept_words_are_painted() {
    let runs =
        std::env::var("KEPT_E2E_RUNS").map_or(1, |n| n.parse().expect("KEPT_E2E_RUNS is a number"));
    for run in 1..=runs {
        if runs > 1 {
            eprintln!("run {run} of {runs}");
        }
        ask_the_sample();
    }
}

fn ask_the_sample() {
    let Some(home) = Home::new() else { return };
    let app = first_start(&home);
    assert!(
        app.runs().iter().all(|&share| share == 0),
        "nothing is kept before a question"
    );
    app.script(
        "window.__states = []
         const look = () => { const t = $$('turn').at(-1), s = t && t.dataset.state
           if (s && window.__states.at(-1) !== s) window.__states.push(s) }
         new MutationObserver(look).observe(document.body, {subtree: true, childList: true, attributes: true})",
        Value::Null,
    );
    app.ask(QUESTION);
    app.is_answered();
    let states = app.script("return window.__states", Value::Null);
    let states: Vec<&str> = states
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let expected = ["asked", "reading", "answering", "done"];
    assert!(
        states == expected || states == expected[1..],
        "the states in order: {states:?}"
    );

    let answer = app.answer();
    assert!(answer.contains(ANSWER), "{answer:?}");
    assert_eq!(app.text("question").as_deref(), Some(QUESTION));
    assert_eq!(
        app.field("composer"),
        "",
        "the field is free for the next question"
    );

    app.until("the document is painted", |app| {
        app.runs().iter().any(|&share| share > 0)
    });
    assert!(
        app.runs().iter().all(|&share| share <= 100),
        "{:?}",
        app.runs()
    );
    app.until("the strip is painted", |app| app.strip_colours() > 3);
    app.until("the legend has its ends", |app| {
        let legend = app.text("legend")?;
        let ends = [["Forgotten", "remembered"], ["Weak", "strong"]];
        let is_there = |ends: &[&str; 2]| ends.iter().all(|end| legend.contains(end));
        ends.iter().any(is_there).then_some(())
    });
    let facts = app.text("facts").expect("facts of the answer");
    assert!(facts.chars().any(|c| c.is_ascii_digit()), "{facts}");
    for key in [
        "memory-weights",
        "memory-kept",
        "memory-scratch",
        "memory-free",
    ] {
        let figure = app
            .text(key)
            .unwrap_or_else(|| app.give_up(&format!("{key} is missing")));
        assert!(
            figure.chars().any(|c| c.is_ascii_digit()),
            "{key}: {figure}"
        );
    }
    let share = app
        .text("kept-share")
        .expect("how much of the document is in memory");
    assert!(share.contains('%'), "{share}");
    let compressed = app
        .text("compressed-for")
        .expect("what it was compressed for");
    assert!(compressed.contains(QUESTION), "{compressed}");
    app.picture("answered");
    app.close();
}

#[test]
fn a_question_is_asked_again_with_another_method() {
    let Some(home) = Home::new() else { return };
    let app = answered(&home);
    let first = app.snapshot()["turns"][0].clone();
    app.set(json!({"method": "streaming_llm", "budget": "64"}));
    app.reload();
    app.until("the page is back, with the conversation", |app| {
        app.count("turn") == 1
    });
    app.click("ask-again");
    let second = app.until("there is a second answer", |app| {
        let turns = app.snapshot()["turns"].clone();
        let last = turns.as_array()?.last()?.clone();
        (last["id"] != first["id"] && last["state"] == "done").then_some(last)
    });
    assert_eq!(second["question"], QUESTION);
    assert_eq!(second["method"], "streaming_llm");
    assert!(
        second["facts"]["keptBytes"].as_u64() < first["facts"]["keptBytes"].as_u64(),
        "{second}"
    );
    app.close();
}

/// With a model of the user's own, here a copy of the built-in one.
#[test]
fn a_follow_up_sees_earlier_questions_until_asked_without() {
    let Some(home) = Home::new() else { return };
    let assets = kept_tests::golden::repository().join("assets");
    let bytes = |name: &str| std::fs::read(assets.join(name)).expect(name);
    let app = Launch::plain()
        .argument(home.file("handbook.txt", bytes("sample.txt")))
        .argument("--model")
        .argument(home.file("talks.gguf", bytes("mini.gguf")))
        .open(&home);
    app.shows_document("handbook.txt");
    app.is_ready();
    app.ask(QUESTION);
    app.is_answered();
    assert_eq!(app.count("ask-alone"), 0, "there is nothing to leave out");
    let second = "What is the gate code of Edgar Tollen?";
    app.ask(second);
    app.is_answered();
    let facts = || app.texts("facts").pop().expect("facts");
    assert!(facts().contains("Saw 1 earlier question"), "{}", facts());
    assert!(app.answer().contains("2906"), "{}", app.answer());
    app.picture("follow-up");
    app.click("ask-alone");
    app.until("it is asked again", |app| app.count("version") == 2);
    app.is_answered();
    assert_eq!(app.texts("question").pop().as_deref(), Some(second));
    assert!(!facts().contains("earlier"), "{}", facts());
    let seen = &app.snapshot()["turns"][1]["facts"]["turnsSeen"];
    assert_eq!(seen, 1);
    app.close();

    // After a restart the conversation goes on where it ended.
    let app = Launch::plain().open(&home);
    app.shows_document("handbook.txt");
    app.is_ready();
    app.ask("What is the market day of Saltmarrow?");
    app.is_answered();
    let facts = app.texts("facts").pop().expect("facts");
    assert!(facts.contains("Saw 2 earlier questions"), "{facts}");
    app.close();
}

#[test]
fn the_keyboard_reaches_every_control() {
    let Some(home) = Home::new() else { return };
    let app = first_start(&home);
    app.driver().keys(&["\u{E009}", ","]).expect("keys");
    app.until("Ctrl+, opens the settings", |app| app.is_shown("settings"));
    app.driver().keys(&["\u{E00C}"]).expect("a key");
    app.until("Escape closes them", |app| !app.is_shown("settings"));
    app.driver().keys(&["\u{E009}", "l"]).expect("keys");
    app.until("Ctrl+L goes to the question", |app| {
        app.script(
            "return document.activeElement === $('composer')",
            Value::Null,
        ) == true
    });
    // The Tab key reaches every control in one round.
    let mut met = std::collections::BTreeSet::new();
    for _ in 0..60 {
        app.driver().keys(&["\u{E004}"]).expect("a key");
        let id = app.script(
            "return document.activeElement?.dataset?.testid ?? ''",
            Value::Null,
        );
        met.insert(id.as_str().unwrap_or_default().to_owned());
    }
    for id in [
        "open-button",
        "composer",
        "settings-button",
        "budget",
        "document",
        "suggestion",
    ] {
        assert!(
            met.contains(id),
            "{id} is not reached by the Tab key; reached: {met:?}"
        );
    }
    app.close();
}

#[test]
fn the_page_gets_raw_bytes_and_has_no_other_access() {
    let Some(home) = Home::new() else { return };
    let app = answered(&home);
    let now = app.snapshot();
    let (document, turn) = (&now["document"]["id"], &now["turns"][0]["id"]);
    let length = now["document"]["sourceBytes"].clone();
    let raw = |command: &str, arguments: Value| {
        let answer = app
            .invoke(command, &arguments)
            .unwrap_or_else(|e| app.give_up(&format!("{command}: {e}")));
        answer["arrayBuffer"]
            .as_u64()
            .unwrap_or_else(|| app.give_up(&format!("{command} gave no ArrayBuffer")))
    };
    assert_eq!(json!(raw("document_text", json!({"id": document}))), length);
    let tokens = raw("map_ends", json!({"turn": turn})) / 4;
    assert_eq!(
        raw(
            "map_counts",
            json!({"turn": turn, "layer": null, "lift": false})
        ),
        tokens * 2
    );

    // Actions that the page's content security policy must block.
    let blocked = app.driver().execute_async(
        "const done = arguments[arguments.length - 1]
         let evaluated = true; try { (0, eval)('1') } catch { evaluated = false }
         fetch('https://example.com/').then(() => true, () => false).then(fetched => done([evaluated, fetched]))",
        &json!([]),
    );
    assert_eq!(
        blocked.expect("a script"),
        json!([false, false]),
        "neither eval nor the network"
    );
    // Both deliberate violations were recorded.
    let seen = app
        .script(
            "const t = window.__trouble; window.__trouble = []; return t",
            Value::Null,
        )
        .to_string();
    assert!(
        seen.contains("script-src") && seen.contains("connect-src"),
        "{seen}"
    );
    for (command, arguments) in [
        ("plugin:fs|read_text_file", json!({"path": "/etc/passwd"})),
        ("plugin:dialog|open", json!({"options": {}})),
        ("plugin:shell|execute", json!({"program": "true"})),
        ("open_path", json!({"path": "/etc/passwd"})),
        ("document_text", json!({"id": 987_654})),
        (
            "map_counts",
            json!({"turn": 987_654, "layer": null, "lift": false}),
        ),
        ("map_token", json!({"turn": turn, "token": 987_654_321u64})),
        (
            "map_counts",
            json!({"turn": turn, "layer": 4_000, "lift": false}),
        ),
    ] {
        assert!(
            app.invoke(command, &arguments).is_err(),
            "{command} {arguments} was let in"
        );
    }
    drop(app);
}

#[test]
fn markup_in_a_question_is_not_executed() {
    let Some(home) = Home::new() else { return };
    let app = first_start(&home);
    // The answer is irrelevant, and a small model may write a long one.
    app.set(json!({"maxTokens": 16}));
    app.ask("<img src=x onerror=\"window.__ran = 1\"> **bold** [a](javascript:window.__ran=1)");
    app.reaches(&["done", "failed", "stopped"]);
    let found = app.script(
        "return [window.__ran ?? null, $$('turn')[0].querySelectorAll('img, a[href], script, iframe').length]",
        Value::Null,
    );
    assert_eq!(found, json!([null, 0]));
    app.close();
}

#[test]
fn an_answer_is_copied() {
    let Some(home) = Home::new() else { return };
    let app = answered(&home);
    let answer = app.snapshot()["turns"][0]["answer"]
        .as_str()
        .expect("an answer")
        .to_owned();
    app.click("copy");
    app.until("the button says so", |app| {
        app.text("copy").filter(|t| t == "Copied")
    });
    app.click("composer");
    app.driver().keys(&["\u{E009}", "v"]).expect("keys");
    app.until("it can be pasted", |app| app.field("composer") == answer);
    app.close();
}

#[test]
fn all_controls_are_visible_at_every_window_size() {
    let Some(home) = Home::new() else { return };
    let app = answered(&home);
    for (width, height) in [(860, 560), (1280, 800), (1920, 1080)] {
        app.driver().resize(width, height).expect("another size");
        app.until("the page has the new size", |app| {
            let size = app.script("return [innerWidth, innerHeight]", Value::Null);
            size == json!([width, height])
        });
        // Everything that a user clicks or reads is inside the window, and no element covers another one's middle.
        let script = "const bad = []
            if (document.documentElement.scrollWidth > innerWidth) bad.push('the page is wider than the window')
            for (const id of args[0]) {
              const e = $(id), r = e?.getBoundingClientRect()
              if (!r || !r.width || !r.height) { bad.push(id + ' is not there'); continue }
              if (r.left < 0 || r.top < 0 || r.right > innerWidth + 1 || r.bottom > innerHeight + 1) bad.push(id + ' is outside')
              const top = document.elementFromPoint(r.left + r.width / 2, r.top + r.height / 2)
              if (top && !e.contains(top) && !top.contains(e)) bad.push(id + ' is covered by ' + top.outerHTML.slice(0, 80))
            }
            return bad";
        let ids = [
            "document-name",
            "open-button",
            "model-menu",
            "method-menu",
            "budget",
            "budget-field",
            "settings-button",
            "memory-weights",
            "memory-kept",
            "memory-scratch",
            "memory-free",
            "document",
            "strip",
            "composer",
            "layer-filter",
            "legend",
            "table-button",
            "kept-share",
        ];
        let bad = app.script(script, json!([ids]));
        app.picture(&format!("{width}x{height}"));
        if bad != json!([]) {
            app.give_up(&format!("at {width}x{height}: {bad}"));
        }
    }
    app.close();
}
