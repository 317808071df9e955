//! Values of the store's columns: compressed bytes, JSON, ids.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::StoreError;

/// Maximum size of an inflated text or map: far above any document.
const MAX_INFLATED_BYTES: u64 = 4 << 30;

pub(super) fn deflate(bytes: &[u8]) -> Result<Vec<u8>, StoreError> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
    encoder
        .write_all(bytes)
        .and_then(|()| encoder.finish())
        .map_err(|error| StoreError::Value(format!("a value to compress ({error})")))
}

pub(super) fn inflate(bytes: &[u8]) -> Result<Vec<u8>, StoreError> {
    let mut inflated = Vec::new();
    DeflateDecoder::new(bytes)
        .take(MAX_INFLATED_BYTES)
        .read_to_end(&mut inflated)
        .map_err(|error| StoreError::Value(format!("a compressed value ({error})")))?;
    Ok(inflated)
}

pub(super) fn text_of(bytes: &[u8]) -> Result<String, StoreError> {
    String::from_utf8(inflate(bytes)?)
        .map_err(|_| StoreError::Value("a text that is not UTF-8".to_owned()))
}

pub(super) fn to_json(value: &impl Serialize) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| StoreError::Value(error.to_string()))
}

pub(super) fn of_json<T: DeserializeOwned>(text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|error| StoreError::Value(error.to_string()))
}

pub(super) fn id_of_row(id: i64) -> Result<u64, StoreError> {
    u64::try_from(id).map_err(|_| StoreError::Value(format!("the id {id}")))
}

pub(super) fn row_of_id(id: u64) -> Result<i64, StoreError> {
    i64::try_from(id).map_err(|_| StoreError::Value(format!("the id {id}")))
}
