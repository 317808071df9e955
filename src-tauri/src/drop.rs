//! Drag and drop of files onto the app window. The page never receives a path, only the number of files and, if the
//! drop would be refused, the reason.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tauri::DragDropEvent;

use crate::contract::{NoticeKind, Place};
use crate::effects::Effects;
use crate::messages;

/// Why a drop of `paths` is refused, judged by the number of paths alone.
fn refusal_of_number(paths: &[PathBuf]) -> Option<&'static str> {
    match paths {
        [] => Some(messages::NOT_A_FILE),
        _ => None,
    }
}

/// Why a drop of `paths` is refused. Accesses the file system, which may take long.
pub async fn refusal(paths: &[PathBuf]) -> Option<&'static str> {
    if let Some(refusal) = refusal_of_number(paths) {
        return Some(refusal);
    }
    for path in paths {
        // The worker reports a missing file.
        let metadata = tokio::fs::metadata(path).await;
        if metadata.is_ok_and(|metadata| metadata.is_dir()) {
            return Some(messages::A_FOLDER);
        }
    }
    None
}

/// Handles a drag or drop event of the app window.
pub fn dragged(effects: &Arc<Effects>, event: &DragDropEvent) {
    match event {
        DragDropEvent::Enter { paths, .. } => {
            let number = paths.len().max(1);
            let held = effects.with(|state| {
                let refused = refusal_of_number(paths).map(str::to_owned);
                state.drag_enters(number, refused)
            });
            refuse_folders(effects.clone(), held, paths.clone());
        }
        DragDropEvent::Leave => effects.with(|state| state.drag_leaves()),
        DragDropEvent::Drop { paths, .. } => {
            effects.with(|state| state.drag_leaves());
            let (effects, paths) = (effects.clone(), paths.clone());
            tauri::async_runtime::spawn(async move { dropped(&effects, paths).await });
        }
        _ => {}
    }
}

/// Checks in the background whether a dragged path is a folder, and reports it if the same drag is still in progress.
fn refuse_folders(effects: Arc<Effects>, held: u64, paths: Vec<PathBuf>) {
    tauri::async_runtime::spawn(async move {
        if let Some(refused) = refusal(&paths).await {
            effects.with(|state| state.drag_is_refused(held, refused));
        }
    });
}

/// Opens dropped files, or reports why not.
pub async fn dropped(effects: &Effects, paths: Vec<PathBuf>) {
    match refusal(&paths).await {
        Some(refused) => effects.with(|state| {
            state.notice(NoticeKind::Error, Place::Document, refused);
        }),
        None => {
            let paths = paths.into_iter().map(absolute).collect();
            effects.with(|state| state.open_paths(paths));
        }
    }
}

/// The absolute path, which does not depend on the worker's working directory.
pub fn absolute(path: impl AsRef<Path>) -> PathBuf {
    let path = path.as_ref();
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn files_are_taken_and_everything_else_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("a é.txt");
        std::fs::write(&file, "text").expect("written");
        assert_eq!(refusal(&[]).await, Some(messages::NOT_A_FILE));
        assert_eq!(refusal(std::slice::from_ref(&file)).await, None);
        let three = [file.clone(), file.clone(), file.clone()];
        assert_eq!(refusal(&three).await, None);
        let with_a_folder = [file, folder.path().to_owned()];
        assert_eq!(refusal(&with_a_folder).await, Some(messages::A_FOLDER));
        let a_folder = [folder.path().to_owned()];
        assert_eq!(refusal(&a_folder).await, Some(messages::A_FOLDER));
        let gone = [folder.path().join("gone")];
        assert_eq!(refusal(&gone).await, None, "the worker names it");
    }
}
