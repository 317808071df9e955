//! Formats numbers and lists for messages, and checks digits.

/// Formats a number of bytes: `4.8 MiB`.
pub fn bytes(count: u64) -> String {
    let number = count as f64;
    match count {
        0..1024 => format!("{count} bytes"),
        1024..1_048_576 => format!("{:.1} KiB", number / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", number / 1_048_576.0),
        _ => format!("{:.2} GiB", number / 1_073_741_824.0),
    }
}

/// Formats a count: `12,345`.
pub fn count(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a duration: `45 s`, `3 min 20 s`.
pub fn duration(seconds: f64) -> String {
    let whole = seconds.clamp(0.0, 1e9).round() as u64;
    match whole {
        0..60 => format!("{whole} s"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}

/// Most names listed in a sentence.
const MAX_LISTED_NAMES: usize = 12;

/// `a, b, c and 3 more`.
pub(crate) fn list(names: &[String]) -> String {
    let shown = names[..names.len().min(MAX_LISTED_NAMES)].join(", ");
    match names.len().saturating_sub(MAX_LISTED_NAMES) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// `it has a, b`, or that the repository has no GGUF file.
pub(crate) fn offer(names: &[String]) -> String {
    match names {
        [] => "it has no GGUF file".to_owned(),
        names => format!("it has {}", list(names)),
    }
}

/// Whether a text consists of so many hexadecimal digits.
pub(crate) fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_lists_are_formatted() {
        assert_eq!(bytes(0), "0 bytes");
        assert_eq!(bytes(1023), "1023 bytes");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(5 << 20), "5.0 MiB");
        assert_eq!(bytes(5 << 30), "5.00 GiB");
        assert_eq!(count(7), "7");
        assert_eq!(count(1234567), "1,234,567");
        assert_eq!(duration(3.2), "3 s");
        assert_eq!(duration(200.0), "3 min 20 s");
        assert_eq!(duration(7300.0), "2 h 1 min");
        let names: Vec<String> = (0..14).map(|n| n.to_string()).collect();
        assert_eq!(
            list(&names),
            "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 2 more"
        );
        assert_eq!(offer(&[]), "it has no GGUF file");
    }
}
