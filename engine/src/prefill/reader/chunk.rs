//! One chunk of tokens through one layer, on CPU or GPU.

use std::ops::Range;
use std::time::{Duration, Instant};

use kept_kernels::{PrefillAttention, Stop, prefill_attention};
use kept_models::LayerPass;
use kept_policies::Retention;

use super::{Asked, Read, Reader};
use crate::observe::{LastQueries, LogSumExp};
use crate::prefill::gpu::GpuChunk;
use crate::shape::attention_scale;
use crate::{EngineError, Watch};

impl Reader<'_> {
    /// Downloads the first `rows` rows of the layer, if it is on a GPU.
    pub(super) fn bring(&mut self, rows: usize) -> Result<(), EngineError> {
        if let Some(gpu) = &mut self.gpu {
            let scratch = &mut self.scratch;
            gpu.bring_rows(rows, &mut scratch.keys, &mut scratch.values)?;
        }
        Ok(())
    }

    /// Downloads all `n` rows of the layer, unless they are on the host.
    pub(super) fn bring_all(&mut self, n: usize) -> Result<(), EngineError> {
        if !std::mem::replace(&mut self.whole, true) {
            self.bring(n)?;
        }
        Ok(())
    }

    /// Downloads the kept rows of the layer's `n` rows. Downloads all of them unless the kept rows are mere
    /// copies (`copied`).
    pub(super) fn bring_kept(
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
                Ok(gpu.bring_kept(kept, &mut scratch.keys, &mut scratch.values)?)
            }
            _ => self.bring_all(n),
        }
    }

    /// Downloads the sums over the queries `rows`, accumulated since the last call.
    pub(super) fn bring_query_sums(&mut self, rows: &Range<usize>) -> Result<(), EngineError> {
        if let Some(gpu) = &mut self.gpu {
            gpu.bring_query_sums(rows, &mut self.scratch.measured)?;
        }
        Ok(())
    }

    /// Downloads the attention sums of all rows.
    pub(super) fn bring_column_sums(&mut self) -> Result<(), EngineError> {
        if let Some(gpu) = &mut self.gpu {
            gpu.bring_column_sums(&mut self.scratch.column_sums)?;
        }
        Ok(())
    }

    /// [`Reader::read_chunk`] on a GPU.
    pub(super) fn read_chunk_on_gpu(
        &mut self,
        layer: usize,
        rows: Range<usize>,
        asked: &Asked,
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
            layer,
            first,
            at: first - known,
            count,
            next: rows.end - known..asked.n.min(next) - known,
            positions: alive.map(|positions| &positions[rows.clone()]),
            window: self.of.model.config().kinds[layer].window,
            // Only the last row of the last layer's output is needed.
            needed: if asked.last_layer && !self.of.every_row {
                usize::from(rows.end == asked.n)
            } else {
                count
            },
            observed: rows.end - asked.window_from.clamp(first, rows.end),
            column_sums: asked.column_sums,
        };
        gpu.project(&chunk, scratch.measured.futures())?;
        gpu.store(&chunk)?;
        let leaves = self.prefix.writes() && first < document;
        if leaves {
            gpu.pack(&chunk)?;
        }
        if self.prefix.wants_queries(&rows) {
            let q = &mut scratch.q[..count * self.heads.q_heads * self.heads.head_dim];
            gpu.bring_queries(count, q)?;
            self.prefix.hear_queries(first, q);
        }
        gpu.attend(&chunk)?;
        // Written to the vault while the GPU computes: the previous chunk, and at the document's end this
        // chunk too.
        let later = usize::from(leaves && rows.end < document);
        while let Some((first, packed)) = gpu.packed(later)? {
            self.prefix.leave(first, packed);
        }
        gpu.wait()?;
        self.progress.passed(count, watch);
        Ok(())
    }

    /// Runs the tokens `rows` through a layer. All earlier tokens have passed it or have known rows. Returns
    /// the time spent measuring.
    pub(super) fn read_chunk(
        &mut self,
        (layer, pass): (usize, &mut LayerPass<'_>),
        rows: Range<usize>,
        asked: &Asked,
        watch: &mut dyn Watch,
        stop: &Stop,
    ) -> Result<Duration, EngineError> {
        let Read { model, rope, .. } = self.of;
        let width = model.config().width;
        let (first, count) = (rows.start, rows.len());
        let dim = self.heads.head_dim;
        let (q_width, kv_width) = (self.heads.q_heads * dim, self.heads.kv_heads * dim);
        let scratch = &mut self.scratch;
        let mut measuring = Duration::ZERO;
        let q = &mut scratch.q[..count * q_width];
        let k = &mut scratch.k[..count * kv_width];
        let v = &mut scratch.v[..count * kv_width];
        let at = (first - self.prefix.known()) * width;
        let stream = &mut self.residual[at..at + count * width];
        pass.project(stream, q, k, v, stop)?;
        let started = Instant::now();
        scratch.measured.add(q, first);
        measuring += started.elapsed();
        match (
            rope.of_layer(layer),
            self.alive.positions(),
            &mut self.gathered_rope,
        ) {
            (None, ..) => {}
            (Some(rope), Some(alive), Some(gathered_rope)) => {
                let positions = alive[first..first + count].iter();
                gathered_rope.stand(rope, positions.map(|&p| p as usize));
                gathered_rope.rotate(q, self.heads.q_heads, 0..count);
                gathered_rope.rotate(k, self.heads.kv_heads, 0..count);
            }
            (Some(rope), ..) => {
                rope.rotate_rows(q, self.heads.q_heads, first);
                rope.rotate_rows(k, self.heads.kv_heads, first);
            }
        }
        self.prefix.round(first, k, dim);
        self.prefix.round(first, v, dim);
        scratch.keys.copy_in(first, k);
        scratch.values.copy_in(first, v);
        self.prefix.hear_queries(first, q);
        if first + count > asked.window_from {
            let skip = asked.window_from.saturating_sub(first) * q_width;
            scratch.window_queries.extend_from_slice(&q[skip..]);
        }
        // Only the last row of the last layer's output is needed.
        let needed = match asked.last_layer && !self.of.every_row {
            false => first..first + count,
            true if first + count == asked.n => asked.n - 1..asked.n,
            true => first..first,
        };
        let whole = needed.len() == count;
        // The buffer is allocated only if a measurement uses it.
        let floats = (self.heads.q_heads * count).min(scratch.log_sum_exp.len());
        let log_sum_exp = &mut scratch.log_sum_exp[..floats];
        let known = whole && !log_sum_exp.is_empty();
        self.attended = if known { count } else { 0 };
        if !needed.is_empty() {
            let local = needed.start - first..needed.end - first;
            let out = &mut scratch.attention[..needed.len() * q_width];
            let task = PrefillAttention {
                shape: self.heads,
                scale: attention_scale(model),
                window: model.config().kinds[layer].window,
                queries: &q[local.start * q_width..local.end * q_width],
                first: needed.start,
                keys: &scratch.keys,
                values: &scratch.values,
            };
            prefill_attention(&task, out, known.then_some(&mut *log_sum_exp), stop)?;
            let stream = &mut stream[local.start * width..local.end * width];
            pass.finish(out, stream, stop)?;
        }
        if asked.column_sums {
            let started = Instant::now();
            let rows = LastQueries {
                shape: self.heads,
                scale: attention_scale(model),
                queries: q,
                keys: &scratch.keys,
                tokens: first + count,
                log_sum_exp: &[],
            };
            let known = if known {
                LogSumExp::Known(log_sum_exp)
            } else {
                LogSumExp::Unknown(log_sum_exp)
            };
            rows.add_column_sums(known, &mut scratch.column_sums, stop)?;
            measuring += started.elapsed();
        }
        self.progress.passed(count, watch);
        Ok(measuring)
    }
}
