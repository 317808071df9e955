//! Sentences of the window's own. One each, naming the value and the way out. What documents, models and methods say comes
//! from their crates; [`for_window`] only takes the terminal's flags out of it.

use std::path::Path;

/// A sentence of the engine as it reads in a window, where there are no flags.
pub fn for_window(sentence: &str) -> String {
    let mut text = sentence
        .replace("for example --budget ", "for example ")
        .replace("raise --budget to", "raise the budget to")
        .replace("pass --model FILE.gguf", "choose a model file")
        .replace("--max-tokens", "the longest answer")
        .replace("--budget", "the budget")
        .replace("--method", "the method")
        .replace("--model", "the model");
    if !text.ends_with(['.', '!', '?']) {
        text.push('.');
    }
    capitalised(text)
}

/// With a capital first, unless the first word is a name: of a file, a method, a setting.
fn capitalised(text: String) -> String {
    let word = text.split(' ').next().unwrap_or("");
    let is_plain = word.len() < text.len() && word.chars().all(|c| c.is_ascii_lowercase());
    let is_method = kept_engine::policies::find(word).is_ok();
    match text.split_at_checked(1) {
        Some((first, rest)) if is_plain && !is_method => first.to_ascii_uppercase() + rest,
        _ => text,
    }
}

/// A file whose name is no Unicode cannot be named to the worker.
pub fn not_utf8(path: &Path) -> String {
    format!(
        "The name of {} is not valid Unicode: rename the file and open it again.",
        path.display()
    )
}

/// The engine is not there to open a file.
pub fn engine_not_running(name: &str) -> String {
    format!("{name} cannot be opened, because the engine is not running: restart the engine first.")
}

/// Nothing can be kept in the folder for it.
pub fn not_saved(folder: &Path) -> String {
    format!(
        "This conversation is not saved, because Kept cannot write to {}: make room or rights there and start Kept again.",
        folder.display()
    )
}

/// The document exceeds the model's context.
pub fn too_long(name: &str, tokens: usize, context: usize) -> String {
    format!(
        "{name} has {tokens} tokens, more than the {context} this model reads: choose a model with a longer context or a shorter document."
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
    "A question is still being answered: stop it or wait for its end, then change the model.";
/// The model is on its way.
pub const MODEL_OPENING: &str =
    "The model is still being opened: ask again when it is there; your question is kept.";
/// The engine is on its way.
pub const ENGINE_STARTING: &str =
    "The engine is still starting: ask again when it is there; your question is kept.";
/// The engine has given up.
pub const ENGINE_FAILED: &str =
    "The engine is not running: restart it and ask again; your question is kept.";
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
/// A drop of several files.
pub const ONE_FILE: &str = "Kept reads one document at a time; drop one file.";
/// A drop of a folder.
pub const A_FOLDER: &str = "That is a folder; drop one file.";
/// A drop of something else.
pub const NOT_A_FILE: &str = "That is not a file; drop one file.";
/// A second process.
pub const SECOND_WINDOW: &str =
    "Another Kept window is open; this one does not save its conversation.";

/// The model file cannot be used.
pub fn model_failed(message: &str) -> String {
    let mut text = for_window(message);
    if let Some(first) = message.chars().next().filter(char::is_ascii) {
        text.replace_range(..1, &first.to_string());
    }
    format!("The model could not be opened: {text}")
}

/// A setting out of its range.
pub fn max_tokens(value: usize, most: usize) -> String {
    format!("The longest answer is 1 to {most} tokens; {value} is not.")
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
            ("snapkv needs a budget of 9", "snapkv needs a budget of 9."),
            ("", "."),
            ("é", "é."),
        ] {
            assert_eq!(for_window(given), shown);
        }
    }

    #[test]
    fn flags_of_the_terminal_do_not_reach_the_window() {
        let zero = kept_engine::policies::PolicyError::BudgetZero("0%".into()).to_string();
        assert_eq!(
            for_window(&zero),
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
            assert!(!for_window(&error.to_string()).contains("--"));
        }
    }
}
