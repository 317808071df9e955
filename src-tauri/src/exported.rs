//! Conversations as files: Markdown and HTML to read, JSON to import again.

use std::collections::HashSet;
use std::fmt::Write;
use std::path::Path;

use kept_engine::documents::Document;
use pulldown_cmark::{Event, LinkType, Options, Parser, Tag, TagEnd};
use serde::{Deserialize, Serialize};

use crate::contract::{Doubt, Finish, Source, Turn, TurnState};
use crate::messages;
use crate::state::{Loaded, OpenDocument};

/// The version of the JSON format.
const VERSION: u32 = 1;

/// A conversation as JSON. Maps are not exported.
#[derive(Serialize, Deserialize)]
struct Exported {
    /// [`VERSION`].
    kept_conversation: u32,
    title: String,
    document: Document,
    sample: bool,
    text: String,
    turns: Vec<Turn>,
}

/// Why the file of this name cannot be imported. One sentence each.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum ImportError {
    #[error("{0} is no exported conversation: choose a .json file that Kept exported.")]
    Foreign(String),
    #[error("{0} is damaged ({1}): export the conversation again.")]
    Damaged(String, serde_json::Error),
    #[error("{0} was exported by a newer Kept (format {1}): update this one.")]
    Newer(String, u32),
    #[error("{0} has no question: there is nothing to import.")]
    Empty(String),
}

/// A conversation read from JSON: its title, document and turns.
pub type Imported = (String, OpenDocument, Vec<Turn>);

/// The most characters of `what` in [`file_name`].
const MAX_NAME: usize = 60;

/// A proposed name for a file made from `document`, which is never the document's own: `lease - Who pays.md`.
pub fn file_name(document: &str, what: &str, extension: &str) -> String {
    // A chat has no document.
    let stem = Path::new(document)
        .file_stem()
        .map_or("conversation".into(), |stem| stem.to_string_lossy());
    // Characters that no file system refuses.
    let plain = |c: char| {
        if c.is_alphanumeric() || "-_ ,'".contains(c) {
            c
        } else {
            ' '
        }
    };
    let what: String = what.chars().map(plain).take(MAX_NAME).collect();
    let words: Vec<&str> = what.split_whitespace().collect();
    match words.join(" ") {
        what if what.is_empty() => format!("{stem} - Kept.{extension}"),
        what => format!("{stem} - {what}.{extension}"),
    }
}

/// The file's contents; its name determines the format: `.json`, `.html`, and `.md`, `.txt` or no ending for
/// Markdown.
///
/// # Errors
/// Another ending, in one sentence.
pub fn export(path: &Path, title: &str, conversation: &Loaded) -> Result<String, String> {
    let extension = path.extension().map(|e| e.to_ascii_lowercase());
    match extension.as_ref().map(|e| e.to_string_lossy()).as_deref() {
        Some("json") => Ok(json(title, conversation)),
        Some("html" | "htm") => Ok(html(title, conversation)),
        None | Some("md" | "markdown" | "txt") => Ok(markdown(title, conversation)),
        Some(other) => Err(messages::no_such_export(other)),
    }
}

/// Reads a conversation exported as JSON. `name` is the file's name.
///
/// # Errors
/// [`ImportError`].
pub fn import(name: &str, bytes: &[u8]) -> Result<Imported, ImportError> {
    #[derive(Deserialize)]
    struct Version {
        kept_conversation: u32,
    }
    let name = || name.to_owned();
    let Ok(Version { kept_conversation }) = serde_json::from_slice(bytes) else {
        return Err(ImportError::Foreign(name()));
    };
    if kept_conversation > VERSION {
        return Err(ImportError::Newer(name(), kept_conversation));
    }
    let read: Exported =
        serde_json::from_slice(bytes).map_err(|error| ImportError::Damaged(name(), error))?;
    if read.turns.is_empty() {
        return Err(ImportError::Empty(name()));
    }
    let document = OpenDocument::new(0, read.document, read.text.into(), read.sample);
    let mut turns = read.turns;
    for turn in &mut turns {
        // The page goes to these places.
        turn.sources
            .retain(|source| source.start <= source.end && source.end <= document.facts.length);
    }
    Ok((read.title, document, turns))
}

