//! The app's own sentences. Each is one sentence that names the value and the solution. Sentences about documents,
//! models and methods come from their crates; [`fault`] and [`note`] format their data.

mod hub;
mod reading;

use std::ops::RangeInclusive;
use std::path::Path;

use kept_engine::policies::PolicyError;
use kept_engine::{Note, REPEAT_PENALTY};
use kept_worker::protocol::{Fault, FaultCode};

pub use self::hub::{NOT_SUPPORTED, model_in_use, removed};
pub use self::reading::{
    BUSY_DEVICE, COMPARE_STREAMED, cache_type, cannot_stream, chosen, device, keep_budget,
    keep_budget_small, keeping, memory_limit, streamed, streams, vault_cleared,
};
use crate::names::file_name;

/// Formats an error or a note as a sentence with a capital letter and a full stop. A first word that is a name (of a
/// file, a setting) is unchanged.
pub fn as_sentence(message: &str) -> String {
    let text = with_full_stop(message.to_owned());
    let word = text.split([' ', ':']).next().unwrap_or("");
    let is_plain = text.as_bytes().get(word.len()) == Some(&b' ')
        && word.chars().all(|c| c.is_ascii_lowercase());
    match text.split_at_checked(1) {
        Some((first, rest)) if is_plain => first.to_ascii_uppercase() + rest,
        _ => text,
    }
}

/// [`as_sentence`] for a message about the file `name`, which may begin with it: a name is never capitalised.
pub fn about_file(name: &str, message: &str) -> String {
    match message.strip_prefix(name) {
        Some(rest) if !name.is_empty() && rest.starts_with(' ') => {
            with_full_stop(message.to_owned())
        }
        _ => as_sentence(message),
    }
}

fn with_full_stop(mut text: String) -> String {
    if !text.ends_with(['.', '!', '?']) {
        text.push('.');
    }
    text
}

/// Formats a fault of the engine.
pub fn fault(fault: &Fault) -> String {
    match &fault.code {
        FaultCode::MemoryLimit {
            limit,
            missing,
            weights,
        } => reading::limit_too_small(*limit, *missing, *weights),
        FaultCode::CacheType { cache, method, why } => reading::cannot_store(cache, method, why),
        FaultCode::Parameter { .. }
        | FaultCode::Password { .. }
        | FaultCode::Scan { .. }
        | FaultCode::Other => as_sentence(&fault.message),
    }
}

/// Formats a note of the engine.
pub fn note(note: &Note) -> String {
    match note {
        Note::WithinMemory(within) => reading::within_limit(within),
        note => as_sentence(&note.to_string()),
    }
}

/// An invalid method or parameter.
pub fn method(error: &PolicyError) -> String {
    match error {
        PolicyError::Value {
            name, value, range, ..
        } => format!("“{value}” is not possible: {name} takes {range}."),
        error => as_sentence(&error.to_string()),
    }
}

/// A file name that is not valid Unicode, which the protocol to the worker cannot carry.
pub fn not_utf8(path: &Path) -> String {
    format!(
        "The name of {} is not valid Unicode: rename the file and open it again.",
        file_name(path)
    )
}

/// The engine is not running and cannot open a file.
pub fn engine_not_running(name: &str) -> String {
    format!(
        "{name} was not opened, because the engine is not running: start it again, then open the file."
    )
}

/// The conversation cannot be saved in `folder`.
pub fn not_saved(folder: &Path) -> String {
    format!(
        "This conversation is not saved, because Kept cannot write to its folder {}: free space or fix its permissions and start Kept again.",
        file_name(folder)
    )
}

/// A file cannot be read.
pub fn not_read(name: &str, error: &std::io::Error) -> String {
    format!("{name} cannot be read: {error}.")
}

/// The question is empty.
pub const EMPTY_QUESTION: &str = "Type a question first.";
/// No document is open.
pub const NO_DOCUMENT: &str = "Open a document first, or the sample.";
/// The question of a command.
pub const NO_TURN: &str = "There is no such question in this conversation.";
/// The map without what is kept whatever is asked.
pub const NO_LIFT: &str = "What was kept because of this question is not known.";
/// Maps of smaller budgets come from the vault and the model of the answer.
pub const NO_LEVELS: &str = "Less memory can be shown for answers of the open model, while documents are kept on disk (Settings).";
/// Only a question that waits can be removed.
pub const NOT_WAITING: &str = "This question no longer waits: it was asked.";

