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

/// What the pages of a document are called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum PageKind {
    /// A page of paper.
    #[default]
    Page,
    /// A slide of a presentation.
    Slide,
    /// A sheet of a workbook.
    Sheet,
    /// A chapter of a book.
    Chapter,
}

/// The formats in the order of the enum: the stored name, the name for a sentence, and what the pages are called.
const FORMATS: [(Format, &str, &str, PageKind); 10] = {
    use Format::*;
    use PageKind::*;
    [
        (Docx, "DOCX", "a Word document", Page),
        (Odt, "ODT", "an OpenDocument text", Page),
        (Pptx, "PPTX", "a PowerPoint presentation", Slide),
        (Odp, "ODP", "an OpenDocument presentation", Slide),
        (Xlsx, "XLSX", "an Excel workbook", Sheet),
        (Ods, "ODS", "an OpenDocument spreadsheet", Sheet),
        (Epub, "EPUB", "an EPUB book", Chapter),
        (Html, "HTML", "a web page", Page),
        (Email, "e-mail", "an e-mail", Page),
        (Subtitles, "subtitles", "a subtitle file", Page),
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

    /// What the pages of this format are called. Formats without pages have [`PageKind::Page`].
    pub fn page_kind(self) -> PageKind {
        FORMATS[self as usize].3
    }
}

impl PageKind {
    /// The noun in lower case: "page", "slide", "sheet", "chapter".
    pub fn noun(self) -> &'static str {
        match self {
            PageKind::Page => "page",
            PageKind::Slide => "slide",
            PageKind::Sheet => "sheet",
            PageKind::Chapter => "chapter",
        }
    }
}
