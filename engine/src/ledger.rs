//! Memory by category, in bytes: the peak of a question, and the current use. Figures of the operating system come
//! from `system.rs`.

use serde::{Deserialize, Serialize};

use crate::system;

/// Memory of one question. Weights are mapped from their file: the system may drop their pages and read them again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct MemoryLedger {
    /// The model file's tensors, mapped; and host copies of the layers that do not fit in GPU memory, which persist.
    pub weights: u64,
    /// The tokenizer: token texts and tables.
    pub vocabulary: u64,
    /// The prompt's tokens: ids, byte ranges in the document, and the answer's votes for them.
    pub prompt: u64,
    /// One layer's weights, repacked into tiles for the matrix kernels; during prefill.
    pub layer_tiles: u64,
    /// One layer's full keys and values; during prefill.
    pub layer_kv: u64,
    /// The residual stream of the whole prompt; during prefill.
    pub residual: u64,
    /// Scratch buffers of one chunk in one layer; during prefill.
    pub activations: u64,
    /// Buffers for reading and writing the vault: pieces of the file, the document's last queries, measurements.
    pub vault: u64,
    /// RoPE tables.
    pub rope: u64,
    /// Kept rows on the host, with capacity for the answer, positions and ranks.
    pub kept_rows: u64,
    /// Kept rows on the GPU only, with capacity for the answer: a part of `gpu`.
    pub kept_on_gpu: u64,
    /// Data of the method other than rows: scores, marks, counters, and the lookup tables of a merging method.
    pub tables: u64,
    /// Buffers of the decode loop.
    pub decode: u64,
    /// On the GPU: the model and the peak of a question; disjoint from all other figures except `kept_on_gpu`.
    pub gpu: u64,
}

impl MemoryLedger {
    /// Kept rows and tables, on host and GPU.
    pub fn kept(&self) -> u64 {
        self.kept_rows + self.kept_on_gpu + self.tables
    }

    /// Everything but weights, kept rows and tables during prefill.
    pub fn reading(&self) -> u64 {
        self.rope + self.layer_tiles + self.layer_kv + self.residual + self.activations + self.vault
    }

    /// Everything but weights, kept rows and tables at peak.
    pub fn scratch(&self) -> u64 {
        self.reading().max(self.rope + self.decode)
    }

    /// Peak memory on the host.
    pub fn peak(&self) -> u64 {
        self.weights + self.vocabulary + self.prompt + self.kept_rows + self.tables + self.scratch()
    }

    /// Peak of the memory that limits a question: the GPU's if there is one, otherwise [`MemoryLedger::peak`].
    pub fn worst(&self) -> u64 {
        if self.gpu > 0 { self.gpu } else { self.peak() }
    }

    /// Memory in use during decode, without kept rows; `tables`: bytes of the method's data at this moment.
    pub(crate) fn while_decoding(&self, tables: u64) -> MemoryNow {
        MemoryNow {
            weights: self.weights,
            tables,
            scratch: self.rope + self.decode,
            ..MemoryNow::default()
        }
    }

    /// Bytes of a prompt of `tokens` tokens: for each an id (twice, because the tokenizer caches the document's), a
    /// byte range and a vote.
    pub(crate) fn prompt_bytes(tokens: usize) -> u64 {
        let id = 2 * size_of::<u32>();
        (tokens * (id + size_of::<std::ops::Range<u32>>() + size_of::<f32>())) as u64
    }
}

/// Memory in use at one moment of a question.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
#[cfg_attr(feature = "typescript", ts(rename = "Memory"))]
#[serde(rename_all = "camelCase")]
pub struct MemoryNow {
    /// The model file's tensors, mapped.
    pub weights: u64,
    /// Kept keys and values of prompt and answer.
    pub kept: u64,
    /// Size of the full cache for the whole prompt and the answer so far.
    pub kept_full: u64,
    /// Data of the method other than rows.
    pub tables: u64,
    /// All other allocations: scratch buffers of prefill or decode, capacity for the rest of the answer.
    pub scratch: u64,
    /// Resident memory of this process, where the system reports it.
    pub resident: Option<u64>,
    /// Available memory of the machine, where the system reports it.
    pub available: Option<u64>,
    /// Total memory of the machine, where the system reports it.
    pub total: Option<u64>,
}

impl MemoryNow {
    /// Adds the current figures of the operating system.
    pub fn with_system(self) -> Self {
        Self {
            resident: system::resident_bytes(),
            available: system::available_memory(),
            total: system::total_memory(),
            ..self
        }
    }
}
