//! Model folders added by the user. The list is stored in one small file, shared by the terminal program and the app.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::HubError;
use crate::cache::replace_file;
use crate::settings::config_folder;

/// The list of added folders.
#[derive(Debug, Clone)]
pub struct Folders {
    file: PathBuf,
}

impl Folders {
    /// The list in the user's configuration folder.
    pub fn from_env() -> Folders {
        let folder = config_folder(&|name| env::var_os(name), env::home_dir().as_deref());
        Folders {
            file: folder.join("model-folders.json"),
        }
    }

    /// The file with the list.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The added folders, in order of addition.
    ///
    /// # Errors
    /// [`HubError::Disk`].
    pub fn list(&self) -> Result<Vec<PathBuf>, HubError> {
        let text = match fs::read(&self.file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(HubError::disk(&self.file, "read", &error)),
        };
        serde_json::from_slice(&text).map_err(|error| HubError::Disk {
            path: self.file.display().to_string(),
            doing: "read",
            reason: error.to_string(),
            way_out: Some("it should be a JSON list of folders: mend or remove it"),
        })
    }

    /// Adds a folder. Returns whether it is new.
    ///
    /// # Errors
    /// [`HubError::NoFolder`], [`HubError::Disk`].
    pub fn add(&self, folder: &Path) -> Result<bool, HubError> {
        let none = || HubError::NoFolder(folder.display().to_string());
        let real = dunce::canonicalize(folder).map_err(|_| none())?;
        if !real.is_dir() || real.to_str().is_none() {
            return Err(none());
        }
        let mut folders = self.list()?;
        if folders.contains(&real) {
            return Ok(false);
        }
        folders.push(real);
        self.write(&folders)?;
        Ok(true)
    }

    /// Removes a folder from the list. Returns whether it was listed. The folder's contents are not touched.
    ///
    /// # Errors
    /// [`HubError::Disk`].
    pub fn forget(&self, folder: &Path) -> Result<bool, HubError> {
        // A folder that no longer exists is matched by its stored path.
        let real = dunce::canonicalize(folder).ok();
        let folders = self.list()?;
        let is_it = |known: &PathBuf| known == folder || Some(known) == real.as_ref();
        let rest: Vec<PathBuf> = folders
            .iter()
            .filter(|known| !is_it(known))
            .cloned()
            .collect();
        if rest.len() == folders.len() {
            return Ok(false);
        }
        self.write(&rest)?;
        Ok(true)
    }

    fn write(&self, folders: &[PathBuf]) -> Result<(), HubError> {
        let text = serde_json::to_vec_pretty(folders).map_err(io::Error::from);
        text.and_then(|text| replace_file(&self.file, text))
            .map_err(HubError::on_disk(&self.file, "written"))
    }
}
