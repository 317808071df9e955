//! Prefill on the CPU.

mod observing;

use std::ops::Range;
use std::time::{Duration, Instant};

use kept_kernels::{HeadShape, PrefillAttention, RecurrentState, Stop, prefill_attention};
use kept_models::{LayerPass, Model, RopeTable};
use kept_policies::PromptRows;

use super::host_rows::CpuAttention;
use crate::EngineError;
use crate::backend::buffers::HostBuffers;
use crate::backend::measurements::LayerMeasurements;
use crate::backend::tasks::{
    Chunk, GatherSource, GatherTask, Keep, LastRows, PrefillEnd, PrefillInput, PrefillMemory,
    RowAccess,
};
use crate::backend::traits::{HostView, LayerRowsAccess, PrefillBackend, PrefixRows};
use crate::compact::{CompactLayer, RingGather};
use crate::gathered_rope::GatheredRope;
use crate::observe::{HostRows, host_rows};
use crate::shape::{attention_scale, head_shape, layer_heads};

/// All buffers of one prefill.
pub(super) struct CpuPrefill<'m> {
    model: &'m Model,
    rope: &'m RopeTable,
    /// Heads of the global layers.
    heads: HeadShape,
    /// Tokens of `residual`, if layers add embeddings.
    ids: Vec<u32>,
    /// `[layer_input_tokens, width]`: residual stream of the tokens that enter the layer.
    residual: Vec<f32>,
    buffers: HostBuffers,
    /// `[chunk]`: rotations, if row indices differ from positions.
    gathered_rope: Option<GatheredRope>,
    weights: LayerWeights<'m>,
    attention: CpuAttention,
    /// Number of last rows of the prompt whose log-sum-exp, computed by this layer's attention, is in the buffers.
    attended: usize,
    /// Largest size of a layer pass so far, in bytes.
    largest_pass: u64,
    /// State of the current layer, if the model has recurrent layers.
    state: Option<RecurrentState>,
}

/// The current layer's weights, rearranged on first use.
struct LayerWeights<'m> {
    layer: usize,
    at_once: usize,
    few: bool,
    pass: Option<LayerPass<'m>>,
}

impl<'m> LayerWeights<'m> {
    fn pass(&mut self, model: &'m Model, largest: &mut u64) -> &mut LayerPass<'m> {
        self.pass.get_or_insert_with(|| {
            let pass = if self.few {
                model.layer_pass_mapped(self.layer, self.at_once)
            } else {
                model.layer_pass(self.layer, self.at_once)
            };
            *largest = (*largest).max(pass.bytes());
            pass
        })
    }
}

impl<'m> CpuPrefill<'m> {
    /// Allocates everything.
    pub(super) fn new(model: &'m Model, input: PrefillInput<'m>) -> Self {
        let PrefillInput {
            rope,
            plans,
            ids,
            residual,
        } = input;
        let ids = model.config().per_layer.map_or(&[][..], |_| ids).to_vec();
        let (heads, first) = (head_shape(model), &plans[0]);
        Self {
            model,
            rope,
            heads,
            ids,
            residual,
            buffers: HostBuffers::new(plans, heads),
            gathered_rope: first
                .drops_tokens()
                .then(|| GatheredRope::new(rope, first.chunk)),
            weights: LayerWeights {
                layer: 0,
                at_once: 0,
                few: false,
                pass: None,
            },
            attention: CpuAttention,
            attended: 0,
            largest_pass: 0,
            state: model.config().recurrent.map(RecurrentState::new),
        }
    }

    /// Whether the chunk's layer is recurrent.
    fn recurs(&self, chunk: &Chunk<'_>) -> bool {
        self.model.config().kinds[chunk.layer].is_recurrent()
    }

    /// Runs the chunk through a recurrent layer.
    fn recur(&mut self, chunk: &Chunk<'_>, stop: &Stop) -> Result<(), EngineError> {
        let width = self.model.config().width;
        let rows = chunk.at * width..(chunk.at + chunk.count) * width;
        let pass = self.weights.pass(self.model, &mut self.largest_pass);
        let state = self.state.as_mut().expect("the model is recurrent");
        Ok(pass.recur(&mut self.residual[rows], state, stop)?)
    }

