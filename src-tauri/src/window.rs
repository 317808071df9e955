//! The app window: Tauri's builder, what is opened before the window appears, and what is closed after it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Parser;
use kept_engine::{MINI, model_path};
use kept_hub::{Finder, HubError};
use tauri::plugin::TauriPlugin;
use tauri::window::Color;
use tauri::{
    App, AppHandle, Builder, Manager, PhysicalSize, RunEvent, Runtime, WebviewWindow,
    WebviewWindowBuilder, WindowEvent,
};
use tauri_plugin_window_state::StateFlags;
use tokio::sync::mpsc;

use crate::arguments::Arguments;
use crate::commands::{self, DialogOpen};
use crate::contract::{NoticeKind, Place, Theme};
use crate::effects::{Effects, Frame};
use crate::library::{self, Library};
use crate::state::{AppState, Effect};
use crate::store::{self, Lock, Opened, StoreError};
use crate::{drop, messages, worker};

/// How long the last writes of the conversation may delay the end of the process after the app window is closed.
const CLOSING: std::time::Duration = std::time::Duration::from_secs(10);

/// Background of the page in the light theme: `--bg` in `ui/src/tokens.css`.
const LIGHT: Color = Color(0xf6, 0xf5, 0xf2, 0xff);
/// The same in the dark theme.
const DARK: Color = Color(0x15, 0x17, 0x1a, 0xff);

