//! Headers of the hub's responses.

use std::time::Duration;

use reqwest::header::{self, HeaderMap, HeaderName};

use crate::text::is_hex;

pub(super) fn text(headers: &HeaderMap, name: HeaderName) -> Option<String> {
    Some(headers.get(name)?.to_str().ok()?.trim().to_owned())
}

pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = text(headers, header::RETRY_AFTER)?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// The SHA-256 in an ETag, for files in the hub's large storage.
pub(super) fn sha256_of_etag(etag: &str) -> Option<String> {
    let etag = etag.trim_start_matches("W/").trim_matches('"');
    is_hex(etag, 64).then(|| etag.to_ascii_lowercase())
}

/// First byte and total of `bytes 5-9/10`; the total may be unknown.
pub(super) fn content_range(range: &str) -> Option<(u64, Option<u64>)> {
    let (bounds, total) = range.strip_prefix("bytes ")?.split_once('/')?;
    let (start, _) = bounds.split_once('-')?;
    Some((start.trim().parse().ok()?, total.trim().parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etags_and_content_ranges_are_parsed() {
        let hash = "AB".repeat(32);
        let small = Some("ab".repeat(32));
        assert_eq!(sha256_of_etag(&format!("\"{hash}\"")), small);
        assert_eq!(sha256_of_etag(&format!("W/\"{hash}\"")), small);
        assert_eq!(sha256_of_etag(&"a".repeat(40)), None);
        assert_eq!(content_range("bytes 5-9/10"), Some((5, Some(10))));
        assert_eq!(content_range("bytes 5-9/*"), Some((5, None)));
        assert_eq!(content_range("bytes */10"), None);
    }
}
