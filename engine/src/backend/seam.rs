//! What the engine asks of a device: prefill, streaming mode and decode in the same words for every device.
//!
//! ```text
//! prefill    prepare, project, attend, complete (chunk by chunk) -> window, .. -> rows -> gather     PrefillBackend
//! decode     step, with a callback after each layer ................................................  DecodeBackend
//! streaming  project, finish for rows in host memory, and attention over them ....................  HostLayer, HostAttention
//! plan       device_bytes, place, check_free ........................................................ Backend
//! ```

use std::ops::Range;
use std::time::Duration;

use kept_cuda::GpuCache;
use kept_kernels::{CacheType, DeltaState, PackedRows, PrefillAttention, RowStore, Stop};
use kept_models::RopeTable;
use kept_policies::{PromptRows, Selection, WeightedWindow, Window};
use kept_vault::{VaultError, VaultRows};

use super::buffers::HostBuffers;
use super::cuda::watch::GpuWatch;
use super::measurements::Measurements;
use crate::after_layer::AfterLayer;
use crate::compact::{CompactCache, CompactLayer, Gather};
use crate::plan::{PrefillPlan, StreamPlan};
use crate::{EngineError, MemoryLedger};

/// Rows of a compact cache in device memory.
pub(crate) type DeviceRows = GpuCache;

/// A device with a model's weights.
pub(crate) trait Backend<'m> {
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
    fn check_cache(&self, cache: CacheType) -> Result<(), EngineError> {
        let _ = cache;
        Ok(())
    }

    /// Whether the device's memory has space for the question with this ledger.
    ///
    /// # Errors
    /// [`EngineError::GpuMemory`].
    fn check_free(&self, ledger: &MemoryLedger) -> Result<(), EngineError> {
        let _ = ledger;
        Ok(())
    }

    /// Decides which parts of a prefill are in device memory, given its free memory or `memory` bytes for weights and
    /// prefill.
    fn place(&self, plan: &mut PrefillPlan, memory: Option<u64>) -> Result<(), EngineError> {
        let _ = (plan, memory);
        Ok(())
    }

    /// Peak bytes of device memory of a question, weights included; 0 without own memory.
    fn device_bytes(&self, plan: &PrefillPlan) -> Result<u64, EngineError> {
        let _ = plan;
        Ok(0)
    }

    /// As [`Backend::device_bytes`], in streaming mode.
    fn device_bytes_of_stream(&self, plan: &StreamPlan) -> Result<u64, EngineError> {
        let _ = plan;
        Ok(0)
    }

    /// Bytes of pinned host memory for vault rows of type `kind`, in chunks of `chunk` tokens.
    fn transfer_bytes(&self, kind: PackedRows, chunk: usize) -> u64 {
        let _ = (kind, chunk);
        0
    }

    /// Samples the device's free memory; `None` without own memory.
    fn watch(&self) -> Result<Option<GpuWatch>, EngineError> {
        Ok(None)
    }

    /// Allocates everything for a prefill.
    ///
    /// # Errors
    /// [`EngineError::Gpu`] if device memory is too small.
    fn prefill(&self, input: PrefillInput<'m>)
    -> Result<Box<dyn PrefillBackend + 'm>, EngineError>;

    /// Allocates everything for decoding over `cache`, and takes its rows if they are on the device. `observes`: whether
    /// attention probabilities are read after a token.
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

/// What a prefill starts with.
pub(crate) struct PrefillInput<'m> {
    pub(crate) rope: &'m RopeTable,
    /// One for each method.
    pub(crate) plans: &'m [PrefillPlan],
    /// `[rows]`: the tokens that run through the layers.
    pub(crate) ids: &'m [u32],
    /// `[rows, width]`: their embeddings.
    pub(crate) residual: Vec<f32>,
}

/// A chunk of tokens in a layer.
pub(crate) struct Chunk<'c> {
    pub(crate) layer: usize,
    /// First row, in the layer's keys and values.
    pub(crate) first: usize,
    /// First row, in the residual stream.
    pub(crate) at: usize,
    pub(crate) count: usize,
    /// Residual stream rows of the layer's next chunk, if any.
    pub(crate) next: Range<usize>,
    /// Positions of the rows, if they differ from row indices.
    pub(crate) positions: Option<&'c [u32]>,
    /// Attention window of a sliding-window layer, in positions including the row's own.
    pub(crate) window: Option<usize>,
    /// How many of the chunk's last rows need the rest of the layer (attention output and MLP).
    pub(crate) needed: usize,
    /// How many of its last rows belong to the observation window.
    pub(crate) observed: usize,
    pub(crate) column_sums: bool,
    /// The type to which new rows in f32 are rounded, if the vault's rows have another.
    pub(crate) rounds: Option<PackedRows>,
    /// Whether the rows are written to a vault.
    pub(crate) writes: bool,
    /// Whether this is the last chunk that is written to a vault.
    pub(crate) ends_prefix: bool,
}

