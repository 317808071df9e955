//! ZIP archives of hostile origin: their parts in memory, with a limit on the unpacked bytes.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{Cursor, Read as _};

use encoding_rs::{Encoding, UTF_8};
use zip::ZipArchive;
use zip::result::ZipError;

use super::{ExtractResult, Failure};
use crate::{Format, MAX_SOURCE_BYTES};

const UNREADABLE: Failure = Failure::Damaged("its parts cannot be unpacked");
pub(super) const SAVE_AS_PDF: &str = "save it as PDF and open that";
/// Where an EPUB names its package.
pub(super) const CONTAINER: &str = "META-INF/container.xml";

/// What an archive contains.
pub(crate) enum Content {
    /// A document that can be read.
    Document(Format),
    /// A document in another format: the format with an article, and how to convert it.
    Other(&'static str, &'static str),
    /// Files.
    Files,
}

/// An archive. All names are compared without case, as Office does.
pub(crate) struct Archive<'a> {
    zip: ZipArchive<Cursor<&'a [u8]>>,
    names: HashMap<String, usize>,
    /// Bytes that may still be unpacked.
    left: u64,
}

impl<'a> Archive<'a> {
    /// Reads the list of parts.
    ///
    /// # Errors
    /// [`Failure::Damaged`] if there is none.
    pub(crate) fn open(bytes: &'a [u8]) -> ExtractResult<Self> {
        let cut = Failure::Damaged("its end is missing");
        let zip = ZipArchive::new(Cursor::new(bytes)).map_err(|_| cut)?;
        let mut names = HashMap::with_capacity(zip.len().min(1 << 16));
        for index in 0..zip.len() {
            if let Some(Ok(name)) = zip.name_for_index(index) {
                names.entry(key(&name)).or_insert(index);
            }
        }
        Ok(Self {
            zip,
            names,
            left: MAX_SOURCE_BYTES,
        })
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.names.contains_key(&key(name))
    }

    /// The bytes of a part; `None` if there is no such part. The size that the archive claims is not trusted.
    ///
    /// # Errors
    /// [`Failure::TooMuch`] if all parts read so far have more than [`MAX_SOURCE_BYTES`].
    pub(super) fn read(&mut self, name: &str) -> ExtractResult<Option<Vec<u8>>> {
        let Some(&index) = self.names.get(&key(name)) else {
            return Ok(None);
        };
        let file = self.zip.by_index(index).map_err(|error| match error {
            ZipError::UnsupportedArchive(ZipError::PASSWORD_REQUIRED) => Failure::Locked,
            _ => UNREADABLE,
        })?;
        let mut bytes = Vec::new();
        file.take(self.left + 1)
            .read_to_end(&mut bytes)
            .map_err(|_| UNREADABLE)?;
        self.left = (self.left.checked_sub(bytes.len() as u64))
            .ok_or(Failure::TooMuch(MAX_SOURCE_BYTES))?;
        Ok(Some(bytes))
    }

    /// A part as text; `None` if there is no such part.
    pub(super) fn text(&mut self, name: &str) -> ExtractResult<Option<String>> {
        Ok(self.read(name)?.map(xml_text))
    }

    /// A part without which there is no document.
    pub(super) fn required(&mut self, name: &str) -> ExtractResult<String> {
        self.text(name)?
            .ok_or(Failure::Damaged("a part of it is missing"))
    }
}

fn key(name: &str) -> String {
    name.replace('\\', "/")
        .trim_start_matches('/')
        .to_ascii_lowercase()
}

/// Decodes XML: by its byte-order mark, by its declaration, else as UTF-8.
pub(super) fn xml_text(bytes: Vec<u8>) -> String {
    let encoding = match Encoding::for_bom(&bytes) {
        Some((encoding, _)) => encoding,
        None => declared(&bytes).unwrap_or(UTF_8),
    };
    if encoding == UTF_8 && !bytes.starts_with(b"\xef\xbb\xbf") {
        return String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
    }
    match encoding.decode(&bytes).0 {
        Cow::Borrowed(text) => text.to_owned(),
        Cow::Owned(text) => text,
    }
}

/// The encoding that an XML declaration names.
pub(super) fn declared(bytes: &[u8]) -> Option<&'static Encoding> {
    let head = String::from_utf8_lossy(&bytes[..bytes.len().min(200)]).into_owned();
    let declaration = head
        .trim_start()
        .strip_prefix("<?xml")?
        .split("?>")
        .next()?;
    let value = declaration.split("encoding").nth(1)?.trim_start();
    let value = value.strip_prefix('=')?.trim_start();
    let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    Encoding::for_label(value[1..].split(quote).next()?.as_bytes())
}
