//! Cleans a PDF's pages before they are drawn.
//!
//! The drawing library fails on unknown colours, images and graphics states, ignores two of the operators that show
//! text, and recurses without limit into forms that draw themselves. None of these matter for text, so this module
//! rewrites each content stream: it keeps only the operators that matter for text, with operands of the right type.

use std::collections::HashMap;
use std::io::Read;

use flate2::read::ZlibDecoder;
use pdf_extract::content::{Content, Operation};
use pdf_extract::{Dictionary, Document as Pdf, Object, ObjectId, Stream};

use crate::pdf_annotations::{self, Annotation};
use crate::pdf_cmaps::{RecodedFonts, ShownUnits};

/// The most bytes of one decompressed stream.
const MAX_STREAM_BYTES: u64 = 32 << 20;
/// The highest compression ratio of Deflate.
const DEFLATE_RATIO: u64 = 1032;
/// The most operators that one page may draw, including its nested forms.
const MAX_OPERATIONS: usize = 5_000_000;
/// The deepest nesting of forms.
const MAX_FORMS_DEEP: usize = 16;
/// Key of a form that was cleaned.
const CLEANED: &str = "KeptCleaned";
/// The deepest nesting of the page tree.
const MAX_TREE_DEEP: usize = 64;

/// Empties images, which contain no text, and removes streams that decompress to more than any font or page needs.
pub(crate) fn drop_images_and_bombs(pdf: &mut Pdf) {
    for object in pdf.objects.values_mut() {
        let Object::Stream(stream) = object else {
            continue;
        };
        if has_name(&stream.dict, b"Subtype", b"Image") {
            stream.dict.remove(b"Filter");
            stream.set_content(Vec::new());
        } else if is_bomb(stream) {
            // Remove the stream object, so that a page that uses it counts as damaged.
            *object = Object::Null;
        }
    }
}

/// Whether `page` may show an image.
pub(crate) fn has_image(pdf: &Pdf, page: ObjectId) -> bool {
    let resources = inherited_resources(pdf, page);
    let objects = resources.get_deref(b"XObject", pdf);
    let objects = objects.and_then(Object::as_dict).into_iter().flatten();
    let streams = objects.filter_map(|(_, object)| match pdf.dereference(object) {
        Ok((_, Object::Stream(stream))) => Some(stream),
        _ => None,
    });
    streams
        .into_iter()
        .any(|stream| has_name(&stream.dict, b"Subtype", b"Image"))
}

fn is_bomb(stream: &Stream) -> bool {
    let filters = stream.filters().unwrap_or_default();
    let flates = filters
        .iter()
        .filter(|f| matches!(*f, &b"FlateDecode" | &b"Fl"))
        .count();
    let other = filters.iter().any(|f| {
        matches!(
            *f,
            b"LZWDecode" | b"LZW" | b"BrotliDecode" | b"RunLengthDecode" | b"RL"
        )
    });
    let packed = stream.content.len() as u64;
    if flates + usize::from(other) > 1 {
        return true;
    }
    if packed * DEFLATE_RATIO <= MAX_STREAM_BYTES || flates == 0 {
        return packed > MAX_STREAM_BYTES;
    }
    let mut unpacked = ZlibDecoder::new(&stream.content[..]).take(MAX_STREAM_BYTES + 1);
    std::io::copy(&mut unpacked, &mut std::io::sink()).is_ok_and(|n| n > MAX_STREAM_BYTES)
}

