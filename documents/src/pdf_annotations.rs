//! Text of annotations (ISO 32000-1, 12.5): the fields of a form that was filled in, notes written on a page. What an
//! annotation looks like is a form of its own, which a viewer draws over the page; of a field without one the value is
//! drawn, and of a box `[x]` or `[ ]`. Here all are drawn at the page's end. Then their text is moved behind the label that
//! stands left of it or above it, and that of a box before the words right of it; that of fields which a program has made
//! a part of the page (flattened), too.

use std::collections::BTreeMap;

use pdf_extract::content::{Content, Operation};
use pdf_extract::{
    Dictionary, Document as Pdf, Object, ObjectId, Stream, decode_text_string, dictionary,
};

use crate::pdf_headings::Sizes;
use crate::pdf_tables::Piece;
use crate::pdf_to_unicode;

/// The most annotations of a page that are drawn.
const MAX_ANNOTATIONS: usize = 1000;
/// Bits of an annotation's flags: it is not shown.
const HIDDEN: i64 = 1 << 1 | 1 << 5;
/// Bits of a field's flags: a password, a button to push.
const PASSWORD: i64 = 1 << 13;
const PUSH_BUTTON: i64 = 1 << 16;
/// What is drawn of a box to tick.
const TICKED: &str = "[x]";
const NOT_TICKED: &str = "[ ]";
/// Height of the letters of a value, in points.
const VALUE_SIZE: f32 = 10.0;

/// A text stands on the line of another one if their baselines differ by less, in em.
const SAME_LINE: f64 = 0.8;
/// The largest distance from a label to the field below it, in em.
const BELOW: f64 = 2.5;
/// The largest distance from a box to the words right of it, in em.
const BESIDE: f64 = 3.0;

/// An annotation of a page.
pub(crate) struct Annotation {
    pub(crate) form: ObjectId,
    /// The resources of its form if that has none.
    pub(crate) resources: Option<Dictionary>,
    /// The matrix that puts the form into its place on the page.
    pub(crate) place: [f32; 6],
}

/// What an annotation shows.
enum Look {
    Form(ObjectId),
    Words(String),
}

/// The annotations of `page` that show text.
pub(crate) fn of_page(pdf: &mut Pdf, page: ObjectId) -> Vec<Annotation> {
    let mut shown = Vec::new();
    let looks = looks(pdf, page).unwrap_or_default();
    let resources = field_resources(pdf).filter(|_| !looks.is_empty());
    for (look, annotation) in looks {
        let form = match look {
            Look::Form(form) => form,
            Look::Words(words) => words_form(pdf, &annotation, &words),
        };
        let stream = pdf.get_object(form).and_then(Object::as_stream);
        let place = stream.map_or(None, |form| place(pdf, &annotation, &form.dict));
        shown.extend(place.map(|place| Annotation {
            form,
            resources: resources.clone(),
            place,
        }));
    }
    shown
}

/// Moves the text of each annotation behind its label. `begins`: the first piece of each annotation.
pub(crate) fn move_to_labels(
    text: &mut String,
    pieces: &mut Vec<Piece>,
    sizes: &mut Sizes,
    begins: &[usize],
) {
    let Some(&first) = begins.first() else { return };
    let (body, of_annotations) = pieces.split_at(first);
    let ends = begins.iter().skip(1).copied().chain([pieces.len()]);
    let groups = begins.iter().zip(ends).map(|(&start, end)| start..end);
    let ends = pieces.iter().skip(1).map(|piece| piece.start);
    let ends: Vec<usize> = ends.chain([text.len()]).collect();
    let words = |piece: usize| text[pieces[piece].start..ends[piece]].trim_end();
    let mut behind = vec![Vec::new(); body.len()];
    let mut boxes = vec![String::new(); body.len()];
    let mut unlabelled = Vec::new();
    for group in groups.filter(|group| !group.is_empty()) {
        let own = &of_annotations[group.start - first];
        let drawn = words(group.start);
        let is_box = group.len() == 1 && [TICKED, NOT_TICKED].contains(&drawn);
        let right = words_right(body, own).filter(|_| is_box);
        match (right, label(body, own)) {
            (Some(at), _) => boxes[at] += &format!("{drawn} "),
            (None, Some((at, mark))) => behind[at].push((mark, group)),
            (None, None) => unlabelled.push(group),
        }
    }
    let mut moved = Moved::default();
    let before = pieces.first().map_or(0, |piece| piece.start);
    moved.text.push_str(&text[..before]);
    for (at, annotations) in behind.into_iter().enumerate() {
        let space = pieces[at].start + words(at).len();
        moved.add("", &boxes[at], words(at), pieces[at], sizes);
        for (mark, group) in annotations {
            moved.add_all(
                mark,
                group.map(|piece| (words(piece), pieces[piece])),
                sizes,
            );
        }
        moved.text.push_str(&text[space..ends[at]]);
    }
    moved.text.truncate(moved.text.trim_end().len());
    for group in unlabelled {
        moved.add_all(
            "\n\n",
            group.map(|piece| (words(piece), pieces[piece])),
            sizes,
        );
    }
    (*text, *pieces, *sizes) = (moved.text, moved.pieces, moved.sizes);
}

