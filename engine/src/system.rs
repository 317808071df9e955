//! Memory figures of the operating system. Every figure is `None` where the system does not report it.

/// Peak resident memory of this process, in bytes.
pub fn peak_resident_bytes() -> Option<u64> {
    kib("/proc/self/status", "VmHWM:")
}

/// Resident memory of this process, in bytes; includes the resident part of mapped files.
pub fn resident_bytes() -> Option<u64> {
    kib("/proc/self/status", "VmRSS:")
}

/// Anonymous resident memory of this process in bytes: allocations in use, without mapped files such as its own code.
pub(crate) fn heap_bytes() -> Option<u64> {
    kib("/proc/self/status", "RssAnon:")
}

/// Memory available to programs without swapping, in bytes.
pub fn available_memory() -> Option<u64> {
    kib("/proc/meminfo", "MemAvailable:")
}

/// Memory of the machine, in bytes.
pub fn total_memory() -> Option<u64> {
    kib("/proc/meminfo", "MemTotal:")
}

/// The value in bytes of a line `name: number kB` of a file.
fn kib(file: &str, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
