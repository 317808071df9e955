//! The buffers of a reading, and what all of it adds up to.

use kept_kernels::CacheType;
use kept_models::{LayerPass, Model};
use kept_policies::{Needs, Positions, ValueMerge};

use super::{Sizes, kept_bytes, places_bytes};
use crate::MemoryLedger;
use crate::classes::Classes;
use crate::gathered_rope::GatheredRope;
use crate::observe::QueryMoments;
use crate::prefill::ReconstructionPass;
use crate::shape::heads_of;

impl Sizes {
    /// Floats of `[rows, width]`: the residual stream of the reconstruction.
    pub(crate) fn repetition_residual(&self) -> usize {
        self.repeated() * self.width
    }

    /// Floats of the scratch of the reconstruction, of the rotations of thinned rows, of what a survey leaves with its method, and of what
    /// a method works with while it chooses.
    pub(crate) fn beside(&self) -> usize {
        let reconstruction = self.reconstruction_plan.as_ref().map_or(0, |plan| {
            ReconstructionPass::floats(plan, heads_of(&self.shape), self.tokens, self.pairs)
        });
        let rotations = match self.drops_tokens() {
            true => GatheredRope::floats(self.chunk, self.pairs),
            false => 0,
        };
        let heads = self.shape.kv_heads * self.tokens;
        // A score and a rank each; a rank is two floats.
        let surveyed = match self.has_score_pass {
            true => 3 * self.shape.layers * heads,
            false => 0,
        };
        // All heads of a layer side by side: two scores at most and, of those that may be kept, a rank; of a method that merges both of its
        // scores, and who is merged, with whom, and what is left; of one that leaves values to others who leaves what to whom.
        let merges = self.tables.iter().any(Option::is_some);
        let of_token = match self.needs.iter().any(|needs| *needs != Needs::default()) {
            true if merges => 8,
            true if self.value_merges => 4 + size_of::<ValueMerge>() / size_of::<f32>(),
            true => 4,
            false => 0,
        };
        reconstruction + rotations + surveyed + of_token * heads + self.left_by_gpu()
    }

    /// Floats of what comes from a GPU in place of the values that a layer's evicted tokens leave to kept ones: of each gap between these.
    fn left_by_gpu(&self) -> usize {
        let gaps = self.rows.iter().map(|rows| {
            let kept = self.tokens.min(*rows);
            kept.min(self.tokens - kept)
        });
        match self.value_merges && self.on_gpu {
            true => gaps.max().unwrap_or(0) * self.shape.kv_heads * self.shape.head_dim,
            false => 0,
        }
    }

    /// Floats of `[n, width]`: the residual stream of the tokens that run through the layers.
    pub(crate) fn residual(&self) -> usize {
        (self.tokens - self.known) * self.width
    }

    /// Floats of `[chunk, q_heads, head_dim]`: queries, and attention's output.
    pub(crate) fn q(&self) -> usize {
        self.chunk * self.q_width()
    }

    /// Floats of `[chunk, kv_heads, head_dim]`: keys or values of a chunk.
    pub(crate) fn kv(&self) -> usize {
        self.chunk * self.shape.kv_heads * self.shape.head_dim
    }

    /// Floats of `[w, q_heads, head_dim]`: queries of the largest window.
    pub(crate) fn window_queries(&self) -> usize {
        let rows = self.needs.iter().map(Needs::query_rows);
        rows.max().unwrap_or(0) * self.q_width()
    }

    /// Floats (4 bytes) of [`Measured`](crate::observe::Measured).
    pub(crate) fn measured(&self) -> usize {
        let (n, shape) = (self.tokens, &self.shape);
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
        let future = self.needs.iter().filter_map(|needs| needs.future);
        let future = future
            .map(|f| QueryMoments::floats(heads_of(shape), f.covariance))
            .max();
        weighted_window * n * shape.q_heads + low_attention + future.unwrap_or(0)
    }

    /// Floats of `[q_heads, n]`: what a window sees.
    pub(crate) fn window_scores(&self) -> usize {
        match self.needs.iter().any(|needs| needs.window.is_some()) {
            true => self.shape.q_heads * self.tokens,
            false => 0,
        }
    }

    /// Floats of `[q_heads, n]`: what all rows see.
    pub(crate) fn column_sums(&self) -> usize {
        match self.needs.iter().any(|needs| needs.column_sums) {
            true => self.shape.q_heads * self.tokens,
            false => 0,
        }
    }

