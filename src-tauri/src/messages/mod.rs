//! Sentences of the window's own. One each, naming the value and the way out. What documents, models and methods say comes
//! from their crates; [`present_error`] only takes the terminal's flags out of it.

mod hub;
mod reading;

use std::ops::RangeInclusive;
use std::path::Path;

use kept_engine::REPEAT_PENALTY;
use kept_engine::policies::PolicyError;

pub use self::hub::{NOT_SUPPORTED, model_in_use, not_supported, of_hub, removed};
pub use self::reading::{
    BUSY_DEVICE, COMPARE_STREAMED, cache_type, cannot_stream, chosen, device, keep_budget, keeping,
    memory_limit, streamed, streams, vault_cleared,
};
use crate::state::file_name;

/// A sentence of the engine as it reads in a window, where there are no flags and methods have their papers' names.
pub fn present_error(sentence: &str) -> String {
    let known = reading::rounded_anew(sentence)
        .or_else(|| reading::within_limit(sentence))
        .or_else(|| reading::limit_too_small(sentence));
    if let Some(said) = known {
        return said;
    }
    let mut text = without_parts(&without_flags(sentence));
    if !text.ends_with(['.', '!', '?']) {
        text.push('.');
    }
    capitalised(text)
}

/// Flags of the terminal have other names in a window.
fn without_flags(sentence: &str) -> String {
    sentence
        .replace("for example --budget ", "for example ")
        .replace("raise --budget to", "raise the budget to")
        .replace("or lower --budget", "or lower the budget")
        .replace("or set less", "or set less in Advanced")
        .replace("pass --model FILE.gguf", "choose a model file")
        .replace(
            "set a smaller --budget or --memory",
            "set a smaller budget or a memory limit",
        )
        .replace("take --cache ", "store rows as ")
        .replace("or take --device cpu", "or choose Processor in Settings")
        .replace("or use --device cpu", "or choose Processor in Settings")
        .replace("or --device cpu", "or Processor in Settings")
        .replace("use --device cpu", "choose Processor in Settings")
        .replace("--device cuda:", "the GPU cuda:")
        .replace("--max-tokens", "the longest answer")
        .replace("--budget", "the budget")
        .replace("--method", "the method")
        .replace("--model", "the model")
}

/// What the rows that a method needs are made of is said in its own parameters' names: not here.
fn without_parts(text: &str) -> String {
    let (begins, ends) = (" rows per head (", "), but the budget is ");
    if let (Some(from), Some(to)) = (text.find(begins), text.find(ends))
        && from < to
    {
        let kept = from + begins.len() - 2;
        return format!("{}{}", &text[..kept], &text[to + 1..]);
    }
    text.to_owned()
}

/// With a capital first, unless the first word is a name: of a file, a setting. A method gets its title.
fn capitalised(text: String) -> String {
    let word = text.split([' ', ':']).next().unwrap_or("");
    if let Ok(method) = kept_engine::policies::find(word) {
        return format!("{}{}", method.title, &text[word.len()..]);
    }
    let is_plain = text.as_bytes().get(word.len()) == Some(&b' ')
        && word.chars().all(|c| c.is_ascii_lowercase());
    match text.split_at_checked(1) {
        Some((first, rest)) if is_plain => first.to_ascii_uppercase() + rest,
        _ => text,
    }
}

/// A sentence about the file at `path`: its name for its place, and plain words for the system's. The whole is in the log.
fn about(sentence: &str, path: &Path) -> String {
    let mut text = sentence.to_owned();
    let place = path.display().to_string();
    if !place.is_empty() {
        text = text.replace(&place, &file_name(path));
    }
    for (said, plain) in [
        ("No such file or directory", "there is no such file"),
        ("Permission denied", "this user may not read it"),
        ("Is a directory", "it is a folder"),
        ("Input/output error", "the disk gave an error"),
    ] {
        text = text.replace(said, plain);
    }
    while let Some(from) = text.find(" (os error ") {
        let Some(length) = text[from..].find(')') else {
            break;
        };
        text.replace_range(from..=from + length, "");
    }
    text
}

/// A document that could not be opened.
pub fn document_failed(message: &str, path: &Path) -> String {
    present_error(&about(message, path))
}

