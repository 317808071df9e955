//! The commands of the models page. Models, folders and unfinished downloads are named by the ids that the page
//! received, and new downloads by their names on the hub.

use std::sync::Arc;

use tauri::{AppHandle, Manager, Runtime, State};
use tauri_plugin_dialog::{DialogExt, FileDialogBuilder};

use super::dialogs;
use crate::contract::{HubOffer, Inspection};
use crate::drop::absolute;
use crate::library::Library;

type Shelf<'a> = State<'a, Arc<Library>>;

commands! {
    library: Shelf;
    /// Removes a folder from the search; its files are not deleted.
    forget_model_folder(id: String) = library.forget_folder(&id).await;
    /// Opens a model; the outcome is sent as events.
    use_model(id: String, stretch: Option<String>) = library.choose(&id, stretch);
    /// Removes a model from the hub's cache.
    remove_model(id: String) = library.remove_model(&id).await;
    /// Removes the partial file of an unfinished download.
    remove_unfinished(id: String) = library.remove_unfinished(&id).await;
    /// Resumes an unfinished download of any program.
    resume_unfinished(id: String) = library.resume_unfinished(&id).await;
    /// Resumes a download.
    resume_download(id: u64) = library.resume(id), Ok(());
    /// Pauses a download; the downloaded part is kept.
    pause_download(id: u64) = library.pause(id), Ok(());
    /// Cancels a download and removes the downloaded part; a finished download is removed from the list.
    cancel_download(id: u64) = library.cancel(id), Ok(());
    /// Searches for models on this computer, and measures how fast it reads with those that are recommended; the outcome
    /// is sent as events.
    look_for_models() = library.search_and_measure().await, Ok(());
    /// What a model can read with the free memory.
    inspect_model(id: String, stretch: Option<String>) -> Result<Inspection, String> = library.inspect(&id, stretch).await;
    /// The models of a repository on the hub.
    hub_offers(name: String) -> Result<Vec<HubOffer>, String> = library.offers(&name).await;
    /// Downloads a model from the hub and returns the id of the download.
    start_download(reference: String) -> Result<u64, String> = library.start(&reference);
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
