//! The buffers of a prefill and their total.

use kept_kernels::CacheType;
use kept_models::{LayerPass, Model};
use kept_policies::{Needs, Positions, ValueMerge};

use super::PrefillPlan;
use crate::MemoryLedger;
use crate::compact::Classes;
use crate::gathered_rope::GatheredRope;
use crate::observe::QueryMoments;
use crate::plan::kept::{kept_bytes, slot_map_bytes};
use crate::prefill::ReconstructionPass;
use crate::shape::heads_of;

impl PrefillPlan {
    /// Floats of `[rows, width]`: the residual stream of the reconstruction.
    pub(crate) fn repetition_residual(&self) -> usize {
        self.repeated() * self.width
    }

    /// Floats of other scratch: of the reconstruction, of rotations after tokens were dropped, of the
    /// method's state after a score pass, and of the method's selection.
    pub(crate) fn other_scratch(&self) -> usize {
        let reconstruction = self.reconstruction_plan.as_ref().map_or(0, |plan| {
            ReconstructionPass::floats(
                plan,
                heads_of(&self.row_plan.model),
                self.tokens(),
                self.pairs,
            )
        });
        let rotations = if self.drops_tokens() {
            GatheredRope::floats(self.chunk, self.pairs)
        } else {
            0
        };
        let heads = self.row_plan.model.kv_heads * self.tokens();
        // A score and a rank per token; a rank takes two floats.
        let score_pass = if self.row_plan.score_pass {
            3 * self.row_plan.model.layers * heads
        } else {
            0
        };
        // All heads of a layer in parallel: at most two scores and a rank per token. A merging method needs
        // both scores, the merged tokens, their targets and the remaining tokens; a method that merges values
        // needs its list of merges.
        let merges = self.table.is_some();
        let of_token = match self.needs.iter().any(|needs| *needs != Needs::default()) {
            true if merges => 8,
            true if self.row_plan.merges_values => 4 + size_of::<ValueMerge>() / size_of::<f32>(),
            true => 4,
            false => 0,
        };
        reconstruction + rotations + score_pass + of_token * heads + self.left_by_gpu()
    }

    /// Floats of the value sums that a GPU computes for evicted tokens: one per gap between kept tokens.
    fn left_by_gpu(&self) -> usize {
        let gaps = self.row_plan.rows.iter().map(|rows| {
            let kept = self.tokens().min(*rows);
            kept.min(self.tokens() - kept)
        });
        if self.row_plan.merges_values && self.own_memory {
            gaps.max().unwrap_or(0) * self.row_plan.model.kv_heads * self.row_plan.model.head_dim
        } else {
            0
        }
    }

    /// Floats of `[n, width]`: the residual stream of the tokens that run through the layers.
    pub fn residual(&self) -> usize {
        (self.tokens() - self.known) * self.width
    }

    /// Floats of `[chunk, q_heads, head_dim]`: queries, and attention's output.
    pub(crate) fn q(&self) -> usize {
        self.chunk * self.widths.q
    }

    /// Floats of `[chunk, kv_heads, head_dim]`: keys or values of a chunk.
    pub(crate) fn kv(&self) -> usize {
        self.chunk * self.widths.kv
    }

    /// Floats of `[w, q_heads, head_dim]`: queries of the largest observation window, at least of the last token.
    pub fn window_queries(&self) -> usize {
        let rows = self.needs.iter().map(Needs::query_rows);
        rows.max().unwrap_or(0).max(1) * self.q_width()
    }

    /// Floats (4 bytes) of [`MeasurementBuffers`](crate::observe::MeasurementBuffers).
    pub(crate) fn measured(&self) -> usize {
        let (n, shape) = (self.tokens(), &self.row_plan.model);
        let weighted_window = usize::from(
            self.needs
                .iter()
                .any(|needs| needs.weighted_window.is_some()),
        );
        let low_attention = self
            .needs
            .iter()
            .filter_map(|needs| needs.low_attention)
            .max();
        let low_attention = low_attention.map_or(0, |rows| {
            let words = rows.div_ceil(u64::BITS as usize);
            n * shape.kv_heads * words * 2
        });
        let expected_queries = self.needs.iter().filter_map(|needs| needs.expected_queries);
        let expected_queries = expected_queries
            .map(|f| QueryMoments::floats(heads_of(shape), f.covariance))
            .max();
        weighted_window * n * shape.q_heads + low_attention + expected_queries.unwrap_or(0)
    }

    /// Floats of `[q_heads, n]`: attention of the observation window, or of the last token.
    pub(crate) fn window_scores(&self) -> usize {
        self.row_plan.model.q_heads * self.tokens()
    }