/// What is wrong with a method or its parameters.
pub fn method(error: &PolicyError) -> String {
    match error {
        PolicyError::Value {
            name, value, range, ..
        } => format!("“{value}” is not possible: {name} takes {range}."),
        error => present_error(&error.to_string()),
    }
}

/// A file whose name is no Unicode cannot be named to the worker.
pub fn not_utf8(path: &Path) -> String {
    format!(
        "The name of {} is not valid Unicode: rename the file and open it again.",
        file_name(path)
    )
}

/// The engine is not there to open a file.
pub fn engine_not_running(name: &str) -> String {
    format!(
        "{name} was not opened, because the engine does not run: start it again, then open the file."
    )
}

/// Nothing can be kept in the folder for it.
pub fn not_saved(folder: &Path) -> String {
    format!(
        "This conversation is not saved, because Kept cannot write to its folder {}: make room or rights there and start Kept again.",
        file_name(folder)
    )
}

/// Nothing was asked.
pub const EMPTY_QUESTION: &str = "Type a question first.";
/// Nothing to ask about.
pub const NO_DOCUMENT: &str = "Open a document first, or the sample.";
/// One at a time.
pub const BUSY: &str = "A question is still being answered: stop it or wait for its end.";
/// The model must not change under a question.
pub const BUSY_MODEL: &str =
    "Kept is still at work on this document: stop it or wait for its end, then change the model.";
/// A comparison takes the whole engine.
pub const BUSY_COMPARING: &str =
    "Methods are still being compared: stop the comparison or wait for its end.";
/// No run was chosen.
pub const NOTHING_TO_COMPARE: &str = "Choose at least one method and one memory budget to compare.";
/// Nothing to save yet.
pub const NO_COMPARISON: &str = "Nothing has been compared yet: there is nothing to save.";
/// The model is on its way.
pub const MODEL_OPENING: &str =
    "The model is still being opened: ask again when it is there; your question is kept.";
/// The engine is on its way.
pub const ENGINE_STARTING: &str =
    "The engine is still starting: ask again when it is there; your question is kept.";
/// The engine has given up.
pub const ENGINE_FAILED: &str =
    "The engine is not running: start it again and ask again; your question is kept.";
/// It ended while it was asked something.
pub const ENGINE_ENDED: &str = "The engine has ended before it answered: try again.";
/// The engine is needed for something that is no question, and is on its way.
pub const ENGINE_NOT_YET: &str = "The engine is still starting: try again when it is there.";
/// The engine is needed for something that is no question, and has given up.
pub const ENGINE_NOT_RUNNING: &str = "The engine is not running: start it again, then try again.";
/// A person restarted it.
pub const RESTARTED_BY_HAND: &str =
    "The engine was restarted before this answer ended; your question is kept: ask again.";
/// A bug of ours: nobody watches the engine any more.
pub const NO_SUPERVISOR: &str =
    "Kept has lost hold of its engine over a bug: close the window and start Kept again.";
/// No map of this turn.
pub const NO_MAP: &str = "There is no map for this answer: ask again to make one.";
/// A map that is there and cannot be read.
pub const MAP_UNREADABLE: &str =
    "The map of this answer could not be read from the disk: ask again to make one.";
/// Writing fails.
pub const NOT_WRITTEN: &str =
    "This conversation could not be saved: free some space or check the disk.";
/// A drop of a folder.
pub const A_FOLDER: &str = "That is a folder; drop its files.";
/// A drop of something else.
pub const NOT_A_FILE: &str = "That is not a file; drop one or more files.";
/// Documents must not change under a question.
pub const BUSY_DOCUMENTS: &str = "Kept is still at work on what is open: stop it or wait for its end, then change the documents.";
/// A document that is not among them.
pub const NO_SUCH_DOCUMENT: &str = "That document is no longer open.";
/// A second process.
pub const SECOND_WINDOW: &str =
    "Another Kept window is open; this one does not save its conversation.";

/// The model file at `path` cannot be used.
pub fn model_failed(message: &str, path: &Path) -> String {
    let name = file_name(path);
    let text = without_flags(&about(message, path));
    let text = text.strip_prefix(&format!("{name}: ")).unwrap_or(&text);
    let text = match text.strip_prefix("the model file ") {
        // It says already that it cannot be opened, or why.
        Some(rest) => format!("{name} {rest}"),
        None if text.starts_with(&name) => text.to_owned(),
        None => format!("{name} could not be opened: {text}"),
    };
    match text.ends_with(['.', '!', '?']) {
        true => text,
        false => text + ".",
    }
}