/// Rewrites the content of `page` and of its forms. Returns the new content stream, which can be deleted after the page
/// is drawn; `None` if the page is damaged.
pub(crate) fn clean_page(pdf: &mut Pdf, fonts: &RecodedFonts, page: ObjectId) -> Option<ObjectId> {
    let mut resources = inherited_resources(pdf, page);
    let annotations = pdf_annotations::add_forms(pdf, page, &mut resources);
    let mut content = Vec::new();
    let parts = pdf.get_page_contents(page);
    let contents = pdf.get_dictionary(page).ok()?.get(b"Contents");
    if parts.is_empty() && contents.is_ok_and(|c| c.as_reference().is_ok()) {
        return None;
    }
    for id in parts {
        // A page with a missing content stream is damaged, not empty.
        let stream = pdf.get_object(id).and_then(Object::as_stream).ok()?;
        content.extend(unpacked(stream)?);
        // The content may be split between streams at any token boundary.
        content.push(b'\n');
        if content.len() as u64 > MAX_STREAM_BYTES {
            return None;
        }
    }
    let mut cleaner = Cleaner {
        pdf,
        fonts,
        shown: ShownUnits::default(),
        forms: HashMap::new(),
        path: Vec::new(),
        shows_text: false,
        loses_text: false,
    };
    let (mut content, _) = cleaner.clean(&content, &resources, false)?;
    let annotations = cleaner.annotations(annotations, &mut resources)?;
    if !annotations.is_empty() {
        content = [b"q\n", &content[..], b"\nQ\n", &annotations].concat();
    }
    if cleaner.loses_text && !cleaner.shows_text {
        return None;
    }
    let shown = cleaner.shown;
    fonts.write_maps(pdf, &shown);
    let content = pdf.add_object(Stream::new(Dictionary::new(), content));
    let page = pdf
        .get_object_mut(page)
        .and_then(Object::as_dict_mut)
        .ok()?;
    page.set("Contents", Object::Reference(content));
    page.set("Resources", Object::Dictionary(resources));
    // The library reads only the page size from this entry, which does not affect the text, and fails without it.
    page.set(
        "MediaBox",
        Object::Array([0, 0, 612, 792].map(Object::Integer).to_vec()),
    );
    page.remove(b"ArtBox");
    Some(content)
}

/// The decompressed bytes of a stream; `None` if decompression fails at the first byte.
fn unpacked(stream: &Stream) -> Option<Vec<u8>> {
    let bytes = stream.decompressed_content().ok()?;
    (stream.content.is_empty() || !bytes.is_empty()).then_some(bytes)
}

fn inherited_resources(pdf: &Pdf, page: ObjectId) -> Dictionary {
    let mut node = pdf.get_dictionary(page).ok();
    for _ in 0..MAX_TREE_DEEP {
        let Some(dictionary) = node else { break };
        if let Ok(resources) = dictionary
            .get_deref(b"Resources", pdf)
            .and_then(Object::as_dict)
        {
            return resources.clone();
        }
        let parent = dictionary.get(b"Parent").and_then(Object::as_reference);
        node = parent.and_then(|id| pdf.get_dictionary(id)).ok();
    }
    Dictionary::new()
}

fn has_name(dictionary: &Dictionary, key: &[u8], name: &[u8]) -> bool {
    dictionary
        .get(key)
        .and_then(Object::as_name)
        .is_ok_and(|n| n == name)
}

/// The font of text.
#[derive(Clone, Copy)]
struct Font {
    /// The font object, if its strings are recoded.
    recoded: Option<ObjectId>,
}

struct Cleaner<'a> {
    pdf: &'a mut Pdf,
    fonts: &'a RecodedFonts,
    shown: ShownUnits,
    /// Forms already cleaned, with the number of operators they draw.
    forms: HashMap<ObjectId, usize>,
    /// The nested forms now being cleaned, outermost first.
    path: Vec<ObjectId>,
    /// Whether any text is shown.
    shows_text: bool,
    /// Whether any text is dropped because its font is missing.
    loses_text: bool,
}

