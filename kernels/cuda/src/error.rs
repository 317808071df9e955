//! What can go wrong with a device, in sentences for a person.

use kept_kernels::format_bytes;

/// Why a device could not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// Memory ran out.
    #[error(
        "the GPU {device} has {} left and {} more are needed; use a smaller budget, a smaller model or --device cpu",
        format_bytes(*free),
        format_bytes(*needed)
    )]
    OutOfMemory {
        /// The GPU.
        device: String,
        /// Bytes asked for.
        needed: u64,
        /// Bytes that were free.
        free: u64,
    },
    /// Memory of the computer, which a GPU copies to and from, ran out.
    #[error(
        "the system refuses {} of memory that the GPU is to copy from; close other programs, or use a smaller budget or --device cpu",
        format_bytes(*needed)
    )]
    HostMemory {
        /// Bytes asked for.
        needed: u64,
    },
    /// A kernel could not be started, or ended wrongly.
    #[error("the GPU {device} failed in {what}: {reason}; use --device cpu")]
    Failed {
        /// The GPU.
        device: String,
        /// The kernel, or what else was asked.
        what: String,
        /// What the driver said.
        reason: String,
    },
    /// A kernel would run over more than a GPU can number.
    #[error(
        "{kernel} would take {blocks} blocks in a direction of its grid, more than a GPU has numbers for; read a shorter document or use --device cpu"
    )]
    Grid {
        /// The kernel.
        kernel: String,
        /// Blocks that were asked for.
        blocks: u32,
    },
    /// There is no kernel for these heads.
    #[error(
        "there is no CUDA kernel for heads of {head_dim} numbers (there are for {supported}); use --device cpu"
    )]
    HeadDim {
        /// Numbers in a head of the model.
        head_dim: usize,
        /// Those that are supported.
        supported: &'static str,
    },
    /// There is no product with such weights.
    #[error("weights of kind {kind} cannot be multiplied on a GPU yet; use --device cpu")]
    Kind {
        /// Name of the kind.
        kind: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_said_as_a_person_reads_it() {
        let full = DeviceError::OutOfMemory {
            device: "X".to_owned(),
            needed: 3 << 30,
            free: 1288490189,
        };
        let said = full.to_string();
        assert!(
            said.contains("1.2 GiB left and 3.0 GiB more are needed"),
            "{said}"
        );
    }
}