/// The label of an annotation, and what is written between them.
fn label(body: &[Piece], own: &Piece) -> Option<(usize, &'static str)> {
    if !own.is_upright {
        return None;
    }
    let down = |piece: &Piece| (own.down - piece.down) / own.em.max(piece.em);
    let left = body.iter().enumerate().filter(|(_, piece)| {
        piece.is_upright && down(piece).abs() < SAME_LINE && piece.left < own.left
    });
    let left = left.max_by(|a, b| a.1.left.total_cmp(&b.1.left));
    let above = body.iter().enumerate().filter(|(_, piece)| {
        let overlaps = piece.left < own.right && piece.right > own.left;
        piece.is_upright && overlaps && (SAME_LINE..BELOW).contains(&down(piece))
    });
    let above = || above.max_by(|a, b| a.1.down.total_cmp(&b.1.down));
    (left.map(|(at, _)| (at, " "))).or_else(|| above().map(|(at, _)| (at, "\n")))
}

/// The words right of a box.
fn words_right(body: &[Piece], own: &Piece) -> Option<usize> {
    let right = body.iter().enumerate().filter(|(_, piece)| {
        let em = own.em.max(piece.em);
        let on_line = (own.down - piece.down).abs() < SAME_LINE * em;
        piece.is_upright && on_line && (0.0..BESIDE * em).contains(&(piece.left - own.left))
    });
    let nearest = right.min_by(|a, b| a.1.left.total_cmp(&b.1.left));
    nearest.map(|(at, _)| at)
}

/// A page's text in a new order.
#[derive(Default)]
struct Moved {
    text: String,
    pieces: Vec<Piece>,
    sizes: Sizes,
}

impl Moved {
    /// Appends the pieces of an annotation, the first one behind `mark`.
    fn add_all<'a>(
        &mut self,
        mark: &str,
        pieces: impl Iterator<Item = (&'a str, Piece)>,
        sizes: &Sizes,
    ) {
        for (i, (text, piece)) in pieces.enumerate() {
            self.add(if i == 0 { mark } else { "\n" }, "", text, piece, sizes);
        }
    }

    /// Appends `mark`, then a piece: the `boxes` before it and its `text`, with its part of `sizes`.
    fn add(&mut self, mark: &str, boxes: &str, text: &str, piece: Piece, sizes: &Sizes) {
        if !self.text.is_empty() {
            self.text.push_str(mark);
        }
        let start = self.text.len();
        self.text.push_str(boxes);
        let words = self.text.len();
        let first = sizes.partition_point(|&(at, _)| at <= piece.start);
        let within = sizes[first..]
            .iter()
            .take_while(|(at, _)| *at < piece.start + text.len());
        self.sizes
            .extend(sizes[..first].last().map(|&(_, size)| (start, size)));
        (self.sizes).extend(within.map(|&(at, size)| (words + at - piece.start, size)));
        self.text.push_str(text);
        self.pieces.push(Piece { start, ..piece });
    }
}

