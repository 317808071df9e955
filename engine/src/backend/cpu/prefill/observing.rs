//! Attention of the last queries and of all queries, measured on the CPU.

use kept_kernels::{Normalise, Stop, Stopped, WindowScores};
use kept_policies::Softmax;

use super::CpuPrefill;
use crate::backend::measurements::LayerMeasurements;
use crate::backend::tasks::{Chunk, LastRows};
use crate::observe::{low_attention, weighted_window};
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
        let last = kept_kernels::LastRows {
            shape: self.heads,
            scale: attention_scale(self.model, self.weights.layer),
            queries: window_queries,
            keys: &self.buffers.keys,
            tokens,
        };
        let known = &self.buffers.log_sum_exp[..self.heads.q_heads * self.attended];
        match what {
            LastRows::Window(window) => {
                window_scores.resize(last.shape.q_heads * tokens, 0.0);
                let task = WindowScores {
                    normalise: match window.softmax {
                        Softmax::All => Normalise::All,
                        Softmax::Prefix => Normalise::Prefix,
                    },
                    log_sum_exp: known,
                    ..last.newest(window.rows).window()
                };
                kept_kernels::window_scores(&task, window_scores, stop)
            }
            LastRows::WeightedWindow(window, candidates) => {
                let out = &mut measured.weighted_window;
                weighted_window(&last, known, window, candidates, out, stop)
            }
            LastRows::LowAttention(rows) => low_attention(&last, rows, &mut measured.bits, stop),
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
        let last = kept_kernels::LastRows {
            shape: self.heads,
            scale: attention_scale(self.model, chunk.layer),
            queries: &buffers.q[..floats * self.heads.head_dim],
            keys: &buffers.keys,
            tokens: chunk.first + chunk.count,
        };
        let log_sum_exp = &mut buffers.log_sum_exp[..floats];
        if self.attended == 0 {
            kept_kernels::log_sum_exp(&last, log_sum_exp, stop)?;
        }
        kept_kernels::add_column_sums(&last, log_sum_exp, sums, stop)
    }
}
