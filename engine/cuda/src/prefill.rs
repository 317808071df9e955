//! Prefill on a GPU. The residual stream, one layer's keys and values and their measurements are in device
//! memory. If the residual stream does not fit, it is on the host and each chunk is uploaded and written
//! back. Measurements are downloaded and the host runs the method. Kept rows are downloaded too, or stay on
//! the device if no method changes them during decode.

mod chunk;
mod gathering;
mod gpu_prompt_rows;
mod kept;
mod observing;
mod on_host;
mod residual;
mod transfer;

use std::ops::Range;
use std::sync::Mutex;
use std::time::Duration;

use half::f16;
use half::slice::HalfFloatSliceExt;
use kept_cuda::{
    AttentionScratch, Buffer, Device, DeviceError, GatherStaging, GpuCache, LayerCapacity,
    LayerRows, QuerySums, Readback, ScoresScratch, UploadStaging,
};
use kept_engine::backend::{
    Chunk, DeviceRows, HostBuffers, HostView, Keep, LastRows, LayerMeasurements, LayerRowsAccess,
    PrefillBackend, PrefillEnd, PrefillInput, PrefillMemory, PrefillPlan, PrefixRows, RowAccess,
    head_shape, ramp_weights, retain,
};
use kept_engine::{CompactLayer, EngineError};
use kept_kernels::{HeadShape, Normalise, Scale, Stop, words};
use kept_models::{Model, RopeTable};
use kept_policies::{ExpectedQueriesRequest, Softmax};

use crate::decode::DecodePlan;
use crate::host_rows::{self, StagedLayer};
use crate::model::{GpuModel, GpuPass, GpuRope, attention_scale};
use kept::ToHost;
use on_host::OnHost;
use residual::Residual;
pub(super) use transfer::transfer_bytes;
use transfer::{UPLOAD_BYTES, VaultWriteback};

/// All buffers of one prefill.
pub(super) struct CudaPrefill<'a> {
    /// The GPU, as a handle that counts the buffers.
    counting: Device,
    gpu: &'a GpuModel,
    model: &'a Model,
    rope: GpuRope,
    /// Rows and results on the host.
    buffers: HostBuffers,
    /// Whether all rows of the current layer are on the host.
    whole: bool,
    /// The current layer for rows in host memory, and attention over them, if a method needs a reconstruction.
    on_host: Option<OnHost<'a>>,
    heads: HeadShape,
    scale: Scale<'static>,
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
    /// Downloads rows for a vault that is written.
    writeback: Option<VaultWriteback>,
    /// Kept rows that stay on the device, and what copies them.
    to_cache: Option<(GpuCache, GatherStaging)>,
    /// What downloads kept rows, if the host does more than copy them.
    to_host: Option<ToHost>,
    /// Sums over queries before RoPE, one for each distinct request.
    query_sums: Vec<(ExpectedQueriesRequest, QuerySums)>,
    /// Scratch for computations on rows, if a method needs them.
    method_scratch: Option<Mutex<gpu_prompt_rows::Scratch>>,
    /// Downloads all rows of a layer: for a reconstruction, a method that reads copies, or one that keeps
    /// everything.
    row_readback: Readback<f16>,
    /// Staging buffer for downloads, on the host.
    halves: Vec<f16>,
}

impl<'a> CudaPrefill<'a> {
    /// Allocates everything except the kept rows.
    pub(super) fn new(
        gpu: &'a GpuModel,
        model: &'a Model,
        input: PrefillInput<'a>,
    ) -> Result<Self, DeviceError> {
        let PrefillInput {
            rope,
            plans,
            residual,
            ..
        } = input;
        let buffers = HostBuffers::new(plans, head_shape(model));
        let mut prefill = Self::on(gpu.device(), gpu, model, rope, plans, buffers)?;
        prefill.residual.write(&residual)?;
        prefill.on_host = OnHost::new(gpu, model, &plans[0])?;
        Ok(prefill)
    }

    /// Peak device memory of a prefill without the weights, including all kept rows if they stay on the
    /// device.
    pub(super) fn bytes_for(
        gpu: &'a GpuModel,
        model: &'a Model,
        plan: &PrefillPlan,
    ) -> Result<u64, DeviceError> {
        // A RoPE table has the same size for every position.
        let a_position = RopeTable::new(model.config(), 1);
        let only = std::slice::from_ref(plan);
        let with = |gpu_plan: &[LayerCapacity]| {
            gpu.device().measure_allocations(|device| {
                let mut reading =
                    Self::on(device, gpu, model, &a_position, only, HostBuffers::none())?;
                reading.add_layers(gpu_plan)?;
                Ok(reading)
            })
        };
        let gpu_plan = if plan.rows_on_gpu {
            DecodePlan::after_prefill(plan).layers
        } else {
            Vec::new()
        };
        let repeated = OnHost::bytes(gpu, model, plan)?;
        let taken = match plan.row_plan.score_pass {
            // The first pass runs the reconstruction and keeps nothing; the second pass is the opposite.
            true => (with(&[])? + repeated).max(with(&gpu_plan)?),
            false => with(&gpu_plan)? + repeated,
        };
        let positions = (plan.tokens() + plan.max_new_tokens()).max(1) as u64;
        Ok(taken + (positions - 1) * a_position.bytes())
    }

