//! Prefill on a GPU. The residual stream, one layer's keys and values and their measurements are in device
//! memory. If the residual stream does not fit, it is on the host and each chunk is uploaded and written
//! back. Measurements are downloaded and the host runs the method. Kept rows are downloaded too, or stay on
//! the device if the GPU can decode without the host.
//!
//! A chunk takes the same steps as [`Reader::read_chunk`](super::reader).

mod asked;
mod kept;
mod observing;
mod prefetch;
mod residual;
mod transfer;

pub(in crate::prefill) use asked::GpuRows;
pub(crate) use transfer::transfer_bytes;

use std::ops::Range;
use std::sync::Mutex;

use half::f16;
use half::slice::HalfFloatSliceExt;
use kept_cuda::{
    AttentionScratch, Buffer, Device, DeviceError, Indices, LayerCapacity, LayerRows,
    PrefillAttention, QuerySums, Readback, RowPositions, Scores, ScoresScratch, UploadStaging,
};
use kept_kernels::{HeadShape, Normalise, Scale, words};
use kept_models::{GpuModel, GpuPass, GpuRope, Model, RopeContext, RopeTable};
use kept_policies::Future;

use super::reconstruction::ReconstructionPass;
use crate::EngineError;
use crate::plan::PrefillPlan;
use crate::shape::{attention_scale, head_shape};
use crate::vault::{LayerNumbers, Vault};
use kept::RowDestination;
use prefetch::LayerPrefetcher;
use residual::Residual;
use transfer::{SENT_AT_ONCE, VaultWriteback};

/// All device buffers of one prefill.
pub(crate) struct GpuReading<'a> {
    gpu: &'a GpuModel,
    rope: GpuRope,
    heads: HeadShape,
    scale: Scale,
    pass: GpuPass,
    residual: Residual,
    /// `[kv_heads, n, head_dim]`
    keys: LayerRows,
    /// As `keys`.
    values: LayerRows,
    /// `[chunk, q_heads, head_dim]`
    queries: Buffer<f16>,
    /// `[chunk, q_heads, head_dim]`
    attention: Buffer<f32>,
    parts: AttentionScratch,
    /// `[w, q_heads, head_dim]`: the rotated queries of the observation window.
    window_queries: Buffer<f16>,
    /// Rows in `window_queries`.
    window_rows: usize,
    scores: ScoresScratch,
    /// `[q_heads, n]`: attention of the last rows.
    seen: Buffer<f32>,
    /// Downloads attention and column sums.
    readback: Readback<f32>,
    /// `[q_heads, layer_input_tokens]`, at most `[q_heads, n]`: attention of all rows, if a method needs it.
    column_sums: Buffer<f32>,
    /// Length of the column sums in this layer.
    columns: usize,
    /// `[q_heads, chunk]`
    log_sum_exp: Buffer<f32>,
    /// `[kv_heads, n, words]`
    marks: Buffer<u64>,
    /// Uploads rows of a vault, if one may be used.
    staging: Option<UploadStaging>,
    /// Prefetches the next layer's rows of the vault, if the GPU has the memory.
    prefetch: Option<LayerPrefetcher>,
    /// Downloads rows for a vault that is written.
    writeback: Option<VaultWriteback>,
    /// Kept rows.
    kept: RowDestination,
    /// Sums over queries before RoPE, one for each distinct request.
    query_sums: Vec<(Future, QuerySums)>,
    /// Scratch for computations on rows, if a method needs them.
    asked: Option<Mutex<asked::Scratch>>,
    /// Downloads all rows of a layer: for a reconstruction, a method that reads copies, or one that keeps
    /// everything.
    row_readback: Readback<f16>,
    /// Staging buffer for downloads, on the host.
    halves: Vec<f16>,
}

/// A chunk of tokens in a layer.
pub(super) struct GpuChunk<'c> {
    pub(super) layer: usize,
    /// First row, in the layer's keys and values.
    pub(super) first: usize,
    /// First row, in the residual stream.
    pub(super) at: usize,
    pub(super) count: usize,
    /// Residual stream rows of the layer's next chunk, if any.
    pub(super) next: Range<usize>,
    /// Positions of the rows, if they differ from row indices.
    pub(super) positions: Option<&'c [u32]>,
    /// Attention window of a sliding-window layer, in positions including the row's own.
    pub(super) window: Option<usize>,
    /// How many of the chunk's last rows need the rest of the layer (attention output and MLP).
    pub(super) needed: usize,
    /// How many of its last rows belong to the observation window.
    pub(super) observed: usize,
    pub(super) column_sums: bool,
}

