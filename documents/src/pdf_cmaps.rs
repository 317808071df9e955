//! Fonts with predefined CMaps (ISO 32000-1, 9.7.5.2): their strings are in an encoding such as Shift-JIS.
//!
//! The drawing library knows `Identity-H` only. So such a font becomes one of `Identity-H` whose codes are UTF-16: the
//! strings of each page are recoded, and a `ToUnicode` map says that a code is its own character.

use std::collections::{BTreeSet, HashMap};

use encoding_rs::{BIG5, EUC_JP, EUC_KR, Encoding, GB18030, SHIFT_JIS, UTF_8, UTF_16BE};
use pdf_extract::{Document as Pdf, Object, ObjectId};

use crate::pdf_to_unicode;

/// Widths of the letters from the space to the tilde, in thousandths of the font's size: about half of a Chinese
/// character's. The file's own are of glyph numbers.
const LATIN: (i64, usize, i64) = (32, 95, 500);

/// The most widths that ranges of one font are written as: twice for every code.
const MAX_WIDTHS: usize = 2 << 16;

/// The fonts of a PDF whose strings are recoded.
#[derive(Default)]
pub(crate) struct RecodedFonts {
    fonts: HashMap<ObjectId, RecodedFont>,
}

struct RecodedFont {
    encoding: &'static Encoding,
    /// Bytes lack their highest bit (the CMaps `H` and `V`).
    seven_bits: bool,
    to_unicode: ObjectId,
}

/// The code units that each recoded font shows on a page.
#[derive(Default)]
pub(crate) struct ShownUnits {
    units: HashMap<ObjectId, BTreeSet<u16>>,
}

impl RecodedFonts {
    /// Prepares all fonts of `pdf`. Those with an unknown CMap lose their own text only.
    pub(crate) fn prepare(pdf: &mut Pdf) -> Self {
        write_out_widths(pdf);
        let composite = pdf.objects.iter().filter_map(|(id, object)| {
            let font = object.as_dict().ok()?;
            let is_composite = font.get(b"Subtype").and_then(Object::as_name).ok()? == b"Type0";
            let name = font.get_deref(b"Encoding", pdf).and_then(Object::as_name);
            let cmap = String::from_utf8_lossy(name.ok()?).into_owned();
            (is_composite && !cmap.starts_with("Identity-")).then_some((*id, cmap))
        });
        let composite: Vec<(ObjectId, String)> = composite.collect();
        let mut fonts = HashMap::new();
        for (id, cmap) in composite {
            let encoding = encoding_of(&cmap);
            let to_unicode = encoding.map(|_| pdf.add_object(map_of(&BTreeSet::new())));
            if let Ok(font) = pdf.get_object_mut(id).and_then(Object::as_dict_mut) {
                font.set("Encoding", Object::Name(b"Identity-H".to_vec()));
                if let Some(to_unicode) = to_unicode {
                    font.set("ToUnicode", Object::Reference(to_unicode));
                }
            }
            if let (Some((encoding, seven_bits)), Some(to_unicode)) = (encoding, to_unicode) {
                set_widths(pdf, id);
                let font = RecodedFont {
                    encoding,
                    seven_bits,
                    to_unicode,
                };
                fonts.insert(id, font);
            }
        }
        Self { fonts }
    }

    pub(crate) fn contains(&self, font: ObjectId) -> bool {
        self.fonts.contains_key(&font)
    }

    /// Recodes the strings of an operation that shows text in `font`.
    pub(crate) fn recode(&self, font: ObjectId, operands: &mut [Object], shown: &mut ShownUnits) {
        let Some(own) = self.fonts.get(&font) else {
            return;
        };
        let units = shown.units.entry(font).or_default();
        for operand in operands {
            match operand {
                Object::String(bytes, _) => own.recode(bytes, units),
                Object::Array(parts) => {
                    for part in parts {
                        if let Object::String(bytes, _) = part {
                            own.recode(bytes, units);
                        }
                    }
                }
                _ => {}
            }
        }
    }

    /// Writes the maps of a page. Maps of all characters would take longer than drawing it.
    pub(crate) fn write_maps(&self, pdf: &mut Pdf, shown: &ShownUnits) {
        for (font, units) in &shown.units {
            let to_unicode = self.fonts[font].to_unicode;
            pdf.objects.insert(to_unicode, map_of(units));
        }
    }
}

impl RecodedFont {
    fn recode(&self, bytes: &mut Vec<u8>, shown: &mut BTreeSet<u16>) {
        if self.seven_bits {
            bytes.iter_mut().for_each(|byte| *byte |= 0x80);
        }
        let (text, _) = self.encoding.decode_without_bom_handling(bytes);
        let units = text.chars().map(|c| u16::try_from(c as u32));
        // A map has one unit for a code.
        let units = units.map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER as u16));
        let units: Vec<u16> = units.collect();
        *bytes = units.iter().flat_map(|unit| unit.to_be_bytes()).collect();
        shown.extend(units);
    }
}

