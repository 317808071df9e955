//! Documents in markup to text: office files, books, web pages, e-mail and subtitles.
//!
//! All formats become the same plain text: one paragraph per line, a blank line between paragraphs, headings as in
//! Markdown, list items and table rows on lines of their own.
//!
//! ```text
//! file --archive--> part --xml / html--> builder: tables, cells --writer--> text, pages
//! ```
//!
//! The files can be hostile. Archives are read with a limit on the unpacked bytes (`archive`), markup with a limit on
//! its depth (`xml`), and text with a limit on its length (`writer`). The work runs on a thread of its own, so that a
//! panic in a library is an error about a damaged file.

mod archive;
mod builder;
mod docx;
mod docx_styles;
mod epub;
mod html;
mod html_names;
mod mail;
mod number_format;
mod numbering;
mod odf;
mod odf_lists;
mod opc;
mod pptx;
mod sheet;
mod subtitles;
mod writer;
mod xlsx;
mod xml;

use archive::Archive;
pub(crate) use archive::Content;

use crate::{DocumentError, Format, Page, guarded, text};

/// Stack size of the thread, in bytes. Readers recurse once per nested element, to the depth that `xml` allows.
const STACK_BYTES: usize = 32 << 20;

/// The reason if a library gave up.
const SENSELESS: &str = "its structure makes no sense";

/// The text of a document in markup.
pub(crate) struct Extracted {
    pub text: String,
    pub pages: Vec<Page>,
    /// The encoding of a file that is text itself; else UTF-8.
    pub encoding: &'static str,
    /// Length of the byte-order mark of the file in bytes.
    pub skipped_bytes: usize,
    /// Number of U+FFFD that replace malformed bytes of the file.
    pub malformed: usize,
}

/// Why the text cannot be extracted.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The file is damaged; the reason in a few words.
    Damaged(&'static str),
    /// The file unfolds to more than a limit in bytes.
    TooMuch(u64),
    /// The file requires a password.
    Locked,
    /// The file is encrypted for the reading program of a shop.
    Protected,
}

/// The result of a step of the extraction.
pub(crate) type Read<T> = Result<T, Failure>;

/// What a ZIP archive contains: by its parts, not by its name.
///
/// # Errors
/// A [`Failure`] if the parts cannot be read.
pub(crate) fn content(bytes: &[u8]) -> Read<Content> {
    let found = guarded::run(STACK_BYTES, || archive::content(bytes));
    let senseless = Err(Failure::Damaged(SENSELESS));
    found.ok().flatten().unwrap_or(senseless)
}

/// Extracts the text of a document in `format`. `name` is used in error messages.
pub(crate) fn read(name: &str, format: Format, bytes: Vec<u8>) -> Result<Extracted, DocumentError> {
    match format {
        Format::Html | Format::Subtitles => from_text(name, format, bytes),
        _ => {
            let found = guarded(name, format, || from_binary(format, &bytes))?;
            let (text, pages) = found.finish();
            let extracted = Extracted {
                text,
                pages,
                encoding: "UTF-8",
                skipped_bytes: 0,
                malformed: 0,
            };
            extracted.checked(name, format)
        }
    }
}

fn from_binary(format: Format, bytes: &[u8]) -> Read<writer::Writer> {
    if format == Format::Email {
        return mail::read(bytes);
    }
    let mut archive = Archive::open(bytes)?;
    match format {
        Format::Docx => docx::read(&mut archive),
        Format::Pptx => pptx::read(&mut archive),
        Format::Xlsx => xlsx::read(&mut archive),
        Format::Epub => epub::read(&mut archive),
        _ => odf::read(&mut archive),
    }
}

/// Formats that are text files: their encoding is found as for all text files.
fn from_text(name: &str, format: Format, bytes: Vec<u8>) -> Result<Extracted, DocumentError> {
    let decoded = match html::declared_encoding(&bytes) {
        Some(encoding) if format == Format::Html => text::decode_as(encoding, &bytes),
        _ => text::decode(name, bytes)?,
    };
    let found = guarded(name, format, || match format {
        Format::Html => html::document(&decoded.text),
        _ => subtitles::read(&decoded.text),
    })?;
    let (text, pages) = found.finish();
    let extracted = Extracted {
        text,
        pages,
        encoding: decoded.encoding,
        skipped_bytes: decoded.skipped_bytes,
        malformed: decoded.malformed,
    };
    extracted.checked(name, format)
}

impl Extracted {
    fn checked(self, name: &str, format: Format) -> Result<Self, DocumentError> {
        if self.text.trim().is_empty() {
            return Err(DocumentError::WithoutText {
                name: name.to_owned(),
                format: format.described(),
            });
        }
        Ok(self)
    }
}

/// Runs `work` on its own thread and makes its failure a sentence.
fn guarded<T: Send>(
    name: &str,
    format: Format,
    work: impl FnOnce() -> Read<T> + Send,
) -> Result<T, DocumentError> {
    let done = guarded::run(STACK_BYTES, work).map_err(|source| DocumentError::Read {
        name: name.to_owned(),
        source,
    })?;
    done.unwrap_or(Err(Failure::Damaged(SENSELESS)))
        .map_err(|failure| failure.of(name, format))
}

impl Failure {
    /// The error about the file `name`.
    pub(crate) fn of(self, name: &str, format: Format) -> DocumentError {
        let name = name.to_owned();
        let format = format.described();
        match self {
            Failure::Damaged(reason) => DocumentError::Damaged {
                name,
                format,
                reason,
            },
            Failure::TooMuch(limit) => DocumentError::TooMuchText { name, limit },
            Failure::Locked => DocumentError::Locked { name },
            Failure::Protected => DocumentError::Protected { name },
        }
    }
}
