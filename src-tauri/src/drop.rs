//! Files held over the window and dropped on it. The page never learns a path: it is told how many files there are and
//! whether a drop would be refused, and why.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tauri::DragDropEvent;

use crate::contract::{NoticeKind, Place};
use crate::sentences;
use crate::wiring::Wiring;

/// Why a drop of `paths` is refused, by their number alone.
fn refusal_of_number(paths: &[PathBuf]) -> Option<&'static str> {
    match paths {
        [] => Some(sentences::NOT_A_FILE),
        [_] => None,
        _ => Some(sentences::ONE_FILE),
    }
}

/// Why a drop of `paths` is refused. Asks the file system, which may take its time.
pub async fn refusal(paths: &[PathBuf]) -> Option<&'static str> {
    if let Some(refusal) = refusal_of_number(paths) {
        return Some(refusal);
    }
    // A file that is not there is the worker's to name.
    let metadata = tokio::fs::metadata(paths.first()?).await.ok()?;
    metadata.is_dir().then_some(sentences::A_FOLDER)
}

/// Hears what is dragged over the window.
pub fn dragged(wiring: &Arc<Wiring>, event: &DragDropEvent) {
    match event {
        DragDropEvent::Enter { paths, .. } => {
            let number = paths.len().max(1);
            let held = wiring.with(|desk| {
                let refused = refusal_of_number(paths).map(str::to_owned);
                desk.drag_enters(number, refused)
            });
            if let [path] = paths.as_slice() {
                look_at(wiring.clone(), held, path.clone());
            }
        }
        DragDropEvent::Leave => wiring.with(|desk| desk.drag_leaves()),
        DragDropEvent::Drop { paths, .. } => {
            wiring.with(|desk| desk.drag_leaves());
            let (wiring, paths) = (wiring.clone(), paths.clone());
            tauri::async_runtime::spawn(async move { dropped(&wiring, paths).await });
        }
        _ => {}
    }
}

/// Whether what is held is a folder, said as soon as the file system answers, if it is still held then.
fn look_at(wiring: Arc<Wiring>, held: u64, path: PathBuf) {
    tauri::async_runtime::spawn(async move {
        if let Some(refused) = refusal(std::slice::from_ref(&path)).await {
            wiring.with(|desk| desk.drag_is_refused(held, refused));
        }
    });
}

/// Opens what was dropped, or says why not.
pub async fn dropped(wiring: &Wiring, paths: Vec<PathBuf>) {
    match refusal(&paths).await {
        Some(refused) => wiring.with(|desk| {
            desk.notice(NoticeKind::Error, Place::Document, refused);
        }),
        None => {
            for path in paths {
                wiring.with(|desk| desk.open_path(whole(path)));
            }
        }
    }
}

/// A path that means the same in the worker, whatever its folder is.
pub fn whole(path: impl AsRef<Path>) -> PathBuf {
    let path = path.as_ref();
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_file_is_taken_and_everything_else_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("a é.txt");
        std::fs::write(&file, "text").expect("written");
        assert_eq!(refusal(&[]).await, Some(sentences::NOT_A_FILE));
        assert_eq!(refusal(std::slice::from_ref(&file)).await, None);
        let three = [file.clone(), file.clone(), file];
        assert_eq!(refusal(&three).await, Some(sentences::ONE_FILE));
        let a_folder = [folder.path().to_owned()];
        assert_eq!(refusal(&a_folder).await, Some(sentences::A_FOLDER));
        let gone = [folder.path().join("gone")];
        assert_eq!(refusal(&gone).await, None, "the worker names it");
    }
}
