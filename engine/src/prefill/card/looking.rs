//! What the last rows of a layer see, measured on the card that read it.

use half::f16;
use kept_cuda::{Buffer, DeviceError, Scores};
use kept_kernels::{Normalise, words};
use kept_policies::{Ramp, Softmax, Window};

use super::CardReading;

impl CardReading<'_> {
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
    pub(in crate::prefill) fn ramp(
        &mut self,
        ramp: Ramp,
        weights: &[f32],
        tokens: usize,
        out: &mut [f32],
    ) -> Result<(), DeviceError> {
        self.look((ramp.rows, Normalise::All), tokens, Some(weights), out)
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

    /// `bits [kv_heads, tokens, words]` as [`BelowAverage`](kept_policies::BelowAverage) describes them.
    pub(in crate::prefill) fn below(
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

    fn last_queries(&self, rows: usize) -> Buffer<f16> {
        let width = self.q_width();
        let end = self.window_rows * width;
        self.window_queries.share(end - rows * width..end)
    }
}
