//! The source passages of an answer, over the whole answer and sentence by sentence: those from which its tokens were
//! copied.
//!
//! Most attention goes to the beginning of the text and to its last sentences, whatever the answer is; a passage with
//! much attention is no evidence. What counts is a *copy* (the retrieval heads of Wu et al., 2024, "Retrieval Head
//! Mechanistically Explains Long-Context Factuality", section 2): a head that looks at a document token at the moment
//! when the model says this very token. A copy of a token that stands often in the document says little about the
//! place, so each counts 1 / occurrences.
//!
//! `kept eval qa` counts in how many right answers with clear passages one of them holds an accepted answer: 18 of 19 with
//! SmolLM2 135M, 22 of 22 with Gemma 3 270M and 86 of 88 with Qwen2.5 1.5B (docs/benchmarks.md, "Passages"). What is clear
//! was chosen on the same questions.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use kept_documents::{Document, sentences};
use serde::Serialize;

use crate::numbers;
use crate::prompt::Prompt;
use crate::votes::Votes;

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
    /// Share of the evidence for the whole answer, 0 to 1.
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

/// A passage that a sentence of the answer stands on; a sentence can have several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, serde::Deserialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub struct Citation {
    /// One past the end of the sentence in the answer's text: in bytes, or in UTF-16 units where the app uses it.
    pub end: usize,
    /// Index of the passage in the answer's sources.
    pub source: usize,
}

/// The most passages for the whole answer.
const MAX_SOURCES: usize = 3;
/// A passage with less than this share of the best one's weight is left out.
const MIN_SHARE_OF_BEST: f32 = 0.25;
/// Least evidence of the tokens of a sentence that stand on a passage,
const CLEAR_EVIDENCE: f32 = 0.3;
/// least share of it that the passage has,
const CLEAR_SHARE: f32 = 0.2;
/// and how many times that of the next passage it has.
const CLEAR_LEAD: f32 = 1.2;
/// Least tokens that a further passage of a sentence explains: a name alone is no claim, but a number is.
const MIN_CLAIM: usize = 3;

/// What is compared of a token: its text without space and capitals, because the first word of an answer has neither the
/// space nor the case that it has inside a sentence; without a text, such as a part of a character, its id.
fn word(text: Option<&str>, id: u32) -> String {
    match text.map(str::trim) {
        Some(text) if !text.is_empty() => text.to_lowercase(),
        _ => format!("\0{id}"),
    }
}

/// The word that begins at byte `at` of a text, as [`word`]; empty in the middle of a word.
fn word_at(text: &str, at: usize) -> String {
    let (before, after) = text.split_at(text.floor_char_boundary(at));
    if before.ends_with(char::is_alphanumeric) && after.starts_with(char::is_alphanumeric) {
        return String::new();
    }
    let after = after.trim_start();
    let end = after.find(|c: char| !c.is_alphanumeric());
    after[..end.unwrap_or(after.len())].to_lowercase()
}

/// The passages that have evidence, in the order of the document.
struct Passages {
    ranges: Vec<Range<usize>>,
    /// `[passages]`: evidence over the whole answer.
    evidence: Vec<f32>,
    /// Evidence of each token of the answer that was copied: bytes of the answer before it, passage, evidence.
    copies: Vec<(usize, usize, f32)>,
}

