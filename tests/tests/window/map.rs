//! The retention map on the page: behind the words, in the tooltip of a token, by layer, on the strip and in the table;
//! all of the same answer, and all consistent.
use kept_tests::window::{App, Home, Launch, QUESTION, answered, first_start};
use serde_json::{Value, json};

/// `n` and `m` of `Remembered by n of m`.
fn slots(tip: &str) -> Option<(u64, u64)> {
    let (_, rest) = tip.split_once("Remembered by ")?;
    let mut words = rest.split_whitespace();
    let n = words.next()?.parse().ok()?;
    (words.next()? == "of").then_some(())?;
    Some((n, words.next()?.parse().ok()?))
}

#[test]
fn the_tooltip_shows_the_slots_that_keep_a_word() {
    let Some(home) = Home::new() else { return };
    let app = answered(&home);
    // The shares of this view are those of the tooltip.
    app.script("$('view-all')?.click()", Value::Null);
    // In the middle of the first line of a strongly kept run that is on the screen.
    let script = "const box = $('document').getBoundingClientRect()
        for (const run of $$('run').sort((a, b) => b.dataset.share - a.dataset.share)) {
          const r = run.getClientRects()[0]
          if (r && r.width > 4 && r.top > box.top + 4 && r.bottom < box.bottom - 4)
            return [Math.round(r.left + r.width / 2), Math.round(r.top + r.height / 2), Number(run.dataset.share)]
        }";
    let place = app.script(script, Value::Null);
    let at = |i: usize| {
        place[i]
            .as_i64()
            .unwrap_or_else(|| app.give_up("no painted run is on the screen"))
    };
    let (x, y, share) = (at(0), at(1), at(2));
    let mut nudge = 0;
    let tip = app.until("the tooltip of the word under the mouse", |app| {
        nudge = 1 - nudge;
        app.driver()
            .point(x + nudge, y, false)
            .expect("the mouse moves");
        app.text("tip").filter(|t| slots(t).is_some())
    });
    let (n, m) = slots(&tip).expect("Remembered by n of m");
    assert!(n >= 1 && n <= m, "{tip}");
    let exact = 100.0 * n as f64 / m as f64;
    assert!(
        (exact - share as f64).abs() <= 5.0,
        "the run says {share} % and the tooltip {tip}"
    );
    app.picture("hover");
    app.close();
}

#[test]
fn a_single_layer_is_painted() {
    let Some(home) = Home::new() else { return };
    let app = answered(&home);
    let layers = app.snapshot()["model"]["layers"].as_u64().expect("layers");
    let offered = app.script(
        "return [...$('layer-filter').options].map(o => o.value)",
        Value::Null,
    );
    let expected: Vec<String> = std::iter::once("all".into())
        .chain((0..layers).map(|l| l.to_string()))
        .collect();
    assert_eq!(offered, json!(expected));
    // Shares on the screen, top to bottom; elements outside it appear and disappear as the list measures its blocks.
    let painted = |app: &App<'_>| {
        app.script(
            "const view = $('document').getBoundingClientRect()
            return $$('run').map(e => [e.getBoundingClientRect(), e.dataset.share])
                .filter(([r]) => r.bottom > view.top && r.top < view.bottom).map(([, share]) => share).join()",
            Value::Null,
        )
    };
    // The answer may be complete before the last layer is painted.
    let whole = app.until("the painting has settled", |app| {
        let before = painted(app);
        std::thread::sleep(std::time::Duration::from_millis(700));
        (painted(app) == before).then_some(before)
    });
    app.choose("layer-filter", &(layers - 1).to_string());
    app.until("the last layer alone looks different", |app| {
        painted(app) != whole && app.runs().iter().any(|&s| s > 0)
    });
    app.picture("one-layer");
    app.choose("layer-filter", "all");
    app.until("all layers look as before", |app| painted(app) == whole);
    app.close();
}

/// Below the threshold nothing is painted; the slider for it has the keyboard.
#[test]
fn the_threshold_hides_what_is_little_remembered() {
    let Some(home) = Home::new() else { return };
    let app = answered(&home);
    assert!(
        app.runs().iter().all(|&share| share >= 25),
        "{:?}",
        app.runs()
    );
    app.script("$('threshold').focus()", Value::Null);
    app.driver().keys(&["\u{E010}"]).expect("End");
    let few = app.until("only what is almost fully remembered", |app| {
        Some(app.runs()).filter(|runs| runs.iter().all(|&share| share >= 95))
    });
    app.picture("threshold");
    app.driver().keys(&["\u{E011}"]).expect("Home");
    app.until("everything that is remembered at all", |app| {
        app.runs().len() > few.len()
    });
    app.close();
}

