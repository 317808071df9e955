//! A method as tests list it: name, parameters, budget.

use std::sync::Arc;

use kept_engine::policies::{Method, Parameters, build};

/// A method with its parameters and its budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TestMethod {
    /// The name, as in `--method`.
    pub name: &'static str,
    /// The parameters, as in `--set`, separated by commas.
    pub set: &'static str,
    /// Rows per KV head and layer on average.
    pub budget: usize,
}

/// A [`TestMethod`] in one line.
pub const fn spec(name: &'static str, set: &'static str, budget: usize) -> TestMethod {
    TestMethod { name, set, budget }
}

impl TestMethod {
    /// The method with its parameters.
    pub fn method(&self) -> Arc<dyn Method> {
        let parameters = Parameters::parse_assignments(self.set).expect("parameters");
        build(self.name, &parameters).unwrap_or_else(|e| panic!("{self:?}: {e}"))
    }
}
