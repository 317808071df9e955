//! Resolves a model name to a file: a path, or `mini`, the built-in model.

use std::path::{Path, PathBuf};

/// The name of the built-in model.
pub const MINI: &str = "mini";
const MINI_FILE: &str = "mini.gguf";
/// The folder of the model in the source tree that this program was built from.
const SOURCE_ASSETS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets");

/// The file of the model `name`: the built-in model for `mini`, otherwise `name` as a path.
///
/// If `KEPT_ASSETS` is set, only this folder is searched for the built-in model. Otherwise: the program's folder,
/// `../share/kept`, an `assets` folder in the program's folder or any of its ancestors, and the source tree that the
/// program was built from.
pub fn model_path(name: &str) -> Result<PathBuf, MiniMissing> {
    if name != MINI {
        return Ok(PathBuf::from(name));
    }
    let program = std::env::current_exe().ok();
    let folder = program.as_deref().and_then(Path::parent);
    let mut places = Vec::new();
    if let Some(told) = std::env::var_os("KEPT_ASSETS") {
        places.push(PathBuf::from(told));
    } else if let Some(folder) = folder {
        places.push(folder.to_owned());
        places.push(folder.join("../share/kept"));
        places.extend(folder.ancestors().map(|f| f.join("assets")));
    }
    if std::env::var_os("KEPT_ASSETS").is_none() {
        places.push(PathBuf::from(SOURCE_ASSETS));
    }
    places
        .into_iter()
        .map(|place| place.join(MINI_FILE))
        .find_map(|file| std::fs::canonicalize(file).ok())
        .ok_or(MiniMissing)
}

/// The built-in model was not found.
#[derive(Debug, thiserror::Error)]
#[error(
    "the built-in model (mini.gguf) was not found next to the program; set KEPT_ASSETS to the folder that holds it, or choose a model file"
)]
pub struct MiniMissing;
