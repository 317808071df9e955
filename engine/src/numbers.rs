//! Numbers in texts: which of an answer stand nowhere in what the model read.

use std::collections::HashSet;

/// A number in a text: `4,150.50`.
struct Number<'a> {
    /// As it is written.
    text: &'a str,
    /// Its groups of digits: 4, 150 and 50.
    groups: Vec<&'a str>,
}

/// The most groups that are joined: one of digits, three of thousands and one of decimals.
const MAX_GROUPS: usize = 5;
/// Numbers with fewer digits are often written in words, counted or listed.
const MIN_DIGITS: usize = 3;
/// The most numbers that are named.
const MAX_NAMED: usize = 5;

impl Number<'_> {
    /// The digits of every sequence of groups: whole numbers and decimals, years of dates, items of a list without spaces.
    /// Of thousands with signs between them only those from the beginning and single groups: 250000 is no part of 1.250.000.
    fn forms(&self) -> impl Iterator<Item = String> {
        let thousands = self.is_grouped() && !self.text.contains(char::is_whitespace);
        (0..self.groups.len()).flat_map(move |first| {
            let most = if thousands && first > 0 {
                1
            } else {
                MAX_GROUPS
            };
            self.forms_from(first, 1).take(most)
        })
    }

    /// The digits of the sequences of at least `least` groups that begin at group `first`.
    fn forms_from(&self, first: usize, least: usize) -> impl Iterator<Item = String> {
        let groups = &self.groups;
        let most = groups.len().min(first + MAX_GROUPS);
        (first + least..=most).map(move |end| groups[first..end].concat())
    }

    /// Whether its first groups are thousands: `4,150.50`, `142,000,000`.
    fn is_grouped(&self) -> bool {
        let digits = |group: &&str| group.chars().count();
        let [first, second, ..] = self.groups.as_slice() else {
            return false;
        };
        digits(first) <= 3 && digits(second) == 3
    }

    /// Whether it stands in a text with the forms `known`. A part of a grouped number is not that number.
    fn stands_in(&self, known: &HashSet<String>) -> bool {
        match self.is_grouped() {
            true => self.forms_from(0, 2).any(|form| known.contains(&form)),
            false => self.forms().any(|form| known.contains(&form)),
        }
    }
}

/// The numbers of a text, but not the number of a list item at its beginning.
fn of(text: &str) -> Vec<Number<'_>> {
    let text = text.trim_start();
    let (mark, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let is_mark = mark.ends_with(['.', ')'])
        && mark.chars().any(char::is_numeric)
        && mark
            .chars()
            .all(|c| c.is_numeric() || matches!(c, '(' | ')' | '.'));
    let text = if is_mark { rest } else { text };
    let mut all: Vec<Number<'_>> = Vec::new();
    // The end of the last group, and where the last number begins.
    let (mut last, mut begin) = (0, 0);
    let starts = text.char_indices().scan(false, |within, (at, c)| {
        let starts = c.is_numeric() && !*within;
        *within = c.is_numeric();
        Some(starts.then_some(at))
    });
    for start in starts.flatten() {
        let rest = &text[start..];
        let length = rest.find(|c: char| !c.is_numeric()).unwrap_or(rest.len());
        let between = &text[last..start];
        let joins = matches!(
            between,
            "," | "." | "'" | "_" | "\u{2019}" | " " | "\u{a0}" | "\u{202f}"
        );
        let group = &rest[..length];
        last = start + length;
        match all.last_mut() {
            Some(number) if joins => {
                number.groups.push(group);
                number.text = &text[begin..last];
            }
            _ => {
                begin = start;
                all.push(Number {
                    text: group,
                    groups: vec![group],
                });
            }
        }
    }
    all
}

/// A text without the number that it ends with, if it does.
pub(crate) fn without_last(text: &str) -> &str {
    text.trim_end_matches(|c: char| c.is_numeric() || matches!(c, ',' | '.' | '\'' | '\u{2019}'))
}

