//! Measurements of one layer for some methods: weighted windows, column sums, low attention, expected
//! queries.
//!
//! The plain observation window is computed by `kept_kernels::window_scores` directly; methods make the
//! decisions.

mod host_rows;
mod moments;

use std::ops::Range;

use kept_kernels::{
    HeadShape, LastRows, Normalise, RowStore, Scale, Stop, Stopped, WindowScores, add_column_sums,
    log_sum_exp, mark_below_average, window_scores, window_scores_among, words,
};
use kept_models::RopeTable;
use kept_policies::{ExpectedQueries, ExpectedQueriesRequest, WeightedWindow};

pub use host_rows::{HostRows, Pool};
pub use moments::{MeanRotation, QueryMoments};

/// The last queries of a prompt and all its keys.
#[derive(Debug, Clone, Copy)]
pub struct LastQueries<'a> {
    /// Heads of the layer.
    pub shape: HeadShape,
    /// Scale of the attention logits.
    pub scale: Scale<'a>,
    /// `[rows, q_heads, head_dim]`, rotated: the last rows of the prompt.
    pub queries: &'a [f32],
    /// Rotated keys, row == position.
    pub keys: &'a RowStore,
    /// Prompt length n.
    pub tokens: usize,
    /// `[q_heads, k]`: log-sum-exp of the last k rows, if attention has computed it.
    pub log_sum_exp: &'a [f32],
}

impl<'a> LastQueries<'a> {
    /// The last `rows` of these queries.
    pub fn last(&self, rows: usize) -> &'a [f32] {
        let width = self.shape.q_heads * self.shape.head_dim;
        &self.queries[self.queries.len() - rows * width..]
    }

    fn scores(
        &self,
        queries: &[f32],
        weights: Option<&[f32]>,
        out: &mut Vec<f32>,
        stop: &Stop,
    ) -> Result<(), Stopped> {
        out.clear();
        out.resize(self.shape.q_heads * self.tokens, 0.0);
        window_scores(&self.window(queries, weights), out, stop)
    }

    /// The attention of `queries`, the last ones, over all keys; row i has weight `weights[i]`.
    pub(crate) fn window<'w>(
        &'w self,
        queries: &'w [f32],
        weights: Option<&'w [f32]>,
    ) -> WindowScores<'w> {
        WindowScores {
            shape: self.shape,
            scale: self.scale,
            queries,
            keys: self.keys,
            tokens: self.tokens,
            normalise: Normalise::All,
            row_weights: weights,
            log_sum_exp: self.log_sum_exp,
        }
    }

    /// Writes the attention of the last rows to `out [q_heads, n]`, weighted towards the newest
    /// ([`WeightedWindow`]).
    ///
    /// # Errors
    /// If `stop` was requested.
    pub fn weighted_window(
        &self,
        weighted_window: WeightedWindow,
        out: &mut Vec<f32>,
        stop: &Stop,
    ) -> Result<(), Stopped> {
        let weights = ramp_weights(weighted_window);
        self.scores(self.last(weighted_window.rows), Some(&weights), out, stop)
    }

    /// As [`LastQueries::weighted_window`], but only for the keys `candidates`, ascending and before those rows; 0
    /// for other keys.
    ///
    /// # Errors
    /// If `stop` was requested.
    pub fn ramp_among(
        &self,
        weighted_window: WeightedWindow,
        candidates: &[u32],
        out: &mut Vec<f32>,
        stop: &Stop,
    ) -> Result<(), Stopped> {
        let weights = ramp_weights(weighted_window);
        out.clear();
        out.resize(self.shape.q_heads * self.tokens, 0.0);
        let task = self.window(self.last(weighted_window.rows), Some(&weights));
        window_scores_among(&task, candidates, out, stop)
    }

    /// Writes `bits [kv_heads, n, words]` as in [`LowAttention`](kept_policies::LowAttention), for the last
    /// `rows` queries.
    ///
    /// # Errors
    /// If `stop` was requested.
    pub fn low_attention(
        &self,
        rows: usize,
        bits: &mut Vec<u64>,
        stop: &Stop,
    ) -> Result<(), Stopped> {
        bits.clear();
        bits.resize(self.shape.kv_heads * self.tokens * words(rows), 0);
        mark_below_average(&self.last_rows(self.last(rows)), bits, stop)
    }

    /// Adds the attention of `queries` to every key to `sums [q_heads, columns]`. `known` is the queries'
    /// log-sum-exp.
    ///
    /// # Errors
    /// If `stop` was requested.
    pub fn add_column_sums(
        &self,
        known: LogSumExp<'_>,
        sums: &mut [f32],
        stop: &Stop,
    ) -> Result<(), Stopped> {
        let task = self.last_rows(self.queries);
        let known = match known {
            LogSumExp::Known(known) => known,
            LogSumExp::Unknown(scratch) => {
                log_sum_exp(&task, scratch, stop)?;
                &*scratch
            }
        };
        add_column_sums(&task, known, sums, stop)
    }

    fn last_rows(&self, queries: &'a [f32]) -> LastRows<'a> {
        LastRows {
            shape: self.shape,
            scale: self.scale,
            queries,
            keys: self.keys,
            tokens: self.tokens,
        }
    }
}