impl Passages {
    /// `text` is the answer.
    fn new(document: &Document, prompt: &Prompt, votes: &Votes, text: &str) -> Self {
        let steps = votes.steps();
        let read = |token: u32| {
            let position = prompt.document.start + token as usize;
            let span = prompt.span(position).unwrap_or_default();
            word(document.text.get(span), prompt.ids[position])
        };
        // A token is the same word on both sides: an answer's text shows a character with its last part only.
        let mut words: HashMap<u32, Option<String>> =
            steps.iter().map(|step| (step.token, None)).collect();
        for (token, id) in prompt.ids[prompt.document.clone()].iter().enumerate() {
            if let Some(unknown @ None) = words.get_mut(id) {
                *unknown = Some(read(token as u32));
            }
        }
        let said = |i: usize| {
            let end = steps.get(i + 1).map_or(text.len(), |next| next.said);
            let own = || word(text.get(steps[i].said..end), steps[i].token);
            words[&steps[i].token].clone().unwrap_or_else(own)
        };
        // A token that begins a word is also that word: "M" of "Mai", which is one token inside a sentence.
        let said: Vec<[String; 2]> = (0..steps.len())
            .map(|i| [said(i), word_at(text, steps[i].said)])
            .collect();
        let mut occurrences: HashMap<&str, f32> =
            said.iter().flatten().map(|w| (w.as_str(), 0.0)).collect();
        for token in 0..prompt.document.len() as u32 {
            if let Some(count) = occurrences.get_mut(read(token).as_str()) {
                *count += 1.0;
            }
        }
        let copies = steps.iter().zip(&said).flat_map(|(step, said)| {
            let occurrences = &occurrences;
            step.votes.iter().filter_map(move |&(token, vote)| {
                let read = read(token);
                let copied = said.contains(&read);
                copied.then(|| (token, step.said, vote / occurrences[read.as_str()]))
            })
        });
        let mut copies: Vec<(u32, usize, f32)> = copies.collect();
        copies.sort_by_key(|&(token, said, _)| (token, said));
        let mut passages = Self {
            ranges: Vec::new(),
            evidence: Vec::new(),
            copies: Vec::new(),
        };
        for (token, said, evidence) in copies {
            // The last byte, not the first: a token often begins with the space at the end of the previous sentence.
            let byte = (prompt.spans()[token as usize].end as usize).saturating_sub(1);
            // The text between joined documents belongs to none of them.
            if !document.parts.is_empty() && document.part_of(byte).is_none() {
                continue;
            }
            if passages
                .ranges
                .last()
                .is_none_or(|last| !last.contains(&byte))
            {
                let range = document.passage_at(byte);
                // A page without text, or the space between two pages.
                if document.text[range.clone()].trim().is_empty() {
                    continue;
                }
                passages.ranges.push(range);
                passages.evidence.push(0.0);
            }
            let passage = passages.ranges.len() - 1;
            passages.evidence[passage] += evidence;
            passages.copies.push((said, passage, evidence));
        }
        passages
    }

    /// The passages with the most evidence over the whole answer, in descending order.
    fn best(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.ranges.len()).collect();
        order.sort_by(|&a, &b| self.evidence[b].total_cmp(&self.evidence[a]));
        let most = order.first().map_or(0.0, |&best| self.evidence[best]);
        order.truncate(MAX_SOURCES);
        order.retain(|&passage| self.evidence[passage] >= most * MIN_SHARE_OF_BEST);
        order
    }

    /// The passages that the sentence `said` of the answer, in bytes of its `text`, stands on, in the order of the tokens
    /// that were copied from them: the one that is clear, then for the tokens that were not copied from it the next one
    /// that is clear, and so on. If passages have numbers of the sentence, the first is one of them; a passage with other
    /// numbers only is no source.
    fn of_sentence(&self, document: &str, text: &str, said: &Range<usize>) -> Vec<usize> {
        let words = |passage: usize| &document[self.ranges[passage].clone()];
        let mut copies = self.copies.clone();
        copies.retain(|(at, ..)| said.contains(at));
        let passages: BTreeSet<usize> = copies.iter().map(|copy| copy.1).collect();
        let agree = |passage| numbers::agree(&text[said.clone()], words(passage));
        let agree: BTreeMap<usize, Option<bool>> =
            passages.into_iter().map(|p| (p, agree(p))).collect();
        copies.retain(|copy| agree[&copy.1] != Some(false));
        let mut with_number = copies.clone();
        with_number.retain(|copy| agree[&copy.1] == Some(true));
        let mut next = clear(&with_number).or_else(|| clear(&copies));
        let mut found: Vec<(usize, usize)> = Vec::new();
        while let Some((passage, tokens)) = next {
            let cited = || found.iter().map(|&(_, cited)| words(cited));
            let adds = || numbers::adds(&text[said.clone()], words(passage), cited());
            let is_claim = found.is_empty() || tokens.len() >= MIN_CLAIM || adds();
            copies.retain(|(at, ..)| !tokens.contains(at));
            // A repeated line says no more the second time.
            if is_claim && cited().all(|other| other != words(passage)) {
                found.extend(tokens.first().map(|&first| (first, passage)));
            }
            next = clear(&copies);
        }
        found.sort_unstable();
        found.into_iter().map(|(_, passage)| passage).collect()
    }
}

