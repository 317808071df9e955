//! One opened file: its text, its pages, and where it came from.
//!
//! Reading the file and choosing who decodes it happens here; decoding is in `text` and `pdf`, finding out what a file
//! is in `sniff`.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;

use crate::{DocumentError, Part, passage, pdf, sniff, text};

/// The largest file that is opened, in bytes: 512 MiB.
///
/// At about four bytes a token that is a hundred million tokens, far beyond any model, so nothing is lost; and a file
/// opened by mistake cannot fill the memory.
pub const MAX_SOURCE_BYTES: u64 = 512 << 20;

/// What sort of document a file is. It decides how passages are cut, and nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// Prose in plain text.
    PlainText,
    /// Markdown, kept verbatim.
    Markdown,
    /// Source code, data or markup whose unit is the line, kept verbatim.
    SourceCode {
        /// The language as people write it ("Rust", "Python", "CSV").
        language: &'static str,
    },
    /// Text taken out of a PDF.
    Pdf,
}

/// A page of a document that has pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Place in the file, from 1. Not the number printed on the page.
    pub number: u32,
    /// Bytes of [`Document::text`]. Pages follow each other without a gap: the blank line that ends a page belongs to it.
    pub range: Range<usize>,
}

/// A file as text.
///
/// ```text
/// file   EF BB BF  H  e  l  l  o  \r \n  ...        source_bytes = 10, skipped_bytes = 3
/// text             H  e  l  l  o  \r \n  ...        in UTF-8: file byte = text byte + skipped_bytes
/// ```
#[derive(Debug, Clone)]
pub struct Document {
    /// The file's own name, without its folder.
    pub name: String,
    /// What sort of document it is.
    pub kind: Kind,
    /// The whole text. Line ends are those of the file.
    pub text: String,
    /// The pages in order, tiling `text`; empty where the format has no pages.
    pub pages: Vec<Page>,
    /// The encoding of the file ("UTF-8", "UTF-16LE", "windows-1252", ...); "PDF" for a PDF.
    pub encoding: &'static str,
    /// Size of the file in bytes.
    pub source_bytes: u64,
    /// Bytes of the byte-order mark at the head of the file, which is not in `text`.
    pub skipped_bytes: usize,
    /// How many malformed byte sequences stand in `text` as U+FFFD. Worth a word to the user when it is not zero.
    pub malformed: usize,
    /// Numbers of the pages that are damaged and hold no text here. Worth a word to the user too.
    pub unread_pages: Vec<u32>,
    /// The documents that were joined to this one ([`Document::join`]), in order; empty where it is one file.
    pub parts: Vec<Part>,
}

impl Document {
    /// Reads the file at `path`.
    pub fn open(path: &Path) -> Result<Self, DocumentError> {
        let shown = path.display().to_string();
        let bytes = read(path, &shown)?;
        let name = path
            .file_name()
            .map_or_else(|| shown.clone(), |n| n.to_string_lossy().into_owned());
        Self::decode(name, shown, bytes)
    }

    /// Reads a document that is already in memory. The ending of `name` helps to tell what it is.
    pub fn from_bytes(name: impl Into<String>, bytes: Vec<u8>) -> Result<Self, DocumentError> {
        let name = name.into();
        let size = bytes.len() as u64;
        if size > MAX_SOURCE_BYTES {
            return Err(too_large(&name, size));
        }
        Self::decode(name.clone(), name, bytes)
    }

    /// `shown` is how errors name the file.
    fn decode(name: String, shown: String, bytes: Vec<u8>) -> Result<Self, DocumentError> {
        let source_bytes = bytes.len() as u64;
        let kind = sniff::kind(&shown, &bytes)?;
        if kind == Kind::Pdf {
            let found = pdf::read(&shown, bytes)?;
            return Ok(Self {
                name,
                kind,
                text: found.text,
                pages: found.pages,
                encoding: "PDF",
                source_bytes,
                skipped_bytes: 0,
                malformed: 0,
                unread_pages: found.unread,
                parts: Vec::new(),
            });
        }
        let decoded = text::decode(&shown, bytes)?;
        Ok(Self {
            name,
            kind,
            text: decoded.text,
            pages: Vec::new(),
            encoding: decoded.encoding,
            source_bytes,
            skipped_bytes: decoded.skipped_bytes,
            malformed: decoded.malformed,
            unread_pages: Vec::new(),
            parts: Vec::new(),
        })
    }

