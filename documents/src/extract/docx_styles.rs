//! The styles and lists of a Word document: which paragraphs are headings, and the numbers that Word computes.

use std::collections::HashMap;

use super::ExtractResult;
use super::numbering::Digits;
use super::xml::Xml;

/// Number of levels of a list.
const LEVELS: usize = 9;
/// The longest chain of styles that are based on each other.
const MAX_STYLE_CHAIN: usize = 16;

/// A paragraph's place in a list: the list and the level, from 0.
#[derive(Debug, Clone, Default)]
pub(super) struct Place {
    /// The list; "0" for no list.
    pub list: Option<String>,
    pub level: Option<usize>,
}

#[derive(Default)]
struct Style {
    /// Level of the heading, from 1.
    heading: Option<u8>,
    based_on: Option<String>,
    place: Place,
}

/// The paragraph styles by their identifier.
#[derive(Default)]
pub(super) struct Styles(HashMap<String, Style>);

impl Styles {
    pub(super) fn read(text: &str) -> ExtractResult<Self> {
        let mut xml = Xml::new(text);
        let mut styles = HashMap::new();
        while let Some(tag) = xml.find("style")? {
            let id = tag.get("styleId").unwrap_or_default();
            styles.insert(id, style(&mut xml)?);
        }
        Ok(Self(styles))
    }

    /// The level of the headings of a style, from 1; `None` if it is not one of headings.
    pub(super) fn heading(&self, id: &str) -> Option<u8> {
        self.chain(id).find_map(|style| style.heading)
    }

    /// The list of the paragraphs of a style.
    pub(super) fn place(&self, id: &str) -> Place {
        Place {
            list: self.chain(id).find_map(|style| style.place.list.clone()),
            level: self.chain(id).find_map(|style| style.place.level),
        }
    }

    fn chain(&self, id: &str) -> impl Iterator<Item = &Style> {
        let next = |style: &&Style| self.0.get(style.based_on.as_ref()?);
        std::iter::successors(self.0.get(id), next).take(MAX_STYLE_CHAIN)
    }
}

fn style(xml: &mut Xml) -> ExtractResult<Style> {
    let mut style = Style::default();
    let mut name = String::new();
    while let Some(tag) = xml.child()? {
        match tag.name() {
            "name" => name = tag.get("val").unwrap_or_default().to_lowercase(),
            "basedOn" => style.based_on = tag.get("val"),
            "pPr" => {
                while let Some(tag) = xml.child()? {
                    match tag.name() {
                        "outlineLvl" => style.heading = heading(tag.number("val")),
                        "numPr" => {
                            style.place = place(xml)?;
                            continue;
                        }
                        _ => {}
                    }
                    xml.skip()?;
                }
                continue;
            }
            _ => {}
        }
        xml.skip()?;
    }
    // The names of the styles of Word are English in all languages.
    if name == "title" {
        style.heading = Some(1);
    } else if let Some(level) = name.strip_prefix("heading ") {
        style.heading = level.trim().parse().ok().or(style.heading);
    }
    Ok(style)
}

/// The level of a heading from the outline level, which counts from 0 and is 9 for text.
pub(super) fn heading(outline: Option<usize>) -> Option<u8> {
    outline
        .filter(|level| *level < LEVELS)
        .map(|level| level as u8 + 1)
}

/// The contents of `numPr`.
pub(super) fn place(xml: &mut Xml) -> ExtractResult<Place> {
    let mut place = Place::default();
    while let Some(tag) = xml.child()? {
        match tag.name() {
            "ilvl" => place.level = tag.number("val"),
            "numId" => place.list = tag.get("val"),
            _ => {}
        }
        xml.skip()?;
    }
    Ok(place)
}

#[derive(Clone, Default)]
struct Level {
    start: u32,
    digits: Digits,
    is_bullet: bool,
    /// The mark with `%1` for the number of the first level.
    mark: String,
    /// Whether all numbers in the mark are decimal.
    is_legal: bool,
}

type Levels = [Level; LEVELS];

/// The lists of a document, and the number of their last items.
#[derive(Default)]
pub(super) struct Lists {
    /// The levels of abstract lists.
    patterns: HashMap<String, Levels>,
    /// Lists with the abstract list that they use.
    lists: HashMap<String, String>,
    /// Numbers at which a list restarts a level: list, level, number.
    restarts: HashMap<(String, usize), u32>,
    /// The last number of each level of an abstract list; 0 if none.
    counters: HashMap<String, [u32; LEVELS]>,
}

