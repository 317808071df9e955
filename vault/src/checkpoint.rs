//! Checkpoints: the state of all layers and of the method at the end of a document that was read in streaming mode. A
//! later question continues from this state, with the same answer as after a new prefill: no layer depends on the
//! text after the document.
//!
//! ```text
//! the elements, as `VisitState` passes them | footer (JSON) | footer length u64 | footer CRC-32 u32 | "KEPTVLT2"
//! ```
//!
//! `engine/src/streaming/state.rs` defines the state.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek};
use std::path::Path;

use kept_kernels::Stop;
use kept_policies::Snapshot;
use serde::{Deserialize, Serialize};

use super::footer::footer;
use super::format::PIECE;
use super::unfinished_file::{LockedFile, UnfinishedFile, open_to_read, wait_for};
use super::{VaultError, VaultKey};

/// A function that passes all elements of a state to a [`Snapshot`], in a fixed order.
pub type VisitState<'a> = &'a mut dyn FnMut(&mut dyn Snapshot);

/// Description of a checkpoint.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CheckpointInfo {
    /// Name of the document, for lists.
    pub document: String,
    /// Name of the model, for lists.
    pub model: String,
    /// Tokens that the state has seen: up to the end of the document, or fewer if its reading is not finished.
    pub tokens: usize,
    /// The settings of streaming mode, in words, for lists.
    #[serde(rename = "how")]
    pub settings: String,
}

/// A checkpoint that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadedCheckpoint {
    /// Tokens that the state has seen ([`CheckpointInfo::tokens`]).
    pub tokens: usize,
    /// Bytes of the file.
    pub bytes: u64,
}

/// The footer of the file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct CheckpointFooter {
    /// Key of the vault; must equal the file name.
    key: String,
    pub(super) of: CheckpointInfo,
    /// CRC-32 of the elements.
    checksum: u32,
    /// Hash of the kinds and counts of the elements: [`Layout`].
    layout: u32,
}

/// Hash of the kinds and counts of the elements in a visit. It detects files of other versions, whose elements would be
/// misinterpreted.
#[derive(Default)]
struct Layout(crc32fast::Hasher);

impl Layout {
    fn add(&mut self, kind: u8, elements: usize) {
        self.0.update(&[kind]);
        self.0.update(&(elements as u64).to_le_bytes());
    }
}

/// Bytes of the elements of a state.
pub(super) fn bytes_of(visit: VisitState<'_>) -> u64 {
    let mut counted = Counted(0);
    visit(&mut counted);
    counted.0
}

/// Writes a state to `file` under `key`; returns the file's size.
///
/// # Errors
/// [`VaultError::Io`].
pub(super) fn write(
    file: UnfinishedFile,
    key: &VaultKey,
    of: CheckpointInfo,
    visit: VisitState<'_>,
    stop: &Stop,
) -> Result<u64, VaultError> {
    let mut written = Written {
        file,
        at: 0,
        piece: Vec::with_capacity(PIECE),
        checksum: crc32fast::Hasher::new(),
        layout: Layout::default(),
        outcome: Ok(()),
        stop,
    };
    visit(&mut written);
    written.checksum.update(&written.piece);
    written.outcome?;
    let footer = CheckpointFooter {
        key: key.to_string(),
        of,
        checksum: written.checksum.finalize(),
        layout: written.layout.0.finalize(),
    };
    written.file.finish(written.at, written.piece, &footer)
}

/// Reads the file at `path`, which must have `key`, into a state that was constructed in the same way as the saved
/// one.
///
/// # Errors
/// [`VaultError::Io`]; [`VaultError::Damaged`]. The state is then unspecified.
pub(super) fn read(
    path: &Path,
    key: &VaultKey,
    visit: VisitState<'_>,
    stop: &Stop,
) -> Result<LoadedCheckpoint, VaultError> {
    let damaged = VaultError::damaged(path);
    let file = open_to_read(path).map_err(VaultError::io(path))?;
    // A shared lock prevents removal while the file is read.
    wait_for(&file, path, File::try_lock_shared)?;
    let mut file = LockedFile(file);
    let bytes = file.0.metadata().map_err(VaultError::io(path))?.len();
    let end = footer::<CheckpointFooter>(&mut file.0, bytes).map_err(VaultError::io(path))?;
    let (footer, body) = end.map_err(&damaged)?;
    if footer.key != key.to_string() {
        return Err(damaged("it belongs to another document, model or setting"));
    }
    file.0.rewind().map_err(VaultError::io(path))?;
    let mut taken = Taken {
        from: BufReader::new(&file.0).take(body),
        piece: Vec::new(),
        checksum: crc32fast::Hasher::new(),
        layout: Layout::default(),
        outcome: Ok(()),
        plausible: true,
        stop,
    };
    visit(&mut taken);
    let left = taken.from.limit();
    match taken.outcome {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            Err(damaged("it has become shorter"))
        }
        Err(error) => Err(VaultError::io(path)(error)),
        Ok(()) if left > 0 || !taken.plausible => Err(damaged("it is not as long as it says")),
        Ok(()) if taken.checksum.finalize() != footer.checksum => {
            Err(damaged("its numbers have changed"))
        }
        Ok(()) if taken.layout.0.finalize() != footer.layout => {
            Err(damaged("another version of the program left it"))
        }
        Ok(()) => Ok(LoadedCheckpoint {
            tokens: footer.of.tokens,
            bytes,
        }),
    }
}

