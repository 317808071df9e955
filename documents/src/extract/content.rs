//! What a ZIP archive is.

use super::archive::{Archive, CONTAINER, Content, SAVE_AS_PDF};
use super::{ExtractResult, opc};
use crate::Format;

/// What a ZIP archive contains: by its parts, not by its name.
pub(super) fn content(bytes: &[u8]) -> ExtractResult<Content> {
    let mut archive = Archive::open(bytes)?;
    if archive.has("mimetype") {
        let kind = archive.text("mimetype")?.unwrap_or_default();
        let kind = kind.trim();
        let open = kind.strip_prefix("application/vnd.oasis.opendocument.");
        match open.map(|kind| kind.trim_end_matches("-template")) {
            Some("text" | "text-master" | "text-web") => return Ok(Content::Document(Format::Odt)),
            Some("spreadsheet") => return Ok(Content::Document(Format::Ods)),
            Some("presentation") => return Ok(Content::Document(Format::Odp)),
            Some(_) => return Ok(Content::Other("an OpenDocument drawing", SAVE_AS_PDF)),
            None if kind == "application/epub+zip" => return Ok(Content::Document(Format::Epub)),
            None => {}
        }
    }
    if archive.has("[Content_Types].xml") {
        return opc::content(&mut archive);
    }
    Ok(if archive.has(CONTAINER) {
        Content::Document(Format::Epub)
    } else if archive.has("Index/Document.iwa") {
        Content::Other(
            "an iWork document",
            "export it as PDF, Word, PowerPoint or Excel and open that",
        )
    } else {
        Content::Files
    })
}
