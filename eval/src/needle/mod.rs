//! Needle in a haystack: documents with one planted fact and a question about it, at a chosen length and depth.
//!
//! The haystack is ordinary text. The needle is a sentence of the kind that the built-in model was trained on ("The
//! locker code of Ada Quimby is 4711."), surrounded by a few similar sentences about other people, so that finding
//! any number is not enough. `kept eval needle` asks the questions and scores methods; `picture.rs` draws the
//! results.

mod picture;

use kept_kernels::Stop;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use kept_engine::{Engine, EngineError, Prompt, PromptText};

pub use picture::{NeedleCell, NeedleGrid, needle_picture};

/// Planted facts about other people with the same attribute.
const DISTRACTORS: usize = 3;

/// Approximate tokens of template, question and planted sentences.
const AROUND: usize = 110;

/// Sentences of a paragraph.
const PARAGRAPH: usize = 6;

const FIRST_NAMES: [&str; 16] = [
    "Abel", "Amelia", "Bruno", "Celia", "Eleanor", "Ernest", "Gregor", "Harold", "Imogen",
    "Leonard", "Lydia", "Magnus", "Naomi", "Roland", "Silvia", "Winston",
];
const LAST_NAMES: [&str; 16] = [
    "Quimby",
    "Tarrow",
    "Melford",
    "Brenson",
    "Holloway",
    "Draxton",
    "Pennick",
    "Vessel",
    "Corwin",
    "Lathom",
    "Stavely",
    "Marden",
    "Oakes",
    "Fennimore",
    "Griswold",
    "Ravenhill",
];
const ATTRIBUTES: [&str; 6] = [
    "locker code",
    "gate code",
    "safe code",
    "ticket number",
    "badge number",
    "room number",
];

/// A document with a planted fact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Needle {
    /// The document.
    pub document: String,
    /// The question.
    pub question: String,
    /// The value that a right answer contains.
    pub value: String,
}

impl Needle {
    /// Whether `answer` contains the value as a word of its own, not as part of a longer number.
    pub fn is_in(&self, answer: &str) -> bool {
        answer
            .split(|c: char| !c.is_ascii_alphanumeric())
            .any(|word| word == self.value)
    }
}

/// Ordinary text as sentences, each with its length in tokens.
pub struct Haystack {
    sentences: Vec<(String, usize)>,
}

impl Haystack {
    /// Splits `text` into sentences and counts their tokens with the engine's tokenizer.
    ///
    /// # Errors
    /// If the model's tokenizer is missing or not supported.
    pub fn new(engine: &Engine, text: &str) -> Result<Self, EngineError> {
        let tokenizer = engine.model().tokenizer()?;
        let words: Vec<&str> = text.split_whitespace().collect();
        let text = words.join(" ");
        let mut sentences = Vec::new();
        for sentence in text.split_inclusive(". ") {
            let sentence = sentence.trim();
            // Headings, numbered lists and very long sentences are not used.
            if sentence.ends_with('.') && (30..600).contains(&sentence.len()) {
                let tokens = tokenizer.encode(&format!(" {sentence}")).ids.len();
                sentences.push((sentence.to_owned(), tokens));
            }
        }
        Ok(Self { sentences })
    }

    /// Tokens of all sentences.
    pub fn tokens(&self) -> usize {
        self.sentences.iter().map(|(_, tokens)| tokens).sum()
    }

    /// A document whose prompt has about `length` tokens, with the needle at `depth` (0 the beginning, 1 the end).
    /// `None` if the text has fewer tokens. The same `seed` gives the same fact and the same part of the text.
    pub fn needle(&self, length: usize, depth: f64, seed: u64) -> Option<Needle> {
        self.plant(length.saturating_sub(AROUND), depth, seed)
    }

    /// [`Haystack::needle`], shortened by a sentence or two if prompt and an answer of `answer_tokens` tokens would
    /// exceed the context length.
    ///
    /// # Errors
    /// As [`Prompt::of_any_length`].
    pub fn needle_for(
        &self,
        engine: &Engine,
        length: usize,
        answer_tokens: usize,
        depth: f64,
        seed: u64,
    ) -> Result<Option<Needle>, EngineError> {
        let context = engine.model().config().context;
        let most = context.saturating_sub(answer_tokens);
        let mut goal = length.saturating_sub(AROUND);
        loop {
            let Some(needle) = self.plant(goal, depth, seed) else {
                return Ok(None);
            };
            let text = PromptText::new(&needle.document, &needle.question);
            let prompt = Prompt::of_any_length(engine.model(), &text, &Stop::new())?;
            let over = prompt.len().saturating_sub(most);
            // A document that is requested longer than the context length is not shortened.
            if over == 0 || length + answer_tokens > context || goal < over {
                return Ok(Some(needle));
            }
            goal -= over;
        }
    }

