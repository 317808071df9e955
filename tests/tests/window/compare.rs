//! Comparisons of methods with the full cache in the real app: complete, stopped in the middle, with a run that is
//! refused; and method parameters under "Advanced".
use kept_tests::window::{App, Home, Launch, QUESTION, answered, first_start};
use serde_json::{Value, json};

/// Opens the comparison from the last answer, with exactly these methods and budgets selected.
#[track_caller]
fn set_up(app: &App<'_>, methods: &[&str], budgets: &[&str]) {
    app.click("compare");
    app.until("what to compare can be chosen", |app| {
        app.is_shown("compare-setup")
    });
    app.click("compare-none");
    for method in methods {
        tick(app, "compare-method", method);
    }
    let untick = "$$('compare-budget').filter(e => e.checked).forEach(e => e.click())";
    app.script(untick, Value::Null);
    for budget in budgets {
        if !tick_if_there(app, "compare-budget", budget) {
            app.write("compare-other", &format!("{budget}\u{E007}"));
        }
    }
}

#[track_caller]
fn tick(app: &App<'_>, id: &str, value: &str) {
    assert!(tick_if_there(app, id, value), "{id} offers {value}");
}

#[track_caller]
fn tick_if_there(app: &App<'_>, id: &str, value: &str) -> bool {
    let script =
        "const e = $$(args[0]).find(e => e.dataset.value === args[1]); if (!e) return false
        e.click(); return true";
    app.script(script, json!([id, value])) == true
}

/// The state of every run's row, in table order.
#[track_caller]
fn rows(app: &App<'_>) -> Vec<String> {
    let rows = app.script(
        "return $$('compare-row').map(e => e.dataset.state)",
        Value::Null,
    );
    let rows = rows.as_array().expect("a list").iter();
    rows.map(|r| r.as_str().expect("a state").to_owned())
        .collect()
}

#[track_caller]
fn ends(app: &App<'_>, state: &str) {
    app.until(&format!("the comparison is {state}"), |app| {
        let now = app.attribute("compare-status", "data-state")?;
        (now == state).then_some(())
    });
}

#[test]
fn a_comparison_runs_to_its_end_with_consistent_figures() {
    let Some(home) = Home::new() else { return };
    let app = answered(&home);
    app.picture("answered");
    set_up(&app, &["full", "streaming_llm", "snapkv"], &["25%", "64"]);
    let cost = app.text("compare-cost").expect("what it costs");
    assert!(
        cost.contains("5 runs") && cost.contains("read once more"),
        "{cost}"
    );
    app.picture("set-up");
    app.click("compare-start");
    app.click("compare-figures");
    app.until("the first row is there", |app| {
        rows(app).iter().any(|state| state == "done")
    });
    app.picture("running");
    ends(&app, "done");
    assert_eq!(rows(&app), ["done"; 5]);
    app.picture("done");

    let comparison = app.snapshot()["comparison"].clone();
    let run = |index: usize| comparison["runs"][index]["result"]["report"].clone();
    let full = run(0);
    let kl = full["fidelity"]["kl"].as_f64().expect("a divergence");
    assert!(
        kl < 1e-4,
        "the full cache, rounded to f16, beside itself: {kl}"
    );
    assert_eq!(full["cache"], "f16");
    assert_eq!(full["fidelity"]["top1"], 1.0);
    assert_eq!(full["same_answer"], true);
    let answer = comparison["reference"]["report"]["answer"].as_str();
    assert!(answer.is_some_and(|a| a.contains("4711")), "{answer:?}");
    for index in 1..5 {
        let run = run(index);
        let part = |name: &str| run[name].as_f64().expect("a number");
        assert!(part("kv_bytes") < part("kv_bytes_full"), "{run}");
        let recall = run["fidelity"]["attention_recall"].as_f64();
        assert!(recall.is_some_and(|r| (0.0..1.0).contains(&r)), "{run}");
    }

    // Sorted by a column of the details.
    app.click("compare-details");
    app.script(
        "document.querySelector('[data-testid=compare-sort][data-column=kl]').click()",
        Value::Null,
    );
    let figures = app.script(
        "return [...document.querySelectorAll('[data-testid=compare-row] [data-column=kl]')].map(e => Number(e.innerText))",
        Value::Null,
    );
    let figures: Vec<f64> = (figures.as_array().expect("a list").iter())
        .map(|f| f.as_f64().expect("a figure"))
        .collect();
    assert_eq!(figures.len(), 5);
    assert!(figures.is_sorted(), "{figures:?}");
    for picture in ["recall", "divergence", "positions", "similarity", "full"] {
        assert!(app.is_shown(&format!("compare-{picture}")), "{picture}");
    }
    app.script("$('compare-similarity').scrollIntoView()", Value::Null);
    app.picture("pictures");

    // The comparison survives closing and reopening; the keyboard closes it.
    app.driver().keys(&["\u{E00C}"]).expect("a key");
    app.until("it is closed", |app| !app.is_shown("comparison"));
    app.click("compare-button");
    app.click("compare-figures");
    assert_eq!(rows(&app).len(), 5);
    // The next question can be asked.
    app.click("compare-close");
    app.ask(QUESTION);
    app.is_answered();
    app.close();
}

