//! The commands of the page, one by one, as `ui/src/lib/calls.ts` lists them. Each one calls the app state and
//! returns the result.
//!
//! The page cannot pass paths. An error is one sentence for the user. Bytes are sent as raw responses, which arrive as
//! `ArrayBuffer`.

/// Defines commands that only call the state named first. Those that it cannot refuse end with `Ok(())`.
macro_rules! commands {
    (@result) => { Result<(), String> };
    (@result $result:ty) => { $result };
    ($state:ident: $kind:ident; $($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)? = $call:expr $(, $done:expr)?;)*) => {$(
        $(#[$doc])*
        #[tauri::command]
        pub async fn $name($state: $kind<'_>, $($argument: $type),*) -> commands!(@result $($result)?) {
            $call $(; $done)?
        }
    )*};
}

pub mod conversations;
mod dialogs;
pub mod exports;
pub mod models;

use std::sync::Arc;

use tauri::ipc::{Channel, Response};
use tauri::{AppHandle, Manager, Runtime, State, Window};
use tauri_plugin_dialog::{DialogExt, FileDialogBuilder};

use crate::contract::{
    AppEvent, Attended, Choice, Drafts, EarlierTurns, Estimate, LayerRow, Parameters, PictureOf,
    Place, Refusal, Relation, Settings, Snapshot, TableRow, TokenSlots,
};
use crate::drop::absolute;
use crate::effects::Effects;
use crate::map_views;
use crate::messages;
use crate::state::{self, AppState};

pub use dialogs::DialogOpen;

type Desktop<'a> = State<'a, Arc<Effects>>;
/// Maximum length of a logged report of the page, in characters.
const MAX_REPORT_CHARS: usize = 2_000;
/// The widest picture of a map.
const MAX_MAP_COLUMNS: usize = 8_192;

commands! {
    effects: Desktop;
    /// Begins a conversation without a document.
    chat() = effects.with(AppState::chat), Ok(());
    /// Opens a pasted text as the document.
    open_text(text: String) = effects.with(|state| state.open_text(text));
    /// Opens the sample.
    open_sample() = effects.with(AppState::open_sample), Ok(());
    /// Closes the document.
    close_document() = effects.with(AppState::close_document), Ok(());
    /// Removes a question that waits.
    remove_waiting(turn: u64) = effects.with(|state| state.remove_waiting(turn));
    /// Stops the comparison; finished runs remain.
    stop_comparison() = effects.with(AppState::stop_comparison), Ok(());
    /// Does the runs that the comparison lacks.
    continue_comparison() = effects.with(AppState::continue_comparison);
    /// Opens the document that waits for it with its text recognised, or gives it up.
    recognise_document(languages: Option<Vec<String>>) = effects.with(|state| state.recognise_document(languages)), Ok(());
    /// Opens the document that waits for its password, or gives it up.
    unlock_document(password: Option<String>) = effects.with(|state| state.unlock_document(password)), Ok(());
    /// Removes one of several documents; a new conversation begins about the others.
    remove_document(index: usize) = effects.with(|state| state.remove_document(index));
    /// Stops the current question, or else the file that is being opened.
    stop() = effects.with(AppState::stop), Ok(());
    /// Stops reading the document in the background.
    stop_reading() = effects.with(AppState::stop_reading), Ok(());
    /// Reads the document in the background, after a stop or although it takes long.
    resume_reading() = effects.with(AppState::resume_reading), Ok(());
    /// Removes all vaults that are not in use; the outcome is sent as events.
    clear_vault() = effects.with(AppState::clear_vault);
    /// Restarts the engine.
    restart_worker() = effects.with(AppState::restart_worker), Ok(());
    /// Begins to compute what a turn would keep with less memory; each budget that becomes known is an event of the turn.
    show_less_memory(turn: u64) = effects.with(|state| state.show_less_memory(turn));
    /// Switches the thinking mode of models for this conversation.
    set_thinking(thinking: bool) = effects.with(|state| state.set_thinking(thinking)), Ok(());
    /// The whole state, for a page that has just loaded.
    snapshot() -> Result<Snapshot, String> = Ok(effects.with(AppState::snapshot));
    /// Applies new settings, all or none.
    save_settings(settings: Settings) -> Result<Settings, Refusal> = effects.with(|state| state.save_settings(settings));
    /// Asks a question and returns the turn's id.
    ask(question: String, choice: Choice, relation: Relation) -> Result<u64, String> = effects.with(|state| state.ask(&question, choice, relation));
    /// Compares methods and budgets with the full cache and returns the comparison's id.
    compare(question: String, runs: Vec<Choice>) -> Result<u64, String> = effects.with(|state| state.compare(&question, runs));
    /// What a run of a comparison keeps: `[tokens]` u8, shares of all slots, 255 for 100 %; without `run` the end of each
    /// token as in [`map_ends`].
    compared_map(comparison: u64, run: Option<usize>) -> Result<Response, String> = effects.with(|state| state.compared_map(comparison, run)).map(Response::new);
    /// What a turn keeps with each smaller budget that is known: their number, their budgets in percent of the prompt, and
    /// `[budgets][tokens]` shares, all u8; 255 is 100 %.
    map_levels(turn: u64) -> Result<Response, String> = Ok(Response::new(effects.with(|state| state.levels_of(turn))));
}

