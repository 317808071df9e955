//! Drawn glyphs to lines of text.
//!
//! A PDF contains positioned glyphs; the gaps between them define words, lines and paragraphs. Glyphs are processed in
//! drawing order, which in practice is the reading order, also in columns. Nothing is sorted; `pdf_tables` writes the rows of
//! tables, `hyphens` joins words that a line divides.
//!
//! ```text
//!   previous glyph        next glyph
//!   +----+   along > 0.12 em: space, > 4 em: tab
//!   |    |<-------->+----+
//!   +----+          |    |  ^ across > 0.6 em: line; more than the usual line pitch, or upwards: blank line
//!                   +----+  v
//! ```
//!
//! An accent that is drawn over a letter as a glyph of its own is written as one accented letter.

use std::sync::atomic::{AtomicBool, Ordering};

use pdf_extract::{ColorSpace, MediaBox, OutputDev, OutputError, Path, Transform};
use unicode_normalization::char::compose;

use crate::pdf_headings::Sizes;
use crate::pdf_tables::{self, CELL, Piece};
use crate::{pdf_annotations, pdf_bidi};

/// Minimum width of a space, in em. Kerning is smaller; the tightest justified spaces are larger.
const SPACE: f64 = 0.12;
/// Minimum distance between table cells, in em.
const TAB: f64 = 4.0;
/// Minimum shift of the baseline that begins a new line, in em; subscripts and superscripts shift less.
const LINE: f64 = 0.6;
/// A line that is at least this many usual pitches below the last line begins a paragraph.
const PARAGRAPH: f64 = 1.35;
/// The usual line pitch before two lines have been seen, in em.
const PITCH: f64 = 1.5;
/// Minimum letter spacing that is a gap, in em: Ghostscript moves to the next word by it.
const WIDE: f64 = 0.2;
/// As many gaps in a row by letter spacing are a spaced heading instead.
const SPACED: usize = 3;
/// Accents as glyphs of their own, and their combining characters.
const ACCENTS: [(char, char); 12] = [
    ('`', '\u{300}'),
    ('´', '\u{301}'),
    ('ˆ', '\u{302}'),
    ('˜', '\u{303}'),
    ('¯', '\u{304}'),
    ('˘', '\u{306}'),
    ('˙', '\u{307}'),
    ('¨', '\u{308}'),
    ('˚', '\u{30a}'),
    ('˝', '\u{30b}'),
    ('ˇ', '\u{30c}'),
    ('¸', '\u{327}'),
];

/// The text of one page.
pub(crate) struct PageText {
    pub text: String,
    /// Characters that are not white space.
    pub letters: usize,
    /// Characters among `letters` that the font does not map to Unicode.
    pub nameless: usize,
    /// Sizes of the letters.
    pub sizes: Sizes,
}

/// The position of a glyph, in points.
#[derive(Clone, Copy)]
struct Glyph {
    x: f64,
    y: f64,
    /// Direction of the line, a unit vector.
    direction: (f64, f64),
    /// Height of the font.
    em: f64,
    /// Distance along the line to the expected start of the next glyph, `spacing` included.
    advance: f64,
    /// Letter spacing.
    spacing: f64,
}

impl Glyph {
    /// Distances from this glyph's start to that of `next`: along the line, and across, where down is positive.
    fn to(&self, next: &Glyph) -> (f64, f64) {
        let (dx, dy) = (next.x - self.x, next.y - self.y);
        let (along_x, along_y) = self.direction;
        (dx * along_x + dy * along_y, dx * along_y - dy * along_x)
    }

    /// Whether `next` runs in another direction.
    fn turns(&self, next: &Glyph) -> bool {
        self.direction.0 * next.direction.0 + self.direction.1 * next.direction.1 < 0.9
    }

    /// False for a font without widths, which draws all letters of a word at one place.
    fn has_width(&self) -> bool {
        self.advance > 0.1 * self.em
    }
}

/// Collects the text of one page.
pub(crate) struct Layout<'a> {
    page: PageText,
    last: Option<(Glyph, String)>,
    /// Distance in em between the last two lines that belonged to one paragraph.
    pitch: Option<f64>,
    /// Where the text has gaps by letter spacing, as many as follow each other without another gap.
    spaced: Vec<usize>,
    pieces: Vec<Piece>,
    /// How many more Arabic or Hebrew letters stand right of the one drawn before than left of it.
    rightwards: i32,
    /// The first piece of each annotation; they are drawn after the page.
    annotations: Vec<usize>,
    stop: &'a AtomicBool,
    /// The most text, in bytes.
    most: usize,
}

impl<'a> Layout<'a> {
    pub(crate) fn new(stop: &'a AtomicBool, most: usize) -> Self {
        let page = PageText {
            text: String::new(),
            letters: 0,
            nameless: 0,
            sizes: Sizes::new(),
        };
        Self {
            page,
            last: None,
            pitch: None,
            spaced: Vec::new(),
            pieces: Vec::new(),
            rightwards: 0,
            annotations: Vec::new(),
            stop,
            most,
        }
    }

