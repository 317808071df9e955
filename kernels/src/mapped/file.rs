//! A file mapped read-only into memory.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// A file mapped read-only into memory.
///
/// The pages belong to the file: whoever shortens it while it is mapped makes the process die of SIGBUS, which is the
/// price of using weights without copying them. The window supervises the engine as a process of its own for such
/// deaths; nothing in Kept ever writes to a model file in place.
#[derive(Debug)]
pub struct MappedFile {
    map: memmap2::Mmap,
}

impl MappedFile {
    /// Map `path` read-only. An empty file is mapped too (as no bytes).
    ///
    /// # Errors
    /// What the operating system says about opening or mapping the file.
    pub fn open(path: &Path) -> io::Result<Arc<MappedFile>> {
        // Asked before opening: opening a named pipe waits for a writer.
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "it is not a regular file",
            ));
        }
        let file = File::open(path)?;
        // SAFETY: the mapping is private and read-only, and every view of it below is of types for which any bit
        // pattern is a value. Another process that writes into the file changes numbers, not types; see the struct's
        // note about one that shortens it.
        let map = unsafe { memmap2::Mmap::map(&file)? };
        Ok(Arc::new(MappedFile { map }))
    }

    /// `bytes` in memory of their own, as if they were a file: for looking at the first of a file without mapping it.
    ///
    /// # Errors
    /// What the operating system says when there is no memory.
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
