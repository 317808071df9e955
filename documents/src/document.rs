//! One opened file: its text, its pages and its origin.
//!
//! This module reads the file and selects the decoder. `sniff` detects the format; `text` decodes text, `confined` all
//! else.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::confined;
use crate::found::Source;
use crate::sniff::Sniffed;
use crate::{DocumentError, Format, Heading, Part, Why, extract, outline, passage, sniff, text};

/// The largest file that Kept opens, in bytes: 512 MiB.
///
/// At about four bytes per token that is over a hundred million tokens, far more than any context length. The limit
/// prevents a file opened by mistake from filling the memory.
pub const MAX_SOURCE_BYTES: u64 = 512 << 20;

/// The kind of a document. It decides only how passages are cut, how headings are found and what pages are called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
#[non_exhaustive]
pub enum Kind {
    /// Prose in plain text.
    PlainText,
    /// Markdown, kept verbatim.
    Markdown,
    /// Source code, data or markup, kept verbatim. Its unit is the line.
    SourceCode,
    /// Text extracted from a PDF.
    Pdf,
    /// Text extracted from markup. A line is a paragraph, an item or a table row, and headings are those of Markdown.
    Extracted {
        /// The format of the file.
        format: Format,
    },
}

impl Kind {
    /// A word for programs; [`Kind::from_code`] gives the kind again.
    pub fn code(&self) -> &'static str {
        match self {
            Kind::PlainText => "text",
            Kind::Markdown => "markdown",
            Kind::SourceCode => "code",
            Kind::Pdf => "pdf",
            Kind::Extracted { format } => format.name(),
        }
    }

    /// The kind of a [`Kind::code`]; plain text for any other word.
    pub fn from_code(code: &str) -> Self {
        match code {
            "markdown" => Kind::Markdown,
            "code" => Kind::SourceCode,
            "pdf" => Kind::Pdf,
            name => {
                Format::from_name(name).map_or(Kind::PlainText, |format| Kind::Extracted { format })
            }
        }
    }

    /// What a page of such a document is called: "page", "slide", "sheet" or "chapter".
    pub fn page_noun(&self) -> &'static str {
        match self {
            Kind::Extracted { format } => format.page_noun(),
            _ => "page",
        }
    }
}

impl From<String> for Kind {
    fn from(code: String) -> Self {
        Self::from_code(&code)
    }
}

impl From<Kind> for String {
    fn from(kind: Kind) -> Self {
        kind.code().to_owned()
    }
}

/// A page of a document that has pages, or a slide, a sheet or a chapter: see [`Document::page_noun_at`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// Index of the page in the file, from 1. Not the number printed on the page. Sheets and chapters without text do
    /// not count.
    pub number: u32,
    /// Byte range in [`Document::text`]. Pages are contiguous: a page includes the blank line at its end.
    #[serde(flatten)]
    pub range: Range<usize>,
}

/// A file as text. The text itself is not serialised: a stored document has it besides.
///
/// ```text
/// file   EF BB BF  H  e  l  l  o  \r \n  ...        source_bytes = 10, skipped_bytes = 3
/// text             H  e  l  l  o  \r \n  ...        in UTF-8: file byte = text byte + skipped_bytes
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Document {
    /// The file name without its folder.
    pub name: String,
    /// The kind of the document.
    pub kind: Kind,
    /// The whole text, with the line ends of the file.
    #[serde(skip)]
    pub text: String,
    /// The pages in order, without gaps in `text`; empty if the format has no pages.
    pub pages: Vec<Page>,
    /// The encoding of the file ("UTF-8", "UTF-16LE", "windows-1252", ...); "PDF" for a PDF, and "UTF-8" for an archive
    /// or an e-mail, whose parts declare their own.
    pub encoding: Cow<'static, str>,
    /// Size of the file in bytes.
    pub source_bytes: u64,
    /// Length in bytes of the byte-order mark at the start of the file, which `text` does not contain.
    pub skipped_bytes: usize,
    /// Number of malformed byte sequences, each a U+FFFD in `text`. Report it to the user if it is not zero.
    pub malformed: usize,
    /// Numbers of the damaged pages, whose text is missing from `text`. Report them to the user.
    pub unread_pages: Vec<u32>,
    /// Numbers of the pages that show an image and have no text; [`Document::recognise`] may find some. Report them to the
    /// user.
    #[serde(default)]
    pub image_pages: Vec<u32>,
    /// The headings that the file itself marks, by bookmarks or by larger letters. If there are none,
    /// [`Document::outline`] finds headings by their form.
    #[serde(default)]
    pub headings: Vec<Heading>,
    /// The documents joined by [`Document::join`], in order; empty for a single file.
    #[serde(default)]
    pub parts: Vec<Part>,
}