    pub(crate) fn finish(mut self) -> PageText {
        self.page.text.truncate(self.page.text.trim_end().len());
        let (text, sizes) = (&mut self.page.text, &mut self.page.sizes);
        if self.rightwards > 0 {
            pdf_bidi::reorder(text, &self.pieces);
        }
        pdf_annotations::move_to_labels(text, &mut self.pieces, sizes, &self.annotations);
        self.page.text = pdf_tables::write(self.page.text, &self.pieces, &mut self.page.sizes);
        self.page
    }

    /// Notes where the text of `glyph` stands; it begins a piece behind a wide gap.
    fn place(&mut self, glyph: &Glyph) {
        let right = glyph.x + glyph.advance - glyph.spacing;
        let begins = self.last.as_ref().is_none_or(|(last, _)| {
            let (along, across) = last.to(glyph);
            let gap = along - last.advance;
            let em = last.em.max(glyph.em);
            across.abs() > LINE * em || gap > CELL * em || gap < -TAB * em || last.turns(glyph)
        });
        match self.pieces.last_mut() {
            Some(piece) if !begins => piece.right = piece.right.max(right),
            _ => self.pieces.push(Piece {
                start: self.page.text.len(),
                left: glyph.x,
                right,
                down: -glyph.y,
                em: glyph.em,
                is_upright: glyph.direction.0 > 0.99,
            }),
        }
    }

    /// Ends the line; with a blank line if a paragraph begins.
    fn end_line(&mut self, is_paragraph: bool) {
        let text = &mut self.page.text;
        text.truncate(text.trim_end().len());
        if !text.is_empty() {
            text.push_str(if is_paragraph { "\n\n" } else { "\n" });
        }
    }

    fn space(&mut self, space: char) {
        if !self.page.text.is_empty() && !self.page.text.ends_with(char::is_whitespace) {
            self.page.text.push(space);
        }
    }

    /// Writes the white space between the last glyph and `next`.
    fn move_to(&mut self, next: &Glyph) {
        let Some((last, _)) = &self.last else { return };
        let em = last.em.max(next.em);
        let (along, across) = last.to(next);
        let along = along - last.advance;
        let has_turned = last.turns(next);
        let is_wide = last.spacing >= WIDE * em && along.abs() <= SPACE * em;
        if !is_wide || has_turned || across.abs() > LINE * em {
            self.spaced.clear();
        }

        if has_turned || across < -LINE * em {
            self.end_line(true);
        } else if across > LINE * em {
            let usual = self.pitch.unwrap_or(PITCH);
            let pitch = across / em;
            if pitch < usual * PARAGRAPH {
                self.pitch = Some(pitch);
            }
            self.end_line(pitch >= usual * PARAGRAPH);
        } else if along < -TAB * em {
            // A jump back to the left on the same line: another block, as in forms.
            self.end_line(false);
        } else if along > TAB * em {
            self.space('\t');
        } else if along > SPACE * em {
            self.space(' ');
        } else if is_wide {
            self.letter_space();
        }
    }

    /// Writes a gap by letter spacing. In a spaced heading there is none, and those before are removed.
    fn letter_space(&mut self) {
        self.spaced.push(self.page.text.len());
        if self.spaced.len() < SPACED {
            self.space(' ');
        } else if self.spaced.len() == SPACED {
            for &at in self.spaced[..SPACED - 1].iter().rev() {
                if self.page.text[at..].starts_with(' ') {
                    self.page.text.remove(at);
                }
            }
        }
    }

    /// The accented letter, if one of the last glyph and `next` is an accent over the other, a letter.
    fn accented(&self, next: &Glyph, glyph: &str) -> Option<char> {
        let (last, drawn) = self.last.as_ref()?;
        let (along, across) = last.to(next);
        let width = last.advance - last.spacing;
        if !last.has_width() || along.abs() > 0.5 * width || across.abs() > LINE * last.em {
            return None;
        }
        let (first, second) = (only(drawn)?, only(glyph)?);
        let mark = |accent| ACCENTS.iter().find(|known| known.0 == accent);
        let (letter, mark) = match (mark(first), mark(second)) {
            (Some(&(_, mark)), None) => (second, mark),
            (None, Some(&(_, mark))) => (first, mark),
            _ => return None,
        };
        let letter = match letter {
            'ı' => 'i',
            'ȷ' => 'j',
            other => other,
        };
        let ends_with_it = self.page.text.ends_with(drawn.as_str());
        compose(letter, mark).filter(|_| ends_with_it)
    }

