//! The commands of the page, one by one, as `ui/src/lib/contract.ts` lists them. Thin: each asks the desk and answers.
//!
//! The page can name no path. An error is one sentence for the person. Bytes go as raw responses, which arrive as `ArrayBuffer`.

pub mod models;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tauri::ipc::{Channel, Response};
use tauri::{AppHandle, Manager, Runtime, State};
use tauri_plugin_dialog::{DialogExt, FilePath};

use crate::contract::{
    AppEvent, Choice, Estimate, LayerRow, Parameters, Replacement, Settings, Snapshot, TableRow,
    TokenSlots,
};
use crate::drop::whole;
use crate::effects::Effects;
use crate::map_views;
use crate::state::{self, AppState};

type Desktop<'a> = State<'a, Arc<Effects>>;

/// The tallest strip that can be asked for, in rows.
const MOST_STRIP_ROWS: usize = 16_384;
/// The longest report of the page that is logged, in characters.
const LONGEST_REPORT: usize = 2_000;

/// The page listens from now on.
#[tauri::command]
pub async fn subscribe(effects: Desktop<'_>, channel: Channel<AppEvent>) -> Result<(), String> {
    effects.subscribe(Box::new(move |event| {
        if let Err(error) = channel.send(event) {
            tracing::warn!(%error, "the page does not listen");
        }
    }));
    Ok(())
}

/// Everything, for a page that has just loaded.
#[tauri::command]
pub async fn snapshot(effects: Desktop<'_>) -> Result<Snapshot, String> {
    Ok(effects.with(AppState::snapshot))
}

/// The document's text, UTF-8.
#[tauri::command]
pub async fn document_text(effects: Desktop<'_>, id: u64) -> Result<Response, String> {
    let document = effects.with(|state| state.document().cloned());
    match document.filter(|document| document.id == id) {
        Some(document) => Ok(Response::new(document.text.as_bytes().to_vec())),
        None => Err("That document is no longer open.".to_owned()),
    }
}

/// One dialog at a time.
#[derive(Default)]
pub struct DialogOpen(AtomicBool);

/// Opens the system's dialog; what is picked goes to `open`.
fn pick<R: Runtime>(
    app: &AppHandle<R>,
    title: &str,
    filters: &[(&str, &[&str])],
    open: fn(&mut AppState, std::path::PathBuf),
) {
    if app.state::<DialogOpen>().0.swap(true, Ordering::SeqCst) {
        return;
    }
    let mut dialog = app.dialog().file().set_title(title);
    for (name, extensions) in filters {
        dialog = dialog.add_filter(*name, extensions);
    }
    if let Some(window) = app.get_webview_window("main") {
        dialog = dialog.set_parent(&window);
    }
    let app = app.clone();
    dialog.pick_file(move |picked: Option<FilePath>| {
        app.state::<DialogOpen>().0.store(false, Ordering::SeqCst);
        if let Some(Ok(path)) = picked.map(FilePath::into_path) {
            app.state::<Arc<Effects>>()
                .with(|state| open(state, whole(path)));
        }
    });
}

/// Opens the system's dialog for a document.
#[tauri::command]
pub async fn choose_document<R: Runtime>(app: AppHandle<R>) -> Result<(), String> {
    pick(&app, "Open a document", &[], AppState::open_path);
    Ok(())
}

/// Opens the sample.
#[tauri::command]
pub async fn open_sample(effects: Desktop<'_>) -> Result<(), String> {
    effects.with(AppState::open_sample);
    Ok(())
}

/// Back to the empty state.
#[tauri::command]
pub async fn close_document(effects: Desktop<'_>) -> Result<(), String> {
    effects.with(AppState::close_document);
    Ok(())
}

/// Opens the system's dialog for a model.
#[tauri::command]
pub async fn choose_model<R: Runtime>(app: AppHandle<R>) -> Result<(), String> {
    let filters: &[(&str, &[&str])] =
        &[("Models (GGUF)", &["gguf", "GGUF"]), ("All files", &["*"])];
    pick(&app, "Open a model", filters, AppState::choose_model_file);
    Ok(())
}

