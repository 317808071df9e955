//! SentencePiece BPE: characters are merged into the pieces with the best scores, with byte tokens as fallback.
//!
//! ```text
//! text      "Öl und Öl"       internal form  "▁Öl▁und▁Öl"
//! pieces    "▁" "Ö" "l" "▁und" "▁" "Ö" "l"    by score; the leftmost of equal scores first
//! spans     0..0 0..2 2..3 3..7 7..8 ...      the space prepended to a text covers no bytes of it
//! ```
//!
//! A text is first cut between characters that are adjacent in no piece. No merge crosses such a cut, so the result
//! equals that of merging the whole text, and the time per byte does not grow with the text.
//!
//! Unigram models are not supported; files of language models do not use them.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

use kept_kernels::{Stop, Stopped};

use super::parallel_bpe::{Pieces, merge_pieces};
use super::vocabulary::{Kind, SPACE, Vocabulary};
use crate::ModelError;
use crate::gguf::Gguf;
use crate::memory_size::table;
use crate::tokenizer::{Encoding, GEMMA4};

/// Most text segments whose tokens are cached, per thread.
const REMEMBERED: usize = 1 << 17;

/// `[tokens]`: the scores in the file.
fn scores(gguf: &Gguf, vocabulary: &Vocabulary) -> Result<Vec<f32>, ModelError> {
    const SCORES: &str = "tokenizer.ggml.scores";
    let scores = (gguf.numbers(SCORES)?).ok_or_else(|| ModelError::MissingKey {
        key: SCORES.to_owned(),
    })?;
    if scores.len() < vocabulary.len() {
        let (tokens, scores) = (vocabulary.len(), scores.len());
        let what = format!("it has {tokens} tokens and {scores} scores");
        return Err(ModelError::BadVocabulary { what });
    }
    Ok(scores)
}

/// `[tokens]`: scores of the order in which a list of merges produces the pieces; the first merge of a piece counts.
fn scores_of_merges(gguf: &Gguf, vocabulary: &Vocabulary) -> Result<Vec<f32>, ModelError> {
    const MERGES: &str = "tokenizer.ggml.merges";
    let merges = (gguf.texts(MERGES)?).ok_or_else(|| ModelError::MissingKey {
        key: MERGES.to_owned(),
    })?;
    let mut scores = vec![f32::MIN; vocabulary.len()];
    for (order, merge) in merges.iter().enumerate().rev() {
        // A piece may begin with a space of its own.
        let space = merge.char_indices().skip(1).find(|&(_, c)| c == ' ');
        let made = space.and_then(|(at, _)| {
            let piece = [&merge[..at], &merge[at + 1..]].concat();
            vocabulary.id(&piece)
        });
        if let Some(id) = made {
            scores[id as usize] = -(order as f32);
        }
    }
    Ok(scores)
}

pub(crate) struct SentencePiece {
    /// `[tokens]`, by [`order`].
    scores: Vec<i32>,
    /// `[256]`: the token of each byte, if it has one.
    bytes: [Option<u32>; 256],
    /// Token for characters with neither a piece nor byte tokens for all their bytes; one for a run of such characters.
    unknown: Option<u32>,
    /// Pairs of characters that are adjacent in some piece, except ASCII pairs.
    neighbours: HashSet<(char, char)>,
    /// The ASCII pairs: bit `b` of `ascii[a]`.
    ascii: [u128; 128],
    /// Whether a space is prepended to a text.
    pub(super) adds_space: bool,
    /// Bytes of the longest piece in the internal form, which a document may contain literally.
    pub(super) longest: usize,
}