/// Whether one of the numbers of `said` stands in `read`, however it is written: 1140 in "1.140,00"; `None` if one of them
/// has no numbers. The number of a list item is none.
pub(crate) fn agree(said: &str, read: &str) -> Option<bool> {
    let (said, read) = (of(said), of(read));
    let known: HashSet<String> = read.iter().flat_map(Number::forms).collect();
    let agree = || said.iter().any(|number| number.stands_in(&known));
    (!said.is_empty() && !read.is_empty()).then(agree)
}

/// Whether `read` has a number of `said` that stands in none of `others`.
pub(crate) fn adds<'a>(said: &str, read: &str, others: impl IntoIterator<Item = &'a str>) -> bool {
    fn forms(text: &str) -> HashSet<String> {
        of(text).iter().flat_map(Number::forms).collect()
    }
    let (own, others) = (forms(read), others.into_iter().flat_map(forms).collect());
    of(said)
        .iter()
        .any(|number| number.stands_in(&own) && !number.stands_in(&others))
}

/// The numbers of `answer`, as it writes them, that stand in none of `texts`, not as part of another number either. Numbers
/// of one or two digits do not count.
pub(crate) fn unknown(answer: &str, texts: &[&str]) -> Vec<String> {
    let long = |form: &String| form.chars().count() >= MIN_DIGITS;
    let lines = answer.lines().flat_map(of);
    let mut unknown: Vec<Number<'_>> = lines
        .filter(|number| number.forms().any(|f| long(&f)))
        .collect();
    for text in texts {
        if unknown.is_empty() {
            break;
        }
        let known: HashSet<String> = of(text)
            .iter()
            .flat_map(Number::forms)
            .filter(long)
            .collect();
        unknown.retain(|number| !number.stands_in(&known));
    }
    let mut named: Vec<String> = Vec::new();
    for number in unknown {
        if !named.iter().any(|known| known == number.text) {
            named.push(number.text.to_owned());
        }
    }
    named.truncate(MAX_NAMED);
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_agree_however_they_are_written() {
        for (said, read) in [
            ("It is 1140.", "die Miete beträgt 1.140,00 EUR"),
            ("$15,960.00", "February,41,15960.00"),
            ("7. The code is secret.", "The code is 2906."),
            ("(7) The code is secret.", "The code is 2906."),
            ("It is secret.", "The code is 2906."),
            ("The codes are 2906 and 4711.", "The code is 4711."),
        ] {
            assert_ne!(agree(said, read), Some(false), "{said}");
        }
        assert_eq!(agree("It is 4711.", "The code is 2906."), Some(false));
        assert_eq!(
            agree("It is 140.", "die Miete beträgt 1.141,00 EUR"),
            Some(false)
        );
        assert_eq!(agree("It is 140.", "It is 140,00."), Some(true));
        assert_eq!(agree("It is 140.", "(3) It is due."), None);
    }

    #[test]
    fn a_number_at_the_end_is_left_out() {
        assert_eq!(without_last("The deposit is 2,82"), "The deposit is ");
        assert_eq!(without_last("It is 2,820 euros"), "It is 2,820 euros");
    }

    #[test]
    fn what_stands_nowhere_is_unknown() {
        let document =
            "The rent is 1,350.00 of 10,000,000 euros from 28 September 2024; items 101,102,103.";
        let unknown = |answer: &str| unknown(answer, &[document, "What of 777?"]);
        for known in [
            "1350 euros",
            "1 350 euros, since 28.09.2024",
            "102",
            "777 is not said",
            "12 months, 99 %",
            "1999. The rent",
        ] {
            assert_eq!(unknown(known), [] as [&str; 0], "{known}");
        }
        assert_eq!(unknown("340 euros"), ["340"]);
        assert_eq!(unknown("000000 euros"), ["000000"], "an end of another");
        assert_eq!(unknown("1_350 euros"), [] as [&str; 0]);
        assert_eq!(unknown("101,102"), [] as [&str; 0], "of a list");
        assert_eq!(unknown("142,000,000 and 7,350"), ["142,000,000", "7,350"]);
        assert_eq!(
            unknown("It is 1,450.50\nor 2 025, or 2 025."),
            ["1,450.50", "2 025"]
        );
    }
}
