//! The system's dialogs for files and folders.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tauri::{AppHandle, Manager, Runtime};
use tauri_plugin_dialog::{FileDialogBuilder, FilePath};

use crate::contract::{NoticeKind, Place};
use crate::effects::Effects;

/// Ensures that only one dialog is open.
#[derive(Default)]
pub struct DialogOpen(AtomicBool);

type Chosen = Box<dyn FnOnce(Option<FilePath>) + Send>;

/// Opens `dialog` by `show`, unless another one is open, and passes the chosen path to `then`.
pub fn choose<R: Runtime>(
    app: &AppHandle<R>,
    mut dialog: FileDialogBuilder<R>,
    show: fn(FileDialogBuilder<R>, Chosen),
    then: impl FnOnce(PathBuf) + Send + 'static,
) {
    if app.state::<DialogOpen>().0.swap(true, Ordering::SeqCst) {
        return;
    }
    if let Some(window) = app.get_webview_window("main") {
        dialog = dialog.set_parent(&window);
    }
    let app = app.clone();
    let chosen = move |path: Option<FilePath>| {
        app.state::<DialogOpen>().0.store(false, Ordering::SeqCst);
        if let Some(Ok(path)) = path.map(FilePath::into_path) {
            then(path);
        }
    };
    show(dialog, Box::new(chosen));
}

/// Opens `dialog` to save a file, writes what `contents` makes for its path, and says at `place` that the `noun` is
/// saved, or why not: one sentence of `contents`, or an error of the disk.
pub fn save<R: Runtime>(
    app: &AppHandle<R>,
    dialog: FileDialogBuilder<R>,
    (place, noun): (Place, &'static str),
    contents: impl FnOnce(&Path) -> Result<Vec<u8>, String> + Send + 'static,
) {
    let effects = app.state::<Arc<Effects>>().inner().clone();
    choose(app, dialog, FileDialogBuilder::save_file, move |path| {
        tauri::async_runtime::spawn(async move {
            let bytes = match contents(&path) {
                Ok(bytes) => bytes,
                Err(refusal) => {
                    return effects.with(|state| state.notice(NoticeKind::Error, place, refusal));
                }
            };
            let written = tokio::fs::write(&path, bytes).await;
            effects.with(|state| state.exported(place, noun, &path, written.err()));
        });
    });
}