/// Subscribes the page to events.
#[tauri::command]
pub async fn subscribe(effects: Desktop<'_>, channel: Channel<AppEvent>) -> Result<(), String> {
    effects.subscribe(Box::new(move |event| {
        if let Err(error) = channel.send(event) {
            tracing::warn!(%error, "the page does not listen");
        }
    }));
    Ok(())
}

/// The document's text, UTF-8.
#[tauri::command]
pub async fn document_text(effects: Desktop<'_>, id: u64) -> Result<Response, String> {
    let document = effects.with(|state| state.document().cloned());
    match document.filter(|document| document.facts.id == id) {
        Some(document) => Ok(Response::new(document.text.as_bytes().to_vec())),
        None => Err("That document is no longer open.".to_owned()),
    }
}

/// Opens the system's file dialog and passes the chosen file to `open`.
fn pick<R: Runtime>(
    app: &AppHandle<R>,
    title: &str,
    filters: &[(&str, &[&str])],
    open: fn(&mut AppState, std::path::PathBuf),
) {
    let mut dialog = app.dialog().file().set_title(title);
    for (name, extensions) in filters {
        dialog = dialog.add_filter(*name, extensions);
    }
    let effects = app.state::<Arc<Effects>>().inner().clone();
    dialogs::choose(app, dialog, FileDialogBuilder::pick_file, move |path| {
        effects.with(|state| open(state, absolute(path)));
    });
}

