//! Numbers and dates of a workbook, as its number formats show them; dates always in ISO 8601.

use jiff::Timestamp;

/// How a cell shows a number.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum NumberFormat {
    /// As few digits as needed.
    #[default]
    General,
    /// A date, a time of day or both.
    Date { has_date: bool, has_time: bool },
    /// Hours that count beyond a day.
    Duration,
    /// Digits in one or two patterns: for all numbers, or for positive and negative ones.
    Digits(Vec<Pattern>),
}

/// One pattern of digits: `€ #,##0.00`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Pattern {
    before: String,
    after: String,
    decimals: usize,
    has_thousands: bool,
    /// How often the number is divided by a thousand.
    thousandths: i32,
    is_percent: bool,
}

/// The most decimals of a pattern.
const MAX_DECIMALS: usize = 15;
/// Days from the start of the calendar of 1900 to that of 1904.
const DAYS_TO_1904: f64 = 1462.0;
/// The last day of the year 9999.
const LAST_DAY: f64 = 2_958_465.0;

impl NumberFormat {
    /// The built-in format with this number.
    pub(super) fn built_in(id: usize) -> Self {
        let date = |has_date, has_time| NumberFormat::Date { has_date, has_time };
        match id {
            1 => Self::parse("0"),
            2 => Self::parse("0.00"),
            3 | 37 | 38 => Self::parse("#,##0"),
            4 | 39 | 40 => Self::parse("#,##0.00"),
            9 => Self::parse("0%"),
            10 => Self::parse("0.00%"),
            14..=17 | 27..=36 | 50..=58 => date(true, false),
            18..=21 | 45 | 47 => date(false, true),
            22 => date(true, true),
            46 => NumberFormat::Duration,
            _ => NumberFormat::General,
        }
    }

    /// Reads a format code such as `#,##0.00 "EUR";[Red]-#,##0.00`.
    pub(super) fn parse(code: &str) -> Self {
        let sections = sections(code);
        let first = sections.first().map_or("", String::as_str);
        let signs = unquoted(first);
        if signs.contains("[h") || signs.contains("[m") || signs.contains("[s") {
            return NumberFormat::Duration;
        }
        let signs = without_brackets(&signs);
        let has_date = signs.contains(['y', 'd']) || is_month_only(&signs);
        let has_time = signs.contains(['h', 's']);
        if has_date || has_time {
            return NumberFormat::Date { has_date, has_time };
        }
        // Fractions, powers of ten and text keep their digits.
        if !signs.contains(['0', '#']) || signs.contains(['/', '@']) || signs.contains("e+") {
            return NumberFormat::General;
        }
        let patterns = sections.iter().take(2).map(|section| pattern(section));
        NumberFormat::Digits(patterns.collect())
    }

    /// The number as text. `is_1904`: days count from 1904.
    pub(super) fn show(&self, number: f64, is_1904: bool) -> String {
        let days = if is_1904 {
            number + DAYS_TO_1904
        } else {
            number
        };
        match self {
            NumberFormat::General => general(number),
            NumberFormat::Digits(patterns) => match patterns.as_slice() {
                [_, negative] if number < 0.0 => negative.show(-number),
                [positive, ..] => positive.show(number),
                [] => general(number),
            },
            NumberFormat::Duration if number.abs() < LAST_DAY => duration(number),
            NumberFormat::Date { has_date, has_time } if (0.0..=LAST_DAY).contains(&days) => {
                date(days, *has_date, *has_time)
            }
            _ => general(number),
        }
    }
}

/// The sections of a format code, which semicolons separate.
fn sections(code: &str) -> Vec<String> {
    let mut sections = vec![String::new()];
    let (mut is_quoted, mut is_escaped) = (false, false);
    for c in code.chars() {
        if c == ';' && !is_quoted && !is_escaped {
            sections.push(String::new());
            continue;
        }
        is_quoted ^= c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        sections.last_mut().expect("one section").push(c);
    }
    sections
}

/// The code in lower case without quoted text and escaped characters.
fn unquoted(section: &str) -> String {
    let mut signs = String::new();
    let mut characters = section.chars();
    let mut is_quoted = false;
    while let Some(c) = characters.next() {
        match c {
            '"' => is_quoted = !is_quoted,
            _ if is_quoted => {}
            '\\' | '_' | '*' => {
                characters.next();
            }
            c => signs.extend(c.to_lowercase()),
        }
    }
    signs
}

fn without_brackets(signs: &str) -> String {
    let mut outside = String::new();
    let mut is_inside = false;
    for c in signs.chars() {
        match c {
            '[' => is_inside = true,
            ']' => is_inside = false,
            c if !is_inside => outside.push(c),
            _ => {}
        }
    }
    outside.replace("general", "")
}

/// `mmm` without days or hours is a month.
fn is_month_only(signs: &str) -> bool {
    signs.contains('m') && !signs.contains(['h', 's', '0', '#'])
}

