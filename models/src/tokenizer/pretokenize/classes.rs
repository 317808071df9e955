//! Character classes that the expressions of pre-tokenizers distinguish.

use std::sync::OnceLock;

use tokenizers::utils::SysRegex;

/// The class of a character, by its general category; white space is a class of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Class {
    /// `\p{Lu}` and `\p{Lt}`
    Upper,
    /// `\p{Ll}`
    Lower,
    /// `\p{Lm}` and `\p{Lo}`: letters without a case.
    Caseless,
    /// `\p{M}`
    Mark,
    /// `\p{N}`
    Number,
    /// `\s`
    Space,
    /// `\p{P}`
    Punctuation,
    /// `\p{S}`
    Symbol,
    /// All other code points: control and format characters, and unassigned code points.
    Other,
}

impl Class {
    /// `\p{L}`
    pub(super) fn is_letter(self) -> bool {
        matches!(self, Class::Upper | Class::Lower | Class::Caseless)
    }

    /// `[\p{L}\p{M}]`
    pub(super) fn is_letter_or_mark(self) -> bool {
        self.is_letter() || self == Class::Mark
    }

    /// `[^\s\p{L}\p{N}]`
    pub(super) fn is_other(self) -> bool {
        !self.is_letter() && !matches!(self, Class::Number | Class::Space)
    }

    /// `[\p{P}\p{S}]`
    pub(super) fn is_sign(self) -> bool {
        matches!(self, Class::Punctuation | Class::Symbol)
    }

    /// `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`: characters of a word's upper-case part.
    pub(super) fn begins_in_capitals(self) -> bool {
        matches!(self, Class::Upper | Class::Caseless | Class::Mark)
    }

    /// `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`: characters of a word's lower-case part.
    pub(super) fn goes_on_small(self) -> bool {
        matches!(self, Class::Lower | Class::Caseless | Class::Mark)
    }
}

/// The class of every character, according to the regex engine of the published tokenizers.
pub(super) struct Classes {
    /// Indexed by code point.
    table: Vec<Class>,
}

impl Classes {
    pub(super) fn class(&self, c: char) -> Class {
        self.table[c as usize]
    }
}

/// The table, built once per process by running the engine over every character; takes some tens of milliseconds.
pub(super) fn classes() -> &'static Classes {
    static CLASSES: OnceLock<Classes> = OnceLock::new();
    CLASSES.get_or_init(|| {
        const EXPRESSIONS: [(&str, Class); 7] = [
            (r"[\p{Lu}\p{Lt}]+", Class::Upper),
            (r"\p{Ll}+", Class::Lower),
            (r"[\p{Lm}\p{Lo}]+", Class::Caseless),
            (r"\p{M}+", Class::Mark),
            (r"\p{N}+", Class::Number),
            (r"\p{P}+", Class::Punctuation),
            (r"\p{S}+", Class::Symbol),
        ];
        let all: String = ('\0'..=char::MAX).collect();
        let mut table = vec![Class::Other; char::MAX as usize + 1];
        for c in all.chars().filter(|c| c.is_whitespace()) {
            table[c as usize] = Class::Space;
        }
        for (expression, class) in EXPRESSIONS {
            let expression =
                SysRegex::new(expression).expect("a constant expression that a test compiles");
            for (start, end) in expression.find_iter(&all) {
                for c in all[start..end].chars() {
                    table[c as usize] = class;
                }
            }
        }
        Classes { table }
    })
}
