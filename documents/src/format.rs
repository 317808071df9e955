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

impl Format {
    /// All formats.
    pub const ALL: [Format; 10] = [
        Format::Docx,
        Format::Odt,
        Format::Pptx,
        Format::Odp,
        Format::Xlsx,
        Format::Ods,
        Format::Epub,
        Format::Html,
        Format::Email,
        Format::Subtitles,
    ];

    /// A short name that does not change between versions, to store and to show: "DOCX", "EPUB", "subtitles".
    pub fn name(self) -> &'static str {
        match self {
            Format::Docx => "DOCX",
            Format::Odt => "ODT",
            Format::Pptx => "PPTX",
            Format::Odp => "ODP",
            Format::Xlsx => "XLSX",
            Format::Ods => "ODS",
            Format::Epub => "EPUB",
            Format::Html => "HTML",
            Format::Email => "e-mail",
            Format::Subtitles => "subtitles",
        }
    }

    /// The format with this [`name`](Self::name).
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }

    /// The format for a sentence, with its article.
    pub(crate) fn described(self) -> &'static str {
        match self {
            Format::Docx => "a Word document",
            Format::Odt => "an OpenDocument text",
            Format::Pptx => "a PowerPoint presentation",
            Format::Odp => "an OpenDocument presentation",
            Format::Xlsx => "an Excel workbook",
            Format::Ods => "an OpenDocument spreadsheet",
            Format::Epub => "an EPUB book",
            Format::Html => "a web page",
            Format::Email => "an e-mail",
            Format::Subtitles => "a subtitle file",
        }
    }

    /// What the pages of this format are called. Formats without pages have [`PageKind::Page`].
    pub fn page_kind(self) -> PageKind {
        match self {
            Format::Pptx | Format::Odp => PageKind::Slide,
            Format::Xlsx | Format::Ods => PageKind::Sheet,
            Format::Epub => PageKind::Chapter,
            _ => PageKind::Page,
        }
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
