//! Names for display.

use std::path::Path;

/// The displayed name of a path: the file's name.
pub fn file_name(path: &Path) -> String {
    path.file_name()
        .unwrap_or(path.as_os_str())
        .to_string_lossy()
        .into_owned()
}
