//! Drawn glyphs to lines of text.
//!
//! A PDF places glyphs; words, lines and paragraphs are in the gaps between them. Glyphs are taken in the order in which
//! they are drawn, which in practice is the order of reading, columns included. Nothing is sorted or re-joined: a word
//! hyphenated at a line end stays hyphenated.
//!
//! ```text
//!   previous glyph        next glyph
//!   +----+   along > 0.12 em: space, > 4 em: tab
//!   |    |<-------->+----+
//!   +----+          |    |  ^ across > 0.6 em: line; more than the usual pitch, or upwards: blank line
//!                   +----+  v
//! ```

use std::sync::atomic::{AtomicBool, Ordering};

use pdf_extract::{MediaBox, OutputDev, OutputError, Transform};

/// A space is at least this wide, in em. Kerning stays below it, the tightest justified spaces above.
const SPACE: f64 = 0.12;
/// Cells of a table are at least this far apart, in em.
const TAB: f64 = 4.0;
/// A baseline that moves by this, in em, is another line; indices and exponents move less.
const LINE: f64 = 0.6;
/// A line further below than this many usual pitches begins a paragraph.
const PARAGRAPH: f64 = 1.35;
/// The usual pitch until two lines were seen, in em.
const PITCH: f64 = 1.5;

/// The text of one page.
pub(crate) struct PageText {
    pub text: String,
    /// Characters that are not white space.
    pub letters: usize,
    /// Those of them that the font does not name.
    pub nameless: usize,
}

/// Where a glyph stands, in points.
#[derive(Clone, Copy)]
struct Glyph {
    x: f64,
    y: f64,
    /// Direction of the line, of length 1.
    direction: (f64, f64),
    /// Height of the font.
    em: f64,
    /// How far the next glyph is moved along the line.
    advance: f64,
}

/// Collects one page.
pub(crate) struct Layout<'a> {
    page: PageText,
    last: Option<(Glyph, String)>,
    /// Distance of the last two lines in em, of those that follow each other closely.
    pitch: Option<f64>,
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
        };
        Self {
            page,
            last: None,
            pitch: None,
            stop,
            most,
        }
    }

    pub(crate) fn finish(mut self) -> PageText {
        self.page.text.truncate(self.page.text.trim_end().len());
        self.page
    }

    /// Ends the line; a blank line begins a paragraph.
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

    /// The white space between the last glyph and `next`.
    fn move_to(&mut self, next: &Glyph) {
        let Some((last, _)) = &self.last else { return };
        let em = last.em.max(next.em);
        let (dx, dy) = (next.x - last.x, next.y - last.y);
        let along = dx * last.direction.0 + dy * last.direction.1 - last.advance;
        // Down is positive.
        let across = dx * last.direction.1 - dy * last.direction.0;
        let has_turned =
            last.direction.0 * next.direction.0 + last.direction.1 * next.direction.1 < 0.9;

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
            // Back to the left on the same line: another block, as in forms.
            self.end_line(false);
        } else if along > TAB * em {
            self.space('\t');
        } else if along > SPACE * em {
            self.space(' ');
        }
    }

    fn write(&mut self, glyph: &str) {
        for c in glyph.chars() {
            match c {
                // Typographic forms of letter pairs, which neither people nor models type.
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
        // Word spacing comes with the space itself and is no gap; letter spacing between letters is none either.
        let advance = (width * font_size + spacing) * scale;
        let direction = (place.m11 / scale, place.m12 / scale);
        let next = Glyph {
            x: place.m31,
            y: place.m32,
            direction,
            em,
            advance,
        };
        if let Some((last, drawn)) = &self.last
            && drawn == glyph
            && !is_blank
            && (next.x - last.x).hypot(next.y - last.y) < 0.1 * em
        {
            // Drawn twice to look bold.
            return Ok(());
        }
        if is_blank {
            // A space may be drawn anywhere, even at the end of a line already left: only its gap counts, below.
            if let Some((last, _)) = &self.last {
                let across =
                    (next.x - last.x) * last.direction.1 - (next.y - last.y) * last.direction.0;
                if across.abs() <= LINE * em {
                    self.space(' ');
                }
            }
            return Ok(());
        }
        self.move_to(&next);
        self.write(glyph);
        self.last = Some((next, glyph.to_owned()));
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
