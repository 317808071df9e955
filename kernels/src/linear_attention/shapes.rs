//! The heads of a layer with linear attention.

use crate::RecurrentShape;

/// Heads of a layer with the delta rule. Value head `h` uses key head `h % key_heads`, or with `grouped` key head
/// `h / (value_heads / key_heads)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaShape {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values; a multiple of `key_heads`.
    pub value_heads: usize,
    /// Elements of a query, key or value of one head.
    pub dim: usize,
    /// Taps of the convolution.
    pub taps: usize,
    /// The value heads that use a key head follow each other.
    pub grouped: bool,
}

impl DeltaShape {
    /// The key head of a value head.
    fn key_head(&self, head: usize) -> usize {
        match self.grouped {
            true => head / (self.value_heads / self.key_heads),
            false => head % self.key_heads,
        }
    }

    /// Numbers of a token's queries, keys and values: `(2 key_heads + value_heads) dim`.
    pub fn channels(&self) -> usize {
        (2 * self.key_heads + self.value_heads) * self.dim
    }

    /// Numbers of a token's values.
    pub fn value_width(&self) -> usize {
        self.value_heads * self.dim
    }
}

/// Heads of a layer with a state space. Head `h` uses group `h / (heads / groups)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSpaceShape {
    /// Groups of heads with one input and one output projection.
    pub groups: usize,
    /// Heads; a multiple of `groups`.
    pub heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Numbers of the state for each of them.
    pub state: usize,
    /// Taps of the convolution.
    pub taps: usize,
}

impl StateSpaceShape {
    /// Numbers of a token's values, input projections and output projections: `heads head_dim + 2 groups state`.
    pub fn channels(&self) -> usize {
        self.value_width() + 2 * self.groups * self.state
    }

    /// Numbers of a token's values.
    pub fn value_width(&self) -> usize {
        self.heads * self.head_dim
    }
}

/// Where a head finds its query, key and value in a token's channels, and their norms.
#[derive(Clone, Copy)]
pub(super) struct Head {
    pub(super) query: usize,
    pub(super) key: usize,
    pub(super) value: usize,
    pub(super) key_dim: usize,
    pub(super) value_dim: usize,
    /// What the memory has at a key is replaced, not added to.
    pub(super) replaces: bool,
}

impl RecurrentShape {
    /// Heads with a memory; none for a convolution.
    pub(super) fn heads(&self) -> usize {
        match self {
            Self::Delta(shape) => shape.value_heads,
            Self::StateSpace(shape) => shape.heads,
            Self::Convolution { .. } => 0,
        }
    }

    pub(super) fn head(&self, head: usize) -> Head {
        match *self {
            Self::Delta(shape) => {
                let (dim, key_head) = (shape.dim, shape.key_head(head));
                Head {
                    query: key_head * dim,
                    key: (shape.key_heads + key_head) * dim,
                    value: (2 * shape.key_heads + head) * dim,
                    key_dim: dim,
                    value_dim: dim,
                    replaces: true,
                }
            }
            Self::StateSpace(shape) => {
                let group = head / (shape.heads / shape.groups);
                let key = shape.value_width() + group * shape.state;
                Head {
                    query: key + shape.groups * shape.state,
                    key,
                    value: head * shape.head_dim,
                    key_dim: shape.state,
                    value_dim: shape.head_dim,
                    replaces: false,
                }
            }
            Self::Convolution { .. } => panic!("a convolution has no heads"),
        }
    }
}
