//! Web pages, chapters of books and bodies of e-mails.
//!
//! The tokenizer is html5ever's, which reads every byte sequence as browsers do. No tree is built: for text it is
//! enough to know where blocks, list items and cells begin, and a tree can be made slow by hostile nesting.

use std::cell::RefCell;

use encoding_rs::Encoding;
use html5ever::tendril::StrTendril;
use html5ever::tokenizer::states::RawKind;
use html5ever::tokenizer::{
    BufferQueue, EndTag, StartTag, Tag, Token, TokenSink, TokenSinkResult, Tokenizer, TokenizerOpts,
};

use super::ExtractResult;
use super::archive;
use super::builder::Builder;
use super::html_names::{can_hide, heading, is_block, is_unseen};
use super::writer::{Block, Writer, one_line};

/// How far a declaration of the encoding is from the start of a page, in bytes. Browsers look at 1024.
const DECLARATION_BYTES: usize = 4096;
/// Lists nested deeper are read as if they were not nested.
const MAX_LIST_DEPTH: usize = 32;
/// The largest piece of input for the tokenizer, in bytes.
const PIECE_BYTES: usize = 1 << 20;

/// The encoding that a page declares, if its bytes are not valid UTF-8. Saved pages are often UTF-8 and say otherwise.
pub(super) fn declared_encoding(bytes: &[u8]) -> Option<&'static Encoding> {
    let has_mark = Encoding::for_bom(bytes).is_some();
    if has_mark || std::str::from_utf8(bytes).is_ok() {
        return None;
    }
    let head = String::from_utf8_lossy(&bytes[..bytes.len().min(DECLARATION_BYTES)]).to_lowercase();
    let in_meta = head.split("<meta").skip(1).find_map(|meta| {
        let value = meta.split('>').next()?.split("charset").nth(1)?;
        let value = value.trim_start().strip_prefix('=')?;
        let label = value.trim_start_matches([' ', '"', '\'']);
        Encoding::for_label(label.split(['"', '\'', ' ', ';', '/']).next()?.as_bytes())
    });
    let declared = archive::declared(bytes).or(in_meta);
    // A page that can be searched for its declaration is not UTF-16, whatever it says.
    declared.filter(|encoding| encoding.is_ascii_compatible())
}

/// The text of a whole page. Its title is the first heading if it has no heading of the first level.
pub(super) fn document(text: &str) -> ExtractResult<Writer> {
    let mut builder = Builder::new();
    let head = &text[..text.floor_char_boundary(DECLARATION_BYTES)];
    let is_xhtml = head.contains("http://www.w3.org/1999/xhtml");
    let title = read_into(&mut builder, text, is_xhtml)?;
    let has_heading = builder.top_headings > 0;
    let mut out = builder.finish()?;
    if !has_heading && !out.is_empty() {
        out.put_first(&title);
    }
    Ok(out)
}

/// Writes the text of a page, and returns its title. XHTML differs in elements that close themselves.
pub(super) fn read_into(
    builder: &mut Builder,
    text: &str,
    is_xhtml: bool,
) -> ExtractResult<String> {
    let sink = Sink(RefCell::new(Page {
        builder: std::mem::replace(builder, Builder::new()),
        is_xhtml,
        failed: Ok(()),
        line: String::new(),
        title: String::new(),
        is_in_title: false,
        heading: None,
        mark: None,
        lists: Vec::new(),
        quotes: 0,
        pre: 0,
        unseen: None,
    }));
    let tokenizer = Tokenizer::new(sink, TokenizerOpts::default());
    let input = BufferQueue::default();
    let mut rest = text;
    while !rest.is_empty() {
        let (piece, more) = rest.split_at(rest.floor_char_boundary(PIECE_BYTES));
        rest = more;
        input.push_back(StrTendril::from_slice(piece));
        // The tokenizer stops after a script so that it can be run.
        while !input.is_empty() {
            let _ = tokenizer.feed(&input);
        }
        if tokenizer.sink.0.borrow().failed.is_err() {
            break;
        }
    }
    tokenizer.end();
    let mut page = tokenizer.sink.0.into_inner();
    page.flush();
    page.failed?;
    *builder = page.builder;
    builder.end_tables()?;
    Ok(one_line(&page.title))
}

struct Sink(RefCell<Page>);

