//! A file mapped read-only into memory.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// A file mapped read-only into memory.
///
/// The pages belong to the file: if another process shortens the file while it is mapped, an access raises SIGBUS and
/// ends this process. This is the price of using weights without copying them. The app window runs the engine in a
/// separate process to survive it. Kept never writes to a model file in place.
#[derive(Debug)]
pub struct MappedFile {
    map: memmap2::Mmap,
}

impl MappedFile {
    /// Maps `path` read-only. An empty file gives an empty map.
    ///
    /// # Errors
    /// The operating system's error on opening or mapping the file, or an error if `path` is not a regular file.
    pub fn open(path: &Path) -> io::Result<Arc<MappedFile>> {
        // Checked before opening: opening a named pipe would block until a writer opens it.
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "it is not a regular file",
            ));
        }
        let file = File::open(path)?;
        // SAFETY: the mapping is private and read-only, and all views below are of types for which any bit pattern is a
        // valid value. A process that writes to the file changes numbers, not types; for a process that shortens the
        // file, see the struct's documentation.
        let map = unsafe { memmap2::Mmap::map(&file)? };
        Ok(Arc::new(MappedFile { map }))
    }

    /// Copies `bytes` to anonymous memory, as if they were a file: for parsing the start of a file without mapping it.
    ///
    /// # Errors
    /// The operating system's error if memory is short.
    pub fn from_bytes(bytes: &[u8]) -> io::Result<Arc<MappedFile>> {
        let mut map = memmap2::MmapMut::map_anon(bytes.len())?;
        map.copy_from_slice(bytes);
        let map = map.make_read_only()?;
        Ok(Arc::new(MappedFile { map }))
    }

    /// All bytes of the file.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether the file has no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }
}
