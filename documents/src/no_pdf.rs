//! `pdf` in a build without the feature of that name: every PDF is refused.

use crate::{DocumentError, Page};

/// As in a build that reads PDFs.
pub(crate) struct PdfText {
    pub text: String,
    pub pages: Vec<Page>,
    pub unread: Vec<u32>,
}

/// # Errors
/// Always.
pub(crate) fn read(name: &str, _bytes: Vec<u8>) -> Result<PdfText, DocumentError> {
    Err(DocumentError::Unsupported {
        name: name.to_owned(),
        format: "a PDF",
        remedy: "this program was built without the feature `pdf`; convert the file to text, for example with `pdftotext`",
    })
}
