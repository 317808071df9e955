//! Destination of a layer's kept rows: the host, if it does more than copy them, or directly the slots of the
//! GPU cache for decoding. In the second case the host holds only the slot tables.

use half::f16;
use half::slice::HalfFloatSliceExt;
use kept_cuda::{
    Buffer, Device, DeviceError, GatherIndices, GatherStaging, GpuCache, Indices, KeptRows,
    LayerCapacity, LayerRows, Mean, Merging, Readback, RopeTables, RowKind,
};
use kept_engine::backend::{HostBuffers, PrefillPlan, group_merges};
use kept_kernels::{HeadShape, RowStore};
use kept_policies::{MergedHead, Pos, ValueMerge};

use super::CudaPrefill;

/// Kept rows per download.
const ROWS_PER_DOWNLOAD: usize = 1024;

/// Values of evicted tokens per launch of the weighted sums.
const MERGES_PER_LAUNCH: usize = 1 << 16;

/// Values per warp of a weighted sum.
const MERGES_PER_WARP: usize = 256;

/// Kept rows per copy launch on the GPU; only their target slots are uploaded.
const ROWS_PER_LAUNCH: usize = 1 << 15;

/// Why there is a [`ToHost`].
const TO_HOST: &str = "kept rows that do not stay on the GPU";

/// A layer's keys or values on the GPU, and where kept rows go on the host.
struct RowDownload<'a> {
    from: &'a LayerRows,
    to: &'a mut RowStore,
}

/// Gathers rows piece by piece in a buffer and downloads it.
pub(super) struct ToHost {
    /// `[ROWS_PER_DOWNLOAD, head_dim]`
    rows: KeptRows,
    /// `[ROWS_PER_DOWNLOAD]`: row indices.
    at: Indices,
    /// `[ROWS_PER_DOWNLOAD]`: KV heads of the rows.
    heads: Indices,
    /// Scratch for tokens that share a row or merge their values into kept ones, if the method does that.
    merging: Option<Merging>,
    /// `[ROWS_PER_DOWNLOAD, head_dim]`: weighted sums of the merged values.
    sums: Option<Buffer<f32>>,
    readback: Readback<u8>,
}

/// The GPU cache for the kept rows of `plan`, still without layers: each head's row count is known only after
/// selection.
pub(super) fn cache_of(
    device: &Device,
    heads: HeadShape,
    plan: &PrefillPlan,
) -> Result<(GpuCache, GatherStaging), DeviceError> {
    let rows = heads.kv_heads * plan.tokens();
    let staging = GatherStaging::new(device, ROWS_PER_LAUNCH.min(rows).max(1))?;
    let cache = GpuCache::without_rows(device, heads, plan.keeps.len())?;
    Ok((cache, staging))
}

impl ToHost {
    pub(super) fn new(
        device: &Device,
        heads: HeadShape,
        plans: &[PrefillPlan],
    ) -> Result<Self, DeviceError> {
        let entries = plans.iter().map(PrefillPlan::max_entries).max();
        let value_merges = plans.iter().any(|plan| plan.row_plan.merges_values);
        let merged = if value_merges { MERGES_PER_LAUNCH } else { 0 };
        let (members, dim) = (entries.unwrap_or(0).max(merged), heads.head_dim);
        Ok(Self {
            rows: KeptRows::new(device, RowKind::F16, ROWS_PER_DOWNLOAD, dim)?,
            at: Indices::zeros(device, ROWS_PER_DOWNLOAD)?,
            heads: Indices::zeros(device, ROWS_PER_DOWNLOAD)?,
            merging: (members > 0)
                .then(|| Merging::new(device, ROWS_PER_DOWNLOAD, members))
                .transpose()?,
            sums: value_merges
                .then(|| device.alloc_uninit(ROWS_PER_DOWNLOAD * dim))
                .transpose()?,
            readback: Readback::new(device, ROWS_PER_DOWNLOAD * dim * size_of::<f16>())?,
        })
    }

