//! A method's entry in tables, and how to build it.

use std::sync::Arc;

use crate::{FULL, Method, Parameter, Parameters, PolicyError, QUESTION_AGNOSTIC, STREAMING};

/// Builds a method from name-value pairs.
pub type Build = fn(&[(String, String)]) -> Result<Arc<dyn Method>, PolicyError>;

/// A method's entry in tables, and how to build it.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct MethodInfo {
    /// Name in `--method`.
    pub name: &'static str,
    /// Name in the paper.
    pub title: &'static str,
    /// The publication; empty for the full cache.
    pub paper: &'static str,
    /// The rows it keeps, in a few words.
    pub keeps: &'static str,
    /// When it acts.
    pub acts: &'static str,
    /// Positions of kept rows for RoPE.
    pub positions: &'static str,
    /// Parameters of `--set`.
    pub parameters: &'static [Parameter],
    /// Builds the method from name-value pairs.
    #[serde(skip)]
    pub build: Build,
}

impl MethodInfo {
    /// Whether the method supports streaming mode.
    pub fn streams(&self) -> bool {
        STREAMING.contains(&self.name)
    }

    /// Whether its ranking depends on the question.
    pub fn sees_question(&self) -> bool {
        !QUESTION_AGNOSTIC.contains(&self.name) && ![FULL, "streaming_llm"].contains(&self.name)
    }
}

/// Builds the method of `info` with its own options.
pub(crate) fn read<M: Method + 'static>(
    info: &'static MethodInfo,
    values: &[(String, String)],
    read: fn(&Parameters) -> Result<M, PolicyError>,
) -> Result<Arc<dyn Method>, PolicyError> {
    let p = Parameters::new(info.name, info.parameters, values)?;
    Ok(Arc::new(read(&p)?))
}
