//! Vaults of a command's own, for as long as it runs.

use std::path::PathBuf;

use kept_engine::vault::VaultFolder;

/// A folder of vaults that goes away with it.
pub struct OwnVaults {
    path: PathBuf,
    pub folder: VaultFolder,
}

impl OwnVaults {
    /// In the system's folder for what is temporary.
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
