//! The model folders of other programs, on all systems.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::{Finder, Folders, Place};
use crate::settings::below_home;
use crate::{HubCache, HubError, Settings};

impl Finder {
    /// Searches the folders of this computer's programs, those in `KEPT_MODELS` (separated as in `PATH`), and those
    /// that the user added.
    ///
    /// # Errors
    /// [`HubError::Disk`] if the list of added folders cannot be read.
    pub fn from_env() -> Result<Finder, HubError> {
        let variable = |name: &str| env::var_os(name);
        let home = env::home_dir();
        let mut finder = Finder::from_variables(&variable, home.as_deref());
        for folder in Folders::from_env().list()? {
            finder = finder.with_folder(folder);
        }
        Ok(finder)
    }

    /// Searches the folders of programs, as determined by these variables and this home folder.
    pub fn from_variables(
        variable: &dyn Fn(&str) -> Option<OsString>,
        home: Option<&Path>,
    ) -> Finder {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let path = |name: &str| set(name).map(|value| below_home(value.into(), home));
        let mut folders: Vec<(Place, PathBuf)> = Vec::new();
        let mut add = |place: Place, folder: Option<PathBuf>| {
            folders.extend(folder.map(|folder| (place, folder)));
        };
        let at_home = |below: &str| home.map(|home| home.join(below));
        let cache = path("XDG_CACHE_HOME").or_else(|| at_home(".cache"));
        let data = path("XDG_DATA_HOME").or_else(|| at_home(".local/share"));
        // macOS and Windows have their own folders; folders of other systems do not exist and are skipped.
        let library = at_home("Library");
        let (roaming, local) = (path("APPDATA"), path("LOCALAPPDATA"));
        let below = |folder: &Option<PathBuf>, rest: &str| folder.as_ref().map(|f| f.join(rest));

        add(Place::LmStudio, at_home(".lmstudio/models"));
        add(Place::LmStudio, below(&cache, "lm-studio/models"));
        match path("OLLAMA_MODELS") {
            Some(folder) => add(Place::Ollama, Some(folder)),
            None => {
                add(Place::Ollama, at_home(".ollama/models"));
                // The folder of Ollama's Linux service.
                if cfg!(target_os = "linux") && home.is_some() {
                    add(
                        Place::Ollama,
                        Some("/usr/share/ollama/.ollama/models".into()),
                    );
                }
            }
        }
        add(Place::Jan, at_home("jan/models"));
        for base in [
            below(&data, "Jan/data"),
            below(&library, "Application Support/Jan/data"),
            below(&roaming, "Jan/data"),
        ] {
            add(Place::Jan, below(&base, "models"));
            add(Place::Jan, below(&base, "llamacpp/models"));
        }
        add(Place::Gpt4All, below(&data, "nomic.ai/GPT4All"));
        add(
            Place::Gpt4All,
            below(&library, "Application Support/nomic.ai/GPT4All"),
        );
        add(Place::Gpt4All, below(&local, "nomic.ai/GPT4All"));
        match path("LLAMA_CACHE") {
            Some(folder) => add(Place::LlamaCpp, Some(folder)),
            None => {
                add(Place::LlamaCpp, below(&cache, "llama.cpp"));
                add(Place::LlamaCpp, below(&library, "Caches/llama.cpp"));
                add(Place::LlamaCpp, below(&local, "llama.cpp"));
            }
        }
        // The target of `make models`: the first of these folders, or the cache folder.
        match set("KEPT_MODELS") {
            Some(folders) => {
                for folder in env::split_paths(&folders) {
                    add(Place::Folder, Some(below_home(folder, home)));
                }
            }
            None => add(Place::Kept, below(&cache, "kept/models")),
        }
        Finder {
            cache: HubCache::new(Settings::from_variables(variable, home).cache),
            folders,
            files: Vec::new(),
        }
    }
}
