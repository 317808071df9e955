//! The open document.

use serde::Serialize;
use ts_rs::TS;

use super::Progress;

/// A page and the text on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct PageRange {
    /// Page number in the file, from 1.
    pub number: u32,
    /// First UTF-16 unit.
    pub start: usize,
    /// One past the last UTF-16 unit.
    pub end: usize,
}

/// One of several documents in one conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct DocumentPart {
    /// The file's name.
    pub name: String,
    /// `text`, `pdf`, ...
    pub kind: String,
    /// First UTF-16 unit in the joined text.
    pub start: usize,
    /// One past its last UTF-16 unit.
    pub end: usize,
    /// Its pages.
    pub pages: usize,
}

/// A heading of the document, or the name of one of several documents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct OutlineEntry {
    /// Depth, from 1; 0 for the name of a document.
    pub level: u8,
    /// The heading with its number, in one line.
    pub title: String,
    /// First UTF-16 unit of the heading.
    pub start: usize,
    /// Its page.
    pub page: Option<u32>,
}

/// The open document, without its text.
#[derive(Debug, Clone, PartialEq, Serialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct DocumentFacts {
    /// Unique for every document.
    pub id: u64,
    /// The file's name.
    pub name: String,
    /// `text`, `pdf`, ...
    pub kind: String,
    /// Bytes of the file.
    pub source_bytes: u64,
    /// UTF-16 units of the text.
    pub length: usize,
    /// Its pages, if it has any.
    pub pages: Vec<PageRange>,
    /// What its pages are called: `page`, `slide`, `sheet` or `chapter`.
    pub page_noun: String,
    /// The documents that it consists of, in order; empty for a single document.
    pub documents: Vec<DocumentPart>,
    /// Its headings in order, at most 500.
    pub outline: Vec<OutlineEntry>,
    /// Notes for the user about how the file was read, one sentence each.
    pub notes: Vec<String>,
    /// Tokens for the open model; `None` until counted.
    pub tokens: Option<usize>,
    /// `tokens` is estimated from samples of the text: counting a document that is far too long would take long.
    pub tokens_estimated: bool,
    /// A sentence if the open model cannot read the document at all.
    pub too_long: Option<String>,
    /// A sentence if the document exceeds the open model's context length and is read in streaming mode.
    pub streaming: Option<String>,
    /// The built-in sample.
    pub sample: bool,
    /// Beyond the purpose of the built-in model: any text but the sample's, whatever the file's name.
    pub beyond_box: bool,
    /// Questions to offer.
    pub suggestions: Vec<String>,
}

/// The document is read in the background, or this was stopped, or waits for the user because it takes long.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct ReadAhead {
    /// It runs; otherwise the user can let it go on.
    pub running: bool,
    /// How far it has come; `None` if it waits.
    pub progress: Option<Progress>,
}