/// The title of a branch of the conversation `title`. The list cuts off the end of long titles.
pub fn branch_of(title: &str) -> String {
    format!("Branch of {title}")
}

/// The conversation was deleted, or never written because the disk is full.
pub const NO_CONVERSATION: &str =
    "There is no such conversation: it was deleted, or could not be saved.";
/// The conversation cannot be read from the store.
pub const CONVERSATION_UNREADABLE: &str =
    "This conversation cannot be read from the disk: the log of Kept says why.";
/// The store cannot be searched.
pub const SEARCH_FAILED: &str = "The search failed: the log of Kept says why.";
/// A pasted text has only white space.
pub const EMPTY_TEXT: &str = "There is no text to open.";
/// A question is already running.
pub const BUSY: &str = "A question is still being answered: stop it or wait until it is done.";
/// The model cannot be changed during a question.
pub const BUSY_MODEL: &str =
    "Kept is still working: stop it or wait until it is done, then change the model.";
/// The engine is busy with a comparison.
pub const BUSY_COMPARING: &str =
    "Methods are still being compared: stop the comparison or wait until it is done.";
/// No method or budget was chosen.
pub const NOTHING_TO_COMPARE: &str = "Choose at least one method and one memory budget to compare.";
/// No comparison lacks a run.
pub const NOTHING_TO_CONTINUE: &str = "No comparison has runs left: start a new one.";
/// The comparison has no result to save.
pub const NO_COMPARISON: &str = "Nothing has been compared yet: there is nothing to save.";
/// The model is still being opened.
pub const MODEL_OPENING: &str =
    "The model is still opening: ask again in a moment. Your question stays in its field.";
/// The engine is still starting, and a question was asked.
pub const ENGINE_STARTING: &str =
    "The engine is still starting: ask again in a moment. Your question stays in its field.";
/// The engine is not running, and a question was asked.
pub const ENGINE_FAILED: &str =
    "The engine is not running: start it again, then ask again. Your question stays in its field.";
/// The engine ended during a request.
pub const ENGINE_ENDED: &str = "The engine stopped before it answered: try again.";
/// The engine is still starting, and something other than a question was requested.
pub const ENGINE_NOT_YET: &str = "The engine is still starting: try again in a moment.";
/// The engine is not running, and something other than a question was requested.
pub const ENGINE_NOT_RUNNING: &str = "The engine is not running: start it again, then try again.";
/// The user restarted the engine.
pub const RESTARTED: &str = "The engine was restarted.";
/// The user restarted the engine.
pub const RESTARTED_BY_HAND: &str =
    "The engine was restarted before this answer was complete: ask again.";
/// The supervisor task has ended because of a bug.
pub const NO_SUPERVISOR: &str =
    "A bug in Kept stopped the engine for good: close the window and start Kept again.";
/// The turn has no map.
pub const NO_MAP: &str = "There is no map for this answer: ask again to get one.";
/// The map exists but cannot be read.
pub const MAP_UNREADABLE: &str =
    "The map of this answer could not be read from the disk: ask again to get a new one.";
/// Writing to the store fails; it is tried again while the app runs.
pub const NOT_WRITTEN: &str = "This conversation cannot be saved: free some space, or check the disk. Kept tries again every few seconds.";
/// A folder was dropped.
pub const A_FOLDER: &str = "That is a folder; drop its files.";
/// Something other than a file was dropped.
pub const NOT_A_FILE: &str = "That is not a file; drop one or more files.";
/// Documents cannot be changed during a question.
pub const BUSY_DOCUMENTS: &str = "Kept is still working on the open document: stop it or wait until it is done, then change the documents.";
/// A question came while a document is being opened.
pub fn still_opening(name: &str) -> String {
    format!("{name} is being opened: ask when it is there.")
}

/// One of several documents was removed from a conversation with questions.
pub const NEW_CONVERSATION: &str = "A new conversation has begun: answers about all the documents are in the conversation before it, in the list at the left.";
/// The document is not open.
pub const NO_SUCH_DOCUMENT: &str = "That document is no longer open.";
/// Another process has the store open.
pub const SECOND_WINDOW: &str =
    "Another Kept window is open; this one does not save its conversation.";

