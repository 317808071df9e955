//! Text of annotations (ISO 32000-1, 12.5): the fields of a form that was filled in, notes written on a page. What an
//! annotation looks like is a form of its own, which a viewer draws over the page. Here it is drawn at the page's end, and
//! its text is moved behind the label that stands left of it or above it.

use pdf_extract::content::{Content, Operation};
use pdf_extract::{Dictionary, Document as Pdf, Object, ObjectId};

use crate::pdf_headings::Sizes;
use crate::pdf_tables::Piece;

/// The most annotations of a page that are drawn.
const MAX_ANNOTATIONS: usize = 1000;
/// Bits of an annotation's flags: it is not shown.
const HIDDEN: i64 = 1 << 1 | 1 << 5;

/// A text stands on the line of another one if their baselines differ by less, in em.
const SAME_LINE: f64 = 0.8;
/// The largest distance from a label to the field below it, in em.
const BELOW: f64 = 2.5;

/// An annotation of a page.
pub(crate) struct Annotation {
    /// Of its form, among the resources of the page.
    pub(crate) name: String,
    form: ObjectId,
    /// The matrix that puts the form into its place on the page.
    place: [f32; 6],
}

/// The annotations of `page`; their forms become resources of the page.
pub(crate) fn add_forms(
    pdf: &mut Pdf,
    page: ObjectId,
    resources: &mut Dictionary,
) -> Vec<Annotation> {
    let shown = shown(pdf, page).unwrap_or_default();
    if shown.is_empty() {
        return shown;
    }
    let fields = field_resources(pdf);
    let mut objects = objects(pdf, resources);
    for annotation in &shown {
        objects.set(annotation.name.clone(), Object::Reference(annotation.form));
        let form = pdf.get_object_mut(annotation.form);
        if let (Ok(form), Some(fields)) = (form.and_then(Object::as_stream_mut), &fields)
            && !form.dict.has(b"Resources")
        {
            form.dict.set("Resources", fields.clone());
        }
    }
    resources.set("XObject", objects);
    shown
}

fn objects(pdf: &Pdf, resources: &Dictionary) -> Dictionary {
    let objects = resources.get_deref(b"XObject", pdf);
    objects
        .and_then(Object::as_dict)
        .cloned()
        .unwrap_or_default()
}

impl Annotation {
    /// Operators that draw the annotation, once its form is cleaned. The first one tells the layout that one begins: pages
    /// have lost theirs. The library draws forms where they say; so a copy of the form says its place.
    pub(crate) fn draw(self, pdf: &mut Pdf, resources: &mut Dictionary) -> Option<[Operation; 2]> {
        let form = pdf.get_object(self.form).and_then(Object::as_stream);
        let mut form = form.ok()?.clone();
        let place = self.place.map(Object::Real).to_vec();
        let operations = vec![Operation::new("cm", place)];
        let mut content = Content { operations }.encode().ok()?;
        content.push(b'\n');
        content.extend(&form.content);
        form.set_content(content);
        let form = pdf.add_object(form);
        let mut objects = objects(pdf, resources);
        objects.set(self.name.clone(), Object::Reference(form));
        resources.set("XObject", objects);
        let name = Object::Name(self.name.into_bytes());
        Some([
            Operation::new("f", vec![]),
            Operation::new("Do", vec![name]),
        ])
    }
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
    let mut behind = vec![Vec::new(); body.len()];
    let mut unlabelled = Vec::new();
    for group in groups.filter(|group| !group.is_empty()) {
        match label(body, &of_annotations[group.start - first]) {
            Some((at, mark)) => behind[at].push((mark, group)),
            None => unlabelled.push(("\n", group)),
        }
    }
    let ends = pieces.iter().skip(1).map(|piece| piece.start);
    let ends: Vec<usize> = ends.chain([text.len()]).collect();
    let mut moved = Moved::default();
    moved
        .text
        .push_str(&text[..pieces.first().map_or(0, |piece| piece.start)]);
    for (at, annotations) in behind.iter().enumerate() {
        let (start, end) = (pieces[at].start, ends[at]);
        let length = text[start..end].trim_end().len();
        moved.add("", &text[start..start + length], pieces[at], sizes);
        for (mark, group) in annotations {
            for (i, piece) in group.clone().enumerate() {
                let mark = if i == 0 { mark } else { "\n" };
                moved.add(
                    mark,
                    text[pieces[piece].start..ends[piece]].trim_end(),
                    pieces[piece],
                    sizes,
                );
            }
        }
        moved.text.push_str(&text[start + length..end]);
    }
    moved.text.truncate(moved.text.trim_end().len());
    for (mark, piece) in unlabelled
        .into_iter()
        .flat_map(|(mark, group)| group.map(move |piece| (mark, piece)))
    {
        moved.add(
            mark,
            text[pieces[piece].start..ends[piece]].trim_end(),
            pieces[piece],
            sizes,
        );
    }
    (*text, *pieces, *sizes) = (moved.text, moved.pieces, moved.sizes);
}