impl<'a> GpuReading<'a> {
    /// Allocates everything except the kept rows. The residual stream is uninitialised.
    pub(super) fn new(
        gpu: &'a GpuModel,
        model: &Model,
        rope: &RopeTable,
        sizes: &[PrefillPlan],
    ) -> Result<Self, DeviceError> {
        Self::on(gpu.device(), gpu, model, rope, sizes)
    }

    /// Peak device memory of a prefill without the weights, including all kept rows if they stay on the
    /// device.
    pub(crate) fn bytes_for(
        gpu: &'a GpuModel,
        model: &Model,
        sizes: &PrefillPlan,
    ) -> Result<u64, DeviceError> {
        // A RoPE table has the same size for every position.
        let a_position = RopeTable::new(model.config(), 1);
        let only = std::slice::from_ref(sizes);
        let with = |gpu_plan: &[LayerCapacity]| {
            gpu.device().measure_allocations(|device| {
                let mut reading = Self::on(device, gpu, model, &a_position, only)?;
                reading.add_layers(gpu_plan)?;
                Ok(reading)
            })
        };
        let gpu_plan = if sizes.rows_on_gpu {
            sizes.gpu_decode_plan().layers
        } else {
            Vec::new()
        };
        let repeated = match &sizes.reconstruction_plan {
            Some(plan) => ReconstructionPass::gpu_bytes(gpu, model, sizes, plan)?,
            None => 0,
        };
        let taken = match sizes.row_plan.score_pass {
            // The first pass runs the reconstruction and keeps nothing; the second pass is the opposite.
            true => (with(&[])? + repeated).max(with(&gpu_plan)?),
            false => with(&gpu_plan)? + repeated,
        };
        let positions = (sizes.tokens() + sizes.max_new_tokens()).max(1) as u64;
        Ok(taken + (positions - 1) * a_position.bytes())
    }

    /// [`GpuReading::new`] with all buffers on `device`: the GPU or a dry run of it.
    fn on(
        device: &Device,
        gpu: &'a GpuModel,
        model: &Model,
        rope: &RopeTable,
        sizes: &[PrefillPlan],
    ) -> Result<Self, DeviceError> {
        let heads = head_shape(model);
        let first = &sizes[0];
        let most = |of: fn(&PrefillPlan) -> usize| sizes.iter().map(of).max().unwrap_or(0);
        let q_width = heads.q_heads * heads.head_dim;
        let window = most(PrefillPlan::window_queries) / q_width;
        let needs = || sizes.iter().flat_map(|sizes| &sizes.needs);
        let looks = needs().any(|n| n.window.is_some() || n.weighted_window.is_some());
        let low_attention = needs().filter_map(|n| n.low_attention).max();
        let n = first.tokens();
        let rows = || LayerRows::new(device, heads.kv_heads, n, heads.head_dim);
        Ok(Self {
            rope: GpuRope::new(device, rope)?,
            heads,
            scale: attention_scale(model),
            pass: GpuPass::new(device, gpu, first.chunk)?,
            residual: Residual::new(device, model.config().width, first)?,
            keys: rows()?,
            values: rows()?,
            queries: device.alloc_uninit(first.chunk * q_width)?,
            attention: device.alloc_uninit(first.chunk * q_width)?,
            parts: AttentionScratch::new(device, heads)?,
            window_queries: device.alloc_uninit(window * q_width)?,
            window_rows: 0,
            scores: ScoresScratch::new(device, heads, window)?,
            seen: device.alloc_uninit(if looks { heads.q_heads * n } else { 0 })?,
            readback: Readback::new(device, Readback::<f32>::PIECE.min(heads.q_heads * n))?,
            column_sums: device.alloc_uninit(most(PrefillPlan::column_sums))?,
            columns: 0,
            log_sum_exp: device.alloc_uninit(most(PrefillPlan::log_sum_exp))?,
            marks: device
                .alloc_uninit(low_attention.map_or(0, |rows| heads.kv_heads * n * words(rows)))?,
            staging: (first.vault_rows())
                .map(|_| UploadStaging::new(device, SENT_AT_ONCE))
                .transpose()?,
            prefetch: (first.prefetch > 0)
                .then(|| LayerPrefetcher::new(device, first.prefetch))
                .transpose()?,
            writeback: (first.vault_rows())
                .map(|kind| VaultWriteback::new(device, kind, heads, first.chunk))
                .transpose()?,
            kept: RowDestination::new(device, heads, sizes)?,
            query_sums: observing::query_sums(device, heads, needs().filter_map(|n| n.future))?,
            asked: asked::Scratch::new(device, sizes, n, heads.head_dim)?,
            row_readback: Readback::new(device, Readback::<f16>::PIECE.min(n * heads.head_dim))?,
            halves: Vec::new(),
            gpu,
        })
    }