impl Document {
    /// An empty document, for a conversation without one.
    pub fn empty() -> Self {
        Self {
            name: String::new(),
            kind: Kind::PlainText,
            text: String::new(),
            pages: Vec::new(),
            encoding: "UTF-8".into(),
            source_bytes: 0,
            skipped_bytes: 0,
            malformed: 0,
            unread_pages: Vec::new(),
            image_pages: Vec::new(),
            headings: Vec::new(),
            parts: Vec::new(),
        }
    }

    /// Reads the file at `path`.
    ///
    /// # Errors
    /// A [`DocumentError`] if the file cannot be read, is too large, or is in no format that Kept reads.
    pub fn open(path: &Path) -> Result<Self, DocumentError> {
        Self::open_with(path, &path.display().to_string(), None)
    }

    /// [`Document::open`] with `shown` as the file's name in error messages, and with the password of an encrypted PDF.
    ///
    /// # Errors
    /// As [`Document::open`]. [`Why::PdfEncrypted`] without a password, [`Why::PdfPassword`] with one
    /// that does not open the file.
    pub fn open_with(
        path: &Path,
        shown: &str,
        password: Option<&str>,
    ) -> Result<Self, DocumentError> {
        let bytes = read(path).map_err(|why| why.about(shown))?;
        let name = path
            .file_name()
            .map_or_else(|| shown.to_owned(), |n| n.to_string_lossy().into_owned());
        Self::decode(name, shown, password, bytes)
    }

    /// Reads a document from `source`, of which there is no file; `shown` is its name.
    ///
    /// # Errors
    /// As [`Document::open_with`].
    pub fn from_reader(
        source: impl Read,
        shown: &str,
        password: Option<&str>,
    ) -> Result<Self, DocumentError> {
        let bytes = read_all(source, 0, Why::Read).map_err(|why| why.about(shown))?;
        Self::decode(shown.to_owned(), shown, password, bytes)
    }

    /// Decodes a document from memory. The extension of `name` is a hint for the format.
    ///
    /// # Errors
    /// A [`DocumentError`] if the bytes are too many, or are in no format that Kept reads.
    pub fn from_bytes(name: impl Into<String>, bytes: Vec<u8>) -> Result<Self, DocumentError> {
        let name = name.into();
        check_size(bytes.len() as u64).map_err(|why| why.about(&name))?;
        Self::decode(name.clone(), &name, None, bytes)
    }

    /// `shown` is the file's name in error messages.
    fn decode(
        name: String,
        shown: &str,
        password: Option<&str>,
        bytes: Vec<u8>,
    ) -> Result<Self, DocumentError> {
        let source_bytes = bytes.len() as u64;
        let document = Self::parse(shown, password, bytes).map_err(|why| why.about(shown))?;
        Ok(Self {
            name,
            source_bytes,
            ..document
        })
    }

    /// The text and its pages. The extension of `shown` is a hint for the format.
    fn parse(shown: &str, password: Option<&str>, bytes: Vec<u8>) -> Result<Self, Why> {
        Ok(match sniff::sniff(shown, &bytes)? {
            Sniffed::Text(kind) => {
                let decoded = text::decode(bytes)?;
                Self {
                    kind,
                    ..Self::of_text(decoded)
                }
            }
            Sniffed::Parsed(Source::Markup(format)) if extract::is_text(format) => {
                let mut decoded = extract::decode(format, bytes)?;
                let text = std::mem::take(&mut decoded.text).into_bytes();
                let found = confined::read(shown, Source::Markup(format), None, text)?;
                Self {
                    kind: Kind::Extracted { format },
                    text: found.text,
                    pages: found.pages,
                    ..Self::of_text(decoded)
                }
            }
            Sniffed::Parsed(source) => {
                let found = confined::read(shown, source, password, bytes)?;
                let kind = (found.format).map_or(Kind::Pdf, |format| Kind::Extracted { format });
                Self {
                    encoding: if kind == Kind::Pdf { "PDF" } else { "UTF-8" }.into(),
                    kind,
                    text: found.text,
                    pages: found.pages,
                    unread_pages: found.unread,
                    image_pages: found.images,
                    headings: found.headings,
                    ..Self::empty()
                }
            }
        })
    }

