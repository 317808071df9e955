//! Files to text, with exact byte offsets and pages.
//!
//! [`Document::open`] reads a text file in any encoding, Markdown, source code, a PDF, or a document of one of the
//! [`Format`]s (Office and OpenDocument files, EPUB, HTML, e-mail, subtitles), and returns one `String` and the byte
//! range of every page, slide, sheet or chapter. All offsets of this crate, and of the crates that use it, are bytes in
//! [`Document::text`]. [`Document::passage_at`] finds the sentence or line around a byte, to show a source.
//!
//! [`outline()`] finds the headings.
//!
//! [`Document::join`] joins several documents into one, each unchanged and named.
//!
//! The files can be hostile. A program that passes [`READING`] to [`kept_sandbox::enter`] reads formats that need a
//! parser in a process of their own.
//!
//! This crate has no models, tokens, chunks or summaries, on purpose. It does not re-wrap or normalise text: the model
//! reads the text of the file, and every offset can be traced back to the file; only of a PDF, page numbers and repeated
//! running heads are left out, and words that a line divides are joined. Formats whose text is inside of markup
//! become plain text with the marks of Markdown for headings and lists.

mod confined;
mod document;
mod error;
mod extract;
mod format;
mod found;
mod guarded;
mod hyphens;
mod joined;
mod outline;
mod passage;
mod pdf;
mod pdf_annotations;
mod pdf_bidi;
mod pdf_bookmarks;
mod pdf_cmaps;
mod pdf_content;
mod pdf_headings;
mod pdf_layout;
mod pdf_repair;
mod pdf_tables;
mod pdf_to_unicode;
mod recognise;
mod running_heads;
mod sniff;
mod text;

pub use confined::READING;
pub use document::{Document, Kind, MAX_SOURCE_BYTES, Page};
pub use error::{DocumentError, Why};
pub use format::Format;
pub use joined::Part;
pub use outline::{Heading, outline, shorten};
pub use passage::sentences;
pub use recognise::{Recognition, Unrecognised, recognised_languages};
