//! Errors of this crate. Each message is one sentence: the problem, and what the user can do about it.
//!
//! The command line and the app window show these messages unchanged, to users who know nothing about encodings.

use std::borrow::Cow;
use std::io;

use kept_sandbox::Exceeded;
use serde::{Deserialize, Serialize};

use crate::Unrecognised;

/// A file that cannot be opened as a document.
#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
#[error("{name} {why}")]
pub struct DocumentError {
    /// The path given to [`Document::open`](crate::Document::open), or the name given to
    /// [`Document::open_with`](crate::Document::open_with) or [`Document::from_bytes`](crate::Document::from_bytes).
    pub name: String,
    /// The reason.
    pub why: Why,
}

/// Why a file cannot be opened, as a sentence without its subject. `format` and `looks_like` have an article: "a PNG
/// image".
#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
#[allow(missing_docs)] // the messages say it
#[non_exhaustive]
pub enum Why {
    #[error("does not exist: check the spelling and the folder")]
    Missing,
    #[error(
        "may not be read by this user: change its permissions or copy it to a folder of your own"
    )]
    NoPermission,
    #[error("is a folder: choose one file inside it")]
    Folder,
    /// Its data may never end.
    #[error(
        "is not an ordinary file (a pipe or a device): save its contents to a file and open that"
    )]
    NotAFile,
    #[error(
        "could not be read ({}): check the disk or copy the file and open the copy",
        without_number(.0)
    )]
    Read(#[serde(with = "in_words")] io::Error),
    #[error(
        "has {bytes} bytes, more than the {limit} that can be opened: split it into smaller files"
    )]
    TooLarge { bytes: u64, limit: u64 },
    /// Or the file contains only white space.
    #[error("is empty")]
    Empty,
    #[error(
        "is not text but {looks_like}: Kept reads text, Markdown, source code, PDF, Office and OpenDocument files, \
         EPUB, HTML, e-mails and subtitles"
    )]
    Binary { looks_like: Cow<'static, str> },
    #[error("is {format}, which Kept does not read yet: {remedy}")]
    Unsupported {
        format: Cow<'static, str>,
        remedy: Cow<'static, str>,
    },
    #[error(
        "has {pages} {} without any text, probably scanned images: recognise the text first, for example with \
         `ocrmypdf --skip-text in.pdf out.pdf`, and open the result", if *.pages == 1 { "page" } else { "pages" }
    )]
    PdfWithoutText { pages: usize },
    #[error(
        "draws its text with fonts that do not say which letters they show, so it would be read as nonsense: recognise \
         the text first, for example with `ocrmypdf --force-ocr in.pdf out.pdf`, and open the result"
    )]
    PdfUnreadableFonts { pages: usize },
    #[error(
        "is {format}, without text: recognise its text first, for example with `ocrmypdf in.png out.pdf`, and open the \
         result"
    )]
    Image { format: Cow<'static, str> },
    #[error("cannot be read: {0}")]
    #[serde(skip)]
    Recognition(Unrecognised),
    #[error(
        "is protected by a password: give the password, or save a copy without one in a PDF viewer and open the copy"
    )]
    PdfEncrypted,
    #[error(
        "is protected, and this password does not open it: check capital letters and the keyboard's language, and give \
         it again"
    )]
    PdfPassword,
    #[error(
        "is a damaged PDF ({reason}): fetch it again, or repair it, for example with the command qpdf in.pdf out.pdf, \
         and open the result"
    )]
    PdfBroken { reason: Cow<'static, str> },
    #[error(
        "made no progress for {seconds} s, so it is probably damaged: repair it, for example with \
         the command qpdf in.pdf out.pdf, or split it, and open the result"
    )]
    PdfTooSlow { seconds: u64 },
    /// The file is damaged or malicious.
    #[error(
        "cannot be read, because {0}: it is probably damaged, so fetch it again, or save a new copy in the program \
         that made it, and open that"
    )]
    #[serde(skip)]
    Exceeded(Exceeded),
    /// Of the process that reads documents.
    #[error("cannot be read, because {0}: close other programs and open it again")]
    #[serde(skip)]
    NotStarted(kept_sandbox::Failure),
    /// In a format other than PDF.
    #[error(
        "is protected by a password: open it in the program that made it, save a copy without one, and open the copy"
    )]
    Locked,
    #[error(
        "has copy protection (DRM), so that only the reading program of its shop can open it: use a copy without it"
    )]
    Protected,
    #[error(
        "is {format}, but damaged ({reason}): fetch it again, or open it in the program that made it, save a new copy, \
         and open that"
    )]
    Damaged {
        format: Cow<'static, str>,
        reason: Cow<'static, str>,
    },
    /// In a format other than PDF.
    #[error(
        "is {format} without any text, perhaps only with images: save it as PDF, recognise the text, for example with \
         `ocrmypdf in.pdf out.pdf`, and open the result"
    )]
    WithoutText { format: Cow<'static, str> },
    /// Also of parts that an archive unpacks.
    #[error(
        "unfolds to more than {limit} bytes, so it is probably damaged: split it and open the parts"
    )]
    TooMuchText { limit: u64 },
}

impl Why {
    /// The error about the file `name`.
    pub(crate) fn about(self, name: &str) -> DocumentError {
        DocumentError {
            name: name.to_owned(),
            why: self,
        }
    }
}

impl DocumentError {
    /// The number of pages without text, if [`Document::recognise`](crate::Document::recognise) may find some.
    pub fn pages_to_recognise(&self) -> Option<usize> {
        match self.why {
            Why::PdfWithoutText { pages } | Why::PdfUnreadableFonts { pages } => Some(pages),
            Why::Image { .. } => Some(1),
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
