//! The budget: rows per KV head, a share of the prompt, or bytes for the whole cache.

use std::fmt;
use std::str::FromStr;

use crate::PolicyError;

/// The most rows of a budget: more than any prompt has, and positions plus rows are no overflow.
const MAX_ROWS: usize = 1 << 30;

/// How much of the prompt may be kept.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Budget {
    /// Rows per KV head and layer, on average over the layers.
    Rows(usize),
    /// Share of the prompt's tokens, in (0, 1].
    Share(f64),
    /// Bytes for the whole cache: keys and values of all layers and heads, the method's own data (look-up tables,
    /// scores), and the decode buffers. [`Budget::rows`] counts only rows; the engine computes how many rows fit
    /// together with the rest.
    Bytes(u64),
}

impl Budget {
    /// Rows per KV head for a prompt of `tokens` tokens. One row in every head of every layer takes `bytes_per_row`
    /// bytes. Rounds down, and to at most 2^30.
    ///
    /// # Errors
    /// [`PolicyError::BudgetZero`] if the budget rounds to 0 rows.
    pub fn rows(&self, tokens: usize, bytes_per_row: u64) -> Result<usize, PolicyError> {
        let rows = match *self {
            Budget::Rows(rows) => rows,
            // 1e-9 makes 10 % of 1,000 exactly 100 rows despite the rounding of binary fractions.
            Budget::Share(share) => (tokens as f64 * share + 1e-9).floor() as usize,
            Budget::Bytes(bytes) => {
                usize::try_from(bytes / bytes_per_row.max(1)).unwrap_or(usize::MAX)
            }
        };
        if rows == 0 {
            let shown = match self {
                Budget::Share(_) => format!("{self} of {tokens} tokens"),
                Budget::Bytes(_) => format!("{self} (one row takes {bytes_per_row} bytes)"),
                Budget::Rows(_) => self.to_string(),
            };
            return Err(PolicyError::BudgetZero(shown));
        }
        Ok(rows.min(MAX_ROWS))
    }
}

const UNITS: [(&str, u64); 12] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
];

impl FromStr for Budget {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let not_understood = || PolicyError::BudgetText(text.to_owned());
        let trimmed = text.trim();
        let number = |digits: &str| -> Result<f64, PolicyError> {
            let value: f64 = digits.trim().parse().map_err(|_| not_understood())?;
            if !value.is_finite() || value < 0.0 {
                return Err(not_understood());
            }
            Ok(value)
        };
        if let Some(percent) = trimmed.strip_suffix('%') {
            let percent = number(percent)?;
            if percent > 100.0 {
                return Err(PolicyError::BudgetShare(trimmed.to_owned()));
            }
            if percent == 0.0 {
                return Err(PolicyError::BudgetZero(trimmed.to_owned()));
            }
            return Ok(Budget::Share(percent / 100.0));
        }
        let lower = trimmed.to_ascii_lowercase();
        for (unit, scale) in UNITS {
            if let Some(digits) = lower.strip_suffix(unit) {
                let bytes = number(digits)? * scale as f64;
                if bytes < 1.0 {
                    return Err(PolicyError::BudgetZero(trimmed.to_owned()));
                }
                return Ok(Budget::Bytes(bytes as u64));
            }
        }
        match trimmed.parse::<usize>() {
            Ok(0) => Err(PolicyError::BudgetZero(trimmed.to_owned())),
            Ok(rows) => Ok(Budget::Rows(rows)),
            Err(_) => Err(not_understood()),
        }
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Budget::Rows(rows) => write!(f, "{rows}"),
            Budget::Share(share) => write!(f, "{}%", (share * 1e6).round() / 1e4),
            Budget::Bytes(bytes) => {
                match [("GiB", 30), ("MiB", 20), ("KiB", 10)]
                    .into_iter()
                    .find(|(_, shift)| bytes >= 1 << shift && bytes % (1 << shift) == 0)
                {
                    Some((unit, shift)) => write!(f, "{}{unit}", bytes >> shift),
                    None => write!(f, "{bytes} bytes"),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_rows_shares_and_bytes() {
        assert_eq!("512".parse(), Ok(Budget::Rows(512)));
        assert_eq!("25%".parse(), Ok(Budget::Share(0.25)));
        assert_eq!(" 2.5 % ".parse(), Ok(Budget::Share(0.025)));
        assert_eq!("512MiB".parse(), Ok(Budget::Bytes(512 << 20)));
        assert_eq!("1.5 gb".parse(), Ok(Budget::Bytes(1_500_000_000)));
        assert_eq!("1TB".parse(), Ok(Budget::Bytes(1_000_000_000_000)));
    }

    #[test]
    fn rejects_zero_over_100_percent_and_invalid_budgets() {
        for zero in ["0", "0%", "0MiB"] {
            assert_eq!(
                zero.parse::<Budget>(),
                Err(PolicyError::BudgetZero(zero.into()))
            );
        }
        assert_eq!(
            "120%".parse::<Budget>(),
            Err(PolicyError::BudgetShare("120%".into()))
        );
        for nonsense in ["", "-5", "ten", "5XiB", "nan%", "inf", "1.5"] {
            assert_eq!(
                nonsense.parse::<Budget>(),
                Err(PolicyError::BudgetText(nonsense.into()))
            );
        }
    }

    #[test]
    fn rows_round_down_and_never_to_nothing() {
        assert_eq!(Budget::Share(0.1).rows(1000, 1), Ok(100));
        assert_eq!(Budget::Share(0.25).rows(1003, 1), Ok(250));
        assert_eq!(Budget::Bytes(1 << 20).rows(9, 4096), Ok(256));
        assert!(Budget::Share(0.001).rows(100, 1).is_err());
        assert!(Budget::Bytes(100).rows(100, 4096).is_err());
    }
}
