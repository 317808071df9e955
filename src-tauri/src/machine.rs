//! What the machine has: memory free and in all, where the system says.

/// Bytes free for new use, and bytes in all.
pub fn memory() -> (Option<u64>, Option<u64>) {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    (field(&text, "MemAvailable:"), field(&text, "MemTotal:"))
}

fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    #[test]
    fn fields_of_meminfo() {
        let text = "MemTotal:       24689028 kB\nMemFree:  1 kB\nMemAvailable:   22937404 kB\n";
        assert_eq!(super::field(text, "MemTotal:"), Some(24_689_028 * 1024));
        assert_eq!(super::field(text, "MemAvailable:"), Some(22_937_404 * 1024));
        assert_eq!(super::field(text, "MemLost:"), None);
    }
}
