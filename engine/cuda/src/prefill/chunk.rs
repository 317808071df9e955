//! One chunk of tokens in a layer. All launches are asynchronous.

use kept_cuda::{DeviceError, Indices, PrefillAttention, RowPositions, Scores};
use kept_engine::backend::Chunk;
use kept_kernels::Normalise;
use kept_policies::ExpectedQueriesRequest;

use super::CudaPrefill;
use crate::model::RopeContext;

impl CudaPrefill<'_> {
    /// Adds the queries before RoPE of a chunk that was just projected to the sums `wanted`.
    pub(super) fn sum_queries(
        &mut self,
        chunk: &Chunk<'_>,
        wanted: impl Iterator<Item = ExpectedQueriesRequest>,
    ) -> Result<(), DeviceError> {
        let mut wanted = wanted.peekable();
        if wanted.peek().is_some() {
            let (gpu, pass, queries) = (self.gpu, &self.pass, &mut self.queries);
            gpu.norm_and_rotate_queries(chunk.layer, chunk.count, RopeContext::RAW, pass, queries)?;
        }
        let rows = chunk.first..chunk.first + chunk.count;
        wanted.try_for_each(|future| self.add_queries(future, rows.clone()))
    }

    /// Applies RoPE, stores keys and values, and copies the observed queries to `window_queries`.
    pub(super) fn store(&mut self, chunk: &Chunk<'_>) -> Result<(), DeviceError> {
        let &Chunk {
            layer,
            first,
            count,
            ..
        } = chunk;
        let positions = (chunk.positions)
            .map(|positions| Indices::new(self.gpu.device(), positions))
            .transpose()?;
        let context = RopeContext {
            angles: self.rope.of_layer(layer),
            positions: positions
                .as_ref()
                .map_or(RowPositions::From(first), RowPositions::At),
        };
        let (gpu, pass) = (self.gpu, &self.pass);
        gpu.norm_and_rotate_queries(layer, count, context, pass, &mut self.queries)?;
        let rows = first..first + count;
        gpu.ready_keys(layer, rows.clone(), context, pass, &mut self.keys)?;
        gpu.ready_values(layer, rows, pass, &mut self.values)?;
        if chunk.observed > 0 {
            let width = self.heads.q_heads * self.heads.head_dim;
            let last = (count - chunk.observed) * width..count * width;
            self.window_queries
                .copy_from(self.window_rows * width, &self.queries, last)?;
            self.window_rows += chunk.observed;
        }
        Ok(())
    }

    /// Attention, the rest of the layer for the needed rows, and column sums.
    pub(super) fn attend_chunk(&mut self, chunk: &Chunk<'_>) -> Result<(), DeviceError> {
        let &Chunk {
            layer,
            first,
            count,
            needed,
            ..
        } = chunk;
        let (device, q_width) = (self.device(), self.q_width());
        let whole = needed == count;
        if needed > 0 {
            let skip = count - needed;
            let queries = self.queries.share(skip * q_width..count * q_width);
            let task = PrefillAttention {
                shape: self.heads,
                scale: self.scale,
                window: chunk.window,
                queries: &queries,
                rows: needed,
                first: first + skip,
                keys: &self.keys,
                values: &self.values,
            };
            let known = (chunk.column_sums && whole).then_some(&mut self.log_sum_exp);
            device.prefill_attention(&task, &mut self.parts, &mut self.attention, known)?;
            let mut stream = self.residual.rows(chunk.at, skip..count);
            self.gpu
                .finish(layer, &self.attention, &mut stream, needed, &mut self.pass)?;
            self.residual
                .write_back(chunk.at + skip..chunk.at + count)?;
        }
        if chunk.column_sums {
            let task = Scores {
                shape: self.heads,
                scale: self.scale,
                queries: &self.queries,
                rows: count,
                keys: &self.keys,
                tokens: first + count,
                normalise: Normalise::All,
            };
            if !whole {
                device.log_sum_exp(&task, &mut self.parts, &mut self.log_sum_exp)?;
            }
            let mut sums = self.column_sums.share(0..self.columns);
            device.add_column_sums(&task, &self.log_sum_exp, &mut sums)?;
        }
        Ok(())
    }
}
