//! The source passages of an answer: those that its tokens attended to during decode.

use std::ops::Range;

use kept_documents::Document;
use serde::Serialize;

use crate::decode::Votes;
use crate::prompt::Prompt;

/// A passage of the document.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Source {
    /// First byte in the document's text.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
    /// Page, from 1, if the document has pages.
    pub page: Option<u32>,
    /// Location in its own document, if several were joined.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub within: Option<Within>,
    /// The passage.
    pub text: String,
    /// Share of the answer's attention votes for the document's tokens (see `Votes`), 0 to 1.
    pub weight: f32,
}

/// A location in one of several joined documents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Within {
    /// The document's name.
    pub document: String,
    /// First byte in its own text.
    pub start: usize,
    /// One past the last byte in its own text.
    pub end: usize,
}

/// The most passages.
const MOST: usize = 3;
/// A passage with less than this share of the best one's weight is left out.
const LEAST_OF_BEST: f32 = 0.25;

/// The passages with the most `votes`, in descending order.
pub(crate) fn sources(document: &Document, prompt: &Prompt, votes: &Votes) -> Vec<Source> {
    let per_token = votes.per_token();
    let total: f32 = per_token.iter().sum();
    if total <= 0.0 {
        return Vec::new();
    }
    let mut passages: Vec<(Range<usize>, f32)> = Vec::new();
    for (span, &vote) in prompt.spans().iter().zip(per_token) {
        if vote <= 0.0 {
            continue;
        }
        // The last byte, not the first: a token often begins with the space at the end of the previous sentence.
        let byte = (span.end as usize).saturating_sub(1);
        match passages.last_mut() {
            Some((range, weight)) if range.contains(&byte) => *weight += vote,
            _ => passages.push((document.passage_at(byte), vote)),
        }
    }
    passages.sort_by(|a, b| b.1.total_cmp(&a.1));
    let best = passages[0].1;
    passages
        .into_iter()
        .take(MOST)
        .filter(|(_, weight)| *weight >= best * LEAST_OF_BEST)
        .map(|(range, weight)| Source {
            page: document.page_of(range.start),
            within: document.part_of(range.start).map(|part| Within {
                document: part.document.name.clone(),
                start: range.start - part.range.start,
                end: range.end.min(part.range.end) - part.range.start,
            }),
            text: document.text[range.clone()].to_owned(),
            start: range.start,
            end: range.end,
            weight: weight / total,
        })
        .collect()
}
