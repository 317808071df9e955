//! The parts of an Office file and how they refer to each other.

use std::collections::HashMap;

use super::archive::{Archive, Content, SAVE_AS_PDF};
use super::xml::Xml;
use super::{ExtractResult, Failure};
use crate::Format;

/// The references of a part to other parts.
#[derive(Default)]
pub(super) struct Relationships {
    /// Kind and target, in the order of the file. The kind is the last word of its type: "styles", "slide".
    all: Vec<(String, String)>,
    /// Target by identifier.
    by_id: HashMap<String, String>,
}

impl Relationships {
    /// Reads the references of a part to parts in the archive; the empty name stands for the archive itself.
    pub(super) fn read(archive: &mut Archive, part: &str) -> ExtractResult<Self> {
        let (folder, file) = part.rsplit_once('/').unwrap_or(("", part));
        let mut found = Self::default();
        let Some(text) = archive.text(&format!("{folder}/_rels/{file}.rels"))? else {
            return Ok(found);
        };
        Xml::new(&text).for_each("Relationship", |tag| {
            let is_outside = tag.get("TargetMode").as_deref() == Some("External");
            if let (Some(id), Some(kind), Some(target)) =
                (tag.get("Id"), tag.get("Type"), tag.get("Target"))
                && !is_outside
            {
                let kind = kind.rsplit('/').next().unwrap_or_default();
                let target = resolve(folder, &target);
                found.all.push((kind.to_owned(), target.clone()));
                found.by_id.insert(id, target);
            }
        })?;
        Ok(found)
    }

    /// The first target of a kind.
    pub(super) fn of_kind(&self, kind: &'static str) -> Option<&str> {
        self.all_of_kind(kind).next()
    }

    /// All targets of a kind.
    pub(super) fn all_of_kind(&self, kind: &'static str) -> impl Iterator<Item = &str> {
        let of_kind = self.all.iter().filter(move |(k, _)| k == kind);
        of_kind.map(|(_, target)| target.as_str())
    }

    /// The target with this identifier.
    pub(super) fn of_id(&self, id: &str) -> Option<&str> {
        self.by_id.get(id).map(String::as_str)
    }
}

/// The name of the part that `target` means in a part of `folder`. It is only compared with the names in the archive.
pub(super) fn resolve(folder: &str, target: &str) -> String {
    let base = if target.starts_with('/') { "" } else { folder };
    let mut steps: Vec<&str> = Vec::new();
    for step in base.split('/').chain(target.split(['/', '\\'])) {
        match step {
            "" | "." => {}
            ".." => {
                steps.pop();
            }
            step => steps.push(step),
        }
    }
    steps.join("/")
}

/// The name of the main part.
pub(super) fn main_part(archive: &mut Archive) -> ExtractResult<String> {
    let found = Relationships::read(archive, "")?;
    let named = found.of_kind("officeDocument").map(str::to_owned);
    let usual = [
        "word/document.xml",
        "ppt/presentation.xml",
        "xl/workbook.xml",
    ];
    named
        .filter(|name| archive.has(name))
        .or_else(|| {
            let name = usual.into_iter().find(|name| archive.has(name));
            name.map(str::to_owned)
        })
        .ok_or(Failure::Damaged("its main part is missing"))
}

/// What an Office file contains: by the root element of its main part.
pub(super) fn content(archive: &mut Archive) -> ExtractResult<Content> {
    let other = Ok(Content::Other("an Office drawing", SAVE_AS_PDF));
    let Ok(part) = main_part(archive) else {
        return other;
    };
    if part.ends_with(".bin") {
        return Ok(Content::Other(
            "a binary Excel workbook (XLSB)",
            "save it as XLSX and open that",
        ));
    }
    let text = archive.required(&part)?;
    let root = Xml::new(&text).child()?;
    match root.as_ref().map(|tag| tag.name()) {
        Some("document") => Ok(Content::Document(Format::Docx)),
        Some("presentation") => Ok(Content::Document(Format::Pptx)),
        Some("workbook") => Ok(Content::Document(Format::Xlsx)),
        _ => other,
    }
}
