use crate::info::read;
use crate::{
    Method, MethodInfo, Observation, PolicyError, Retention, RowPlan, RowRequest, Select, Selection,
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
    build: |values| read(&INFO, values, |_| Ok(Full)),
};

/// Keeps every token; the budget is not used.
#[derive(Debug, Clone, Copy, Default)]
pub struct Full;

impl Method for Full {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn plan(&self, request: &RowRequest) -> Result<RowPlan, PolicyError> {
        let budget = request.prompt.tokens;
        Ok(RowPlan::uniform(&RowRequest { budget, ..*request }))
    }

    fn start(&self, _plan: &RowPlan) -> Box<dyn Select> {
        Box::new(Self)
    }
}

impl Select for Full {
    fn select(&mut self, _plan: &RowPlan, _observation: &Observation<'_>) -> Selection {
        Retention::Everything.into()
    }
}
