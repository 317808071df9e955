//! The footer of a file in the vault folder: proves that the file is complete.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use serde::de::DeserializeOwned;

use super::format::{MAGIC, MAX_FOOTER, TAIL};

/// Reads the footer of a complete vault of `bytes` bytes and counts the bytes before it; or describes the damage.
pub(super) fn footer<F: DeserializeOwned>(
    file: &mut File,
    bytes: u64,
) -> std::io::Result<Result<(F, u64), &'static str>> {
    const DAMAGED: &str = "its end is damaged";
    let Some(end) = bytes.checked_sub(TAIL as u64) else {
        return Ok(Err("it is too short"));
    };
    let mut tail = [0; TAIL];
    file.seek(SeekFrom::Start(end))?;
    file.read_exact(&mut tail)?;
    let (length, rest) = tail.split_first_chunk::<8>().expect("a tail is longer");
    let (checksum, magic) = rest.split_first_chunk::<4>().expect("a tail is longer");
    if magic != MAGIC {
        return Ok(Err(if magic.starts_with(&MAGIC[..MAGIC.len() - 1]) {
            "it is of another version"
        } else {
            "it was not written to its end"
        }));
    }
    let length = u64::from_le_bytes(*length);
    let Some(start) = (length <= MAX_FOOTER)
        .then(|| end.checked_sub(length))
        .flatten()
    else {
        return Ok(Err(DAMAGED));
    };
    let mut json = vec![0; length as usize];
    file.seek(SeekFrom::Start(start))?;
    file.read_exact(&mut json)?;
    if u32::from_le_bytes(*checksum) != crc32fast::hash(&json) {
        return Ok(Err(DAMAGED));
    }
    let footer = serde_json::from_slice(&json);
    Ok(footer.map(|footer| (footer, start)).map_err(|_| DAMAGED))
}
