//! OpenDocument files: texts, spreadsheets and presentations, which share their markup.
//!
//! Tracked deletions, comments, headers and footers are left out. Notes follow the text.

use std::collections::HashMap;

use super::archive::Archive;
use super::builder::Builder;
use super::odf_lists::{Counters, ListStyles};
use super::pptx::{heading, spoken};
use super::sheet::{MAX_COLUMNS, Sheet};
use super::writer::{Block, Writer, one_line};
use super::xml::{Node, Tag, Xml};
use super::{ExtractResult, Failure};

/// The most spaces that one element stands for.
const MAX_SPACES: usize = 64;

/// Extracts the text of a document.
pub(super) fn read(archive: &mut Archive) -> ExtractResult<Writer> {
    let manifest = archive.text("META-INF/manifest.xml")?.unwrap_or_default();
    if manifest.contains("encryption-data") {
        return Err(Failure::Locked);
    }
    let text = archive.required("content.xml")?;
    let mut styles = ListStyles::default();
    styles.add(&archive.text("styles.xml")?.unwrap_or_default())?;
    let mut reader = Odf {
        styles,
        builder: Builder::new(),
        notes: Vec::new(),
        lists: Vec::new(),
        finished: HashMap::new(),
        headings: Counters::default(),
        mark: None,
        slides: 0,
        title: String::new(),
    };
    let mut xml = Xml::new(&text);
    let root = xml.find("document-content")?;
    root.ok_or(Failure::Damaged("it has no text"))?;
    while let Some(tag) = xml.child()? {
        match tag.name() {
            "body" => reader.blocks(&mut xml)?,
            _ => reader.styles.find(tag, &mut xml)?,
        }
    }
    reader.builder.end_tables()?;
    for (i, note) in std::mem::take(&mut reader.notes).into_iter().enumerate() {
        let text = format!("[^{}]: {note}", i + 1);
        reader.builder.block(Block::Paragraph(text))?;
    }
    reader.builder.finish()
}

/// An open list.
struct List {
    style: String,
    counters: Counters,
}

struct Odf {
    styles: ListStyles,
    builder: Builder,
    notes: Vec<String>,
    lists: Vec<List>,
    /// The numbers of the last outermost list of each style, which another list can continue.
    finished: HashMap<String, Counters>,
    headings: Counters,
    /// Level and mark of an item whose text has not begun.
    mark: Option<(usize, String)>,
    slides: usize,
    /// The title of the slide that is read.
    title: String,
}

impl Odf {
    /// Reads blocks to the end of the element.
    fn blocks(&mut self, xml: &mut Xml) -> ExtractResult<()> {
        while let Some(tag) = xml.child()? {
            match tag.name() {
                "spreadsheet" => self.sheets(xml)?,
                _ => self.block(tag, xml)?,
            }
        }
        Ok(())
    }

    fn block(&mut self, tag: Tag, xml: &mut Xml) -> ExtractResult<()> {
        match tag.name() {
            "h" => {
                let level = tag.number("outline-level").unwrap_or(1).clamp(1, 10);
                let is_in_list = self.mark.take();
                let text = self.inline(xml)?;
                if text.trim().is_empty() {
                    return Ok(());
                }
                let mark = match is_in_list {
                    Some((_, mark)) => mark,
                    None => self.styles.next_mark("", level - 1, &mut self.headings),
                };
                let text = if matches!(mark.as_str(), "" | "-") {
                    text
                } else {
                    format!("{mark} {text}")
                };
                self.builder.block(Block::Heading(level as u8, text))
            }
            "p" => {
                let text = self.inline(xml)?;
                self.paragraph(text)
            }
            "list" => self.list(&tag, xml),
            "table" => {
                self.builder.begin_table();
                self.blocks(xml)?;
                self.builder.end_table()
            }
            "table-row" => {
                self.blocks(xml)?;
                self.builder.end_row()
            }
            "table-cell" | "covered-table-cell" => {
                self.builder.begin_cell();
                self.blocks(xml)?;
                self.builder.end_cell();
                Ok(())
            }
            "page" => self.slide(xml),
            "frame" | "custom-shape" => self.shape(&tag, xml),
            "tracked-changes" | "annotation" | "forms" | "sequence-decls" | "title" | "desc"
            | "binary-data" | "master-page" | "declarations" => xml.skip(),
            _ => self.blocks(xml),
        }
    }

