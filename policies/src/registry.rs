//! All methods by name.

use std::sync::Arc;

use crate::methods::{
    chunkkv, ems, expected_attention, full, h2o, hbw_kv, keydiff, knorm, kvzip, pyramidinfer,
    pyramidkv, random, scissorhands, snapkv, streaming_llm, tova, treekv,
};
use crate::wrappers::{adakv, cam, decode_cap};
use crate::{Method, MethodInfo, PolicyError};

const METHODS: &[MethodInfo] = &[
    full::INFO,
    streaming_llm::INFO,
    h2o::INFO,
    tova::INFO,
    scissorhands::INFO,
    snapkv::INFO,
    pyramidkv::INFO,
    pyramidinfer::INFO,
    chunkkv::INFO,
    hbw_kv::INFO,
    treekv::INFO,
    ems::INFO,
    knorm::INFO,
    keydiff::INFO,
    expected_attention::INFO,
    kvzip::INFO,
    adakv::INFO,
    cam::INFO,
    random::INFO,
];

/// The method that keeps everything and has no budget.
pub const FULL: &str = full::INFO.name;

/// The methods that support streaming mode: those that evict token by token.
pub const STREAMING: [&str; 5] = [
    streaming_llm::INFO.name,
    treekv::INFO.name,
    h2o::INFO.name,
    tova::INFO.name,
    ems::INFO.name,
];

/// The query-agnostic methods: the rows that they keep of a document serve every question.
pub const QUESTION_AGNOSTIC: [&str; 5] = [
    random::INFO.name,
    knorm::INFO.name,
    kvzip::INFO.name,
    keydiff::INFO.name,
    expected_attention::INFO.name,
];

/// All methods, in the order of the table.
pub fn methods() -> &'static [MethodInfo] {
    METHODS
}

/// The method called `name`.
///
/// # Errors
/// [`PolicyError::UnknownMethod`].
pub fn find(name: &str) -> Result<&'static MethodInfo, PolicyError> {
    METHODS
        .iter()
        .find(|m| m.name == name)
        .ok_or_else(|| PolicyError::UnknownMethod {
            name: name.to_owned(),
            known: METHODS
                .iter()
                .map(|m| m.name)
                .collect::<Vec<_>>()
                .join(", "),
        })
}

/// Builds the method called `name` with the parameters in `values`.
///
/// # Errors
/// An unknown method, or a parameter that the method does not have or accept.
pub fn build(name: &str, values: &[(String, String)]) -> Result<Arc<dyn Method>, PolicyError> {
    let info = find(name)?;
    decode_cap::capped(info, (info.build)(values)?, values)
}