    /// Attention of the chunk's needed rows over the layer, and the rest of the layer.
    fn attend_needed(&mut self, chunk: &Chunk<'_>, stop: &Stop) -> Result<(), EngineError> {
        let model = self.model;
        let heads = layer_heads(model, chunk.layer);
        let q_width = heads.q_heads * heads.head_dim;
        let buffers = &mut self.buffers;
        let floats = self.heads.q_heads * chunk.count;
        let known = chunk.needed == chunk.count;
        self.attended = if known { chunk.count } else { 0 };
        if chunk.needed == 0 {
            return Ok(());
        }
        let skip = chunk.count - chunk.needed;
        let out = &mut buffers.attention[..chunk.needed * q_width];
        let task = PrefillAttention {
            shape: heads,
            scale: attention_scale(model, chunk.layer),
            window: chunk.window,
            queries: &buffers.q[skip * q_width..chunk.count * q_width],
            first: chunk.first + skip,
            keys: &buffers.keys,
            values: &buffers.values,
        };
        let log_sum_exp = known.then_some(&mut buffers.log_sum_exp[..floats]);
        prefill_attention(&task, out, log_sum_exp, stop)?;
        let width = model.config().width;
        let rows = chunk.at + skip..chunk.at + chunk.count;
        let at = rows.start * width..rows.end * width;
        let ids = self.ids.get(rows).unwrap_or(&[]);
        let pass = self.weights.pass(model, &mut self.largest_pass);
        Ok(pass.finish(out, ids, &mut self.residual[at], stop)?)
    }

    /// The compact layer of a selection.
    fn gather(&mut self, task: &GatherTask<'_>) -> CompactLayer {
        let unrotated = self.buffers.unrotated();
        let (keys, values, gathered) = self.buffers.of_method();
        let source = GatherSource {
            keys,
            values,
            unrotated,
            value_sums: None,
            merged: false,
        };
        let compact = task.gather(&source, |gather| gather.layer(gathered));
        match task.plan.table {
            Some(table) => compact.with_table(keys, &task.selection.retention, table),
            None => compact,
        }
    }
}

impl PrefillBackend for CpuPrefill<'_> {
    fn load_prefix(
        &mut self,
        layer: usize,
        prefix: &mut dyn PrefixRows,
        stop: &Stop,
    ) -> Result<(), EngineError> {
        let buffers = &mut self.buffers;
        buffers.begin_layer(self.model, layer);
        let mut rows = kept_vault::HostRows {
            keys: &mut buffers.keys,
            values: &mut buffers.values,
            space: &mut buffers.packed,
        };
        prefix.begin_layer(layer, &mut rows, stop)?;
        if let Some(state) = &mut self.state {
            match prefix.state() {
                Some(known) => state.restore(known),
                None => state.clear(),
            }
        }
        Ok(())
    }

    fn prepare(&mut self, layer: usize, at_once: usize, few: bool) {
        self.weights = LayerWeights {
            layer,
            at_once,
            few,
            pass: None,
        };
    }

    fn project(
        &mut self,
        chunk: &Chunk<'_>,
        measurements: &mut LayerMeasurements,
        stop: &Stop,
    ) -> Result<Duration, EngineError> {
        if self.recurs(chunk) {
            return Ok(Duration::ZERO);
        }
        let HeadShape {
            q_heads,
            kv_heads,
            head_dim: dim,
        } = layer_heads(self.model, chunk.layer);
        let shares = self.model.config().kinds[chunk.layer]
            .kv_source_layer()
            .is_some();
        let (first, count) = (chunk.first, chunk.count);
        let buffers = &mut self.buffers;
        let q = &mut buffers.q[..count * q_heads * dim];
        let k = &mut buffers.k[..count * kv_heads * dim];
        let v = &mut buffers.v[..count * kv_heads * dim];
        let width = self.model.config().width;
        let rows = &self.residual[chunk.at * width..(chunk.at + count) * width];
        let pass = self.weights.pass(self.model, &mut self.largest_pass);
        pass.project(rows, q, k, v, stop)?;
        let started = Instant::now();
        measurements.measured.add(q, first);
        let measuring = started.elapsed();
        match (
            self.rope.of_layer(chunk.layer),
            chunk.positions,
            &mut self.gathered_rope,
        ) {
            (None, ..) => {}
            (Some(rope), Some(positions), Some(gathered_rope)) => {
                gathered_rope.set_positions(rope, positions.iter().map(|&p| p as usize));
                gathered_rope.rotate_queries(rope, q, q_heads, 0..count);
                gathered_rope.rotate(k, kv_heads, 0..count);
            }
            (Some(rope), ..) => {
                rope.rotate_queries(q, q_heads, first);
                rope.rotate_rows(k, kv_heads, first);
            }
        }
        if shares {
            return Ok(measuring);
        }
        if let Some(kind) = chunk.rounds {
            kind.round(k, dim);
            kind.round(v, dim);
        }
        buffers.keys.copy_in(first, k);
        buffers.values.copy_in(first, v);
        let skip = (count - chunk.observed) * q_heads * dim;
        measurements.window_queries.extend_from_slice(&q[skip..]);
        Ok(measuring)
    }