/// Opens the system's dialog for a document.
#[tauri::command]
pub async fn choose_document<R: Runtime>(app: AppHandle<R>) -> Result<(), String> {
    pick(&app, "Open a document", &[], AppState::open_path);
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

/// Stores the draft questions. Not async, so that drafts arrive in order.
#[tauri::command]
pub fn save_drafts(effects: Desktop<'_>, drafts: Drafts) {
    effects.with(|state| state.save_drafts(drafts));
}

/// Closes the window, which ends the app. Not async, so that the drafts before it are stored.
#[tauri::command]
pub fn quit<R: Runtime>(window: Window<R>) -> Result<(), String> {
    window.close().map_err(|error| error.to_string())
}

/// Estimates the cost of a question.
#[tauri::command]
pub async fn estimate(
    effects: Desktop<'_>,
    method: String,
    parameters: Parameters,
    budget: Option<String>,
) -> Result<Estimate, Refusal> {
    let choice = Choice {
        method,
        parameters,
        budget,
    };
    let answer = effects.with(|state| state.estimate(choice))?;
    let mut estimate = answer
        .await
        .map_err(|_| messages::ENGINE_ENDED.to_owned())??;
    estimate.memory.available = kept_engine::available_memory();
    estimate.memory.total = kept_engine::total_memory();
    Ok(estimate)
}

/// Checks the parameters of a method; an error gives the reason.
#[tauri::command]
pub async fn check_method(method: String, parameters: Parameters) -> Result<(), Refusal> {
    state::check_method(&method, &parameters)
}

/// Opens the system's dialog to save the comparison as JSON.
#[tauri::command]
pub async fn save_comparison<R: Runtime>(
    app: AppHandle<R>,
    effects: Desktop<'_>,
) -> Result<(), String> {
    let (name, json) = effects.with(|state| state.exported_comparison())?;
    let dialog = app.dialog().file().set_title("Save the comparison");
    let dialog = dialog.set_file_name(name).add_filter("JSON", &["json"]);
    let saved = (Place::Comparison, "comparison");
    dialogs::save(&app, dialog, saved, |_| Ok(json.into_bytes()));
    Ok(())
}

/// Opens the system's dialog for a document to add to the open one.
#[tauri::command]
pub async fn add_document<R: Runtime>(
    app: AppHandle<R>,
    effects: Desktop<'_>,
) -> Result<(), String> {
    effects.with(|state| state.may_add())?;
    pick(&app, "Add a document", &[], AppState::add_path);
    Ok(())
}

/// The end of each document token: `[tokens]` u32, little endian.
#[tauri::command]
pub async fn map_ends(effects: Desktop<'_>, turn: u64) -> Result<Response, String> {
    let map = effects.map(turn).await?;
    let ends = state::lock(&map)
        .document
        .ends16()
        .iter()
        .flat_map(|end| end.to_le_bytes())
        .collect::<Vec<u8>>();
    Ok(Response::new(ends))
}

/// Number of slots that keep each token: `[tokens]` u16, little endian. `lift`: without those that keep it whatever is
/// asked.
#[tauri::command]
pub async fn map_counts(
    effects: Desktop<'_>,
    turn: u64,
    layer: Option<usize>,
    lift: bool,
) -> Result<Response, String> {
    let counts = effects.map_view(turn, layer, lift).await?.counts(layer);
    let bytes = counts.iter().flat_map(|count| count.to_le_bytes());
    Ok(Response::new(bytes.collect::<Vec<u8>>()))
}

/// The map as a picture: `[rows][columns]` u8, the mean share of slots that keep the tokens of each column, or the share of
/// the answer's attention that went to them, 255 for 100 %. A row is a layer, or with `heads` a KV head, layer by layer;
/// empty if that is not known. The columns divide the tokens `from..to` evenly; there are fewer if these are fewer.
#[tauri::command]
pub async fn map_picture(
    effects: Desktop<'_>,
    turn: u64,
    from: usize,
    to: usize,
    columns: usize,
    heads: bool,
    of: PictureOf,
) -> Result<Response, String> {
    let columns = columns.clamp(1, MAX_MAP_COLUMNS);
    let picture = if of == PictureOf::Attention {
        let map = effects.map(turn).await?;
        let map = state::lock(&map);
        let to = to.min(map.document.cells());
        map.by_head.picture(from.min(to)..to, columns, heads)
    } else {
        let map = effects.map_view(turn, None, of == PictureOf::Question);
        map.await?.picture(from..to, columns, heads)
    };
    Ok(Response::new(picture.unwrap_or_default()))
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
    let map = &state::lock(&map).document;
    map_views::token(map, document.as_deref(), token).ok_or_else(|| {
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
    let map = &state::lock(&map).document;
    Ok(map_views::table(map, document.as_deref(), layer))
}

/// The model's layers in the map, including those that the method does not compress.
#[tauri::command]
pub async fn map_layers(effects: Desktop<'_>, turn: u64) -> Result<Vec<LayerRow>, String> {
    let map = effects.map(turn).await?;
    let windows = effects.with(|state| state.windows_of(turn));
    let map = &state::lock(&map).document;
    Ok(map_views::layers(map, &windows))
}

/// What an answer kept of the earlier turns that its question saw; over all layers, or in one. `None` without any.
#[tauri::command]
pub async fn map_earlier(
    effects: Desktop<'_>,
    turn: u64,
    layer: Option<usize>,
) -> Result<Option<EarlierTurns>, String> {
    let map = effects.map_with_layer(turn, layer).await?;
    let map = state::lock(&map);
    Ok((map.earlier.as_ref()).map(|earlier| map_views::earlier(earlier, layer)))
}

/// What each token of an answer attended to in the document; nothing before the answer is complete.
#[tauri::command]
pub async fn map_attended(effects: Desktop<'_>, turn: u64) -> Result<Vec<Attended>, String> {
    let map = effects.map(turn).await?;
    Ok(state::lock(&map).attended.clone())
}

/// What was forgotten during an answer: [`kept_engine::EvictionLog::to_bytes`]. With [`map_counts`], the map at the end, it
/// gives the map after each token of the answer.
#[tauri::command]
pub async fn map_evictions(effects: Desktop<'_>, turn: u64) -> Result<Response, String> {
    let map = effects.map(turn).await?;
    let bytes = state::lock(&map).evictions.to_bytes();
    Ok(Response::new(bytes))
}

/// Logs an error of the page.
#[tauri::command]
pub async fn report(kind: String, message: String) {
    let message: String = message.chars().take(MAX_REPORT_CHARS).collect();
    tracing::error!(target: "kept_page", kind, message, "the page reports");
}
