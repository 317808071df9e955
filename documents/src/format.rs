//! Formats whose text is extracted, and what their pages are called.

use serde::{Deserialize, Serialize};

/// A format whose text is extracted from markup, besides PDF.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Format {
    /// A Word document.
    Docx,
    /// An OpenDocument text.
    Odt,
    /// A PowerPoint presentation.
    Pptx,
    /// An OpenDocument presentation.
    Odp,
    /// An Excel workbook.
    Xlsx,
    /// An OpenDocument spreadsheet.
    Ods,
    /// An EPUB book.
    Epub,
    /// A web page.
    Html,
    /// An e-mail.
    Email,
    /// Subtitles: SubRip or WebVTT.
    Subtitles,
}

/// The formats in the order of the enum: the stored name, the name for a sentence, and what the pages are called.
const FORMATS: [(Format, &str, &str, &str); 10] = {
    use Format::*;
    [
        (Docx, "DOCX", "a Word document", "page"),
        (Odt, "ODT", "an OpenDocument text", "page"),
        (Pptx, "PPTX", "a PowerPoint presentation", "slide"),
        (Odp, "ODP", "an OpenDocument presentation", "slide"),
        (Xlsx, "XLSX", "an Excel workbook", "sheet"),
        (Ods, "ODS", "an OpenDocument spreadsheet", "sheet"),
        (Epub, "EPUB", "an EPUB book", "chapter"),
        (Html, "HTML", "a web page", "page"),
        (Email, "e-mail", "an e-mail", "page"),
        (Subtitles, "subtitles", "a subtitle file", "page"),
    ]
};

impl Format {
    /// A short name that does not change between versions, to store and to show: "DOCX", "EPUB", "subtitles".
    pub fn name(self) -> &'static str {
        FORMATS[self as usize].1
    }

    /// The format with this [`name`](Self::name).
    pub fn from_name(name: &str) -> Option<Self> {
        let found = FORMATS.iter().find(|format| format.1 == name);
        found.map(|format| format.0)
    }

    /// The format for a sentence, with its article.
    pub(crate) fn described(self) -> &'static str {
        FORMATS[self as usize].2
    }

    /// What a page of this format is called: "page", "slide", "sheet" or "chapter". Formats without pages have "page".
    pub(crate) fn page_noun(self) -> &'static str {
        FORMATS[self as usize].3
    }
}
