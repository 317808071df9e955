//! Whether AMX can be used.

#[cfg(target_os = "linux")]
use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::sync::OnceLock;

/// Whether the CPU has AMX and the operating system grants this process its use.
pub(crate) fn available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        let leaf = __cpuid_count(7, 0);
        let (bf16, tiles) = (leaf.edx >> 22 & 1 == 1, leaf.edx >> 24 & 1 == 1);
        is_x86_feature_detected!("avx512f") && bf16 && tiles && request_permission()
    })
}

/// Requests the tile registers from Linux, which grants them per process and on request only.
#[cfg(target_os = "linux")]
fn request_permission() -> bool {
    const ARCH_PRCTL: isize = 158;
    const REQUEST_PERMISSION: usize = 0x1023;
    const TILE_DATA: usize = 18;
    let mut result = ARCH_PRCTL;
    // SAFETY: the system call touches no memory of this process; it clobbers rcx and r11 only.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") result,
            in("rdi") REQUEST_PERMISSION,
            in("rsi") TILE_DATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn request_permission() -> bool {
    false
}