impl Cleaner<'_> {
    /// The cleaned stream and the number of operators it draws; `None` if there are too many or the stream is damaged.
    /// `again`: it was cleaned for another page.
    fn clean(
        &mut self,
        content: &[u8],
        resources: &Dictionary,
        again: bool,
    ) -> Option<(Vec<u8>, usize)> {
        let operations = Content::decode(content).ok()?.operations;
        let mut kept = Vec::with_capacity(operations.len());
        let mut cost = 0_usize;
        // The library fails on text without a font. The font is part of the state that `q` saves and `Q` restores.
        let (mut font, mut saved) = (None::<Font>, Vec::new());
        for operation in operations {
            let Operation {
                operator,
                mut operands,
            } = operation;
            let is_shown = font.is_some();
            if matches!(operator.as_str(), "Tj" | "TJ" | "'" | "\"") {
                self.shows_text |= is_shown;
                self.loses_text |= !is_shown;
                if let Some(recoded) = font.and_then(|font| font.recoded) {
                    (self.fonts).recode(recoded, &mut operands, again, &mut self.shown);
                }
            }
            match (operator.as_str(), &operands[..]) {
                ("q", _) => saved.push(font),
                ("Q", _) => font = saved.pop().unwrap_or(font),
                ("BT" | "ET" | "T*", _) => {}
                ("cm" | "Tm", o) if are_numbers(o, 6) => {}
                ("Td" | "TD", o) if are_numbers(o, 2) => {}
                ("Tc" | "Tw" | "Tz" | "TL" | "Ts", o) if are_numbers(o, 1) => {}
                ("Tf", [Object::Name(name), size]) if is_number(size) => {
                    match self.font(resources, name) {
                        Some(found) => font = Some(found),
                        None => continue,
                    }
                }
                ("Tj", [Object::String(..)]) | ("TJ", [Object::Array(_)]) if is_shown => {}
                ("'", [text @ Object::String(..)]) if is_shown => {
                    kept.push(Operation::new("T*", vec![]));
                    kept.push(Operation::new("Tj", vec![text.clone()]));
                    continue;
                }
                ("\"", [word, letter, text @ Object::String(..)])
                    if is_shown && is_number(word) && is_number(letter) =>
                {
                    kept.push(Operation::new("Tw", vec![word.clone()]));
                    kept.push(Operation::new("Tc", vec![letter.clone()]));
                    kept.push(Operation::new("T*", vec![]));
                    kept.push(Operation::new("Tj", vec![text.clone()]));
                    continue;
                }
                ("Do", [Object::Name(name)]) => match self.form(resources, name) {
                    Some(form) => cost = cost.saturating_add(form),
                    None => continue,
                },
                _ => continue,
            }
            kept.push(Operation { operator, operands });
        }
        cost = cost.saturating_add(kept.len());
        if cost > MAX_OPERATIONS {
            return None;
        }
        Some((Content { operations: kept }.encode().ok()?, cost))
    }

    /// Operators that draw those `annotations` of which the form can be drawn. Each gets a form of its own.
    fn annotations(
        &mut self,
        annotations: Vec<Annotation>,
        resources: &mut Dictionary,
    ) -> Option<Vec<u8>> {
        let mut operations = Vec::new();
        for annotation in annotations {
            let name = annotation.name.as_bytes();
            if self.form(resources, name).is_some() {
                operations.extend(annotation.draw(self.pdf, resources)?);
            }
        }
        Content { operations }.encode().ok()
    }

    fn font(&self, resources: &Dictionary, name: &[u8]) -> Option<Font> {
        let fonts = resources.get_deref(b"Font", self.pdf);
        let font = fonts.and_then(Object::as_dict).ok()?.get(name).ok()?;
        let (id, object) = self.pdf.dereference(font).ok()?;
        object.as_dict().ok()?;
        Some(Font {
            recoded: id.filter(|id| self.fonts.contains(*id)),
        })
    }

    /// Cleans the form `name` once. Returns the number of operators it draws; `None` if it cannot be drawn.
    fn form(&mut self, resources: &Dictionary, name: &[u8]) -> Option<usize> {
        let objects = resources
            .get_deref(b"XObject", self.pdf)
            .and_then(Object::as_dict)
            .ok()?;
        let id = objects.get(name).and_then(Object::as_reference).ok()?;
        if let Some(cost) = self.forms.get(&id) {
            return Some(*cost);
        }
        if self.path.contains(&id) || self.path.len() >= MAX_FORMS_DEEP {
            return None;
        }
        let stream = self.pdf.get_object(id).and_then(Object::as_stream).ok()?;
        if !has_name(&stream.dict, b"Subtype", b"Form") {
            return None;
        }
        let content = unpacked(stream)?;
        let again = stream.dict.has(CLEANED.as_bytes());
        let own = stream
            .dict
            .get_deref(b"Resources", self.pdf)
            .and_then(Object::as_dict);
        let resources = own.unwrap_or(resources).clone();

        self.path.push(id);
        let cleaned = self.clean(&content, &resources, again);
        self.path.pop();
        let (content, cost) = cleaned?;
        // Give the form its own resources: those of another page could make it draw itself.
        let dictionary = Dictionary::from_iter([
            ("Subtype", Object::Name(b"Form".to_vec())),
            ("Resources", Object::Dictionary(resources)),
            (CLEANED, Object::Boolean(true)),
        ]);
        self.pdf
            .objects
            .insert(id, Object::Stream(Stream::new(dictionary, content)));
        self.forms.insert(id, cost);
        Some(cost)
    }
}

fn is_number(object: &Object) -> bool {
    matches!(object, Object::Integer(_) | Object::Real(_))
}

fn are_numbers(operands: &[Object], count: usize) -> bool {
    operands.len() == count && operands.iter().all(is_number)
}
