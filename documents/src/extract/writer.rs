//! The text of a document, written block by block, and its pages.

use super::{ExtractResult, Failure};
use crate::Page;

/// The most text of one document, in bytes.
pub(super) const MAX_TEXT_BYTES: usize = 256 << 20;
const SOFT_HYPHEN: char = '\u{ad}';
/// The deepest heading of Markdown.
const MAX_HEADING_LEVEL: u8 = 6;
/// The deepest indentation of a list.
const MAX_LIST_INDENT: usize = 8;

/// A piece of a document that stands on lines of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Block {
    /// A heading with its level, from 1.
    Heading(u8, String),
    /// A paragraph, with the line breaks that its author made.
    Paragraph(String),
    /// A list item: its depth from 0, its mark ("-", "3.", "a)") and its text.
    Item(usize, String, String),
    /// The cells of a table row.
    Row(Vec<String>),
    /// Lines whose white space matters, such as code.
    Verbatim(String),
}

/// What was written last: rows and items follow their like without a blank line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    Start,
    Item,
    Row,
    Other,
}

/// What a title page says, stands within so many bytes.
const BEGINNING: usize = 4000;

/// Writes blocks as text.
pub(super) struct Writer {
    text: String,
    pages: Vec<Page>,
    last: Last,
    /// Whether the next block begins a page.
    is_new_page: bool,
}

impl Writer {
    pub(super) fn new() -> Self {
        Self {
            text: String::new(),
            pages: Vec::new(),
            last: Last::Start,
            is_new_page: false,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// The next block begins a page. A page without blocks is no page.
    pub(super) fn begin_page(&mut self) {
        self.is_new_page = true;
    }

    /// Writes a block; nothing if it is empty.
    ///
    /// # Errors
    /// [`Failure::TooMuch`] above [`MAX_TEXT_BYTES`].
    pub(super) fn block(&mut self, block: &Block) -> ExtractResult<()> {
        match block {
            Block::Heading(level, text) => {
                let hashes = "#".repeat(usize::from((*level).clamp(1, MAX_HEADING_LEVEL)));
                let line = one_line(text);
                if !line.is_empty() {
                    self.put(Last::Other, &[&hashes, " ", &line])?;
                }
            }
            Block::Paragraph(text) => {
                let text = text.trim();
                if !text.is_empty() {
                    self.put(Last::Other, &[text])?;
                }
            }
            Block::Item(depth, mark, text) => {
                let indent = "  ".repeat((*depth).min(MAX_LIST_INDENT));
                let text = text.trim();
                if !text.is_empty() {
                    self.put(Last::Item, &[&indent, mark, " ", text])?;
                }
            }
            Block::Row(cells) => self.row(cells)?,
            Block::Verbatim(text) => {
                let text = text.trim_end().trim_start_matches('\n');
                if text.contains('\n') {
                    self.put(Last::Other, &["```\n", text, "\n```"])?;
                } else if !text.trim().is_empty() {
                    self.put(Last::Other, &[text.trim()])?;
                }
            }
        }
        Ok(())
    }

    fn row(&mut self, cells: &[String]) -> ExtractResult<()> {
        let cells: Vec<String> = cells.iter().map(|cell| one_line(cell)).collect();
        let used = cells.iter().rposition(|cell| !cell.is_empty());
        if let Some(last) = used {
            self.put(Last::Row, &[&cells[..=last].join(" | ")])?;
        }
        Ok(())
    }

    fn put(&mut self, kind: Last, pieces: &[&str]) -> ExtractResult<()> {
        let more: usize = pieces.iter().map(|piece| piece.len()).sum();
        if self.text.len() + more > MAX_TEXT_BYTES {
            return Err(Failure::TooMuch(MAX_TEXT_BYTES as u64));
        }
        let is_tight = kind == self.last && kind != Last::Other && !self.is_new_page;
        self.text.push_str(match self.last {
            Last::Start => "",
            _ if is_tight => "\n",
            _ => "\n\n",
        });
        if std::mem::take(&mut self.is_new_page) {
            self.turn_page();
        }
        for piece in pieces {
            // Where a word may be broken means nothing in text.
            self.text.extend(piece.split(SOFT_HYPHEN));
        }
        self.last = kind;
        Ok(())
    }

    /// The page before the new one ends here; the first page includes what is before it.
    fn turn_page(&mut self) {
        let at = self.text.len();
        if let Some(before) = self.pages.last_mut() {
            before.range.end = at;
        }
        let start = if self.pages.is_empty() { 0 } else { at };
        self.pages.push(Page {
            number: self.pages.len() as u32 + 1,
            range: start..at,
        });
    }

    /// Writes `title` as a heading above all text.
    pub(super) fn put_first(&mut self, title: &str) {
        let title = one_line(title);
        if !title.is_empty() && self.pages.is_empty() {
            self.text.insert_str(0, &format!("# {title}\n\n"));
        }
    }

    /// Writes `lines` above all text, as paragraphs of the first page: those with which no line near its beginning begins or
    /// ends anyway. Text of nothing else is none.
    pub(super) fn put_unless_said(&mut self, lines: &[String]) {
        if self.is_empty() {
            return;
        }
        let end = self.text.floor_char_boundary(BEGINNING);
        let beginning = self.text[..end].to_lowercase();
        let is_said = |line: &str| {
            let mut said = beginning.lines().map(|said| said.trim_matches(['#', ' ']));
            said.any(|said| said.starts_with(line) || said.ends_with(line))
        };
        let lines = lines.iter().map(|line| one_line(line));
        let new = lines.filter(|line| !is_said(&line.to_lowercase()));
        let new: String = new.map(|line| line + "\n\n").collect();
        self.text.insert_str(0, &new);
        for (i, page) in self.pages.iter_mut().enumerate() {
            page.range.start += if i == 0 { 0 } else { new.len() };
            page.range.end += new.len();
        }
    }

    /// The text with a line end at its end, and its pages, which tile it.
    pub(super) fn finish(mut self) -> (String, Vec<Page>) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        if let Some(page) = self.pages.last_mut() {
            page.range.end = self.text.len();
        }
        (self.text, self.pages)
    }
}

/// The text in one line, with single spaces.
pub(super) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for word in text.split_whitespace() {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    line
}
