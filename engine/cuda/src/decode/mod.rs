//! Decoding on a GPU.

mod decoder;
mod observed;
mod plan;
mod slot_table;

pub(super) use decoder::CudaDecoder;
pub(super) use plan::{DecodePlan, capacity_of};
