//! EPUB books: the chapters in the order of reading.

use std::collections::HashMap;

use super::archive::{Archive, CONTAINER};
use super::builder::Builder;
use super::writer::Writer;
use super::xml::Xml;
use super::{ExtractResult, Failure, html, opc};

/// Methods that only change the first bytes of embedded fonts. All others encrypt the text.
const FONT_METHODS: [&str; 2] = [
    "http://www.idpf.org/2008/embedding",
    "http://ns.adobe.com/pdf/enc#RC",
];

/// Extracts the chapters; each is a page.
pub(super) fn read(archive: &mut Archive) -> ExtractResult<Writer> {
    if is_protected(archive)? {
        return Err(Failure::Protected);
    }
    let mut builder = Builder::new();
    let (chapters, about) = contents(archive)?;
    for chapter in chapters {
        let Some(text) = archive.text(&chapter)? else {
            continue;
        };
        builder.out.begin_page();
        html::read_into(&mut builder, &text, true)?;
    }
    let mut out = builder.finish()?;
    out.put_unless_said(&about);
    Ok(out)
}

fn is_protected(archive: &mut Archive) -> ExtractResult<bool> {
    let Some(text) = archive.text("META-INF/encryption.xml")? else {
        return Ok(false);
    };
    let mut is_protected = false;
    Xml::new(&text).for_each("EncryptionMethod", |tag| {
        let method = tag.get("Algorithm").unwrap_or_default();
        is_protected |= !FONT_METHODS.contains(&method.as_str());
    })?;
    Ok(is_protected)
}

/// The names of the chapters in the order of reading, without the contents page that reading programs show elsewhere; and
/// the title and the authors, which may stand in a picture only.
fn contents(archive: &mut Archive) -> ExtractResult<(Vec<String>, [String; 2])> {
    let container = archive.required(CONTAINER)?;
    let package = (Xml::new(&container).find("rootfile")?)
        .and_then(|tag| tag.get("full-path"))
        .ok_or(Failure::Damaged("it does not name its contents"))?;
    let text = archive.required(&package)?;
    let folder = package.rsplit_once('/').map_or("", |(folder, _)| folder);

    let mut files: HashMap<String, String> = HashMap::new();
    Xml::new(&text).for_each("item", |tag| {
        let kind = tag.get("media-type").unwrap_or_default();
        let is_contents = tag
            .get("properties")
            .is_some_and(|p| p.split(' ').any(|p| p == "nav"));
        let is_text = kind.contains("html") || kind.contains("dtbook");
        if let (Some(id), Some(file)) = (tag.get("id"), tag.get("href"))
            && is_text
            && !is_contents
        {
            files.insert(id, opc::resolve(folder, &unescaped(&file)));
        }
    })?;
    let mut chapters = Vec::new();
    Xml::new(&text).for_each("itemref", |tag| {
        // A chapter that is listed twice is read once.
        let id = tag.get("idref").unwrap_or_default();
        chapters.extend(files.remove(&id));
    })?;
    let texts = |name| {
        let (mut xml, mut found) = (Xml::new(&text), Vec::new());
        while xml.find(name)?.is_some() {
            found.push(xml.text()?);
        }
        Ok(found)
    };
    let title: Vec<String> = texts("title")?;
    let title = title.into_iter().next().unwrap_or_default();
    Ok((chapters, [title, texts("creator")?.join(", ")]))
}

/// A reference with `%20` and the like replaced.
fn unescaped(reference: &str) -> String {
    let mut bytes = Vec::with_capacity(reference.len());
    let mut rest = reference.split('#').next().unwrap_or_default().as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|d| std::str::from_utf8(d).ok());
        let byte = digits.and_then(|d| u8::from_str_radix(d, 16).ok());
        if let (b'%', Some(byte)) = (first, byte) {
            bytes.push(byte);
            rest = &after[2..];
        } else {
            bytes.push(first);
            rest = after;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
