//! Excel workbooks: each sheet is a page, with its values as they are shown.
//!
//! Only cells in the file take memory, wherever in the sheet they are. Formulas are read as the values that the file
//! stores for them.

use std::collections::HashMap;

use super::ExtractResult;
use super::archive::Archive;
use super::number_format::NumberFormat;
use super::opc::{self, Relationships};
use super::sheet::Sheet;
use super::writer::{Writer, one_line};
use super::xml::Xml;

/// What the sheets share.
struct Workbook {
    strings: Vec<String>,
    /// The format of each cell style.
    formats: Vec<NumberFormat>,
    is_1904: bool,
}

/// Extracts the sheets in their order.
pub(super) fn read(archive: &mut Archive) -> ExtractResult<Writer> {
    let main = opc::main_part(archive)?;
    let parts = Relationships::read(archive, &main)?;
    let text = archive.required(&main)?;
    let mut workbook = Workbook {
        strings: Vec::new(),
        formats: Vec::new(),
        is_1904: false,
    };
    if let Some(name) = parts.of_kind("sharedStrings") {
        let text = archive.text(name)?.unwrap_or_default();
        let mut xml = Xml::new(&text);
        while xml.find("si")?.is_some() {
            workbook.strings.push(string(&mut xml)?);
        }
    }
    if let Some(name) = parts.of_kind("styles") {
        workbook.formats = formats(&archive.text(name)?.unwrap_or_default())?;
    }
    Xml::new(&text).for_each("workbookPr", |tag| {
        let value = tag.get("date1904");
        workbook.is_1904 = matches!(value.as_deref(), Some("1" | "true"));
    })?;
    let mut sheets = Vec::new();
    Xml::new(&text).for_each("sheet", |tag| {
        let part = tag.get_prefixed("id").unwrap_or_default();
        sheets.push((tag.get("name").unwrap_or_default(), part));
    })?;
    let mut out = Writer::new();
    for (name, id) in sheets {
        let part = parts.of_id(&id);
        if let Some(text) = part.map_or(Ok(None), |part| archive.text(part))? {
            workbook.sheet(&text)?.write(&name, &mut out)?;
        }
    }
    Ok(out)
}

/// A string with its formatted pieces joined, without the reading aids of Japanese.
fn string(xml: &mut Xml) -> ExtractResult<String> {
    let mut text = String::new();
    while let Some(tag) = xml.child()? {
        match tag.name() {
            // Excel writes carriage returns so.
            "t" => text.push_str(&xml.text()?.replace("_x000D_", "")),
            "rPh" | "phoneticPr" | "rPr" => xml.skip()?,
            _ => text.push_str(&string(xml)?),
        }
    }
    Ok(text)
}

/// The format of each cell style.
fn formats(text: &str) -> ExtractResult<Vec<NumberFormat>> {
    let mut own: HashMap<usize, NumberFormat> = HashMap::new();
    Xml::new(text).for_each("numFmt", |tag| {
        if let (Some(id), Some(code)) = (tag.number("numFmtId"), tag.get("formatCode")) {
            own.insert(id, NumberFormat::parse(&code));
        }
    })?;
    let mut formats = Vec::new();
    let mut xml = Xml::new(text);
    if xml.find("cellXfs")?.is_some() {
        while let Some(tag) = xml.child()? {
            let id = tag.number("numFmtId").unwrap_or(0);
            let found = own.get(&id).cloned();
            formats.push(found.unwrap_or_else(|| NumberFormat::built_in(id)));
            xml.skip()?;
        }
    }
    Ok(formats)
}

impl Workbook {
    fn sheet(&self, text: &str) -> ExtractResult<Sheet> {
        let mut sheet = Sheet::default();
        let mut xml = Xml::new(text);
        if xml.find("sheetData")?.is_none() {
            return Ok(sheet);
        }
        while let Some(row) = xml.child()? {
            if row.name() != "row" {
                xml.skip()?;
                continue;
            }
            let mut next = 0;
            while let Some(cell) = xml.child()? {
                let column = cell.get("r").and_then(|at| column(&at)).unwrap_or(next);
                next = column.saturating_add(1);
                let kind = cell.get("t").unwrap_or_default();
                let style = cell.number("s").unwrap_or(0);
                let value = self.value(&kind, style, &mut xml)?;
                sheet.cell(column, one_line(&value))?;
            }
            sheet.end_row(1);
        }
        Ok(sheet)
    }

    /// The value of a cell as it is shown, to the end of the cell.
    fn value(&self, kind: &str, style: usize, xml: &mut Xml) -> ExtractResult<String> {
        let (mut value, mut formula) = (String::new(), String::new());
        while let Some(tag) = xml.child()? {
            match tag.name() {
                "v" => value = xml.text()?,
                "f" => formula = xml.text()?,
                "is" => value = string(xml)?,
                _ => xml.skip()?,
            }
        }
        Ok(match kind {
            "s" => {
                let index = value.trim().parse::<usize>().ok();
                let text = index.and_then(|index| self.strings.get(index));
                text.cloned().unwrap_or_default()
            }
            "b" => (if value.trim() == "1" { "TRUE" } else { "FALSE" }).to_owned(),
            "d" => value.replace('T', " "),
            "str" | "inlineStr" | "e" => value,
            // Saved by a program that does not calculate.
            _ if value.is_empty() && !formula.is_empty() => format!("={formula}"),
            _ => match value.trim().parse::<f64>() {
                Ok(number) => {
                    let format = self.formats.get(style).unwrap_or(&NumberFormat::General);
                    format.show(number, self.is_1904)
                }
                Err(_) => value,
            },
        })
    }
}

/// The column, from 0, of an address such as "AB12".
fn column(address: &str) -> Option<usize> {
    let letters = address.bytes().take_while(u8::is_ascii_alphabetic);
    let number = letters.take(8).fold(0, |number, letter| {
        number * 26 + usize::from(letter.to_ascii_uppercase() - b'A') + 1
    });
    number.checked_sub(1)
}
