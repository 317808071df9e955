//! Compact layers from a method's selection: rows stay on the GPU, or are downloaded and gathered on the host.

use kept_engine::backend::{GatherSource, GatherTask, PrefillPlan, RingGather};
use kept_engine::{CompactLayer, EngineError};
use kept_policies::{Pos, Retention};

use super::CudaPrefill;
use crate::decode::capacity_of;

impl CudaPrefill<'_> {
    /// The compact layer of a method's selection.
    pub(super) fn gather_selection(
        &mut self,
        task: &GatherTask<'_>,
    ) -> Result<CompactLayer, EngineError> {
        let (plan, selection) = (task.plan, task.selection);
        let (retention, value_merges) = (&selection.retention, &selection.value_merges);
        let value_sums = if value_merges.is_empty() {
            None
        } else {
            Some(self.download_value_sums(value_merges)?)
        };
        if plan.rows_on_gpu {
            assert!(
                value_sums.is_none() && plan.table.is_none(),
                "only copies stay on a GPU"
            );
            let source = GatherSource {
                keys: self.buffers.method_keys(),
                values: &self.buffers.values,
                unrotated: self.buffers.unrotated(),
                value_sums: None,
                merged: false,
            };
            let mut slots = Vec::new();
            let slot_table = task.gather(&source, |gather| gather.slot_table(&mut slots));
            self.copy_rows(&slot_table, &slots)?;
            return Ok(slot_table);
        }
        let merged = match retention {
            Retention::Merge(heads) => {
                // The merged rows overwrite tokens' own rows, so a later method must download those again.
                self.whole = false;
                Some(self.download_merged(heads, task.layer, plan.reassigns_positions())?)
            }
            _ => {
                let tokens = plan.layer_input_tokens(task.in_policy);
                self.download_retained(retention, tokens, plan.table.is_none())?;
                None
            }
        };
        let unrotated = self.buffers.unrotated() || merged.is_some();
        let (keys, values, gathered) = self.buffers.of_method();
        let source = GatherSource {
            keys,
            values,
            unrotated,
            value_sums: value_sums.as_deref(),
            merged: merged.is_some(),
        };
        let compact = task.gather(&source, |gather| gather.layer(gathered));
        Ok(match (plan.table, &merged) {
            (Some(table), Some(norms)) => {
                let norm = |head: usize, entry: usize, _| norms[head][entry];
                compact.with_norms(norm, retention, table)
            }
            (Some(table), None) => compact.with_table(keys, retention, table),
            (None, _) => compact,
        })
    }

    /// The compact layer of a sliding-window layer.
    pub(super) fn gather_ring(
        &mut self,
        plan: &PrefillPlan,
        window: usize,
    ) -> Result<CompactLayer, EngineError> {
        if plan.rows_on_gpu {
            let (keys, values) = (&self.buffers.keys, &self.buffers.values);
            let mut slots = Vec::new();
            let ring = RingGather::new(keys, values, plan, window).slot_table(&mut slots);
            self.copy_rows(&ring, &slots)?;
            return Ok(ring);
        }
        let n = plan.tokens();
        let last = n.saturating_sub(window) as u32..n as u32;
        let last = vec![last.map(Pos).collect(); self.heads.kv_heads];
        self.download_retained(&Retention::Keep(last), n, true)?;
        let (keys, values) = (&self.buffers.keys, &self.buffers.values);
        let gather = RingGather::new(keys, values, plan, window);
        Ok(gather.layer(&mut self.buffers.gathered))
    }

    /// Downloads the kept rows of the layer's `rows` rows, unless they are on the host. Downloads all of them unless
    /// the kept rows are mere copies (`copied`).
    fn download_retained(
        &mut self,
        retention: &Retention,
        rows: usize,
        copied: bool,
    ) -> Result<(), EngineError> {
        match retention {
            _ if self.whole => Ok(()),
            Retention::Keep(kept) if copied => Ok(self.download_kept(kept)?),
            _ => Ok(self.download_all(rows)?),
        }
    }

    /// Copies the rows `slots` of the current layer to the GPU cache, into the physical rows of `slot_table`.
    fn copy_rows(
        &mut self,
        slot_table: &CompactLayer,
        slots: &[Vec<u32>],
    ) -> Result<(), EngineError> {
        let (cache, staging) = self.to_cache.as_mut().expect("rows that stay on the GPU");
        let layer = cache.add_layer(&capacity_of(slot_table)?)?;
        let (keys, values) = (&self.keys, &self.values);
        Ok(cache.gather_rows(layer, keys, values, &slot_table.keys, slots, staging)?)
    }
}
