//! [`EvictionLog`]: what a method forgot of the document while it answered.

use std::ops::Range;

use kept_policies::Pos;

/// Bytes of a number in [`EvictionLog::to_bytes`].
const WORD: usize = size_of::<u32>();

/// Document tokens that lost holders (KV heads of layers) while an answer was decoded. With the map at the end of the
/// answer it gives the map after each of its tokens.
///
/// The log has at most 2^18 entries: where there would be more, twice as many tokens of the answer make a step, and what a
/// document token loses in a step is one entry. Longer documents have no log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EvictionLog {
    /// Tokens of the answer that were decoded.
    tokens: u32,
    /// Tokens of the answer in a step; 0 before the first.
    every: u32,
    /// In order of the steps.
    evicted: Vec<Evicted>,
}

/// Holders (KV heads of layers) that stopped holding a token of the document during a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Evicted {
    /// The step, from 0.
    pub step: u32,
    /// The token, from 0.
    pub token: u32,
    /// The number of holders; a token may have several entries in one step.
    pub holders: u32,
}

impl EvictionLog {
    /// The most entries, and the most tokens of a document that has a log.
    pub(crate) const MAX_ENTRIES: usize = 1 << 18;

    /// Tokens of the answer that were decoded.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Tokens of the answer in a step.
    pub fn every(&self) -> u32 {
        self.every
    }

    /// What was lost, in order of the steps.
    pub fn evicted(&self) -> &[Evicted] {
        &self.evicted
    }

    /// Whether no document token lost a holder.
    pub fn is_empty(&self) -> bool {
        self.evicted.is_empty()
    }

    /// Adds what the next token of the answer evicted: each document token once for each holder that held it. Empties
    /// `lost`.
    fn push(&mut self, lost: &mut Vec<u32>, most: usize) {
        self.every = self.every.max(1);
        let step = self.tokens / self.every;
        self.tokens += 1;
        lost.sort_unstable();
        self.evicted
            .extend(lost.chunk_by(|a, b| a == b).map(|same| Evicted {
                step,
                token: same[0],
                holders: same.len() as u32,
            }));
        lost.clear();
        if self.evicted.len() > most {
            self.sum();
        }
        while self.evicted.len() > most && self.every < self.tokens {
            self.every *= 2;
            self.evicted.iter_mut().for_each(|one| one.step /= 2);
            self.sum();
        }
    }

    /// Makes one entry of those of a token in a step.
    fn sum(&mut self) {
        self.evicted.sort_by_key(|one| (one.step, one.token));
        self.evicted.dedup_by(|next, one| {
            let same = (next.step, next.token) == (one.step, one.token);
            one.holders += if same { next.holders } else { 0 };
            same
        });
    }

    /// Little-endian u32 words: tokens, tokens of a step, then step, token and holders of each entry.
    pub fn to_bytes(&self) -> Vec<u8> {
        let evicted = self.evicted.iter();
        let evicted = evicted.flat_map(|one| [one.step, one.token, one.holders]);
        let words = [self.tokens, self.every].into_iter().chain(evicted);
        words.flat_map(u32::to_le_bytes).collect()
    }

    /// Parses the output of [`EvictionLog::to_bytes`] for a document of `document` tokens; `None` if it is invalid.
    pub fn from_bytes(bytes: &[u8], document: usize) -> Option<Self> {
        let (words, rest) = bytes.as_chunks::<WORD>();
        let (&[tokens, every], evicted) = words.split_first_chunk()?;
        let (evicted, more) = evicted.as_chunks::<3>();
        let of_words = |words: &[[u8; WORD]; 3]| {
            let [step, token, holders] = words.map(u32::from_le_bytes);
            Evicted {
                step,
                token,
                holders,
            }
        };
        let record = Self {
            tokens: u32::from_le_bytes(tokens),
            every: u32::from_le_bytes(every),
            evicted: evicted.iter().map(of_words).collect(),
        };
        let steps = match record.every {
            0 => 0,
            every => record.tokens.div_ceil(every),
        };
        let valid = |one: &Evicted| one.step < steps && (one.token as usize) < document;
        let is_valid = rest.is_empty()
            && more.is_empty()
            && record.evicted.iter().all(valid)
            && record.evicted.is_sorted_by_key(|one| one.step);
        is_valid.then_some(record)
    }
}