fn json(title: &str, conversation: &Loaded) -> String {
    let exported = Exported {
        kept_conversation: VERSION,
        title: title.to_owned(),
        document: conversation.document.info.clone(),
        sample: conversation.document.facts.sample,
        text: conversation.document.text.to_string(),
        turns: conversation.turns.clone(),
    };
    let text = serde_json::to_string_pretty(&exported);
    text.expect("texts, numbers and lists") + "\n"
}

/// The turns with the versions of a question next to each other, without attempts that have no answer where another
/// version has one.
fn ordered(turns: &[Turn]) -> Vec<&Turn> {
    let has_text = |turn: &&Turn| !turn.answer.trim().is_empty();
    let answered = turns.iter().filter(has_text).map(Turn::first_version);
    let answered: HashSet<u64> = answered.collect();
    let shown = |turn: &&Turn| has_text(turn) || !answered.contains(&turn.first_version());
    let mut turns: Vec<_> = turns.iter().filter(shown).collect();
    turns.sort_by_key(|turn| (turn.first_version(), turn.id));
    turns
}

/// The passages of an answer as the window lists and numbers them (`ui/src/lib/citations.ts`): of those that are alike, the
/// first.
fn listed(turn: &Turn) -> Vec<&Source> {
    let mut listed: Vec<&Source> = Vec::new();
    for source in &turn.sources {
        if number_of(&listed, source).is_none() {
            listed.push(source);
        }
    }
    listed
}

/// The number of a passage among those `listed`.
fn number_of(listed: &[&Source], source: &Source) -> Option<usize> {
    let words = |source: &Source| source.text.split_whitespace().collect::<Vec<_>>().join(" ");
    let is_alike = |other: &&Source| {
        (other.page, &other.document) == (source.page, &source.document)
            && words(other) == words(source)
    };
    Some(listed.iter().position(is_alike)? + 1)
}

/// What stands before passage `number` of an answer that cites some.
fn label(turn: &Turn, number: usize) -> String {
    let mut cited = turn.facts.iter().flat_map(|facts| &facts.citations);
    cited
        .next()
        .map_or_else(String::new, |_| format!("[{number}] "))
}

/// The answer with the number of its passage behind each sentence that cites one.
fn numbered(turn: &Turn, listed: &[&Source]) -> String {
    let (mut text, mut at) = (String::new(), 0);
    let mut citations = turn
        .facts
        .iter()
        .flat_map(|facts| &facts.citations)
        .peekable();
    for c in turn.answer.chars() {
        text.push(c);
        at += c.len_utf16();
        while let Some(cited) = citations.next_if(|cited| cited.end <= at) {
            let source = turn.sources.get(cited.source);
            if let Some(number) = source.and_then(|source| number_of(listed, source)) {
                let _ = write!(text, " [{number}]");
            }
        }
    }
    text.trim().to_owned()
}

/// How an answer was made: model, method, budget; `turns` has the other versions of its question.
fn made(turn: &Turn, turns: &[Turn]) -> String {
    let seen = |turn: &Turn| turn.facts.as_ref().map(|facts| facts.turns_seen);
    let is_version = |other: &&Turn| other.first_version() == turn.first_version();
    let follows_up = turns.iter().filter(is_version).any(|t| seen(t) > Some(0));
    let alone = match follows_up && seen(turn) == Some(0) {
        true => ", without earlier questions",
        false => "",
    };
    let chosen = turn.facts.as_ref().and_then(|facts| facts.chosen.as_ref());
    let chosen = chosen.map(|chosen| format!(" ({})", chosen.method));
    let budget = turn.budget.as_ref().map(|budget| format!(", {budget}"));
    format!(
        "{}, {}{}{}{alone}",
        turn.model,
        turn.method,
        chosen.unwrap_or_default(),
        budget.unwrap_or_default()
    )
}

/// Why an answer is cut off: by its length, the context, a repetition.
const ENDINGS: [&str; 3] = [
    "The answer reached the maximum length set in Settings.",
    "The answer ended because the model’s context is full.",
    "The answer began to repeat itself and was stopped.",
];
/// Its passage is forgotten, or it has none.
const DOUBTS: [&str; 2] = [
    "The passage this answer points to is mostly forgotten.",
    "This answer stands on no passage the model clearly looked at.",
];