/// The annotations that show text, each with what it shows.
fn looks(pdf: &Pdf, page: ObjectId) -> Option<Vec<(Look, Dictionary)>> {
    let page = pdf.get_dictionary(page).ok()?;
    let annotations = page.get_deref(b"Annots", pdf).and_then(Object::as_array);
    let annotations = annotations.ok()?.iter().take(MAX_ANNOTATIONS);
    let shown = annotations.filter_map(|annotation| {
        let annotation = pdf.dereference(annotation).ok()?.1.as_dict().ok()?;
        Some((look(pdf, annotation)?, annotation.clone()))
    });
    Some(shown.collect())
}

fn look(pdf: &Pdf, annotation: &Dictionary) -> Option<Look> {
    let kind = annotation.get(b"Subtype").and_then(Object::as_name).ok()?;
    let flags = annotation.get(b"F").and_then(Object::as_i64).unwrap_or(0);
    if !matches!(kind, b"Widget" | b"FreeText" | b"Stamp") || flags & HIDDEN != 0 {
        return None;
    }
    let of_field = |key| inherited(pdf, annotation, key);
    let flags = of_field(b"Ff").and_then(|flags| flags.as_i64().ok());
    let flags = flags.unwrap_or(0);
    if of_field(b"FT").and_then(|kind| kind.as_name().ok()) == Some(b"Btn") {
        let state = annotation.get(b"AS").and_then(Object::as_name);
        let ticked = state.is_ok_and(|state| state != b"Off");
        let drawn = if ticked { TICKED } else { NOT_TICKED };
        return (flags & PUSH_BUTTON == 0).then(|| Look::Words(drawn.to_owned()));
    }
    let appearance = annotation.get_deref(b"AP", pdf).and_then(Object::as_dict);
    let form = appearance.and_then(|appearance| appearance.get(b"N")?.as_reference());
    if let Ok(form) = form
        && pdf.get_object(form).and_then(Object::as_stream).is_ok()
    {
        return Some(Look::Form(form));
    }
    let value = of_field(if kind == b"Widget" { b"V" } else { b"Contents" })?;
    let value = text_of(value)?;
    let is_said = !value.trim().is_empty() && flags & PASSWORD == 0;
    is_said.then_some(Look::Words(value))
}

/// The text of a value. The library's own way loses the ends of lines where it is not Unicode.
fn text_of(value: &Object) -> Option<String> {
    let bytes = value.as_str().ok()?;
    if bytes.starts_with(b"\xfe\xff") || bytes.starts_with(b"\xef\xbb\xbf") {
        return decode_text_string(value).ok();
    }
    let lines = bytes.split(|byte| matches!(byte, b'\r' | b'\n'));
    let lines = lines.map(|line| decode_text_string(&Object::string_literal(line)).ok());
    Some(lines.collect::<Option<Vec<_>>>()?.join("\n"))
}

/// An entry of a widget, or of its field: a field of several widgets says it for all of them.
fn inherited<'a>(pdf: &'a Pdf, widget: &'a Dictionary, key: &[u8]) -> Option<&'a Object> {
    let parent = || widget.get_deref(b"Parent", pdf).ok()?.as_dict().ok();
    let own = widget.get_deref(key, pdf).ok();
    own.or_else(|| parent()?.get_deref(key, pdf).ok())
}