impl SentencePiece {
    pub(crate) fn read(gguf: &Gguf, vocabulary: &Vocabulary) -> Result<SentencePiece, ModelError> {
        let gemma4 = gguf.text("tokenizer.ggml.model")? == Some(GEMMA4);
        let scores = match gemma4 {
            true => scores_of_merges(gguf, vocabulary)?,
            false => scores(gguf, vocabulary)?,
        };
        let bytes: [Option<u32>; 256] = std::array::from_fn(|byte| {
            let found = vocabulary.id(&format!("<0x{byte:02X}>"));
            found.filter(|&id| vocabulary.kind(id) == Kind::Byte)
        });
        let unknown = vocabulary.unknown;
        if unknown.is_none() && bytes.contains(&None) {
            let what = "it has neither tokens for all bytes nor an unknown token, so some texts have no tokens";
            return Err(ModelError::BadVocabulary {
                what: what.to_owned(),
            });
        }
        let mut neighbours = HashSet::new();
        let mut ascii = [0u128; 128];
        let mut longest = 1;
        for id in 0..vocabulary.len() as u32 {
            if vocabulary.kind(id) != Kind::Normal {
                continue;
            }
            let text = vocabulary.text(id);
            longest = longest.max(text.len());
            for (left, right) in text.chars().zip(text.chars().skip(1)) {
                match (u8::try_from(left), u8::try_from(right)) {
                    (Ok(a @ 0..128), Ok(b @ 0..128)) => ascii[a as usize] |= 1 << b,
                    _ => {
                        neighbours.insert((left, right));
                    }
                }
            }
        }
        Ok(SentencePiece {
            // Some writers store the first piece's score as -0, which must compare equal to 0.
            scores: (scores.into_iter().map(|score| order(score + 0.0))).collect(),
            bytes,
            unknown,
            neighbours,
            ascii,
            adds_space: gguf
                .flag("tokenizer.ggml.add_space_prefix")?
                .unwrap_or(!gemma4),
            longest,
        })
    }

    /// Memory in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let pairs = table(self.neighbours.len(), size_of::<(char, char)>());
        self.scores.capacity() * size_of::<i32>() + pairs + size_of::<Self>()
    }

    /// Whether a run of characters without a piece becomes one unknown token, however long the run.
    pub(crate) fn fuses_unknown(&self) -> bool {
        self.bytes.contains(&None)
    }

    /// Appends the tokens of a text. `space` prepends a space.
    ///
    /// # Errors
    /// [`Stopped`] if `stop` was requested.
    pub(crate) fn encode(
        &self,
        vocabulary: &Vocabulary,
        text: &str,
        space: bool,
        encoding: &mut Encoding,
        stop: &Stop,
    ) -> Result<(), Stopped> {
        if text.is_empty() {
            return Ok(());
        }
        let mut inside = String::with_capacity(text.len() + text.len() / 3 + 3);
        inside.extend(space.then_some(SPACE));
        inside.extend(text.chars().map(|c| if c == ' ' { SPACE } else { c }));
        let cuts = self.cuts(&inside, stop)?;
        let merged = merge_pieces(inside.len(), &cuts, |pieces| {
            self.merge(vocabulary, &inside, pieces, stop)
        })?;
        let Encoding { ids, ends } = encoding;
        // Walks both texts: `at` in the internal form, `end` in the document.
        let prefix = if space { SPACE.len_utf8() } else { 0 };
        let (mut at, mut end) = (0, 0);
        let mut spaces = prefix;
        let first = ids.len();
        for (id, length) in merged {
            let to = at + length as usize;
            while at < to {
                if spaces > 0 {
                    // The remaining bytes of '▁': its first byte already advanced `end`.
                    spaces -= 1;
                } else {
                    if text.as_bytes()[end] == b' ' {
                        spaces = SPACE.len_utf8() - 1;
                    }
                    end += 1;
                }
                at += 1;
            }
            if ids.len() > first && ids.last() == Some(&id) && self.unknown == Some(id) {
                ends.pop();
            } else {
                ids.push(id);
            }
            ends.push(end as u32);
        }
        Ok(())
    }

    /// Ends of the segments that no piece crosses.
    fn cuts(&self, inside: &str, stop: &Stop) -> Result<Vec<usize>, Stopped> {
        let mut cuts = Vec::with_capacity(inside.len() / 4);
        let mut before = None;
        for (at, c) in inside.char_indices() {
            let joined = before.is_none_or(|left| self.are_neighbours(left, c));
            if !joined {
                stop.check()?;
                cuts.push(at);
            }
            before = Some(c);
        }
        cuts.push(inside.len());
        Ok(cuts)
    }

    fn are_neighbours(&self, left: char, right: char) -> bool {
        match (u8::try_from(left), u8::try_from(right)) {
            (Ok(a @ 0..128), Ok(b @ 0..128)) => self.ascii[a as usize] >> b & 1 == 1,
            _ => self.neighbours.contains(&(left, right)),
        }
    }

    /// Tokens of the segments `pieces`, each with its length in the internal form.
    fn merge(
        &self,
        vocabulary: &Vocabulary,
        inside: &str,
        pieces: Pieces<'_>,
        stop: &Stop,
    ) -> Result<Vec<(u32, u32)>, Stopped> {
        let mut merged = Vec::new();
        let mut merging = Merging::default();
        // Words repeat: the range in `merged` of each segment's tokens.
        let mut known: HashMap<&str, (usize, usize)> = HashMap::new();
        for range in pieces.ranges() {
            stop.check()?;
            let stretch = &inside[range];
            if let Some(&(from, to)) = known.get(stretch) {
                merged.extend_from_within(from..to);
                continue;
            }
            let from = merged.len();
            merging.run(self, vocabulary, stretch, &mut merged);
            if known.len() < REMEMBERED {
                known.insert(stretch, (from, merged.len()));
            }
        }
        Ok(merged)
    }
}

