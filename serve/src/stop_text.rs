//! Texts that end an answer (`stop`), also where they come in several pieces.

/// Finds the first of some texts in an answer that arrives in pieces.
pub(crate) struct StopText {
    texts: Vec<String>,
    /// The end of the answer so far, which may be the beginning of one of the texts.
    held: String,
    found: bool,
}

impl StopText {
    pub(crate) fn new(texts: Vec<String>) -> Self {
        Self {
            texts: texts.into_iter().filter(|text| !text.is_empty()).collect(),
            held: String::new(),
            found: false,
        }
    }

    /// Whether one of the texts was found.
    pub(crate) fn found(&self) -> bool {
        self.found
    }

    /// The part of the answer up to the end of `piece` that is certainly before any of the texts.
    pub(crate) fn push(&mut self, piece: &str) -> String {
        if self.found {
            return String::new();
        }
        self.held += piece;
        let at = self.texts.iter().filter_map(|text| self.held.find(text));
        if let Some(at) = at.min() {
            self.found = true;
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        let open = |text: &String| {
            let begins = (1..text.len()).rev().filter(|&n| text.is_char_boundary(n));
            let mut begins = begins.filter(|&n| self.held.ends_with(&text[..n]));
            begins.next()
        };
        let open = self.texts.iter().filter_map(open).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - open);
        std::mem::replace(&mut self.held, rest)
    }

    /// The rest of an answer that ended without any of the texts.
    pub(crate) fn rest(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(texts: &[&str], pieces: &[&str]) -> (String, bool) {
        let mut stop = StopText::new(texts.iter().map(|&text| text.to_owned()).collect());
        let mut said: String = pieces.iter().map(|piece| stop.push(piece)).collect();
        if !stop.found() {
            said += &stop.rest();
        }
        (said, stop.found())
    }

    #[test]
    fn an_answer_ends_before_the_first_stop_text() {
        let cases: [(&[&str], &[&str], &str, bool); 6] = [
            (&[], &["all of", " it"], "all of it", false),
            (&["END"], &["before E", "N", "D after"], "before ", true),
            (
                &["END"],
                &["before E", "NX", " after"],
                "before ENX after",
                false,
            ),
            (&["b", "abc"], &["xa", "bc"], "x", true),
            (&["ée"], &["caf", "é", "e"], "caf", true),
            (&[""], &["x"], "x", false),
        ];
        for (texts, pieces, expected, found) in cases {
            assert_eq!(
                cut(texts, pieces),
                (expected.to_owned(), found),
                "{texts:?}"
            );
        }
    }
}
