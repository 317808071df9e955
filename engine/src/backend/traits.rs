//! What the engine asks of a device: prefill, streaming mode and decode in the same words for every device.
//!
//! ```text
//! prefill    prepare, project, attend (chunk by chunk) -> observe -> rows -> keep ...................  PrefillBackend
//! decode     step, with a callback after each layer ................................................  DecodeBackend
//! streaming  project, finish for rows in host memory, and attention over them ....................  HostLayer, HostAttention
//! plan       device_bytes, place, check_free ........................................................ Backend
//! start      upload ................................................................................. Gpus
//! ```

use std::any::Any;
use std::ops::Range;
use std::time::Duration;

use kept_kernels::{CacheType, PackedRows, PrefillAttention, RecurrentState, RowStore, Stop};
use kept_models::{Model, RopeTable};
use kept_policies::PromptRows;
use kept_vault::{VaultError, VaultRows};

use super::buffers::HostBuffers;
use super::gpu_watch::GpuWatch;
use super::measurements::LayerMeasurements;
use super::tasks::{
    Chunk, DeviceRows, Keep, LastRows, PartTime, PrefillEnd, PrefillInput, RowAccess, StepOutput,
};
use crate::after_layer::AfterLayer;
use crate::compact::{CompactCache, CompactLayer};
use crate::plan::{PrefillPlan, StreamPlan};
use crate::{EngineError, Gpu, GpuRates, MemoryLedger};

/// The GPUs of one kind in this computer.
pub trait Gpus: Sync {
    /// All of them.
    ///
    /// # Errors
    /// Why none is usable, as a sentence with a way out.
    fn list(&self) -> Result<Vec<Gpu>, String>;

    /// Uploads the weights of `model` to a GPU and [attaches](super::attach) it. Layers that do not fit together with a
    /// question stay in pinned host memory, which the GPU reads. After an error the model is unchanged.
    ///
    /// # Errors
    /// [`EngineError::NoGpu`] without this GPU, [`EngineError::Gpu`] if the model does not fit.
    fn upload(&self, model: &mut Model, name: &str) -> Result<(), EngineError>;

    /// As [`Gpus::upload`], for memory estimates only: nothing is copied, and the model cannot be computed.
    ///
    /// # Errors
    /// As [`Gpus::upload`].
    fn upload_dry(&self, model: &mut Model, name: &str) -> Result<(), EngineError>;

    /// Peak rates of a GPU, measured within a second or two.
    ///
    /// # Errors
    /// [`EngineError::NoGpu`] without this GPU, [`EngineError::Gpu`] if it fails.
    fn rates(&self, name: &str) -> Result<GpuRates, EngineError>;
}

/// A model's weights on a device.
pub trait DeviceModel: Any + Send + Sync {
    /// What computes `model`, whose weights these are.
    fn backend<'m>(&'m self, model: &'m Model) -> Box<dyn Backend<'m> + 'm>;
}

/// A device with a model's weights.
pub trait Backend<'m> {
    /// The device's name, for messages.
    fn name(&self) -> &'m str;

    /// Whether the device has memory of its own: rows are then downloaded for computations on the host.
    fn has_own_memory(&self) -> bool;

    /// Bytes of weights in device memory; 0 without own memory.
    fn weights_on_device(&self) -> u64 {
        0
    }

    /// Bytes of weights that the device reads from host memory, because its own memory is too small.
    fn weights_on_host(&self) -> u64 {
        0
    }

    /// Bytes available for weights and a question; `None` if unknown.
    fn free_memory(&self) -> Result<Option<u64>, EngineError>;

    /// Whether kept rows may have this type.
    ///
    /// # Errors
    /// [`EngineError::GpuRows`].
    fn check_cache(&self, _cache: CacheType) -> Result<(), EngineError> {
        Ok(())
    }

    /// Whether the device's memory has space for the question with this ledger.
    ///
    /// # Errors
    /// [`EngineError::GpuMemory`].
    fn check_free(&self, _ledger: &MemoryLedger) -> Result<(), EngineError> {
        Ok(())
    }

    /// Decides which parts of a prefill are in device memory, given its free memory or `memory` bytes for weights and
    /// prefill.
    fn place(&self, _plan: &mut PrefillPlan, _memory: Option<u64>) -> Result<(), EngineError> {
        Ok(())
    }

    /// Peak bytes of device memory of a question, weights included; 0 without own memory.
    fn device_bytes(&self, _plan: &PrefillPlan) -> Result<u64, EngineError> {
        Ok(0)
    }

    /// As [`Backend::device_bytes`], in streaming mode.
    fn device_bytes_of_stream(&self, _plan: &StreamPlan) -> Result<u64, EngineError> {
        Ok(0)
    }

    /// Bytes of pinned host memory for vault rows of type `kind`, in chunks of `chunk` tokens.
    fn transfer_bytes(&self, _kind: PackedRows, _chunk: usize) -> u64 {
        0
    }

    /// Samples the device's free memory; `None` without own memory.
    fn watch(&self) -> Result<Option<GpuWatch>, EngineError> {
        Ok(None)
    }

    /// Peak rates of the device, measured within a second or two; `None` for the CPU.
    fn rates(&self) -> Result<Option<GpuRates>, EngineError> {
        Ok(None)
    }

    /// Allocates everything for a prefill.
    ///
    /// # Errors
    /// [`EngineError::Gpu`] if device memory is too small.
    fn prefill(&self, input: PrefillInput<'m>)
    -> Result<Box<dyn PrefillBackend + 'm>, EngineError>;

    /// Allocates everything for decoding over `cache`, and takes its rows if they are on the device. `observes`:
    /// whether attention probabilities are read after a token.
    ///
    /// # Errors
    /// As [`Backend::prefill`].
    fn decode(
        &self,
        cache: &mut CompactCache,
        rope: &'m RopeTable,
        observes: bool,
    ) -> Result<Box<dyn DecodeBackend + 'm>, EngineError>;

    /// A layer for up to `rows` rows at once in host memory.
    fn host_layer(&self, layer: usize, rows: usize) -> Box<dyn HostLayer + 'm>;

    /// Attention over rows in host memory. `plan` gives the largest shape.
    fn host_attention(&self, plan: &StreamPlan) -> Box<dyn HostAttention + 'm>;
}

