//! One reading on a GPU: the residual stream and one layer's keys and values live there, and so does what its queries
//! look at. A residual stream that the GPU has no room for lies on the host, and each chunk's rows are brought and taken back. What a
//! method is shown comes to the host, and the cut is the host's; the rows that are kept come there too, or stay, where the GPU will write
//! the answer by itself.
//!
//! What a chunk does is [`Reader::read_chunk`](super::reader)'s, step for step.

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
use crate::shape::{attention_scale, head_shape};
use crate::sizes::Sizes;
use crate::vault::{LayerNumbers, Vault};
use kept::RowDestination;
use prefetch::LayerPrefetcher;
use residual::Residual;
use transfer::{SENT_AT_ONCE, VaultWriteback};

/// All buffers of one reading on a GPU.
pub(super) struct GpuReading<'a> {
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
    /// Rows of them that are there.
    window_rows: usize,
    scores: ScoresScratch,
    /// `[q_heads, n]`: what some rows see.
    seen: Buffer<f32>,
    /// Brings what is seen and summed.
    bringing: Readback<f32>,
    /// `[q_heads, layer_input_tokens]`, at most `[q_heads, n]`: what all rows see, where that is asked for.
    column_sums: Buffer<f32>,
    /// Numbers of them in this layer.
    columns: usize,
    /// `[q_heads, chunk]`
    log_sum_exp: Buffer<f32>,
    /// `[kv_heads, n, words]`
    marks: Buffer<u64>,
    /// Rows of a vault on their way here, where there may be one.
    staging: Option<UploadStaging>,
    /// And of the layer behind, where the GPU has room for them.
    prefetch: Option<LayerPrefetcher>,
    /// And those that are left in one.
    writeback: Option<VaultWriteback>,
    /// Kept rows.
    kept: RowDestination,
    /// Sums over queries before RoPE, for each request there is.
    query_sums: Vec<(Future, QuerySums)>,
    /// For answers about rows, if a method asks.
    asked: Option<Mutex<asked::Scratch>>,
    /// Brings all rows, where the host repeats the document, measures what no method is told, or keeps everything.
    bringing_rows: Readback<f16>,
    /// Numbers on their way to the host.
    halves: Vec<f16>,
}

/// Some tokens on their way through a layer.
pub(super) struct GpuChunk<'c> {
    pub(super) layer: usize,
    /// First row, in the layer's keys.
    pub(super) first: usize,
    /// Where it lies in the residual stream.
    pub(super) at: usize,
    pub(super) count: usize,
    /// Rows of the stream that pass the layer next, if any.
    pub(super) next: Range<usize>,
    /// Positions of the rows, where they are not the rows themselves.
    pub(super) positions: Option<&'c [u32]>,
    /// Positions that a row sees, its own included.
    pub(super) window: Option<usize>,
    /// How many of the chunk's last rows go on to the rest of the layer.
    pub(super) needed: usize,
    /// How many of its last rows belong to the observed window.
    pub(super) observed: usize,
    pub(super) column_sums: bool,
}

impl<'a> GpuReading<'a> {
    /// Everything is allocated here but the kept rows. The residual stream is still to be written.
    pub(super) fn new(
        gpu: &'a GpuModel,
        model: &Model,
        rope: &RopeTable,
        sizes: &[Sizes],
    ) -> Result<Self, DeviceError> {
        Self::on(gpu.device(), gpu, model, rope, sizes)
    }

    /// What it would take of the GPU at its worst moment, without the weights: with all rows that are kept, where they stay there.
    pub(super) fn bytes_for(
        gpu: &'a GpuModel,
        model: &Model,
        sizes: &Sizes,
    ) -> Result<u64, DeviceError> {
        // A table's bytes are the same for every position.
        let a_position = RopeTable::new(model.config(), 1);
        let only = std::slice::from_ref(sizes);
        let with = |gpu_plan: &[LayerCapacity]| {
            gpu.device().measure_allocations(|device| {
                let mut reading = Self::on(device, gpu, model, &a_position, only)?;
                reading.add_layers(gpu_plan)?;
                Ok(reading)
            })
        };
        let gpu_plan = match sizes.rows_on_gpu {
            true => sizes.gpu_decode_plan().layers,
            false => Vec::new(),
        };
        let repeated = match &sizes.reconstruction_plan {
            Some(plan) => ReconstructionPass::gpu_bytes(gpu, model, sizes, plan)?,
            None => 0,
        };
        let taken = match sizes.has_score_pass {
            // The first reading repeats the document and keeps nothing, the second is the other way around.
            true => (with(&[])? + repeated).max(with(&gpu_plan)?),
            false => with(&gpu_plan)? + repeated,
        };
        let positions = (sizes.tokens + sizes.max_new_tokens).max(1) as u64;
        Ok(taken + (positions - 1) * a_position.bytes())
    }