/// What is said below an answer in the window (`ui/src/lib/ended.ts`, `doubt.ts`): it goes where the answer goes.
fn below(turn: &Turn) -> Vec<&str> {
    let Some(facts) = turn.facts.as_ref() else {
        return Vec::new();
    };
    let ending = match facts.finish {
        _ if turn.state != TurnState::Done => None,
        Finish::End | Finish::Stopped => None,
        Finish::Length => Some(ENDINGS[0]),
        Finish::Context => Some(ENDINGS[1]),
        Finish::Repetition => Some(ENDINGS[2]),
    };
    let doubt = facts.doubt.map(|doubt| match doubt {
        Doubt::Forgotten => DOUBTS[0],
        Doubt::Unseen => DOUBTS[1],
    });
    let notes = facts.notes.iter().map(String::as_str);
    ending.into_iter().chain(doubt).chain(notes).collect()
}

/// `25 %`, or `0.5 %`, as in the window.
fn share(kept: f32) -> String {
    let percent = f64::from(kept) * 100.0;
    match percent {
        0.1..9.95 => format!("{percent:.1} %"),
        _ => format!("{percent:.0} %"),
    }
}

/// Why a turn has no complete answer.
fn missing(turn: &Turn) -> Option<&str> {
    match turn.state {
        TurnState::Done => None,
        TurnState::Stopped => Some("Stopped."),
        _ => Some(turn.error.as_deref().unwrap_or("Not answered.")),
    }
}

/// Where a passage stands, and how much of it was remembered.
fn remembered(source: &Source, noun: &str) -> String {
    let page = source.page.map(|page| format!("{noun} {page}"));
    let share = format!("{} remembered", share(source.kept));
    let parts = source.document.clone().into_iter().chain(page);
    parts.chain([share]).collect::<Vec<_>>().join(", ")
}

/// The document's name, if there is a document.
fn about(conversation: &Loaded) -> Option<&str> {
    Some(conversation.document.info.name.as_str()).filter(|name| !name.is_empty())
}

fn markdown(title: &str, conversation: &Loaded) -> String {
    let mut text = format!("# {title}\n");
    if let Some(name) = about(conversation) {
        // Writing to a string cannot fail.
        let _ = write!(text, "\nAbout {name}\n");
    }
    for turn in ordered(&conversation.turns) {
        let listed = listed(turn);
        let answer = numbered(turn, &listed);
        let _ = write!(text, "\n## {}\n\n", turn.question);
        if !answer.is_empty() {
            let _ = write!(text, "{answer}\n\n");
        }
        if let Some(missing) = missing(turn) {
            let _ = write!(text, "*{missing}*\n\n");
        }
        for note in below(turn) {
            let _ = write!(text, "*{note}*\n\n");
        }
        for (number, source) in (1..).zip(&listed) {
            let quoted = source.text.trim().replace('\n', "\n> ");
            let about = remembered(source, &conversation.document.facts.page_noun);
            let label = label(turn, number);
            let _ = write!(text, "> {label}{quoted}\n>\n> *{about}*\n\n");
        }
        let _ = writeln!(text, "*{}*", made(turn, &conversation.turns));
    }
    text
}

fn html(title: &str, conversation: &Loaded) -> String {
    let mut text = format!(
        "<!doctype html>\n<meta charset=\"utf-8\">\n<title>{title}</title>\n<style>\n{STYLE}</style>\n<h1>{title}</h1>\n",
        title = escaped(title)
    );
    if let Some(name) = about(conversation) {
        let _ = writeln!(text, "<p>About {}</p>", escaped(name));
    }
    for turn in ordered(&conversation.turns) {
        let _ = writeln!(text, "<h2>{}</h2>", escaped(&turn.question));
        let listed = listed(turn);
        let answer = numbered(turn, &listed);
        if !answer.is_empty() {
            let _ = writeln!(text, "{}", rendered(&answer));
        }
        if let Some(missing) = missing(turn) {
            let _ = writeln!(text, "<p><em>{}</em></p>", escaped(missing));
        }
        for note in below(turn) {
            let _ = writeln!(text, "<p><em>{}</em></p>", escaped(note));
        }
        for (number, source) in (1..).zip(&listed) {
            let about = remembered(source, &conversation.document.facts.page_noun);
            let _ = writeln!(
                text,
                "<blockquote>{}<mark style=\"--kept:{:.2}\">{}</mark><br><small>{}</small></blockquote>",
                label(turn, number),
                source.kept,
                escaped(source.text.trim()),
                escaped(&about)
            );
        }
        let made = made(turn, &conversation.turns);
        let _ = writeln!(text, "<p><small>{}</small></p>", escaped(&made));
    }
    text
}