    /// Allocates everything except the kept rows on `device`, which is the GPU or a dry run of it. The residual
    /// stream is uninitialised.
    fn on(
        device: &Device,
        gpu: &'a GpuModel,
        model: &'a Model,
        rope: &RopeTable,
        plans: &[PrefillPlan],
        buffers: HostBuffers,
    ) -> Result<Self, DeviceError> {
        let device = &device.counting();
        let heads = head_shape(model);
        let first = &plans[0];
        let most = |of: fn(&PrefillPlan) -> usize| plans.iter().map(of).max().unwrap_or(0);
        let q_width = heads.q_heads * heads.head_dim;
        let window = most(PrefillPlan::window_queries) / q_width;
        let needs = || plans.iter().flat_map(|plan| &plan.needs);
        let low_attention = needs().filter_map(|n| n.low_attention).max();
        let n = first.tokens();
        let rows = || LayerRows::new(device, heads.kv_heads, n, heads.head_dim);
        Ok(Self {
            counting: device.clone(),
            rope: GpuRope::new(device, rope)?,
            heads,
            scale: attention_scale(model.config()),
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
            seen: device.alloc_uninit(heads.q_heads * n)?,
            readback: Readback::new(device, Readback::<f32>::PIECE.min(heads.q_heads * n))?,
            column_sums: device.alloc_uninit(most(PrefillPlan::column_sums))?,
            columns: 0,
            log_sum_exp: device.alloc_uninit(most(PrefillPlan::log_sum_exp))?,
            marks: device
                .alloc_uninit(low_attention.map_or(0, |rows| heads.kv_heads * n * words(rows)))?,
            staging: (first.vault_rows)
                .map(|_| UploadStaging::new(device, UPLOAD_BYTES))
                .transpose()?,
            writeback: (first.vault_rows)
                .map(|kind| VaultWriteback::new(device, kind, heads, first.chunk))
                .transpose()?,
            to_cache: (first.rows_on_gpu)
                .then(|| kept::cache_of(device, heads, first))
                .transpose()?,
            to_host: (!first.rows_on_gpu)
                .then(|| ToHost::new(device, heads, plans))
                .transpose()?,
            query_sums: observing::query_sums(
                device,
                heads,
                needs().filter_map(|n| n.expected_queries),
            )?,
            method_scratch: gpu_prompt_rows::Scratch::new(device, plans, n, heads.head_dim)?,
            row_readback: Readback::new(device, Readback::<f16>::PIECE.min(n * heads.head_dim))?,
            halves: Vec::new(),
            buffers,
            whole: false,
            on_host: None,
            model,
            gpu,
        })
    }

    fn device(&self) -> &'a Device {
        self.gpu.device()
    }

    fn q_width(&self) -> usize {
        self.heads.q_heads * self.heads.head_dim
    }

    /// Downloads all `rows` rows of the layer, unless they are on the host.
    fn download_all(&mut self, rows: usize) -> Result<(), DeviceError> {
        if !std::mem::replace(&mut self.whole, true) {
            self.download_rows(rows)?;
        }
        Ok(())
    }
}