#[test]
fn a_click_on_the_strip_scrolls_the_document() {
    let Some(home) = Home::new() else { return };
    let app = answered(&home);
    assert!(
        app.is_shown("strip-view"),
        "the strip shows which part is on the screen"
    );
    app.script("$('document').scrollTop = 0", Value::Null);
    let place = app.script(
        "const r = $('strip').getBoundingClientRect(); return [r.left + r.width / 2, r.top + r.height * 0.9].map(Math.round)",
        Value::Null,
    );
    let (x, y) = (place[0].as_i64().expect("x"), place[1].as_i64().expect("y"));
    app.driver().point(x, y, true).expect("a click");
    let far = app.until("the document is near its end", |app| {
        Some(app.scrolled()).filter(|&s| s > 100.0)
    });
    let top = app.script("const r = $('strip').getBoundingClientRect(); return [r.left + r.width / 2, r.top + 2].map(Math.round)", Value::Null);
    app.driver()
        .point(
            top[0].as_i64().expect("x"),
            top[1].as_i64().expect("y"),
            true,
        )
        .expect("a click");
    app.until("the document is back at its start", |app| {
        app.scrolled() < far / 4.0
    });
    app.close();
}

#[test]
fn the_table_shows_the_shares_as_numbers() {
    let Some(home) = Home::new() else { return };
    let app = answered(&home);
    app.click("table-button");
    app.until("sentences come first", |app| app.count("sentence") > 0);
    app.click("table-parts");
    let rows = app.until("the table has its rows", |app| {
        let rows = app.script("const t = $('table'); return t ? [...t.querySelectorAll('[role=row], tr')].map(r => r.innerText) : []", Value::Null);
        let rows: Vec<String> = rows.as_array()?.iter().filter_map(|r| r.as_str().map(str::to_owned)).collect();
        (rows.iter().filter(|r| r.contains('%')).count() >= 10).then_some(rows)
    });
    let shares: Vec<f64> = rows.iter().flat_map(|row| percents(row)).collect();
    assert!(
        shares.iter().all(|s| (0.0..=100.0).contains(s)) && shares.iter().any(|&s| s > 0.0),
        "{rows:?}"
    );
    app.picture("table");
    app.driver().keys(&["\u{E00C}"]).expect("a key");
    app.until("Escape closes the table", |app| !app.is_shown("table"));
    app.close();
}

/// Every number before a `%`.
fn percents(row: &str) -> Vec<f64> {
    let parts: Vec<&str> = row.split('%').collect();
    parts[..parts.len() - 1]
        .iter()
        .filter_map(|part| {
            part.trim_end()
                .rsplit([' ', '\t', '\n', '-', '–'])
                .next()?
                .parse()
                .ok()
        })
        .collect()
}

#[test]
fn a_click_on_a_source_shows_its_passage() {
    let Some(home) = Home::new() else { return };
    let app = answered(&home);
    assert!(app.count("source") > 0, "the answer has sources");
    let source = app.snapshot()["turns"][0]["sources"][0].clone();
    let passage: String = source["text"]
        .as_str()
        .expect("a text")
        .split_whitespace()
        .take(4)
        .collect::<Vec<_>>()
        .join(" ");
    app.script(
        "$('document').scrollTop = $('document').scrollHeight",
        Value::Null,
    );
    app.click("source");
    app.until("the passage is on the screen", |app| {
        let script = "const box = $('document').getBoundingClientRect(), seen = []
            for (const y of Array.from({length: 60}, (_, i) => box.top + 5 + i * (box.height - 10) / 60)) {
              const range = document.caretRangeFromPoint(box.left + box.width / 2, y)
              if (range) seen.push(range.startContainer.parentElement.closest('p, div')?.innerText || '')
            }
            return seen.join(' ').replace(/\\s+/g, ' ')";
        app.script(script, Value::Null).as_str()?.contains(&passage).then_some(())
    });
    app.close();
}

