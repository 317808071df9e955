//! Errors of this crate. Each message is one sentence: the problem, and what the user can do about it.
//!
//! The command line and the app window show these messages unchanged, to users who know nothing about encodings.

use std::borrow::Cow;
use std::io;

use kept_sandbox::Exceeded;
use serde::{Deserialize, Serialize};

use crate::Unrecognised;

/// Why a file cannot be opened as a document.
///
/// `name` is the path given to [`Document::open`](crate::Document::open), or the name given to
/// [`Document::open_with`](crate::Document::open_with) or [`Document::from_bytes`](crate::Document::from_bytes).
#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum DocumentError {
    /// The path does not exist.
    #[error("there is no file {0}: check the spelling and the folder")]
    Missing(String),

    /// The file exists, but the user has no permission to read it.
    #[error(
        "{0} may not be read by this user: change its permissions or copy it to a folder of your own"
    )]
    NoPermission(String),

    /// The path is a folder.
    #[error("{0} is a folder: choose one file inside it")]
    Folder(String),

    /// The path is a pipe, a socket or a device, whose data may never end.
    #[error(
        "{0} is not an ordinary file (a pipe or a device): save its contents to a file and open that"
    )]
    NotAFile(String),

    /// The operating system failed to read the file.
    #[error(
        "{name} could not be read ({}): check the disk or copy the file and open the copy",
        without_number(source)
    )]
    Read {
        /// The path as given.
        name: String,
        /// The error of the operating system.
        #[serde(with = "in_words")]
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

    /// The file is empty or contains only white space.
    #[error("{name} is empty")]
    Empty {
        /// The path as given.
        name: String,
        /// Size of the file in bytes.
        bytes: u64,
    },

    /// The file is binary.
    #[error(
        "{name} is not text but {looks_like}: Kept reads text, Markdown, source code, PDF, Office and OpenDocument \
         files, EPUB, HTML, e-mails and subtitles"
    )]
    Binary {
        /// The path as given.
        name: String,
        /// What the content resembles, with an article: "a PNG image".
        looks_like: Cow<'static, str>,
    },

    /// A document in an unsupported format.
    #[error("{name} is {format}, which Kept does not read yet: {remedy}")]
    Unsupported {
        /// The path as given.
        name: String,
        /// The format, with an article: "a Word document".
        format: Cow<'static, str>,
        /// How to convert the file to a supported format.
        remedy: Cow<'static, str>,
    },

    /// A PDF without text: usually a scan.
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

    /// A PDF whose fonts do not map glyphs to characters.
    #[error(
        "{name} draws its text with fonts that do not say which letters they show, so it would be read as nonsense: \
         recognise the text first, for example with `ocrmypdf --force-ocr in.pdf out.pdf`, and open the result"
    )]
    PdfUnreadableFonts {
        /// The path as given.
        name: String,
        /// Number of pages.
        pages: usize,
    },

    /// An image.
    #[error(
        "{name} is {format}, without text: recognise its text first, for example with `ocrmypdf in.png out.pdf`, and \
         open the result"
    )]
    Image {
        /// The path as given.
        name: String,
        /// The format, with an article: "a PNG image".
        format: Cow<'static, str>,
    },

    /// The text of a scan was not recognised.
    #[error("{name} cannot be read: {why}")]
    #[serde(skip)]
    Recognition {
        /// The path as given.
        name: String,
        /// The reason.
        why: Unrecognised,
    },

    /// A PDF that requires a password.
    #[error(
        "{0} is protected by a password: give the password, or save a copy without one in a PDF viewer and open the copy"
    )]
    PdfEncrypted(String),

    /// The password does not open the PDF.
    #[error(
        "the password does not open {0}: check capital letters and the keyboard's language, and give it again"
    )]
    PdfPassword(String),

    /// A PDF that is damaged.
    #[error(
        "{name} is a damaged PDF ({reason}): fetch it again, or repair it, for example with `qpdf in.pdf out.pdf`, and \
         open the result"
    )]
    PdfBroken {
        /// The path as given.
        name: String,
        /// The defect, in a few words.
        reason: String,
    },

    /// A PDF that takes too long to read; it is damaged or malicious.
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

    /// A document that exceeds a limit of the process that reads it; it is damaged or malicious.
    #[error(
        "{name} cannot be read, because {why}: it is probably damaged, so fetch it again, or save a new copy in the \
         program that made it, and open that"
    )]
    #[serde(skip)]
    Exceeded {
        /// The path as given.
        name: String,
        /// What is exceeded.
        why: Exceeded,
    },

    /// The process that reads documents could not be started.
    #[error("{name} cannot be read, because {why}: close other programs and open it again")]
    #[serde(skip)]
    NotStarted {
        /// The path as given.
        name: String,
        /// The reason.
        why: kept_sandbox::Failure,
    },

    /// A document that requires a password, in a format other than PDF.
    #[error(
        "{0} is protected by a password: open it in the program that made it, save a copy without one, and open the \
         copy"
    )]
    Locked(String),

    /// A book that is encrypted for the reading program of a shop.
    #[error(
        "{0} has copy protection (DRM), so that only the reading program of its shop can open it: use a copy \
         without it"
    )]
    Protected(String),

    /// A document that is damaged, in a format other than PDF.
    #[error(
        "{name} is {format}, but damaged ({reason}): fetch it again, or open it in the program that made it, save a new \
         copy, and open that"
    )]
    Damaged {
        /// The path as given.
        name: String,
        /// The format, with an article: "a Word document".
        format: Cow<'static, str>,
        /// The defect, in a few words.
        reason: Cow<'static, str>,
    },

    /// A document without text, in a format other than PDF.
    #[error(
        "{name} is {format} without any text, perhaps only with images: save it as PDF, recognise the text, for \
         example with `ocrmypdf in.pdf out.pdf`, and open the result"
    )]
    WithoutText {
        /// The path as given.
        name: String,
        /// The format, with an article: "a Word document".
        format: Cow<'static, str>,
    },

    /// A document with more text than the limit, or with parts that unpack to more; it is damaged or malicious.
    #[error(
        "{name} unfolds to more than {limit} bytes, so it is probably damaged: split it and open the parts"
    )]
    TooMuchText {
        /// The path as given.
        name: String,
        /// The limit in bytes.
        limit: u64,
    },
}

impl DocumentError {
    /// The number of pages without text, if [`Document::recognise`](crate::Document::recognise) may find some.
    pub fn pages_to_recognise(&self) -> Option<usize> {
        match self {
            Self::PdfWithoutText { pages, .. } | Self::PdfUnreadableFonts { pages, .. } => {
                Some(*pages)
            }
            Self::Image { .. } => Some(1),
            _ => None,
        }
    }
}

/// The operating system's message without its error number, which means nothing to a user.
fn without_number(error: &io::Error) -> String {
    let text = error.to_string();
    match error.raw_os_error() {
        Some(number) => text.replace(&format!(" (os error {number})"), ""),
        None => text,
    }
}

/// An error of the operating system, between processes.
mod in_words {
    use std::io;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(error: &io::Error, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&super::without_number(error))
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<io::Error, D::Error> {
        String::deserialize(from).map(io::Error::other)
    }
}
