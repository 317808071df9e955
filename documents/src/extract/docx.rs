//! Word documents.
//!
//! The text is that of the document as it is shown with all changes accepted: insertions are kept, deletions and hidden
//! text are left out. Headers, footers and comments are not read. Footnotes and endnotes follow the text.

use std::collections::HashMap;

use super::ExtractResult;
use super::archive::Archive;
use super::builder::{Builder, line};
use super::docx_styles::{Lists, Place, Styles, heading, place};
use super::opc::{self, Relationships};
use super::writer::{Block, Writer, one_line};
use super::xml::Xml;

/// Extracts the text of a document.
pub(super) fn read(archive: &mut Archive) -> ExtractResult<Writer> {
    let main = opc::main_part(archive)?;
    let parts = Relationships::read(archive, &main)?;
    let styles = match part(archive, &parts, "styles")? {
        Some(text) => Styles::read(&text)?,
        None => Styles::default(),
    };
    let lists = match part(archive, &parts, "numbering")? {
        Some(text) => Lists::read(&text)?,
        None => Lists::default(),
    };
    let mut reader = Docx {
        styles,
        lists,
        builder: Builder::new(),
        notes: HashMap::new(),
        carried: String::new(),
        is_hidden: false,
    };
    let text = archive.required(&main)?;
    let mut xml = Xml::new(&text);
    if xml.find("body")?.is_some() {
        reader.blocks(&mut xml)?;
    }
    reader.builder.end_tables()?;
    let rest = std::mem::take(&mut reader.carried);
    reader.builder.block(Block::Paragraph(rest))?;
    let footnotes = part(archive, &parts, "footnotes")?;
    let endnotes = part(archive, &parts, "endnotes")?;
    reader.write_notes(footnotes.as_deref(), endnotes.as_deref())?;
    reader.builder.finish()
}

fn part(
    archive: &mut Archive,
    parts: &Relationships,
    kind: &'static str,
) -> ExtractResult<Option<String>> {
    match parts.of_kind(kind) {
        Some(name) => archive.text(name),
        None => Ok(None),
    }
}

/// A note: whether it is an endnote, and its identifier.
type Note = (bool, String);

struct Docx {
    styles: Styles,
    lists: Lists,
    builder: Builder,
    /// The notes with their numbers.
    notes: HashMap<Note, usize>,
    /// The text of paragraphs whose ends are deleted: it belongs to the next paragraph.
    carried: String,
    /// Whether the run that is read is hidden.
    is_hidden: bool,
}

/// A paragraph while it is read.
#[derive(Default)]
struct Paragraph {
    text: String,
    style: Option<String>,
    place: Place,
    /// The level of the heading that the paragraph itself has; `Some(None)` for text.
    outline: Option<Option<u8>>,
    is_end_deleted: bool,
}

impl Docx {
    /// Reads paragraphs and tables to the end of the element.
    fn blocks(&mut self, xml: &mut Xml) -> ExtractResult<()> {
        while let Some(tag) = xml.child()? {
            match tag.name() {
                "p" => self.paragraph(xml)?,
                "tbl" => {
                    self.builder.begin_table();
                    self.blocks(xml)?;
                    self.builder.end_table()?;
                }
                "tr" => {
                    self.builder.begin_row()?;
                    self.blocks(xml)?;
                    self.builder.end_row()?;
                }
                "tc" => {
                    self.builder.begin_cell();
                    self.blocks(xml)?;
                    self.builder.end_cell();
                }
                "del" | "moveFrom" | "Fallback" | "sdtPr" | "sectPr" | "tblPr" | "tblGrid"
                | "trPr" | "tcPr" => xml.skip()?,
                _ => self.blocks(xml)?,
            }
        }
        Ok(())
    }

    fn paragraph(&mut self, xml: &mut Xml) -> ExtractResult<()> {
        let mut paragraph = Paragraph {
            text: std::mem::take(&mut self.carried),
            ..Paragraph::default()
        };
        let mut boxes = Vec::new();
        self.inline(xml, &mut paragraph, &mut boxes)?;
        if paragraph.is_end_deleted {
            self.carried = paragraph.text;
        } else {
            let block = self.block_of(paragraph);
            self.builder.block(block)?;
        }
        boxes
            .into_iter()
            .try_for_each(|block| self.builder.block(block))
    }

    /// Reads the contents of a paragraph to the end of the element.
    fn inline(
        &mut self,
        xml: &mut Xml,
        paragraph: &mut Paragraph,
        boxes: &mut Vec<Block>,
    ) -> ExtractResult<()> {
        while let Some(tag) = xml.child()? {
            match tag.name() {
                "pPr" => paragraph_properties(xml, paragraph)?,
                "t" => paragraph.text.push_str(&xml.text()?),
                "r" => self.run(xml, paragraph, boxes)?,
                "tab" | "ptab" => {
                    paragraph.text.push('\t');
                    xml.skip()?;
                }
                "br" | "cr" => {
                    paragraph.text.push('\n');
                    xml.skip()?;
                }
                "noBreakHyphen" => {
                    paragraph.text.push('-');
                    xml.skip()?;
                }
                "footnoteReference" | "endnoteReference" => {
                    let is_end = tag.name().starts_with("end");
                    let number = self.note_number(is_end, tag.get("id").unwrap_or_default());
                    paragraph.text.push_str(&format!("[^{number}]"));
                    xml.skip()?;
                }
                "txbxContent" => self.text_box(xml, boxes)?,
                // Formulas.
                "den" | "sup" | "sub" => {
                    paragraph.text.push(match tag.name() {
                        "den" => '/',
                        "sup" => '^',
                        _ => '_',
                    });
                    self.inline(xml, paragraph, boxes)?;
                }
                "rPr" => self.run_properties(xml)?,
                "del" | "moveFrom" | "Fallback" | "instrText" | "delText" | "delInstrText"
                | "rt" | "sdtPr" | "docPr" => xml.skip()?,
                _ => self.inline(xml, paragraph, boxes)?,
            }
        }
        Ok(())
    }

