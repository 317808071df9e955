//! The recurrent layers of a model with random weights.

use kept_kernels::{DeltaShape, StateSpaceShape};

use super::tiny::Random;
use super::{GgufWriter, MetaValue, TinyLlama};
use crate::architecture::Recurrence;

/// Heads of gated delta nets; `value_width` is a multiple of 256.
const DELTA: DeltaShape = DeltaShape {
    key_heads: 2,
    value_heads: 4,
    dim: 64,
    taps: 4,
    grouped: false,
};
/// Heads of state spaces; `value_width` is a multiple of 256.
const SPACE: StateSpaceShape = StateSpaceShape {
    groups: 2,
    heads: 4,
    head_dim: 64,
    state: 16,
    taps: 4,
};
/// Taps of short convolutions.
const TAPS: usize = 3;

impl TinyLlama {
    /// Whether a layer is recurrent: every other one, as the metadata says.
    pub(super) fn recurs(&self, layer: usize) -> bool {
        self.architecture().recurrence != Recurrence::None && layer.is_multiple_of(2)
    }

    /// KV heads, of each layer if they say which are recurrent.
    pub(super) fn head_counts(&self) -> MetaValue {
        let heads = |layer| u32::from(!self.recurs(layer)) * self.kv_heads as u32;
        match self.architecture().recurrence {
            Recurrence::Convolution | Recurrence::StateSpace => self.by_block(Self::block, heads),
            _ => MetaValue::Whole(self.kv_heads as u32),
        }
    }

    pub(super) fn recurrent_keys(&self, w: &mut GgufWriter) {
        let keys: &[(&str, usize)] = match self.architecture().recurrence {
            Recurrence::None => &[],
            Recurrence::Convolution => &[("shortconv.l_cache", TAPS)],
            Recurrence::StateSpace => &[
                ("ssm.group_count", SPACE.groups),
                ("ssm.time_step_rank", SPACE.heads),
                ("ssm.state_size", SPACE.state),
                ("ssm.inner_size", SPACE.heads * SPACE.head_dim),
                ("ssm.conv_kernel", SPACE.taps),
            ],
            Recurrence::Delta(_) => &[
                ("full_attention_interval", 2),
                ("ssm.group_count", DELTA.key_heads),
                ("ssm.time_step_rank", DELTA.value_heads),
                ("ssm.state_size", DELTA.dim),
                ("ssm.inner_size", DELTA.value_heads * DELTA.dim),
                ("ssm.conv_kernel", DELTA.taps),
            ],
        };
        for &(key, value) in keys {
            let key = format!("{}.{key}", self.arch);
            w.set(&key, MetaValue::Whole(value as u32));
        }
    }

    pub(super) fn recurrent_matrices(&self, w: &mut GgufWriter, random: &mut Random, block: usize) {
        let width = self.width;
        let matrices: &[(&str, [usize; 2])] = match self.architecture().recurrence {
            Recurrence::Convolution => &[
                ("shortconv.in_proj", [3 * width, width]),
                ("shortconv.out_proj", [width, width]),
            ],
            Recurrence::StateSpace => &[
                (
                    "ssm_in",
                    [SPACE.value_width() + SPACE.channels() + SPACE.heads, width],
                ),
                ("ssm_out", [width, SPACE.value_width()]),
            ],
            _ if self.architecture().value_groups => &[
                ("attn_qkv", [DELTA.channels(), width]),
                ("attn_gate", [DELTA.value_width(), width]),
                ("ssm_ba", [2 * DELTA.value_heads, width]),
                ("ssm_out", [width, DELTA.value_width()]),
            ],
            _ => &[
                ("attn_qkv", [DELTA.channels(), width]),
                ("attn_gate", [DELTA.value_width(), width]),
                ("ssm_alpha", [DELTA.value_heads, width]),
                ("ssm_beta", [DELTA.value_heads, width]),
                ("ssm_out", [width, DELTA.value_width()]),
            ],
        };
        for (part, shape) in matrices {
            self.matrix(w, random, &format!("blk.{block}.{part}.weight"), shape);
        }
    }

    /// The taps of all convolutions.
    pub(super) fn taps(&self, w: &mut GgufWriter, random: &mut Random) {
        let (part, shape) = match self.architecture().recurrence {
            Recurrence::Convolution => ("shortconv.conv", [self.width, TAPS]),
            Recurrence::StateSpace => ("ssm_conv1d", [SPACE.channels(), SPACE.taps]),
            _ => ("ssm_conv1d", [DELTA.channels(), DELTA.taps]),
        };
        for layer in (0..self.layers).filter(|&layer| self.recurs(layer)) {
            let numbers: Vec<f32> = (0..shape[0] * shape[1]).map(|_| random.next()).collect();
            let name = format!("blk.{}.{part}.weight", self.block(layer));
            w.tensor(&name, &shape, "F32", &numbers);
        }
    }

    /// Vectors of a recurrent layer: name, shape and mean.
    pub(super) fn recurrent_vectors(&self) -> &'static [(&'static str, &'static [usize], f32)] {
        const CHANNELS: [usize; 1] =
            [SPACE.heads * SPACE.head_dim + 2 * SPACE.groups * SPACE.state];
        const NORM: [usize; 2] = [SPACE.groups, SPACE.heads * SPACE.head_dim / SPACE.groups];
        match self.architecture().recurrence {
            Recurrence::Delta(_) => &[
                ("ssm_dt.bias", &[DELTA.value_heads], 0.0),
                ("ssm_a", &[DELTA.value_heads], -0.2),
                ("ssm_norm.weight", &[DELTA.dim], 1.0),
            ],
            Recurrence::StateSpace => &[
                ("ssm_conv1d.bias", &CHANNELS, 0.0),
                ("ssm_dt.bias", &[SPACE.heads], 0.0),
                ("ssm_a", &[SPACE.heads, 1], -0.2),
                ("ssm_d", &[SPACE.heads, 1], 1.0),
                ("ssm_norm.weight", &NORM, 1.0),
            ],
            _ => &[],
        }
    }
}