    fn write(&mut self, glyph: &str) {
        for c in glyph.chars() {
            match c {
                // Ligatures, which neither users nor models type.
                '\u{fb00}' => self.letters("ff", false),
                '\u{fb01}' => self.letters("fi", false),
                '\u{fb02}' => self.letters("fl", false),
                '\u{fb03}' => self.letters("ffi", false),
                '\u{fb04}' => self.letters("ffl", false),
                '\u{fb05}' | '\u{fb06}' => self.letters("st", false),
                _ if c.is_whitespace() => self.space(' '),
                '\u{fffd}' | '\u{e000}'..='\u{f8ff}' => self.letters("\u{fffd}", true),
                _ if c.is_control() => self.letters("\u{fffd}", true),
                _ => self.letters(c.encode_utf8(&mut [0; 4]), false),
            }
        }
    }

    fn letters(&mut self, letters: &str, is_nameless: bool) {
        self.page.text.push_str(letters);
        self.page.letters += 1;
        self.page.nameless += usize::from(is_nameless);
    }
}

/// The character of a text of one.
fn only(text: &str) -> Option<char> {
    let mut all = text.chars();
    all.next().filter(|_| all.next().is_none())
}

impl OutputDev for Layout<'_> {
    fn begin_page(
        &mut self,
        _: u32,
        _: &MediaBox,
        _: Option<(f64, f64, f64, f64)>,
    ) -> Result<(), OutputError> {
        Ok(())
    }

    fn end_page(&mut self) -> Result<(), OutputError> {
        Ok(())
    }

    fn output_character(
        &mut self,
        place: &Transform,
        width: f64,
        spacing: f64,
        font_size: f64,
        glyph: &str,
    ) -> Result<(), OutputError> {
        if self.stop.load(Ordering::Relaxed) || self.page.text.len() > self.most {
            return Err(OutputError::FormatError(std::fmt::Error));
        }
        let scale = place.m11.hypot(place.m12);
        let em = (place.m21.hypot(place.m22) * font_size).abs();
        let is_blank = glyph.chars().all(char::is_whitespace);
        if !(scale > 0.0 && em > 0.0 && scale.is_finite() && em.is_finite()) {
            self.write(glyph);
            return Ok(());
        }
        // The advance includes word and letter spacing, so neither counts as a gap, unless it is wide.
        let advance = (width * font_size + spacing) * scale;
        let direction = (place.m11 / scale, place.m12 / scale);
        let next = Glyph {
            x: place.m31,
            y: place.m32,
            direction,
            em,
            advance,
            spacing: spacing * scale,
        };
        if let Some((last, drawn)) = &self.last
            && drawn == glyph
            && !is_blank
            && last.has_width()
            && (next.x - last.x).hypot(next.y - last.y) < 0.1 * em
        {
            // The same glyph drawn twice imitates bold.
            return Ok(());
        }
        if is_blank {
            // A space glyph may be drawn anywhere, even on an earlier line. It counts only on the current line.
            if let Some((last, _)) = &self.last
                && last.to(&next).1.abs() <= LINE * em
            {
                self.space(' ');
                self.spaced.clear();
            }
            return Ok(());
        }
        if let Some(letter) = self.accented(&next, glyph) {
            self.page.text.pop();
            self.page.text.push(letter);
            self.last = Some((next, letter.to_string()));
            return Ok(());
        }
        let is_rtl = glyph.contains(pdf_bidi::is_rtl);
        if let Some((last, drawn)) = &self.last
            && is_rtl
            && drawn.contains(pdf_bidi::is_rtl)
            && last.to(&next).1.abs() < LINE * em
        {
            self.rightwards += if last.to(&next).0 > 0.0 { 1 } else { -1 };
        }
        self.move_to(&next);
        self.place(&next);
        let size = (em * 10.0).round() as u32;
        if self.page.sizes.last().is_none_or(|last| last.1 != size) {
            self.page.sizes.push((self.page.text.len(), size));
        }
        match is_rtl && self.rightwards >= 0 {
            // All letters of a line are reversed, those of a ligature too.
            true => self.write(&glyph.chars().rev().collect::<String>()),
            false => self.write(glyph),
        }
        self.last = Some((next, glyph.to_owned()));
        Ok(())
    }

    /// An annotation or a field begins ([`crate::pdf_content::clean_page`]).
    fn fill(
        &mut self,
        _: &Transform,
        _: &ColorSpace,
        _: &[f64],
        _: &Path,
    ) -> Result<(), OutputError> {
        self.end_line(true);
        (self.last, self.pitch) = (None, None);
        self.spaced.clear();
        self.annotations.push(self.pieces.len());
        Ok(())
    }

    fn begin_word(&mut self) -> Result<(), OutputError> {
        Ok(())
    }

    fn end_word(&mut self) -> Result<(), OutputError> {
        Ok(())
    }

    fn end_line(&mut self) -> Result<(), OutputError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(OutputError::FormatError(std::fmt::Error));
        }
        Ok(())
    }
}