/// `[rows]`: weight of each of the last rows.
pub fn ramp_weights(weighted_window: WeightedWindow) -> Vec<f32> {
    let last = (weighted_window.rows - 1).max(1) as f32;
    (0..weighted_window.rows)
        .map(|row| {
            (1.0 + (weighted_window.newest - 1.0) * row as f32 / last) / weighted_window.rows as f32
        })
        .collect()
}

/// The log-sum-exp of query rows, `[q_heads, rows]`.
pub enum LogSumExp<'a> {
    /// As attention computed it.
    Known(&'a [f32]),
    /// Not computed; a buffer for it.
    Unknown(&'a mut [f32]),
}

/// Results and buffers of one layer's measurements, allocated once.
#[derive(Debug, Default)]
pub struct MeasurementBuffers {
    /// `[q_heads, n]`
    pub weighted_window: Vec<f32>,
    /// `[kv_heads, n, words]`
    pub bits: Vec<u64>,
    /// Statistics of the queries so far, one for each distinct request.
    moments: Vec<(ExpectedQueriesRequest, QueryMoments)>,
    /// Mean rotation over a number of positions after the document. The document's end is the same for all
    /// requests of a prompt.
    mean_rotations: Vec<(usize, MeanRotation)>,
}

impl MeasurementBuffers {
    /// Begins a layer with these requests.
    pub fn start(
        &mut self,
        shape: HeadShape,
        requests: impl Iterator<Item = ExpectedQueriesRequest>,
    ) {
        let mut wanted = 0;
        for request in requests {
            let moments = self.moments[..wanted].iter();
            // Requests that differ only in the positions share statistics.
            if moments
                .clone()
                .any(|(other, _)| same_moments(*other, request))
            {
                continue;
            }
            if self.moments.len() == wanted {
                self.moments.push((request, QueryMoments::default()));
            }
            let (asked, moments) = &mut self.moments[wanted];
            *asked = request;
            moments.start(shape, request);
            wanted += 1;
        }
        self.moments.truncate(wanted);
    }

    /// Adds a chunk's `queries [rows, q_heads, head_dim]` before RoPE, from position `first` on, as far as
    /// each request counts them.
    pub fn add(&mut self, queries: &[f32], first: usize) {
        for (request, moments) in &mut self.moments {
            let width = moments.width();
            let rows = counted_rows(*request, first..first + queries.len() / width);
            moments.add(&queries[rows.start * width..rows.end * width]);
        }
    }

    /// The requests of this layer.
    pub fn requests(&self) -> impl Iterator<Item = ExpectedQueriesRequest> {
        self.moments.iter().map(|(request, _)| *request)
    }

    fn moments_of(&mut self, request: ExpectedQueriesRequest) -> Option<&mut QueryMoments> {
        let mut moments = self.moments.iter_mut();
        let found = moments.find(|(other, _)| same_moments(*other, request));
        found.map(|(_, moments)| moments)
    }

    /// Adds sums over the queries `rows` of the prompt that `request` counts. `with` receives the current sums
    /// of queries and of their products and adds to them.
    pub fn add_sums<E>(
        &mut self,
        request: ExpectedQueriesRequest,
        rows: Range<usize>,
        with: impl FnOnce(&mut [f64], &mut [f64]) -> Result<(), E>,
    ) -> Result<(), E> {
        match self.moments_of(request) {
            Some(moments) => moments.add_sums(counted_rows(request, rows).len(), with),
            None => Ok(()),
        }
    }

    /// Restores the sums over the first `rows` tokens, as returned by [`MeasurementBuffers::sums`].
    pub fn restore(&mut self, request: ExpectedQueriesRequest, rows: usize, sums: &[f64]) {
        if let Some(moments) = self.moments_of(request) {
            moments.restore(rows.saturating_sub(request.skip), sums);
        }
    }

    /// Sums over the queries after the first `skip` tokens, with or without `products`; empty if not
    /// requested.
    pub fn sums(&self, skip: usize, products: bool) -> Vec<f64> {
        let mut moments = self.moments.iter();
        let found =
            moments.find(|(request, _)| (request.skip, request.covariance) == (skip, products));
        found.map_or_else(Vec::new, |(_, moments)| moments.sums())
    }

    /// Computes the result of `request` for [`MeasurementBuffers::found`]. `rope` is the model's table, if it rotates
    /// this layer.
    pub fn finish(&mut self, request: ExpectedQueriesRequest, rope: Option<&RopeTable>) {
        if let Some(rope) = rope
            && !self
                .mean_rotations
                .iter()
                .any(|(p, _)| *p == request.positions)
        {
            let rotation = MeanRotation::new(rope, request.until, request.positions);
            self.mean_rotations.push((request.positions, rotation));
        }
        let mut rotations = self.mean_rotations.iter().filter(|_| rope.is_some());
        let rotation = rotations.find(|(p, _)| *p == request.positions);
        let mut moments = self.moments.iter_mut();
        if let Some((_, moments)) = moments.find(|(other, _)| same_moments(*other, request)) {
            moments.finish(rotation.map(|(_, rotation)| rotation));
        }
    }

    /// The result that [`MeasurementBuffers::finish`] computed for `request`.
    pub fn found(&self, request: ExpectedQueriesRequest) -> Option<ExpectedQueries<'_>> {
        let mut moments = self.moments.iter();
        let found = moments.find(|(other, _)| same_moments(*other, request));
        found.map(|(_, moments)| moments.found())
    }
}

