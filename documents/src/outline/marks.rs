//! The mark at the start of a heading: "Chapter IV", "3.2", "§ 4", "XII.".

/// What makes a line a heading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Mark {
    /// `## Title`, or a line underlined with one character; its level.
    Explicit(u8),
    /// A word and a number: "Part Two", "§ 4".
    Word(Word, String),
    /// "IV. The Storm", or "IV" alone.
    Roman(u32),
    /// "3.2 Notice period": the numbers.
    Number(Vec<u32>),
    /// A title that is common without a number: "Preface".
    Named,
    /// The title of a contents page: "Contents".
    Contents,
    /// A title that the contents page lists.
    Listed,
    /// A line in capitals.
    Capitals,
}

/// The word before a number, in the order of what usually contains what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Word {
    Appendix,
    Volume,
    Part,
    Book,
    Act,
    Title,
    Chapter,
    Scene,
    Article,
    Section,
}

/// Words before a number, in English, German, French and Spanish.
const WORDS: &[(Word, &str)] = &[
    (
        Word::Appendix,
        "appendix annex schedule exhibit anhang anlage annexe anexo",
    ),
    (Word::Volume, "volume band tome"),
    (Word::Part, "part teil partie parte"),
    (Word::Book, "book buch livre libro epilogue"),
    (Word::Act, "act akt acte"),
    (Word::Title, "title titel titre"),
    (
        Word::Chapter,
        "chapter letter lecture canto stave kapitel chapitre capítulo",
    ),
    (Word::Scene, "scene szene"),
    (Word::Article, "article art artikel artículo"),
    (Word::Section, "section sec clause abschnitt sección"),
];

/// Numbers in words, from 1.
const CARDINALS: &str = "\
    one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen \
    eighteen nineteen twenty";
/// From thirty.
const TENS: &str = "thirty forty fifty sixty seventy eighty ninety";
const ORDINALS: &str = "\
    first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth fifteenth \
    sixteenth seventeenth eighteenth nineteenth twentieth";

/// Titles without a number, in lower case.
const NAMED: &str = "\
    abstract, acknowledgements, acknowledgments, afterword, annexes, appendices, appendix, background, bibliography, \
    conclusion, conclusions, discussion, endnotes, epilogue, executive summary, finale, footnotes, foreword, \
    glossary, index, introduction, postscript, preamble, preface, prelude, prologue, references, summary, anhang, \
    einleitung, literaturverzeichnis, nachwort, schluss, vorwort, zusammenfassung, annexe, avant-propos, \
    bibliographie, épilogue, préface, bibliografía, conclusiones, epílogo, introducción, prefacio, prólogo";
const CONTENTS: &str = "\
    contents, table of contents, inhalt, inhaltsverzeichnis, table des matières, sommaire, índice, contenido";

/// The mark that `line` begins with, and the rest of the line without separators. The rest begins in lower case only
/// after a dash or colon: "Part 2 of the form" and "3 apples" are no headings. Whether the rest looks like a title is
/// not checked.
pub(super) fn parse(line: &str) -> Option<(Mark, &str)> {
    let found = worded(line)
        .or_else(|| numbered(line))
        .or_else(|| roman_numbered(line))?;
    let (mark, name) = &found;
    let first = name.chars().find(|c| c.is_alphanumeric());
    let before = line[..line.len() - name.len()].trim_end();
    let is_separated = !matches!(mark, Mark::Number(_)) && before.ends_with(['-', '–', '—', ':']);
    (is_separated || !first.is_some_and(char::is_lowercase)).then_some(found)
}

/// [`Mark::Named`] or [`Mark::Contents`], if the whole line is such a title.
pub(super) fn named(line: &str) -> Option<Mark> {
    let title = line.trim_matches(|c: char| !c.is_alphanumeric());
    if title.len() > 40 || !title.starts_with(char::is_uppercase) {
        return None;
    }
    let title = title.to_lowercase();
    let title = title.strip_prefix("the ").unwrap_or(&title);
    let is_in = |titles: &str| titles.split(", ").any(|known| known == title);
    if is_in(CONTENTS) || title.starts_with("contents of ") {
        return Some(Mark::Contents);
    }
    is_in(NAMED).then_some(Mark::Named)
}

/// "Chapter IV: Title", "Book the First--Title", "The Second Part", "§ 12a Title".
fn worded(line: &str) -> Option<(Mark, &str)> {
    if let Some(after) = line.strip_prefix('§') {
        let (number, rest) = number(after.trim_start())?;
        return Some((Mark::Word(Word::Section, number), rest));
    }
    if !line.starts_with(char::is_uppercase) {
        return None;
    }
    let (first, after) = word(line);
    let is_the = |word: &str| word.eq_ignore_ascii_case("the");
    if let Some(kind) = kind(first) {
        let after = after.strip_prefix('.').unwrap_or(after);
        let after = after.strip_prefix([' ', '\t'])?.trim_start();
        let (article, behind) = word(after);
        let after = if is_the(article) {
            behind.trim_start()
        } else {
            after
        };
        let (number, rest) = number(after)?;
        return Some((Mark::Word(kind, number), rest));
    }
    let (ordinal, after) = if is_the(first) {
        word(after.trim_start())
    } else {
        (first, after)
    };
    let place = index(ORDINALS, ordinal)?;
    let (name, rest) = word(after.trim_start());
    let kind = kind(name)?;
    Some((Mark::Word(kind, place.to_string()), ended(rest)?))
}