impl Lists {
    pub(super) fn read(text: &str) -> ExtractResult<Self> {
        let mut lists = Self::default();
        let mut xml = Xml::new(text);
        if xml.child()?.is_none() {
            return Ok(lists);
        }
        while let Some(tag) = xml.child()? {
            match tag.name() {
                "abstractNum" => {
                    let id = tag.get("abstractNumId").unwrap_or_default();
                    lists.patterns.insert(id, levels(&mut xml)?);
                }
                "num" => {
                    let id = tag.get("numId").unwrap_or_default();
                    lists.add_list(&id, &mut xml)?;
                }
                _ => xml.skip()?,
            }
        }
        Ok(lists)
    }

    fn add_list(&mut self, id: &str, xml: &mut Xml) -> ExtractResult<()> {
        while let Some(tag) = xml.child()? {
            match tag.name() {
                "abstractNumId" => {
                    let pattern = tag.get("val").unwrap_or_default();
                    self.lists.insert(id.to_owned(), pattern);
                    xml.skip()?;
                }
                "lvlOverride" => {
                    let level = tag.number("ilvl").unwrap_or(0);
                    while let Some(tag) = xml.child()? {
                        if tag.name() == "startOverride" {
                            let start = tag.number("val").unwrap_or(1) as u32;
                            self.restarts.insert((id.to_owned(), level), start);
                        }
                        xml.skip()?;
                    }
                }
                _ => xml.skip()?,
            }
        }
        Ok(())
    }

    /// Counts an item and returns its mark: "-" for a bullet, "" for none; `None` if there is no such list.
    pub(super) fn next_mark(&mut self, list: &str, level: usize) -> Option<String> {
        let level = level.min(LEVELS - 1);
        let pattern = self.lists.get(list)?;
        let levels = self.patterns.get(pattern)?;
        let counters = self.counters.entry(pattern.clone()).or_default();
        let restart = self.restarts.remove(&(list.to_owned(), level));
        let first = |level: usize| levels[level].start;
        counters[level] = match (restart, counters[level]) {
            (Some(number), _) => number.max(1),
            (None, 0) => first(level).max(1),
            (None, last) => last.saturating_add(1),
        };
        counters[level + 1..].fill(0);
        // Levels above that have no item yet count as begun.
        for (counter, above) in counters.iter_mut().zip(levels).take(level) {
            *counter = (*counter).max(above.start.max(1));
        }
        let own = &levels[level];
        if own.is_bullet {
            return Some("-".to_owned());
        }
        let mut mark = own.mark.clone();
        for (i, (number, above)) in counters.iter().zip(levels).enumerate().take(level + 1) {
            let digits = if own.is_legal {
                Digits::Decimal
            } else {
                above.digits
            };
            mark = mark.replace(&format!("%{}", i + 1), &digits.write(*number));
        }
        Some(mark.trim().to_owned())
    }
}

fn levels(xml: &mut Xml) -> ExtractResult<Levels> {
    let mut levels = Levels::default();
    while let Some(tag) = xml.child()? {
        let number = tag.number("ilvl").unwrap_or(LEVELS);
        if tag.name() == "lvl" && number < LEVELS {
            levels[number] = level(xml)?;
        } else {
            xml.skip()?;
        }
    }
    Ok(levels)
}

fn level(xml: &mut Xml) -> ExtractResult<Level> {
    let mut level = Level {
        start: 1,
        ..Level::default()
    };
    while let Some(tag) = xml.child()? {
        match tag.name() {
            "start" => level.start = tag.number("val").unwrap_or(1) as u32,
            "numFmt" => {
                let format = tag.get("val").unwrap_or_default();
                level.is_bullet = format == "bullet";
                level.digits = match format.as_str() {
                    "lowerLetter" => Digits::LowerLetter,
                    "upperLetter" => Digits::UpperLetter,
                    "lowerRoman" => Digits::LowerRoman,
                    "upperRoman" => Digits::UpperRoman,
                    "none" => Digits::Nothing,
                    _ => Digits::Decimal,
                };
            }
            "lvlText" => level.mark = tag.get("val").unwrap_or_default(),
            "isLgl" => level.is_legal = tag.is_on(),
            _ => {}
        }
        xml.skip()?;
    }
    Ok(level)
}
