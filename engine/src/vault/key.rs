//! Which vault belongs to a reading: a hash over everything that its numbers depend on.

use std::fmt;
use std::path::Path;

use kept_kernels::PackedRows;
use kept_models::Model;
use sha2::{Digest, Sha256};

/// Raised when the same document and model would give other bytes.
const VERSION: u32 = 1;
/// Pieces of the model's tensors that are hashed, and how long each is.
const PIECES: usize = 64;
const PIECE_BYTES: usize = 16 << 10;

/// The name of a vault: 64 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct VaultKey(String);

impl VaultKey {
    /// For the tokens `prefix`, with which every prompt on the document begins, under `model`, in rows of `kind`.
    ///
    /// The model is known by its metadata, its size and pieces of its tensors, not by its path: a file that was moved keeps its
    /// vaults, and one that was replaced loses them.
    pub fn new(model: &Model, prefix: &[u32], kind: PackedRows) -> Self {
        let mut hash = Sha256::new();
        hash.update(VERSION.to_le_bytes());
        hash.update([match kind {
            PackedRows::F16 => 0u8,
            PackedRows::Q8_0 => 1,
        }]);
        // The description that was read from the metadata, with what the person set (a stretched RoPE).
        hash.update(format!("{:?}", model.config()).as_bytes());
        for part in model.gguf().files() {
            let bytes = part.bytes();
            hash.update((bytes.len() as u64).to_le_bytes());
            let step = (bytes.len() / PIECES).max(1);
            for piece in bytes.chunks(step) {
                hash.update(&piece[..piece.len().min(PIECE_BYTES)]);
            }
        }
        hash.update((prefix.len() as u64).to_le_bytes());
        for id in prefix {
            hash.update(id.to_le_bytes());
        }
        let hash = hash.finalize();
        Self(hash.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The lock that whoever writes the vault holds: one of sixteen, which stay.
    pub(super) fn lock_name(&self) -> String {
        format!("writing-{}.lock", &self.0[..1])
    }

    /// The key in a file's name, if it is one.
    pub(super) fn of_file(path: &Path) -> Option<Self> {
        let name = path.file_stem()?.to_str()?;
        let is_key = name.len() == 64 && name.bytes().all(|b| b.is_ascii_hexdigit());
        is_key.then(|| Self(name.to_owned()))
    }
}

impl fmt::Display for VaultKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