    fn paragraph(&mut self, text: String) -> ExtractResult<()> {
        if text.trim().is_empty() {
            return Ok(());
        }
        self.builder.block(match self.mark.take() {
            Some((level, mark)) if !mark.is_empty() => Block::Item(level, mark, text),
            _ => Block::Paragraph(text),
        })
    }

    fn list(&mut self, tag: &Tag, xml: &mut Xml) -> ExtractResult<()> {
        let outer = self.lists.last();
        let own = tag.get("style-name").filter(|style| !style.is_empty());
        let style = own.or_else(|| outer.map(|list| list.style.clone()));
        // A list without a style has bullets.
        let style = style.unwrap_or_else(|| "-".to_owned());
        let is_continued = tag.get("continue-numbering").as_deref() == Some("true");
        let before = self.finished.get(&style).filter(|_| is_continued);
        let counters = match (outer, before) {
            (Some(outer), _) => outer.counters,
            (None, Some(before)) => *before,
            (None, None) => Counters::default(),
        };
        self.lists.push(List { style, counters });
        let level = self.lists.len() - 1;
        while let Some(item) = xml.child()? {
            if item.name() == "list-item"
                && let Some(list) = self.lists.last_mut()
            {
                let mark = self
                    .styles
                    .next_mark(&list.style, level, &mut list.counters);
                self.mark = Some((level, mark));
            }
            self.blocks(xml)?;
            self.mark = None;
        }
        if let Some(list) = self.lists.pop()
            && self.lists.is_empty()
        {
            self.finished.insert(list.style, list.counters);
        }
        Ok(())
    }

    /// The text of a paragraph, to the end of the element. Text boxes in it become blocks before it.
    fn inline(&mut self, xml: &mut Xml) -> ExtractResult<String> {
        let mut text = String::new();
        self.inline_into(xml, &mut text)?;
        Ok(text)
    }

    fn inline_into(&mut self, xml: &mut Xml, text: &mut String) -> ExtractResult<()> {
        loop {
            let tag = match xml.next()? {
                Node::Start(tag) => tag,
                Node::Text(more) => {
                    // Line ends and runs of spaces in the file are single spaces of the text.
                    for c in more.chars() {
                        let is_space = matches!(c, ' ' | '\t' | '\n' | '\r');
                        if !is_space {
                            text.push(c);
                        } else if !text.is_empty() && !text.ends_with(' ') {
                            text.push(' ');
                        }
                    }
                    continue;
                }
                Node::End => return Ok(()),
            };
            match tag.name() {
                "s" => {
                    let count = tag.number("c").unwrap_or(1).min(MAX_SPACES);
                    text.extend(std::iter::repeat_n(' ', count));
                    xml.skip()?;
                }
                "tab" => {
                    text.push('\t');
                    xml.skip()?;
                }
                "line-break" => {
                    text.push('\n');
                    xml.skip()?;
                }
                "p" | "h" => {
                    if !text.is_empty() {
                        text.push('\n');
                    }
                    self.inline_into(xml, text)?;
                }
                "note" => self.note(xml, text)?,
                "frame" | "custom-shape" => self.shape(&tag, xml)?,
                "annotation" | "ruby-text" | "tracked-changes" | "title" | "desc"
                | "binary-data" | "object" => xml.skip()?,
                _ => self.inline_into(xml, text)?,
            }
        }
    }