    /// [`GpuReading::new`] with everything in memory of `device`, which is the GPU or stands for it.
    fn on(
        device: &Device,
        gpu: &'a GpuModel,
        model: &Model,
        rope: &RopeTable,
        sizes: &[Sizes],
    ) -> Result<Self, DeviceError> {
        let heads = head_shape(model);
        let first = &sizes[0];
        let most = |of: fn(&Sizes) -> usize| sizes.iter().map(of).max().unwrap_or(0);
        let q_width = heads.q_heads * heads.head_dim;
        let window = most(Sizes::window_queries) / q_width;
        let needs = || sizes.iter().flat_map(|sizes| &sizes.needs);
        let looks = needs().any(|n| n.window.is_some() || n.weighted_window.is_some());
        let low_attention = needs().filter_map(|n| n.low_attention).max();
        let n = first.tokens;
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
            bringing: Readback::new(device, Readback::<f32>::PIECE.min(heads.q_heads * n))?,
            column_sums: device.alloc_uninit(most(Sizes::column_sums))?,
            columns: 0,
            log_sum_exp: device.alloc_uninit(most(Sizes::log_sum_exp))?,
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
            asked: asked::Scratch::new(device, sizes, (n, heads.head_dim))?,
            bringing_rows: Readback::new(device, Readback::<f16>::PIECE.min(n * heads.head_dim))?,
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

    /// Bytes on the GPU, the weights' apart.
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

    /// Whether layers are brought ahead.
    pub(super) fn prefetches(&self) -> bool {
        self.prefetch.is_some()
    }

    /// Begins to bring the first `tokens` tokens' rows of `layer` of the vault.
    pub(super) fn start_prefetch(
        &mut self,
        (vault, layer, tokens): (Vault, usize, usize),
    ) -> Result<(), EngineError> {
        let staging = self.staging.take().expect("a reading with a vault");
        let prefetch = self.prefetch.as_mut().expect("layers are brought ahead");
        prefetch.bring((vault, layer, tokens), staging)
    }

    /// The vault of a layer that was brought, whose rows are there now, and what it holds of the layer besides; `None` where none was.
    pub(super) fn brought(&mut self) -> Result<Option<(Vault, LayerNumbers)>, EngineError> {
        let device = self.device();
        let Some(prefetch) = &mut self.prefetch else {
            return Ok(None);
        };
        let arrived = prefetch.arrived(device, &mut self.keys, &mut self.values)?;
        Ok(arrived.map(|(vault, numbers, staging)| {
            self.staging = Some(staging);
            (vault, numbers)
        }))
    }

    /// Begins a layer of whose known tokens the host has the column sums `[q_heads, n]` and, of those that are observed,
    /// `window_queries`.
    pub(super) fn begin(
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

    /// Projects a chunk's rows, and adds up queries before RoPE as `wanted`.
    pub(super) fn project(
        &mut self,
        chunk: &GpuChunk<'_>,
        wanted: impl Iterator<Item = Future>,
    ) -> Result<(), DeviceError> {
        let (layer, first, count) = (chunk.layer, chunk.first, chunk.count);
        let stream = (self.residual).enter(chunk.at..chunk.at + count, &chunk.next)?;
        self.gpu.project(layer, &stream, count, &mut self.pass)?;
        let mut wanted = wanted.peekable();
        if wanted.peek().is_some() {
            let (gpu, pass, queries) = (self.gpu, &self.pass, &mut self.queries);
            gpu.ready_queries(layer, count, RopeContext::RAW, pass, queries)?;
        }
        wanted.try_for_each(|future| self.add_queries(future, first..first + count))
    }

    /// The chunk's queries as they are now, `[count, q_heads, head_dim]`, on the host.
    pub(super) fn bring_queries(
        &mut self,
        count: usize,
        out: &mut [f32],
    ) -> Result<(), DeviceError> {
        self.halves.resize(count * self.q_width(), f16::ZERO);
        self.queries.read(0, &mut self.halves)?;
        self.halves.as_slice().convert_to_f32_slice(out);
        Ok(())
    }

    /// Turns what was projected and stores keys and values; the queries that are observed are put aside.
    pub(super) fn store(&mut self, chunk: &GpuChunk<'_>) -> Result<(), DeviceError> {
        let &GpuChunk {
            layer,
            first,
            count,
            ..
        } = chunk;
        let apart = (chunk.positions)
            .map(|positions| Indices::new(self.gpu.device(), positions))
            .transpose()?;
        let stand = RopeContext {
            angles: self.rope.of_layer(layer),
            places: apart
                .as_ref()
                .map_or(RowPositions::From(first), RowPositions::At),
        };
        let (gpu, pass) = (self.gpu, &self.pass);
        gpu.ready_queries(layer, count, stand, pass, &mut self.queries)?;
        gpu.ready_keys(layer, count, stand, pass, (first, &mut self.keys))?;
        gpu.ready_values(layer, count, pass, (first, &mut self.values))?;
        if chunk.observed > 0 {
            let width = self.heads.q_heads * self.heads.head_dim;
            let last = (count - chunk.observed) * width..count * width;
            self.window_queries
                .copy_from(self.window_rows * width, &self.queries, last)?;
            self.window_rows += chunk.observed;
        }
        Ok(())
    }

    /// Attention and the rest of the layer, for the rows that are needed. Asked for only: [`GpuReading::wait`] waits.
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
            self.gpu.finish(
                layer,
                &self.attention,
                (&mut stream, needed),
                &mut self.pass,
            )?;
            self.residual.leave(chunk.at + skip..chunk.at + count)?;
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

    /// Waits for what was asked for: nothing runs further ahead than a person who stops it wants to wait.
    pub(super) fn wait(&self) -> Result<(), DeviceError> {
        self.device().wait()
    }
}
