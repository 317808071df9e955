//! One chunk of tokens through one layer, on CPU or GPU.

use std::ops::Range;
use std::time::{Duration, Instant};

use kept_kernels::{HeadShape, PrefillAttention, Stop, prefill_attention};
use kept_models::LayerPass;
use kept_policies::Retention;

use super::{LayerTask, Reader};
use crate::observe::{LastQueries, LogSumExp};
use crate::prefill::gpu::GpuChunk;
use crate::shape::attention_scale;
use crate::{EngineError, Watch};

impl Reader<'_> {
    /// Downloads the first `rows` rows of the layer, if it is on a GPU.
    pub(super) fn download_rows(&mut self, rows: usize) -> Result<(), EngineError> {
        if let Some(gpu) = &mut self.gpu {
            let scratch = &mut self.scratch;
            gpu.download_rows(rows, &mut scratch.keys, &mut scratch.values)?;
        }
        Ok(())
    }

    /// Downloads all `n` rows of the layer, unless they are on the host.
    pub(super) fn download_all(&mut self, n: usize) -> Result<(), EngineError> {
        if !std::mem::replace(&mut self.whole, true) {
            self.download_rows(n)?;
        }
        Ok(())
    }

    /// Downloads the kept rows of the layer's `n` rows. Downloads all of them unless the kept rows are mere
    /// copies (`copied`).
    pub(super) fn download_kept(
        &mut self,
        retention: &Retention,
        n: usize,
        copied: bool,
    ) -> Result<(), EngineError> {
        if self.whole {
            return Ok(());
        }
        match (retention, &mut self.gpu) {
            (Retention::Keep(kept), Some(gpu)) if copied => {
                let scratch = &mut self.scratch;
                Ok(gpu.download_kept(kept, &mut scratch.keys, &mut scratch.values)?)
            }
            _ => self.download_all(n),
        }
    }

    /// Downloads the sums over the queries `rows`, accumulated since the last call.
    pub(super) fn download_query_sums(&mut self, rows: &Range<usize>) -> Result<(), EngineError> {
        if let Some(gpu) = &mut self.gpu {
            gpu.download_query_sums(rows, &mut self.scratch.measured)?;
        }
        Ok(())
    }

    /// Downloads the attention sums of all rows.
    pub(super) fn download_column_sums(&mut self) -> Result<(), EngineError> {
        if let Some(gpu) = &mut self.gpu {
            gpu.download_column_sums(&mut self.scratch.column_sums)?;
        }
        Ok(())
    }

    /// [`Reader::read_chunk`] on a GPU.
    pub(super) fn read_chunk_on_gpu(
        &mut self,
        task: &LayerTask,
        rows: Range<usize>,
        watch: &mut dyn Watch,
        stop: &Stop,
    ) -> Result<(), EngineError> {
        let gpu = self.gpu.as_mut().expect("a reading on a GPU");
        let scratch = &mut self.scratch;
        let (first, count) = (rows.start, rows.len());
        stop.check()?;
        let alive = self.alive.positions();
        // A chunk ends at the document's end.
        let (known, document) = (self.prefix.known(), self.prefix.tokens());
        let next = if rows.end < document {
            document.min(rows.end + self.sizes[0].chunk)
        } else {
            rows.end + self.sizes[0].chunk
        };
        let chunk = GpuChunk {
            layer: task.layer,
            first,
            at: first - known,
            count,
            next: rows.end - known..task.n.min(next) - known,
            positions: alive.map(|positions| &positions[rows.clone()]),
            window: self.of.model.config().kinds[task.layer].window,
            // Only the last row of the last layer's output is needed.
            needed: if task.last_layer && !self.of.every_row {
                usize::from(rows.end == task.n)
            } else {
                count
            },
            observed: rows.end - task.window_from.clamp(first, rows.end),
            column_sums: task.column_sums,
        };
        gpu.project(&chunk, scratch.measured.futures())?;
        gpu.store(&chunk)?;
        let writes = self.prefix.writes() && first < document;
        if writes {
            gpu.pack(&chunk)?;
        }
        if self.prefix.wants_queries(&rows) {
            let q = &mut scratch.q[..count * self.heads.q_heads * self.heads.head_dim];
            gpu.download_queries(count, q)?;
            self.prefix.store_queries(first, q);
        }
        gpu.attend(&chunk)?;
        // Written to the vault while the GPU computes: the previous chunk, and at the document's end this
        // chunk too.
        let later = usize::from(writes && rows.end < document);
        while let Some((first, packed)) = gpu.packed(later)? {
            self.prefix.write_rows(first, packed);
        }
        gpu.wait()?;
        self.progress.add_rows(count, watch);
        Ok(())
    }

    /// Runs the tokens `rows` through a layer. All earlier tokens have passed it or have known rows. Returns
    /// the time spent measuring.
    pub(super) fn read_chunk(
        &mut self,
        task: &LayerTask,
        pass: &mut LayerPass<'_>,
        rows: Range<usize>,
        watch: &mut dyn Watch,
        stop: &Stop,
    ) -> Result<Duration, EngineError> {
        let mut measuring = self.project_chunk(task, pass, &rows, stop)?;
        self.attend_chunk(task, pass, &rows, stop)?;
        if task.column_sums {
            let started = Instant::now();
            self.add_column_sums(&rows, stop)?;
            measuring += started.elapsed();
        }
        self.progress.add_rows(rows.len(), watch);
        Ok(measuring)
    }

    /// Computes q, k and v of the tokens `rows`, applies RoPE and stores keys, values and the queries of the
    /// observation window. Returns the time spent measuring.
    fn project_chunk(
        &mut self,
        task: &LayerTask,
        pass: &mut LayerPass<'_>,
        rows: &Range<usize>,
        stop: &Stop,
    ) -> Result<Duration, EngineError> {
        let HeadShape {
            q_heads,
            kv_heads,
            head_dim: dim,
        } = self.heads;
        let (first, count) = (rows.start, rows.len());
        let scratch = &mut self.scratch;
        let q = &mut scratch.q[..count * q_heads * dim];
        let k = &mut scratch.k[..count * kv_heads * dim];
        let v = &mut scratch.v[..count * kv_heads * dim];
        let width = self.of.model.config().width;
        let at = (first - self.prefix.known()) * width;
        pass.project(&self.residual[at..at + count * width], q, k, v, stop)?;
        let started = Instant::now();
        scratch.measured.add(q, first);
        let measuring = started.elapsed();
        match (
            self.of.rope.of_layer(task.layer),
            self.alive.positions(),
            &mut self.gathered_rope,
        ) {
            (None, ..) => {}
            (Some(rope), Some(alive), Some(gathered_rope)) => {
                let positions = alive[rows.clone()].iter();
                gathered_rope.set_positions(rope, positions.map(|&p| p as usize));
                gathered_rope.rotate(q, q_heads, 0..count);
                gathered_rope.rotate(k, kv_heads, 0..count);
            }
            (Some(rope), ..) => {
                rope.rotate_rows(q, q_heads, first);
                rope.rotate_rows(k, kv_heads, first);
            }
        }
        self.prefix.round(first, k, dim);
        self.prefix.round(first, v, dim);
        scratch.keys.copy_in(first, k);
        scratch.values.copy_in(first, v);
        self.prefix.store_queries(first, q);
        if rows.end > task.window_from {
            let skip = task.window_from.saturating_sub(first) * q_heads * dim;
            scratch.window_queries.extend_from_slice(&q[skip..]);
        }
        Ok(measuring)
    }

    /// Attention and the rest of the layer, for those of the tokens `rows` whose output is needed.
    fn attend_chunk(
        &mut self,
        task: &LayerTask,
        pass: &mut LayerPass<'_>,
        rows: &Range<usize>,
        stop: &Stop,
    ) -> Result<(), EngineError> {
        let model = self.of.model;
        let (first, count) = (rows.start, rows.len());
        let q_width = self.heads.q_heads * self.heads.head_dim;
        let scratch = &mut self.scratch;
        // Only the last row of the last layer's output is needed.
        let needed = match task.last_layer && !self.of.every_row {
            false => rows.clone(),
            true if rows.end == task.n => task.n - 1..task.n,
            true => first..first,
        };
        // The buffer is allocated only if a measurement uses it.
        let floats = (self.heads.q_heads * count).min(scratch.log_sum_exp.len());
        let known = needed.len() == count && floats > 0;
        self.attended = if known { count } else { 0 };
        if needed.is_empty() {
            return Ok(());
        }
        let out = &mut scratch.attention[..needed.len() * q_width];
        let attention = PrefillAttention {
            shape: self.heads,
            scale: attention_scale(model),
            window: model.config().kinds[task.layer].window,
            queries: &scratch.q[(needed.start - first) * q_width..(needed.end - first) * q_width],
            first: needed.start,
            keys: &scratch.keys,
            values: &scratch.values,
        };
        let log_sum_exp = known.then_some(&mut scratch.log_sum_exp[..floats]);
        prefill_attention(&attention, out, log_sum_exp, stop)?;
        let width = model.config().width;
        let at = (needed.start - self.prefix.known()) * width;
        let stream = &mut self.residual[at..at + needed.len() * width];
        Ok(pass.finish(out, stream, stop)?)
    }

    /// Adds the attention of the tokens `rows` to the column sums.
    fn add_column_sums(&mut self, rows: &Range<usize>, stop: &Stop) -> Result<(), EngineError> {
        let scratch = &mut self.scratch;
        let floats = rows.len() * self.heads.q_heads;
        let last = LastQueries {
            shape: self.heads,
            scale: attention_scale(self.of.model),
            queries: &scratch.q[..floats * self.heads.head_dim],
            keys: &scratch.keys,
            tokens: rows.end,
            log_sum_exp: &[],
        };
        let log_sum_exp = &mut scratch.log_sum_exp[..floats];
        let log_sum_exp = if self.attended > 0 {
            LogSumExp::Known(log_sum_exp)
        } else {
            LogSumExp::Unknown(log_sum_exp)
        };
        Ok(last.add_column_sums(log_sum_exp, &mut scratch.column_sums, stop)?)
    }
}
