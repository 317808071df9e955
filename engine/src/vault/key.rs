//! Which vault belongs to a reading: hashes over everything that its numbers depend on.
//!
//! ```text
//! 3f09..e1 (model, rotation, kind of rows)  a77c..02 (the tokens)     the name of a vault: 64 hexadecimal digits
//! ```
//!
//! Vaults with the same first half can serve one another's documents as far as these begin with the same tokens.

use std::fmt;
use std::path::Path;

use kept_kernels::PackedRows;
use kept_models::{Model, RopeTable};
use sha2::{Digest, Sha256};

/// Raised when the same document and model would give other bytes.
const VERSION: u32 = 2;
/// Raised when reading the same document in streaming would leave other numbers at its end, or the same in another order.
const END_VERSION: u32 = 2;
/// Pieces of the model's tensors that are hashed, and how long each is.
const PIECES: usize = 64;
const PIECE_BYTES: usize = 16 << 10;
/// Hexadecimal digits of each half of a key.
const HALF: usize = 32;

/// A model, by its metadata, its size and pieces of its tensors, not by its path: a file that was moved keeps its vaults, and one
/// that was replaced loses them.
#[derive(Debug, Clone)]
pub struct ModelPrint([u8; 32]);

impl ModelPrint {
    /// Reads about a megabyte of the model's file.
    pub fn of(model: &Model) -> Self {
        let mut hash = Sha256::new();
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
        Self(hash.finalize().into())
    }
}

/// The name of a vault: 64 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VaultKey(String);

impl VaultKey {
    /// For the tokens `prefix`, with which every prompt on the document begins, under a model that rotates by `rope`, in rows of
    /// `kind`.
    pub fn new(model: &ModelPrint, rope: &RopeTable, prefix: &[u32], kind: PackedRows) -> Self {
        Self::of(model, rope, prefix, kind.name())
    }

    /// For the end of a document, the tokens `prefix`, that was read in streaming, `how` in every detail that its numbers depend on. No
    /// other text is served by it.
    pub(crate) fn of_end(model: &ModelPrint, rope: &RopeTable, prefix: &[u32], how: &str) -> Self {
        Self::of(model, rope, prefix, &format!("end {END_VERSION} {how}"))
    }

    fn of(model: &ModelPrint, rope: &RopeTable, prefix: &[u32], rows: &str) -> Self {
        let mut family = Sha256::new();
        family.update(VERSION.to_le_bytes());
        family.update(rows.as_bytes());
        family.update(model.0);
        // Some models rotate long texts in another way than short ones.
        for table in std::iter::successors(Some(rope), |table| table.of_windows()) {
            family.update((table.frequencies().len() as u64).to_le_bytes());
            for number in table.frequencies().iter().chain([&table.magnitude()]) {
                family.update(number.to_le_bytes());
            }
        }
        let mut tokens = Sha256::new();
        for id in prefix {
            tokens.update(id.to_le_bytes());
        }
        Self([family.finalize(), tokens.finalize()].iter().fold(
            String::with_capacity(2 * HALF),
            |name, hash| {
                let half = hash.iter().take(HALF / 2);
                name + &half.map(|byte| format!("{byte:02x}")).collect::<String>()
            },
        ))
    }

    /// Whether `other` differs in its tokens at most.
    pub(super) fn is_akin(&self, other: &VaultKey) -> bool {
        self.0[..HALF] == other.0[..HALF]
    }

    /// The key in a file's name, if it is one.
    pub(super) fn of_file(path: &Path) -> Option<Self> {
        Self::parse(path.file_stem()?.to_str()?)
    }

    /// The key that `name` is, if it is one.
    pub fn parse(name: &str) -> Option<Self> {
        let digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        let is_key = name.len() == 2 * HALF && name.bytes().all(digit);
        is_key.then(|| Self(name.to_owned()))
    }
}

impl fmt::Display for VaultKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