/// Which of the queries `rows` of a prompt `request` counts, relative to the first of them.
pub fn counted_rows(request: ExpectedQueriesRequest, rows: Range<usize>) -> Range<usize> {
    let row = |position: usize| position.clamp(rows.start, rows.end) - rows.start;
    let (skip, end) = (row(request.skip), row(request.until));
    skip.min(end)..end
}

/// Whether two requests need the same statistics.
pub fn same_moments(a: ExpectedQueriesRequest, b: ExpectedQueriesRequest) -> bool {
    (a.skip, a.until, a.covariance) == (b.skip, b.until, b.covariance)
}

/// A layer's keys and values on the host, for methods' computations.
pub(crate) fn host_rows<'a>(keys: &'a RowStore, values: &'a RowStore) -> HostRows<'a> {
    HostRows {
        keys: keys.as_slice(),
        values: values.as_slice(),
        kv_heads: keys.kv_heads(),
        head_dim: keys.head_dim(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: HeadShape = HeadShape {
        q_heads: 2,
        kv_heads: 1,
        head_dim: 2,
    };

    #[test]
    fn low_attention_is_marked_per_query_row() {
        // Keys on one axis: the first query attends to key 0 more than to key 1, the second equally to all
        // three keys.
        let mut keys = RowStore::uniform(1, 3, 2);
        keys.row_mut(0, 0).copy_from_slice(&[4.0, 0.0]);
        let last = LastQueries {
            shape: SHAPE,
            scale: 1.0.into(),
            queries: &[1.0, 0.0, 1.0, 0.0, -1.0, 0.0, -1.0, 0.0],
            keys: &keys,
            tokens: 3,
            log_sum_exp: &[],
        };
        let mut bits = Vec::new();
        last.low_attention(2, &mut bits, &Stop::new())
            .expect("not stopped");
        assert_eq!(bits, [0b10, 0b01, 0b00], "key 2 is not there for row 0");
    }

    #[test]
    fn weighted_window_favours_the_newest_row() {
        let keys = RowStore::uniform(1, 4, 2);
        let last = LastQueries {
            shape: SHAPE,
            scale: 1.0.into(),
            queries: &[0.0; 12],
            keys: &keys,
            tokens: 4,
            log_sum_exp: &[],
        };
        let weighted_window = WeightedWindow {
            rows: 3,
            newest: 1.2,
        };
        let mut out = Vec::new();
        last.weighted_window(weighted_window, &mut out, &Stop::new())
            .expect("not stopped");
        let expected = (1.0 / 2.0 + 1.1 / 3.0 + 1.2 / 4.0) / 3.0;
        assert!((out[0] - expected).abs() < 1e-6, "{out:?}");
        assert!((out[3] - 1.2 / 4.0 / 3.0).abs() < 1e-6, "{out:?}");
    }
}
