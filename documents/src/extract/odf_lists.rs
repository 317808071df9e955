//! The lists and the numbered headings of OpenDocument files.

use std::collections::HashMap;

use super::ExtractResult;
use super::numbering::Digits;
use super::xml::{Tag, Xml};

/// Number of levels of a list.
const LEVELS: usize = 10;

#[derive(Clone, Default)]
struct Level {
    is_number: bool,
    before: String,
    after: String,
    digits: Digits,
    /// How many levels the number shows, with its own.
    shown: usize,
    start: u32,
}

/// The levels of the list styles by name. Headings have the style with the empty name.
#[derive(Default)]
pub(super) struct ListStyles(HashMap<String, Vec<Level>>);

/// The numbers of the last items, by level; 0 if none.
pub(super) type Counters = [u32; LEVELS];

impl ListStyles {
    /// Adds the styles in a part.
    pub(super) fn add(&mut self, text: &str) -> ExtractResult<()> {
        let mut xml = Xml::new(text);
        // Only the styles: the text follows.
        while let Some(tag) = xml.child()? {
            if tag.name() != "body" {
                self.find(tag, &mut xml)?;
            } else {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Adds the styles in an element, to its end.
    pub(super) fn find(&mut self, outer: Tag, xml: &mut Xml) -> ExtractResult<()> {
        if matches!(outer.name(), "list-style" | "outline-style") {
            let is_outline = outer.name() == "outline-style";
            let name = if is_outline { None } else { outer.get("name") };
            let levels = levels(xml)?;
            self.0.insert(name.unwrap_or_default(), levels);
            return Ok(());
        }
        if outer.name() == "body" {
            return xml.skip();
        }
        while let Some(tag) = xml.child()? {
            self.find(tag, xml)?;
        }
        Ok(())
    }

    /// Counts an item of a level, from 0, and returns its mark: "-" for a bullet, "" for none.
    pub(super) fn next_mark(&self, style: &str, level: usize, counters: &mut Counters) -> String {
        let level = level.min(LEVELS - 1);
        let levels = self.0.get(style);
        let of = |level: usize| levels.and_then(|levels| levels.get(level));
        let start = |level: usize| of(level).map_or(1, |level| level.start.max(1));
        counters[level] = match counters[level] {
            0 => start(level),
            last => last.saturating_add(1),
        };
        counters[level + 1..].fill(0);
        let Some(own) = of(level).filter(|own| own.is_number) else {
            return if style.is_empty() { "" } else { "-" }.to_owned();
        };
        let first = (level + 1).saturating_sub(own.shown.max(1));
        let numbers: Vec<String> = (first..=level)
            .filter_map(|above| {
                let digits = of(above)?.digits;
                let number = counters[above].max(start(above));
                Some(digits.write(number)).filter(|text| !text.is_empty())
            })
            .collect();
        if numbers.is_empty() {
            return String::new();
        }
        let mark = format!("{}{}{}", own.before, numbers.join("."), own.after);
        mark.trim().to_owned()
    }
}

fn levels(xml: &mut Xml) -> ExtractResult<Vec<Level>> {
    let mut levels = vec![Level::default(); LEVELS];
    while let Some(tag) = xml.child()? {
        let number = tag.number("level").unwrap_or(0);
        if let Some(level) = number.checked_sub(1).and_then(|at| levels.get_mut(at)) {
            let format = tag.get("num-format").unwrap_or_default();
            *level = Level {
                is_number: tag.name() != "list-level-style-bullet",
                before: tag.get("num-prefix").unwrap_or_default(),
                after: tag.get("num-suffix").unwrap_or_default(),
                digits: match format.as_str() {
                    "" => Digits::Nothing,
                    "a" => Digits::LowerLetter,
                    "A" => Digits::UpperLetter,
                    "i" => Digits::LowerRoman,
                    "I" => Digits::UpperRoman,
                    _ => Digits::Decimal,
                },
                shown: tag.number("display-levels").unwrap_or(1),
                start: tag.number("start-value").unwrap_or(1) as u32,
            };
        }
        xml.skip()?;
    }
    Ok(levels)
}