/// The model file at `path` cannot be used.
pub fn model_failed(message: &str, path: &Path) -> String {
    with_full_stop(format!(
        "{} could not be opened: {message}",
        file_name(path)
    ))
}

/// A setting is out of range.
pub fn max_tokens(value: usize, most: usize) -> String {
    format!("The maximum answer length must be 1 to {most} tokens, not {value}.")
}

/// The instructions are too long; lengths in characters.
pub fn instructions(length: usize, most: usize) -> String {
    format!("The instructions have {length} characters: shorten them to at most {most}.")
}

/// A setting is out of range.
pub fn temperature(value: f64, range: &RangeInclusive<f64>) -> String {
    let (least, most) = (range.start(), range.end());
    format!("The temperature must be {least} to {most}, not {value}.")
}

/// A setting is out of range.
pub fn repeat_penalty(value: f64) -> String {
    let (least, most) = (REPEAT_PENALTY.start(), REPEAT_PENALTY.end());
    format!("The repetition penalty must be {least} (off) to {most}, not {value}.")
}

/// The text size is out of range.
pub fn zoom(value: u16, range: &RangeInclusive<u16>) -> String {
    let (least, most) = (range.start(), range.end());
    format!("The text size must be {least} to {most} %, not {value}.")
}

/// A comparison has too many runs.
pub fn too_many_runs(runs: usize, most: usize) -> String {
    format!("{runs} runs are too many for one comparison: choose at most {most}.")
}

/// The comparison or a conversation was saved in a file.
pub fn exported(what: &str, name: &str) -> String {
    format!("The {what} is saved as {name}.")
}

/// A file could not be saved.
pub fn not_exported(name: &str) -> String {
    format!("{name} could not be saved: choose another folder, or free some space.")
}

/// A conversation has no file format with the ending `other`.
pub fn no_such_export(other: &str) -> String {
    format!(
        "Kept exports conversations as .md, .html or .json, not as .{other}: choose one of these endings."
    )
}

/// The comparison was made with another model.
pub fn compared_with(model: &str) -> String {
    format!(
        "This comparison was made with {model}: choose that model again, or start a new comparison."
    )
}

/// The engine was lost during a comparison.
pub fn compared_so_far(reason: &str) -> String {
    let reason = reason.trim_end_matches('.');
    format!("{reason}; finished rows stay.")
}

/// The model has no such layer; the sentence counts layers from 1.
pub fn no_such_layer(layer: usize, layers: usize) -> String {
    format!(
        "This map has {layers} layers; there is no layer {}.",
        layer.saturating_add(1)
    )
}

/// The model id is unknown.
pub fn unknown_model(id: &str) -> String {
    format!("There is no model '{id}': choose one from the list.")
}

/// The engine ended while idle.
pub fn restarted(what: &str) -> String {
    format!("{what} It was restarted.")
}

/// The engine ended during a question.
pub fn restarted_ask_again(what: &str) -> String {
    format!("{what} It was restarted: ask again.")
}

/// The engine ended while it opened a file.
pub fn restarted_open_again(what: &str, name: &str) -> String {
    format!("{what} It was restarted; {name} was not opened: open it again.")
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
            ("", "."),
            ("é", "é."),
        ] {
            assert_eq!(as_sentence(given), shown);
        }
    }

    #[test]
    fn the_name_of_a_file_is_not_capitalised() {
        let about = |message| about_file("program", message);
        assert_eq!(about("program is not text"), "program is not text.");
        assert_eq!(about("there is no file"), "There is no file.");
        assert_eq!(about("programs are long"), "Programs are long.");
        assert_eq!(about_file("", "it is empty"), "It is empty.");
    }

    #[test]
    fn options_of_the_terminal_do_not_reach_the_window() {
        let zero = PolicyError::BudgetZero("0%".into()).to_string();
        assert_eq!(
            as_sentence(&zero),
            "A budget of 0% keeps nothing; give more, for example 25%."
        );
        for method in kept_engine::policies::methods() {
            let error = PolicyError::BudgetTooSmall {
                method: method.name,
                rows: 1,
                needed: 9,
                why: "window".into(),
                tokens: 20,
            };
            let shown = super::method(&error);
            assert!(
                shown.starts_with(method.title) && !shown.contains("--"),
                "{shown}"
            );
        }
    }
}
