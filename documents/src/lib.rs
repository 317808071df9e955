//! Files to text, with exact byte offsets and pages.
//!
//! [`Document::open`] reads a text file in any encoding, Markdown, source code or a PDF and gives one `String` plus
//! the byte range of every page in it. All offsets of this crate, and of everything built on it, are bytes in
//! [`Document::text`]. [`Document::passage_at`] finds the sentence or line around a byte, for showing a source.
//!
//! [`Document::join`] makes several one, each whole and named.
//!
//! What is absent on purpose: models, tokens, chunks, summaries. Nothing is re-wrapped or normalised here: what
//! the file says is what the model reads, and an offset can always be traced back.

mod document;
mod error;
mod joined;
mod passage;
mod pdf;
mod pdf_content;
mod pdf_layout;
mod sniff;
mod text;

pub use document::{Document, Kind, MAX_SOURCE_BYTES, Page};
pub use error::DocumentError;
pub use joined::Part;
