//! The footer of a file in the vault folder: proves that the file is complete, and describes the content.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::end::EndFooter;
use super::folder::Holds;
use super::format::{Footer, MAGIC, MAX_FOOTER, TAIL};
use super::making::open_to_read;

/// Reads the footer of a complete vault of `bytes` bytes and the length of its JSON; or describes the damage.
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
    Ok(footer.map(|footer| (footer, length)).map_err(|_| DAMAGED))
}

/// The content of a file in the vault folder, for lists.
pub(super) struct Described {
    pub(super) document: String,
    pub(super) model: String,
    pub(super) tokens: usize,
    pub(super) holds: Holds,
}

/// The footer of either kind of file.
#[derive(Deserialize)]
#[serde(untagged)]
enum Either {
    Rows(Footer),
    End(EndFooter),
}

/// Describes the file at `path`; `None` if it is damaged.
pub(super) fn describe(path: &Path) -> std::io::Result<Option<Described>> {
    let mut file = open_to_read(path)?;
    let bytes = file.metadata()?.len();
    let Ok((footer, _)) = footer(&mut file, bytes)? else {
        return Ok(None);
    };
    Ok(match footer {
        Either::Rows(footer) => footer.shape().map(|shape| Described {
            document: footer.document,
            model: footer.model,
            tokens: shape.tokens,
            holds: match shape.from {
                Some(_) => Holds::Turns(shape.kind),
                None => Holds::Rows(shape.kind),
            },
        }),
        Either::End(EndFooter { of, .. }) => Some(Described {
            document: of.document,
            model: of.model,
            tokens: of.tokens,
            holds: Holds::End(of.how),
        }),
    })
}