    fn of_text(decoded: text::Decoded) -> Self {
        Self {
            text: decoded.text,
            encoding: decoded.encoding.into(),
            skipped_bytes: decoded.skipped_bytes,
            malformed: decoded.malformed,
            ..Self::empty()
        }
    }

    /// The headings of this document, whose text is `text`.
    pub fn outline(&self, text: &str) -> Vec<Heading> {
        match self.headings.is_empty() {
            true => outline::outline(text, &self.kind),
            false => outline::shorten(self.headings.clone()),
        }
    }

    /// The number, from 1, of the page that contains byte `byte` of the text; `None` if no page contains it.
    pub fn page_of(&self, byte: usize) -> Option<u32> {
        let after = self.pages.partition_point(|p| p.range.end <= byte);
        self.pages
            .get(after)
            .filter(|p| p.range.contains(&byte))
            .map(|p| p.number)
    }

    /// What the page that contains byte `byte` is called: a page, a slide, a sheet or a chapter.
    pub fn page_noun_at(&self, byte: usize) -> &'static str {
        self.kind_at(byte).page_noun()
    }

    /// The kind of the document, or of the joined document, that contains byte `byte`.
    fn kind_at(&self, byte: usize) -> &Kind {
        self.part_of(byte)
            .map_or(&self.kind, |part| &part.document.kind)
    }

    /// The byte range of the sentence (in prose) or line (in code, tables, lists) that contains `byte`.
    ///
    /// At most about 400 bytes, without leading or trailing white space, within one page, on character boundaries.
    /// White space between two passages belongs to the second, because a token often begins with the space before its
    /// word. `byte` may have any value. The range is empty only if all text near `byte` is white space.
    pub fn passage_at(&self, byte: usize) -> Range<usize> {
        passage::at(&self.text, self.kind_at(byte), self.page_bounds(byte), byte)
    }

    /// The passages that overlap `range` (bytes), in order and without overlap, each as returned by
    /// [`passage_at`](Self::passage_at).
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

    /// The range of the page around `byte`; without pages, of the joined document; else the whole text.
    fn page_bounds(&self, byte: usize) -> Range<usize> {
        let after = self.pages.partition_point(|p| p.range.end <= byte);
        let page = self.pages.get(after).map(|p| p.range.clone());
        if self.parts.is_empty() {
            return page.unwrap_or(0..self.text.len());
        }
        // The gap between two joined documents contains only the line that names them.
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

/// Reads a regular file of at most [`MAX_SOURCE_BYTES`].
fn read(path: &Path) -> Result<Vec<u8>, Why> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Why::Missing,
        io::ErrorKind::PermissionDenied => Why::NoPermission,
        io::ErrorKind::IsADirectory => Why::Folder,
        _ => Why::Read(source),
    };
    // Check before opening: opening a pipe without a writer blocks for ever.
    let metadata = path.metadata().map_err(failed)?;
    if metadata.is_dir() {
        return Err(Why::Folder);
    }
    if !metadata.is_file() {
        return Err(Why::NotAFile);
    }
    check_size(metadata.len())?;
    let file = File::open(path).map_err(failed)?;
    read_all(file, metadata.len() as usize, failed)
}

/// All bytes of a source of about `expected` bytes.
fn read_all(
    source: impl Read,
    expected: usize,
    failed: impl Fn(io::Error) -> Why,
) -> Result<Vec<u8>, Why> {
    let mut bytes = Vec::with_capacity(expected + 1);
    // One byte above the limit, because a file can grow after its size was checked.
    let mut source = source.take(MAX_SOURCE_BYTES + 1);
    source.read_to_end(&mut bytes).map_err(failed)?;
    check_size(bytes.len() as u64)?;
    Ok(bytes)
}

fn check_size(bytes: u64) -> Result<(), Why> {
    let limit = MAX_SOURCE_BYTES;
    match bytes > limit {
        true => Err(Why::TooLarge { bytes, limit }),
        false => Ok(()),
    }
}