/// Takes new settings, whole or not at all.
#[tauri::command]
pub async fn save_settings(effects: Desktop<'_>, settings: Settings) -> Result<Settings, String> {
    effects.with(|state| state.save_settings(settings))
}

/// Keeps what is typed and not sent. Not async, so that drafts stay in order.
#[tauri::command]
pub fn save_draft(effects: Desktop<'_>, text: String) {
    effects.with(|state| state.save_draft(text));
}

/// What a question would cost.
#[tauri::command]
pub async fn estimate(
    effects: Desktop<'_>,
    method: String,
    parameters: Parameters,
    budget: Option<String>,
) -> Result<Estimate, String> {
    let choice = Choice {
        method,
        parameters,
        budget,
    };
    let answer = effects.with(|state| state.estimate(choice))?;
    let mut estimate = answer
        .await
        .map_err(|_| "The engine has ended before it answered.".to_owned())??;
    estimate.memory.available = kept_engine::available_memory();
    estimate.memory.total = kept_engine::total_memory();
    Ok(estimate)
}

/// Asks; the turn's id.
#[tauri::command]
pub async fn ask(
    effects: Desktop<'_>,
    question: String,
    method: String,
    parameters: Parameters,
    budget: Option<String>,
) -> Result<u64, String> {
    let choice = Choice {
        method,
        parameters,
        budget,
    };
    effects.with(|state| state.ask(&question, choice))
}

/// Whether a method can be told this; an error says why not.
#[tauri::command]
pub async fn check_method(method: String, parameters: Parameters) -> Result<(), String> {
    state::check_method(&method, &parameters)
}

/// Runs methods and budgets beside the full cache; the comparison's id.
#[tauri::command]
pub async fn compare(
    effects: Desktop<'_>,
    question: String,
    runs: Vec<Choice>,
) -> Result<u64, String> {
    effects.with(|state| state.compare(&question, runs))
}

/// Stops the comparison; what is done of it stays.
#[tauri::command]
pub async fn stop_comparison(effects: Desktop<'_>) -> Result<(), String> {
    effects.with(AppState::stop_comparison);
    Ok(())
}

/// Opens the system's dialog to save the comparison as JSON.
#[tauri::command]
pub async fn save_comparison<R: Runtime>(
    app: AppHandle<R>,
    effects: Desktop<'_>,
) -> Result<(), String> {
    let (name, json) = effects.with(|state| state.exported_comparison())?;
    if app.state::<DialogOpen>().0.swap(true, Ordering::SeqCst) {
        return Ok(());
    }
    let mut dialog = app.dialog().file();
    dialog = dialog.set_title("Save the comparison").set_file_name(name);
    dialog = dialog.add_filter("JSON", &["json"]);
    if let Some(window) = app.get_webview_window("main") {
        dialog = dialog.set_parent(&window);
    }
    let effects = effects.inner().clone();
    dialog.save_file(move |picked: Option<FilePath>| {
        app.state::<DialogOpen>().0.store(false, Ordering::SeqCst);
        if let Some(Ok(path)) = picked.map(FilePath::into_path) {
            tauri::async_runtime::spawn(async move {
                let written = tokio::fs::write(&path, json).await;
                effects.with(|state| state.comparison_written(&path, written.err()));
            });
        }
    });
    Ok(())
}

/// What becomes of the file that waits, since it would take the place of a conversation.
#[tauri::command]
pub async fn replace_document(effects: Desktop<'_>, how: Replacement) -> Result<(), String> {
    effects.with(|state| state.replace_document(how))
}

/// Opens the system's dialog for a document that is read beside what is open.
#[tauri::command]
pub async fn add_document<R: Runtime>(app: AppHandle<R>) -> Result<(), String> {
    pick(&app, "Add a document", &[], AppState::add_path);
    Ok(())
}

