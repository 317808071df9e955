//! Command-line options that solve an error, printed after its sentence. The engine's errors name no options, because
//! the app has none.

use kept_engine::policies::PolicyError;
use kept_engine::{EngineError, MiniMissing};

/// The options for `error`, for example `--device cpu`; `None` if no option helps.
pub fn for_error(error: &anyhow::Error) -> Option<String> {
    let fixed = |options: &str| Some(options.to_owned());
    if let Some(error) = error.downcast_ref::<PolicyError>() {
        return for_method(error);
    }
    if error.is::<MiniMissing>() {
        return fixed("--model FILE.gguf");
    }
    match error.downcast_ref::<EngineError>()? {
        EngineError::Policy(error) => for_method(error),
        EngineError::Memory {
            memory, weights, ..
        } if weights >= memory => fixed("--memory, --model"),
        EngineError::Memory { .. } => fixed("--memory, --streaming on"),
        EngineError::Refused { .. } => fixed("--budget, --memory"),
        EngineError::GpuMemory { .. } => fixed("--budget, --memory, --device cpu"),
        EngineError::Gpu(_) | EngineError::NoGpu(_) => fixed("--device cpu"),
        EngineError::GpuRows { .. } => fixed("--cache, --device cpu"),
        EngineError::CacheType { .. } => fixed("--cache, --method"),
        EngineError::TooLong { .. } => fixed("--streaming on"),
        EngineError::EmptyQuestion => fixed("--question"),
        EngineError::SamplingFailed(_) => fixed("--temperature 0"),
        EngineError::BudgetBytes { .. }
        | EngineError::BudgetBelowWindows { .. }
        | EngineError::StreamBudget { .. } => fixed("--budget"),
        _ => None,
    }
}

fn for_method(error: &PolicyError) -> Option<String> {
    match error {
        PolicyError::BudgetText(_) | PolicyError::BudgetZero(_) | PolicyError::BudgetShare(_) => {
            Some("--budget".to_owned())
        }
        PolicyError::BudgetTooSmall { needed, .. } => Some(format!("--budget {needed}")),
        PolicyError::BudgetUnreachable { least, .. } => Some(format!("--budget {least}")),
        PolicyError::CapTooSmall { .. } => Some("--budget, --set decode_cap=N".to_owned()),
        _ => None,
    }
}
