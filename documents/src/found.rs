//! What a parser is given, and what it finds.

use serde::{Deserialize, Serialize};

use crate::{Format, Heading, Page};

/// Separator between the pages of a PDF; it belongs to the page before it.
pub(crate) const BETWEEN_PAGES: &str = "\n\n";

/// What is to be read.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Source {
    /// A PDF.
    Pdf,
    /// A ZIP archive, whose parts identify the format.
    Archive,
    /// A document in markup; of formats that are text, the decoded text.
    Markup(Format),
}

/// What was read.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Found {
    /// The format; `None` for a PDF.
    pub format: Option<Format>,
    #[serde(skip)]
    pub text: String,
    pub pages: Vec<Page>,
    /// Numbers of the pages that could not be read; their ranges contain no text.
    pub unread: Vec<u32>,
    /// Numbers of the pages that show an image and have no text.
    pub images: Vec<u32>,
    /// As in [`crate::Document::headings`].
    pub headings: Vec<Heading>,
}