/// The label of an annotation, and what is written between them.
fn label(body: &[Piece], own: &Piece) -> Option<(usize, &'static str)> {
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

/// A page's text in a new order.
#[derive(Default)]
struct Moved {
    text: String,
    pieces: Vec<Piece>,
    sizes: Sizes,
}

impl Moved {
    /// Appends `mark` and the `text` of a piece, with its part of `sizes`.
    fn add(&mut self, mark: &str, text: &str, piece: Piece, sizes: &Sizes) {
        if !self.text.is_empty() {
            self.text.push_str(mark);
        }
        let start = self.text.len();
        let first = sizes.partition_point(|&(at, _)| at <= piece.start);
        let within = sizes[first..]
            .iter()
            .take_while(|(at, _)| *at < piece.start + text.len());
        self.sizes
            .extend(sizes[..first].last().map(|&(_, size)| (start, size)));
        (self.sizes).extend(within.map(|&(at, size)| (start + at - piece.start, size)));
        self.text.push_str(text);
        self.pieces.push(Piece { start, ..piece });
    }
}

/// The annotations that show text.
fn shown(pdf: &Pdf, page: ObjectId) -> Option<Vec<Annotation>> {
    let page = pdf.get_dictionary(page).ok()?;
    let annotations = page.get_deref(b"Annots", pdf).and_then(Object::as_array);
    let annotations = annotations.ok()?.iter().take(MAX_ANNOTATIONS);
    let shown = annotations.enumerate().filter_map(|(at, annotation)| {
        let (_, annotation) = pdf.dereference(annotation).ok()?;
        let annotation = annotation.as_dict().ok()?;
        let kind = annotation.get(b"Subtype").and_then(Object::as_name).ok()?;
        let flags = annotation.get(b"F").and_then(Object::as_i64).unwrap_or(0);
        if !matches!(kind, b"Widget" | b"FreeText" | b"Stamp") || flags & HIDDEN != 0 {
            return None;
        }
        if field_type(pdf, annotation) == Some(b"Btn") {
            return None;
        }
        let appearance = annotation.get_deref(b"AP", pdf).and_then(Object::as_dict);
        let form = appearance
            .ok()?
            .get(b"N")
            .and_then(Object::as_reference)
            .ok()?;
        let stream = pdf.get_object(form).and_then(Object::as_stream).ok()?;
        let place = place(pdf, annotation, &stream.dict)?;
        let name = format!("KeptAnnotation{at}");
        Some(Annotation { name, form, place })
    });
    Some(shown.collect())
}

/// The type of a field; buttons and boxes to tick are `Btn`. A field of several widgets says it for all of them.
fn field_type<'a>(pdf: &'a Pdf, widget: &'a Dictionary) -> Option<&'a [u8]> {
    let parent = || widget.get_deref(b"Parent", pdf).ok()?.as_dict().ok();
    let own = widget.get_deref(b"FT", pdf);
    let own = own.or_else(|error| parent().ok_or(error)?.get_deref(b"FT", pdf));
    own.and_then(Object::as_name).ok()
}

/// Fonts of fields whose forms name none.
fn field_resources(pdf: &Pdf) -> Option<Object> {
    let fields = pdf.catalog().ok()?.get_deref(b"AcroForm", pdf).ok()?;
    let resources = fields.as_dict().ok()?.get_deref(b"DR", pdf).ok()?;
    Some(resources.clone())
}

/// The matrix that puts the box of `form` into the rectangle of its annotation (12.5.5, algorithm 8.1).
fn place(pdf: &Pdf, annotation: &Dictionary, form: &Dictionary) -> Option<[f32; 6]> {
    let [left, bottom, right, top] = numbers(pdf, annotation, b"Rect")?;
    let [x0, y0, x1, y1] = numbers(pdf, form, b"BBox")?;
    let [a, b, c, d, e, f] =
        numbers(pdf, form, b"Matrix").unwrap_or([1.0, 0.0, 0.0, 1.0, 0.0, 0.0]);
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

fn numbers<const N: usize>(pdf: &Pdf, dictionary: &Dictionary, key: &[u8]) -> Option<[f32; N]> {
    let array = dictionary.get_deref(key, pdf).and_then(Object::as_array);
    let number = |object| pdf.dereference(object).ok()?.1.as_float().ok();
    let numbers: Option<Vec<f32>> = array.ok()?.iter().map(number).collect();
    numbers?.try_into().ok()
}
