//! Human-readable byte counts, for messages about memory.

/// Formats a byte count with a binary unit: 1.34 GiB, 20.5 GiB, 7.3 MiB.
pub fn format_bytes(bytes: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let unit = UNITS.iter().find(|(_, size)| bytes >= *size);
    match unit {
        Some((name, size)) => {
            let number = bytes as f64 / *size as f64;
            let decimals = if *name == "GiB" && number < 9.995 {
                2
            } else {
                1
            };
            format!("{number:.decimals$} {name}")
        }
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_said_in_the_largest_unit() {
        assert_eq!(format_bytes(0), "0 bytes");
        assert_eq!(format_bytes(1536), "1.5 KiB");
        assert_eq!(format_bytes(5 << 30), "5.00 GiB");
        assert_eq!(format_bytes(12 << 30), "12.0 GiB");
    }
}