    /// A run; its text is dropped if it is hidden.
    fn run(
        &mut self,
        xml: &mut Xml,
        paragraph: &mut Paragraph,
        boxes: &mut Vec<Block>,
    ) -> ExtractResult<()> {
        let start = paragraph.text.len();
        let outside = std::mem::take(&mut self.is_hidden);
        self.inline(xml, paragraph, boxes)?;
        if std::mem::replace(&mut self.is_hidden, outside) {
            paragraph.text.truncate(start);
        }
        Ok(())
    }

    fn run_properties(&mut self, xml: &mut Xml) -> ExtractResult<()> {
        while let Some(tag) = xml.child()? {
            self.is_hidden |= tag.name() == "vanish" && tag.is_on();
            xml.skip()?;
        }
        Ok(())
    }

    /// A text box: its paragraphs follow the paragraph that it belongs to.
    fn text_box(&mut self, xml: &mut Xml, boxes: &mut Vec<Block>) -> ExtractResult<()> {
        while let Some(tag) = xml.child()? {
            if tag.name() == "p" {
                let mut paragraph = Paragraph::default();
                let mut inner = Vec::new();
                self.inline(xml, &mut paragraph, &mut inner)?;
                boxes.push(self.block_of(paragraph));
                boxes.append(&mut inner);
            } else {
                self.text_box(xml, boxes)?;
            }
        }
        Ok(())
    }

    /// The block of a paragraph: a heading, a list item or text.
    fn block_of(&mut self, paragraph: Paragraph) -> Block {
        let text = paragraph.text;
        if text.trim().is_empty() {
            return Block::Paragraph(String::new());
        }
        let style = paragraph.style.as_deref().unwrap_or_default();
        let of_style = self.styles.place(style);
        let list = paragraph.place.list.or(of_style.list);
        let level = paragraph.place.level.or(of_style.level).unwrap_or(0);
        let mark = list.and_then(|list| self.lists.next_mark(&list, level));
        let heading = match paragraph.outline {
            Some(own) => own,
            None => self.styles.heading(style),
        };
        match (heading, mark) {
            (Some(level), Some(mark)) if mark != "-" => {
                Block::Heading(level, format!("{mark} {text}"))
            }
            (Some(level), _) => Block::Heading(level, text),
            (None, Some(mark)) if !mark.is_empty() => Block::Item(level, mark, text),
            (None, _) => Block::Paragraph(text),
        }
    }

    /// The number of a note, from 1 in the order of the text.
    fn note_number(&mut self, is_end: bool, id: String) -> usize {
        let note = (is_end, id);
        let known = self.notes.get(&note).copied();
        let next = self.notes.len() + 1;
        known.unwrap_or_else(|| {
            self.notes.insert(note, next);
            next
        })
    }

    /// Writes the notes that the text mentions, in the order of their numbers.
    fn write_notes(
        &mut self,
        footnotes: Option<&str>,
        endnotes: Option<&str>,
    ) -> ExtractResult<()> {
        let mut found: Vec<(usize, String)> = Vec::new();
        for (is_end, text) in [(false, footnotes), (true, endnotes)] {
            let name = if is_end { "endnote" } else { "footnote" };
            let mut xml = Xml::new(text.unwrap_or_default());
            while let Some(tag) = xml.find(name)? {
                let id = tag.get("id").unwrap_or_default();
                let mut blocks = Vec::new();
                let number = self.notes.get(&(is_end, id)).copied();
                self.text_box(&mut xml, &mut blocks)?;
                if let Some(number) = number {
                    found.push((number, one_line(&line(&blocks))));
                }
            }
        }
        found.sort();
        found.into_iter().try_for_each(|(number, text)| {
            let text = format!("[^{number}]: {text}");
            self.builder.block(Block::Paragraph(text))
        })
    }
}

/// The properties of a paragraph, to the end of the element.
fn paragraph_properties(xml: &mut Xml, paragraph: &mut Paragraph) -> ExtractResult<()> {
    while let Some(tag) = xml.child()? {
        match tag.name() {
            "pStyle" => paragraph.style = tag.get("val"),
            "outlineLvl" => paragraph.outline = Some(heading(tag.number("val"))),
            "numPr" => {
                paragraph.place = place(xml)?;
                continue;
            }
            "rPr" => {
                while let Some(tag) = xml.child()? {
                    paragraph.is_end_deleted |= matches!(tag.name(), "del" | "moveFrom");
                    xml.skip()?;
                }
                continue;
            }
            _ => {}
        }
        xml.skip()?;
    }
    Ok(())
}
