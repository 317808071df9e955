//! The commands of the list of conversations.

use std::path::PathBuf;
use std::sync::Arc;

use tauri::{AppHandle, Manager, Runtime};
use tauri_plugin_dialog::{DialogExt, FileDialogBuilder};

use super::{Desktop, dialogs};
use crate::contract::{FoundPassage, NoticeKind, Place};
use crate::effects::Effects;
use crate::exported;
use crate::messages;
use crate::names::file_name;
use crate::state::AppState;

commands! {
    effects: Desktop;
    /// Begins a new conversation about the open document.
    new_conversation() = effects.with(AppState::new_conversation), Ok(());
    /// Stops what runs in a conversation that is not open, or forgets that it has ended.
    stop_elsewhere(id: u64) = effects.with(|state| state.stop_elsewhere(id)), Ok(());
    /// Begins a conversation with the turns up to `turn`.
    branch_conversation(turn: u64) = effects.with(|state| state.branch_conversation(turn));
    /// Sets a conversation's title; an empty one is the first question again.
    rename_conversation(id: u64, title: String) = effects.with(|state| state.rename_conversation(id, &title));
    /// Puts a conversation above the others, or back.
    pin_conversation(id: u64, pinned: bool) = effects.with(|state| state.pin_conversation(id, pinned));
    /// Deletes a conversation; it can be restored until the app ends.
    delete_conversation(id: u64) = effects.with(|state| state.delete_conversation(id));
    /// Restores a deleted conversation.
    restore_conversation(id: u64) = effects.with(|state| state.restore_conversation(id));
    /// Passages of questions, answers and documents with the words of `query`, best first.
    search_conversations(query: String) -> Result<Vec<FoundPassage>, String> = effects.search(query).await;
}

/// Opens a conversation of the list. Returns false if the user chose something else before it was loaded.
#[tauri::command]
pub async fn open_conversation(effects: Desktop<'_>, id: u64) -> Result<bool, String> {
    effects.with(|state| state.choose_conversation(id))?;
    let loaded = effects.conversation(id).await?;
    effects.with(|state| state.conversation_loaded(loaded))
}

/// Opens the system's dialog to save a conversation as Markdown, JSON or HTML.
#[tauri::command]
pub async fn export_conversation<R: Runtime>(
    app: AppHandle<R>,
    effects: Desktop<'_>,
    id: u64,
) -> Result<(), String> {
    let title = effects.with(|state| state.title_of_conversation(id))?;
    let conversation = effects.conversation(id).await?;
    let name = exported::file_name(&conversation.document.info.name, &title, "md");
    let mut dialog = app.dialog().file();
    dialog = dialog.set_title("Export the conversation");
    dialog = dialog.set_file_name(name);
    dialog = dialog.add_filter("Markdown, HTML, JSON", &["md", "html", "json"]);
    let saved = (Place::Conversation, "conversation");
    dialogs::save(&app, dialog, saved, move |path| {
        let text = exported::export(path, &title, &conversation)?;
        Ok(text.into_bytes())
    });
    Ok(())
}

/// Opens the system's dialog for a conversation that was exported as JSON.
#[tauri::command]
pub async fn import_conversation<R: Runtime>(app: AppHandle<R>) -> Result<(), String> {
    let mut dialog = app.dialog().file();
    dialog = dialog.set_title("Import a conversation");
    dialog = dialog.add_filter("Exported conversations (JSON)", &["json"]);
    let effects = app.state::<Arc<Effects>>().inner().clone();
    dialogs::choose(&app, dialog, FileDialogBuilder::pick_file, move |path| {
        tauri::async_runtime::spawn(async move { import(&effects, path).await });
    });
    Ok(())
}

/// Imports a file, or says why not.
async fn import(effects: &Effects, path: PathBuf) {
    let name = file_name(&path);
    let imported = match tokio::fs::read(&path).await {
        Ok(bytes) => exported::import(&name, &bytes).map_err(|error| error.to_string()),
        Err(error) => Err(messages::not_read(&name, &error)),
    };
    effects.with(|state| {
        let done = imported.and_then(|(title, document, turns)| {
            state.import_conversation(&title, document, turns)
        });
        if let Err(message) = done {
            state.notice(NoticeKind::Error, Place::Conversation, message);
        }
    });
}
