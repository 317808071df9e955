//! Cleans a PDF's pages before they are drawn.
//!
//! The drawing library fails on unknown colours, images and graphics states, and ignores two of the operators that show
//! text. It draws forms at the page's origin, recurses without limit into those that draw themselves, and takes fonts of
//! one name for one font. So this module rewrites each page as one content stream: it keeps only the operators that
//! matter for text, with operands of the right type, writes the content of a form in its place, and gives each font
//! a name of its own.

use std::collections::HashMap;
use std::io::Read;
use std::rc::Rc;

use flate2::read::ZlibDecoder;
use pdf_extract::content::{Content, Operation};
use pdf_extract::{Dictionary, Document as Pdf, Object, ObjectId, Stream, dictionary};

use crate::pdf_annotations;
use crate::pdf_cmaps::{RecodedFonts, ShownUnits};

/// The most bytes of one decompressed stream.
const MAX_STREAM_BYTES: u64 = 32 << 20;
/// The highest compression ratio of Deflate.
const DEFLATE_RATIO: u64 = 1032;
/// The most operators that one page may draw, including its nested forms, and the most bytes they take.
const MAX_OPERATIONS: usize = 5_000_000;
const MAX_DRAWN_BYTES: usize = 64 << 20;
/// The most operators of a form that is a field of a flattened form.
const MAX_FIELD_OPERATIONS: usize = 50;
/// Tells the layout that an annotation or a field begins; no cleaned page has this operator.
const BEGINS: &str = "f";
/// The deepest nesting of forms.
const MAX_FORMS_DEEP: usize = 16;
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

/// Rewrites the content of `page`, with that of its forms. Returns the new content stream, which can be deleted after the page
/// is drawn; `None` if the page is damaged.
pub(crate) fn clean_page(pdf: &mut Pdf, fonts: &RecodedFonts, page: ObjectId) -> Option<ObjectId> {
    let resources = inherited_resources(pdf, page);
    let annotations = pdf_annotations::of_page(pdf, page);
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
        used: Dictionary::new(),
        forms: HashMap::new(),
        path: Vec::new(),
        shows_text: false,
        loses_text: false,
    };
    let page_drawn = cleaner.clean(&content, &resources)?;
    let mut drawn = Drawn::default();
    drawn.place(&page_drawn, [1.0, 0.0, 0.0, 1.0, 0.0, 0.0])?;
    for annotation in annotations {
        let fields = annotation.resources.as_ref().unwrap_or(&resources);
        if let Some(form) = cleaner.form(annotation.form, fields) {
            drawn.write(vec![Operation::new(BEGINS, vec![])])?;
            drawn.place(&form, annotation.place)?;
        }
    }
    if cleaner.loses_text && !cleaner.shows_text {
        return None;
    }
    let (shown, used) = (cleaner.shown, cleaner.used);
    fonts.write_maps(pdf, &shown);
    let content = pdf.add_object(Stream::new(Dictionary::new(), drawn.content));
    let page = pdf
        .get_object_mut(page)
        .and_then(Object::as_dict_mut)
        .ok()?;
    page.set("Contents", Object::Reference(content));
    page.set("Resources", dictionary! { "Font" => used });
    // The library reads only the page size from this entry, which does not affect the text, and fails without it.
    page.set(
        "MediaBox",
        Object::Array([0, 0, 612, 792].map(Object::Integer).to_vec()),
    );
    page.remove(b"ArtBox");
    Some(content)
}

/// The most bytes of a compressed stream without content.
const MAX_EMPTY_BYTES: usize = 16;

/// The decompressed bytes of a stream; `None` if decompression fails at the first byte.
fn unpacked(stream: &Stream) -> Option<Vec<u8>> {
    let bytes = stream.decompressed_content().ok()?;
    (stream.content.len() <= MAX_EMPTY_BYTES || !bytes.is_empty()).then_some(bytes)
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
#[derive(Clone)]
struct Font {
    /// Its new name.
    name: Vec<u8>,
    /// The font object, if its strings are recoded.
    recoded: Option<ObjectId>,
}

/// Cleaned content, in which each `q` has its `Q`.
#[derive(Default)]
struct Drawn {
    content: Vec<u8>,
    operations: usize,
    /// Where the fields behind the last text of the page begin: a program that flattens a form draws them there.
    fields: Vec<usize>,
}

impl Drawn {
    /// Appends `operations`; `None` if that is too much.
    fn write(&mut self, operations: Vec<Operation>) -> Option<()> {
        self.operations += operations.len();
        self.content.extend(Content { operations }.encode().ok()?);
        self.content.push(b'\n');
        self.check()
    }

    /// Appends a form, moved by `matrix`; `None` if that is too much.
    fn place(&mut self, form: &Self, matrix: [f32; 6]) -> Option<()> {
        let matrix = matrix.map(Object::Real).to_vec();
        self.write(vec![
            Operation::new("q", vec![]),
            Operation::new("cm", matrix),
        ])?;
        self.operations += form.operations;
        self.content.extend(&form.content);
        self.check()?;
        self.write(vec![Operation::new("Q", vec![])])
    }

    /// Appends a form of a page.
    fn place_on_page(&mut self, form: &Self, matrix: [f32; 6]) -> Option<()> {
        if form.operations > MAX_FIELD_OPERATIONS {
            self.end_fields();
        } else {
            self.fields.push(self.content.len());
            self.write(vec![Operation::new(BEGINS, vec![])])?;
        }
        self.place(form, matrix)
    }

    /// The page goes on: the small forms before are no fields.
    fn end_fields(&mut self) {
        for at in self.fields.drain(..) {
            self.content[at] = b' ';
        }
    }

    fn check(&self) -> Option<()> {
        (self.operations <= MAX_OPERATIONS && self.content.len() <= MAX_DRAWN_BYTES).then_some(())
    }
}

struct Cleaner<'a> {
    pdf: &'a mut Pdf,
    fonts: &'a RecodedFonts,
    shown: ShownUnits,
    /// The fonts of the page and its forms, by their new names.
    used: Dictionary,
    /// Forms already cleaned.
    forms: HashMap<ObjectId, Rc<Drawn>>,
    /// The nested forms now being cleaned, outermost first.
    path: Vec<ObjectId>,
    /// Whether any text is shown.
    shows_text: bool,
    /// Whether any text is dropped because its font is missing.
    loses_text: bool,
}