/// A passage is the more yellow, the more of it was remembered.
const STYLE: &str = "\
body { max-width: 42em; margin: 2em auto; padding: 0 1em; font: 16px/1.5 system-ui, sans-serif; }
table { border-collapse: collapse; }
th, td { border: 1px solid #ccc; padding: 0.2em 0.6em; }
pre { overflow-x: auto; padding: 0.6em; background: #f4f4f2; }
blockquote { margin: 1em 0; padding-left: 1em; border-left: 3px solid #ccc; white-space: pre-wrap; }
mark { background: rgb(255 214 64 / var(--kept)); color: inherit; }
small { color: #666; }
";

/// An answer's Markdown as HTML, as in the window: raw HTML is text, and links and pictures are words.
fn rendered(answer: &str) -> String {
    let options =
        Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TASKLISTS;
    let mut addresses = Vec::new();
    let events = Parser::new_ext(answer, options).filter_map(|event| match event {
        Event::Html(text) | Event::InlineHtml(text) => Some(Event::Text(text)),
        Event::SoftBreak => Some(Event::HardBreak),
        Event::Start(Tag::Link {
            link_type,
            dest_url,
            ..
        }) => {
            let bare = matches!(link_type, LinkType::Autolink | LinkType::Email);
            addresses.push((!bare).then_some(dest_url));
            None
        }
        Event::End(TagEnd::Link) => {
            let address = addresses.pop().flatten()?;
            Some(Event::Text(format!(" ({address})").into()))
        }
        Event::Start(Tag::Image { .. }) | Event::End(TagEnd::Image) => None,
        Event::TaskListMarker(done) => Some(Event::Text(if done { "☑ " } else { "☐ " }.into())),
        event => Some(event),
    });
    let mut html = String::new();
    pulldown_cmark::html::push_html(&mut html, events);
    html
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::{DOUBTS, ENDINGS, file_name, rendered};

    /// Each sentence of [`super::below`] is one of the window's, or its beginning.
    #[test]
    fn sentences_below_answers_are_those_of_the_window() {
        let window = concat!(
            include_str!("../../ui/src/lib/ended.ts"),
            include_str!("../../ui/src/lib/doubt.ts")
        );
        for sentence in [ENDINGS.as_slice(), &DOUBTS].concat() {
            let words = sentence.trim_end_matches('.');
            assert!(window.contains(words), "{sentence}");
        }
    }

    #[test]
    fn an_answer_in_html_runs_and_loads_nothing() {
        assert_eq!(
            rendered("Rent: 5\nDeposit: 10"),
            "<p>Rent: 5<br />\nDeposit: 10</p>\n"
        );
        let answer = "**Yes**, see [the *lease*](javascript:a()) and ![plan](x.png) <b onclick=a()>5 < 6</b>\n\n\
                      | a | b |\n|---|---|\n| 1 | 2 |\n\n- [x] paid\n- <https://a.b>\n\n<script>a()</script>";
        let html = rendered(answer);
        assert!(html.starts_with(
            "<p><strong>Yes</strong>, see the <em>lease</em> (javascript:a()) and plan &lt;b onclick=a()&gt;5 &lt; 6&lt;/b&gt;</p>"
        ), "{html}");
        assert!(html.contains("<td>1</td><td>2</td>"), "{html}");
        assert!(
            html.contains("<li>☑ paid</li>\n<li>https://a.b</li>"),
            "{html}"
        );
        assert!(html.contains("&lt;script&gt;a()&lt;/script&gt;"), "{html}");
        for sign in ["<b", "<a", "<img", "<script"] {
            assert!(!html.contains(sign), "{sign}: {html}");
        }
    }

    #[test]
    fn a_file_made_from_a_document_has_another_name() {
        assert_eq!(
            file_name("lease.md", "Who pays?", "md"),
            "lease - Who pays.md"
        );
        assert_eq!(file_name("a.csv", "table", "csv"), "a - table.csv");
        assert_eq!(
            file_name("lease.md", "a/b\\c: \"d\"", "md"),
            "lease - a b c d.md"
        );
        assert_eq!(file_name("", "???", "html"), "conversation - Kept.html");
    }
}