/// Why the app window cannot be opened. One sentence each.
#[derive(Debug, thiserror::Error)]
pub enum WindowError {
    /// No display.
    #[error(
        "there is no display to open a window on; use the terminal program instead: kept ask --document FILE --question QUESTION"
    )]
    NoDisplay,
    /// Error of Tauri.
    #[error("the window could not be opened: {0}")]
    Tauri(#[from] tauri::Error),
    /// Not even an in-memory store can be created.
    #[error("the window could not be opened: {0}")]
    Store(#[from] StoreError),
}

/// The theme that the user chose; `None` is that of the system.
fn chosen(theme: Theme) -> Option<tauri::Theme> {
    match theme {
        Theme::System => None,
        Theme::Light => Some(tauri::Theme::Light),
        Theme::Dark => Some(tauri::Theme::Dark),
    }
}

/// Sets the title and the colours of the window.
fn frame<R: Runtime>(window: WebviewWindow<R>) -> Frame {
    Box::new(move |effect| {
        let set = match effect {
            Effect::Title(title) => window.set_title(&title),
            Effect::Theme(theme) => window.set_theme(chosen(theme)),
            _ => Ok(()),
        };
        if let Err(error) = set {
            tracing::warn!(%error, "the window's title or theme is not set");
        }
    })
}

/// The builder with the commands, for the real app window and for tests.
pub fn builder<R: Runtime>(builder: Builder<R>) -> Builder<R> {
    builder
        .manage(DialogOpen::default())
        .invoke_handler(tauri::generate_handler![
            commands::subscribe,
            commands::snapshot,
            commands::document_text,
            commands::choose_document,
            commands::chat,
            commands::open_text,
            commands::open_sample,
            commands::close_document,
            commands::choose_model,
            commands::save_settings,
            commands::save_drafts,
            commands::quit,
            commands::estimate,
            commands::ask,
            commands::remove_waiting,
            commands::stop,
            commands::check_method,
            commands::compare,
            commands::stop_comparison,
            commands::continue_comparison,
            commands::clear_vault,
            commands::stop_reading,
            commands::resume_reading,
            commands::add_document,
            commands::remove_document,
            commands::save_comparison,
            commands::unlock_document,
            commands::recognise_document,
            commands::conversations::new_conversation,
            commands::conversations::branch_conversation,
            commands::conversations::open_conversation,
            commands::conversations::stop_elsewhere,
            commands::conversations::rename_conversation,
            commands::conversations::pin_conversation,
            commands::conversations::delete_conversation,
            commands::conversations::restore_conversation,
            commands::conversations::search_conversations,
            commands::conversations::export_conversation,
            commands::conversations::import_conversation,
            commands::restart_worker,
            commands::map_ends,
            commands::map_counts,
            commands::map_levels,
            commands::map_picture,
            commands::compared_map,
            commands::exports::save_export,
            commands::show_less_memory,
            commands::map_token,
            commands::map_table,
            commands::map_layers,
            commands::map_earlier,
            commands::map_attended,
            commands::map_evictions,
            commands::models::look_for_models,
            commands::models::add_model_folder,
            commands::models::forget_model_folder,
            commands::models::inspect_model,
            commands::models::use_model,
            commands::models::remove_model,
            commands::models::remove_unfinished,
            commands::models::resume_unfinished,
            commands::models::hub_offers,
            commands::models::start_download,
            commands::models::resume_download,
            commands::models::pause_download,
            commands::models::cancel_download,
            commands::set_thinking,
            commands::report,
        ])
}

/// Opens the app window and runs until it is closed.
///
/// # Errors
/// [`WindowError`], before anything is displayed.
pub fn run(arguments: Arguments) -> Result<(), WindowError> {
    #[cfg(target_os = "linux")]
    gtk::init().map_err(|_| WindowError::NoDisplay)?;
    let app = builder(Builder::default())
        .plugin(tauri_plugin_single_instance::init(second_start))
        .plugin(tauri_plugin_dialog::init())
        .plugin(remembered_window())
        .on_window_event(|window, event| {
            if let WindowEvent::DragDrop(event) = event {
                drop::dragged(&window.state::<Arc<Effects>>(), event);
            }
        })
        .build(tauri::generate_context!())?;
    let (effects, library) = open_state(app.path().app_data_dir().map_err(WindowError::from))?;
    app.manage(effects.clone());
    app.manage(library);
    let folder = std::env::current_dir().unwrap_or_default();
    open_arguments(&effects, arguments, &folder);
    let theme = effects.with(|state| state.settings().theme);
    effects.set_frame(frame(show(&app, theme)?));
    app.run(move |_, event| match event {
        RunEvent::Exit => {
            let closed = tauri::async_runtime::block_on(async {
                tokio::time::timeout(CLOSING, effects.close()).await
            });
            if closed.is_err() {
                tracing::error!("the last of the conversation was not saved in time");
            }
        }
        // "Open with" and files dropped on the icon: macOS names the files here, other systems in the arguments.
        #[cfg(target_os = "macos")]
        RunEvent::Opened { urls } => effects.with(|state| state.open_paths(files_of(&urls))),
        _ => {}
    });
    Ok(())
}

/// Opens the window with the size and at the place at which it was closed.
fn remembered_window<R: Runtime>() -> TauriPlugin<R> {
    tauri_plugin_window_state::Builder::new()
        .with_state_flags(StateFlags::SIZE | StateFlags::POSITION | StateFlags::MAXIMIZED)
        .build()
}

/// Creates the window of `tauri.conf.json`, in the page's colour until the page is there: it is shown once it has that.
/// The page asks for the window's theme before it knows the settings. If WebKit has no data folder
/// of its own, it keeps everything in memory.
fn show<R: Runtime>(app: &App<R>, theme: Theme) -> Result<WebviewWindow<R>, WindowError> {
    let config = app.config().app.windows.first().cloned();
    let config = config.unwrap_or_default();
    let mut builder = WebviewWindowBuilder::from_config(app, &config)?
        .theme(chosen(theme))
        .visible(false);
    let folder = app.path().app_local_data_dir()?;
    if let Err(error) = std::fs::create_dir_all(&folder) {
        tracing::warn!(%error, folder = %folder.display(), "the page keeps its data in memory");
        // Tauri requires an existing folder; an incognito page does not write to it.
        builder = builder.incognito(true).data_directory(std::env::temp_dir());
    }
    let window = builder.build()?;
    // On Linux the window does not say the theme that it was built with.
    let theme = chosen(theme).or_else(|| window.theme().ok());
    let dark = theme == Some(tauri::Theme::Dark);
    if let Err(error) = window.set_background_color(Some(if dark { DARK } else { LIGHT })) {
        tracing::warn!(%error, "no background colour");
    }
    fit_to_screen(&window)?;
    window.show()?;
    Ok(window)
}

/// Makes a window that is larger than its screen as large as the screen leaves windows: not every window manager does.
fn fit_to_screen<R: Runtime>(window: &WebviewWindow<R>) -> Result<(), WindowError> {
    let monitor = match window.current_monitor()? {
        // A window that was not shown yet may be on none.
        None => window.primary_monitor()?,
        monitor => monitor,
    };
    let Some(monitor) = monitor else {
        return Ok(());
    };
    let (size, most) = (window.inner_size()?, monitor.work_area().size);
    let fitting = PhysicalSize::new(size.width.min(most.width), size.height.min(most.height));
    if fitting != size {
        window.set_size(fitting)?;
    }
    Ok(())
}

/// Creates the app state from the data of an earlier start, with its store and its worker.
fn open_state(
    folder: Result<std::path::PathBuf, WindowError>,
) -> Result<(Arc<Effects>, Arc<Library>), WindowError> {
    tauri::async_runtime::block_on(async {
        let folder = folder?;
        let (mut opened, lock, notice) = match open_store(&folder).await {
            Ok((opened, lock)) => (opened, Some(lock), None),
            Err(Unsaved { kind, sentence }) => {
                let opened = store::open_beside(&folder).await?;
                (opened, None, Some((kind, sentence)))
            }
        };
        library::first_model(&mut opened.remembered);
        let begun = std::mem::take(&mut opened.remembered.downloads);
        let speed = opened.remembered.speed;
        let effects = start(opened, lock, worker::Programs::installed());
        let library = Library::new(effects.clone(), begun, speed);
        if let Some((kind, sentence)) = notice {
            effects.with(|state| state.notice(kind, Place::Conversation, sentence));
        }
        Ok((effects, library))
    })
}

/// Why the conversation is not saved.
struct Unsaved {
    kind: NoticeKind,
    sentence: String,
}

async fn open_store(folder: &Path) -> Result<(Opened, Lock), Unsaved> {
    let failed = |error: StoreError| {
        tracing::error!(%error, folder = %folder.display(), "nothing is saved");
        Unsaved {
            kind: NoticeKind::Error,
            sentence: messages::not_saved(folder),
        }
    };
    std::fs::create_dir_all(folder).map_err(|error| {
        failed(StoreError::File {
            path: folder.display().to_string(),
            error,
        })
    })?;
    let lock = store::lock(folder).map_err(failed)?.ok_or(Unsaved {
        kind: NoticeKind::Info,
        sentence: messages::SECOND_WINDOW.to_owned(),
    })?;
    let opened = store::open(folder).await.map_err(failed)?;
    Ok((opened, lock))
}

/// Connects state, store and worker, and starts the background tasks. Must be called inside the async runtime.
pub fn start(
    opened: Opened,
    lock: Option<Lock>,
    programs: impl Into<worker::Programs>,
) -> Arc<Effects> {
    let state = AppState::new(opened.remembered, lock.is_some());
    let (orders, due) = mpsc::unbounded_channel();
    let (changes, mut changed) = mpsc::unbounded_channel();
    let (writer, writing) = store::start_writing(opened.store, move |failing| {
        // The receiver is closed once the app window is closed.
        let _ = changes.send(failing);
    });
    let effects = Effects::new(state, orders, writer);
    if let Some(notice) = opened.notice {
        effects.with(|state| state.notice(NoticeKind::Error, Place::Conversation, notice));
    }
    tokio::spawn(async move {
        // The lock is held until all writes are done.
        let _lock = lock;
        if let Err(error) = writing.await {
            tracing::error!(%error, "the store's task ended");
        }
    });
    let supervising = tokio::spawn(worker::supervise(programs.into(), due, effects.clone()));
    tokio::spawn({
        let effects = effects.clone();
        async move {
            if supervising.await.is_err() {
                effects.with(|state| state.worker_gone(messages::NO_SUPERVISOR));
            }
        }
    });
    tokio::spawn({
        let effects = effects.clone();
        async move { effects.tick().await }
    });
    tokio::spawn({
        let effects = effects.clone();
        async move {
            while let Some(failing) = changed.recv().await {
                effects.with(|state| state.saving_fails(failing));
            }
        }
    });
    effects
}

/// The file of a model; a name that fits no model or several is refused. Of a missing file, opening says so.
fn file_of(model: &Path, folder: &Path) -> Result<PathBuf, HubError> {
    let file = drop::absolute(folder.join(model));
    if file.exists() {
        return Ok(file);
    }
    let name = model.to_string_lossy();
    if let Some(built_in) = (name == MINI).then(|| model_path(MINI).ok()).flatten() {
        return Ok(built_in);
    }
    match Finder::from_env()?.choose(&name) {
        Err(_) if file.extension().is_some_and(|end| end == "gguf") => Ok(file),
        found => found,
    }
}

/// Opens what the arguments name; relative paths begin at `folder`.
fn open_arguments(effects: &Effects, arguments: Arguments, folder: &Path) {
    effects.with(|state| {
        match arguments.model.map(|model| file_of(&model, folder)) {
            Some(Ok(file)) => state.choose_model_file(file),
            None => {}
            Some(Err(error)) => {
                let said = messages::as_sentence(&error.to_string());
                state.notice(NoticeKind::Error, Place::Model, said);
            }
        }
        let documents = arguments.documents.iter();
        let documents = documents.map(|document| drop::absolute(folder.join(document)));
        state.open_paths(documents.collect());
    });
}

/// The files of `urls`. Kept registers no scheme, so that all of them are files.
#[cfg(any(target_os = "macos", test))]
fn files_of(urls: &[tauri::Url]) -> Vec<PathBuf> {
    urls.iter()
        .filter_map(|url| url.to_file_path().ok())
        .collect()
}

/// Kept was started a second time: the open window takes the arguments and comes to the front.
fn second_start<R: Runtime>(app: &AppHandle<R>, words: Vec<String>, folder: String) {
    if let Some(effects) = app.try_state::<Arc<Effects>>() {
        match Arguments::try_parse_from(words) {
            Ok(arguments) => open_arguments(&effects, arguments, Path::new(&folder)),
            // The second program has parsed them, too.
            Err(error) => tracing::warn!(%error, "the arguments of a second start"),
        }
    }
    if let Some(window) = app.get_webview_window("main") {
        for done in [window.unminimize(), window.show(), window.set_focus()] {
            if let Err(error) = done {
                tracing::warn!(%error, "the window does not come to the front");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::files_of;

    #[cfg(unix)]
    #[test]
    fn urls_of_files_are_paths() {
        let urls = ["file:///tmp/a%20b.pdf", "https://example.com/c.pdf"];
        let urls = urls.map(|url| url.parse().unwrap());
        assert_eq!(files_of(&urls), [std::path::Path::new("/tmp/a b.pdf")]);
    }
}
