//! Attention of the observation window and statistics of the queries, measured on the GPU.

use std::ops::Range;

use half::f16;
use kept_cuda::{Buffer, Device, DeviceError, QuerySums, Scores};
use kept_engine::backend::{MeasurementBuffers, counted_rows, same_moments};
use kept_kernels::{HeadShape, Normalise, words};
use kept_policies::ExpectedQueriesRequest;

use super::CudaPrefill;

/// One sum for each distinct request in `futures`.
pub(super) fn query_sums(
    device: &Device,
    heads: HeadShape,
    futures: impl Iterator<Item = ExpectedQueriesRequest>,
) -> Result<Vec<(ExpectedQueriesRequest, QuerySums)>, DeviceError> {
    let mut all: Vec<(ExpectedQueriesRequest, QuerySums)> = Vec::new();
    for future in futures {
        if !all.iter().any(|(other, _)| same_moments(*other, future)) {
            let (q_heads, dim) = (heads.q_heads, heads.head_dim);
            let sums = QuerySums::new(device, q_heads, dim, future.covariance)?;
            all.push((future, sums));
        }
    }
    Ok(all)
}

impl CudaPrefill<'_> {
    /// Attention of the last `rows` rows into `out [q_heads, tokens]`, with weights `[rows]` if given.
    pub(super) fn window_scores(
        &mut self,
        rows: usize,
        normalise: Normalise,
        tokens: usize,
        weights: Option<&[f32]>,
        out: &mut [f32],
    ) -> Result<(), DeviceError> {
        let device = self.device();
        let weights = weights.map(|w| device.copy_of(w)).transpose()?;
        let queries = self.last_queries(rows);
        let task = Scores {
            shape: self.heads,
            scale: self.scale,
            queries: &queries,
            rows,
            keys: &self.keys,
            tokens,
            normalise,
        };
        let parts = (&mut self.parts, &mut self.scores);
        device.window_scores(&task, weights.as_ref(), parts.0, parts.1, &mut self.seen)?;
        self.readback.read(&self.seen, 0, out)
    }

    /// Keys with less than average attention: `bits [kv_heads, tokens, words]` as in
    /// [`LowAttention`](kept_policies::LowAttention).
    pub(super) fn mark_low_attention(
        &mut self,
        rows: usize,
        tokens: usize,
        bits: &mut Vec<u64>,
    ) -> Result<(), DeviceError> {
        let device = self.device();
        let queries = self.last_queries(rows);
        let task = Scores {
            shape: self.heads,
            scale: self.scale,
            queries: &queries,
            rows,
            keys: &self.keys,
            tokens,
            normalise: Normalise::All,
        };
        let parts = (&mut self.parts, &mut self.scores);
        device.mark_below_average(&task, parts.0, parts.1, &mut self.marks)?;
        bits.clear();
        bits.resize(self.heads.kv_heads * tokens * words(rows), 0);
        self.marks.read(0, bits)
    }

    /// Adds the current queries (before RoPE) of the prompt's `rows`, as far as `future` counts them.
    pub(super) fn add_queries(
        &mut self,
        future: ExpectedQueriesRequest,
        rows: Range<usize>,
    ) -> Result<(), DeviceError> {
        let device = self.device();
        let mut all = self.query_sums.iter_mut();
        let own = all.find(|(other, _)| same_moments(*other, future));
        let (_, sums) = own.expect("sums that were asked for");
        device.add_queries(&self.queries, counted_rows(future, rows), sums)
    }

    /// Adds the sums since the last call, over the queries `rows` of the prompt, to `measured`.
    pub(super) fn download_query_sums(
        &mut self,
        rows: &Range<usize>,
        measured: &mut MeasurementBuffers,
    ) -> Result<(), DeviceError> {
        for (future, on_device) in &mut self.query_sums {
            if !counted_rows(*future, rows.clone()).is_empty() {
                measured.add_sums(*future, rows.clone(), |sums, products| {
                    on_device.take(sums, products)
                })?;
            }
        }
        Ok(())
    }

    fn last_queries(&self, rows: usize) -> Buffer<f16> {
        let width = self.q_width();
        let end = self.window_rows * width;
        self.window_queries.share(end - rows * width..end)
    }
}
