//! The commands of the models page. Models, folders and unfinished downloads are named by the ids that the page
//! received, and new downloads by their names on the hub.

use std::sync::Arc;

use tauri::{AppHandle, Manager, Runtime, State};
use tauri_plugin_dialog::{DialogExt, FileDialogBuilder};

use super::{Desktop, dialogs};
use crate::contract::{HubOffer, Inspection};
use crate::drop::absolute;
use crate::library::Library;

type Shelf<'a> = State<'a, Arc<Library>>;

/// Searches for models on this computer, and measures how fast it reads with those that are recommended; the outcome is
/// sent as events.
#[tauri::command]
pub async fn look_for_models(library: Shelf<'_>) -> Result<(), String> {
    library.search().await;
    let library = library.inner().clone();
    tauri::async_runtime::spawn(async move { library.measure().await });
    Ok(())
}

/// Opens the system's dialog for a folder of models.
#[tauri::command]
pub async fn add_model_folder<R: Runtime>(app: AppHandle<R>) -> Result<(), String> {
    let dialog = app.dialog().file().set_title("Add a folder of models");
    let library = app.state::<Arc<Library>>().inner().clone();
    dialogs::choose(
        &app,
        dialog,
        FileDialogBuilder::pick_folder,
        move |folder| {
            let folder = absolute(folder);
            tauri::async_runtime::spawn(async move { library.add_folder(folder).await });
        },
    );
    Ok(())
}

/// Removes a folder from the search; its files are not deleted.
#[tauri::command]
pub async fn forget_model_folder(library: Shelf<'_>, id: String) -> Result<(), String> {
    library.forget_folder(&id).await
}

/// What a model can read with the free memory.
#[tauri::command]
pub async fn inspect_model(
    library: Shelf<'_>,
    id: String,
    stretch: Option<String>,
) -> Result<Inspection, String> {
    library.inspect(&id, stretch).await
}

/// Opens a model; the outcome is sent as events.
#[tauri::command]
pub async fn use_model(
    library: Shelf<'_>,
    id: String,
    stretch: Option<String>,
) -> Result<(), String> {
    library.choose(&id, stretch)
}

/// Removes a model from the hub's cache.
#[tauri::command]
pub async fn remove_model(library: Shelf<'_>, id: String) -> Result<(), String> {
    library.remove_model(&id).await
}

/// Removes the partial file of an unfinished download.
#[tauri::command]
pub async fn remove_unfinished(library: Shelf<'_>, id: String) -> Result<(), String> {
    library.remove_unfinished(&id).await
}

/// Resumes an unfinished download of any program.
#[tauri::command]
pub async fn resume_unfinished(library: Shelf<'_>, id: String) -> Result<(), String> {
    library.resume_unfinished(&id).await
}

/// The models of a repository on the hub.
#[tauri::command]
pub async fn hub_offers(library: Shelf<'_>, name: String) -> Result<Vec<HubOffer>, String> {
    library.offers(&name).await
}

/// Downloads a model from the hub and returns the id of the download.
#[tauri::command]
pub async fn start_download(library: Shelf<'_>, reference: String) -> Result<u64, String> {
    library.start(&reference)
}

/// Resumes a download.
#[tauri::command]
pub async fn resume_download(library: Shelf<'_>, id: u64) -> Result<(), String> {
    library.resume(id);
    Ok(())
}

/// Pauses a download; the downloaded part is kept.
#[tauri::command]
pub async fn pause_download(library: Shelf<'_>, id: u64) -> Result<(), String> {
    library.pause(id);
    Ok(())
}

/// Cancels a download and removes the downloaded part; a finished download is removed from the list.
#[tauri::command]
pub async fn cancel_download(library: Shelf<'_>, id: u64) -> Result<(), String> {
    library.cancel(id);
    Ok(())
}

/// Switches the thinking mode of models for this conversation.
#[tauri::command]
pub async fn set_thinking(effects: Desktop<'_>, thinking: bool) -> Result<(), String> {
    effects.with(|state| state.set_thinking(thinking));
    Ok(())
}