/// The vault's part in a prefill, as a backend sees it.
pub trait PrefixRows {
    /// Begins a layer: passes the known tokens' rows to `rows` and to the vault that is written. After a stop, only
    /// some of them.
    ///
    /// # Errors
    /// [`VaultError`] if the vault cannot be read completely; the contents of `rows` are then undefined.
    fn begin_layer(
        &mut self,
        layer: usize,
        rows: &mut dyn VaultRows,
        stop: &Stop,
    ) -> Result<(), VaultError>;

    /// The state of the current layer after the known tokens, if the layer is recurrent.
    fn state(&self) -> Option<&[f32]>;

    /// Writes the rows `which` of a layer, row == position. After an error, writing ends with a note.
    fn write_rows(&mut self, keys: &RowStore, values: &RowStore, which: Range<usize>);

    /// Writes rows of the tokens from `first` on: keys, then values, `packed [2, kv_heads, count, row_bytes]`. After an
    /// error, writing ends with a note.
    fn write_packed(&mut self, first: usize, packed: &[u8]);
}

/// One layer's keys and values, the residual stream and scratch buffers of a prefill. Measurements and methods are on
/// the host.
pub trait PrefillBackend {
    /// Loads the rows of the layer that the vault has.
    fn load_prefix(
        &mut self,
        layer: usize,
        prefix: &mut dyn PrefixRows,
        stop: &Stop,
    ) -> Result<(), EngineError>;

    /// Begins a layer whose rows are loaded. `measurements` has the vault's part; its column sums are empty if none are
    /// requested.
    fn begin_layer(&mut self, _measurements: &LayerMeasurements) -> Result<(), EngineError> {
        Ok(())
    }

    /// Prepares `layer` for chunks of up to `at_once` rows. With `few`, the weights are read as they are in the file:
    /// for few rows, rearranging them costs more than it saves.
    fn prepare(&mut self, layer: usize, at_once: usize, few: bool);

    /// Computes queries, keys and values of a chunk, adds the queries before RoPE to the measurements, applies RoPE,
    /// and stores keys, values and the queries of the observation window. Returns the time spent measuring, if the
    /// host measures.
    fn project(
        &mut self,
        chunk: &Chunk<'_>,
        measurements: &mut LayerMeasurements,
        stop: &Stop,
    ) -> Result<Duration, EngineError>;

    /// `[count, q_heads, head_dim]`: the rotated queries of the chunk.
    fn queries(&mut self, count: usize) -> Result<&[f32], EngineError>;

    /// Attention, the rest of the layer for the needed rows, and column sums; writes rows to the vault. Returns the
    /// time spent measuring, if the host measures.
    fn attend(
        &mut self,
        chunk: &Chunk<'_>,
        measurements: &mut LayerMeasurements,
        prefix: &mut dyn PrefixRows,
        stop: &Stop,
    ) -> Result<Duration, EngineError>;

    /// Adds what was measured for the queries `rows` since the last call to `measurements`, with or without
    /// `column_sums`; nothing where the host measures.
    fn collect(
        &mut self,
        _rows: Range<usize>,
        _column_sums: bool,
        _measurements: &mut LayerMeasurements,
    ) -> Result<(), EngineError> {
        Ok(())
    }