    fn queries(&mut self, count: usize) -> Result<&[f32], EngineError> {
        Ok(&self.buffers.q[..count * self.heads.q_heads * self.heads.head_dim])
    }

    fn attend(
        &mut self,
        chunk: &Chunk<'_>,
        measurements: &mut LayerMeasurements,
        prefix: &mut dyn PrefixRows,
        stop: &Stop,
    ) -> Result<Duration, EngineError> {
        if self.recurs(chunk) {
            self.recur(chunk, stop)?;
            return Ok(Duration::ZERO);
        }
        self.attend_needed(chunk, stop)?;
        let started = Instant::now();
        if chunk.column_sums {
            self.add_column_sums(chunk, &mut measurements.column_sums, stop)?;
        }
        let measuring = started.elapsed();
        if chunk.writes {
            let (keys, values) = (&self.buffers.keys, &self.buffers.values);
            prefix.write_rows(keys, values, chunk.first..chunk.first + chunk.count);
        }
        Ok(measuring)
    }

    fn on_host(&mut self, _rows: usize) -> Result<HostView<'_>, EngineError> {
        Ok(HostView {
            layer: self.weights.pass(self.model, &mut self.largest_pass),
            attention: &mut self.attention,
            buffers: &mut self.buffers,
        })
    }

    fn observe(
        &mut self,
        what: LastRows<'_>,
        tokens: usize,
        measurements: &mut LayerMeasurements,
        stop: &Stop,
    ) -> Result<(), EngineError> {
        Ok(self.measure(what, tokens, measurements, stop)?)
    }

    fn prepare_rows(&mut self, access: RowAccess, rope: &RopeTable) -> Result<(), EngineError> {
        self.buffers.keep_rotated();
        if access.before_rope && (access.copies || access.computations) {
            let rope = rope.of_layer(access.layer);
            self.buffers.unrotate(rope, access.shared);
        }
        Ok(())
    }

    fn rows(&self, access: RowAccess) -> Box<dyn LayerRowsAccess + '_> {
        let buffers = &self.buffers;
        let keys = if access.before_rope {
            buffers.method_keys()
        } else {
            &buffers.keys
        };
        Box::new(CpuRows {
            rows: host_rows(keys, &buffers.values),
            access,
        })
    }

    fn keep(&mut self, what: Keep<'_>) -> Result<CompactLayer, EngineError> {
        Ok(match what {
            Keep::Selection(task) => self.gather(&task),
            Keep::Window(plan, window) => {
                let (keys, values) = (&self.buffers.keys, &self.buffers.values);
                let gather = RingGather::new(keys, values, plan, window);
                gather.layer(&mut self.buffers.gathered)
            }
            Keep::State => {
                let state = self.state.clone().expect("the model is recurrent");
                CompactLayer::recurrent(state)
            }
        })
    }

    fn state(&self) -> Option<[&[f32]; 2]> {
        let recurrent = self.model.config().kinds[self.weights.layer].is_recurrent();
        let state = self.state.as_ref().filter(|_| recurrent);
        state.map(RecurrentState::read)
    }

    fn retain_rows(&mut self, surviving: &[u32], _rows: usize) -> Result<(), EngineError> {
        retain(&mut self.residual, surviving, self.model.config().width);
        Ok(())
    }

    fn end(mut self: Box<Self>, rows: Range<usize>) -> Result<PrefillEnd, EngineError> {
        let width = self.model.config().width;
        self.residual.truncate(rows.end * width);
        self.residual.drain(..rows.start * width);
        self.residual.shrink_to_fit();
        Ok(PrefillEnd {
            memory: PrefillMemory {
                layer_kv: self.buffers.row_bytes(),
                activations: self.buffers.bytes() + self.largest_pass,
                device: 0,
            },
            cache: None,
            residual: self.residual,
        })
    }
}

/// Removes all rows but `surviving`, ascending, from `residual [rows, width]`.
pub fn retain(residual: &mut Vec<f32>, surviving: &[u32], width: usize) {
    for (to, &from) in surviving.iter().enumerate() {
        let from = from as usize * width;
        residual.copy_within(from..from + width, to * width);
    }
    residual.truncate(surviving.len() * width);
}

/// The current layer's rows for a method.
struct CpuRows<'r> {
    rows: HostRows<'r>,
    access: RowAccess,
}

impl LayerRowsAccess for CpuRows<'_> {
    fn computations(&self) -> Option<&dyn PromptRows> {
        self.access.computations.then_some(&self.rows as _)
    }

    fn copies(&self) -> Option<[&[f32]; 2]> {
        (self.access.copies).then_some([self.rows.keys, self.rows.values])
    }

    fn check(&self) -> Result<(), EngineError> {
        Ok(())
    }
}
