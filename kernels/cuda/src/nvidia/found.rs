//! The driver and its GPUs, looked for; and everything that may be wrong with either, in a sentence with the way out. `scripts/test-drivers`
//! proves each of them with a library in the driver's place.

use cudarc::driver::{DriverError, result, sys};

use crate::driver::Facts;

/// Oldest driver interface that loads what the compiler in use makes: CUDA 13.0, driver 580.
const OLDEST_DRIVER: i32 = 13_000;
/// Oldest compute capability that there are kernels for: Turing.
const OLDEST_GPU: u32 = 75;

/// A GPU of this computer that there are kernels for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// Its number, as in `--device cuda:0`.
    pub ordinal: usize,
    /// What it is.
    pub facts: Facts,
    /// Bytes that are free now.
    pub free: u64,
}

/// Why no GPU can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoGpu {
    /// There is no driver.
    #[error("no NVIDIA driver was found (libcuda); without one Kept answers on the processor")]
    NoDriver,
    /// A library is there by the driver's name, and is none.
    #[error(
        "the library libcuda that was found is no NVIDIA driver's (it has no {lacks}); install NVIDIA's driver, version 580 or newer"
    )]
    NotADriver {
        /// What every driver's library has.
        lacks: &'static str,
    },
    /// The driver is older than the kernels.
    #[error(
        "the NVIDIA driver speaks CUDA {have}, and CUDA 13.0 is needed; update the driver to version 580 or newer"
    )]
    OldDriver {
        /// Its version.
        have: String,
    },
    /// The library is of another version than the part of the driver that runs in the kernel.
    #[error(
        "the NVIDIA driver and its library (libcuda) are of different versions, as after an update; restart the computer, and if that does not help, install the driver again"
    )]
    TornDriver,
    /// The driver found nothing it can use.
    #[error(
        "the NVIDIA driver found no usable GPU ({reason}); `nvidia-smi` shows what it sees, and without a GPU Kept answers on the processor"
    )]
    None {
        /// What the driver said.
        reason: String,
    },
    /// There is no such GPU.
    #[error("there is no GPU cuda:{ordinal}; this computer has {count}")]
    NoSuch {
        /// The number asked for.
        ordinal: usize,
        /// How many there are.
        count: usize,
    },
    /// The GPU is older than the kernels.
    #[error(
        "the GPU {name} is of compute capability {}.{}, and Kept needs 7.5 (Turing, 2018) or newer; without such a GPU it answers on the processor",
        capability / 10,
        capability % 10
    )]
    OldGpu {
        /// Its name.
        name: String,
        /// Compute capability times ten.
        capability: u32,
    },
}

/// What an error of the driver's says about the GPUs.
pub(super) fn none(error: DriverError) -> NoGpu {
    match error.0 {
        sys::CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => NoGpu::TornDriver,
        _ => NoGpu::None {
            reason: sentence(error),
        },
    }
}

/// What the driver says of an error.
pub(super) fn sentence(error: DriverError) -> String {
    match error.error_string() {
        Ok(words) => words.to_string_lossy().into_owned(),
        Err(_) => format!("error {:?}", error.0),
    }
}

/// Loads the driver and counts the GPUs.
pub(super) fn begin() -> Result<usize, NoGpu> {
    // SAFETY: only looks for a library.
    if !unsafe { sys::is_culib_present() } {
        return Err(NoGpu::NoDriver);
    }
    // Every driver has it, and only its answer says whether the rest is there: without this a library that lacks it would be a panic.
    let lacks = "cuDriverGetVersion";
    // SAFETY: the library is there; the function is looked for and not called.
    if unsafe { sys::culib().get::<unsafe extern "C" fn()>(lacks.as_bytes()) }.is_err() {
        return Err(NoGpu::NotADriver { lacks });
    }
    let mut version = 0;
    // SAFETY: the place is there; this call needs no initialisation.
    let asked = unsafe { sys::cuDriverGetVersion(&mut version) }.result();
    // By its name: a library of before CUDA 6 has no words for it, and one that only programs are linked against refuses everything.
    asked.map_err(|error| NoGpu::None {
        reason: format!("error {:?}", error.0),
    })?;
    if version < OLDEST_DRIVER {
        let have = format!("{}.{}", version / 1000, version % 1000 / 10);
        return Err(NoGpu::OldDriver { have });
    }
    result::init().map_err(none)?;
    let count = result::device::get_count().map_err(none)?;
    match count {
        0 => Err(NoGpu::None {
            reason: "there is none".to_owned(),
        }),
        count => Ok(count as usize),
    }
}

/// Whether there are kernels for a GPU.
pub(super) fn new_enough(facts: &Facts) -> Result<(), NoGpu> {
    match facts.capability < OLDEST_GPU {
        true => Err(NoGpu::OldGpu {
            name: facts.name.clone(),
            capability: facts.capability,
        }),
        false => Ok(()),
    }
}

pub(super) fn facts(ordinal: usize) -> Result<(sys::CUdevice, Facts), DriverError> {
    use sys::CUdevice_attribute as Of;
    let device = result::device::get(ordinal as i32)?;
    // SAFETY: a device that the driver gave.
    let attribute = |of| unsafe { result::device::get_attribute(device, of) };
    let major = attribute(Of::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(Of::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let facts = Facts {
        name: result::device::get_name(device)?,
        capability: (major * 10 + minor) as u32,
        multiprocessors: attribute(Of::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32,
        shared_bytes: attribute(Of::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as u32,
        // SAFETY: as above.
        memory: unsafe { result::device::total_mem(device)? } as u64,
    };
    Ok((device, facts))
}

/// The GPUs of this computer that there are kernels for, with the memory that is free on each now.
///
/// # Errors
/// Why there is none.
pub fn gpus() -> Result<Vec<Gpu>, NoGpu> {
    let mut gpus = Vec::new();
    let mut too_old = None;
    for ordinal in 0..begin()? {
        let (device, facts) = facts(ordinal).map_err(none)?;
        if let Err(why) = new_enough(&facts) {
            too_old.get_or_insert(why);
            continue;
        }
        let free = free_memory(device).map_err(none)?;
        gpus.push(Gpu {
            ordinal,
            facts,
            free,
        });
    }
    match too_old {
        Some(why) if gpus.is_empty() => Err(why),
        _ => Ok(gpus),
    }
}

fn free_memory(device: sys::CUdevice) -> Result<u64, DriverError> {
    // SAFETY: a device that the driver gave; what is retained is released.
    unsafe {
        let context = result::primary_ctx::retain(device)?;
        let free = result::ctx::set_current(context)
            .and_then(|()| result::mem_get_info())
            .map(|(free, _)| free as u64);
        result::primary_ctx::release(device)?;
        free
    }
}
