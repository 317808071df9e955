//! Sentences of the hub's crate as they read in a window: where a terminal runs the same command again, a person presses a button.

use std::path::Path;

use kept_hub::{Settings, text};

use super::{about, present_error};
use crate::state::file_name;

/// What went wrong with a download or a folder.
pub fn of_hub(sentence: &str) -> String {
    in_window(sentence, &Settings::token_file().display().to_string())
}

fn in_window(sentence: &str, token_file: &str) -> String {
    let put = format!("put a token that may read it into the file {token_file}");
    let text = sentence
        .replace(
            "run the same again to go on from where it stopped",
            "press Go on: what has arrived is kept",
        )
        .replace("run the same again to go on", "press Go on")
        .replace(
            "run the same again to download it anew",
            "press Go on to download it anew",
        )
        .replace(
            "run the same again to see what there is now",
            "look again for what there is now",
        )
        .replace("run the same again later", "try again later")
        .replace("run the same again", "press Go on")
        .replace(
            "; unset it to download",
            "; start Kept without it to download",
        )
        .replace("set HF_TOKEN to a token that may read it", &put)
        .replace(
            "set HF_TOKEN to a token of that account",
            &format!("put a token of that account into the file {token_file}"),
        )
        .replace(
            "and set HF_TOKEN to it",
            &format!("and put it into the file {token_file}"),
        );
    present_error(&text)
}

/// Why a model on this computer cannot be opened.
pub fn not_supported(reason: &str, path: &Path) -> String {
    let name = file_name(path);
    let text = about(reason, path);
    present_error(text.strip_prefix(&format!("{name}: ")).unwrap_or(&text))
}

/// A model that cannot be opened, and nobody says why.
pub const NOT_SUPPORTED: &str = "Kept cannot open this file.";

/// A model, or what had arrived of one, is gone.
pub fn removed(name: &str, bytes: u64) -> String {
    match bytes {
        0 => format!(
            "{name} is removed; another name still leads to its bytes, so no room is freed."
        ),
        bytes => format!("{name} is removed: {} are free again.", text::bytes(bytes)),
    }
}

/// The model in use is not removed under it.
pub fn model_in_use(name: &str) -> String {
    format!("{name} is the model in use: choose another model, then remove it.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminals_way_out_becomes_a_windows() {
        for (said, shown) in [
            (
                "hub.example cannot be reached (refused); check the connection to the internet, then run the same again",
                "hub.example cannot be reached (refused); check the connection to the internet, then press Go on.",
            ),
            (
                "hub.example has sent nothing for 30 seconds; run the same again to go on from where it stopped",
                "hub.example has sent nothing for 30 seconds; press Go on: what has arrived is kept.",
            ),
            (
                "there is no repository 'a/b' on hub.example, or it is private; check the spelling, or set HF_TOKEN to a token that may read it",
                "There is no repository 'a/b' on hub.example, or it is private; check the spelling, or put a token that may read it into the file /t/token.",
            ),
            (
                "HF_HUB_OFFLINE is set, so nothing is fetched; unset it to download 'a/b'",
                "HF_HUB_OFFLINE is set, so nothing is fetched; start Kept without it to download 'a/b'.",
            ),
        ] {
            assert_eq!(in_window(said, "/t/token"), shown);
        }
    }
}
