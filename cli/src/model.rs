//! Resolves `--model`: the built-in model, a file, or a model that some program has stored on this computer; and the
//! default if `--model` is missing. Nothing is downloaded.

use std::path::{Path, PathBuf};

use kept_engine::documents::Document;
use kept_engine::{MINI, available_memory, is_builtin_model, is_untrained_document};
use kept_hub::{Entry, Finder, HubError, ModelChoice, Preferred, PreferredBy};

use crate::output;

/// The resolved model.
pub struct Answering {
    /// The model file.
    pub path: PathBuf,
    /// Name of the model and the reason for the choice; `None` if the user named the model.
    unnamed: Option<(String, PreferredBy)>,
}

impl Answering {
    /// Resolves `named`, or chooses the default if it is `None`.
    pub fn resolve(named: Option<&str>) -> anyhow::Result<Answering> {
        if let Some(name) = named {
            return Ok(Answering {
                path: model_path(name)?,
                unnamed: None,
            });
        }
        let Preferred { name, path, by } = preferred()?;
        Ok(Answering {
            path: match path {
                Some(path) => path,
                None => kept_engine::model_path(MINI)?,
            },
            unnamed: Some((name, by)),
        })
    }

    /// Notes for the user: which model was chosen if none was named, and what the built-in model cannot do with
    /// `document`. The caller prints them once prefill has started, so that an error stays one line.
    pub fn notes(&self, document: &Document) -> String {
        let mut notes = String::new();
        if let Some((name, by)) = &self.unnamed {
            notes += &format!("note: the model is {name}: {}\n", reason(*by));
        }
        if is_builtin_model(&self.path) && is_untrained_document(document) {
            let pull = Entry::first(available_memory())
                .map_or_else(String::new, |entry| format!(" {}", entry.reference()));
            notes += &format!(
                "note: the built-in model (mini) only finds facts that one plain sentence states, such as the codes, names and dates of the \
                 sample; for real questions get a real model: make models, or kept models pull{pull}, then kept models use NAME\n"
            );
        }
        output::printable(&notes)
    }
}

/// The default model.
pub fn preferred() -> Result<Preferred, HubError> {
    Finder::from_env()?.preferred(&ModelChoice::from_env(), MINI, available_memory())
}

/// The reason for the choice of the default model.
pub fn reason(by: PreferredBy) -> &'static str {
    match by {
        PreferredBy::Choice => "chosen with kept models use",
        PreferredBy::Size => {
            "the best on this computer for its free memory; kept models use NAME chooses another"
        }
        PreferredBy::Nothing => {
            "no other on this computer can be asked and fits its free memory; kept models list shows what is there"
        }
    }
}

/// The model file that `name` refers to.
pub fn model_path(name: &str) -> anyhow::Result<PathBuf> {
    let path = Path::new(name);
    if name == MINI || path.is_absolute() || path.exists() {
        return Ok(kept_engine::model_path(name)?);
    }
    match Finder::from_env()?.choose(name) {
        Ok(file) => Ok(file),
        // A mistyped path: opening it reports the error.
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
    fn paths_and_names_are_distinguished() {
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
