//! Memory by category, in bytes, beside what the operating system says.

use serde::Serialize;

/// What one question takes. Weights are mapped from their file: the system may drop their pages and read them again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct MemoryLedger {
    /// The model file's tensors, mapped.
    pub weights: u64,
    /// One layer's weights rearranged for the matrix kernels, while reading.
    pub layer_tiles: u64,
    /// One layer's full keys and values, while reading.
    pub layer_kv: u64,
    /// The residual stream of the whole prompt, while reading.
    pub residual: u64,
    /// Scratch of one chunk in one layer, while reading.
    pub activations: u64,
    /// Rotation tables.
    pub rope: u64,
    /// Kept rows with room for the answer, positions and ranks.
    pub kept_rows: u64,
    /// Buffers of the decode loop.
    pub decode: u64,
}

impl MemoryLedger {
    /// Everything beside weights and kept rows at the worst moment.
    pub fn scratch(&self) -> u64 {
        let reading = self.layer_tiles + self.layer_kv + self.residual + self.activations;
        self.rope + reading.max(self.decode)
    }

    /// The most that exists at once.
    pub fn peak(&self) -> u64 {
        self.weights + self.kept_rows + self.scratch()
    }
}

/// The most memory this process ever had resident, as the operating system counts it; `None` where it does not say.
pub fn peak_resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