/// A method's access to the rows of a layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowAccess {
    /// Index among all layers of the model.
    pub(crate) layer: usize,
    /// Rows of the layer.
    pub(crate) tokens: usize,
    /// Whether the method reads copies of keys and values in host memory.
    pub(crate) copies: bool,
    /// Whether it computes on the rows where they are.
    pub(crate) computations: bool,
    /// Whether it sees keys before RoPE.
    pub(crate) before_rope: bool,
    /// Whether other methods need the rotated keys afterwards.
    pub(crate) shared: bool,
}

/// A method's selection in a layer.
pub(crate) struct GatherTask<'g> {
    /// Index among all layers of the model.
    pub(crate) layer: usize,
    /// Index among the method's layers.
    pub(crate) in_policy: usize,
    pub(crate) plan: &'g PrefillPlan,
    pub(crate) rope: &'g RopeTable,
    pub(crate) selection: &'g Selection,
    /// Positions of the layer's rows, if they differ from row indices.
    pub(crate) positions: Option<&'g [u32]>,
}

/// Where a gather takes its rows from, and what is already done with them.
pub(crate) struct GatherSource<'g> {
    pub(crate) keys: &'g RowStore,
    pub(crate) values: &'g RowStore,
    /// Whether RoPE is undone on keys that are stored before RoPE.
    pub(crate) unrotated: bool,
    /// Sums of evicted values, as in [`Gather`].
    pub(crate) value_sums: Option<&'g [f32]>,
    /// Whether the rows of classes are merged.
    pub(crate) merged: bool,
}

impl GatherTask<'_> {
    /// Runs `build` on the construction of the compact layer from `source`.
    pub(crate) fn gather<T>(
        &self,
        source: &GatherSource<'_>,
        build: impl FnOnce(&Gather<'_>) -> T,
    ) -> T {
        let (plan, selection) = (self.plan, self.selection);
        let rope = self.rope.of_layer(self.layer);
        let unrotates = plan.reassigns_positions() && !source.unrotated;
        build(&Gather {
            keys: source.keys,
            values: source.values,
            tokens: plan.layer_input_tokens(self.in_policy),
            retention: &selection.retention,
            capacities: &plan.head_capacities(self.in_policy, &selection.retention),
            positions: plan.row_plan.positions,
            stored: plan.stored(),
            places: self.positions,
            // Methods that re-assign positions store keys before RoPE.
            unrotate: rope.filter(|_| unrotates),
            value_merges: &selection.value_merges,
            left: source.value_sums,
            merged: source.merged,
        })
    }
}

/// The vault's part in a prefill, as a backend sees it.
pub(crate) trait PrefixRows {
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

/// Memory of a prefill's buffers, in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PrefillMemory {
    /// A layer's keys and values on the host.
    pub(crate) layer_kv: u64,
    /// Other host buffers, except the residual stream.
    pub(crate) activations: u64,
    /// Device memory, weights included.
    pub(crate) device: u64,
}

/// One layer's keys and values, the residual stream and scratch buffers of a prefill. Measurements and methods are on
/// the host.
pub(crate) trait PrefillBackend {
    /// Loads the rows of the layer that the vault has.
    fn load_prefix(
        &mut self,
        layer: usize,
        prefix: &mut dyn PrefixRows,
        stop: &Stop,
    ) -> Result<(), EngineError>;

    /// Begins a layer whose rows are loaded. `measurements` has the vault's part; its column sums are empty if none are
    /// requested.
    fn begin_layer(&mut self, measurements: &Measurements) -> Result<(), EngineError>;

    /// Prepares `layer` for chunks of up to `at_once` rows. With `few`, the weights are read as they are in the file:
    /// for few rows, rearranging them costs more than it saves.
    fn prepare(&mut self, layer: usize, at_once: usize, few: bool);

    /// Computes queries, keys and values of a chunk, adds the queries before RoPE to the measurements, applies RoPE,
    /// and stores keys, values and the queries of the observation window. Returns the time spent measuring, if the
    /// host measures.
    fn project(
        &mut self,
        chunk: &Chunk<'_>,
        measurements: &mut Measurements,
        stop: &Stop,
    ) -> Result<Duration, EngineError>;

    /// `[count, q_heads, head_dim]`: the rotated queries of the chunk.
    fn queries(&mut self, count: usize) -> Result<&[f32], EngineError>;

    /// Attention, the rest of the layer for the needed rows, and column sums. Returns the time spent measuring, if the
    /// host measures.
    fn attend(
        &mut self,
        chunk: &Chunk<'_>,
        measurements: &mut Measurements,
        stop: &Stop,
    ) -> Result<Duration, EngineError>;

