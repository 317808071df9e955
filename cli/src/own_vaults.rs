//! A temporary vault folder for the duration of one command.

use std::path::PathBuf;

use kept_engine::vault::VaultFolder;

/// A temporary vault folder, which is deleted on drop.
pub struct OwnVaults {
    path: PathBuf,
    pub folder: VaultFolder,
}

impl OwnVaults {
    /// Creates it in the system's temporary folder.
    pub fn new() -> Self {
        let path = std::env::temp_dir().join(format!("kept-vaults-{}", std::process::id()));
        Self {
            folder: VaultFolder::new(&path, u64::MAX),
            path,
        }
    }
}

impl Drop for OwnVaults {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            eprintln!("{} is left behind: {error}", self.path.display());
        }
    }
}
