//! The feed-forward part of a layer.

use std::borrow::BorrowMut;

use kept_kernels::mapped::{Product, multiply_rows_together, multiply_together};
use kept_kernels::{Stop, Stopped};

use super::{COPIED, LayerPass, LayerScratch};
use crate::arithmetic::{
    activate, hidden_layer, multiply, multiply_and_add, normalise, product, scale,
};
use crate::feed_forward::{Dense, DenseAndExperts, ExpertInput, FeedForward};

impl<S: BorrowMut<LayerScratch>> LayerPass<'_, S> {
    /// Adds the feed-forward of `residual`, at most one block of rows, to it, and the layer's embeddings of `tokens`.
    pub(super) fn feed_forward(
        &mut self,
        tokens: &[u32],
        residual: &mut [f32],
        stop: &Stop,
    ) -> Result<(), Stopped> {
        let (config, layer, scratch) = (self.config, self.layer, self.scratch.borrow_mut());
        let normed = &mut scratch.normed[..residual.len()];
        normalise(config, layer.ffn_norm.as_deref(), residual, normed);
        match &layer.ffn {
            FeedForward::Dense(ffn) => {
                self.hide(ffn, residual.len(), stop)?;
                if layer.adds_ffn(config, ffn) {
                    self.down(ffn, residual, true, stop)?;
                } else {
                    let mut added = std::mem::take(&mut self.scratch.borrow_mut().normed);
                    self.down(ffn, &mut added[..residual.len()], false, stop)?;
                    layer.add_ffn(config, &mut added[..residual.len()], residual);
                    self.scratch.borrow_mut().normed = added;
                }
            }
            FeedForward::Experts(ffn) => {
                let router = self.floats.ffn.router.as_ref().expect(COPIED);
                let space = scratch.experts.as_mut().expect("the layer has experts");
                ffn.add(config, router, [&*normed; 2], residual, space, stop)?;
            }
            FeedForward::Both(ffn) => self.both(ffn, residual, stop)?,
            FeedForward::Absent => {}
        }
        if let Some(space) = &mut self.scratch.borrow_mut().per_layer {
            (self.model).add_per_layer(self.index, tokens, residual, space, stop)?;
        }
        scale(residual, layer.output_scale);
        Ok(())
    }

    /// Adds a dense feed-forward and experts to `residual`, at most one block of rows.
    fn both(
        &mut self,
        ffn: &DenseAndExperts,
        residual: &mut [f32],
        stop: &Stop,
    ) -> Result<(), Stopped> {
        self.hide(&ffn.dense, residual.len(), stop)?;
        let elements = residual.len();
        let mut moe_scratch = std::mem::take(&mut self.scratch.borrow_mut().moe_scratch);
        let (routed, rest) = moe_scratch.split_at_mut(elements);
        let (added, rest) = rest.split_at_mut(elements);
        self.down(&ffn.dense, added, false, stop)?;
        let scratch = self.scratch.borrow_mut();
        let input = ExpertInput {
            residual,
            normed: &mut scratch.normed[..elements],
            routed,
            router: self.floats.ffn.router.as_ref().expect(COPIED),
        };
        let space = scratch.experts.as_mut().expect("the layer has experts");
        let expert_out = &mut rest[..elements];
        ffn.add_experts(self.config, input, [&mut *added, expert_out], space, stop)?;
        self.layer.add_ffn(self.config, added, residual);
        self.scratch.borrow_mut().moe_scratch = moe_scratch;
        Ok(())
    }

    /// The hidden layer of a dense feed-forward of the normalised rows (`elements` in total): in `hidden`, or quantised in
    /// `rounded_hidden` if it is computed in slices.
    fn hide(&mut self, ffn: &Dense, elements: usize, stop: &Stop) -> Result<(), Stopped> {
        let m = elements / self.config.width;
        let (config, block) = (self.config, self.block);
        let activation = ffn.activation;
        let LayerScratch {
            normed,
            hidden,
            up,
            rounded,
            rounded_hidden,
            ..
        } = self.scratch.borrow_mut();
        let normed = &normed[..elements];
        if block.slices() {
            rounded.fill(normed, config.width);
            for first in (0..block.ffn).step_by(block.columns) {
                let columns = first..block.ffn.min(first + block.columns);
                let elements = m * columns.len();
                let (hidden, up) = (&mut hidden[..elements], &mut up[..elements]);
                let part = columns.clone();
                match &ffn.gate {
                    Some(gate) => {
                        let both = [product(gate, hidden), product(&ffn.up, up)];
                        multiply_rows_together(both, part, rounded, stop)?;
                    }
                    None => {
                        multiply_rows_together([product(&ffn.up, hidden)], part, rounded, stop)?
                    }
                }
                activate(activation, hidden, up);
                rounded_hidden.fill_columns(hidden, block.ffn, columns);
            }
            return Ok(());
        }
        let (gate, [ups, _]) = self.floats.ffn.dense.as_ref().expect(COPIED);
        let out = [&mut hidden[..m * block.ffn], &mut up[..m * block.ffn]];
        let weights = (gate.as_ref(), ups);
        hidden_layer(activation, normed, rounded, weights, out, stop)
    }

    /// The down projection of what [`Self::hide`] computed, to `out [m, width]`, or added to it.
    fn down(
        &mut self,
        ffn: &Dense,
        out: &mut [f32],
        add: bool,
        stop: &Stop,
    ) -> Result<(), Stopped> {
        let m = out.len() / self.config.width;
        let (scratch, matrix) = (self.scratch.borrow_mut(), &ffn.down);
        if self.block.slices() {
            let product = Product { matrix, out, add };
            return multiply_together([product], &scratch.rounded_hidden, stop);
        }
        let hidden = &scratch.hidden[..m * self.block.ffn];
        if add {
            return multiply_and_add(hidden, &mut scratch.rounded, matrix, out, stop);
        }
        let (_, [_, downs]) = self.floats.ffn.dense.as_ref().expect(COPIED);
        multiply(hidden, &mut scratch.rounded, [(downs, out)], stop)
    }
}