    /// The current layer for more rows in host memory; its first `rows` rows are on the host.
    fn on_host(&mut self, rows: usize) -> Result<HostView<'_>, EngineError>;

    /// Measures attention of the last queries over the layer's `tokens` rows.
    fn observe(
        &mut self,
        what: LastRows<'_>,
        tokens: usize,
        measurements: &mut LayerMeasurements,
        stop: &Stop,
    ) -> Result<(), EngineError>;

    /// Prepares a method's access to the layer's rows.
    fn prepare_rows(&mut self, access: RowAccess, rope: &RopeTable) -> Result<(), EngineError>;

    /// The layer's rows, as [`PrefillBackend::prepare_rows`] has prepared them.
    fn rows(&self, access: RowAccess) -> Box<dyn LayerRowsAccess + '_>;

    /// The compact layer.
    fn keep(&mut self, what: Keep<'_>) -> Result<CompactLayer, EngineError>;

    /// The elements of the current layer's state after the tokens so far, if the layer is recurrent.
    fn state(&self) -> Option<[&[f32]; 2]>;

    /// Removes all rows but `surviving`, ascending, of the first `rows` rows from the residual stream.
    fn retain_rows(&mut self, surviving: &[u32], rows: usize) -> Result<(), EngineError>;

    /// Ends the prefill, with `rows` of the residual stream.
    fn end(self: Box<Self>, rows: Range<usize>) -> Result<PrefillEnd, EngineError>;
}

/// The current layer of a prefill for rows in host memory.
pub struct HostView<'v> {
    /// The layer's products.
    pub layer: &'v mut dyn HostLayer,
    /// Its attention.
    pub attention: &'v mut dyn HostAttention,
    /// The rows.
    pub buffers: &'v mut HostBuffers,
}

/// A method's view of a layer's rows.
pub trait LayerRowsAccess {
    /// Computations where the rows are, if the method needs them.
    fn computations(&self) -> Option<&dyn PromptRows>;

    /// `[kv_heads, rows, head_dim]`: copies of keys and values in host memory, if the method needs them.
    fn copies(&self) -> Option<[&[f32]; 2]>;

    /// The first error of the computations; the method's selection is invalid after one.
    fn check(&self) -> Result<(), EngineError>;
}

/// One layer for rows in host memory.
pub trait HostLayer {
    /// As [`kept_models::LayerPass::project`].
    fn project(
        &mut self,
        residual: &[f32],
        qkv: [&mut [f32]; 3],
        stop: &Stop,
    ) -> Result<(), EngineError>;

    /// As [`kept_models::LayerPass::recur`].
    fn recur(
        &mut self,
        residual: &mut [f32],
        state: &mut RecurrentState,
        stop: &Stop,
    ) -> Result<(), EngineError>;

    /// As [`kept_models::LayerPass::finish`].
    fn finish(
        &mut self,
        attention: &[f32],
        residual: &mut [f32],
        stop: &Stop,
    ) -> Result<(), EngineError>;
}

/// Attention of a prefill over rows in host memory.
pub trait HostAttention {
    /// As [`kept_kernels::prefill_attention`]. The keys and values `new` have changed since the last call.
    fn attend(
        &mut self,
        task: &PrefillAttention<'_>,
        new: Range<usize>,
        out: &mut [f32],
        log_sum_exp: Option<&mut [f32]>,
        stop: &Stop,
    ) -> Result<(), EngineError>;
}

/// The buffers of a decode loop.
pub trait DecodeBackend {
    /// Logits `[vocab]` of `hidden [width]`, the last layer's output.
    fn logits_of(&mut self, hidden: &[f32]) -> Result<&mut [f32], EngineError>;

    /// The largest k for which a step selects the k most likely next tokens; 0 if it gives all logits anyway.
    fn max_top_k(&self) -> usize {
        0
    }

    /// Runs a token at the position `cache.next` through the model. `after` is called once per layer, after the
    /// layer's attention. With `top_k`, the logits of the k most likely next tokens are enough.
    fn step(
        &mut self,
        token: u32,
        cache: &mut CompactCache,
        after: &mut AfterLayer<'_>,
        top_k: Option<usize>,
    ) -> Result<StepOutput<'_>, EngineError>;

    /// Times of the parts of a step, after at least two steps over `cache`. No step may follow.
    fn part_times(&mut self, cache: &CompactCache) -> Result<Vec<PartTime>, EngineError>;

    /// Bytes of host buffers.
    fn host_bytes(&self) -> u64;

    /// Bytes of device memory, without the weights.
    fn device_bytes(&self) -> u64 {
        0
    }

    /// The rows in device memory, if they include those of the answer's tokens.
    fn into_rows(self: Box<Self>) -> Option<DeviceRows> {
        None
    }
}
