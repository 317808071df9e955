//! From what a person calls a model to the file: a path, or `mini`, the model in the box.

use std::path::{Path, PathBuf};

/// The name of the model in the box.
pub const MINI: &str = "mini";
const MINI_FILE: &str = "mini.gguf";
/// Where the model lies in the source tree this program was built from.
const SOURCE_ASSETS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets");

/// The file that `name` means: the model in the box for `mini`, else the path itself.
///
/// The model in the box is looked for in the folder `KEPT_ASSETS` names and nowhere else if it is set, else beside the program, in `../share/kept`, in an
/// `assets` folder of the program's folder or any above it, and in the source tree the program was built from.
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

/// The model in the box is not where it should be.
#[derive(Debug, thiserror::Error)]
#[error(
    "the model in the box (mini.gguf) was not found beside the program; set KEPT_ASSETS to the folder that holds it, or pass --model FILE.gguf"
)]
pub struct MiniMissing;