    fn device(&self) -> &'a Device {
        self.gpu.device()
    }

    fn q_width(&self) -> usize {
        self.heads.q_heads * self.heads.head_dim
    }

    /// Device bytes without the weights.
    pub(super) fn bytes(&self) -> u64 {
        let floats = [
            &self.attention,
            &self.seen,
            &self.column_sums,
            &self.log_sum_exp,
        ];
        floats.iter().map(|b| b.bytes()).sum::<u64>()
            + self.residual.bytes()
            + self.queries.bytes()
            + self.window_queries.bytes()
            + self.marks.bytes()
            + self.staging.as_ref().map_or(0, UploadStaging::bytes)
            + self.prefetch.as_ref().map_or(0, LayerPrefetcher::bytes)
            + self.writeback.as_ref().map_or(0, VaultWriteback::bytes)
            + self.kept.bytes()
            + self.query_sums.iter().map(|(_, s)| s.bytes()).sum::<u64>()
            + asked::Scratch::bytes(&self.asked)
            + self.rope.bytes()
            + self.pass.bytes()
            + self.keys.bytes()
            + self.values.bytes()
            + self.parts.bytes()
            + self.scores.bytes()
    }

    /// Whether the next layer's rows are prefetched.
    pub(super) fn prefetches(&self) -> bool {
        self.prefetch.is_some()
    }

    /// Starts to prefetch the rows of the first `tokens` tokens of `layer` from the vault.
    pub(super) fn start_prefetch(
        &mut self,
        vault: Vault,
        layer: usize,
        tokens: usize,
    ) -> Result<(), EngineError> {
        let staging = self.staging.take().expect("a reading with a vault");
        let prefetch = self.prefetch.as_mut().expect("prefetch is enabled");
        prefetch.start(vault, layer, tokens, staging)
    }

    /// Finishes a prefetch: the rows are then in `keys` and `values`. Returns the vault and its other numbers
    /// for the layer; `None` if no prefetch was started.
    pub(super) fn finish_prefetch(&mut self) -> Result<Option<(Vault, LayerNumbers)>, EngineError> {
        let device = self.device();
        let Some(prefetch) = &mut self.prefetch else {
            return Ok(None);
        };
        let prefetched = prefetch.finish(device, &mut self.keys, &mut self.values)?;
        Ok(prefetched.map(|(vault, numbers, staging)| {
            self.staging = Some(staging);
            (vault, numbers)
        }))
    }

    /// Begins a layer. `column_sums [q_heads, n]` and `window_queries` (rotated) hold what the host has for
    /// the tokens whose rows come from the vault.
    pub(super) fn begin_layer(
        &mut self,
        column_sums: &[f32],
        window_queries: &[f32],
    ) -> Result<(), DeviceError> {
        self.column_sums.write(0, column_sums)?;
        self.columns = column_sums.len();
        let halves: Vec<f16> = window_queries.iter().map(|x| f16::from_f32(*x)).collect();
        self.window_queries.write(0, &halves)?;
        self.window_rows = halves.len() / self.q_width();
        Ok(())
    }

    /// Computes q, k and v of a chunk's rows, and adds the queries before RoPE to the sums `wanted`.
    pub(super) fn project(
        &mut self,
        chunk: &GpuChunk<'_>,
        wanted: impl Iterator<Item = Future>,
    ) -> Result<(), DeviceError> {
        let (layer, first, count) = (chunk.layer, chunk.first, chunk.count);
        let stream = (self.residual).load_chunk(chunk.at..chunk.at + count, &chunk.next)?;
        self.gpu.project(layer, &stream, count, &mut self.pass)?;
        let mut wanted = wanted.peekable();
        if wanted.peek().is_some() {
            let (gpu, pass, queries) = (self.gpu, &self.pass, &mut self.queries);
            gpu.ready_queries(layer, count, RopeContext::RAW, pass, queries)?;
        }
        wanted.try_for_each(|future| self.add_queries(future, first..first + count))
    }

    /// Downloads the chunk's queries `[count, q_heads, head_dim]` in their current state (rotated or not).
    pub(super) fn download_queries(
        &mut self,
        count: usize,
        out: &mut [f32],
    ) -> Result<(), DeviceError> {
        self.halves.resize(count * self.q_width(), f16::ZERO);
        self.queries.read(0, &mut self.halves)?;
        self.halves.as_slice().convert_to_f32_slice(out);
        Ok(())
    }

    /// Applies RoPE, stores keys and values, and copies the observed queries to `window_queries`.
    pub(super) fn store(&mut self, chunk: &GpuChunk<'_>) -> Result<(), DeviceError> {
        let &GpuChunk {
            layer,
            first,
            count,
            ..
        } = chunk;
        let positions = (chunk.positions)
            .map(|positions| Indices::new(self.gpu.device(), positions))
            .transpose()?;
        let context = RopeContext {
            angles: self.rope.of_layer(layer),
            places: positions
                .as_ref()
                .map_or(RowPositions::From(first), RowPositions::At),
        };
        let (gpu, pass) = (self.gpu, &self.pass);
        gpu.ready_queries(layer, count, context, pass, &mut self.queries)?;
        let rows = first..first + count;
        gpu.ready_keys(layer, rows.clone(), context, pass, &mut self.keys)?;
        gpu.ready_values(layer, rows, pass, &mut self.values)?;
        if chunk.observed > 0 {
            let width = self.heads.q_heads * self.heads.head_dim;
            let last = (count - chunk.observed) * width..count * width;
            self.window_queries
                .copy_from(self.window_rows * width, &self.queries, last)?;
            self.window_rows += chunk.observed;
        }
        Ok(())
    }

    /// Attention and the rest of the layer, for the needed rows. Asynchronous: [`GpuReading::wait`] waits.
    pub(super) fn attend(&mut self, chunk: &GpuChunk<'_>) -> Result<(), DeviceError> {
        let &GpuChunk {
            layer,
            first,
            count,
            needed,
            ..
        } = chunk;
        let (device, q_width) = (self.device(), self.q_width());
        let whole = needed == count;
        if needed > 0 {
            let skip = count - needed;
            let queries = self.queries.share(skip * q_width..count * q_width);
            let task = PrefillAttention {
                shape: self.heads,
                scale: self.scale,
                window: chunk.window,
                queries: &queries,
                rows: needed,
                first: first + skip,
                keys: &self.keys,
                values: &self.values,
            };
            let known = (chunk.column_sums && whole).then_some(&mut self.log_sum_exp);
            device.prefill_attention(&task, &mut self.parts, &mut self.attention, known)?;
            let mut stream = self.residual.rows(chunk.at, skip..count);
            self.gpu
                .finish(layer, &self.attention, &mut stream, needed, &mut self.pass)?;
            self.residual
                .write_back(chunk.at + skip..chunk.at + count)?;
        }
        if chunk.column_sums {
            let task = Scores {
                shape: self.heads,
                scale: self.scale,
                queries: &self.queries,
                rows: count,
                keys: &self.keys,
                tokens: first + count,
                normalise: Normalise::All,
            };
            if !whole {
                device.log_sum_exp(&task, &mut self.parts, &mut self.log_sum_exp)?;
            }
            let mut sums = self.column_sums.share(0..self.columns);
            device.add_column_sums(&task, &self.log_sum_exp, &mut sums)?;
        }
        Ok(())
    }

    /// Waits for all submitted work. Called per chunk, so that a stop takes effect quickly.
    pub(super) fn wait(&self) -> Result<(), DeviceError> {
        self.device().wait()
    }
}