/// The encoding of a predefined CMap, and whether its bytes lack their highest bit.
fn encoding_of(cmap: &str) -> Option<(&'static Encoding, bool)> {
    if cmap == "H" || cmap == "V" {
        return Some((EUC_JP, true));
    }
    let name = cmap.strip_suffix("-H").or(cmap.strip_suffix("-V"))?;
    let of = |part: &str| name.contains(part);
    let encoding = match name {
        _ if of("UCS2") || of("UTF16") => UTF_16BE,
        _ if of("UTF8") => UTF_8,
        _ if of("UTF32") => return None,
        _ if of("RKSJ") => SHIFT_JIS,
        _ if of("B5") => BIG5,
        _ if name.starts_with("GB") => GB18030,
        _ if name.starts_with("KSC") => EUC_KR,
        "EUC" => EUC_JP,
        _ => return None,
    };
    Some((encoding, false))
}

/// A `ToUnicode` map from each code unit to itself.
fn map_of(units: &BTreeSet<u16>) -> Object {
    let text = |unit: &u16| Some((u32::from(*unit), char::from_u32((*unit).into())?.into()));
    pdf_to_unicode::written(&units.iter().filter_map(text).collect())
}

/// Writes the widths of ranges of glyphs, `first last width`, as `first [width ...]`: the library gives all of a range the
/// default width, and the spaces between words are lost.
fn write_out_widths(pdf: &mut Pdf) {
    let written = pdf.objects.iter().filter_map(|(id, object)| {
        let widths = object.as_dict().ok()?.get_deref(b"W", pdf);
        Some((*id, written_out(pdf, widths.ok()?.as_array().ok()?)?))
    });
    for (id, widths) in written.collect::<Vec<_>>() {
        if let Ok(font) = pdf.get_object_mut(id).and_then(Object::as_dict_mut) {
            font.set("W", Object::Array(widths));
        }
    }
}

/// The widths as far as they make sense; `None` if there are no ranges.
fn written_out(pdf: &Pdf, widths: &[Object]) -> Option<Vec<Object>> {
    let direct = |object| pdf.dereference(object).ok().map(|found| found.1);
    let number = |object| direct(object)?.as_float().ok();
    let (mut rest, mut written, mut left) = (widths, Vec::new(), MAX_WIDTHS);
    while let [first, second, after @ ..] = rest {
        let Some(code) = number(first) else { break };
        let widths = match (direct(second), after) {
            (Some(Object::Array(widths)), after) => {
                rest = after;
                widths.clone()
            }
            (Some(last), [width, after @ ..]) => {
                let count = last.as_float().map_or(0.0, |last| last - code + 1.0);
                let Some(width) = number(width) else { break };
                rest = after;
                // A cast takes the nearest number that there is.
                let count = (count as usize).min(left);
                left -= count;
                vec![Object::Real(width); count]
            }
            _ => break,
        };
        written.extend([Object::Integer(code as i64), Object::Array(widths)]);
    }
    (left < MAX_WIDTHS).then_some(written)
}

/// Gives the descendant of a font widths of code units.
fn set_widths(pdf: &mut Pdf, font: ObjectId) {
    let descendants = (pdf.get_dictionary(font))
        .and_then(|font| font.get_deref(b"DescendantFonts", pdf))
        .and_then(Object::as_array);
    let Some(descendant) = descendants.ok().and_then(|fonts| fonts.first()).cloned() else {
        return;
    };
    let own = match &descendant {
        Object::Reference(id) => pdf.get_dictionary(*id).cloned(),
        object => object.as_dict().cloned(),
    };
    let Ok(mut own) = own else { return };
    let (first, count, width) = LATIN;
    own.set("DW", Object::Integer(1000));
    own.set(
        "W",
        Object::Array(vec![
            Object::Integer(first),
            Object::Array(vec![Object::Integer(width); count]),
        ]),
    );
    let own = pdf.add_object(own);
    if let Ok(font) = pdf.get_object_mut(font).and_then(Object::as_dict_mut) {
        font.set(
            "DescendantFonts",
            Object::Array(vec![Object::Reference(own)]),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn predefined_cmaps_have_their_encodings() {
        for (cmap, encoding) in [
            ("UniGB-UCS2-H", UTF_16BE),
            ("UniJIS-UCS2-HW-V", UTF_16BE),
            ("UniKS-UTF16-H", UTF_16BE),
            ("90ms-RKSJ-H", SHIFT_JIS),
            ("ETen-B5-V", BIG5),
            ("HKscs-B5-H", BIG5),
            ("GBK-EUC-H", GB18030),
            ("GBK2K-V", GB18030),
            ("KSCms-UHC-HW-H", EUC_KR),
            ("EUC-H", EUC_JP),
        ] {
            assert_eq!(encoding_of(cmap), Some((encoding, false)), "{cmap}");
        }
        assert_eq!(encoding_of("V"), Some((EUC_JP, true)));
        for cmap in ["UniGB-UTF32-H", "CNS-EUC-H", "Mine", ""] {
            assert_eq!(encoding_of(cmap), None, "{cmap}");
        }
    }
}