impl Cleaner<'_> {
    /// The cleaned content; `None` if it is too much or damaged.
    fn clean(&mut self, content: &[u8], resources: &Dictionary) -> Option<Drawn> {
        let operations = Content::decode(content).ok()?.operations;
        let mut drawn = Drawn::default();
        let mut kept = Vec::with_capacity(operations.len());
        let mut fonts = HashMap::new();
        let mut has_text = false;
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
                has_text |= is_shown;
                drawn.end_fields();
                self.loses_text |= !is_shown;
                if let Some(recoded) = font.as_ref().and_then(|font| font.recoded) {
                    (self.fonts).recode(recoded, &mut operands, &mut self.shown);
                }
            }
            match (operator.as_str(), &operands[..]) {
                ("q", _) => saved.push(font.clone()),
                ("Q", _) => match saved.pop() {
                    Some(before) => font = before,
                    None => continue,
                },
                ("BT" | "ET" | "T*", _) => {}
                ("cm" | "Tm", o) if are_numbers(o, 6) => {}
                ("Td" | "TD", o) if are_numbers(o, 2) => {}
                ("Tc" | "Tw" | "Tz" | "TL" | "Ts", o) if are_numbers(o, 1) => {}
                ("Tf", [Object::Name(name), size]) if is_number(size) => {
                    let found = fonts.entry(name.clone());
                    match found.or_insert_with_key(|name| self.font(resources, name)) {
                        Some(found) => {
                            operands[0] = Object::Name(found.name.clone());
                            font = Some(found.clone());
                        }
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
                ("Do", [Object::Name(name)]) => {
                    if let Some((form, matrix)) = self.form_named(resources, name) {
                        drawn.write(std::mem::take(&mut kept))?;
                        match self.path.is_empty() {
                            true => drawn.place_on_page(&form, matrix)?,
                            false => drawn.place(&form, matrix)?,
                        }
                    }
                    continue;
                }
                _ => continue,
            }
            kept.push(Operation { operator, operands });
        }
        kept.extend(saved.iter().map(|_| Operation::new("Q", vec![])));
        drawn.write(kept)?;
        if !has_text {
            drawn.end_fields();
        }
        Some(drawn)
    }

    /// The font `name`, which gets a name that no other font of the page has.
    fn font(&mut self, resources: &Dictionary, name: &[u8]) -> Option<Font> {
        let fonts = resources.get_deref(b"Font", self.pdf);
        let font = fonts.and_then(Object::as_dict).ok()?.get(name).ok()?;
        let (id, object) = self.pdf.dereference(font).ok()?;
        let font = object.as_dict().ok()?;
        let name = match id {
            Some((number, generation)) => format!("F{number}.{generation}"),
            None => format!("G{}", self.used.len()),
        };
        let used = id.map_or_else(|| font.clone().into(), Object::Reference);
        self.used.set(name.clone(), used);
        Some(Font {
            name: name.into_bytes(),
            recoded: id.filter(|id| self.fonts.contains(*id)),
        })
    }

    /// The form `name`, and the matrix that it is drawn with.
    fn form_named(&mut self, resources: &Dictionary, name: &[u8]) -> Option<(Rc<Drawn>, [f32; 6])> {
        let objects = resources
            .get_deref(b"XObject", self.pdf)
            .and_then(Object::as_dict)
            .ok()?;
        let id = objects.get(name).and_then(Object::as_reference).ok()?;
        let form = self.form(id, resources)?;
        let stream = self.pdf.get_object(id).and_then(Object::as_stream).ok()?;
        Some((form, pdf_annotations::matrix(self.pdf, &stream.dict)))
    }

    /// Cleans a form once; `None` if it cannot be drawn. Without resources it has those given.
    fn form(&mut self, id: ObjectId, resources: &Dictionary) -> Option<Rc<Drawn>> {
        if let Some(form) = self.forms.get(&id) {
            return Some(Rc::clone(form));
        }
        if self.path.contains(&id) || self.path.len() >= MAX_FORMS_DEEP {
            return None;
        }
        let stream = self.pdf.get_object(id).and_then(Object::as_stream).ok()?;
        if !has_name(&stream.dict, b"Subtype", b"Form") {
            return None;
        }
        let content = unpacked(stream)?;
        let own = stream.dict.get_deref(b"Resources", self.pdf);
        let own = own.and_then(Object::as_dict);
        let resources = own.unwrap_or(resources).clone();
        self.path.push(id);
        let cleaned = self.clean(&content, &resources);
        self.path.pop();
        let form = Rc::new(cleaned?);
        self.forms.insert(id, Rc::clone(&form));
        Some(form)
    }
}

fn is_number(object: &Object) -> bool {
    matches!(object, Object::Integer(_) | Object::Real(_))
}

fn are_numbers(operands: &[Object], count: usize) -> bool {
    operands.len() == count && operands.iter().all(is_number)
}
