//! The system's dialogs for files and folders.

use std::io::Write;
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
            let written = write_whole(&path, &bytes);
            effects.with(|state| state.exported(place, noun, &path, written.err()));
        });
    });
}

/// Writes a file completely or not at all: an existing one stays if the disk is full. Devices and pipes are written
/// directly.
fn write_whole(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    if std::fs::metadata(path).is_ok_and(|about| !about.is_file()) {
        return std::fs::write(path, bytes);
    }
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut file = tempfile::Builder::new();
    #[cfg(unix)]
    let mut file = {
        use std::os::unix::fs::PermissionsExt;
        // As of any new file, less what the user's mask takes away.
        file.permissions(std::fs::Permissions::from_mode(0o666));
        file
    };
    let mut file = file.prefix(".").suffix(".part").tempfile_in(folder)?;
    file.write_all(bytes)?;
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::write_whole;

    #[test]
    fn a_file_is_replaced_completely_or_not_at_all() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("old.json");
        write_whole(&path, b"first").expect("written");
        write_whole(&path, b"second").expect("written");
        assert_eq!(std::fs::read(&path).expect("a file"), b"second");
        #[cfg(target_os = "linux")]
        {
            // This device is always full.
            let full = write_whole(std::path::Path::new("/dev/full"), b"third");
            let full = full.expect_err("no space");
            assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
        }
        let taken = folder.path().join("taken");
        std::fs::create_dir(&taken).expect("made");
        write_whole(&taken, b"third").expect_err("a folder is no file");
        let gone = folder.path().join("gone").join("new.json");
        write_whole(&gone, b"third").expect_err("there is no such folder");
        let left = std::fs::read_dir(folder.path()).expect("a folder").count();
        assert_eq!(left, 2, "nothing else is left behind");
    }
}
