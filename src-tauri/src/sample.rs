//! The built-in sample document and its suggested questions.

use serde::Deserialize;

/// The sample's name.
pub const NAME: &str = "sample.txt";
/// Its text.
pub const TEXT: &str = kept_engine::SAMPLE;
const QUESTIONS: &str = include_str!("../../assets/sample.json");
/// The default budget for the sample with a model: a quarter for the built-in one, which looks up single facts. Other
/// models are also asked for more, and invent details with a quarter of so short a text.
pub fn budget(model: &str) -> &'static str {
    match model {
        kept_engine::MINI => "25%",
        _ => "50%",
    }
}
/// Number of suggested questions.
const OFFERED: usize = 5;

#[derive(Deserialize)]
struct Questions {
    question: String,
    more: Vec<More>,
}

#[derive(Deserialize)]
struct More {
    question: String,
}

/// Suggested questions; empty if the built-in list cannot be parsed (a test checks that it can).
pub fn suggestions() -> Vec<String> {
    serde_json::from_str::<Questions>(QUESTIONS).map_or_else(
        |_| Vec::new(),
        |questions| {
            let more = questions.more.into_iter().map(|more| more.question);
            std::iter::once(questions.question)
                .chain(more)
                .take(OFFERED)
                .collect()
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_questions_are_offered() {
        let offered = suggestions();
        assert_eq!(offered.len(), 5);
        assert_eq!(offered[0], "What colour is the flag of the ship Palova?");
    }
}
