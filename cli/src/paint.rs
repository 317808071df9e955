//! Paints a document in a terminal: one background hue, stronger where more heads kept the token.

use kept_engine::Run;

use crate::arguments::Color;
use crate::output::printable;

/// Escape codes for five levels, from nothing kept to everything kept, on a dark and on a light background.
const DARK: [&str; 5] = [
    "\x1b[2m",
    "\x1b[48;5;23m",
    "\x1b[48;5;30m",
    "\x1b[38;5;16;48;5;37m",
    "\x1b[38;5;16;48;5;80m",
];
const LIGHT: [&str; 5] = [
    "\x1b[2m",
    "\x1b[48;5;195m",
    "\x1b[38;5;16;48;5;116m",
    "\x1b[38;5;16;48;5;73m",
    "\x1b[38;5;231;48;5;24m",
];
const RESET: &str = "\x1b[0m";

/// Whether to use colours: as requested, or with `auto` if `terminal` is true and the user did not set `NO_COLOR`.
pub fn use_color(color: Color, terminal: bool) -> bool {
    match color {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => {
            let says_no = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
            let dumb = std::env::var("TERM").is_ok_and(|term| term == "dumb");
            terminal && !says_no && !dumb
        }
    }
}

/// The colour level of a share: 0 for a share of 0, then one level per quarter, up to 4.
fn level(share: f32) -> usize {
    (share * 4.0).ceil().clamp(0.0, 4.0) as usize
}

/// The palette for the terminal's background, from `COLORFGBG`; dark if the variable is missing.
fn palette() -> &'static [&'static str; 5] {
    let background = std::env::var("COLORFGBG")
        .ok()
        .and_then(|v| v.rsplit(';').next().and_then(|b| b.parse::<u8>().ok()));
    match background {
        Some(7 | 9..=15) => &LIGHT,
        _ => &DARK,
    }
}

/// The legend: the five levels with their numbers.
pub fn legend() -> String {
    let names = [
        " dropped ",
        " up to 25 % ",
        " 50 % ",
        " 75 % ",
        " 100 % of heads ",
    ];
    let levels: Vec<String> = palette()
        .iter()
        .zip(names)
        .map(|(code, name)| format!("{code}{name}{RESET}"))
        .collect();
    format!("kept in {}", levels.join(" "))
}

/// Renders the text with its runs coloured. Colours end before every line break, so that they do not extend to the
/// margin.
pub fn painted(text: &str, runs: &[Run]) -> String {
    let palette = palette();
    let mut out = String::with_capacity(text.len() * 2);
    for run in runs {
        let code = palette[level(run.share)];
        for piece in printable(&text[run.range.clone()]).split_inclusive('\n') {
            let (words, end) = match piece.strip_suffix('\n') {
                Some(words) => (words, "\n"),
                None => (piece, ""),
            };
            if !words.is_empty() {
                out += code;
                out += words;
                out += RESET;
            }
            out += end;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_positive_share_has_a_colour_level() {
        assert_eq!(level(0.0), 0);
        assert_eq!(level(0.01), 1);
        assert_eq!(level(0.25), 1);
        assert_eq!(level(0.26), 2);
        assert_eq!(level(1.0), 4);
    }

    #[test]
    fn control_characters_of_a_document_are_removed() {
        let text = "a\x1b]0;owned\x07b\nc";
        let run = Run {
            range: 0..text.len(),
            share: 1.0,
        };
        let out = painted(text, &[run]);
        assert!(!out.contains("\x1b]"), "{out:?}");
        assert!(!out.contains('\x07'), "{out:?}");
        assert!(out.contains('\n'));
    }
}
