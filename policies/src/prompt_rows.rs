//! Computations on the keys and values of a prompt, wherever they are stored. Device rows are not downloaded.

use std::ops::Range;

/// Keys and values of one layer of a prompt. Keys are as the method stores them: after RoPE at original positions, or
/// before RoPE if the method re-assigns positions.
pub trait PromptRows: std::fmt::Debug + Sync {
    /// For each of `tokens`, finds the one of `others` (at least one) with the most similar key and value in KV head
    /// `head`, by the product of both cosines; the first one on ties. Writes its index in `others` and the product to
    /// `best [tokens]`.
    fn nearest_by_cosine(
        &self,
        head: usize,
        tokens: &[u32],
        others: &[u32],
        best: &mut [(u32, f32)],
    );

    /// Writes the cosine of each of the first keys of KV head `head` with the mean direction of its first `document`
    /// keys to `cosines [..]`.
    fn cosine_to_mean(&self, head: usize, document: usize, cosines: &mut [f32]);

    /// Writes the value of `form` for the key of each of `tokens` in KV head `head` to `out [tokens]`.
    fn bilinear_forms(
        &self,
        head: usize,
        tokens: Range<usize>,
        form: BilinearForm<'_>,
        out: &mut [f32],
    );

    /// Replaces `logits` by their softmax.
    fn softmax(&self, logits: &mut [f32]);

    /// Writes the norm of the key of each of `tokens` in KV head `head` to `norms [tokens]`.
    fn key_norms(&self, head: usize, tokens: Range<usize>, norms: &mut [f32]);

    /// Writes the norm of the value of each of `tokens` in KV head `head` to `norms [tokens]`.
    fn value_norms(&self, head: usize, tokens: Range<usize>, norms: &mut [f32]);
}

/// The function `linear · k + kᵀ matrix k` of a key k.
#[derive(Debug, Clone, Copy)]
pub struct BilinearForm<'a> {
    /// `[head_dim]`
    pub linear: &'a [f32],
    /// `[head_dim, head_dim]`, symmetric; `None` stands for 0.
    pub matrix: Option<&'a [f32]>,
}