/// Fills an [`EvictionLog`] during decode.
pub(crate) struct EvictionRecorder {
    /// Positions of the document.
    document: Range<usize>,
    /// Tokens that the current token of the answer evicted, once for each holder.
    lost: Vec<u32>,
    pub(crate) record: EvictionLog,
}

impl EvictionRecorder {
    pub(crate) fn new(document: Range<usize>) -> Self {
        Self {
            document,
            lost: Vec::new(),
            record: EvictionLog::default(),
        }
    }

    /// A holder no longer holds the token at `position`.
    pub(crate) fn lose(&mut self, position: Pos) {
        let position = position.0 as usize;
        if self.document.contains(&position) {
            self.lost.push((position - self.document.start) as u32);
        }
    }

    /// A token of the answer has passed all layers.
    pub(crate) fn end_step(&mut self) {
        self.record.push(&mut self.lost, EvictionLog::MAX_ENTRIES);
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    /// `[steps][tokens]`: holders lost, of random evictions, and their record with at most `most` entries.
    fn drawn(random: &mut StdRng, most: usize) -> (Vec<Vec<u32>>, EvictionLog) {
        let (steps, tokens) = (random.random_range(1..40), random.random_range(1..30));
        let mut lost = vec![vec![0; tokens]; steps];
        let mut record = EvictionLog::default();
        for of_step in &mut lost {
            let mut now: Vec<u32> = (0..random.random_range(0..12))
                .map(|_| random.random_range(0..tokens as u32))
                .collect();
            now.iter().for_each(|&token| of_step[token as usize] += 1);
            record.push(&mut now, most);
        }
        (lost, record)
    }

    #[test]
    fn every_step_is_the_sum_of_its_tokens_and_the_log_is_bounded() {
        let mut random = StdRng::seed_from_u64(3);
        for round in 0..300 {
            let most = [usize::MAX, 1, 40][round % 3];
            let (lost, record) = drawn(&mut random, most);
            let tokens = lost[0].len();
            assert!(record.evicted().len() <= most.max(tokens));
            assert_eq!(record.tokens() as usize, lost.len());
            let every = record.every() as usize;
            assert!(most < usize::MAX || every == 1);
            for (step, lost) in lost.chunks(every).enumerate() {
                for token in 0..tokens {
                    let expected: u32 = lost.iter().map(|of_step| of_step[token]).sum();
                    let is_same =
                        |one: &&Evicted| (one.step, one.token) == (step as u32, token as u32);
                    let evicted = record.evicted().iter().filter(is_same);
                    assert_eq!(evicted.map(|one| one.holders).sum::<u32>(), expected);
                }
            }
            let bytes = record.to_bytes();
            assert_eq!(EvictionLog::from_bytes(&bytes, tokens), Some(record));
        }
    }

    #[test]
    fn invalid_bytes_are_refused() {
        let mut record = EvictionLog::default();
        record.push(&mut vec![4, 1, 4], EvictionLog::MAX_ENTRIES);
        let bytes = record.to_bytes();
        assert!(EvictionLog::from_bytes(&bytes, 5).is_some());
        assert_eq!(EvictionLog::from_bytes(&bytes, 4), None, "a token too many");
        for end in 0..bytes.len() {
            let whole = end >= 2 * WORD && (end - 2 * WORD).is_multiple_of(3 * WORD);
            assert_eq!(EvictionLog::from_bytes(&bytes[..end], 5).is_some(), whole);
        }
        for at in [0, WORD] {
            let mut other = bytes.clone();
            other[at] = 0;
            assert_eq!(EvictionLog::from_bytes(&other, 5), None, "a step too many");
        }
        let order = [2u32, 1, 1, 0, 1, 0, 0, 1].map(u32::to_le_bytes).concat();
        assert_eq!(EvictionLog::from_bytes(&order, 5), None, "not in order");
    }
}
