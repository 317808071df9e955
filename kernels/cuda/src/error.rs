//! What can go wrong with a device, in sentences for a person.

/// Why a device could not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// Memory ran out.
    #[error(
        "the graphics card {device} has {free} bytes left and {needed} more are needed; use a smaller budget, a smaller model or --device cpu"
    )]
    OutOfMemory {
        /// The card.
        device: String,
        /// Bytes asked for.
        needed: u64,
        /// Bytes that were free.
        free: u64,
    },
    /// A kernel could not be started, or ended wrongly.
    #[error("the graphics card {device} failed in {what}: {reason}; use --device cpu")]
    Failed {
        /// The card.
        device: String,
        /// The kernel, or what else was asked.
        what: String,
        /// What the driver said.
        reason: String,
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
    #[error("weights of kind {kind} cannot be multiplied on a graphics card yet; use --device cpu")]
    Kind {
        /// Name of the kind.
        kind: String,
    },
}