impl PrefillBackend for CudaPrefill<'_> {
    fn load_prefix(
        &mut self,
        layer: usize,
        prefix: &mut dyn PrefixRows,
        stop: &Stop,
    ) -> Result<(), EngineError> {
        self.whole = false;
        let mut rows = self.known_rows();
        prefix.begin_layer(layer, &mut rows, stop)?;
        Ok(rows.outcome?)
    }

    fn begin_layer(&mut self, measurements: &LayerMeasurements) -> Result<(), EngineError> {
        let sums = &measurements.column_sums;
        self.column_sums.write(0, sums)?;
        self.columns = sums.len();
        let queries = measurements.window_queries.iter();
        let halves: Vec<f16> = queries.map(|x| f16::from_f32(*x)).collect();
        self.window_queries.write(0, &halves)?;
        self.window_rows = halves.len() / self.q_width();
        Ok(())
    }

    fn prepare(&mut self, layer: usize, at_once: usize, _few: bool) {
        if let Some(on_host) = &mut self.on_host {
            on_host.layer = StagedLayer::new(self.gpu, self.model, layer, at_once);
        }
    }

    fn project(
        &mut self,
        chunk: &Chunk<'_>,
        measurements: &mut LayerMeasurements,
        _stop: &Stop,
    ) -> Result<Duration, EngineError> {
        let (at, count) = (chunk.at, chunk.count);
        let stream = (self.residual).load_chunk(at..at + count, &chunk.next)?;
        self.gpu
            .project(chunk.layer, &stream, count, &mut self.pass)?;
        self.sum_queries(chunk, measurements.measured.requests())?;
        self.store(chunk)?;
        if chunk.writes {
            self.pack(chunk)?;
        }
        Ok(Duration::ZERO)
    }

    fn queries(&mut self, count: usize) -> Result<&[f32], EngineError> {
        self.halves.resize(count * self.q_width(), f16::ZERO);
        self.queries.read(0, &mut self.halves)?;
        let out = &mut self.buffers.q[..self.halves.len()];
        self.halves.as_slice().convert_to_f32_slice(out);
        Ok(out)
    }

    fn attend(
        &mut self,
        chunk: &Chunk<'_>,
        _measurements: &mut LayerMeasurements,
        prefix: &mut dyn PrefixRows,
        _stop: &Stop,
    ) -> Result<Duration, EngineError> {
        self.attend_chunk(chunk)?;
        // Written to the vault while the GPU computes: the previous chunk, and at the prefix's end this chunk too.
        let later = usize::from(chunk.writes && !chunk.ends_prefix);
        while let Some((first, packed)) = self.packed(later)? {
            prefix.write_packed(first, packed);
        }
        // Per chunk, so that a stop takes effect quickly.
        self.device().wait()?;
        Ok(Duration::ZERO)
    }

    fn collect(
        &mut self,
        rows: Range<usize>,
        column_sums: bool,
        measurements: &mut LayerMeasurements,
    ) -> Result<(), EngineError> {
        self.download_query_sums(&rows, &mut measurements.measured)?;
        if column_sums {
            self.readback
                .read(&self.column_sums, 0, &mut measurements.column_sums)?;
        }
        Ok(())
    }

    fn on_host(&mut self, rows: usize) -> Result<HostView<'_>, EngineError> {
        self.download_rows(rows)?;
        let on_host = self.on_host.as_mut().expect("a reconstruction");
        Ok(HostView {
            layer: &mut on_host.layer,
            attention: &mut on_host.attention,
            buffers: &mut self.buffers,
        })
    }

    fn observe(
        &mut self,
        what: LastRows<'_>,
        tokens: usize,
        measurements: &mut LayerMeasurements,
        _stop: &Stop,
    ) -> Result<(), EngineError> {
        let size = self.heads.q_heads * tokens;
        let LayerMeasurements {
            window_scores,
            measured,
            ..
        } = measurements;
        Ok(match what {
            LastRows::Window(window) => {
                let normalise = match window.softmax {
                    Softmax::All => Normalise::All,
                    Softmax::Prefix => Normalise::Prefix,
                };
                window_scores.resize(size, 0.0);
                self.window_scores(window.rows, normalise, tokens, None, window_scores)
            }
            LastRows::WeightedWindow(window, _) => {
                let (weights, out) = (ramp_weights(window), &mut measured.weighted_window);
                out.resize(size, 0.0);
                self.window_scores(window.rows, Normalise::All, tokens, Some(&weights), out)
            }
            LastRows::LowAttention(rows) => {
                self.mark_low_attention(rows, tokens, &mut measured.bits)
            }
        }?)
    }

    fn prepare_rows(&mut self, access: RowAccess, rope: &RopeTable) -> Result<(), EngineError> {
        self.buffers.keep_rotated();
        if access.copies {
            self.download_all(access.tokens)?;
            if access.before_rope {
                let rope = rope.of_layer(access.layer);
                self.buffers.unrotate(rope, access.shared);
            }
        }
        Ok(())
    }

    fn rows(&self, access: RowAccess) -> Box<dyn LayerRowsAccess + '_> {
        Box::new(self.method_rows(access))
    }

    fn keep(&mut self, what: Keep<'_>) -> Result<CompactLayer, EngineError> {
        match what {
            Keep::Selection(task) => self.gather_selection(&task),
            Keep::Window(plan, window) => self.gather_ring(plan, window),
            Keep::State => Err(host_rows::no_states()),
        }
    }

    fn state(&self) -> Option<[&[f32]; 2]> {
        None
    }

    fn retain_rows(&mut self, surviving: &[u32], rows: usize) -> Result<(), EngineError> {
        let mut residual = self.residual.read(0..rows)?;
        retain(&mut residual, surviving, self.model.config().width);
        Ok(self.residual.write(&residual)?)
    }

    fn end(mut self: Box<Self>, rows: Range<usize>) -> Result<PrefillEnd, EngineError> {
        let held = self.counting.held();
        let on_host = self.on_host.as_ref().map_or(0, |on_host| on_host.bytes);
        let cache = self.to_cache.take().map(|(cache, _)| cache);
        let kept = cache.as_ref().map_or(0, GpuCache::bytes);
        Ok(PrefillEnd {
            memory: PrefillMemory {
                layer_kv: self.buffers.row_bytes(),
                activations: self.buffers.bytes(),
                device: self.gpu.bytes() + held + kept + on_host,
            },
            cache: cache.map(|cache| Box::new(cache) as DeviceRows),
            residual: self.residual.read(rows)?,
        })
    }
}