    /// The page number, from 1, that holds `byte` of the text; `None` where there are no pages or `byte` lies beyond them.
    pub fn page_of(&self, byte: usize) -> Option<u32> {
        let after = self.pages.partition_point(|p| p.range.end <= byte);
        self.pages
            .get(after)
            .filter(|p| p.range.contains(&byte))
            .map(|p| p.number)
    }

    /// The text of `range` (bytes), widened outwards to whole characters and cut at the end of the text. Never panics.
    pub fn excerpt(&self, range: Range<usize>) -> &str {
        let start = passage::char_floor(&self.text, range.start);
        let end = passage::char_ceil(&self.text, range.end).max(start);
        &self.text[start..end]
    }

    /// The sentence (in prose) or line (in code, tables, lists) that holds `byte`, as bytes of the text.
    ///
    /// At most about 400 bytes, without white space at its ends, within one page, on character boundaries. Between two
    /// passages the later one is meant, since a token often begins with the space before its word. Any `byte` is
    /// allowed; the range is empty only where the whole neighbourhood is white space.
    pub fn passage_at(&self, byte: usize) -> Range<usize> {
        let kind = self.part_of(byte).map_or(&self.kind, |p| &p.document.kind);
        passage::at(&self.text, kind, self.page_bounds(byte), byte)
    }

    /// The passages that touch `range` (bytes), in order and without overlap; each as [`passage_at`](Self::passage_at)
    /// gives it.
    pub fn passages(&self, range: Range<usize>) -> Vec<Range<usize>> {
        let mut found: Vec<Range<usize>> = Vec::new();
        let mut byte = range.start;
        while byte < range.end.min(self.text.len()) {
            let passage = self.passage_at(byte);
            let next = passage.end.max(byte + 1);
            let is_new = found.last().is_none_or(|last| passage.start >= last.end);
            if is_new && !passage.is_empty() && passage.start < range.end {
                found.push(passage);
            }
            byte = next;
        }
        found
    }

    /// The page around `byte`, or the document, or the whole text.
    fn page_bounds(&self, byte: usize) -> Range<usize> {
        let after = self.pages.partition_point(|p| p.range.end <= byte);
        let page = self.pages.get(after).map(|p| p.range.clone());
        if self.parts.is_empty() {
            return page.unwrap_or(0..self.text.len());
        }
        // Between two documents there is only the line that names them.
        let ends = self.parts.partition_point(|p| p.range.end <= byte);
        let from = ends
            .checked_sub(1)
            .map_or(0, |before| self.parts[before].range.end);
        let to = self
            .parts
            .get(ends)
            .map_or(self.text.len(), |p| p.range.start);
        let part = self.part_of(byte).map_or(from..to, |p| p.range.clone());
        page.filter(|page| page.contains(&byte)).unwrap_or(part)
    }
}

/// The bytes of an ordinary file that is not too large.
fn read(path: &Path, shown: &str) -> Result<Vec<u8>, DocumentError> {
    let name = || shown.to_owned();
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            DocumentError::Missing { name: name() }
        }
        io::ErrorKind::PermissionDenied => DocumentError::NoPermission { name: name() },
        io::ErrorKind::IsADirectory => DocumentError::Folder { name: name() },
        _ => DocumentError::Read {
            name: name(),
            source,
        },
    };
    // Asked before opening: opening a pipe that nobody writes to would wait for ever.
    let metadata = path.metadata().map_err(failed)?;
    if metadata.is_dir() {
        return Err(DocumentError::Folder { name: name() });
    }
    if !metadata.is_file() {
        return Err(DocumentError::NotAFile { name: name() });
    }
    if metadata.len() > MAX_SOURCE_BYTES {
        return Err(too_large(shown, metadata.len()));
    }
    let mut bytes = Vec::with_capacity(metadata.len() as usize + 1);
    // One byte more than allowed, since a file can grow after it was measured.
    let file = File::open(path).map_err(failed)?;
    file.take(MAX_SOURCE_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > MAX_SOURCE_BYTES {
        return Err(too_large(shown, bytes.len() as u64));
    }
    Ok(bytes)
}

fn too_large(name: &str, bytes: u64) -> DocumentError {
    DocumentError::TooLarge {
        name: name.to_owned(),
        bytes,
        limit: MAX_SOURCE_BYTES,
    }
}