/// A piece under construction: a byte range, and its neighbours in the linked list.
#[derive(Clone, Copy)]
struct Symbol {
    start: u32,
    /// 0 after it was merged into the previous symbol.
    len: u32,
    before: Option<u32>,
    after: Option<u32>,
}

/// Two adjacent symbols that form a piece. The best score is the largest pair; of equal scores, the leftmost.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    score: i32,
    left: Reverse<u32>,
    right: u32,
    /// Length of both in bytes. A mismatch means that one of them has grown since.
    len: u32,
}

/// A whole number for a score, in the order of the scores, as [`f32::total_cmp`] has it.
fn order(score: f32) -> i32 {
    let bits = score.to_bits() as i32;
    bits ^ ((bits >> 31) as u32 >> 1) as i32
}

/// Scratch buffers for merging one segment.
#[derive(Default)]
struct Merging {
    symbols: Vec<Symbol>,
    pairs: BinaryHeap<Pair>,
}

impl Merging {
    fn run(
        &mut self,
        model: &SentencePiece,
        vocabulary: &Vocabulary,
        stretch: &str,
        merged: &mut Vec<(u32, u32)>,
    ) {
        self.symbols.clear();
        let count = stretch.chars().count() as u32;
        for (index, (at, c)) in (0..count).zip(stretch.char_indices()) {
            self.symbols.push(Symbol {
                start: at as u32,
                len: c.len_utf8() as u32,
                before: index.checked_sub(1),
                after: Some(index + 1).filter(|&next| next < count),
            });
        }
        for right in 1..count {
            self.consider(model, vocabulary, stretch, right - 1, right);
        }
        while let Some(pair) = self.pairs.pop() {
            let Reverse(at) = pair.left;
            let [left, right] = [at, pair.right].map(|symbol| self.symbols[symbol as usize]);
            if left.len == 0 || right.len == 0 || left.len + right.len != pair.len {
                continue;
            }
            self.symbols[pair.right as usize].len = 0;
            let merged = &mut self.symbols[at as usize];
            merged.len = pair.len;
            merged.after = right.after;
            if let Some(after) = right.after {
                self.symbols[after as usize].before = Some(at);
                self.consider(model, vocabulary, stretch, at, after);
            }
            if let Some(before) = left.before {
                self.consider(model, vocabulary, stretch, before, at);
            }
        }
        let whole = self.symbols.iter().filter(|symbol| symbol.len > 0);
        for symbol in whole {
            let text = text_of(stretch, symbol.start, symbol.len);
            let bytes = || text.bytes().map(|byte| model.bytes[byte as usize]);
            let whole = piece(vocabulary, text)
                .or_else(|| model.unknown.filter(|_| bytes().any(|byte| byte.is_none())));
            match whole {
                Some(id) => merged.push((id, symbol.len)),
                None => merged.extend(bytes().flatten().map(|id| (id, 1))),
            }
        }
    }

    /// Queues two neighbours for merging if together they form a piece.
    fn consider(
        &mut self,
        model: &SentencePiece,
        vocabulary: &Vocabulary,
        stretch: &str,
        left: u32,
        right: u32,
    ) {
        let (a, b) = (self.symbols[left as usize], self.symbols[right as usize]);
        let len = a.len + b.len;
        if len as usize > model.longest {
            return;
        }
        if let Some(id) = piece(vocabulary, text_of(stretch, a.start, len)) {
            self.pairs.push(Pair {
                score: model.scores[id as usize],
                left: Reverse(left),
                right,
                len,
            });
        }
    }
}

fn text_of(stretch: &str, start: u32, len: u32) -> &str {
    &stretch[start as usize..(start + len) as usize]
}

/// The plain token with this text. Control tokens are excluded, because the text may come from a document.
fn piece(vocabulary: &Vocabulary, text: &str) -> Option<u32> {
    let id = vocabulary.id(text)?;
    (vocabulary.kind(id) == Kind::Normal).then_some(id)
}
