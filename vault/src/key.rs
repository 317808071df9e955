//! Vault keys: hashes over all inputs that the stored numbers depend on.
//!
//! ```text
//! a77c..02 (the tokens)  3f09..e1 (model, rotation, kind of rows)     the name of a vault: 64 hexadecimal digits
//! ```
//!
//! Vaults with the same second half are interchangeable for documents that share their first tokens.

use std::fmt;
use std::path::Path;

use kept_kernels::PackedRows;
use kept_models::{Model, RopeTable};
use sha2::{Digest, Sha256};

/// Incremented when the same document and model would give different bytes.
const VERSION: u32 = 3;
/// Incremented when the same document in streaming mode would leave different numbers in its checkpoint, or in another
/// order.
const CHECKPOINT_VERSION: u32 = 2;
/// Number of pieces of the model's tensors that are hashed, and bytes of each.
const PIECES: usize = 64;
const PIECE_BYTES: usize = 16 << 10;
/// Hexadecimal digits of each half of a key.
const HALF: usize = 32;

/// Fingerprint of a model: its metadata, its size and pieces of its tensors, not its path, and no name of this program's
/// own. A file that was moved keeps its vaults, also with a newer program; a file that was replaced loses them.
#[derive(Debug, Clone)]
pub struct ModelFingerprint([u8; 32]);

impl ModelFingerprint {
    /// Computes the fingerprint; reads the header of the model's file and about a megabyte of its tensors. The RoPE
    /// scaling that a user chooses is in the RoPE table of the key.
    pub fn of(model: &Model) -> Self {
        let mut hash = Sha256::new();
        let gguf = model.gguf();
        for (index, part) in gguf.files().iter().enumerate() {
            let bytes = part.bytes();
            hash.update((bytes.len() as u64).to_le_bytes());
            let tensors = gguf.tensors().filter(|tensor| tensor.part == index);
            let header = tensors.map(|tensor| tensor.start).min().unwrap_or(0);
            let (header, tensors) = bytes.split_at(header);
            hash.update(header);
            let step = (tensors.len() / PIECES).max(1);
            for piece in tensors.chunks(step) {
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
    /// The key for the tokens `prefix`, with which every prompt on the document begins, under a model with the RoPE
    /// table `rope`, in rows of `kind`.
    pub fn new(
        model: &ModelFingerprint,
        rope: &RopeTable,
        prefix: &[u32],
        kind: PackedRows,
    ) -> Self {
        Self::hashed(model, rope, prefix, kind.name())
    }

    /// The key for the turns of a conversation: `prefix` are all tokens up to the end of its last turn.
    pub fn of_turns(
        model: &ModelFingerprint,
        rope: &RopeTable,
        prefix: &[u32],
        kind: PackedRows,
    ) -> Self {
        Self::hashed(model, rope, prefix, &format!("turns {}", kind.name()))
    }

    /// The key of the checkpoint of a document, the tokens `prefix`, in streaming mode; `settings` contains every
    /// setting that the numbers depend on. The checkpoint serves no other text.
    pub fn of_checkpoint(
        model: &ModelFingerprint,
        rope: &RopeTable,
        prefix: &[u32],
        settings: &str,
    ) -> Self {
        Self::hashed(
            model,
            rope,
            prefix,
            &format!("end {CHECKPOINT_VERSION} {settings}"),
        )
    }

    fn hashed(model: &ModelFingerprint, rope: &RopeTable, prefix: &[u32], rows: &str) -> Self {
        let mut family = Sha256::new();
        family.update(VERSION.to_le_bytes());
        family.update(rows.as_bytes());
        family.update(model.0);
        // Some models use a different RoPE in long texts than in short ones.
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
        Self([tokens.finalize(), family.finalize()].iter().fold(
            String::with_capacity(2 * HALF),
            |name, hash| {
                let half = hash.iter().take(HALF / 2);
                name + &half.map(|byte| format!("{byte:02x}")).collect::<String>()
            },
        ))
    }

    /// Whether `other` differs in its tokens only, if at all.
    pub(super) fn has_same_inputs(&self, other: &VaultKey) -> bool {
        self.0[HALF..] == other.0[HALF..]
    }

    /// The key in a file's name; `None` if the name is not a key.
    pub(super) fn of_file(path: &Path) -> Option<Self> {
        Self::parse(path.file_stem()?.to_str()?)
    }

    /// Parses a key; `None` if `name` is not a key.
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
