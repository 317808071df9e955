//! `pdf` in a build without the feature of that name: every PDF is refused.

use crate::DocumentError;
use crate::found::Found;

/// # Errors
/// Always.
pub(crate) fn read(
    name: &str,
    _password: Option<String>,
    _bytes: Vec<u8>,
) -> Result<Found, DocumentError> {
    Err(DocumentError::Unsupported {
        name: name.to_owned(),
        format: "a PDF".into(),
        remedy: "this program was built without the feature `pdf`; convert the file to text, for example with `pdftotext`".into(),
    })
}