/// Takes one of several documents away, and the conversation about them.
#[tauri::command]
pub async fn remove_document(effects: Desktop<'_>, index: usize) -> Result<(), String> {
    effects.with(|state| state.remove_document(index))
}

/// Stops what runs.
#[tauri::command]
pub async fn stop(effects: Desktop<'_>) -> Result<(), String> {
    effects.with(AppState::stop);
    Ok(())
}

/// Forgets the conversation.
#[tauri::command]
pub async fn clear_conversation(effects: Desktop<'_>) -> Result<(), String> {
    effects.with(AppState::clear_conversation);
    Ok(())
}

/// Removes what is kept on disk of documents, but what is in use; the outcome comes as events.
#[tauri::command]
pub async fn clear_vault(effects: Desktop<'_>) -> Result<(), String> {
    effects.with(AppState::clear_vault)
}

/// Starts the engine anew.
#[tauri::command]
pub async fn restart_worker(effects: Desktop<'_>) -> Result<(), String> {
    effects.with(AppState::restart_worker);
    Ok(())
}

/// The end of each document token: `[tokens]` u32, little endian.
#[tauri::command]
pub async fn map_ends(effects: Desktop<'_>, turn: u64) -> Result<Response, String> {
    let map = effects.map(turn).await?;
    let ends = state::lock(&map)
        .ends16()
        .iter()
        .flat_map(|end| end.to_le_bytes())
        .collect::<Vec<u8>>();
    Ok(Response::new(ends))
}

/// Slots that hold each token: `[tokens]` u16, little endian.
#[tauri::command]
pub async fn map_counts(
    effects: Desktop<'_>,
    turn: u64,
    layer: Option<usize>,
) -> Result<Response, String> {
    let map = effects.map_with_layer(turn, layer).await?;
    let counts = state::lock(&map).counts(layer);
    let bytes = counts.iter().flat_map(|count| count.to_le_bytes());
    Ok(Response::new(bytes.collect::<Vec<u8>>()))
}

/// The strip: `[rows * 2]` u8, mean and max; 255 is 100 %.
#[tauri::command]
pub async fn map_strip(
    effects: Desktop<'_>,
    turn: u64,
    rows: usize,
    layer: Option<usize>,
) -> Result<Response, String> {
    let map = effects.map_with_layer(turn, layer).await?;
    let strip = state::lock(&map).strip(rows.clamp(1, MOST_STRIP_ROWS), layer);
    Ok(Response::new(strip))
}

/// One token of a map.
#[tauri::command]
pub async fn map_token(
    effects: Desktop<'_>,
    turn: u64,
    token: usize,
) -> Result<TokenSlots, String> {
    let map = effects.map(turn).await?;
    let document = effects.with(|state| state.document().cloned());
    let map = state::lock(&map);
    map_views::token(&map, document.as_deref(), token).ok_or_else(|| {
        format!(
            "This map has {} tokens; there is no token {token}.",
            map.cells()
        )
    })
}

/// The map as a table.
#[tauri::command]
pub async fn map_table(
    effects: Desktop<'_>,
    turn: u64,
    layer: Option<usize>,
) -> Result<Vec<TableRow>, String> {
    let map = effects.map_with_layer(turn, layer).await?;
    let document = effects.with(|state| state.document().cloned());
    let map = state::lock(&map);
    Ok(map_views::table(&map, document.as_deref(), layer))
}

/// The model's layers in the map, with those that the method does not cut.
#[tauri::command]
pub async fn map_layers(effects: Desktop<'_>, turn: u64) -> Result<Vec<LayerRow>, String> {
    let map = effects.map(turn).await?;
    let windows = effects.with(|state| state.windows_of(turn));
    let map = state::lock(&map);
    Ok(map_views::layers(&map, &windows))
}

/// An error of the page, for the log.
#[tauri::command]
pub async fn report(kind: String, message: String) {
    let message: String = message.chars().take(LONGEST_REPORT).collect();
    tracing::error!(target: "kept_page", kind, message, "the page reports");
}
