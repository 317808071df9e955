//! Files to text, with exact byte offsets and pages.
//!
//! [`Document::open`] reads a text file in any encoding, Markdown, source code or a PDF, and returns one `String` and
//! the byte range of every page. All offsets of this crate, and of the crates that use it, are bytes in
//! [`Document::text`]. [`Document::passage_at`] finds the sentence or line around a byte, to show a source.
//!
//! [`outline()`] finds the headings.
//!
//! [`Document::join`] joins several documents into one, each unchanged and named.
//!
//! This crate has no models, tokens, chunks or summaries, on purpose. It does not re-wrap or normalise text: the model
//! reads the text of the file, and every offset can be traced back to the file.

mod document;
mod error;
mod joined;
mod outline;
mod passage;
mod pdf;
mod pdf_content;
mod pdf_layout;
mod sniff;
mod text;

pub use document::{Document, Kind, MAX_SOURCE_BYTES, Page};
pub use error::DocumentError;
pub use joined::Part;
pub use outline::{Heading, outline, shorten};
pub use passage::sentences;
