//! PDF to text with pages.

use crate::{DocumentError, Page};

/// The text and the pages of a PDF.
pub(crate) fn read(name: &str, _bytes: Vec<u8>) -> Result<(String, Vec<Page>), DocumentError> {
    Err(DocumentError::Unsupported {
        name: name.to_owned(),
        format: "a PDF",
        remedy: "save it as plain text and open that",
    })
}
