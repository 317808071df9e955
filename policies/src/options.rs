//! The options of a method (`--set w=16,kernel=7`): a struct field each, with name, default, range and help in one
//! place.
//!
//! ```text
//! /// help, as shown to the user
//! field: type => "name", "default", RANGE;
//! ```
//!
//! A field of type `Option` is `None` unless set: the method computes its default, such as `half of the budget`.

use crate::{Parameters, PolicyError};

/// The allowed values of an option: the text for the user, and the test.
#[derive(Clone, Copy)]
pub(crate) enum Range {
    /// A whole number.
    Whole(&'static str, fn(usize) -> bool),
    /// A number of at most [`MAX_NUMBER`].
    Number(&'static str, fn(f64) -> bool),
    /// At most [`MAX_NUMBERS`] such numbers joined by `+`.
    Numbers(&'static str, fn(f64) -> bool),
    /// One of two words, for false and true.
    Flag(&'static str, [&'static str; 2]),
    /// A word of the field's type.
    Word(&'static str),
}

impl Range {
    /// The range as text.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Whole(text, _) | Self::Number(text, _) | Self::Numbers(text, _) => text,
            Self::Flag(text, _) | Self::Word(text) => text,
        }
    }
}

/// The largest count of tokens that an option takes: more than any context length, and sums of counts cannot overflow.
pub(crate) const MAX_COUNT: usize = 1 << 24;
/// The largest number, up or down, that an option takes: sums and products of scores with it stay finite in f32.
const MAX_NUMBER: f64 = 1e6;
/// The most numbers joined by `+`.
const MAX_NUMBERS: usize = 16;

/// `w` and others that count from 1.
pub(crate) const FROM_1: Range = Range::Whole("a whole number from 1 to 16777216", |n| {
    (1..=MAX_COUNT).contains(&n)
});
/// `kernel`. A score is pooled in time proportional to it.
pub(crate) const ODD: Range = Range::Whole("an odd whole number from 1 to 1023", |n| {
    n % 2 == 1 && n < 1024
});
/// Counts that may be 0.
pub(crate) const FROM_0: Range =
    Range::Whole("a whole number from 0 to 16777216", |n| n <= MAX_COUNT);
/// Counts for which the paper has 0.
pub(crate) const PAPER_HAS_0: Range =
    Range::Whole("a whole number from 0 (the paper's) to 16777216", |n| {
        n <= MAX_COUNT
    });
/// `seed`: every number is one.
pub(crate) const SEED: Range = Range::Whole("a whole number from 0", |_| true);
/// `true` or `false`
pub(crate) const YES_NO: Range = Range::Flag("true or false", ["false", "true"]);

/// `on` or `off`
pub(crate) const ON_OFF: Range = Range::Flag("on or off", ["off", "on"]);
/// Positions of kept rows.
pub(crate) const REASSIGNED_OR_ORIGINAL: Range = Range::Word("reassigned or original");

/// A type of option.
pub(crate) trait OptionValue: Sized {
    /// Parses a value in `range`.
    fn parse(text: &str, range: &Range) -> Option<Self>;

    /// The default, from its parsed text.
    fn or_default(parsed: Option<Self>) -> Self {
        parsed.expect("the default is in the range")
    }
}

impl OptionValue for usize {
    fn parse(text: &str, range: &Range) -> Option<Self> {
        let Range::Whole(_, allowed) = range else {
            return None;
        };
        text.parse().ok().filter(|&n| allowed(n))
    }
}

impl OptionValue for f64 {
    fn parse(text: &str, range: &Range) -> Option<Self> {
        let Range::Number(_, allowed) = range else {
            return None;
        };
        text.parse()
            .ok()
            .filter(|&x: &f64| x.abs() <= MAX_NUMBER && allowed(x))
    }
}

impl OptionValue for bool {
    fn parse(text: &str, range: &Range) -> Option<Self> {
        let Range::Flag(_, words) = range else {
            return None;
        };
        words
            .iter()
            .position(|word| *word == text)
            .map(|word| word == 1)
    }
}

impl OptionValue for Vec<f64> {
    fn parse(text: &str, range: &Range) -> Option<Self> {
        let Range::Numbers(_, allowed) = range else {
            return None;
        };
        let number = |part: &str| part.trim().parse().ok();
        let numbers: Option<Self> = text.split('+').map(number).collect();
        let sound = |x: &f64| x.abs() <= MAX_NUMBER && allowed(*x);
        numbers.filter(|numbers| numbers.len() <= MAX_NUMBERS && numbers.iter().all(sound))
    }
}

impl OptionValue for Vec<usize> {
    fn parse(text: &str, range: &Range) -> Option<Self> {
        let numbers = Vec::<f64>::parse(text, range)?;
        Some(numbers.into_iter().map(|n| n as usize).collect())
    }
}

impl<T: OptionValue> OptionValue for Option<T> {
    fn parse(text: &str, range: &Range) -> Option<Self> {
        T::parse(text, range).map(Some)
    }

    fn or_default(_parsed: Option<Self>) -> Self {
        None
    }
}

impl Parameters {
    /// The value of an option, or its default.
    ///
    /// # Errors
    /// [`PolicyError::Value`].
    pub(crate) fn option<T: OptionValue>(
        &self,
        name: &'static str,
        default: &str,
        range: &Range,
    ) -> Result<T, PolicyError> {
        match self.given(name) {
            None => Ok(T::or_default(T::parse(default, range))),
            Some(text) => T::parse(text, range).ok_or_else(|| self.not_allowed(name, text)),
        }
    }
}

/// A struct of options, its table for the user (`OPTIONS`), its parser (`read`) and its defaults. `+ OPTION` adds an
/// option to the table that the struct does not read.
macro_rules! options {
    (
        $(#[$attribute:meta])*
        pub struct $name:ident {
            $( $(#[doc = $help:literal])+ $field:ident: $type:ty => $option:expr, $default:expr, $range:expr; )*
        }
        $(+ $more:expr;)*
    ) => {
        $(#[$attribute])*
        pub struct $name {
            $( $(#[doc = $help])+ pub $field: $type, )*
        }

        impl $name {
            pub(crate) const OPTIONS: &'static [$crate::Parameter] = &[
                $( $crate::Parameter {
                    name: $option,
                    default: $default,
                    range: $range.text(),
                    meaning: concat!($($help),+).trim_ascii_start(),
                }, )*
                $( $more, )*
            ];

            /// The options as set, or their defaults.
            ///
            /// # Errors
            /// [`PolicyError::Value`](crate::PolicyError::Value).
            pub(crate) fn read(p: &$crate::Parameters) -> Result<Self, $crate::PolicyError> {
                Ok(Self { $( $field: p.option($option, $default, &$range)?, )* })
            }
        }

        impl Default for $name {
            fn default() -> Self {
                use $crate::options::OptionValue;
                Self { $( $field: <$type>::or_default(<$type>::parse($default, &$range)), )* }
            }
        }
    };
}

/// The words of an option's type.
macro_rules! words {
    ($type:ty { $($word:literal => $value:expr),+ $(,)? }) => {
        impl $crate::options::OptionValue for $type {
            fn parse(text: &str, _range: &$crate::options::Range) -> Option<Self> {
                match text {
                    $( $word => Some($value), )+
                    _ => None,
                }
            }
        }
    };
}

pub(crate) use {options, words};