fn pattern(section: &str) -> Pattern {
    let mut pattern = Pattern::default();
    let mut characters = section.chars().peekable();
    let (mut has_digits, mut is_fraction) = (false, false);
    let mut commas = 0;
    while let Some(c) = characters.next() {
        let literal = match c {
            '0' | '#' | '?' => {
                has_digits = true;
                pattern.has_thousands |= commas > 0;
                commas = 0;
                pattern.decimals += usize::from(is_fraction && c == '0');
                continue;
            }
            ',' => {
                commas += i32::from(has_digits);
                continue;
            }
            '.' => {
                is_fraction = true;
                continue;
            }
            '"' => characters.by_ref().take_while(|c| *c != '"').collect(),
            '\\' => characters.next().map(String::from).unwrap_or_default(),
            '_' | '*' => {
                characters.next();
                continue;
            }
            // `[$€-407]` is a currency; other brackets are colours and conditions.
            '[' => {
                let inside: String = characters.by_ref().take_while(|c| *c != ']').collect();
                let currency = inside.strip_prefix('$').and_then(|c| c.split('-').next());
                currency.unwrap_or_default().to_owned()
            }
            c => {
                pattern.is_percent |= c == '%';
                c.to_string()
            }
        };
        if has_digits {
            pattern.after.push_str(&literal);
        } else {
            pattern.before.push_str(&literal);
        }
    }
    pattern.thousandths = commas;
    pattern.decimals = pattern.decimals.min(MAX_DECIMALS);
    pattern
}

impl Pattern {
    fn show(&self, number: f64) -> String {
        let scale = if self.is_percent { 100.0 } else { 1.0 };
        let value = number * scale / 1000_f64.powi(self.thousandths);
        if !value.is_finite() || value.abs() >= 1e15 {
            return general(number);
        }
        let digits = format!("{:.*}", self.decimals, rounded(value.abs(), self.decimals));
        let is_zero = !digits.contains(|c: char| c.is_ascii_digit() && c != '0');
        let sign = if value < 0.0 && !is_zero { "-" } else { "" };
        let digits = if self.has_thousands {
            with_thousands(&digits)
        } else {
            digits
        };
        let shown = format!("{sign}{}{digits}{}", self.before, self.after);
        shown.trim().to_owned()
    }
}

fn with_thousands(digits: &str) -> String {
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let mut text = String::new();
    for (i, digit) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if !fraction.is_empty() {
        text.push('.');
        text.push_str(fraction);
    }
    text
}

/// The number rounded to decimals, halves up as in a workbook.
fn rounded(number: f64, decimals: usize) -> f64 {
    let factor = 10_f64.powi(decimals as i32);
    let scaled = exact(number * factor);
    if scaled < 1e15 {
        scaled.round() / factor
    } else {
        number
    }
}

/// The number rounded to the 15 digits that a workbook keeps: 0.1 + 0.2 is 0.3.
fn exact(number: f64) -> f64 {
    format!("{number:.14e}").parse().unwrap_or(number)
}

fn general(number: f64) -> String {
    let number = exact(number);
    if number != 0.0 && !(1e-9..1e15).contains(&number.abs()) {
        return format!("{number:e}");
    }
    format!("{}", number + 0.0)
}

fn duration(days: f64) -> String {
    let seconds = (days.abs() * 86_400.0).round() as u64;
    let sign = if days < 0.0 { "-" } else { "" };
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    format!("{sign}{hours}:{minutes:02}:{:02}", seconds % 60)
}

fn date(days: f64, has_date: bool, has_time: bool) -> String {
    let seconds = (days * 86_400.0).round() as i64;
    // In the calendar of 1900, day 60 is a 29th of February that never was.
    let epoch = 25_569 - i64::from(seconds.div_euclid(86_400) < 60);
    let Ok(time) = Timestamp::from_second(seconds.saturating_sub(epoch * 86_400)) else {
        return general(days);
    };
    let clock = if seconds % 60 == 0 {
        "%H:%M"
    } else {
        "%H:%M:%S"
    };
    let shown = [has_date.then_some("%Y-%m-%d"), has_time.then_some(clock)];
    let shown: Vec<&str> = shown.into_iter().flatten().collect();
    time.strftime(&shown.join(" ")).to_string()
}

#[cfg(test)]
mod tests {
    use super::NumberFormat;

    #[test]
    fn numbers_are_shown_as_in_the_workbook() {
        let cases = [
            ("General", 0.1 + 0.2, "0.3"),
            ("General", -1234.5, "-1234.5"),
            ("General", 1e20, "1e20"),
            ("0.00", 2.0, "2.00"),
            ("0%", 0.125, "13%"),
            ("0.0%", 0.125, "12.5%"),
            ("#,##0.00", 1_234_567.891, "1,234,567.89"),
            ("#,##0 [$€-407]", 1234.0, "1,234 €"),
            ("\"$\"#,##0_);[Red](\"$\"#,##0)", -1500.0, "($1,500)"),
            ("0.0,,\" M\"", 2_500_000.0, "2.5 M"),
            ("yyyy\\-mm\\-dd", 45_292.0, "2024-01-01"),
            ("d. mmm yy hh:mm", 45_292.75, "2024-01-01 18:00"),
            ("mmm", 45_292.0, "2024-01-01"),
            ("h:mm AM/PM", 0.5, "12:00"),
            ("[h]:mm:ss", 1.5, "36:00:00"),
            ("dd/mm/yyyy", 59.0, "1900-02-28"),
            ("dd/mm/yyyy", 61.0, "1900-03-01"),
            ("dd/mm/yyyy", -5.0, "-5"),
            ("# ?/?", 0.5, "0.5"),
            ("@", 7.0, "7"),
            ("0.00", -0.001, "0.00"),
        ];
        for (code, number, expected) in cases {
            assert_eq!(
                NumberFormat::parse(code).show(number, false),
                expected,
                "{code}"
            );
        }
        assert_eq!(NumberFormat::built_in(14).show(0.0, true), "1904-01-01");
    }
}
