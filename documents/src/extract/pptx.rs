//! PowerPoint presentations: each slide is a page, with its title as heading and the speaker's notes at its end.

use super::ExtractResult;
use super::archive::Archive;
use super::builder::Builder;
use super::opc::{self, Relationships};
use super::writer::{Block, Writer, one_line};
use super::xml::Xml;

/// Extracts the slides in the order of the presentation.
pub(super) fn read(archive: &mut Archive) -> ExtractResult<Writer> {
    let main = opc::main_part(archive)?;
    let parts = Relationships::read(archive, &main)?;
    let text = archive.required(&main)?;
    let mut slides = Vec::new();
    Xml::new(&text).for_each("sldId", |tag| {
        let id = tag.get_prefixed("id").unwrap_or_default();
        slides.extend(parts.of_id(&id).map(str::to_owned));
    })?;
    let mut builder = Builder::new();
    for (i, name) in slides.iter().enumerate() {
        slide(archive, name, i + 1, &mut builder)?;
    }
    builder.finish()
}

fn slide(
    archive: &mut Archive,
    name: &str,
    number: usize,
    builder: &mut Builder,
) -> ExtractResult<()> {
    let parts = Relationships::read(archive, name)?;
    let mut slide = Shapes::read(archive, Some(name), true)?;
    for diagram in parts.all_of_kind("diagramData") {
        let text = archive.text(diagram)?.unwrap_or_default();
        let mut xml = Xml::new(&text);
        while xml.find("pt")?.is_some() {
            slide.text(&mut xml, Role::List)?;
        }
    }
    let notes = Shapes::read(archive, parts.of_kind("notesSlide"), false)?;
    builder.out.begin_page();
    builder.block(Block::Heading(1, heading(number, &slide.title)))?;
    let blocks = slide.builder.collected()?;
    let notes = spoken(notes.builder.collected()?);
    (blocks.into_iter().chain(notes)).try_for_each(|block| builder.block(block))
}

/// The heading of a slide: its number, by which people call it, and its title.
pub(super) fn heading(number: usize, title: &str) -> String {
    match one_line(title) {
        title if title.is_empty() => format!("Slide {number}"),
        title => format!("Slide {number}: {title}"),
    }
}

/// The speaker's notes, marked as such.
pub(super) fn spoken(mut notes: Vec<Block>) -> Vec<Block> {
    match notes.first_mut() {
        Some(Block::Paragraph(text)) => *text = format!("Notes: {text}"),
        Some(_) => notes.insert(0, Block::Paragraph("Notes:".to_owned())),
        None => {}
    }
    notes
}

/// What the text of a shape is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Title,
    /// Paragraphs with bullets unless they say otherwise.
    List,
    /// Paragraphs without bullets unless they say otherwise.
    Plain,
    /// Dates, page numbers and footers, which every slide repeats.
    Running,
}

/// The text of a slide, or of its notes.
struct Shapes {
    title: String,
    builder: Builder,
    /// Whether placeholders have bullets: on slides, not in notes.
    has_bullets: bool,
}

/// A paragraph of a shape.
struct Paragraph {
    text: String,
    level: usize,
    /// Whether the paragraph has a bullet; `None` if the shape decides.
    bullet: Option<bool>,
    is_numbered: bool,
}

impl Shapes {
    /// Reads a part; a missing one has no text.
    fn read(archive: &mut Archive, name: Option<&str>, has_bullets: bool) -> ExtractResult<Self> {
        let mut shapes = Self {
            title: String::new(),
            builder: Builder::collector(),
            has_bullets,
        };
        let text = name.map_or(Ok(None), |name| archive.text(name))?;
        let mut xml = Xml::new(text.as_deref().unwrap_or_default());
        if xml.find("spTree")?.is_some() {
            shapes.tree(&mut xml, Role::Plain)?;
        }
        Ok(shapes)
    }