    /// Downloads the rows `kept` of every head, each to the same row index on the host.
    fn download(
        &mut self,
        device: &Device,
        kept: &[Vec<Pos>],
        mut both: [RowDownload<'_>; 2],
    ) -> Result<(), DeviceError> {
        let heads = kept.iter().enumerate();
        let which: Vec<(usize, Pos)> = heads
            .flat_map(|(head, kept)| kept.iter().map(move |&pos| (head, pos)))
            .collect();
        for some in which.chunks(ROWS_PER_DOWNLOAD) {
            let heads: Vec<u32> = some.iter().map(|&(head, _)| head as u32).collect();
            let rows: Vec<u32> = some.iter().map(|(_, pos)| pos.0).collect();
            self.heads.write(0, &heads)?;
            self.at.write(0, &rows)?;
            let indices = GatherIndices {
                positions: &self.at,
                heads: &self.heads,
                targets: None,
                slots: some.len(),
            };
            for RowDownload { from, to } in &mut both {
                device.gather_rows(from, &indices, None, &mut self.rows)?;
                download_rows(&self.rows, &mut self.readback, some, to)?;
            }
        }
        Ok(())
    }

    /// Merges the rows of every head and downloads the classes' rows, each to its centre's row index. Returns
    /// the key norms of the entries, by head. `unrotated` gives the angles of RoPE to undo before merging
    /// keys.
    fn download_merged(
        &mut self,
        device: &Device,
        heads: &[MergedHead],
        unrotated: Option<RopeTables<'_>>,
        [keys, values]: [RowDownload<'_>; 2],
    ) -> Result<Vec<Vec<f32>>, DeviceError> {
        let merging = self.merging.as_mut().expect("a method that merges");
        let (rows, readback) = (&mut self.rows, &mut self.readback);
        let mut norms: Vec<Vec<f32>> = Vec::new();
        for (head, kept) in heads.iter().enumerate() {
            // Entry indices of each class.
            let mut members = vec![Vec::new(); kept.centres.len()];
            for (number, entry) in kept.entries.iter().enumerate() {
                members[entry.class as usize].push(number);
            }
            let mut of_head = vec![0.0; kept.entries.len()];
            let pieces = members.chunks(merging.classes());
            for (members, centres) in pieces.zip(kept.centres.chunks(merging.classes())) {
                let entry = |number: &usize| {
                    let entry = &kept.entries[*number];
                    (entry.pos.0, entry.weight)
                };
                merging.set(members.iter().map(|numbers| numbers.iter().map(entry)))?;
                let which: Vec<(usize, Pos)> = centres.iter().map(|&pos| (head, pos)).collect();
                device.merge(
                    keys.from.head(head),
                    merging,
                    &Mean::OfKeys(unrotated),
                    rows,
                )?;
                download_rows(rows, readback, &which, keys.to)?;
                let numbers = members.iter().flatten();
                let mut found = vec![0.0; numbers.clone().count()];
                merging.norms(&mut found)?;
                numbers.zip(found).for_each(|(&i, norm)| of_head[i] = norm);
                device.merge(values.from.head(head), merging, &Mean::OfValues, rows)?;
                download_rows(rows, readback, &which, values.to)?;
            }
            norms.push(of_head);
        }
        Ok(norms)
    }
}

impl ToHost {
    /// Weighted sum of each group's values in `value_merges`, `[groups, head_dim]`.
    fn download_value_sums(
        &mut self,
        device: &Device,
        values: &LayerRows,
        value_merges: &[ValueMerge],
        dim: usize,
    ) -> Result<Vec<f32>, DeviceError> {
        let merging = self.merging.as_mut().expect("a method that spreads values");
        let sums = self.sums.as_mut().expect("a method that spreads values");
        let groups: Vec<&[ValueMerge]> = group_merges(value_merges).collect();
        let mut left = vec![0.0; groups.len() * dim];
        let mut found = vec![0.0; ROWS_PER_DOWNLOAD * dim];
        // Long groups are split into pieces, one warp each.
        let groups = groups.into_iter().enumerate();
        let pieces = groups.flat_map(|(group, value_merges)| {
            let pieces = value_merges.chunks(MERGES_PER_WARP);
            pieces.map(move |piece| (group, piece))
        });
        let pieces: Vec<(usize, &[ValueMerge])> = pieces.collect();
        let mut rest = pieces.as_slice();
        while let Some((_, [first, ..])) = rest.first() {
            let (head, mut members) = (first.head, 0);
            let fits = |(_, piece): &&(usize, &[ValueMerge])| {
                members += piece.len();
                piece[0].head == head && members <= merging.members()
            };
            let fitting = rest.iter().take(merging.classes()).take_while(fits).count();
            let (some, others) = rest.split_at(fitting);
            rest = others;
            let given = |spread: &ValueMerge| (spread.from.0, spread.weight);
            merging.set(some.iter().map(|(_, piece)| piece.iter().map(given)))?;
            device.add_up(values.head(head), merging, sums)?;
            let found = &mut found[..some.len() * dim];
            sums.read(0, found)?;
            for ((group, _), sum) in some.iter().zip(found.chunks_exact(dim)) {
                let pairs = left[group * dim..][..dim].iter_mut().zip(sum);
                pairs.for_each(|(left, x)| *left += x);
            }
        }
        Ok(left)
    }
}

/// Downloads the gathered `rows` to the rows `which` on the host.
fn download_rows(
    rows: &KeptRows,
    readback: &mut Readback<u8>,
    which: &[(usize, Pos)],
    host: &mut RowStore,
) -> Result<(), DeviceError> {
    let dim = host.head_dim();
    let row_bytes = dim * size_of::<f16>();
    let mut bytes = vec![0; which.len() * row_bytes];
    readback.read(rows.elements(), 0, &mut bytes)?;
    let mut row = vec![f16::ZERO; dim];
    for (&(head, pos), found) in which.iter().zip(bytes.chunks_exact(row_bytes)) {
        for (half, bytes) in row.iter_mut().zip(found.as_chunks::<2>().0) {
            *half = f16::from_le_bytes(*bytes);
        }
        row.convert_to_f32_slice(host.row_mut(head, pos.0 as usize));
    }
    Ok(())
}

/// Where the rows of a layer go on the host.
fn downloads<'r>(
    [keys, values]: [&'r LayerRows; 2],
    to: &'r mut HostBuffers,
) -> [RowDownload<'r>; 2] {
    [(keys, &mut to.keys), (values, &mut to.values)].map(|(from, to)| RowDownload { from, to })
}

impl CudaPrefill<'_> {
    /// Downloads the rows `kept` of every head, each to the same row index on the host.
    ///
    /// # Panics
    /// If kept rows stay on the GPU.
    pub(super) fn download_kept(&mut self, kept: &[Vec<Pos>]) -> Result<(), DeviceError> {
        let rows = downloads([&self.keys, &self.values], &mut self.buffers);
        let way = self.to_host.as_mut().expect(TO_HOST);
        way.download(self.gpu.device(), kept, rows)
    }

    /// Merges the classes' rows and downloads each to its centre's row. Returns the key norms of all
    /// entries, by head. With `raw`, keys are merged as before RoPE, if `layer` has RoPE.
    ///
    /// # Panics
    /// If kept rows stay on the GPU, or no method merges.
    pub(super) fn download_merged(
        &mut self,
        heads: &[MergedHead],
        layer: usize,
        raw: bool,
    ) -> Result<Vec<Vec<f32>>, DeviceError> {
        let unrotated = self.rope.of_layer(layer).filter(|_| raw);
        let rows = downloads([&self.keys, &self.values], &mut self.buffers);
        let way = self.to_host.as_mut().expect(TO_HOST);
        way.download_merged(self.gpu.device(), heads, unrotated, rows)
    }

    /// Weighted sum of each group's values in `value_merges`, `[groups, head_dim]`.
    ///
    /// # Panics
    /// If kept rows stay on the GPU, or the method does not merge values.
    pub(super) fn download_value_sums(
        &mut self,
        value_merges: &[ValueMerge],
    ) -> Result<Vec<f32>, DeviceError> {
        let way = self.to_host.as_mut().expect(TO_HOST);
        let dim = self.heads.head_dim;
        way.download_value_sums(self.gpu.device(), &self.values, value_merges, dim)
    }

    /// Allocates the kept rows of all layers, if they stay on the device: the state at the end of a prefill.
    pub(super) fn add_layers(&mut self, gpu_plan: &[LayerCapacity]) -> Result<(), DeviceError> {
        if let Some((cache, _)) = &mut self.to_cache {
            for capacity in gpu_plan {
                cache.add_layer(capacity)?;
            }
        }
        Ok(())
    }
}