    /// Floats of `[q_heads, chunk]`: log-sum-exp of a chunk's rows, where what all rows see or the last ones do is asked for.
    pub(crate) fn log_sum_exp(&self) -> usize {
        let asked = |needs: &Needs| {
            needs.column_sums || needs.window.is_some() || needs.weighted_window.is_some()
        };
        match self.needs.iter().any(asked) {
            true => self.shape.q_heads * self.chunk,
            false => 0,
        }
    }

    /// Floats of one head's kept rows before they are rounded; 0 where they are not.
    pub(crate) fn gathered(&self) -> usize {
        match self.cache {
            CacheType::F32 => 0,
            _ => self.max_capacity.min(self.tokens) * self.shape.head_dim,
        }
    }

    /// Entries that the largest look-up table has room for; 0 where nothing is merged.
    pub(crate) fn max_entries(&self) -> usize {
        let entries = self.tables.iter().flatten().map(|table| table.entries);
        entries.max().unwrap_or(0)
    }

    /// The ledger as it will stand after reading; `decode` and `rope` are not reading's. Before a survey is settled.
    pub(crate) fn ledger(&self, model: &Model) -> MemoryLedger {
        let float = size_of::<f32>();
        let row = self.shape.head_dim * 2 * float;
        // Beside each row its position, and its rank where positions are re-assigned.
        let beside = match self.positions {
            Positions::Original => size_of::<u32>(),
            Positions::Reassigned => 2 * size_of::<u32>(),
        };
        let slots: usize = self.capacities.iter().sum::<usize>() * self.shape.kv_heads;
        let (head_dim, cache) = (self.shape.head_dim, self.cache);
        // And of keys and values the place of each, where rows trade them.
        let replaced = self.kept().zip(&self.capacities).zip(&self.replaced);
        let replaced = replaced.filter(|(_, replaced)| **replaced);
        let places: usize = replaced
            .map(|((kept, &capacity), _)| places_bytes(kept, capacity, cache))
            .sum();
        let places = places * self.shape.kv_heads;
        let layers = self.kept().zip(&self.capacities);
        let kept = layers.map(|(kept, &capacity)| kept_bytes(kept, capacity, head_dim, cache));
        let kept: usize = kept.sum::<usize>() * self.shape.kv_heads;
        let rings = model.config().windows();
        let ring_slots: usize = rings
            .map(|w| w.min(self.tokens + self.max_new_tokens))
            .sum();
        let ring_row = kept_bytes(0, 1, head_dim, cache);
        let ring_slots = ring_slots * self.shape.kv_heads;
        let rows = (kept + ring_slots * ring_row) as u64;
        let slot_table = (slots * beside + places + ring_slots * size_of::<u32>()) as u64;
        let (here, there) = match self.rows_on_gpu {
            true => (0, rows),
            false => (rows, 0),
        };
        let chunk = 2 * self.q()
            + 2 * self.kv()
            + self.window_queries()
            + self.window_scores()
            + self.column_sums()
            + self.log_sum_exp()
            + self.measured()
            + self.gathered()
            + self.beside();
        let own = (self.reconstruction_plan.as_ref())
            .map_or(0, |plan| ReconstructionPass::rows(plan, self.tokens));
        let kv_heads = self.shape.kv_heads;
        let tables = self.tables.iter().zip(&self.capacities);
        let tables = tables.filter_map(|(table, capacity)| {
            table.map(|table| Classes::bytes_for(table, kv_heads, kv_heads * capacity))
        });
        MemoryLedger {
            tables: tables.sum::<u64>() + self.method,
            weights: model.weights_in_memory(),
            vocabulary: model.vocabulary_bytes(),
            prompt: MemoryLedger::prompt_bytes(self.tokens),
            layer_tiles: self.tiles_bytes(model),
            layer_kv: ((2 * self.layer_rows() + own) * kv_heads * row / 2) as u64,
            residual: ((self.residual() + self.repetition_residual()) * float) as u64,
            activations: (chunk * float) as u64 + LayerPass::bytes_for(model, self.rows_at_once()),
            vault: self.vault,
            rope: 0,
            kept_rows: here + slot_table,
            kept_on_gpu: there,
            decode: 0,
            gpu: 0,
        }
    }

    fn q_width(&self) -> usize {
        self.shape.q_heads * self.shape.head_dim
    }
}
