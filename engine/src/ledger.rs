//! Memory by category, in bytes: what a question takes at its worst moment, and what is in use right now. What the operating
//! system says is in `system.rs`.

use serde::{Deserialize, Serialize};

use crate::system;

/// What one question takes. Weights are mapped from their file: the system may drop their pages and read them again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct MemoryLedger {
    /// The model file's tensors, mapped; and copies of the layers that a GPU has no room for, which stay.
    pub weights: u64,
    /// The tokenizer: the vocabulary's texts and tables.
    pub vocabulary: u64,
    /// The prompt's tokens: ids, their bytes in the document, the answer's votes for them.
    pub prompt: u64,
    /// One layer's weights rearranged for the matrix kernels, while reading.
    pub layer_tiles: u64,
    /// One layer's full keys and values, while reading.
    pub layer_kv: u64,
    /// The residual stream of the whole prompt, while reading.
    pub residual: u64,
    /// Scratch of one chunk in one layer, while reading.
    pub activations: u64,
    /// What reading from the vault and writing to it holds: pieces of the file, the document's last queries, measurements.
    pub vault: u64,
    /// Rotation tables.
    pub rope: u64,
    /// Kept rows with room for the answer, positions and ranks.
    pub kept_rows: u64,
    /// Kept rows with room for the answer that are on a GPU and nowhere else: a part of `gpu`.
    pub kept_on_gpu: u64,
    /// What the method keeps beside rows: scores, marks and counters of its own, and the look-up tables of a merging one.
    pub tables: u64,
    /// Buffers of the decode loop.
    pub decode: u64,
    /// On a GPU: the model there and what a question takes beside it at its worst moment; nothing of it is in the other
    /// figures.
    pub gpu: u64,
}

impl MemoryLedger {
    /// Kept rows and tables, wherever they are.
    pub fn kept(&self) -> u64 {
        self.kept_rows + self.kept_on_gpu + self.tables
    }

    /// Everything beside weights, kept rows and tables while reading.
    pub fn reading(&self) -> u64 {
        self.rope + self.layer_tiles + self.layer_kv + self.residual + self.activations + self.vault
    }

    /// Everything beside weights, kept rows and tables at the worst moment.
    pub fn scratch(&self) -> u64 {
        self.reading().max(self.rope + self.decode)
    }

    /// The most that exists at once.
    pub fn peak(&self) -> u64 {
        self.weights + self.vocabulary + self.prompt + self.kept_rows + self.tables + self.scratch()
    }

    /// The most of the memory that matters: the GPU's where there is one, else [`MemoryLedger::peak`].
    pub fn worst(&self) -> u64 {
        match self.gpu {
            0 => self.peak(),
            gpu => gpu,
        }
    }

    /// Bytes that a prompt of `tokens` tokens takes: an id, twice (the tokenizer remembers the document's), a range of bytes and a
    /// vote for each.
    pub(crate) fn prompt_bytes(tokens: usize) -> u64 {
        let id = 2 * size_of::<u32>();
        (tokens * (id + size_of::<std::ops::Range<u32>>() + size_of::<f32>())) as u64
    }
}

/// Memory in use at one moment of a question.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryNow {
    /// The model file's tensors, mapped.
    pub weights: u64,
    /// Keys and values that are kept of the prompt and the answer.
    pub kept: u64,
    /// What the full cache would take for the whole prompt and the answer so far.
    pub kept_full: u64,
    /// What the method keeps beside rows.
    pub tables: u64,
    /// Everything else that was allocated: scratch of reading or answering, room for the rest of the answer.
    pub scratch: u64,
    /// Memory of this process, where the system says.
    pub resident: Option<u64>,
    /// Memory of the machine that is still free to take, where the system says.
    pub available: Option<u64>,
    /// Memory of the machine, where the system says.
    pub total: Option<u64>,
}

impl MemoryNow {
    /// With what the operating system says now.
    pub fn with_system(self) -> Self {
        Self {
            resident: system::resident_bytes(),
            available: system::available_memory(),
            total: system::total_memory(),
            ..self
        }
    }
}
