//! The painted document as one HTML page without scripts or external resources, in light and dark colours.

use std::fmt::Write;
use std::ops::Range;

use kept_engine::documents::Document;
use kept_engine::{Answer, Run, runs};

use crate::map_table::{table_rows, turn_rows};
use crate::output::{bytes, count};

/// Number of colour steps. A share is rounded to the nearest step.
const STEPS: usize = 20;

/// Shares below this one count as forgotten, as on the app's page.
const THRESHOLD: f32 = 0.25;

/// The colours of the app.
const APP: &str = include_str!("../../ui/src/tokens.css");
/// Those that the page takes over.
const COLOURS: [&str; 7] = [
    "--page",
    "--ink",
    "--soft",
    "--line",
    "--gone",
    "--mark",
    "--mark-strength",
];

const STYLE: &str = "
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15.5px/1.75 Charter,Georgia,serif}
header,footer,main{max-width:704px;margin:0 auto;padding:0 32px}
header{padding-top:40px;font:13px/1.6 system-ui,sans-serif;color:var(--soft)}
h1{font:600 20px/1.4 system-ui,sans-serif;color:var(--ink);margin:0 0 4px}
header p{margin:0 0 12px}
.legend{display:flex;gap:16px;align-items:center;border-top:1px solid var(--line);border-bottom:1px solid var(--line);padding:8px 0}
.legend i{font-style:normal;padding:2px 8px;border-radius:3px;color:var(--ink)}
main{padding-top:24px;padding-bottom:24px}
pre{margin:0;font:inherit;white-space:pre-wrap;overflow-wrap:anywhere}
b{font-weight:inherit;border-radius:2px;background:rgb(var(--mark)/calc(var(--s)*var(--mark-strength)))}
pre,.gone{color:var(--gone)}
b{color:var(--ink)}
table{border-collapse:collapse;font:13px/1.6 system-ui,sans-serif;color:var(--soft);margin-bottom:40px}
td,th{padding:2px 16px 2px 0;text-align:right;font-weight:400}
td:first-child,th:first-child{text-align:left}
h2{font:600 15px/1.4 system-ui,sans-serif;margin:32px 0 4px;padding-top:16px;border-top:1px solid var(--line)}
h3{font:13px/1.6 system-ui,sans-serif;color:var(--soft);margin:16px 0 0}
.question{font-weight:600}
";

/// The rules for the app's colours, light and dark; a colour that the app does not have is left out.
fn colours() -> String {
    let rules = |selector: &str| {
        let block = APP.split_once(&format!("\n{selector} {{"));
        let block = block.and_then(|(_, rest)| rest.split_once("\n}"));
        let lines = block.map_or("", |(block, _)| block).lines().map(str::trim);
        let wanted = lines.filter(|line| {
            let name = line.split(':').next().unwrap_or_default();
            COLOURS.contains(&name)
        });
        wanted.collect::<String>()
    };
    format!(
        ":root{{color-scheme:light dark;{}}}@media(prefers-color-scheme:dark){{:root{{{}}}}}",
        rules(":root"),
        rules("[data-theme='dark']")
    )
}

/// Renders the page.
pub fn page(document: &Document, question: &str, method: &str, answer: &Answer) -> String {
    let mut page = String::with_capacity(document.text.len() * 2 + 8192);
    let rows = answer.map.mean_rows() as usize;
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{name}: what is remembered</title>\n<style>{colours}{STYLE}{steps}</style>\n\
         <header><h1>{name}</h1>\n<p>{question}</p>\n\
         <p>{method} remembers {rows} of {tokens} tokens per head, in {kv} instead of {full}. The rest of the text is grey: \
         less than {threshold:.0} % of {slots} memory slots hold it.</p>\n\
         <div class=\"legend\"><span class=\"gone\">forgotten</span>{legend}<span>of the memory slots remember it</span></div></header>\n<main>",
        name = escape(&document.name),
        colours = colours(),
        threshold = THRESHOLD * 100.0,
        steps = step_rules(),
        question = escape(question),
        method = escape(method),
        rows = count(rows),
        tokens = count(answer.prompt.len()),
        kv = bytes(answer.report.kv_bytes),
        full = bytes(answer.report.kv_bytes_full),
        legend = legend(),
        slots = answer.map.holders(),
    );
    let painted_document = runs(&document.text, &answer.prompt, &answer.map);
    page += &painted(
        "",
        &document.text,
        0..document.text.len(),
        &painted_document,
    );
    page += &turns(answer);
    page += "</main>\n<footer><table><tr><th>part<th>remembered<th>best remembered word";
    for row in (table_rows(document, answer).into_iter()).chain(turn_rows(answer)) {
        let _ = write!(
            page,
            "<tr><td>{}<td>{:.0} %<td>{:.0} %",
            row.name,
            row.mean * 100.0,
            row.max * 100.0
        );
    }
    page += "</table></footer></html>\n";
    page
}

/// The earlier turns that the model saw, as a section of its own; empty without any.
fn turns(answer: &Answer) -> String {
    let earlier = &answer.prompt.earlier;
    if earlier.turns.is_empty() {
        return String::new();
    }
    let runs = earlier.runs(&answer.map.shares());
    let mut section = "\n<h2>Earlier in this conversation</h2>".to_owned();
    for (row, [question, said]) in turn_rows(answer).into_iter().zip(&earlier.turns) {
        let (name, percent) = (row.name, row.mean * 100.0);
        let _ = write!(section, "\n<h3>{name}: {percent:.0} % remembered</h3>\n");
        section += &painted("question", &earlier.text, question.clone(), &runs);
        section += &painted("", &earlier.text, said.clone(), &runs);
    }
    section
}

/// A range of `text` with its runs coloured.
fn painted(class: &str, text: &str, range: Range<usize>, runs: &[Run]) -> String {
    let mut page = format!("<pre class=\"{class}\">");
    for run in runs {
        let (start, end) = (
            run.range.start.max(range.start),
            run.range.end.min(range.end),
        );
        if start >= end {
            continue;
        }
        let text = escape(&text[start..end]);
        match step(run.share) {
            0 => page += &text,
            step => {
                let _ = write!(page, "<b class=\"k{step}\">{text}</b>");
            }
        }
    }
    page + "</pre>"
}

/// The colour step of a share; 0 if it counts as forgotten.
fn step(share: f32) -> usize {
    if share < THRESHOLD {
        return 0;
    }
    (share * STEPS as f32).round() as usize
}

fn step_rules() -> String {
    (1..=STEPS)
        .map(|step| format!("\n.k{step}{{--s:{:.2}}}", step as f32 / STEPS as f32))
        .collect()
}

fn legend() -> String {
    [25, 50, 75, 100]
        .map(|percent| {
            let step = percent * STEPS / 100;
            format!("<i><b class=\"k{step}\">{percent} %</b></i>")
        })
        .concat()
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\x0c' => out.push('\n'),
            c if c.is_control() && !matches!(c, '\n' | '\t') => {}
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn document_text_is_escaped() {
        assert_eq!(escape("<script>\"&\x1b"), "&lt;script&gt;&quot;&amp;");
    }

    #[test]
    fn shares_below_the_threshold_are_forgotten() {
        assert_eq!((step(0.0), step(0.24)), (0, 0));
        assert_eq!((step(0.25), step(1.0)), (5, STEPS));
    }

    #[test]
    fn the_colours_are_those_of_the_app() {
        let colours = colours();
        for name in COLOURS {
            let times = colours.matches(&format!("{name}:")).count();
            assert_eq!(times, 2, "{name}, light and dark: {colours}");
        }
        assert!(!colours.contains("--accent"));
    }
}
