//! What can go wrong with a file, in one sentence each: what was found, and what the reader can do about it.
//!
//! These sentences are shown as they are, in the terminal and in the window, to people who know nothing of encodings.

use std::io;

/// Why a file cannot be opened as a document.
///
/// `name` is the path as it was given to [`Document::open`](crate::Document::open), or the name given to
/// [`Document::from_bytes`](crate::Document::from_bytes).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DocumentError {
    /// Nothing is at this path.
    #[error("there is no file {name}: check the spelling and the folder")]
    Missing {
        /// The path as given.
        name: String,
    },

    /// The file is there, but this user may not read it.
    #[error(
        "{name} may not be read by this user: change its permissions or copy it to a folder of your own"
    )]
    NoPermission {
        /// The path as given.
        name: String,
    },

    /// The path is a folder.
    #[error("{name} is a folder: choose one file inside it")]
    Folder {
        /// The path as given.
        name: String,
    },

    /// The path is a pipe, a socket or a device, which may never end.
    #[error(
        "{name} is not an ordinary file (a pipe or a device): save its contents to a file and open that"
    )]
    NotAFile {
        /// The path as given.
        name: String,
    },

    /// The system could not read the file.
    #[error(
        "{name} could not be read ({source}): check the disk or copy the file and open the copy"
    )]
    Read {
        /// The path as given.
        name: String,
        /// What the system said.
        source: io::Error,
    },

    /// The file is larger than [`MAX_SOURCE_BYTES`](crate::MAX_SOURCE_BYTES).
    #[error(
        "{name} has {bytes} bytes, more than the {limit} that can be opened: split it into smaller files"
    )]
    TooLarge {
        /// The path as given.
        name: String,
        /// Size of the file in bytes.
        bytes: u64,
        /// The largest size in bytes.
        limit: u64,
    },

    /// Nothing to read: no bytes, or only white space.
    #[error(
        "{name} is empty (no text, only {bytes} bytes of white space or nothing): check that it was saved"
    )]
    Empty {
        /// The path as given.
        name: String,
        /// Size of the file in bytes.
        bytes: u64,
    },

    /// Bytes that are not text.
    #[error(
        "{name} is not text but {looks_like}: Kept reads plain text, Markdown, source code and PDF"
    )]
    Binary {
        /// The path as given.
        name: String,
        /// What it looks like, with its article: "a PNG image".
        looks_like: &'static str,
    },

    /// A document, but in a format that is not supported.
    #[error("{name} is {format}, which Kept does not read yet: {remedy}")]
    Unsupported {
        /// The path as given.
        name: String,
        /// The format, with its article: "a Word document".
        format: &'static str,
        /// How to turn it into something that can be read.
        remedy: &'static str,
    },

    /// A PDF whose pages show no text: usually a scan.
    #[error(
        "{name} has {pages} {} without any text, probably scanned images: recognise the text first, for example with \
         `ocrmypdf --skip-text in.pdf out.pdf`, and open the result", if *.pages == 1 { "page" } else { "pages" }
    )]
    PdfWithoutText {
        /// The path as given.
        name: String,
        /// Number of pages.
        pages: usize,
    },

    /// A PDF whose fonts do not say which letters they draw.
    #[error(
        "{name} draws its text with fonts that do not say which letters they show, so it would be read as nonsense: \
         recognise the text first, for example with `ocrmypdf --force-ocr in.pdf out.pdf`, and open the result"
    )]
    PdfUnreadableFonts {
        /// The path as given.
        name: String,
    },

    /// A PDF that only opens with a password.
    #[error(
        "{name} is protected by a password: open it in a PDF viewer, save or print a copy without one, and open the copy"
    )]
    PdfEncrypted {
        /// The path as given.
        name: String,
    },

    /// A PDF that is damaged.
    #[error(
        "{name} is a damaged PDF ({reason}): fetch it again, or repair it, for example with `qpdf in.pdf out.pdf`, and \
         open the result"
    )]
    PdfBroken {
        /// The path as given.
        name: String,
        /// What is wrong, briefly.
        reason: String,
    },

    /// A PDF that takes too long, damaged or made to.
    #[error(
        "{name} made no progress for {seconds} s, so it is probably damaged: repair it, for example with \
         `qpdf in.pdf out.pdf`, or split it, and open the result"
    )]
    PdfTooSlow {
        /// The path as given.
        name: String,
        /// The limit in seconds.
        seconds: u64,
    },

    /// A PDF that holds more text than any reader could use, damaged or made to.
    #[error(
        "{name} unfolds to more than {limit} bytes, so it is probably damaged: split it and open the parts"
    )]
    PdfTooMuchText {
        /// The path as given.
        name: String,
        /// The limit in bytes.
        limit: u64,
    },
}
