//! The CPU: weights are mapped from the file, everything else is in host memory.

mod attention;
mod decode;
mod host_rows;
pub(super) mod prefill;

use kept_models::{Model, RopeTable};

use super::tasks::PrefillInput;
use super::traits::{Backend, DecodeBackend, HostAttention, HostLayer, PrefillBackend};
use crate::EngineError;
use crate::compact::CompactCache;
use crate::plan::StreamPlan;
use crate::system::available_memory;
use decode::{Buffers, CpuDecoder};
use host_rows::CpuAttention;
use prefill::CpuPrefill;

/// The CPU with a model.
pub(super) struct Cpu<'m> {
    model: &'m Model,
}

impl<'m> Cpu<'m> {
    pub(super) fn new(model: &'m Model) -> Self {
        Self { model }
    }
}

/// Bytes of the decode loop's buffers on the CPU for up to `max_rows` rows and `max_entries` table entries per KV head.
/// The buffers are allocated to measure them; untouched zeroed memory is not committed.
pub(crate) fn decode_bytes(model: &Model, max_rows: usize, max_entries: usize) -> u64 {
    Buffers::new(model, max_rows, max_entries).bytes()
}

impl<'m> Backend<'m> for Cpu<'m> {
    fn name(&self) -> &'m str {
        "the CPU"
    }

    fn has_own_memory(&self) -> bool {
        false
    }

    fn free_memory(&self) -> Result<Option<u64>, EngineError> {
        Ok(available_memory())
    }

    fn prefill(
        &self,
        input: PrefillInput<'m>,
    ) -> Result<Box<dyn PrefillBackend + 'm>, EngineError> {
        Ok(Box::new(CpuPrefill::new(self.model, input)))
    }

    fn decode(
        &self,
        cache: &mut CompactCache,
        rope: &'m RopeTable,
        _observes: bool,
    ) -> Result<Box<dyn DecodeBackend + 'm>, EngineError> {
        Ok(Box::new(CpuDecoder::new(self.model, rope, cache)))
    }

    fn host_layer(&self, layer: usize, rows: usize) -> Box<dyn HostLayer + 'm> {
        Box::new(self.model.layer_pass(layer, rows))
    }

    fn host_attention(&self, _plan: &StreamPlan) -> Box<dyn HostAttention + 'm> {
        Box::new(CpuAttention)
    }
}