/// A setting out of its range.
pub fn max_tokens(value: usize, most: usize) -> String {
    format!("The longest answer is 1 to {most} tokens; {value} is not.")
}

/// A setting out of its range.
pub fn repeat_penalty(value: f64) -> String {
    let (least, most) = (REPEAT_PENALTY.start(), REPEAT_PENALTY.end());
    format!("The repetition penalty is {least} (off) to {most}; {value} is not.")
}

/// A size of the text out of its range.
pub fn zoom(value: u16, range: &RangeInclusive<u16>) -> String {
    let (least, most) = (range.start(), range.end());
    format!("The size of the text is {least} to {most} %; {value} is not.")
}

/// More runs than one comparison takes.
pub fn too_many_runs(runs: usize, most: usize) -> String {
    format!("{runs} runs are too many for one comparison: choose at most {most}.")
}

/// The comparison lies in a file.
pub fn exported(name: &str) -> String {
    format!("The comparison is saved as {name}.")
}

/// It does not.
pub fn not_exported(name: &str) -> String {
    format!("{name} could not be saved: choose another folder, or free some space.")
}

/// What became of a comparison when the engine was lost.
pub fn compared_so_far(reason: &str) -> String {
    let reason = reason.split("; your question is kept").next();
    format!(
        "{}; what was measured before stays.",
        reason.unwrap_or_default().trim_end_matches('.')
    )
}

/// A layer that the model does not have; people count from 1.
pub fn no_such_layer(layer: usize, layers: usize) -> String {
    format!(
        "This map has {layers} layers; there is no layer {}.",
        layer.saturating_add(1)
    )
}

/// A model id nobody gave.
pub fn unknown_model(id: &str) -> String {
    format!("There is no model '{id}': choose one of the list.")
}

/// What the death of the engine means while it was idle ...
pub fn restarted(what: &str) -> String {
    format!("{what} It has been restarted.")
}

/// ... while a question ran.
pub fn restarted_ask_again(what: &str) -> String {
    format!("{what} It has been restarted; your question is kept: ask again.")
}

/// ... while a file was being opened.
pub fn restarted_open_again(what: &str, name: &str) -> String {
    format!("{what} It has been restarted; {name} was not opened: open it again.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_begin_with_a_capital_and_names_stay_as_they_are() {
        for (given, shown) in [
            ("there is no file /a", "There is no file /a."),
            ("/a/b.txt is a folder", "/a/b.txt is a folder."),
            ("notes.txt is empty!", "notes.txt is empty!"),
            ("snapkv needs a budget of 9", "SnapKV needs a budget of 9."),
            ("snapkv: w=0 is wrong", "SnapKV: w=0 is wrong."),
            ("", "."),
            ("é", "é."),
        ] {
            assert_eq!(present_error(given), shown);
        }
    }

    #[test]
    fn a_gpu_is_named_as_the_settings_name_it() {
        let full = "the GPU NVIDIA X has 1.2 GiB left and 3.0 GiB more are needed; use a smaller budget, a smaller model or --device cpu";
        assert!(present_error(full).ends_with("a smaller model or Processor in Settings."));
        let none = "--device cuda:0: no NVIDIA driver was found; use --device cpu";
        assert_eq!(
            model_failed(none, Path::new("/m/a.gguf")),
            "a.gguf could not be opened: the GPU cuda:0: no NVIDIA driver was found; choose Processor in Settings."
        );
    }

    #[test]
    fn flags_of_the_terminal_do_not_reach_the_window() {
        let zero = kept_engine::policies::PolicyError::BudgetZero("0%".into()).to_string();
        assert_eq!(
            present_error(&zero),
            "A budget of 0% keeps nothing; give at least 1 row, for example 25%."
        );
        for method in kept_engine::policies::methods() {
            let error = kept_engine::policies::PolicyError::BudgetTooSmall {
                method: method.name,
                rows: 1,
                needed: 9,
                why: "window".into(),
                tokens: 20,
            };
            assert!(!present_error(&error.to_string()).contains("--"));
        }
    }
}
