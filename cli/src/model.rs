//! What `--model` means: the model in the box, a file, or a model that some program has put on this computer. Nothing is
//! downloaded here.

use std::path::{Path, PathBuf};

use kept_engine::MINI;
use kept_hub::{Finder, HubError};

/// The file of the model that `name` means.
pub fn model_path(name: &str) -> anyhow::Result<PathBuf> {
    let path = Path::new(name);
    if name == MINI || path.is_absolute() || path.exists() {
        return Ok(kept_engine::model_path(name)?);
    }
    match Finder::from_env()?.choose(name) {
        Ok(file) => Ok(file),
        // A path with a mistake in it: whoever opens it says so.
        Err(HubError::NoModel { .. } | HubError::NotHere { .. }) if is_written_as_path(name) => {
            Ok(path.to_owned())
        }
        Err(error) => Err(error.into()),
    }
}

fn is_written_as_path(name: &str) -> bool {
    let ends = name.to_ascii_lowercase().ends_with(".gguf") && !name.contains(':');
    let far = name.split(['/', '\\']).count() > 2 && !name.contains(':');
    name.starts_with(['.', '~']) || name.contains('\\') || ends || far
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_told_from_names() {
        for path in [
            "./m",
            "../m.gguf",
            "~/m",
            "a\\b",
            "m.gguf",
            "models/m.gguf",
            "a/b/c",
        ] {
            assert!(is_written_as_path(path), "{path}");
        }
        for name in [
            "m",
            "owner/name",
            "owner/name:sub/f.gguf",
            "llama3.2:1b",
            "owner/name:Q4_K_M",
        ] {
            assert!(!is_written_as_path(name), "{name}");
        }
    }
}
