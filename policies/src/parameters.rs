//! Parameters by name (`--set w=16,kernel=7`): parsing, ranges, and the error for a value out of range.

use crate::PolicyError;

/// One parameter of a method, as shown to the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    /// [`PolicyError::Assignment`].
    pub fn parse_assignments(text: &str) -> Result<Vec<(String, String)>, PolicyError> {
        text.split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
            .map(|part| match part.split_once('=') {
                Some((name, value)) if !name.trim().is_empty() && !value.trim().is_empty() => {
                    Ok((name.trim().to_owned(), value.trim().to_owned()))
                }
                _ => Err(PolicyError::Assignment(part.to_owned())),
            })
            .collect()
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
    fn text(&self, name: &str) -> Option<&str> {
        self.values
            .iter()
            .rev()
            .find(|(n, _)| n == name)
            .map(|(_, v)| v.as_str())
    }

    /// Values whose names are already checked.
    pub(crate) fn unchecked(
        method: &'static str,
        known: &'static [Parameter],
        values: Vec<(String, String)>,
    ) -> Self {
        Self {
            method,
            known,
            values,
        }
    }

    /// The value as given, if set.
    pub(crate) fn given(&self, name: &str) -> Option<&str> {
        self.text(name)
    }

    /// The error for a value that only the method itself can check.
    pub(crate) fn not_allowed(&self, name: &'static str, value: &str) -> PolicyError {
        self.refuse(name, value)
    }

    fn refuse(&self, name: &'static str, value: &str) -> PolicyError {
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

    /// A whole number that `allowed` accepts, or `None` if not set.
    ///
    /// # Errors
    /// [`PolicyError::Value`].
    pub fn whole(
        &self,
        name: &'static str,
        allowed: impl Fn(usize) -> bool,
    ) -> Result<Option<usize>, PolicyError> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        match text.parse::<usize>() {
            Ok(value) if allowed(value) => Ok(Some(value)),
            _ => Err(self.refuse(name, text)),
        }
    }

    /// A number that `allowed` accepts, or `None` if not set.
    ///
    /// # Errors
    /// [`PolicyError::Value`].
    pub fn number(
        &self,
        name: &'static str,
        allowed: impl Fn(f64) -> bool,
    ) -> Result<Option<f64>, PolicyError> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        match text.parse::<f64>() {
            Ok(value) if value.is_finite() && allowed(value) => Ok(Some(value)),
            _ => Err(self.refuse(name, text)),
        }
    }

    /// Numbers joined by `+`, if `allowed` accepts the list, or `None` if not set.
    ///
    /// # Errors
    /// [`PolicyError::Value`].
    pub fn numbers(
        &self,
        name: &'static str,
        allowed: impl Fn(&[f64]) -> bool,
    ) -> Result<Option<Vec<f64>>, PolicyError> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        let parsed: Result<Vec<f64>, _> = text.split('+').map(|part| part.trim().parse()).collect();
        match parsed {
            Ok(values) if values.iter().all(|v| v.is_finite()) && allowed(&values) => {
                Ok(Some(values))
            }
            _ => Err(self.refuse(name, text)),
        }
    }

    /// One of the named choices, or `default` if not set.
    ///
    /// # Errors
    /// [`PolicyError::Value`].
    pub fn choice<T: Copy>(
        &self,
        name: &'static str,
        choices: &[(&str, T)],
        default: T,
    ) -> Result<T, PolicyError> {
        let Some(text) = self.text(name) else {
            return Ok(default);
        };
        choices
            .iter()
            .find(|(word, _)| *word == text)
            .map(|(_, value)| *value)
            .ok_or_else(|| self.refuse(name, text))
    }
}