/// The variants of SnapKV in the list, as the page names them.
fn variants(app: &App<'_>) -> Value {
    let script =
        "return $$('compare-method').map(e => e.dataset.value).filter(v => v.startsWith('snapkv'))";
    app.script(script, Value::Null)
}

/// Opens the form for a method with parameters.
#[track_caller]
fn open_form(app: &App<'_>) {
    // Budgets are further down: typing there has scrolled the list away.
    let up = "$('compare-add').scrollIntoView({block: 'center', behavior: 'instant'})";
    app.script(up, Value::Null);
    app.click("compare-add");
    app.until("the form is there", |app| app.is_shown("compare-adding"));
}

/// Adds the variant of the form.
#[track_caller]
fn submit_form(app: &App<'_>) {
    app.click("compare-adding-add");
    form_is_closed(app);
}

#[track_caller]
fn form_is_closed(app: &App<'_>) {
    app.until("the form is gone", |app| !app.is_shown("compare-adding"));
}

/// A method with other parameters: added in a form that reports errors, removed, and distinguished in the results.
#[test]
fn a_method_is_compared_with_itself_under_other_parameters() {
    let Some(home) = Home::new() else { return };
    let app = answered(&home);
    set_up(&app, &["snapkv"], &["64"]);
    add_two_variants(&app);
    let all = ["snapkv", "snapkv[sinks=0,w=8]", "snapkv[w=8]"];
    assert_eq!(variants(&app), json!(all));
    let remove = "$$('compare-remove').find(e => e.ariaLabel === 'Remove SnapKV w=8').click()";
    app.script(remove, Value::Null);
    assert_eq!(variants(&app), json!(all[..2]));
    app.click("compare-start");
    app.click("compare-figures");
    ends(&app, "done");
    two_variants_are_told_apart(&app);
    // The comparison's settings can be edited.
    app.click("compare-again");
    app.until("what to compare can be chosen", |app| {
        app.is_shown("compare-setup")
    });
    assert_eq!(variants(&app), json!(all[..2]));
    let cost = app.text("compare-cost").expect("what it costs");
    assert!(cost.contains("2 runs"), "{cost}");
    app.close();
}

/// Adds SnapKV with w=8, sinks=0 and with w=8, after a value that is refused.
fn add_two_variants(app: &App<'_>) {
    open_form(app);
    app.choose("compare-adding-method", "snapkv");
    app.picture("form");
    set(app, "w", "0");
    let wrong = app.until("the field says why not", |app| app.text("parameter-error"));
    assert!(wrong.contains("w takes a whole number from 1"), "{wrong}");
    app.picture("refused");
    set(app, "w", "8");
    set(app, "sinks", "0");
    submit_form(app);
    open_form(app);
    set(app, "sinks", "");
    submit_form(app);
    // Escape closes the form, not the dialog behind it.
    open_form(app);
    app.driver().keys(&["\u{E00C}"]).expect("a key");
    form_is_closed(app);
    assert!(app.is_shown("compare-setup"));
    app.picture("added");
}

/// The finished comparison of SnapKV with itself under w=8, sinks=0.
fn two_variants_are_told_apart(app: &App<'_>) {
    let words = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let table: Vec<String> = app.texts("compare-row").into_iter().map(words).collect();
    assert_eq!(table.len(), 2, "{table:?}");
    assert!(table[0].starts_with("SnapKV 64 rows"), "{table:?}");
    assert!(
        table[1].starts_with("SnapKV w=8, sinks=0 64 rows"),
        "{table:?}"
    );
    app.picture("done");
    app.script("$('compare-recall').scrollIntoView()", Value::Null);
    app.picture("pictures");
    let comparison = app.snapshot()["comparison"].clone();
    let report = |run: usize| comparison["runs"][run]["result"]["report"].clone();
    assert_eq!(report(0)["label"], "snapkv");
    assert_eq!(report(1)["label"], "snapkv[w=8,sinks=0]");
    assert_ne!(
        report(0)["indices"]["position_histogram"],
        report(1)["indices"]["position_histogram"],
        "without sinks other rows are kept"
    );
}

#[test]
fn a_refused_run_is_shown_and_the_others_continue() {
    let Some(home) = Home::new() else { return };
    let app = answered(&home);
    set_up(&app, &["snapkv", "streaming_llm"], &["2", "25%"]);
    app.click("compare-start");
    app.click("compare-figures");
    ends(&app, "done");
    let states = rows(&app);
    let refused = states.iter().filter(|s| *s == "refused").count();
    assert!(
        refused >= 1 && states.iter().any(|s| s == "done"),
        "{states:?}"
    );
    let said = app.texts("compare-said");
    for title in ["SnapKV", "StreamingLLM"] {
        let begins = format!("{title} needs a budget of at least");
        assert!(said.iter().any(|s| s.starts_with(&begins)), "{said:?}");
    }
    assert!(said.iter().all(|s| !s.contains("--")), "{said:?}");
    app.picture("refused");
    app.close();
}

