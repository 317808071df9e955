//! What recurrent layers share: a state of constant size, and a short causal convolution over time.

use crate::threads::{SharedMut, for_each_range};
use crate::{DeltaShape, StateSpaceShape};

/// The shape of a recurrent layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecurrentShape {
    /// A convolution of queries, keys and values, then the gated delta rule.
    Delta(DeltaShape),
    /// A convolution of values and projections, then a state space (Granite 4).
    StateSpace(StateSpaceShape),
    /// A convolution alone (LFM2).
    Convolution {
        /// Numbers of a token.
        channels: usize,
        /// Taps of the convolution.
        taps: usize,
    },
}

impl RecurrentShape {
    /// Channels of the convolution.
    pub fn channels(&self) -> usize {
        match self {
            Self::Delta(shape) => shape.channels(),
            Self::StateSpace(shape) => shape.channels(),
            Self::Convolution { channels, .. } => *channels,
        }
    }

    /// Taps of the convolution.
    pub fn taps(&self) -> usize {
        match self {
            Self::Delta(shape) => shape.taps,
            Self::StateSpace(shape) => shape.taps,
            Self::Convolution { taps, .. } => *taps,
        }
    }

    /// Numbers of the memory, and of the last inputs.
    fn elements(&self) -> [usize; 2] {
        let memory = match self {
            Self::Delta(shape) => shape.value_width() * shape.dim,
            Self::StateSpace(shape) => shape.value_width() * shape.state,
            Self::Convolution { .. } => 0,
        };
        [memory, (self.taps() - 1) * self.channels()]
    }
}

/// State of one recurrent layer after some tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct RecurrentState {
    pub(crate) shape: RecurrentShape,
    /// `[heads, key_dim, value_dim]`; of a convolution alone empty.
    pub(crate) memory: Vec<f32>,
    /// `[taps - 1, channels]`: the last inputs of the convolution.
    inputs: Vec<f32>,
}

impl RecurrentState {
    /// The state before any token.
    pub fn new(shape: RecurrentShape) -> Self {
        let [memory, inputs] = shape.elements().map(|elements| vec![0.0; elements]);
        Self {
            shape,
            memory,
            inputs,
        }
    }

    /// Back to the state before any token.
    pub fn clear(&mut self) {
        self.memory.fill(0.0);
        self.inputs.fill(0.0);
    }

    /// Bytes of the state.
    pub fn bytes(&self) -> u64 {
        Self::bytes_for(self.shape)
    }

    /// The elements of the state, for saving it.
    pub fn read(&self) -> [&[f32]; 2] {
        [&self.memory, &self.inputs]
    }

    /// The state with these elements, one part after the other as in [`RecurrentState::read`].
    ///
    /// # Panics
    /// If their number differs.
    pub fn restore(&mut self, elements: &[f32]) {
        let (memory, inputs) = elements.split_at(self.memory.len());
        self.memory.copy_from_slice(memory);
        self.inputs.copy_from_slice(inputs);
    }

    /// The elements of the state, for changing it.
    pub fn elements(&mut self) -> [&mut [f32]; 2] {
        [&mut self.memory, &mut self.inputs]
    }

    /// Bytes of the state of a layer.
    pub fn bytes_for(shape: RecurrentShape) -> u64 {
        (shape.elements().iter().sum::<usize>() * size_of::<f32>()) as u64
    }
}

/// Causal convolution of `x [rows, channels]` with `taps [taps, channels]` to `out [rows, channels]`. Updates the
/// state's last inputs.
///
/// # Panics
/// If a length does not match.
pub fn convolve(state: &mut RecurrentState, taps: &[f32], x: &[f32], out: &mut [f32]) {
    let (channels, count) = (state.shape.channels(), state.shape.taps());
    assert_eq!(taps.len(), count * channels, "taps are [taps, channels]");
    assert!(
        x.len() == out.len() && x.len().is_multiple_of(channels),
        "x and out are [rows, channels]"
    );
    let rows = x.len() / channels;
    // Input of row `row`, which may lie before the first one.
    let inputs = &state.inputs;
    let input = |row: isize| match usize::try_from(row) {
        Ok(row) => &x[row * channels..][..channels],
        Err(_) => &inputs[(count as isize - 1 + row) as usize * channels..][..channels],
    };
    let shared = SharedMut::new(out);
    for_each_range(rows, |range| {
        for row in range {
            // SAFETY: each row is computed once.
            let out = unsafe { shared.part(row * channels..(row + 1) * channels) };
            out.fill(0.0);
            for (tap, taps) in taps.chunks_exact(channels).enumerate() {
                let x = input(row as isize - (count as isize - 1) + tap as isize);
                for ((out, tap), x) in out.iter_mut().zip(taps).zip(x) {
                    *out += tap * x;
                }
            }
        }
    });
    let kept = count - 1;
    if rows >= kept {
        let last = &x[(rows - kept) * channels..];
        state.inputs.copy_from_slice(last);
    } else {
        state.inputs.copy_within(rows * channels.., 0);
        state.inputs[(kept - rows) * channels..].copy_from_slice(x);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In chunks that are shorter and longer than the taps, against the definition.
    #[test]
    fn a_convolution_in_chunks_equals_its_definition() {
        let (channels, taps, rows) = (5, 3, 11);
        let shape = RecurrentShape::Convolution { channels, taps };
        let number = |i: usize| (i as f32 * 0.37).sin();
        let x: Vec<f32> = (0..rows * channels).map(number).collect();
        let weights: Vec<f32> = (0..taps * channels).map(|i| number(i + 99)).collect();
        let mut state = RecurrentState::new(shape);
        let mut out = vec![f32::NAN; x.len()];
        for chunk in [0..1, 1..2, 2..7, 7..8, 8..rows] {
            let part = chunk.start * channels..chunk.end * channels;
            convolve(&mut state, &weights, &x[part.clone()], &mut out[part]);
        }
        for (i, found) in out.iter().enumerate() {
            let (row, channel) = (i / channels, i % channels);
            let terms = (0..taps.min(row + 1)).map(|back| {
                weights[(taps - 1 - back) * channels + channel]
                    * x[(row - back) * channels + channel]
            });
            assert!((found - terms.sum::<f32>()).abs() < 1e-6, "{row} {channel}");
        }
        let [memory, inputs] = state.read();
        assert!(memory.is_empty());
        assert_eq!(inputs, &x[(rows - 2) * channels..]);
        assert_eq!(state.bytes(), (2 * channels * size_of::<f32>()) as u64);
    }
}
