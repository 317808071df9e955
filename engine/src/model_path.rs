//! Resolves a model name to a file: a path, or `mini`, the built-in model.

use std::path::{Path, PathBuf};

/// The name of the built-in model.
pub const MINI: &str = "mini";
const MINI_FILE: &str = "mini.gguf";
/// The folder of the model in the source tree that this program was built from. A package (`KEPT_PACKAGED`) has none:
/// its bytes do not depend on where it was built.
const SOURCE_ASSETS: Option<&str> = match option_env!("KEPT_PACKAGED") {
    None => Some(concat!(env!("CARGO_MANIFEST_DIR"), "/../assets")),
    Some(_) => None,
};

/// The file of the model `name`: the built-in model for `mini`, otherwise `name` as a path.
///
/// If `KEPT_ASSETS` is set, only this folder is searched for the built-in model. Otherwise: the program's folder,
/// `../share/kept`, an `assets` folder in the program's folder or any of its ancestors, and, unless it was built as a
/// package, the source tree.
pub fn model_path(name: &str) -> Result<PathBuf, MiniMissing> {
    if name != MINI {
        return Ok(PathBuf::from(name));
    }
    let program = std::env::current_exe().ok();
    let folder = program.as_deref().and_then(Path::parent);
    let mut places = Vec::new();
    if let Some(told) = std::env::var_os("KEPT_ASSETS") {
        places.push(PathBuf::from(told));
    } else {
        if let Some(folder) = folder {
            places.push(folder.to_owned());
            places.push(folder.join("../share/kept"));
            places.extend(folder.ancestors().map(|f| f.join("assets")));
        }
        places.extend(SOURCE_ASSETS.map(PathBuf::from));
    }
    places
        .into_iter()
        .map(|place| place.join(MINI_FILE))
        .find_map(|file| dunce::canonicalize(file).ok())
        .ok_or(MiniMissing)
}

/// The built-in model was not found.
#[derive(Debug, thiserror::Error)]
#[error(
    "the built-in model (mini.gguf) was not found next to the program; set KEPT_ASSETS to the folder that holds it, or choose a model file"
)]
pub struct MiniMissing;