/// What was kept because of the question is a view of its own, once it is computed; a method that does not see the
/// question has none.
#[test]
fn the_page_shows_what_is_remembered_because_of_the_question() {
    let Some(home) = Home::new() else { return };
    let app = first_start(&home);
    app.choose_method("kvzip");
    app.ask(QUESTION);
    app.is_answered();
    app.until("it is the same for every question", |app| {
        app.is_shown("blind")
    });
    app.choose_method("snapkv");
    app.click("ask-again");
    app.until("the view is offered", |app| app.is_shown("view-question"));
    let because = app.runs_because_of_the_question();
    app.picture("because-of-the-question");
    app.click("view-all");
    app.until("all of memory is shown", |app| app.runs() != because);
    app.picture("all-of-memory");
    assert!(
        app.text("kept-share")
            .is_some_and(|words| words.contains('%'))
    );
    app.click("view-question");
    app.until("the view is back", |app| app.runs() == because);
    // The view survives a restart.
    app.close();
    let app = Launch::plain().open(&home);
    app.until("it is stored", |app| {
        // The page goes to the answer's passage; the blocks that are drawn depend on the place.
        app.script(
            "$$('document').forEach(e => (e.scrollTop = 0))",
            Value::Null,
        );
        app.runs() == because
    });
    app.close();
}

#[test]
fn a_wide_table_stands_in_columns_without_broken_words() {
    let Some(home) = Home::new() else { return };
    let app = first_start(&home);
    let mut sheet = String::from("Invoice,Date,Customer,Item,Quantity,Unit price,Total,Paid\n");
    for i in 1..30 {
        sheet += &format!(
            "INV-24{i:02},2024-01-01,Harbour Bakery,Whiteboard,{i},180,{},yes\n",
            180 * i
        );
    }
    app.drop_files(&[&home.file("invoices.csv", sheet)]);
    app.shows_document("invoices.csv");
    for (width, height) in [(860, 560), (1280, 800)] {
        app.driver().resize(width, height).expect("another size");
        app.until("titles of one word are in one line", |app| {
            let script = "const range = document.createRange()
                const lines = cell => {
                  range.selectNodeContents(cell)
                  return new Set([...range.getClientRects()].map(box => box.top)).size
                }
                const titles = [...(document.querySelector('.table .row')?.children ?? [])]
                return innerWidth === args[0] && titles.length === 8
                  && titles.every(title => title.textContent.includes(' ') || lines(title) === 1)";
            (app.script(script, json!([width])) == json!(true)).then_some(())
        });
        app.picture(&format!("wide-{width}"));
    }
    app.close();
}

#[test]
fn a_table_stands_in_columns_and_is_painted_in_its_cells() {
    let Some(home) = Home::new() else { return };
    let app = first_start(&home);
    let mut table = String::from("Lockers.\n| Name | Locker | Remarks |\n|---|---:|---|\n");
    for i in 0..40 {
        table += &format!(
            "| Person {i} | {} | by the **old** door, beside the lamp |\n",
            4000 + 7 * i
        );
    }
    app.drop_files(&[&home.file("lockers.md", table)]);
    app.shows_document("lockers.md");
    app.choose_method("snapkv");
    app.ask("What is the locker of Person 7?");
    app.is_answered();
    let found = app.until("the table is painted", |app| {
        let found = app.script(
            "const cells = [...document.querySelectorAll('.table .row > span')].map(cell => cell.getBoundingClientRect())
             const lefts = n => new Set([...document.querySelectorAll(`.table .row > span:nth-child(${n})`)].map(cell => cell.getBoundingClientRect().left)).size
             const boxes = [...$$('run')].flatMap(run => [run, ...run.children]).map(run => run.getBoundingClientRect())
             const inside = (a, b) => a.left >= b.left - 1 && a.right <= b.right + 1 && a.top >= b.top - 4 && a.bottom <= b.bottom + 4
             const text = document.querySelector('.table')?.textContent.replaceAll('\u{200b}', '')
             const table = document.querySelector('.table')?.getBoundingClientRect()
             const of = boxes.filter(box => table && box.top > table.top && box.bottom < table.bottom)
             return {columns: [lefts(2), lefts(3)], boxes: of.length, outside: of.filter(box => !cells.some(cell => inside(box, cell))).length, text}",
            Value::Null,
        );
        (found["boxes"].as_u64()? > 5).then_some(found)
    });
    app.picture("table");
    assert_eq!(found["columns"], json!([1, 1]), "{found}");
    assert_eq!(found["outside"], 0, "{found}");
    let text = found["text"].as_str().unwrap_or_default();
    assert!(
        text.contains("Person 0") && !text.contains(['|', '*']),
        "{text}"
    );
    app.close();
}