/// A [`Snapshot`] that counts bytes.
struct Counted(u64);

impl Snapshot for Counted {
    fn floats(&mut self, elements: &mut [f32]) {
        self.0 += size_of_val(elements) as u64;
    }

    fn words(&mut self, elements: &mut [u32]) {
        self.0 += size_of_val(elements) as u64;
    }

    fn bytes(&mut self, elements: &mut [u8]) {
        self.0 += elements.len() as u64;
    }

    fn count(&mut self, _number: &mut usize, _most: usize) {
        self.0 += size_of::<u64>() as u64;
    }
}

/// The I/O error of a stopped operation.
fn stopped() -> io::Error {
    io::Error::other("it was stopped")
}

/// A [`Snapshot`] that writes to a file.
struct Written<'a> {
    file: UnfinishedFile,
    /// File offset of `piece`.
    at: u64,
    /// At most [`PIECE`] bytes that are not written yet.
    piece: Vec<u8>,
    /// CRC-32 of the bytes already written.
    checksum: crc32fast::Hasher,
    layout: Layout,
    outcome: Result<(), VaultError>,
    stop: &'a Stop,
}

impl Written<'_> {
    fn add<T: Copy, const BYTES: usize>(&mut self, elements: &[T], bytes: fn(T) -> [u8; BYTES]) {
        for elements in elements.chunks(PIECE / BYTES) {
            if self.piece.len() + elements.len() * BYTES > PIECE && self.outcome.is_ok() {
                self.outcome = if self.stop.is_requested() {
                    Err(self.file.failed(stopped()))
                } else {
                    self.file.write_at(self.at, &self.piece)
                };
                self.checksum.update(&self.piece);
                self.at += self.piece.len() as u64;
                self.piece.clear();
            }
            // After an error the rest is skipped.
            if self.outcome.is_err() {
                return;
            }
            let before = self.piece.len();
            self.piece.resize(before + elements.len() * BYTES, 0);
            let places = self.piece[before..].as_chunks_mut::<BYTES>().0;
            for (place, &number) in places.iter_mut().zip(elements) {
                *place = bytes(number);
            }
        }
    }
}

impl Snapshot for Written<'_> {
    fn floats(&mut self, elements: &mut [f32]) {
        self.layout.add(b'f', elements.len());
        self.add(elements, f32::to_le_bytes);
    }

    fn words(&mut self, elements: &mut [u32]) {
        self.layout.add(b'w', elements.len());
        self.add(elements, u32::to_le_bytes);
    }

    fn bytes(&mut self, elements: &mut [u8]) {
        self.layout.add(b'b', elements.len());
        self.add(elements, |byte| [byte]);
    }

    fn count(&mut self, number: &mut usize, _most: usize) {
        self.layout.add(b'c', 1);
        self.add(&[*number as u64], u64::to_le_bytes);
    }
}

/// A [`Snapshot`] that reads from a file.
struct Taken<'a> {
    from: io::Take<BufReader<&'a File>>,
    /// At most [`PIECE`] bytes.
    piece: Vec<u8>,
    checksum: crc32fast::Hasher,
    layout: Layout,
    outcome: io::Result<()>,
    /// Whether every count was within the capacity of the state.
    plausible: bool,
    stop: &'a Stop,
}

impl Taken<'_> {
    fn fill<T, const BYTES: usize>(&mut self, elements: &mut [T], number: fn([u8; BYTES]) -> T) {
        for elements in elements.chunks_mut(PIECE / BYTES) {
            self.piece.resize(elements.len() * BYTES, 0);
            if self.outcome.is_ok() {
                self.outcome = if self.stop.is_requested() {
                    Err(stopped())
                } else {
                    self.from.read_exact(&mut self.piece)
                };
            }
            if self.outcome.is_err() {
                return;
            }
            self.checksum.update(&self.piece);
            let pieces = self.piece.as_chunks::<BYTES>().0;
            for (place, &bytes) in elements.iter_mut().zip(pieces) {
                *place = number(bytes);
            }
        }
    }
}

impl Snapshot for Taken<'_> {
    fn floats(&mut self, elements: &mut [f32]) {
        self.layout.add(b'f', elements.len());
        self.fill(elements, f32::from_le_bytes);
    }

    fn words(&mut self, elements: &mut [u32]) {
        self.layout.add(b'w', elements.len());
        self.fill(elements, u32::from_le_bytes);
    }

    fn bytes(&mut self, elements: &mut [u8]) {
        self.layout.add(b'b', elements.len());
        self.fill(elements, |[byte]| byte);
    }

    fn count(&mut self, number: &mut usize, most: usize) {
        self.layout.add(b'c', 1);
        let mut read = [0];
        self.fill(&mut read, u64::from_le_bytes);
        let fits = usize::try_from(read[0]).ok().filter(|read| *read <= most);
        self.plausible &= fits.is_some();
        *number = fits.unwrap_or(0);
    }
}
