//! Long documents: the app responds while one is opened, and scrolls through it, painted, with few elements.
//! Prints its measurements; asserts only what holds on any busy machine.
use std::time::{Duration, Instant};

use crate::slow_models::wide_model;
use kept_tests::window::{App, Home, Launch, first_start, pages_pdf, words};
use serde_json::{Value, json};

/// A user notices a longer delay, even on a busy machine.
const FROZEN: Duration = Duration::from_secs(1);

/// Maximum number of elements on the page at any time.
const ELEMENTS: u64 = 3_000;

fn middle(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or_default()
}

/// Drops a file, and asks the page for the time repeatedly until the document is shown.
fn opens_without_freezing(app: &App<'_>, path: &std::path::Path, name: &str) {
    app.script(
        "window.__gaps = []; let last = performance.now()
         const beat = () => { const now = performance.now(); window.__gaps.push(now - last); last = now
           if (!window.__enough) setTimeout(beat, 5) }; window.__enough = false; beat()",
        Value::Null,
    );
    app.drop_files(&[path]);
    let mut answers = Vec::new();
    app.until("the document is there", |app| {
        let asked = Instant::now();
        let there = app.script(
            "return ($('document-name')?.innerText ?? '').includes(args[0])",
            name,
        );
        answers.push(asked.elapsed().as_secs_f64() * 1000.0);
        there == true
    });
    app.shows_document(name);
    let gaps = app.script("window.__enough = true; return window.__gaps", Value::Null);
    let gaps: Vec<f64> = gaps
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(Value::as_f64)
        .collect();
    let worst = |numbers: &[f64]| numbers.iter().copied().fold(0.0, f64::max);
    println!(
        "{name}: while it was opened a script was answered in {:.0} ms (median of {}), at worst {:.0} ms; the page's own clock missed at most {:.0} ms",
        middle(answers.clone()),
        answers.len(),
        worst(&answers),
        worst(&gaps)
    );
    assert!(
        middle(answers.clone()) < 250.0,
        "scripts are answered at once: {answers:?}"
    );
    assert!(
        worst(&answers) < FROZEN.as_secs_f64() * 1000.0,
        "and always soon: {answers:?}"
    );
    assert!(
        worst(&gaps) < FROZEN.as_secs_f64() * 1000.0,
        "the page stood still for {} ms",
        worst(&gaps)
    );
}

/// Scrolls from end to end, one screen per frame, and checks the time between frames and the number of elements.
fn scrolls_smoothly(app: &App<'_>, what: &str) {
    let measured = app.driver().execute_async(
        "const done = arguments[arguments.length - 1], box = document.querySelector('[data-testid=document]')
         const gaps = [], steps = 150; let most = 0, step = 0, last
         const frame = now => {
           if (last !== undefined) gaps.push(now - last)
           last = now
           most = Math.max(most, document.getElementsByTagName('*').length)
           if (step > steps) return done([gaps, most, box.scrollTop, box.scrollHeight])
           // Through the whole document by leaps, then in small steps, like a mouse wheel.
           box.scrollTop = step < 50 ? box.scrollHeight * step / 50 : box.scrollTop - 120
           step++
           requestAnimationFrame(frame)
         }
         requestAnimationFrame(frame)",
        &json!([]),
    );
    let measured = measured.unwrap_or_else(|e| app.give_up(&format!("scrolling did not end: {e}")));
    let gaps: Vec<f64> = measured[0]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(Value::as_f64)
        .collect();
    let most = measured[1].as_u64().expect("a number");
    let worst = gaps.iter().copied().fold(0.0, f64::max);
    println!(
        "{what}: {:.0} ms between frames (median of {}), at worst {worst:.0} ms; at most {most} elements",
        middle(gaps.clone()),
        gaps.len()
    );
    assert!(gaps.len() >= 150, "every step had its frame");
    assert!(
        worst < FROZEN.as_secs_f64() * 1000.0,
        "a frame took {worst} ms"
    );
    assert!(most < ELEMENTS, "{most} elements");
    assert!(
        measured[3].as_f64() > Some(20_000.0),
        "a long page: {measured}"
    );
}

#[test]
fn a_pdf_of_300_pages_does_not_freeze_the_app() {
    let Some(home) = Home::new() else { return };
    let app = first_start(&home);
    let text = words(620_000).replace("\n\n", " ");
    let words: Vec<&str> = text.split(' ').collect();
    let pages: Vec<String> = words
        .chunks(words.len().div_ceil(300))
        .map(|page| {
            page.chunks(12)
                .map(|line| line.join(" "))
                .collect::<Vec<_>>()
                .join("\n")
        })
        .collect();
    assert_eq!(pages.len(), 300);
    let path = home.file("three hundred pages.pdf", pages_pdf(&pages));
    opens_without_freezing(&app, &path, "three hundred pages.pdf");
    assert_eq!(
        app.snapshot()["document"]["pages"].as_array().map(Vec::len),
        Some(300)
    );
    let length = app.snapshot()["document"]["length"].as_u64();
    assert!(length > Some(600_000), "{length:?}");
    scrolls_smoothly(&app, "300 pages");
    // The built-in model's context length is shorter: the page states it before the question.
    let said = app.until("it says how it will be read", |app| app.text("streaming"));
    assert!(
        said.contains("approximate") && said.contains("4,096"),
        "{said}"
    );
    app.picture("too-long");
    app.close();
}

#[test]
fn a_text_of_128k_tokens_is_painted_and_scrolls() {
    let Some(home) = Home::new() else { return };
    let app = Launch::plain()
        .argument("--model")
        .argument(wide_model(&home))
        .open(&home);
    app.until("the wide model is open", |app| {
        app.snapshot()["model"]["name"] == "wide"
    });
    app.shows_document("sample.txt");
    let path = home.file("long.txt", words(165_000));
    opens_without_freezing(&app, &path, "long.txt");
    let tokens = app.until("its tokens are counted", |app| {
        app.snapshot()["document"]["tokens"].as_u64()
    });
    assert!(tokens >= 128 * 1024, "{tokens} tokens");
    scrolls_smoothly(&app, "128K tokens, plain");
    app.set(json!({"maxTokens": 8}));
    app.ask("What did the keeper count?");
    let mut answers = Vec::new();
    // This takes longer than any wait of the other tests.
    let started = Instant::now();
    while !matches!(app.state().as_deref(), Some("done" | "failed" | "stopped")) {
        let asked = Instant::now();
        app.script("return 1", Value::Null);
        answers.push(asked.elapsed().as_secs_f64() * 1000.0);
        assert!(
            started.elapsed() < Duration::from_secs(400),
            "still {:?}: {:?}",
            app.state(),
            app.text("progress")
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(
        app.state().as_deref(),
        Some("done"),
        "{:?}",
        app.texts("turn")
    );
    println!(
        "128K tokens: read in {:.0} s; a script was answered in {:.0} ms (median)",
        started.elapsed().as_secs_f64(),
        middle(answers.clone())
    );
    assert!(middle(answers) < 250.0);
    app.script("$('document').scrollTop = 0", Value::Null);
    app.until("it is painted", |app| app.runs().iter().any(|&s| s > 0));
    scrolls_smoothly(&app, "128K tokens, painted");
    app.picture("long-painted");
    app.close();
}
