//! Numbers of list items and headings, as text.

/// How a number is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Digits {
    #[default]
    Decimal,
    LowerLetter,
    UpperLetter,
    LowerRoman,
    UpperRoman,
    /// No number.
    Nothing,
}

const ROMAN: [(u32, &str); 13] = [
    (1000, "m"),
    (900, "cm"),
    (500, "d"),
    (400, "cd"),
    (100, "c"),
    (90, "xc"),
    (50, "l"),
    (40, "xl"),
    (10, "x"),
    (9, "ix"),
    (5, "v"),
    (4, "iv"),
    (1, "i"),
];

impl Digits {
    /// The number in these digits; beyond 4999 always decimal.
    pub(super) fn write(self, number: u32) -> String {
        if number == 0 || number > 4999 {
            return number.to_string();
        }
        match self {
            Digits::Decimal => number.to_string(),
            Digits::LowerLetter => letters(number),
            Digits::UpperLetter => letters(number).to_uppercase(),
            Digits::LowerRoman => roman(number),
            Digits::UpperRoman => roman(number).to_uppercase(),
            Digits::Nothing => String::new(),
        }
    }
}

/// a, b, ..., z, aa, bb, as Office counts.
fn letters(number: u32) -> String {
    let letter = char::from(b'a' + ((number - 1) % 26) as u8);
    let times = (number - 1) / 26 + 1;
    std::iter::repeat_n(letter, times as usize).collect()
}

fn roman(mut number: u32) -> String {
    let mut text = String::new();
    for (value, digits) in ROMAN {
        while number >= value {
            number -= value;
            text.push_str(digits);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::Digits;

    #[test]
    fn numbers_are_written_in_their_digits() {
        let written = [
            Digits::Decimal.write(12),
            Digits::LowerLetter.write(28),
            Digits::UpperRoman.write(1994),
            Digits::LowerRoman.write(9),
            Digits::UpperLetter.write(3),
            Digits::LowerRoman.write(1_000_000),
        ];
        assert_eq!(written, ["12", "bb", "MCMXCIV", "ix", "C", "1000000"]);
    }
}