/// A form that shows `words` in the rectangle of `annotation`, in a font with a code for each of their characters.
fn words_form(pdf: &mut Pdf, annotation: &Dictionary, words: &str) -> ObjectId {
    let [left, bottom, right, top] = numbers(pdf, annotation, b"Rect").unwrap_or_default();
    let (width, height) = ((right - left).abs(), (top - bottom).abs());
    let mut codes: BTreeMap<char, u8> = BTreeMap::new();
    let mut operations = vec![
        Operation::new("BT", vec![]),
        Operation::new("Tf", vec!["F".into(), VALUE_SIZE.into()]),
        // The baseline of a single line is where most programs write it, and of several the first one is at the top.
        Operation::new(
            "Td",
            vec![
                2.into(),
                ((height - VALUE_SIZE) / 2.0)
                    .max(height - 2.0 * VALUE_SIZE)
                    .into(),
            ],
        ),
        Operation::new("TL", vec![VALUE_SIZE.into()]),
    ];
    for line in words.split(['\r', '\n']) {
        let code = |char| {
            let next = u8::try_from(codes.len() + 1).ok();
            match (codes.get(&char), next) {
                (Some(&code), _) => Some(code),
                (None, next) => next.inspect(|&next| {
                    codes.insert(char, next);
                }),
            }
        };
        let bytes: Vec<u8> = line.chars().filter_map(code).collect();
        let drawn = Object::String(bytes, pdf_extract::StringFormat::Hexadecimal);
        operations.push(Operation::new("Tj", vec![drawn]));
        operations.push(Operation::new("T*", vec![]));
    }
    operations.push(Operation::new("ET", vec![]));
    let widths = vec![Object::Integer(500); codes.len()];
    let codes = codes
        .into_iter()
        .map(|(char, code)| (u32::from(code), char.to_string()));
    let map = pdf_to_unicode::written(&codes.collect());
    let map = pdf.add_object(map);
    let font = dictionary! {
        "Type" => "Font",
        "Subtype" => "Type1",
        "BaseFont" => "Helvetica",
        "Encoding" => "WinAnsiEncoding",
        "FirstChar" => 1,
        "LastChar" => widths.len() as i64,
        "Widths" => widths,
        "ToUnicode" => map,
    };
    let form = dictionary! {
        "Type" => "XObject",
        "Subtype" => "Form",
        "BBox" => vec![0.into(), 0.into(), width.into(), height.into()],
        "Resources" => dictionary! { "Font" => dictionary! { "F" => font } },
    };
    let content = Content { operations }.encode().unwrap_or_default();
    pdf.add_object(Stream::new(form, content))
}

/// Fonts of fields whose forms name none.
fn field_resources(pdf: &Pdf) -> Option<Dictionary> {
    let fields = pdf.catalog().ok()?.get_deref(b"AcroForm", pdf).ok()?;
    let resources = fields.as_dict().ok()?.get_deref(b"DR", pdf).ok()?;
    resources.as_dict().ok().cloned()
}

/// The matrix that puts the box of `form` into the rectangle of its annotation (12.5.5, algorithm 8.1).
fn place(pdf: &Pdf, annotation: &Dictionary, form: &Dictionary) -> Option<[f32; 6]> {
    let [left, bottom, right, top] = numbers(pdf, annotation, b"Rect")?;
    let [x0, y0, x1, y1] = numbers(pdf, form, b"BBox")?;
    let [a, b, c, d, e, f] = matrix(pdf, form);
    let corners = [(x0, y0), (x0, y1), (x1, y0), (x1, y1)];
    let corners = corners.map(|(x, y)| (a * x + c * y + e, b * x + d * y + f));
    let span = |of: fn(&(f32, f32)) -> f32| {
        let all = corners.iter().map(of);
        let least = all.clone().fold(f32::INFINITY, f32::min);
        (least, all.fold(f32::NEG_INFINITY, f32::max) - least)
    };
    let ((from_x, width), (from_y, height)) = (span(|c| c.0), span(|c| c.1));
    let (x, y) = ((right - left).abs() / width, (top - bottom).abs() / height);
    if !(x.is_normal() && y.is_normal()) {
        return None;
    }
    let (left, bottom) = (left.min(right) - from_x * x, bottom.min(top) - from_y * y);
    Some([a * x, b * y, c * x, d * y, e * x + left, f * y + bottom])
}

/// The matrix of a form.
pub(crate) fn matrix(pdf: &Pdf, form: &Dictionary) -> [f32; 6] {
    numbers(pdf, form, b"Matrix").unwrap_or([1.0, 0.0, 0.0, 1.0, 0.0, 0.0])
}

fn numbers<const N: usize>(pdf: &Pdf, dictionary: &Dictionary, key: &[u8]) -> Option<[f32; N]> {
    let array = dictionary.get_deref(key, pdf).and_then(Object::as_array);
    let number = |object| pdf.dereference(object).ok()?.1.as_float().ok();
    let numbers: Option<Vec<f32>> = array.ok()?.iter().map(number).collect();
    numbers?.try_into().ok()
}
