//! Methods around another method, their base.

pub(crate) mod adakv;
pub(crate) mod cam;
pub(crate) mod decode_cap;

use std::sync::Arc;

use crate::options::{OptionValue, Range};
use crate::{Method, MethodInfo, Parameters, PolicyError};

/// The name of a base, one of the words of the option's range.
#[derive(Debug, Clone, Default)]
pub struct Base(String);

impl OptionValue for Base {
    fn parse(text: &str, range: &Range) -> Option<Self> {
        let listed = range.text().split([' ', ',']).any(|base| base == text);
        (listed && crate::find(text).is_ok()).then(|| Self(text.to_owned()))
    }
}

impl Base {
    /// Builds the base from the values that are not the wrapper's own.
    fn build(&self, values: &[(String, String)]) -> Result<Arc<dyn Method>, PolicyError> {
        (crate::find(&self.0)?.build)(values)
    }
}

/// The values of the wrapper `info`, and those of its base.
fn own_and_base(
    info: &'static MethodInfo,
    values: &[(String, String)],
) -> Result<(Parameters, Vec<(String, String)>), PolicyError> {
    let own = |name: &str| info.parameters.iter().any(|p| p.name == name);
    let (own, base): (Vec<_>, Vec<_>) = values.iter().cloned().partition(|(n, _)| own(n));
    Ok((Parameters::new(info.name, info.parameters, &own)?, base))
}