/// The page while it is read.
struct Page {
    builder: Builder,
    is_xhtml: bool,
    /// The first failure of the builder; nothing is read after it.
    failed: ExtractResult<()>,
    /// The block so far.
    line: String,
    title: String,
    is_in_title: bool,
    /// Level of the heading that is read.
    heading: Option<u8>,
    /// Depth and mark of a list item whose text has not begun.
    mark: Option<(usize, String)>,
    /// The open lists, each with its next number; `None` for bullets.
    lists: Vec<Option<u32>>,
    /// Number of open quotes.
    quotes: usize,
    /// Number of open `pre` elements.
    pre: usize,
    /// The unseen element that is read, and how many of its name are open.
    unseen: Option<(String, usize)>,
}

impl TokenSink for Sink {
    type Handle = ();

    fn process_token(&self, token: Token, _line: u64) -> TokenSinkResult<()> {
        let mut page = self.0.borrow_mut();
        if page.failed.is_err() {
            return TokenSinkResult::Continue;
        }
        match token {
            Token::CharacterTokens(text) => page.text(&text),
            Token::TagToken(tag) => return page.tag(&tag),
            _ => {}
        }
        TokenSinkResult::Continue
    }

    fn adjusted_current_node_present_but_not_in_html_namespace(&self) -> bool {
        // In XHTML, CDATA sections are text everywhere.
        self.0.borrow().is_xhtml
    }
}

impl Page {
    fn text(&mut self, text: &str) {
        if self.unseen.is_some() {
            return;
        }
        if self.is_in_title {
            self.title.push_str(text);
        } else if self.pre > 0 {
            self.line.push_str(text);
        } else {
            for c in text.chars() {
                if !matches!(c, ' ' | '\t' | '\n' | '\r' | '\x0c') {
                    self.line.push(c);
                } else if !self.line.is_empty() && !self.line.ends_with([' ', '\n']) {
                    self.line.push(' ');
                }
            }
        }
    }

    fn tag(&mut self, tag: &Tag) -> TokenSinkResult<()> {
        let name: &str = &tag.name;
        if tag.kind == StartTag {
            let is_closed = tag.self_closing && self.is_xhtml;
            if !self.is_unseen_at(name, true, is_closed) {
                self.start(name, tag);
                if is_closed {
                    self.end(name);
                }
            }
            return if is_closed {
                TokenSinkResult::Continue
            } else {
                contents(name)
            };
        }
        debug_assert_eq!(tag.kind, EndTag);
        if !self.is_unseen_at(name, false, false) {
            self.end(name);
        }
        TokenSinkResult::Continue
    }

    /// Follows unseen elements. Returns whether the tag belongs to one.
    fn is_unseen_at(&mut self, name: &str, is_start: bool, is_closed: bool) -> bool {
        match &mut self.unseen {
            Some((unseen, open)) if unseen == name && !is_closed => {
                // An annotation of a character need not be closed before the next one.
                let is_one = matches!(name, "rt" | "rp");
                *open = match (is_start, is_one) {
                    (true, true) => 1,
                    (true, false) => *open + 1,
                    (false, _) => *open - 1,
                };
                if *open == 0 {
                    self.unseen = None;
                }
                true
            }
            Some((unseen, _)) => {
                let is_left =
                    matches!(unseen.as_str(), "rt" | "rp") && matches!(name, "ruby" | "rb");
                if is_left {
                    self.unseen = None;
                }
                !is_left
            }
            None if is_start && is_unseen(name) => {
                if !is_closed {
                    self.unseen = Some((name.to_owned(), 1));
                }
                true
            }
            None => false,
        }
    }

    fn start(&mut self, name: &str, tag: &Tag) {
        if can_hide(name) && is_hidden(tag) {
            self.unseen = Some((name.to_owned(), 1));
            return;
        }
        match name {
            "title" => self.is_in_title = true,
            "br" => self.break_line(),
            "hr" => {
                self.flush();
                self.block(Block::Paragraph("* * *".to_owned()));
            }
            "q" => self.line.push('"'),
            "ul" | "ol" | "menu" | "dir" => {
                self.flush();
                let start = attribute(tag, "start").and_then(|start| start.trim().parse().ok());
                let number = (name == "ol").then_some(start.unwrap_or(1));
                if self.lists.len() < MAX_LIST_DEPTH {
                    self.lists.push(number);
                }
            }
            "li" => self.item(tag),
            "blockquote" => {
                self.flush();
                self.quotes += 1;
            }
            "pre" => {
                self.flush();
                self.pre += 1;
            }
            "table" => {
                self.flush();
                self.builder.begin_table();
            }
            "tr" => self.step(Builder::begin_row),
            "td" | "th" => self.step(|builder| {
                builder.begin_cell();
                Ok(())
            }),
            _ if heading(name).is_some() => {
                self.flush();
                self.heading = heading(name);
            }
            _ if is_block(name) => self.flush(),
            _ => {}
        }
    }