    /// A document of sentences with at most `goal` tokens, with the needle.
    fn plant(&self, goal: usize, depth: f64, seed: u64) -> Option<Needle> {
        let mut rng = StdRng::seed_from_u64(seed);
        if goal > self.tokens() {
            return None;
        }
        let first = rng.random_range(0..self.sentences.len());
        let mut tokens = 0;
        let mut hay: Vec<&str> = Vec::new();
        // Wraps around at the end of the text.
        for (sentence, more) in self.sentences.iter().cycle().skip(first) {
            if tokens + more > goal {
                break;
            }
            tokens += more;
            hay.push(sentence);
        }
        let attribute = ATTRIBUTES[rng.random_range(0..ATTRIBUTES.len())];
        let mut owners: Vec<String> = Vec::new();
        let mut values: Vec<String> = Vec::new();
        while owners.len() <= DISTRACTORS {
            let owner = format!(
                "{} {}",
                FIRST_NAMES[rng.random_range(0..FIRST_NAMES.len())],
                LAST_NAMES[rng.random_range(0..LAST_NAMES.len())]
            );
            let value = rng.random_range(1000..10_000u32).to_string();
            if !owners.contains(&owner) && !values.contains(&value) {
                owners.push(owner);
                values.push(value);
            }
        }
        let says = |i: usize| format!("The {attribute} of {} is {}.", owners[i], values[i]);
        let mut planted: Vec<(usize, String)> = (0..DISTRACTORS)
            .map(|i| ((2 * i + 1) * hay.len() / (2 * DISTRACTORS), says(i + 1)))
            .collect();
        planted.push(((depth * hay.len() as f64).round() as usize, says(0)));
        let mut document = String::new();
        for place in 0..=hay.len() {
            let at_place = planted.iter().filter(|(at, _)| *at == place);
            let sentences = at_place.map(|(_, said)| said.as_str());
            for sentence in sentences.chain(hay.get(place).copied()) {
                if !document.is_empty() && !document.ends_with('\n') {
                    document.push(' ');
                }
                document.push_str(sentence);
            }
            if place % PARAGRAPH == PARAGRAPH - 1 {
                document.push_str("\n\n");
            }
        }
        Some(Needle {
            document,
            question: format!("What is the {attribute} of {}?", owners[0]),
            value: values[0].clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn haystack() -> Haystack {
        let sentence = |i| (format!("Sentence number {i} of the haystack."), 10);
        Haystack {
            sentences: (0..100).map(sentence).collect(),
        }
    }

    #[test]
    fn needle_is_planted_at_its_depth() {
        let haystack = haystack();
        for (depth, low, high) in [(0.0, 0.0, 0.01), (0.5, 0.4, 0.6), (1.0, 0.9, 1.0)] {
            let needle = haystack.needle(900, depth, 7).expect("long enough");
            let owner = needle.question.trim_end_matches('?').rsplit(" of ").next();
            let said = format!("of {} is {}.", owner.expect("an owner"), needle.value);
            assert_eq!(needle.document.matches(&said).count(), 1);
            let place = needle.document.find(&said).expect("planted");
            let share = place as f64 / needle.document.len() as f64;
            assert!((low..=high + 0.05).contains(&share), "{depth}: {share}");
            assert_eq!(needle.document.matches(" is ").count(), 1 + DISTRACTORS);
        }
    }

    #[test]
    fn seed_determines_the_needle() {
        let haystack = haystack();
        let at = |depth, seed| haystack.needle(500, depth, seed).expect("long enough");
        assert_eq!(at(0.5, 1), at(0.5, 1));
        assert_eq!(at(0.0, 1).value, at(1.0, 1).value);
        assert_ne!(at(0.5, 1).value, at(0.5, 2).value);
        assert!(haystack.needle(5000, 0.5, 1).is_none(), "too little text");
    }

    #[test]
    fn part_of_a_longer_number_is_no_answer() {
        let needle = Needle {
            document: String::new(),
            question: String::new(),
            value: "4711".to_owned(),
        };
        assert!(needle.is_in("The locker code of Ada is 4711."));
        assert!(!needle.is_in("47117"));
        assert!(!needle.is_in(""));
    }
}