    /// Floats of `[q_heads, n]`: attention of all rows.
    pub fn column_sums(&self) -> usize {
        if self.needs.iter().any(|needs| needs.column_sums) {
            self.row_plan.model.q_heads * self.tokens()
        } else {
            0
        }
    }

    /// Floats of `[q_heads, chunk]`: log-sum-exp of a chunk's rows.
    pub fn log_sum_exp(&self) -> usize {
        self.row_plan.model.q_heads * self.chunk
    }

    /// Floats of one head's kept rows before rounding; 0 without rounding.
    pub(crate) fn gathered(&self) -> usize {
        match self.cache {
            CacheType::F32 => 0,
            _ => self.max_capacity.min(self.tokens()) * self.widths.head,
        }
    }

    /// Capacity of a class table, in entries; 0 if nothing is merged.
    pub fn max_entries(&self) -> usize {
        self.table.map_or(0, |table| table.entries)
    }

    /// The ledger after the prefill, without `decode` and `rope`. Computed before a score pass allocates the
    /// budget.
    pub(crate) fn ledger(&self, model: &Model) -> MemoryLedger {
        let float = size_of::<f32>();
        // For each row its position, and its rank if positions are re-assigned.
        let slot_bytes = match self.row_plan.positions {
            Positions::Original => size_of::<u32>(),
            Positions::Reassigned => 2 * size_of::<u32>(),
        };
        let slots: usize = self.capacities.iter().sum::<usize>() * self.row_plan.model.kv_heads;
        let (head_dim, cache) = (self.row_plan.model.head_dim, self.cache);
        // For each key and value its physical row, if slots swap theirs.
        let layers = || self.kept().zip(&self.capacities);
        let slot_maps: usize = if self.row_plan.decode_rows.is_some() {
            layers()
                .map(|(kept, &capacity)| slot_map_bytes(kept, capacity, cache))
                .sum()
        } else {
            0
        };
        let slot_maps = slot_maps * self.row_plan.model.kv_heads;
        let kept = layers().map(|(kept, &capacity)| kept_bytes(kept, capacity, head_dim, cache));
        let kept: usize = kept.sum::<usize>() * self.row_plan.model.kv_heads;
        let kinds = model.config().kinds.iter();
        let (mut ring_slots, mut ring_bytes) = (0, 0);
        for (kind, window) in kinds.filter_map(|kind| Some((kind, kind.window()?))) {
            let slots = window.min(self.tokens() + self.max_new_tokens()) * kind.kv_heads;
            ring_slots += slots;
            ring_bytes += slots * kept_bytes(0, 1, kind.head_dim, cache);
        }
        let rows = (kept + ring_bytes) as u64 + model.config().state_bytes();
        let slot_table = (slots * slot_bytes + slot_maps + ring_slots * size_of::<u32>()) as u64;
        let (on_host, on_gpu) = if self.rows_on_gpu {
            (0, rows)
        } else {
            (rows, 0)
        };
        let chunk = 2 * self.q()
            + 2 * self.kv()
            + self.window_queries()
            + self.window_scores()
            + self.column_sums()
            + self.log_sum_exp()
            + self.measured()
            + self.gathered()
            + self.other_scratch();
        let own = (self.reconstruction_plan.as_ref())
            .map_or(0, |plan| ReconstructionPass::rows(plan, self.tokens()));
        let (kv_heads, held) = (self.row_plan.model.kv_heads, self.held_kv_width);
        let tables = self.table.map_or(0, |table| {
            let of_layers = self.capacities.iter();
            of_layers
                .map(|capacity| Classes::bytes_for(table, kv_heads, kv_heads * capacity))
                .sum()
        });
        MemoryLedger {
            tables: tables + self.row_plan.bytes,
            weights: crate::backend::weights_in_memory(model),
            vocabulary: model.vocabulary_bytes(),
            prompt: MemoryLedger::prompt_bytes(self.tokens()),
            layer_tiles: self.tiles_bytes(model),
            layer_kv: ((2 * self.layer_rows() * held + own * kv_heads * head_dim) * float) as u64,
            residual: ((self.residual() + self.repetition_residual()) * float) as u64,
            activations: (chunk * float) as u64 + LayerPass::bytes_for(model, self.rows_at_once()),
            vault: self.vault,
            rope: 0,
            kept_rows: on_host + slot_table,
            kept_on_gpu: on_gpu,
            decode: 0,
            gpu: 0,
        }
    }

    fn q_width(&self) -> usize {
        self.row_plan.model.q_heads * self.row_plan.model.head_dim
    }
}
