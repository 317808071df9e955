//! The full cache: keeps everything. The reference for quality, memory and speed.

use crate::{
    MethodInfo, ModelShape, Needs, Observation, Parameters, Policy, PolicyError, PromptShape,
    Retention,
};

/// Entry in the table of methods.
pub(crate) const INFO: MethodInfo = MethodInfo {
    name: "full",
    title: "Full cache",
    paper: "",
    keeps: "every token",
    acts: "never",
    positions: "original",
    parameters: &[],
    build: |values| {
        Parameters::new(INFO.name, INFO.parameters, values)?;
        Ok(Box::new(Full))
    },
};

/// Keeps every token; the budget is not used.
#[derive(Debug, Clone, Copy, Default)]
pub struct Full;

impl Policy for Full {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn needs(&self, _layer: usize) -> Needs {
        Needs::default()
    }

    fn rows(
        &mut self,
        model: &ModelShape,
        prompt: &PromptShape,
        _budget: usize,
    ) -> Result<Vec<usize>, PolicyError> {
        Ok(vec![prompt.tokens; model.layers])
    }

    fn select(&mut self, _observation: &Observation<'_>, _rows: usize) -> Retention {
        Retention::Everything
    }
}
