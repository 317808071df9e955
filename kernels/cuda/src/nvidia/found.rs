//! Detection of the driver and its GPUs. Each failure is an error that names the remedy. `scripts/test-drivers` tests
//! every one with a library in the driver's place.

use cudarc::driver::{DriverError, result, sys};

use crate::driver::DeviceProperties;

/// Oldest driver interface that loads the output of the CUDA compiler in use: CUDA 13.0, driver 580.
const MIN_DRIVER_VERSION: i32 = 13_000;
/// Oldest supported compute capability times ten: Turing.
const MIN_CAPABILITY: u32 = 75;

/// A supported GPU of this computer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// Ordinal, as in `--device cuda:0`.
    pub ordinal: usize,
    /// Properties and limits.
    pub properties: DeviceProperties,
    /// Bytes free now.
    pub free: u64,
}

/// Why no GPU can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum NoGpu {
    /// No driver is installed.
    #[error("no NVIDIA driver was found (libcuda); without one Kept answers on the processor")]
    NoDriver,
    /// A library has the driver's name but not its functions.
    #[error(
        "the library libcuda that was found is no NVIDIA driver's (it has no {lacks}); install NVIDIA's driver, version 580 or newer"
    )]
    NotADriver { lacks: &'static str },
    /// The driver is older than the kernels need.
    #[error(
        "the NVIDIA driver supports CUDA {have}, and CUDA 13.0 is needed; update the driver to version 580 or newer"
    )]
    OldDriver { have: String },
    /// The library and the kernel module of the driver have different versions.
    #[error(
        "the NVIDIA driver and its library (libcuda) are of different versions, as after an update; restart the computer, and if that does not help, install the driver again"
    )]
    DriverMismatch,
    /// The driver found no usable GPU.
    #[error(
        "the NVIDIA driver found no usable GPU ({reason}); `nvidia-smi` shows what it sees, and without a GPU Kept answers on the processor"
    )]
    None { reason: String },
    /// No GPU has this ordinal.
    #[error("there is no GPU cuda:{ordinal}; this computer has {count}")]
    UnknownOrdinal { ordinal: usize, count: usize },
    /// The GPU is older than the kernels need.
    #[error(
        "the GPU {name} is of compute capability {}.{}, and Kept needs 7.5 (Turing, 2018) or newer; without such a GPU it answers on the processor",
        capability / 10,
        capability % 10
    )]
    OldGpu { name: String, capability: u32 },
}

/// Maps a driver error to the reason why no GPU can be used.
pub(super) fn unusable(error: DriverError) -> NoGpu {
    match error.0 {
        sys::CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => NoGpu::DriverMismatch,
        _ => NoGpu::None {
            reason: error_text(error),
        },
    }
}

/// The driver's description of an error.
pub(super) fn error_text(error: DriverError) -> String {
    match error.error_string() {
        Ok(words) => words.to_string_lossy().into_owned(),
        Err(_) => format!("error {:?}", error.0),
    }
}

/// Loads the driver and counts the GPUs.
pub(super) fn init_driver() -> Result<usize, NoGpu> {
    // SAFETY: only looks for a library.
    if !unsafe { sys::is_culib_present() } {
        return Err(NoGpu::NoDriver);
    }
    // Every driver has this function, and its answer shows that the rest works: cudarc panics on a library without it.
    let lacks = "cuDriverGetVersion";
    // SAFETY: the library is loaded; the function is looked up and not called.
    if unsafe { sys::culib().get::<unsafe extern "C" fn()>(lacks.as_bytes()) }.is_err() {
        return Err(NoGpu::NotADriver { lacks });
    }
    let mut version = 0;
    // SAFETY: a valid pointer; this call needs no initialisation.
    let asked = unsafe { sys::cuDriverGetVersion(&mut version) }.result();
    // Reported by the error's name: a library older than CUDA 6 has no error strings, and the driver's stub library,
    // which exists for linking only, refuses every call.
    asked.map_err(|error| NoGpu::None {
        reason: format!("error {:?}", error.0),
    })?;
    if version < MIN_DRIVER_VERSION {
        let have = format!("{}.{}", version / 1000, version % 1000 / 10);
        return Err(NoGpu::OldDriver { have });
    }
    result::init().map_err(unusable)?;
    let count = result::device::get_count().map_err(unusable)?;
    match count {
        0 => Err(NoGpu::None {
            reason: "there is none".to_owned(),
        }),
        count => Ok(count as usize),
    }
}

/// Checks that the kernels support the GPU.
pub(super) fn check_capability(properties: &DeviceProperties) -> Result<(), NoGpu> {
    if properties.capability < MIN_CAPABILITY {
        Err(NoGpu::OldGpu {
            name: properties.name.clone(),
            capability: properties.capability,
        })
    } else {
        Ok(())
    }
}

pub(super) fn device_properties(
    ordinal: usize,
) -> Result<(sys::CUdevice, DeviceProperties), DriverError> {
    use sys::CUdevice_attribute as Of;
    let device = result::device::get(ordinal as i32)?;
    // SAFETY: a device from the driver.
    let attribute = |of| unsafe { result::device::get_attribute(device, of) };
    let major = attribute(Of::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(Of::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let properties = DeviceProperties {
        name: result::device::get_name(device)?,
        capability: (major * 10 + minor) as u32,
        multiprocessors: attribute(Of::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32,
        shared_bytes: attribute(Of::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as u32,
        // SAFETY: as above.
        memory: unsafe { result::device::total_mem(device)? } as u64,
    };
    Ok((device, properties))
}

/// The supported GPUs of this computer, each with its free memory.
///
/// # Errors
/// The reason why no GPU can be used.
pub fn gpus() -> Result<Vec<Gpu>, NoGpu> {
    let mut gpus = Vec::new();
    let mut too_old = None;
    for ordinal in 0..init_driver()? {
        let (device, properties) = device_properties(ordinal).map_err(unusable)?;
        if let Err(why) = check_capability(&properties) {
            too_old.get_or_insert(why);
            continue;
        }
        let free = free_memory(device).map_err(unusable)?;
        gpus.push(Gpu {
            ordinal,
            properties,
            free,
        });
    }
    match too_old {
        Some(why) if gpus.is_empty() => Err(why),
        _ => Ok(gpus),
    }
}

fn free_memory(device: sys::CUdevice) -> Result<u64, DriverError> {
    // SAFETY: a device from the driver; the retained context is released.
    unsafe {
        let context = result::primary_ctx::retain(device)?;
        let free = result::ctx::set_current(context)
            .and_then(|()| result::mem_get_info())
            .map(|(free, _)| free as u64);
        result::primary_ctx::release(device)?;
        free
    }
}