    fn end(&mut self, name: &str) {
        match name {
            "title" => self.is_in_title = false,
            "q" => self.line.push('"'),
            "ul" | "ol" | "menu" | "dir" => {
                self.flush();
                self.lists.pop();
                self.mark = None;
            }
            "li" => {
                self.flush();
                self.mark = None;
            }
            "blockquote" => {
                self.flush();
                self.quotes = self.quotes.saturating_sub(1);
            }
            "pre" => {
                self.flush();
                self.pre = self.pre.saturating_sub(1);
            }
            "table" => self.step(Builder::end_table),
            "tr" => self.step(Builder::end_row),
            "td" | "th" => self.step(|builder| {
                builder.end_cell();
                Ok(())
            }),
            _ if heading(name).is_some() => {
                self.flush();
                self.heading = None;
            }
            "p" | "body" | "html" => self.flush(),
            _ if is_block(name) => self.flush(),
            _ => {}
        }
    }

    fn item(&mut self, tag: &Tag) {
        self.flush();
        let depth = self.lists.len().saturating_sub(1);
        let mark = match self.lists.last_mut() {
            Some(Some(number)) => {
                let own = attribute(tag, "value").and_then(|value| value.trim().parse().ok());
                let this = own.unwrap_or(*number);
                *number = this.saturating_add(1);
                format!("{this}.")
            }
            _ => "-".to_owned(),
        };
        self.mark = Some((depth, mark));
    }

    fn break_line(&mut self) {
        if self.pre == 0 {
            self.line.truncate(self.line.trim_end_matches(' ').len());
        }
        self.line.push('\n');
    }

    /// Ends the block, then changes the table.
    fn step(&mut self, change: impl FnOnce(&mut Builder) -> ExtractResult<()>) {
        self.flush();
        self.mark = None;
        if self.failed.is_ok() {
            self.failed = change(&mut self.builder);
        }
    }

    fn block(&mut self, block: Block) {
        if self.failed.is_ok() {
            self.failed = self.builder.block(block);
        }
    }

    /// Ends the block that is read.
    fn flush(&mut self) {
        if self.line.trim().is_empty() {
            self.line.clear();
            return;
        }
        let line = std::mem::take(&mut self.line);
        let text = line.trim();
        if let Some(level) = self.heading {
            return self.block(Block::Heading(level, text.to_owned()));
        }
        if let Some((depth, mark)) = self.mark.take() {
            return self.block(Block::Item(depth, mark, text.to_owned()));
        }
        self.block(if self.pre > 0 && !self.builder.is_in_cell() {
            Block::Verbatim(line)
        } else if self.quotes > 0 {
            Block::Paragraph(format!("> {}", text.replace('\n', "\n> ")))
        } else {
            Block::Paragraph(text.to_owned())
        });
    }
}

/// How the tokenizer reads the contents of an element.
fn contents(name: &str) -> TokenSinkResult<()> {
    match name {
        "script" => TokenSinkResult::RawData(RawKind::ScriptData),
        "style" | "xmp" | "iframe" | "noembed" | "noframes" => {
            TokenSinkResult::RawData(RawKind::Rawtext)
        }
        "title" | "textarea" => TokenSinkResult::RawData(RawKind::Rcdata),
        "plaintext" => TokenSinkResult::Plaintext,
        _ => TokenSinkResult::Continue,
    }
}

fn attribute<'a>(tag: &'a Tag, name: &str) -> Option<&'a str> {
    let found = tag.attrs.iter().find(|a| &*a.name.local == name)?;
    Some(&found.value)
}

fn is_hidden(tag: &Tag) -> bool {
    let style = attribute(tag, "style").unwrap_or_default();
    let style: String = style.split_whitespace().collect();
    attribute(tag, "hidden").is_some() || style.to_ascii_lowercase().contains("display:none")
}
