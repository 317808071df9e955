//! Serialises cache types by name (serde).

use kept_kernels::CacheType;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

pub(crate) fn serialize<S: Serializer>(cache: &CacheType, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(cache.name())
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<CacheType, D::Error> {
    let name = String::deserialize(from)?;
    name.parse().map_err(D::Error::custom)
}
