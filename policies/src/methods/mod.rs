//! The methods, one file per paper.

pub(crate) mod chunkkv;
pub(crate) mod ems;
pub(crate) mod ems_decode;
pub(crate) mod expected_attention;
pub(crate) mod full;
pub(crate) mod h2o;
pub(crate) mod hbw_kv;
pub(crate) mod keydiff;
pub(crate) mod knorm;
pub(crate) mod kvzip;
pub(crate) mod pyramidinfer;
pub(crate) mod pyramidkv;
pub(crate) mod random;
pub(crate) mod scissorhands;
pub(crate) mod snapkv;
pub(crate) mod streaming_llm;
pub(crate) mod token_dropping;
pub(crate) mod tova;
pub(crate) mod treekv;
