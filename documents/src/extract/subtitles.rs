//! Subtitles: what is said, in paragraphs that begin with their time.
//!
//! ```text
//! [00:01:15] The keeper opens the door. She takes the lamp and goes up the stairs.
//! ```
//!
//! A paragraph ends where a sentence ends after half a minute, at a pause, or when another person speaks: short enough
//! to find a place in the film, long enough to read.

use super::ExtractResult;
use super::writer::{Block, Writer, one_line};

/// After this many milliseconds a paragraph ends with the next sentence.
const LONG: u64 = 30_000;
/// After this many milliseconds a paragraph ends.
const MAX_PARAGRAPH_MS: u64 = 60_000;
/// Nothing is said for this many milliseconds: a pause.
const PAUSE: u64 = 5_000;

/// One subtitle. Times are in milliseconds.
struct Cue {
    start: u64,
    end: u64,
    text: String,
}

/// Extracts what is said. A file without times is text as it is.
pub(super) fn read(text: &str) -> ExtractResult<Writer> {
    let mut out = Writer::new();
    let cues = cues(text);
    if cues.is_empty() {
        out.block(&Block::Paragraph(text.replace('\r', "")))?;
        return Ok(out);
    }
    let mut paragraph = String::new();
    let (mut began, mut ended) = (0, 0);
    for cue in cues {
        let is_finished = paragraph.ends_with(['.', '!', '?', '…', '"', '”', ']', ')', '。', '♪']);
        let age = cue.start.saturating_sub(began);
        let is_new = paragraph.is_empty()
            || cue.start < began
            || age >= MAX_PARAGRAPH_MS
            || age >= LONG && is_finished
            || cue.start.saturating_sub(ended) >= PAUSE
            || is_speech(&cue.text);
        if is_new {
            out.block(&Block::Paragraph(std::mem::take(&mut paragraph)))?;
            paragraph = stamp(cue.start);
            began = cue.start;
        }
        paragraph.push(' ');
        paragraph.push_str(&cue.text);
        ended = cue.end;
    }
    out.block(&Block::Paragraph(paragraph))?;
    Ok(out)
}

/// Whether a subtitle begins with a dash or a name, as when another person speaks.
fn is_speech(text: &str) -> bool {
    let name = text.split_once(": ").map_or("", |(name, _)| name);
    let is_name = !name.is_empty()
        && name.len() <= 30
        && name
            .split(' ')
            .all(|word| word.starts_with(char::is_uppercase));
    is_name || text.starts_with("- ")
}

/// A time as `[hh:mm:ss]`.
fn stamp(milliseconds: u64) -> String {
    let seconds = milliseconds / 1000;
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    format!("[{hours:02}:{minutes:02}:{:02}]", seconds % 60)
}

fn cues(text: &str) -> Vec<Cue> {
    let mut cues: Vec<Cue> = Vec::new();
    let mut last_line = String::new();
    let mut open: Option<Cue> = None;
    // The end of the file ends the last subtitle.
    for line in text.lines().map(str::trim).chain([""]) {
        if let Some((start, end)) = times(line) {
            // A number above the times belongs to the new subtitle.
            close(&mut open, &mut cues);
            let text = String::new();
            open = Some(Cue { start, end, text });
        } else if line.is_empty() {
            close(&mut open, &mut cues);
        } else if let Some(cue) = &mut open {
            let line = plain(line);
            // Captions that roll up show each line twice.
            if line != last_line && !line.is_empty() {
                if !cue.text.is_empty() {
                    cue.text.push(' ');
                }
                cue.text.push_str(&line);
                last_line = line;
            }
        }
    }
    cues
}

fn close(open: &mut Option<Cue>, cues: &mut Vec<Cue>) {
    cues.extend(open.take().filter(|cue| !cue.text.is_empty()));
}

/// The times of `00:01:02,345 --> 00:01:04.000 align:start`.
fn times(line: &str) -> Option<(u64, u64)> {
    let (start, rest) = line.split_once("-->")?;
    let end = rest.split_whitespace().next()?;
    Some((time(start.trim())?, time(end)?))
}

/// `hh:mm:ss,mmm` or `mm:ss.mmm` in milliseconds.
fn time(text: &str) -> Option<u64> {
    let (clock, fraction) = text.split_once([',', '.']).unwrap_or((text, "0"));
    let mut seconds: u64 = 0;
    for part in clock.split(':') {
        seconds = seconds.checked_mul(60)?.checked_add(part.parse().ok()?)?;
    }
    let digits: String = fraction.chars().chain("000".chars()).take(3).collect();
    seconds.checked_mul(1000)?.checked_add(digits.parse().ok()?)
}

/// A line without tags, and with the speaker that WebVTT names in a tag.
fn plain(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line;
    while let Some(at) = rest.find(['<', '{']) {
        let (before, tag) = rest.split_at(at);
        text.push_str(before);
        let close = if tag.starts_with('<') { '>' } else { '}' };
        let is_tag = tag[1..].starts_with(|c: char| c.is_alphanumeric() || matches!(c, '/' | '\\'));
        match tag.find(close).filter(|_| is_tag) {
            Some(end) => {
                if let Some(speaker) = tag[..end].strip_prefix("<v").and_then(speaker) {
                    text.push_str(&speaker);
                }
                rest = &tag[end + 1..];
            }
            None => {
                text.push_str(&tag[..1]);
                rest = &tag[1..];
            }
        }
    }
    text.push_str(rest);
    let decoded = [
        ("&nbsp;", " "),
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&lrm;", ""),
        ("&rlm;", ""),
        ("&amp;", "&"),
    ]
    .iter()
    .fold(text, |text, (entity, meaning)| {
        text.replace(entity, meaning)
    });
    one_line(&decoded)
}

/// The name in `<v.loud Anna>`, without `<v`.
fn speaker(tag: &str) -> Option<String> {
    let (_, name) = tag.split_once(char::is_whitespace)?;
    Some(format!("{}: ", name.trim()))
}
