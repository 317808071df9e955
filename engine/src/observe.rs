//! Measurements of one layer for some methods: weighted windows, column sums, low attention, expected
//! queries.
//!
//! The plain observation window is computed by `kept_kernels::window_scores` directly; methods make the
//! decisions.

mod host_rows;
mod moments;

use std::ops::Range;

use kept_kernels::{
    HeadShape, LastRows, RowStore, Stop, Stopped, WindowScores, mark_below_average, window_scores,
    window_scores_among, words,
};
use kept_models::RopeTable;
use kept_policies::{ExpectedQueries, ExpectedQueriesRequest, WeightedWindow};

pub use host_rows::{HostRows, Pool};
pub use moments::{MeanRotation, QueryMoments};

/// Writes the attention of the last rows to `out [q_heads, n]`, weighted towards the newest ([`WeightedWindow`]): to all
/// keys, or only to `candidates`, ascending and before those rows, and 0 to the other keys. `known` as in
/// [`WindowScores::log_sum_exp`].
///
/// # Errors
/// If `stop` was requested.
pub fn weighted_window(
    last: &LastRows<'_>,
    known: &[f32],
    window: WeightedWindow,
    candidates: Option<&[u32]>,
    out: &mut Vec<f32>,
    stop: &Stop,
) -> Result<(), Stopped> {
    out.clear();
    out.resize(last.shape.q_heads * last.tokens, 0.0);
    let task = WindowScores {
        row_weights: Some(&ramp_weights(window)),
        log_sum_exp: known,
        ..last.newest(window.rows).window()
    };
    match candidates {
        Some(candidates) => window_scores_among(&task, candidates, out, stop),
        None => window_scores(&task, out, stop),
    }
}

/// Writes `bits [kv_heads, n, words]` as in [`LowAttention`](kept_policies::LowAttention), for the last `rows`
/// queries.
///
/// # Errors
/// If `stop` was requested.
pub fn low_attention(
    last: &LastRows<'_>,
    rows: usize,
    bits: &mut Vec<u64>,
    stop: &Stop,
) -> Result<(), Stopped> {
    bits.clear();
    bits.resize(last.shape.kv_heads * last.tokens * words(rows), 0);
    mark_below_average(&last.newest(rows), bits, stop)
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

    /// Computes the result of `request` for [`MeasurementBuffers::found`]. `rope` is the layer's table, if the model
    /// rotates it.
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
            moments.finish(rotation.map(|(_, rotation)| rotation).zip(rope));
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

    const SHAPE: HeadShape = HeadShape::new(2, 1, 2);

    #[test]
    fn low_attention_is_marked_per_query_row() {
        // Keys on one axis: the first query attends to key 0 more than to key 1, the second equally to all
        // three keys.
        let mut keys = RowStore::uniform(1, 3, 2);
        keys.row_mut(0, 0).copy_from_slice(&[4.0, 0.0]);
        let last = LastRows {
            shape: SHAPE,
            scale: 1.0.into(),
            queries: &[1.0, 0.0, 1.0, 0.0, -1.0, 0.0, -1.0, 0.0],
            keys: &keys,
            tokens: 3,
        };
        let mut bits = Vec::new();
        low_attention(&last, 2, &mut bits, &Stop::new()).expect("not stopped");
        assert_eq!(bits, [0b10, 0b01, 0b00], "key 2 is not there for row 0");
    }

    #[test]
    fn weighted_window_favours_the_newest_row() {
        let keys = RowStore::uniform(1, 4, 2);
        let last = LastRows {
            shape: SHAPE,
            scale: 1.0.into(),
            queries: &[0.0; 12],
            keys: &keys,
            tokens: 4,
        };
        let window = WeightedWindow {
            rows: 3,
            newest: 1.2,
        };
        let mut out = Vec::new();
        weighted_window(&last, &[], window, None, &mut out, &Stop::new()).expect("not stopped");
        let expected = (1.0 / 2.0 + 1.1 / 3.0 + 1.2 / 4.0) / 3.0;
        assert!((out[0] - expected).abs() < 1e-6, "{out:?}");
        assert!((out[3] - 1.2 / 4.0 / 3.0).abs() < 1e-6, "{out:?}");
    }
}
