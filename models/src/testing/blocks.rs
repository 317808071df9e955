//! The blocks of a model with random weights, and their feed-forwards.

use super::tiny::{EXPERTS, Random};
use super::{GgufWriter, MetaValue, TinyLlama};
use crate::architecture::{Part, Router, Shared};

impl TinyLlama {
    pub(super) fn expert_keys(&self, w: &mut GgufWriter) {
        let own = self.architecture();
        let mut set = |key: &str, n: usize| {
            let key = format!("{}.{key}", self.arch);
            w.set(&key, MetaValue::Whole(n as u32));
        };
        set("expert_count", EXPERTS);
        set("expert_used_count", 2);
        set("expert_feed_forward_length", self.ffn);
        match own.shared_expert {
            Shared::None => {}
            Shared::Counted => set("expert_shared_count", 1),
            Shared::CountedWidths => {
                set("expert_shared_count", 1);
                set("expert_shared_feed_forward_length", self.ffn);
            }
            Shared::Gated | Shared::Plain => set("expert_shared_feed_forward_length", self.ffn),
        }
        if matches!(own.router, Router::Sigmoid | Router::Declared) {
            set("expert_gating_func", 2);
        }
        if own.dense_first {
            set("leading_dense_block_count", 1);
        }
        if own.router == Router::Declared {
            let key = format!("{}.expert_weights_norm", self.arch);
            w.set(&key, MetaValue::Flag(true));
        }
    }

    pub(super) fn xielu_keys(&self, w: &mut GgufWriter) {
        let by_layer = |first: f32| {
            let numbers = (0..self.layers).map(|layer| first + 0.1 * layer as f32);
            MetaValue::Numbers(numbers.collect())
        };
        w.set("xielu.alpha_n", by_layer(0.2));
        w.set("xielu.alpha_p", by_layer(0.4));
        w.set("xielu.beta", MetaValue::Number(0.5));
        w.set("xielu.eps", MetaValue::Number(-1e-6));
    }

    /// Blocks of the file.
    pub(super) fn blocks(&self) -> usize {
        self.block(self.layers)
    }

    /// The block of a layer's attention or recurrent rule.
    pub(super) fn block(&self, layer: usize) -> usize {
        match self.architecture().single_blocks {
            true => 2 * layer,
            false => layer,
        }
    }

    /// The block of a layer's feed-forward.
    pub(super) fn ffn_block(&self, layer: usize) -> usize {
        self.block(layer) + usize::from(self.architecture().single_blocks)
    }

    /// `[blocks]`: numbers that only blocks `of` the layers have.
    pub(super) fn by_block(
        &self,
        of: impl Fn(&Self, usize) -> usize,
        number: impl Fn(usize) -> u32,
    ) -> MetaValue {
        let mut numbers = vec![0; self.blocks()];
        (0..self.layers).for_each(|layer| numbers[of(self, layer)] = number(layer));
        MetaValue::Wholes(numbers)
    }

    /// Widths of the feed-forward, of each block if they say which has one.
    pub(super) fn ffn_widths(&self) -> MetaValue {
        match self.architecture().single_blocks {
            true => self.by_block(Self::ffn_block, |_| self.ffn as u32),
            false => MetaValue::Whole(self.ffn as u32),
        }
    }

    /// Whether a layer has experts: all, or all but the first, as the metadata says.
    pub(super) fn routes(&self, layer: usize) -> bool {
        let own = self.architecture();
        own.experts == Part::Required && !(own.dense_first && layer == 0)
    }

    /// The matrices of a layer's feed-forward.
    pub(super) fn feed_forward_matrices(
        &self,
        w: &mut GgufWriter,
        random: &mut Random,
        layer: usize,
    ) {
        let (own, width, ffn) = (self.architecture(), self.width, self.ffn);
        let routes = self.routes(layer);
        let gated = own.activation.is_gated();
        let shares = routes && own.shared_expert != Shared::None;
        let up = if own.fused { 2 * ffn } else { ffn };
        let parts: [(bool, &str, &[usize]); 10] = [
            (routes, "ffn_gate_inp", &[EXPERTS, width]),
            (routes && gated, "ffn_gate_exps", &[EXPERTS, ffn, width]),
            (routes, "ffn_up_exps", &[EXPERTS, ffn, width]),
            (routes, "ffn_down_exps", &[EXPERTS, width, ffn]),
            (!routes && gated && !own.fused, "ffn_gate", &[ffn, width]),
            (!routes, "ffn_up", &[up, width]),
            (!routes, "ffn_down", &[width, ffn]),
            (shares && gated, "ffn_gate_shexp", &[ffn, width]),
            (shares, "ffn_up_shexp", &[ffn, width]),
            (shares, "ffn_down_shexp", &[width, ffn]),
        ];
        let block = self.ffn_block(layer);
        for (_, part, shape) in parts.into_iter().filter(|(present, ..)| *present) {
            self.matrix(w, random, &format!("blk.{block}.{part}.weight"), shape);
        }
    }
}