/// "3.2 Title", "3. Title". At most two digits each, so that years and amounts are none.
fn numbered(line: &str) -> Option<(Mark, &str)> {
    let end = line.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let rest = line[end..].strip_prefix([' ', '\t'])?.trim_start();
    let path = path(line[..end].strip_suffix('.').unwrap_or(&line[..end]))?;
    rest.starts_with(|c: char| c.is_alphabetic() || matches!(c, '"' | '“' | '‘' | '«' | '('))
        .then_some((Mark::Number(path), rest))
}

/// `3.2` as numbers.
fn path(text: &str) -> Option<Vec<u32>> {
    let path: Option<Vec<u32>> = text
        .split('.')
        .map(|part| (part.len() <= 2).then(|| part.parse().ok()).flatten())
        .collect();
    path.filter(|path| path.len() <= 6)
}

/// "IV. Title" and "IV".
fn roman_numbered(line: &str) -> Option<(Mark, &str)> {
    let end = line
        .find(|c: char| !c.is_ascii_uppercase())
        .unwrap_or(line.len());
    let value = roman(&line[..end])?;
    let behind = &line[end..];
    // "I went" has no separator.
    let is_separated = behind.is_empty() || behind.starts_with(['.', ':', '-', '–', '—']);
    is_separated.then_some((Mark::Roman(value), ended(behind)?))
}

/// The number of a bare line "12" or "12.", at most three digits.
pub(super) fn bare_number(line: &str) -> Option<u32> {
    let digits = line.strip_suffix('.').unwrap_or(line);
    (digits.len() <= 3).then(|| digits.parse().ok()).flatten()
}

/// Whether a word of `text` is `number` with a full stop: "I. The Storm II. The Calm".
pub(super) fn contains_roman(text: &str, number: u32) -> bool {
    let is_number = |word: &str| word.strip_suffix('.').and_then(roman) == Some(number);
    text.split_whitespace().any(is_number)
}

/// The value of a number in Roman capitals, at most 399.
fn roman(text: &str) -> Option<u32> {
    if text.is_empty() || text.len() > 12 {
        return None;
    }
    let digit = |c: u8| match c {
        b'I' => Some(1),
        b'V' => Some(5),
        b'X' => Some(10),
        b'L' => Some(50),
        b'C' => Some(100),
        _ => None,
    };
    let digits: Option<Vec<i32>> = text.bytes().map(digit).collect();
    let digits = digits?;
    let signed = digits.iter().enumerate().map(|(i, &value)| {
        let is_less = digits.get(i + 1).is_some_and(|&next| value < next);
        if is_less { -value } else { value }
    });
    u32::try_from(signed.sum::<i32>()).ok().filter(|&n| n > 0)
}

/// A number after a word, in one spelling for one value, and the rest of the line.
fn number(text: &str) -> Option<(String, &str)> {
    let end = text
        .find(|c: char| !(c.is_alphanumeric() || c == '.' && follows_digit(text)))
        .unwrap_or(text.len());
    let token = text[..end].trim_end_matches('.');
    let rest = ended(&text[token.len()..])?;
    if token.starts_with(|c: char| c.is_ascii_digit()) {
        let is_short = token.len() <= 8
            && token
                .trim_end_matches(|c: char| c.is_ascii_lowercase())
                .bytes()
                .all(|c| c.is_ascii_digit() || c == b'.');
        return is_short.then(|| (token.to_owned(), rest));
    }
    if let Some(value) = roman(token).or_else(|| index(ORDINALS, token)) {
        return Some((value.to_string(), rest));
    }
    if let Some(value) = cardinal(token) {
        // "Twenty-one".
        let (ones, behind) = word(text[token.len()..].strip_prefix('-').unwrap_or(""));
        let ones = index(CARDINALS, ones).filter(|&ones| ones < 10 && value >= 20);
        return match ones.zip(ended(behind)) {
            Some((ones, rest)) => Some(((value + ones).to_string(), rest)),
            None => Some((value.to_string(), rest)),
        };
    }
    let is_letter = token.len() == 1 && token.starts_with(char::is_uppercase);
    is_letter.then(|| (token.to_owned(), rest))
}

fn follows_digit(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
}

/// What follows a number, without separators; none if the number goes on or a comma follows.
fn ended(rest: &str) -> Option<&str> {
    let separators = ['.', ':', ')', '-', '–', '—', ' ', '\t'];
    (rest.is_empty() || rest.starts_with(separators)).then(|| rest.trim_start_matches(separators))
}

/// The first word of `text`, and what follows it.
fn word(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !c.is_alphabetic())
        .unwrap_or(text.len());
    text.split_at(end)
}

fn kind(name: &str) -> Option<Word> {
    // The longest is "abschnitt".
    if !(3..=12).contains(&name.len()) || !name.starts_with(char::is_uppercase) {
        return None;
    }
    let name = name.to_lowercase();
    let is_name = |names: &str| names.split(' ').any(|known| known == name);
    let found = WORDS.iter().find(|(_, names)| is_name(names));
    found.map(|(kind, _)| *kind)
}

fn cardinal(word: &str) -> Option<u32> {
    let tens = || index(TENS, word).map(|place| 20 + 10 * place);
    index(CARDINALS, word).or_else(tens)
}

/// The number that `word` names, from 1.
fn index(names: &str, word: &str) -> Option<u32> {
    let is_word = |name: &str| name.eq_ignore_ascii_case(word);
    let at = names.split(' ').position(is_word)?;
    Some(at as u32 + 1)
}