    /// Waits until the chunk is computed, and writes its rows to the vault.
    fn complete(
        &mut self,
        chunk: &Chunk<'_>,
        prefix: &mut dyn PrefixRows,
    ) -> Result<(), EngineError>;

    /// Adds what was measured for the queries `rows` since the last call to `measurements`, with or without
    /// `column_sums`.
    fn collect(
        &mut self,
        rows: Range<usize>,
        column_sums: bool,
        measurements: &mut Measurements,
    ) -> Result<(), EngineError>;

    /// The current layer for more rows in host memory; its first `rows` rows are on the host.
    fn on_host(&mut self, rows: usize) -> Result<HostView<'_>, EngineError>;

    /// Attention of the observation window over the layer's `tokens` rows, into `measurements`.
    fn window(
        &mut self,
        window: Window,
        tokens: usize,
        measurements: &mut Measurements,
        stop: &Stop,
    ) -> Result<(), EngineError>;

    /// As [`PrefillBackend::window`], weighted towards the newest row. Keys outside `among` may be left out.
    fn weighted_window(
        &mut self,
        window: WeightedWindow,
        among: Option<&[u32]>,
        tokens: usize,
        measurements: &mut Measurements,
        stop: &Stop,
    ) -> Result<(), EngineError>;

    /// Keys to which the last `rows` queries pay less than average attention, into `measurements`.
    fn low_attention(
        &mut self,
        rows: usize,
        tokens: usize,
        measurements: &mut Measurements,
        stop: &Stop,
    ) -> Result<(), EngineError>;

    /// Prepares a method's access to the layer's rows.
    fn prepare_rows(&mut self, access: RowAccess, rope: &RopeTable) -> Result<(), EngineError>;

    /// The layer's rows, for computations where they are.
    fn rows(&self, layer: usize, before_rope: bool) -> Box<dyn LayerRowsAccess + '_>;

    /// `[kv_heads, rows, head_dim]`: copies of keys and values, after [`PrefillBackend::prepare_rows`].
    fn copies(&self) -> [&[f32]; 2];

    /// The compact layer of a selection.
    fn gather(&mut self, task: &GatherTask<'_>) -> Result<CompactLayer, EngineError>;

    /// The numbers of the current layer's state after the tokens so far, if the layer is recurrent.
    fn state(&self) -> Option<[&[f32]; 2]>;

    /// The compact layer of a recurrent layer: its state after all tokens.
    fn keep_state(&mut self) -> Result<CompactLayer, EngineError>;

    /// The compact layer of a sliding-window layer: its last `window` positions.
    fn gather_window(
        &mut self,
        plan: &PrefillPlan,
        window: usize,
    ) -> Result<CompactLayer, EngineError>;

    /// Removes all rows but `surviving`, ascending, of the first `rows` rows from the residual stream.
    fn retain_rows(&mut self, surviving: &[u32], rows: usize) -> Result<(), EngineError>;

    /// Memory of all buffers.
    fn memory(&self) -> PrefillMemory;

    /// The kept rows of all layers, if they stayed on the device.
    fn take_cache(&mut self) -> Option<DeviceRows>;

    /// `[rows, width]`: rows of the residual stream.
    fn into_residual(self: Box<Self>, rows: Range<usize>) -> Result<Vec<f32>, EngineError>;
}

/// The current layer of a prefill for rows in host memory.
pub(crate) struct HostView<'v> {
    pub(crate) layer: &'v mut dyn HostLayer,
    pub(crate) attention: &'v mut dyn HostAttention,
    pub(crate) buffers: &'v mut HostBuffers,
}

/// Computations of methods on a layer's rows.
pub(crate) trait LayerRowsAccess {
    /// The computations.
    fn rows(&self) -> &dyn PromptRows;

    /// The first error of the computations; the method's selection is invalid after one.
    fn check(&self) -> Result<(), EngineError>;
}

/// One layer for rows in host memory.
pub(crate) trait HostLayer {
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
        state: &mut DeltaState,
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
pub(crate) trait HostAttention {
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

/// Time of one part of a decode step: of all layers together.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct PartTime {
    /// In plain words.
    pub part: &'static str,
    /// How often it runs in a step: once for each of its layers.
    pub times: usize,
    /// Seconds of a step.
    pub seconds: f64,
    /// Bytes of weights and kept rows that it reads in a step.
    pub bytes: u64,
}

/// The buffers of a decode loop.
pub(crate) trait DecodeBackend {
    /// Logits `[vocab]` of `hidden [width]`, the last layer's output.
    fn logits_of(&mut self, hidden: &[f32]) -> Result<&mut [f32], EngineError>;

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

/// The logits after a token.
pub(crate) enum StepOutput<'a> {
    /// `[vocab]`
    Logits(&'a mut [f32]),
    /// The most likely tokens in descending order: their logits and ids.
    TopK(&'a mut [f32], &'a [u32]),
}
