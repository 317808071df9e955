//! What the last rows of a layer see, and what its queries are on the whole, measured on the GPU that read it.

use std::ops::Range;

use half::f16;
use kept_cuda::{Buffer, Device, DeviceError, QuerySums, Scores};
use kept_kernels::{HeadShape, Normalise, words};
use kept_policies::{Future, Softmax, WeightedWindow, Window};

use super::GpuReading;
use crate::observe::{Measured, counted, same_moments};

/// Sums for each of `futures` that are not the same.
pub(super) fn query_sums(
    device: &Device,
    heads: HeadShape,
    futures: impl Iterator<Item = Future>,
) -> Result<Vec<(Future, QuerySums)>, DeviceError> {
    let mut all: Vec<(Future, QuerySums)> = Vec::new();
    for future in futures {
        if !all.iter().any(|(other, _)| same_moments(*other, future)) {
            let shape = (heads.q_heads, heads.head_dim);
            all.push((future, QuerySums::new(device, shape, future.covariance)?));
        }
    }
    Ok(all)
}

impl GpuReading<'_> {
    /// `out [q_heads, tokens]`: what the window sees.
    pub(in crate::prefill) fn window(
        &mut self,
        window: Window,
        tokens: usize,
        out: &mut [f32],
    ) -> Result<(), DeviceError> {
        let normalise = match window.softmax {
            Softmax::All => Normalise::All,
            Softmax::Prefix => Normalise::Prefix,
        };
        self.look((window.rows, normalise), tokens, None, out)
    }

    /// `out [q_heads, tokens]`: what the last rows see, the newest weighing most.
    pub(in crate::prefill) fn weighted_window(
        &mut self,
        weighted_window: WeightedWindow,
        weights: &[f32],
        tokens: usize,
        out: &mut [f32],
    ) -> Result<(), DeviceError> {
        self.look(
            (weighted_window.rows, Normalise::All),
            tokens,
            Some(weights),
            out,
        )
    }

    fn look(
        &mut self,
        (rows, normalise): (usize, Normalise),
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
        self.bringing.read(&self.seen, 0, out)
    }

    /// `bits [kv_heads, tokens, words]` as [`LowAttention`](kept_policies::BelowAverage) describes them.
    pub(in crate::prefill) fn low_attention(
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

    /// Adds the queries `rows` of the prompt, which are there before RoPE: those of them that `future` counts.
    pub(super) fn add_queries(
        &mut self,
        future: Future,
        rows: Range<usize>,
    ) -> Result<(), DeviceError> {
        let device = self.device();
        let mut all = self.query_sums.iter_mut();
        let own = all.find(|(other, _)| same_moments(*other, future));
        let (_, sums) = own.expect("sums that were asked for");
        device.add_queries(&self.queries, counted(future, rows), sums)
    }

    /// What the queries `rows` of the prompt came to, all of those since it was brought last, is added to `measured`.
    pub(in crate::prefill) fn bring_query_sums(
        &mut self,
        rows: &Range<usize>,
        measured: &mut Measured,
    ) -> Result<(), DeviceError> {
        for (future, there) in &mut self.query_sums {
            if !counted(*future, rows.clone()).is_empty() {
                measured.add_sums(*future, rows.clone(), |sums, products| {
                    there.take(sums, products)
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