    /// Reads shapes and tables to the end of the element.
    fn tree(&mut self, xml: &mut Xml, mut role: Role) -> ExtractResult<()> {
        while let Some(tag) = xml.child()? {
            match tag.name() {
                "sp" => self.tree(xml, Role::Plain)?,
                "nvSpPr" => role = placeholder(xml, role)?,
                "txBody" => self.text(xml, role)?,
                "tbl" => {
                    self.builder.begin_table();
                    self.tree(xml, Role::Plain)?;
                    self.builder.end_table()?;
                }
                "tr" => {
                    self.tree(xml, Role::Plain)?;
                    self.builder.end_row()?;
                }
                "tc" => {
                    self.builder.begin_cell();
                    self.tree(xml, Role::Plain)?;
                    self.builder.end_cell();
                }
                "Fallback" => xml.skip()?,
                _ => self.tree(xml, role)?,
            }
        }
        Ok(())
    }

    /// The paragraphs of a shape, to the end of the element.
    fn text(&mut self, xml: &mut Xml, role: Role) -> ExtractResult<()> {
        let mut paragraphs = Vec::new();
        find_paragraphs(xml, &mut paragraphs)?;
        paragraphs.retain(|paragraph| !paragraph.text.trim().is_empty());
        match role {
            Role::Running => return Ok(()),
            Role::Title => {
                for paragraph in paragraphs {
                    self.title.push(' ');
                    self.title.push_str(&paragraph.text);
                }
                return Ok(());
            }
            Role::List | Role::Plain => {}
        }
        // A single paragraph is no list.
        let is_list = self.has_bullets && role == Role::List && paragraphs.len() > 1;
        let mut number = 0;
        for Paragraph {
            text,
            level,
            bullet,
            is_numbered,
        } in paragraphs
        {
            number = if is_numbered { number + 1 } else { 0 };
            let block = if is_numbered {
                Block::Item(level, format!("{number}."), text)
            } else if bullet.unwrap_or(is_list) {
                Block::Item(level, "-".to_owned(), text)
            } else {
                Block::Paragraph(text)
            };
            self.builder.block(block)?;
        }
        Ok(())
    }
}

/// The role that the properties of a shape give its text, to the end of the element.
fn placeholder(xml: &mut Xml, mut role: Role) -> ExtractResult<Role> {
    while let Some(tag) = xml.child()? {
        if tag.name() == "ph" {
            role = match tag.get("type").as_deref() {
                Some("title" | "ctrTitle") => Role::Title,
                Some("dt" | "ftr" | "hdr" | "sldNum" | "sldImg") => Role::Running,
                Some("subTitle") => Role::Plain,
                _ => Role::List,
            };
        }
        role = placeholder(xml, role)?;
    }
    Ok(role)
}

/// Appends the paragraphs in the element, to its end.
fn find_paragraphs(xml: &mut Xml, found: &mut Vec<Paragraph>) -> ExtractResult<()> {
    while let Some(tag) = xml.child()? {
        if tag.name() == "p" {
            let mut paragraph = Paragraph {
                text: String::new(),
                level: 0,
                bullet: None,
                is_numbered: false,
            };
            inline(xml, &mut paragraph)?;
            found.push(paragraph);
        } else {
            find_paragraphs(xml, found)?;
        }
    }
    Ok(())
}

fn inline(xml: &mut Xml, paragraph: &mut Paragraph) -> ExtractResult<()> {
    while let Some(tag) = xml.child()? {
        match tag.name() {
            "pPr" => {
                paragraph.level = tag.number("lvl").unwrap_or(0);
                inline(xml, paragraph)?;
            }
            "t" => paragraph.text.push_str(&xml.text()?),
            "br" => {
                paragraph.text.push('\n');
                xml.skip()?;
            }
            "buNone" | "buChar" | "buBlip" => {
                paragraph.bullet = Some(tag.name() != "buNone");
                xml.skip()?;
            }
            "buAutoNum" => {
                paragraph.is_numbered = true;
                xml.skip()?;
            }
            _ => inline(xml, paragraph)?,
        }
    }
    Ok(())
}
