//! Errors of devices other than the CPU, as sentences for users. Here, because all crates know this one.

use crate::format_bytes;

/// Why an operation on a device failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum DeviceError {
    /// The device is out of memory.
    #[error(
        "the GPU {device} has {} left and {} more are needed; use a smaller budget, a smaller model or the CPU",
        format_bytes(*free),
        format_bytes(*needed)
    )]
    OutOfMemory {
        device: String,
        needed: u64,
        free: u64,
    },
    /// The host is out of memory for pinned allocations.
    #[error(
        "the system refuses {} of memory that the GPU is to copy from; close other programs, or use a smaller budget or the CPU",
        format_bytes(*needed)
    )]
    HostMemory { needed: u64 },
    /// A kernel could not be launched, or failed.
    #[error("the GPU {device} failed in {what}: {reason}; use the CPU")]
    Failed {
        device: String,
        what: String,
        reason: String,
    },
    /// A kernel's grid exceeds the limits of GPUs.
    #[error(
        "{kernel} would take {blocks} blocks in a direction of its grid, more than a GPU has numbers for; read a shorter document or use the CPU"
    )]
    Grid { kernel: String, blocks: u32 },
    /// No kernel for this head size.
    #[error(
        "there is no CUDA kernel for heads of {head_dim} numbers (there are for {supported}); use the CPU"
    )]
    HeadDim {
        head_dim: usize,
        supported: &'static str,
    },
    /// A row of the residual stream is too wide for one block.
    #[error(
        "a CUDA kernel takes rows of up to {most} numbers, and the model's have {width}; use the CPU"
    )]
    Width { width: usize, most: usize },
    /// No product for this type of weights.
    #[error("weights of kind {kind} cannot be multiplied on a GPU yet; use the CPU")]
    Kind { kind: String },
    /// No kernel for a part of the model.
    #[error("{part} cannot be computed on a GPU yet; use the CPU")]
    Part {
        /// Such as "mixtures of experts".
        part: &'static str,
    },
}

impl DeviceError {
    /// [`DeviceError::Failed`] with these texts.
    pub fn failed(device: &str, what: &str, reason: impl Into<String>) -> Self {
        Self::Failed {
            device: device.to_owned(),
            what: what.to_owned(),
            reason: reason.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_of_memory_shows_sizes_in_gib() {
        let full = DeviceError::OutOfMemory {
            device: "X".to_owned(),
            needed: 3 << 30,
            free: 1288490189,
        };
        let said = full.to_string();
        assert!(
            said.contains("1.20 GiB left and 3.00 GiB more are needed"),
            "{said}"
        );
    }
}
