//! The painted document as one HTML page without scripts or external resources, in light and dark colours.

use std::fmt::Write;

use kept_engine::documents::Document;
use kept_engine::{Answer, Run};

use crate::map::table_rows;
use crate::output::{bytes, count};

/// Number of colour steps. A share is rounded to the nearest step; every share above 0 gets at least step 1.
const STEPS: usize = 20;

const STYLE: &str = "
:root{--paper:#fbfaf7;--ink:#1f2328;--quiet:#667;--line:#e3e0d8;--hue:20,122,122;--strongest:.62}
@media(prefers-color-scheme:dark){:root{--paper:#15171a;--ink:#d9dbde;--quiet:#8b919a;--line:#2a2e34;--hue:64,190,190;--strongest:.6}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15.5px/1.75 Charter,Georgia,serif}
header,footer,main{max-width:704px;margin:0 auto;padding:0 32px}
header{padding-top:40px;font:13px/1.6 system-ui,sans-serif;color:var(--quiet)}
h1{font:600 20px/1.4 system-ui,sans-serif;color:var(--ink);margin:0 0 4px}
header p{margin:0 0 12px}
.legend{display:flex;gap:16px;align-items:center;border-top:1px solid var(--line);border-bottom:1px solid var(--line);padding:8px 0}
.legend i{font-style:normal;padding:2px 8px;border-radius:3px;color:var(--ink)}
main{padding-top:24px;padding-bottom:24px}
pre{margin:0;font:inherit;white-space:pre-wrap;overflow-wrap:anywhere}
b{font-weight:inherit;border-radius:2px;background:rgba(var(--hue),calc(var(--s)*var(--strongest)))}
table{border-collapse:collapse;font:13px/1.6 system-ui,sans-serif;color:var(--quiet);margin-bottom:40px}
td,th{padding:2px 16px 2px 0;text-align:right;font-weight:400}
td:first-child,th:first-child{text-align:left}
";

/// Renders the page.
pub fn page(
    document: &Document,
    question: &str,
    method: &str,
    answer: &Answer,
    runs: &[Run],
) -> String {
    let mut page = String::with_capacity(document.text.len() * 2 + 8192);
    let rows = answer.map.mean_rows() as usize;
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{name}: what was kept</title>\n<style>{STYLE}{steps}</style>\n\
         <header><h1>{name}</h1>\n<p>{question}</p>\n\
         <p>{method}: {rows} of {tokens} tokens per head, cache {kv} instead of {full}</p>\n\
         <div class=\"legend\"><span>kept in</span>{legend}<span>of {slots} layer-head slots</span></div></header>\n<main><pre>",
        name = escape(&document.name),
        steps = step_rules(),
        question = escape(question),
        method = escape(method),
        rows = count(rows),
        tokens = count(answer.prompt.len()),
        kv = bytes(answer.kv_bytes),
        full = bytes(answer.kv_bytes_full),
        legend = legend(),
        slots = answer.map.slots(),
    );
    for run in runs {
        let text = escape(&document.text[run.range.clone()]);
        match step(run.share) {
            0 => page += &text,
            step => {
                let _ = write!(page, "<b class=\"k{step}\">{text}</b>");
            }
        }
    }
    page += "</pre></main>\n<footer><table><tr><th>part<th>mean<th>most";
    for row in table_rows(document, runs) {
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

fn step(share: f32) -> usize {
    let nearest = (share * STEPS as f32).round() as usize;
    nearest.max(usize::from(share > 0.0))
}

fn step_rules() -> String {
    (1..=STEPS)
        .map(|step| format!("\n.k{step}{{--s:{:.2}}}", step as f32 / STEPS as f32))
        .collect()
}

fn legend() -> String {
    [0, 25, 50, 75, 100]
        .map(|percent| match percent * STEPS / 100 {
            0 => format!("<i>{percent} %</i>"),
            step => format!("<i><b class=\"k{step}\">{percent} %</b></i>"),
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
    fn any_positive_share_has_a_visible_step() {
        assert_eq!(step(0.0), 0);
        assert_eq!(step(0.001), 1);
        assert_eq!(step(1.0), STEPS);
    }
}
