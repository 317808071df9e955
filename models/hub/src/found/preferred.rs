//! Selects a model if the user names none: the user's stored choice, else the best model on this computer, else no
//! file.
//!
//! The engine provides the built-in model. The terminal program and the app share the choice, stored in one small file.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{Finder, Found, FoundModel};
use crate::HubError;
use crate::cache::replace_file;
use crate::settings::config_folder;

/// The name that stands for no choice: the model is selected automatically.
pub const AUTO: &str = "auto";

/// Largest model that is selected automatically, in bytes. Every token of an answer reads all weights once, and an
/// ordinary computer reads 30 GB of memory per second; this is ten tokens per second.
pub(crate) const MAX_PREFERRED_BYTES: u64 = 3 << 30;
/// Memory for answering in addition to the weights, in bytes: the program, KV cache and buffers.
const BESIDES: u64 = 512 << 20;

/// The file with the user's choice.
#[derive(Debug, Clone)]
pub struct ModelChoice {
    file: PathBuf,
}

impl ModelChoice {
    /// The file in the user's configuration folder.
    pub fn from_env() -> ModelChoice {
        ModelChoice::from_variables(&|name| env::var_os(name), env::home_dir().as_deref())
    }

    /// The file in the configuration folder determined by these variables and this home folder.
    pub fn from_variables(
        variable: &dyn Fn(&str) -> Option<OsString>,
        home: Option<&Path>,
    ) -> ModelChoice {
        ModelChoice {
            file: config_folder(variable, home).join("model"),
        }
    }

    /// The chosen model, as an argument of `--model`; `None` without a choice.
    ///
    /// # Errors
    /// [`HubError::Disk`].
    pub fn read(&self) -> Result<Option<String>, HubError> {
        let text = match fs::read_to_string(&self.file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.failed("read", &error)),
        };
        let name = text.trim();
        Ok((!name.is_empty() && name != AUTO).then(|| name.to_owned()))
    }

    /// Stores a choice. The file is replaced atomically.
    ///
    /// # Errors
    /// [`HubError::Disk`].
    pub fn set(&self, name: &str) -> Result<(), HubError> {
        replace_file(&self.file, format!("{name}\n"))
            .map_err(|error| self.failed("written", &error))
    }

    /// Removes the choice. Returns whether one was stored.
    ///
    /// # Errors
    /// [`HubError::Disk`].
    pub fn clear(&self) -> Result<bool, HubError> {
        match fs::remove_file(&self.file) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(self.failed("removed", &error)),
        }
    }

    fn failed(&self, doing: &'static str, error: &io::Error) -> HubError {
        HubError::Disk {
            path: self.file.display().to_string(),
            doing,
            reason: error.to_string(),
            way_out: Some("mend or remove it, or name a model with --model"),
        }
    }
}

impl Found {
    /// The model to use if none is named and `memory` bytes are free. Candidates have a chat template, are supported
    /// and fit. Of those of at most 3 GiB, the one with the most parameters is selected; if all are larger, the
    /// smallest one.
    pub fn best(&self, memory: Option<u64>) -> Option<&FoundModel> {
        let fits = |model: &&FoundModel| {
            let needs = model.bytes.saturating_add(BESIDES);
            let free = memory.is_none_or(|free| needs <= free);
            model.supported && model.instruct && free
        };
        let fitting = || self.models.iter().filter(fits);
        let quick = fitting().filter(|model| model.bytes <= MAX_PREFERRED_BYTES);
        // Of equal models, the first by place and name.
        quick
            .rev()
            .max_by_key(|model| (model.parameters.unwrap_or(0), model.bytes))
            .or_else(|| fitting().min_by_key(|model| model.bytes))
    }
}

/// The model to use if none is named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preferred {
    /// Argument of `--model`.
    pub name: String,
    /// The model's file; `None` for the built-in model.
    pub path: Option<PathBuf>,
    /// Why this model was selected.
    pub by: PreferredBy,
}

/// Why a model was selected that the user did not name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreferredBy {
    /// The user chose it.
    Choice,
    /// It is the best on this computer ([`Found::best`]).
    Size,
    /// The built-in model, because no other model is suitable.
    Nothing,
}