/// The passage that has clearly more of the `copies` than any other that the same tokens were copied from, and those tokens
/// by the bytes of the answer before them.
fn clear(copies: &[(usize, usize, f32)]) -> Option<(usize, BTreeSet<usize>)> {
    let evidence = |of: &dyn Fn(usize) -> bool| {
        let mut totals: BTreeMap<usize, f32> = BTreeMap::new();
        for (_, passage, evidence) in copies.iter().filter(|(at, ..)| of(*at)) {
            *totals.entry(*passage).or_default() += evidence;
        }
        totals
    };
    let totals = evidence(&|_| true);
    let all: f32 = totals.values().sum();
    let (passage, most) = totals.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let own = copies.iter().filter(|copy| copy.1 == passage);
    let tokens: BTreeSet<usize> = own.map(|copy| copy.0).collect();
    let mut rivals = evidence(&|at| tokens.contains(&at));
    rivals.remove(&passage);
    let next = rivals.into_values().fold(0.0, f32::max);
    let is_clear = all >= CLEAR_EVIDENCE && most >= all * CLEAR_SHARE && most >= next * CLEAR_LEAD;
    is_clear.then_some((passage, tokens))
}

/// The passages that the answer `text` stands on: those of its sentences in their order, then further ones with the most
/// evidence in descending order; and for each sentence its passages, where they are clear.
pub(crate) fn sources(
    document: &Document,
    prompt: &Prompt,
    votes: &Votes,
    text: &str,
) -> (Vec<Source>, Vec<Citation>) {
    let passages = Passages::new(document, prompt, votes, text);
    let total: f32 = passages.evidence.iter().sum();
    let mut chosen = Vec::new();
    let mut citations = Vec::new();
    let mut begin = 0;
    for sentence in sentences(text) {
        let said = begin..sentence.end;
        for passage in passages.of_sentence(&document.text, text, &said) {
            let known = chosen.iter().position(|&chosen| chosen == passage);
            let source = known.unwrap_or_else(|| {
                chosen.push(passage);
                chosen.len() - 1
            });
            citations.push(Citation {
                end: sentence.end,
                source,
            });
        }
        begin = sentence.end;
    }
    for passage in passages.best() {
        if !chosen.contains(&passage) {
            chosen.push(passage);
        }
    }
    let sources = chosen.into_iter().map(|passage| {
        let range = &passages.ranges[passage];
        Source {
            page: document.page_of(range.start),
            within: document.part_of(range.start).map(|part| Within {
                document: part.document.name.clone(),
                start: range.start - part.range.start,
                end: range.end.min(part.range.end) - part.range.start,
            }),
            text: document.text[range.clone()].to_owned(),
            start: range.start,
            end: range.end,
            weight: passages.evidence[passage] / total,
        }
    });
    (sources.collect(), citations)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_of_an_answer_is_that_inside_a_sentence() {
        assert_eq!(word(Some(" October"), 1), word(Some("October"), 2));
        assert_ne!(word(Some("10"), 1), word(Some("1"), 2));
        // Parts of a character, and spaces, are themselves only.
        assert_ne!(word(None, 1), word(None, 2));
        assert_ne!(word(Some(" "), 1), word(Some("\n"), 2));
        assert_eq!(word(Some(" "), 1), word(Some(" "), 1));
        assert_eq!(word_at("Mai 2025", 0), "mai");
        assert_eq!(word_at("Mai 2025", 3), "2025");
        assert_eq!(word_at("Mai", 1), "");
    }

    #[test]
    fn a_passage_with_other_numbers_is_no_source() {
        let document = "The code of Ann is 2906. The code of Bo is 4711. Cy has one, too.";
        let source = |passage: usize, text: &str| {
            let passages = Passages {
                ranges: vec![0..24, 25..48, 49..65],
                evidence: vec![0.0; 3],
                copies: vec![(4, passage, 1.0)],
            };
            passages.of_sentence(document, text, &(0..text.len()))
        };
        assert!(source(0, "The code is 4711.").is_empty());
        assert_eq!(source(1, "The code is 4711."), [1]);
        assert_eq!(source(1, "The 2 codes are 2906 and 4711."), [1]);
        assert_eq!(source(0, "The code is secret."), [0], "no number");
        assert_eq!(source(2, "Cy has 1."), [2], "a number in words");
        assert_eq!(source(0, "7. The code is secret."), [0], "a list item");
    }

    #[test]
    fn a_passage_with_the_number_comes_before_one_without() {
        let document = "Customer | Discount\nQuill | 10 %\nMoreau | 3 %";
        let passages = Passages {
            ranges: vec![0..19, 20..32, 33..45],
            evidence: vec![0.0; 3],
            copies: vec![(0, 1, 0.2), (15, 1, 0.2), (15, 2, 0.3), (20, 0, 9.0)],
        };
        let said = "Quill gets a 10 % discount.";
        let cited = |text: &str| passages.of_sentence(document, text, &(0..text.len()));
        assert_eq!(cited(said), [1]);
        assert_eq!(cited("Quill gets a nice discount."), [0], "no number");
    }

    #[test]
    fn a_number_alone_is_a_claim() {
        let document = "Next time in room B-204.\n17 keys were counted.\nMarek is absent.";
        let passages = Passages {
            ranges: vec![0..25, 25..46, 47..63],
            evidence: vec![0.0; 3],
            copies: vec![
                (3, 0, 2.0),
                (10, 0, 2.0),
                (15, 0, 2.0),
                (21, 2, 0.9),
                (30, 1, 0.5),
            ],
        };
        let cited = |text: &str| passages.of_sentence(document, text, &(0..text.len()));
        assert_eq!(cited("They meet in B-204; Marek has 17 keys."), [0, 1]);
        assert_eq!(cited("They meet in B-204; Marek has the keys."), [0]);
    }

    #[test]
    fn each_claim_of_a_sentence_has_its_passage() {
        let found = |copies: &[(usize, usize, f32)]| {
            let passages = Passages {
                ranges: vec![0..1, 1..2, 2..3, 3..4],
                evidence: vec![0.0; 4],
                copies: copies.to_vec(),
            };
            passages.of_sentence("abcb", "a sentence of an answer", &(0..23))
        };
        let one = [(0, 1, 5.0), (2, 1, 5.0), (11, 1, 1.0)];
        let other = [(11, 0, 0.5), (14, 0, 3.0), (17, 0, 3.0), (20, 0, 3.0)];
        assert_eq!(found(&[&one[..], &other].concat()), [1, 0]);
        // In the order of the claims.
        let later = other.map(|(at, _, evidence)| (at, 0, 9.0 * evidence));
        assert_eq!(found(&[&one[..], &later[1..]].concat()), [1, 0]);
        // As much evidence, but for other tokens.
        let equal = [(14, 0, 4.0), (17, 0, 4.0), (20, 0, 3.0)];
        assert_eq!(found(&[&one[..], &equal].concat()).len(), 2);
        // The same tokens: nothing tells the passages apart.
        let same = one.map(|(at, _, evidence)| (at, 2, evidence));
        assert!(found(&[&one[..], &same].concat()).is_empty());
        // A name alone, and a line that is repeated.
        assert_eq!(found(&[&one[..], &other[..3]].concat()), [1]);
        let repeated = other.map(|(at, _, evidence)| (at, 3, evidence));
        assert_eq!(found(&[&one[..], &repeated].concat()), [1]);
    }
}
