//! Attention of the last queries and of all queries, measured on the CPU.

use kept_kernels::{Normalise, Stop, Stopped, WindowScores};
use kept_policies::Softmax;

use super::CpuPrefill;
use crate::backend::measurements::LayerMeasurements;
use crate::backend::tasks::{Chunk, LastRows};
use crate::observe::{LastQueries, LogSumExp};
use crate::shape::attention_scale;

impl CpuPrefill<'_> {
    /// Measures attention of the last queries over the layer's `tokens` rows.
    pub(super) fn measure(
        &self,
        what: LastRows<'_>,
        tokens: usize,
        measurements: &mut LayerMeasurements,
        stop: &Stop,
    ) -> Result<(), Stopped> {
        let LayerMeasurements {
            window_queries,
            window_scores,
            measured,
            ..
        } = measurements;
        let last = self.last_queries(window_queries, tokens);
        match what {
            LastRows::Window(window) => {
                window_scores.resize(last.shape.q_heads * tokens, 0.0);
                let task = WindowScores {
                    normalise: match window.softmax {
                        Softmax::All => Normalise::All,
                        Softmax::Prefix => Normalise::Prefix,
                    },
                    ..last.window(last.last(window.rows), None)
                };
                kept_kernels::window_scores(&task, window_scores, stop)
            }
            LastRows::WeightedWindow(window, Some(candidates)) => {
                last.ramp_among(window, candidates, &mut measured.weighted_window, stop)
            }
            LastRows::WeightedWindow(window, None) => {
                last.weighted_window(window, &mut measured.weighted_window, stop)
            }
            LastRows::LowAttention(rows) => last.low_attention(rows, &mut measured.bits, stop),
        }
    }

    /// The last queries of the prompt and the layer's keys.
    fn last_queries<'q>(&'q self, queries: &'q [f32], tokens: usize) -> LastQueries<'q> {
        LastQueries {
            shape: self.heads,
            scale: attention_scale(self.model, self.weights.layer),
            queries,
            keys: &self.buffers.keys,
            tokens,
            log_sum_exp: &self.buffers.log_sum_exp[..self.heads.q_heads * self.attended],
        }
    }

    /// Adds the attention of the chunk's rows to the column sums.
    pub(super) fn add_column_sums(
        &mut self,
        chunk: &Chunk<'_>,
        sums: &mut [f32],
        stop: &Stop,
    ) -> Result<(), Stopped> {
        let buffers = &mut self.buffers;
        let floats = chunk.count * self.heads.q_heads;
        let last = LastQueries {
            shape: self.heads,
            scale: attention_scale(self.model, chunk.layer),
            queries: &buffers.q[..floats * self.heads.head_dim],
            keys: &buffers.keys,
            tokens: chunk.first + chunk.count,
            log_sum_exp: &[],
        };
        let log_sum_exp = &mut buffers.log_sum_exp[..floats];
        let log_sum_exp = if self.attended > 0 {
            LogSumExp::Known(log_sum_exp)
        } else {
            LogSumExp::Unknown(log_sum_exp)
        };
        last.add_column_sums(log_sum_exp, sums, stop)
    }
}
