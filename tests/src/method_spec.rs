//! A method as tests list it: name, parameters, budget.

use kept_engine::policies::{Parameters, Policy, build};

/// A method with its parameters and its budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MethodSpec {
    /// The name, as in `--method`.
    pub name: &'static str,
    /// The parameters, as in `--set`, separated by commas.
    pub set: &'static str,
    /// Rows per KV head and layer on average.
    pub budget: usize,
}

/// A [`MethodSpec`] in one line.
pub const fn spec(name: &'static str, set: &'static str, budget: usize) -> MethodSpec {
    MethodSpec { name, set, budget }
}

impl MethodSpec {
    /// A new policy, for one prompt.
    pub fn policy(&self) -> Box<dyn Policy> {
        let parameters = Parameters::parse_assignments(self.set).expect("parameters");
        build(self.name, &parameters).unwrap_or_else(|e| panic!("{self:?}: {e}"))
    }
}
