//! What the operating system says of memory. Every figure is `None` where it does not say.

/// The most memory this process ever had resident, in bytes.
pub fn peak_resident_bytes() -> Option<u64> {
    kib("/proc/self/status", "VmHWM:")
}

/// Memory this process has resident now, in bytes; mapped files count as far as they are in memory.
pub fn resident_bytes() -> Option<u64> {
    kib("/proc/self/status", "VmRSS:")
}

/// Memory that the process has allocated and used, without mapped files such as its own code, in bytes.
pub(crate) fn heap_bytes() -> Option<u64> {
    kib("/proc/self/status", "RssAnon:")
}

/// Memory that programs could still take without swapping, in bytes.
pub fn available_memory() -> Option<u64> {
    kib("/proc/meminfo", "MemAvailable:")
}

/// Memory of the machine, in bytes.
pub fn total_memory() -> Option<u64> {
    kib("/proc/meminfo", "MemTotal:")
}

/// A line `name: number kB` of a file, in bytes.
fn kib(file: &str, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
