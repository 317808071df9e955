//! Parameters by name (`--set w=16,kernel=7`): parsing, and the error for a value out of range. `options.rs` reads them.

use crate::PolicyError;

/// One parameter of a method, as shown to the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub struct Parameter {
    /// Name in `--set`.
    pub name: &'static str,
    /// Default, as text if it depends on the budget.
    pub default: &'static str,
    /// The allowed values, as text.
    pub range: &'static str,
    /// The effect, in one line.
    pub meaning: &'static str,
}

/// Values set by name for one method. A name that the method does not have is an error.
#[derive(Debug, Clone)]
pub struct Parameters {
    method: &'static str,
    known: &'static [Parameter],
    values: Vec<(String, String)>,
}

impl Parameters {
    /// Parses `name=value[,name=value]`; an empty text sets nothing.
    ///
    /// # Errors
    /// [`PolicyError::Assignment`], [`PolicyError::AssignedTwice`].
    pub fn parse_assignments(text: &str) -> Result<Vec<(String, String)>, PolicyError> {
        let all: Result<Vec<(String, String)>, PolicyError> = text
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
            .map(|part| match part.split_once('=') {
                Some((name, value)) if !name.trim().is_empty() && !value.trim().is_empty() => {
                    Ok((name.trim().to_owned(), value.trim().to_owned()))
                }
                _ => Err(PolicyError::Assignment(part.to_owned())),
            })
            .collect();
        let all = all?;
        for (at, (name, _)) in all.iter().enumerate() {
            if all[..at].iter().any(|(known, _)| known == name) {
                return Err(PolicyError::AssignedTwice {
                    text: text.to_owned(),
                    name: name.clone(),
                });
            }
        }
        Ok(all)
    }

    /// Values for `method`, whose parameters are `known`. If a name is repeated, the last value counts.
    ///
    /// # Errors
    /// [`PolicyError::UnknownParameter`].
    pub fn new(
        method: &'static str,
        known: &'static [Parameter],
        values: &[(String, String)],
    ) -> Result<Self, PolicyError> {
        for (name, _) in values {
            if !known.iter().any(|p| p.name == name) {
                let names: Vec<&str> = known.iter().map(|p| p.name).collect();
                return Err(PolicyError::UnknownParameter {
                    method,
                    name: name.clone(),
                    known: if names.is_empty() {
                        "none".into()
                    } else {
                        names.join(", ")
                    },
                });
            }
        }
        Ok(Self {
            method,
            known,
            values: values.to_vec(),
        })
    }

    /// The text set for `name`, if any.
    pub(crate) fn given(&self, name: &str) -> Option<&str> {
        let set = self.values.iter().rev().find(|(n, _)| n == name);
        set.map(|(_, value)| value.as_str())
    }

    /// The error for a value of `name` that is not in its range.
    pub(crate) fn not_allowed(&self, name: &'static str, value: &str) -> PolicyError {
        let range = self
            .known
            .iter()
            .find(|p| p.name == name)
            .map_or("another value", |p| p.range);
        PolicyError::Value {
            method: self.method,
            name,
            value: value.to_owned(),
            range,
        }
    }
}
