//! What the host reads after each token for a method that changes rows, and the method's changes.

use half::f16;
use half::slice::HalfFloatSliceExt;
use kept_cuda::{Buffer, Device, DeviceError, GpuCache, Readback};
use kept_engine::backend::{Changed, Probabilities};
use kept_engine::{CompactCache, CompactLayer};
use kept_kernels::HeadShape;

use super::plan::DecodePlan;
use super::slot_table::{SlotTable, upload_rows};

/// What the host reads after each token for a method that changes rows.
pub(super) struct Observed {
    /// `[layers, q_heads, stride]`
    pub(super) probabilities: Buffer<f32>,
    /// As `probabilities`, on the host.
    host_probabilities: Vec<f32>,
    readback: Readback<f32>,
    stride: usize,
    /// `[layers, 2, kv_heads, head_dim]`: keys and values of the newest token.
    pub(super) rows: Buffer<f16>,
    /// As `rows`, on the host.
    host_rows: Vec<f16>,
    /// `[2, head_dim]`: key and value of one head.
    row: Vec<f32>,
    /// Changes of the method to a layer that the GPU does not have yet.
    pub(super) changed: Vec<Changed>,
}

impl Observed {
    pub(super) fn new(
        device: &Device,
        shape: HeadShape,
        gpu_plan: &DecodePlan,
    ) -> Result<Self, DeviceError> {
        let layers = gpu_plan.layers.len();
        let stride = gpu_plan.max_rows.max(gpu_plan.max_entries);
        let probabilities = layers * shape.q_heads * stride;
        let rows = layers * 2 * shape.kv_heads * shape.head_dim;
        Ok(Self {
            probabilities: device.alloc_uninit(probabilities)?,
            host_probabilities: vec![0.0; probabilities],
            readback: Readback::new(device, Readback::<f32>::PIECE.min(probabilities))?,
            stride,
            rows: device.alloc_uninit(rows)?,
            host_rows: vec![f16::ZERO; rows],
            row: vec![0.0; 2 * shape.head_dim],
            changed: Vec::new(),
        })
    }

    /// Downloads the probabilities, and the new rows to their slots in `cache`.
    pub(super) fn download(
        &mut self,
        slot_table: &SlotTable,
        cache: &mut CompactCache,
    ) -> Result<(), DeviceError> {
        self.readback
            .read(&self.probabilities, 0, &mut self.host_probabilities)?;
        self.rows.read(0, &mut self.host_rows)?;
        let dim = self.row.len() / 2;
        let layers = cache.layers.len();
        let new = self.host_rows.chunks_exact(self.host_rows.len() / layers);
        for (layer, (cached, new)) in cache.layers.iter_mut().zip(new).enumerate() {
            let (keys, values) = new.split_at(new.len() / 2);
            let (key, value) = self.row.split_at_mut(dim);
            for head in 0..cached.kv_heads() {
                let own = head * dim..(head + 1) * dim;
                keys[own.clone()].convert_to_f32_slice(key);
                values[own].convert_to_f32_slice(value);
                cached.write(head, slot_table.slot(layer, head), key, value);
            }
        }
        Ok(())
    }

    pub(super) fn probabilities(&self, layer: usize, q_heads: usize) -> Probabilities<'_> {
        let of_layer = q_heads * self.stride;
        Probabilities {
            values: &self.host_probabilities[layer * of_layer..][..of_layer],
            stride: self.stride,
        }
    }

    /// Passes the changes of the method to a layer on.
    pub(super) fn pass_changes(
        &mut self,
        layer: usize,
        cached: &CompactLayer,
        slot_table: &mut SlotTable,
        rows: &mut GpuCache,
    ) -> Result<(), DeviceError> {
        for change in self.changed.drain(..) {
            match change {
                Changed::Row(head, row) => {
                    let slot = row.0 as usize;
                    rows.change_row(layer, head, slot, &cached.keys, &cached.values)?;
                }
                Changed::Table => slot_table.table_changed(layer),
                // In a quantised cache, slots only swap physical rows: they are renumbered and no data moves.
                Changed::Rows if cached.keys.cache_type().is_quantised() => {
                    slot_table.physical_rows_changed(layer);
                }
                Changed::Rows => upload_rows(rows, layer, cached)?,
            }
        }
        Ok(())
    }
}