impl Finder {
    /// The model to use if none is named and `memory` bytes are free. `in_the_box` is the name of the built-in model.
    ///
    /// # Errors
    /// [`HubError::Disk`]. For a stored choice, [`HubError::ChosenGone`] if the model does not exist any more, and
    /// [`HubError::SeveralModels`] or [`HubError::Ambiguous`] if its name has become ambiguous.
    pub fn preferred(
        &self,
        choice: &ModelChoice,
        in_the_box: &str,
        memory: Option<u64>,
    ) -> Result<Preferred, HubError> {
        if let Some(name) = choice.read()? {
            let path = match Path::new(&name).is_absolute() {
                _ if name == in_the_box => None,
                true => Some(PathBuf::from(&name)).filter(|path| path.is_file()),
                false => match self.choose(&name) {
                    Ok(path) => Some(path),
                    Err(error @ (HubError::SeveralModels { .. } | HubError::Ambiguous { .. })) => {
                        return Err(error);
                    }
                    Err(_) => None,
                },
            };
            if path.is_none() && name != in_the_box {
                return Err(HubError::ChosenGone(name));
            }
            let by = PreferredBy::Choice;
            return Ok(Preferred { name, path, by });
        }
        Ok(match self.find().best(memory) {
            Some(best) => Preferred {
                name: best.name.clone(),
                path: Some(best.path.clone()),
                by: PreferredBy::Size,
            },
            None => Preferred {
                name: in_the_box.to_owned(),
                path: None,
                by: PreferredBy::Nothing,
            },
        })
    }

    /// A name that resolves to the model file `path`: the name in [`Found`], else the path.
    pub fn name_of(&self, path: &Path) -> String {
        let real = super::canonical(path);
        let found = self.find();
        let is_it = |model: &&FoundModel| super::canonical(&model.path) == real;
        let named = found.models.iter().find(is_it).filter(|model| {
            let chosen = self.choose(&model.name).ok();
            chosen.is_some_and(|chosen| super::canonical(&chosen) == real)
        });
        named.map_or_else(|| real.display().to_string(), |model| model.name.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Place;

    fn model(name: &str, gib: f64, billions: f64) -> FoundModel {
        FoundModel {
            name: name.to_owned(),
            title: None,
            path: name.into(),
            parts: 1,
            bytes: (gib * (1u64 << 30) as f64) as u64,
            architecture: Some("llama".into()),
            quantisation: None,
            parameters: Some((billions * 1e9) as u64),
            context: None,
            instruct: true,
            place: Place::Folder,
            supported: true,
            reason: None,
        }
    }

    fn best(models: Vec<FoundModel>, free_gib: u64) -> Option<String> {
        let found = Found {
            models,
            ..Found::default()
        };
        found.best(Some(free_gib << 30)).map(|m| m.name.clone())
    }

    #[test]
    fn the_best_model_is_the_largest_quick_one_that_fits() {
        let all = || {
            vec![
                model("135M", 0.25, 0.135),
                model("1B", 0.8, 1.2),
                model("1B in F16", 2.5, 1.2),
                model("4B", 2.5, 4.0),
                model("8B", 4.9, 8.0),
            ]
        };
        assert_eq!(best(all(), 16).as_deref(), Some("4B"));
        assert_eq!(best(all(), 2).as_deref(), Some("1B"));
        assert_eq!(best(all(), 1).as_deref(), Some("135M"));
        assert_eq!(best(all(), 0), None);
        assert_eq!(best(all().split_off(4), 16).as_deref(), Some("8B"));
        let two = vec![model("8B", 4.9, 8.0), model("7B", 4.4, 7.0)];
        assert_eq!(best(two, 16).as_deref(), Some("7B"));
        let equal = vec![model("a", 1.0, 1.0), model("b", 1.0, 1.0)];
        assert_eq!(best(equal, 16).as_deref(), Some("a"));
    }

    #[test]
    fn models_without_template_or_support_are_skipped() {
        let mut base = model("base", 1.0, 1.0);
        base.instruct = false;
        let mut other = model("other", 1.0, 1.0);
        other.supported = false;
        assert_eq!(best(vec![base, other], 16), None);
    }

    #[test]
    fn a_choice_is_stored_and_cleared() {
        let folder = tempfile::tempdir().unwrap();
        let variable =
            |name: &str| (name == "KEPT_CONFIG").then(|| folder.path().join("deep").into());
        let choice = ModelChoice::from_variables(&variable, None);
        assert_eq!(choice.read(), Ok(None));
        assert_eq!(choice.clear(), Ok(false));
        choice.set("owner/name:file.gguf").unwrap();
        choice.set("llama3.2:1b").unwrap();
        assert_eq!(choice.read(), Ok(Some("llama3.2:1b".to_owned())));
        let files = fs::read_dir(folder.path().join("deep")).unwrap();
        assert_eq!(files.count(), 1);
        assert_eq!(choice.clear(), Ok(true));
        assert_eq!(choice.read(), Ok(None));
    }
}
