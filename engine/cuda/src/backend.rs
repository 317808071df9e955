//! The engine's verbs on an NVIDIA GPU, real or emulated: weights, rows and the residual stream are in its memory as far
//! as they fit.

use std::sync::Arc;

use kept_cuda::{DeviceError, RowKind};
use kept_engine::backend::{
    Backend, DecodeBackend, GpuWatch, HostAttention, HostLayer, PrefillBackend, PrefillInput,
    PrefillPlan,
};
use kept_engine::{CompactCache, EngineError, GpuRates, MemoryLedger, StreamPlan};
use kept_kernels::{CacheType, PackedRows};
use kept_models::{Model, RopeTable};

use crate::decode::{CudaDecoder, DecodePlan};
use crate::gpus::rates_of;
use crate::host_rows::{self, StagedAttention, StagedLayer};
use crate::model::GpuModel;
use crate::placing;
use crate::prefill::{self, CudaPrefill};

/// A GPU with a model's weights.
pub(super) struct Cuda<'m> {
    model: &'m Model,
    gpu: &'m Arc<GpuModel>,
}

impl<'m> Cuda<'m> {
    pub(super) fn new(model: &'m Model, gpu: &'m Arc<GpuModel>) -> Self {
        Self { model, gpu }
    }

    /// Bytes of a prefill without the weights.
    fn prefill_bytes(&self, plan: &PrefillPlan) -> Result<u64, DeviceError> {
        CudaPrefill::bytes_for(self.gpu, self.model, plan)
    }
}

impl<'m> Backend<'m> for Cuda<'m> {
    fn name(&self) -> &'m str {
        &self.gpu.device().properties().name
    }

    fn has_own_memory(&self) -> bool {
        true
    }

    fn weights_on_device(&self) -> u64 {
        self.gpu.bytes()
    }

    fn weights_on_host(&self) -> u64 {
        self.gpu.host_bytes()
    }

    fn free_memory(&self) -> Result<Option<u64>, EngineError> {
        Ok(Some(self.gpu.device().free_memory()? + self.gpu.bytes()))
    }

    fn check_cache(&self, cache: CacheType) -> Result<(), EngineError> {
        match RowKind::of(cache) {
            Some(_) => Ok(()),
            None => Err(EngineError::GpuRows { cache }),
        }
    }

    fn check_free(&self, ledger: &MemoryLedger) -> Result<(), EngineError> {
        let needed = ledger.gpu.saturating_sub(self.gpu.bytes());
        let free = self.gpu.device().free_memory()?;
        if needed > free {
            let gpu = self.name().to_owned();
            return Err(EngineError::GpuMemory { gpu, needed, free });
        }
        Ok(())
    }

    fn place(&self, plan: &mut PrefillPlan, memory: Option<u64>) -> Result<(), EngineError> {
        let free = match memory {
            Some(memory) => memory.saturating_sub(self.gpu.bytes()),
            None => self.gpu.device().free_memory()?,
        };
        Ok(placing::place(plan, free, |plan| self.prefill_bytes(plan))?)
    }

    fn device_bytes(&self, plan: &PrefillPlan) -> Result<u64, EngineError> {
        let positions = plan.tokens() + plan.max_new_tokens();
        let decode = DecodePlan::after_prefill(plan);
        let answering = decode.bytes(self.gpu, self.model, positions)?;
        Ok(self.gpu.bytes() + self.prefill_bytes(plan)?.max(answering))
    }

    fn device_bytes_of_stream(&self, plan: &StreamPlan) -> Result<u64, EngineError> {
        let attention = StagedAttention::for_stream(self.gpu, plan);
        let reading = host_rows::layer_bytes(self.gpu, plan.chunk)? + attention.bytes()?;
        let decode = DecodePlan::after_stream(plan);
        let answering = decode.bytes(self.gpu, self.model, plan.positions)?;
        Ok(self.gpu.bytes() + reading.max(answering))
    }

    fn transfer_bytes(&self, kind: PackedRows, chunk: usize) -> u64 {
        prefill::transfer_bytes(self.model, kind, chunk)
    }

    fn watch(&self) -> Result<Option<GpuWatch>, EngineError> {
        let device = self.gpu.device().clone();
        let watch = GpuWatch::new(self.gpu.free_before(), move || Ok(device.free_memory()?))?;
        Ok(Some(watch))
    }

    fn rates(&self) -> Result<Option<GpuRates>, EngineError> {
        rates_of(self.gpu.device()).map(Some)
    }

    fn prefill(
        &self,
        input: PrefillInput<'m>,
    ) -> Result<Box<dyn PrefillBackend + 'm>, EngineError> {
        Ok(Box::new(CudaPrefill::new(self.gpu, self.model, input)?))
    }

    fn decode(
        &self,
        cache: &mut CompactCache,
        rope: &'m RopeTable,
        observes: bool,
    ) -> Result<Box<dyn DecodeBackend + 'm>, EngineError> {
        let plan = DecodePlan::for_cache(cache, observes)?;
        let decoder = CudaDecoder::new(self.gpu, self.model, rope, cache, &plan)?;
        Ok(Box::new(decoder))
    }

    fn host_layer(&self, layer: usize, rows: usize) -> Box<dyn HostLayer + 'm> {
        Box::new(StagedLayer::new(self.gpu, self.model, layer, rows))
    }

    fn host_attention(&self, plan: &StreamPlan) -> Box<dyn HostAttention + 'm> {
        Box::new(StagedAttention::for_stream(self.gpu, plan))
    }
}