/// Another document is opened while methods are compared; the line above the composer leads back to the results.
#[test]
fn a_comparison_goes_on_while_another_document_is_open() {
    let Some(home) = Home::new() else { return };
    let app = answered(&home);
    set_up(&app, &["snapkv", "h2o", "tova"], &["64"]);
    app.click("compare-start");
    app.drop_files(&[&home.file("other.txt", "The tide was low. The quay was dry.")]);
    app.shows_document("other.txt");
    app.until("the line says that it is done", |app| {
        let line = app.text("elsewhere")?;
        line.contains("Compared").then_some(())
    });
    app.picture("compared-elsewhere");
    app.click("elsewhere-open");
    ends(&app, "done");
    app.click("compare-figures");
    assert_eq!(rows(&app), ["done", "done", "done"]);
    app.close();
}

#[test]
fn a_stopped_comparison_continues_after_a_restart() {
    let Some(home) = Home::new() else { return };
    let app = answered(&home);
    // Enough runs that a fast machine does not finish before the stop, and a slow one reaches the first rows in time.
    set_up(&app, &[], &["25%", "64", "128"]);
    // The element is scrolled out of view, and the driver only scrolls down.
    app.script("$('compare-all').click()", Value::Null);
    app.click("compare-start");
    app.click("compare-figures");
    app.until("some rows are there and others are not", |app| {
        let states = rows(app);
        let done = states.iter().filter(|s| *s == "done").count();
        let open = |s: &String| s == "waiting" || s == "running";
        done >= 2 && states.iter().any(open)
    });
    app.invoke(
        "ask",
        &json!({
            "question": "And now?",
            "choice": {"method": "snapkv", "parameters": {}, "budget": null},
            "relation": {"alone": false, "again": null, "edits": null},
        }),
    )
    .expect("it is accepted");
    let asked = app.snapshot()["turns"]
        .as_array()
        .and_then(|turns| turns.last().cloned());
    assert_eq!(
        asked.expect("a turn")["state"],
        "waiting",
        "for the comparison's end"
    );
    app.click("compare-stop");
    ends(&app, "stopped");
    app.picture("stopped");
    let states = rows(&app);
    let done = states.iter().filter(|s| *s == "done").count();
    assert!(done >= 2, "{states:?}");
    assert!(states.iter().any(|s| s == "left out"), "{states:?}");
    assert!(app.is_shown("compare-save"), "what is there can be saved");
    app.close();

    // Kept is closed and opened again: the rows are there, and the others follow.
    let app = Launch::plain().open(&home);
    app.click("compare-button");
    // The last question is another one.
    app.click("compare-back");
    app.click("compare-figures");
    assert_eq!(rows(&app), states);
    app.click("compare-continue");
    ends(&app, "done");
    assert!(!rows(&app).iter().any(|s| s == "left out"));
    app.picture("continued");
    app.close();
}

/// Replaces the value of a field under "Advanced", and leaves the field.
#[track_caller]
fn set(app: &App<'_>, name: &str, value: &str) {
    let script = "const e = $(args[0]); if (!e) return false
        e.focus(); e.value = args[1]; e.dispatchEvent(new Event('change', {bubbles: true})); return true";
    let id = format!("parameter-{name}");
    app.until(&format!("{id} is there"), |app| {
        app.script(script, json!([id, value])) == true
    });
}

#[test]
fn method_parameters_apply_and_survive_a_restart() {
    let Some(home) = Home::new() else { return };
    let app = first_start(&home);
    // Automatic uses methods at their defaults.
    app.click("advanced");
    app.until("there is nothing to set", |app| {
        app.text("advanced-panel")
            .filter(|t| t.contains("has no parameters"))
    });
    app.choose_method("snapkv");
    app.click("advanced");
    set(&app, "kernel", "4");
    let wrong = app.until("the field says why not", |app| app.text("parameter-error"));
    assert!(
        wrong.contains("kernel takes an odd whole number from 1"),
        "{wrong}"
    );
    app.picture("refused");
    set(&app, "kernel", "5");
    app.until("it is taken", |app| {
        app.snapshot()["settings"]["parameters"]["snapkv"]["kernel"] == "5"
    });
    assert_eq!(app.text("parameter-error"), None);
    app.picture("taken");
    app.driver().keys(&["\u{E00C}"]).expect("a key");
    app.ask(QUESTION);
    app.is_answered();
    let facts = app.text("facts").expect("facts");
    assert!(facts.contains("kernel=5"), "{facts}");
    app.close();

    let app = Launch::plain().open(&home);
    app.is_ready();
    let facts = app.until("the answer is there", |app| app.text("facts"));
    assert!(facts.contains("kernel=5"), "{facts}");
    app.click("advanced");
    app.until("its fields are there", |app| {
        app.field("parameter-kernel") == "5"
    });
    app.click("advanced-reset");
    app.until("nothing is set", |app| {
        app.snapshot()["settings"]["parameters"] == json!({})
    });
    app.close();
}
