//! Fault injection for tests: with `KEPT_GPU_FAULT=N` in the environment a kernel that traps runs before the Nth
//! launch. From then on the driver refuses all calls of this process.

use std::ffi::{CStr, CString, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::{result, sys};

use super::found::{NoGpu, unusable};

const VARIABLE: &str = "KEPT_GPU_FAULT";

/// PTX, which the driver compiles; machine code for all GPUs would be one more kernel in every build.
const TRAP: &CStr = c".version 6.3
.target sm_75
.address_size 64
.visible .entry kept_trap()
{
    trap;
    ret;
}
";

/// The trapping kernel, and the launch before which it runs. A captured graph is one launch.
pub(super) struct Fault {
    kernel: sys::CUfunction,
    at: u64,
    launches: AtomicU64,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Fault {}
// SAFETY: as above; the counter is atomic.
unsafe impl Sync for Fault {}

impl Fault {
    /// The fault that the environment requests, if any.
    ///
    /// # Safety
    /// A context is current and is not destroyed.
    pub(super) unsafe fn from_env() -> Result<Option<Self>, NoGpu> {
        let Ok(at) = std::env::var(VARIABLE) else {
            return Ok(None);
        };
        let at = at.parse().map_err(|_| NoGpu::None {
            reason: format!("{VARIABLE}={at} is no number of a launch"),
        })?;
        // SAFETY: NUL-terminated text; the module is never unloaded.
        let kernel = unsafe {
            let module = result::module::load_data(TRAP.as_ptr().cast::<c_void>());
            let name = CString::new("kept_trap").expect("no zeros");
            module.and_then(|module| result::module::get_function(module, name))
        };
        Ok(Some(Self {
            kernel: kernel.map_err(unusable)?,
            at,
            launches: AtomicU64::new(0),
        }))
    }

    /// Call this before every launch.
    ///
    /// # Safety
    /// `stream` belongs to the context of this fault's kernel, and that context is current.
    pub(super) unsafe fn before_launch(
        &self,
        stream: sys::CUstream,
    ) -> Result<(), cudarc::driver::DriverError> {
        if self.launches.fetch_add(1, Ordering::Relaxed) + 1 != self.at {
            return Ok(());
        }
        // SAFETY: a kernel without parameters; the caller's promise for the rest.
        unsafe { result::launch_kernel(self.kernel, (1, 1, 1), (1, 1, 1), 0, stream, &mut []) }
    }
}
