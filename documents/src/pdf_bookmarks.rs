//! The bookmarks of a PDF: the table of contents that its program wrote into the file.
//!
//! ```text
//! catalog /Outlines /First -> entry /Title /Dest, /First its children, /Next its sibling
//! /Dest: [page ...], or a name: catalog /Dests, or catalog /Names /Dests, a tree
//! ```
//!
//! A damaged file may link its entries in a circle, so every entry counts once.

use std::collections::{HashMap, HashSet};

use pdf_extract::{Dictionary, Document as Pdf, Object, ObjectId, decode_text_string};

/// The most entries.
const MAX_BOOKMARKS: usize = 2000;
/// The deepest nesting.
const MAX_LEVEL: u8 = 6;
/// The most nodes of a tree of names.
const MAX_NODES: usize = 10_000;

/// An entry.
pub(crate) struct Bookmark {
    /// Depth, from 1.
    pub level: u8,
    pub title: String,
    /// Index of the page that it leads to.
    pub page: usize,
}

/// The bookmarks that lead to one of `pages`, in order.
pub(crate) fn bookmarks(pdf: &Pdf, pages: &[ObjectId]) -> Vec<Bookmark> {
    let Some(root) = (pdf.catalog().ok()).and_then(|catalog| dictionary(pdf, catalog, b"Outlines"))
    else {
        return Vec::new();
    };
    let numbers = (0..).zip(pages).map(|(index, &page)| (page, index));
    let mut walk = Walk {
        pdf,
        pages: numbers.collect(),
        names: None,
        seen: HashSet::new(),
        found: Vec::new(),
    };
    walk.children(root, 1);
    walk.found
}

fn dictionary<'a>(pdf: &'a Pdf, of: &'a Dictionary, key: &[u8]) -> Option<&'a Dictionary> {
    of.get_deref(key, pdf).and_then(Object::as_dict).ok()
}

struct Walk<'a> {
    pdf: &'a Pdf,
    /// Indices of the pages.
    pages: HashMap<ObjectId, usize>,
    /// Destinations by name, read when the first name is met.
    names: Option<HashMap<&'a [u8], &'a Object>>,
    /// Entries that were met.
    seen: HashSet<ObjectId>,
    found: Vec<Bookmark>,
}

impl<'a> Walk<'a> {
    fn children(&mut self, of: &'a Dictionary, level: u8) {
        let mut next = of.get(b"First").and_then(Object::as_reference);
        while let Ok(id) = next {
            if self.found.len() >= MAX_BOOKMARKS || !self.seen.insert(id) {
                return;
            }
            let Ok(entry) = self.pdf.get_dictionary(id) else {
                return;
            };
            let title = entry.get_deref(b"Title", self.pdf);
            let title = title.and_then(decode_text_string).unwrap_or_default();
            let title: Vec<&str> = title.split_whitespace().collect();
            if let Some(page) = self.page(entry).filter(|_| !title.is_empty()) {
                self.found.push(Bookmark {
                    level,
                    title: title.join(" "),
                    page,
                });
            }
            if level < MAX_LEVEL {
                self.children(entry, level + 1);
            }
            next = entry.get(b"Next").and_then(Object::as_reference);
        }
    }

    /// The index of the page that an entry leads to.
    fn page(&mut self, entry: &'a Dictionary) -> Option<usize> {
        let pdf = self.pdf;
        let target = entry.get_deref(b"Dest", pdf).ok().or_else(|| {
            let action = dictionary(pdf, entry, b"A")?;
            let goes = action.get_deref(b"S", pdf).and_then(Object::as_name);
            goes.ok().filter(|goes| *goes == b"GoTo")?;
            action.get_deref(b"D", pdf).ok()
        })?;
        let target = match target {
            Object::Name(name) | Object::String(name, _) => {
                let names = self.names.get_or_insert_with(|| names(pdf));
                *names.get(name.as_slice())?
            }
            other => other,
        };
        let target = match target {
            Object::Dictionary(of) => of.get_deref(b"D", pdf).ok()?,
            other => other,
        };
        match target.as_array().ok()?.first()? {
            Object::Reference(id) => self.pages.get(id).copied(),
            // Some programs write an index.
            Object::Integer(index) => usize::try_from(*index)
                .ok()
                .filter(|&index| index < self.pages.len()),
            _ => None,
        }
    }
}

/// Destinations by name.
fn names(pdf: &Pdf) -> HashMap<&[u8], &Object> {
    let mut found = HashMap::new();
    let Ok(catalog) = pdf.catalog() else {
        return found;
    };
    for (name, target) in dictionary(pdf, catalog, b"Dests").into_iter().flatten() {
        if let Ok((_, target)) = pdf.dereference(target) {
            found.insert(name.as_slice(), target);
        }
    }
    let tree =
        dictionary(pdf, catalog, b"Names").and_then(|names| dictionary(pdf, names, b"Dests"));
    let (mut nodes, mut seen) = (Vec::from_iter(tree), 0);
    while let Some(node) = nodes.pop().filter(|_| seen < MAX_NODES) {
        seen += 1;
        let list = |key: &[u8]| node.get_deref(key, pdf).and_then(Object::as_array).ok();
        for pair in list(b"Names")
            .into_iter()
            .flat_map(|names| names.chunks_exact(2))
        {
            if let Ok(name) = pair[0].as_str()
                && let Ok((_, target)) = pdf.dereference(&pair[1])
            {
                found.insert(name, target);
            }
        }
        let kids = list(b"Kids").into_iter().flatten();
        nodes.extend(kids.filter_map(|kid| pdf.get_dictionary(kid.as_reference().ok()?).ok()));
    }
    found
}
