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
mod content;
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

use crate::found::Found;
use crate::{Format, Why, guarded, text};

/// Stack size of the thread, in bytes. Readers recurse once per nested element, to the depth that `xml` allows.
const STACK_BYTES: usize = 32 << 20;

/// The reason if a library gave up.
const SENSELESS: &str = "its structure makes no sense";

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
pub(crate) type ExtractResult<T> = Result<T, Failure>;

/// What a ZIP archive contains: by its parts, not by its name.
pub(crate) fn content(bytes: &[u8]) -> ExtractResult<Content> {
    let found = guarded::run(STACK_BYTES, || content::content(bytes));
    let senseless = Err(Failure::Damaged(SENSELESS));
    found.ok().flatten().unwrap_or(senseless)
}

/// Extracts the text of a document in `format`; of formats that are text, from the decoded text.
pub(crate) fn read(format: Format, bytes: &[u8]) -> Result<Found, Why> {
    let found = guarded::run(STACK_BYTES, || written(format, bytes)).map_err(Why::Read)?;
    let senseless = Err(Failure::Damaged(SENSELESS));
    let written = found
        .unwrap_or(senseless)
        .map_err(|failure| failure.of(format))?;
    let (text, pages) = written.finish();
    if text.trim().is_empty() {
        return Err(Why::WithoutText {
            format: format.described().into(),
        });
    }
    Ok(Found {
        format: Some(format),
        text,
        pages,
        unread: Vec::new(),
        images: Vec::new(),
        headings: Vec::new(),
    })
}

fn written(format: Format, bytes: &[u8]) -> ExtractResult<writer::Writer> {
    let text = || std::str::from_utf8(bytes).map_err(|_| Failure::Damaged(SENSELESS));
    let mut archive = match format {
        Format::Html => return html::document(text()?),
        Format::Subtitles => return subtitles::read(text()?),
        Format::Email => return mail::read(bytes),
        _ => Archive::open(bytes)?,
    };
    match format {
        Format::Docx => docx::read(&mut archive),
        Format::Pptx => pptx::read(&mut archive),
        Format::Xlsx => xlsx::read(&mut archive),
        Format::Epub => epub::read(&mut archive),
        _ => odf::read(&mut archive),
    }
}

/// Whether a format is a text file, whose encoding is found as for all text files.
pub(crate) fn is_text(format: Format) -> bool {
    matches!(format, Format::Html | Format::Subtitles)
}

/// The decoded text of a file in a format that is text.
pub(crate) fn decode(format: Format, bytes: Vec<u8>) -> Result<text::Decoded, Why> {
    match html::declared_encoding(&bytes) {
        Some(encoding) if format == Format::Html => Ok(text::decode_as(encoding, &bytes)),
        _ => text::decode(bytes),
    }
}

impl Failure {
    /// The error about a file in `format`.
    pub(crate) fn of(self, format: Format) -> Why {
        match self {
            Failure::Damaged(reason) => Why::Damaged {
                format: format.described().into(),
                reason: reason.into(),
            },
            Failure::TooMuch(limit) => Why::TooMuchText { limit },
            Failure::Locked => Why::Locked,
            Failure::Protected => Why::Protected,
        }
    }
}