    /// A footnote or an endnote: its number stays in the text.
    fn note(&mut self, xml: &mut Xml, text: &mut String) -> ExtractResult<()> {
        let at = self.notes.len();
        self.notes.push(String::new());
        text.push_str(&format!("[^{}]", at + 1));
        let mut note = String::new();
        while let Some(tag) = xml.child()? {
            if tag.name() == "note-body" {
                self.inline_into(xml, &mut note)?;
            } else {
                xml.skip()?;
            }
        }
        self.notes[at] = one_line(&note);
        Ok(())
    }

    /// A frame or shape with text; the title of a slide is kept for its heading.
    fn shape(&mut self, tag: &Tag, xml: &mut Xml) -> ExtractResult<()> {
        match tag.get("class").as_deref() {
            Some("title") => {
                let text = self.inline(xml)?;
                self.title.push_str(&text);
                Ok(())
            }
            Some("date-time" | "footer" | "header" | "page-number") => xml.skip(),
            _ => self.blocks(xml),
        }
    }

    /// A slide: its title is above its text, its notes are below.
    fn slide(&mut self, xml: &mut Xml) -> ExtractResult<()> {
        let outside = std::mem::replace(&mut self.builder, Builder::collector());
        let mut notes = Vec::new();
        self.title.clear();
        while let Some(tag) = xml.child()? {
            if tag.name() == "notes" {
                let slide = std::mem::replace(&mut self.builder, Builder::collector());
                self.blocks(xml)?;
                let collected = std::mem::replace(&mut self.builder, slide);
                notes = collected.collected()?;
            } else {
                self.block(tag, xml)?;
            }
        }
        let slide = std::mem::replace(&mut self.builder, outside).collected()?;
        self.slides += 1;
        self.builder.out.begin_page();
        let title = heading(self.slides, &self.title);
        self.builder.block(Block::Heading(1, title))?;
        let blocks = slide.into_iter().chain(spoken(notes));
        blocks
            .into_iter()
            .try_for_each(|block| self.builder.block(block))
    }

    /// The tables of a spreadsheet; each is a page. Cells are read as they are shown.
    fn sheets(&mut self, xml: &mut Xml) -> ExtractResult<()> {
        while let Some(tag) = xml.child()? {
            if tag.name() == "table" {
                let name = tag.get("name").unwrap_or_default();
                let mut sheet = Sheet::default();
                self.rows(xml, &mut sheet)?;
                sheet.write(&name, &mut self.builder.out)?;
            } else {
                xml.skip()?;
            }
        }
        Ok(())
    }

    fn rows(&mut self, xml: &mut Xml, sheet: &mut Sheet) -> ExtractResult<()> {
        while let Some(tag) = xml.child()? {
            match tag.name() {
                "table-row" => {
                    let times = tag.number("number-rows-repeated").unwrap_or(1);
                    self.cells(xml, sheet)?;
                    sheet.end_row(times);
                }
                "table-row-group" | "table-rows" | "table-header-rows" => self.rows(xml, sheet)?,
                _ => xml.skip()?,
            }
        }
        Ok(())
    }

    fn cells(&mut self, xml: &mut Xml, sheet: &mut Sheet) -> ExtractResult<()> {
        let mut column = 0_usize;
        while let Some(tag) = xml.child()? {
            let times = tag.number("number-columns-repeated").unwrap_or(1);
            let times = times.min(MAX_COLUMNS);
            let date = tag
                .get("date-value")
                .filter(|date| date.starts_with(|c: char| c.is_ascii_digit()));
            let shown = one_line(&self.inline(xml)?);
            let shown = date.map_or(shown, |date| {
                date.trim_end_matches("T00:00:00").replace('T', " ")
            });
            if !shown.is_empty() {
                for at in column..column + times {
                    sheet.cell(at, shown.clone())?;
                }
            }
            column = (column + times).min(MAX_COLUMNS);
        }
        Ok(())
    }
}
