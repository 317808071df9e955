//! Multi-head latent attention (MLA), expanded to attention with as many KV heads as query heads.
//!
//! ```text
//! x ---- [q_a --- norm] --- q_b ----------> each head's query  [plain | rotated]
//! x ---- kv_a ---> [latent | rotated of all heads' keys]
//!                  norm(latent) --- kv_b -> each head's        [plain of the key | value]
//! ```
//!
//! In memory a query is `[rotated | plain]`, where RoPE turns the first elements; so is a key, which leaves their products
//! as they are. A value is followed by zeros up to the length of a key; attention's output is read without them. Caches
//! and methods see plain attention.
//!
//! Files for absorbed attention have kv_b in two tensors: `attn_v_b`, and `attn_k_b`, transposed (`transposed.rs`).
//!
//! Sources: arXiv 2405.04434 (DeepSeek-V2), `deepseek2.cpp` of llama.cpp.

use kept_kernels::mapped::MappedMatrix;
use kept_kernels::{QuantisedRows, Stop, Stopped, rms_norm, rms_norm_in_place};

use crate::arithmetic::multiply;
use crate::config::{Config, LatentShape};
use crate::gguf::Gguf;
use crate::transposed::{HeadRows, Transposed};
use crate::weights::{self, Floats};
use crate::{ModelError, weights::copied_bytes};

/// Rows that are expanded at once.
const ROWS: usize = 512;

/// Weights of latent attention besides the projections of queries and of the output.
pub(crate) struct Latent {
    shape: LatentShape,
    /// The first factor of queries, `[q_rank, width]`, and its norm, `[q_rank]`.
    q_a: Option<(MappedMatrix, Vec<f32>)>,
    /// `[kv_rank + rotated, width]`
    kv_a: MappedMatrix,
    /// `[kv_rank]`
    kv_norm: Vec<f32>,
    /// `[q_heads * (plain + value), kv_rank]`, or without the keys `[q_heads * value, kv_rank]`.
    kv_b: MappedMatrix,
    /// `[q_heads]` of `[kv_rank, plain]`: the factors of keys, if they are apart.
    k_b: Vec<MappedMatrix>,
}

/// Copies of the matrices that are not quantised, and of the transposed ones.
pub(crate) struct LatentCopies<'a> {
    latent: &'a Latent,
    q_a: Option<Floats<'a>>,
    kv_a: Floats<'a>,
    kv_b: Floats<'a>,
    k_b: Option<Transposed<'a>>,
}

/// Buffers for a number of rows.
pub(crate) struct LatentScratch {
    /// `[rows, q_rank]`
    q_low: Vec<f32>,
    /// `[rows, q_heads, plain + rotated]`
    q: Vec<f32>,
    /// `[rows, kv_rank + rotated]`
    kv_low: Vec<f32>,
    /// `[rows, kv_rank]`: the latent after its norm.
    normed: Vec<f32>,
    /// `[rows, q_heads, plain + value]`, or without the keys `[rows, q_heads, value]`.
    expanded: Vec<f32>,
    /// `[q_heads]`: the keys, if their factors are apart.
    keys: Vec<HeadRows>,
    /// `[block rows, q_heads, value]`: attention's output without the zeros; empty if there are none.
    narrow: Vec<f32>,
}

/// Numbers per row of the buffers of [`LatentScratch`], up to `expanded`.
fn widths(config: &Config, shape: LatentShape) -> [usize; 5] {
    let expanded = match shape.apart {
        true => shape.value,
        false => shape.expanded(),
    };
    [
        shape.q_rank.unwrap_or(0),
        config.q_heads * (shape.plain + shape.rotated),
        shape.kv_rank + shape.rotated,
        shape.kv_rank,
        config.q_heads * expanded,
    ]
}

/// Heads whose keys have buffers of their own, and numbers per row of an output without zeros.
fn further(config: &Config, shape: LatentShape) -> [usize; 2] {
    let narrow = shape.value < shape.plain + shape.rotated;
    [
        if shape.apart { config.q_heads } else { 0 },
        if narrow {
            config.q_heads * shape.value
        } else {
            0
        },
    ]
}

impl LatentScratch {
    /// For blocks of `rows` rows.
    pub(crate) fn new(config: &Config, shape: LatentShape, rows: usize) -> Self {
        let at_once = rows.min(ROWS);
        let [q_low, q, kv_low, normed, expanded] =
            widths(config, shape).map(|width| vec![0.0; at_once * width]);
        let [heads, narrow] = further(config, shape);
        Self {
            q_low,
            q,
            kv_low,
            normed,
            expanded,
            keys: (0..heads)
                .map(|_| HeadRows::new(at_once, shape.plain))
                .collect(),
            narrow: vec![0.0; rows * narrow],
        }
    }

    /// Bytes of buffers for blocks of `rows` rows.
    pub(crate) fn bytes(config: &Config, shape: LatentShape, rows: usize) -> u64 {
        let at_once = rows.min(ROWS);
        let [heads, narrow] = further(config, shape);
        let elements = at_once * widths(config, shape).iter().sum::<usize>() + rows * narrow;
        let keys = heads as u64 * HeadRows::bytes(at_once, shape.plain);
        (elements * size_of::<f32>()) as u64 + keys
    }

    /// Attention's output `[rows, q_heads, head_dim]` without the zeros of values, `[rows, q_heads, value]`.
    pub(crate) fn values<'a>(&'a mut self, shape: LatentShape, attention: &'a [f32]) -> &'a [f32] {
        if self.narrow.is_empty() {
            return attention;
        }
        let dim = shape.plain + shape.rotated;
        let narrow = &mut self.narrow[..attention.len() / dim * shape.value];
        let heads = narrow.chunks_exact_mut(shape.value);
        for (narrow, head) in heads.zip(attention.chunks_exact(dim)) {
            narrow.copy_from_slice(&head[..shape.value]);
        }
        narrow
    }
}

impl Latent {
    /// Reads the weights of `block`; the projection of queries is the first of both.
    pub(crate) fn read(
        gguf: &Gguf,
        config: &Config,
        shape: LatentShape,
        block: usize,
    ) -> Result<(MappedMatrix, Self), ModelError> {
        let (width, heads, rank) = (config.width, config.q_heads, shape.kv_rank);
        let name = |part: &str| format!("blk.{block}.{part}.weight");
        let matrix = |part, rows, cols| weights::matrix(gguf, &name(part), rows, cols);
        // Tensors of the other kinds of files would be ignored.
        let unused = [
            (shape.q_rank.is_some(), &["attn_q"][..]),
            (
                shape.q_rank.is_none(),
                &["attn_q_a", "attn_q_a_norm", "attn_q_b"],
            ),
            (shape.apart, &["attn_kv_b"]),
            (!shape.apart, &["attn_k_b", "attn_v_b"]),
        ];
        let unused = unused.iter().filter(|(unused, _)| *unused);
        for part in unused.flat_map(|(_, parts)| *parts) {
            if gguf.tensor(&name(part)).is_some() {
                return Err(ModelError::UnknownTensor { name: name(part) });
            }
        }
        let q_width = heads * (shape.plain + shape.rotated);
        let (q, q_a) = match shape.q_rank {
            None => (matrix("attn_q", q_width, width)?, None),
            Some(q_rank) => {
                let norm = weights::vector(gguf, &name("attn_q_a_norm"), q_rank)?;
                let q_a = matrix("attn_q_a", q_rank, width)?;
                (matrix("attn_q_b", q_width, q_rank)?, Some((q_a, norm)))
            }
        };
        let (kv_b, k_b) = match shape.apart {
            false => (
                matrix("attn_kv_b", heads * shape.expanded(), rank)?,
                Vec::new(),
            ),
            true => {
                let [keys] =
                    weights::expert_matrices(gguf, &name("attn_k_b"), heads, [rank], shape.plain)?;
                let form = [heads, shape.value, rank];
                let rows = heads * shape.value;
                let mut values = weights::parts(gguf, &name("attn_v_b"), &form, [rows], rank)?;
                (values.remove(0), keys)
            }
        };
        let latent = Self {
            shape,
            q_a,
            kv_a: matrix("attn_kv_a_mqa", rank + shape.rotated, width)?,
            kv_norm: weights::vector(gguf, &name("attn_kv_a_norm"), rank)?,
            kv_b,
            k_b,
        };
        Ok((q, latent))
    }

    /// The shape of all layers.
    pub(crate) fn shape(&self) -> LatentShape {
        self.shape
    }

    /// Copies for up to `copied_rows` rows, for 0 none; `copy` makes those of matrices that are not quantised.
    pub(crate) fn copies<'a>(
        &'a self,
        copied_rows: usize,
        copy: impl Fn(&'a MappedMatrix) -> Floats<'a>,
    ) -> LatentCopies<'a> {
        LatentCopies {
            latent: self,
            q_a: self.q_a.as_ref().map(|(matrix, _)| copy(matrix)),
            kv_a: copy(&self.kv_a),
            kv_b: copy(&self.kv_b),
            k_b: (self.shape.apart).then(|| Transposed::new(&self.k_b, copied_rows)),
        }
    }

    /// Bytes of the f32 copies for many rows.
    pub(crate) fn copied_bytes(&self) -> u64 {
        let q_a = self.q_a.as_ref().map(|(matrix, _)| matrix);
        let matrices = q_a.into_iter().chain([&self.kv_a, &self.kv_b]);
        matrices.map(copied_bytes).sum::<u64>() + Transposed::copied_bytes(&self.k_b)
    }
}

impl LatentCopies<'_> {
    /// Projects `normed [rows, width]` to queries, keys and values, `[rows, q_heads, head_dim]` each, before RoPE. `of_q`
    /// is the projection of queries.
    ///
    /// # Errors
    /// [`Stopped`]; the outputs are then partly written.
    pub(crate) fn project(
        &self,
        config: &Config,
        of_q: &Floats<'_>,
        normed: &[f32],
        [q, k, v]: [&mut [f32]; 3],
        (scratch, rounded): (&mut LatentScratch, &mut QuantisedRows),
        stop: &Stop,
    ) -> Result<(), Stopped> {
        let (width, q_width) = (config.width, widths(config, self.latent.shape)[1]);
        let outputs = q.chunks_mut(ROWS * q_width).zip(
            k.chunks_mut(ROWS * q_width)
                .zip(v.chunks_mut(ROWS * q_width)),
        );
        for (normed, (q, (k, v))) in normed.chunks(ROWS * width).zip(outputs) {
            let rows = normed.len() / width;
            self.low(config, of_q, normed, (scratch, rounded), stop)?;
            self.expand(config, rows, (scratch, rounded), stop)?;
            self.assemble(config, rows, scratch, [q, k, v]);
        }
        Ok(())
    }

    /// Queries as projected, and the latent after its norm, of `normed [rows, width]`.
    fn low(
        &self,
        config: &Config,
        of_q: &Floats<'_>,
        normed: &[f32],
        (scratch, rounded): (&mut LatentScratch, &mut QuantisedRows),
        stop: &Stop,
    ) -> Result<(), Stopped> {
        let (latent, rows) = (self.latent, normed.len() / config.width);
        let [q_rank, q_width, low_width, rank, _] = widths(config, latent.shape);
        let q = &mut scratch.q[..rows * q_width];
        let q_low = &mut scratch.q_low[..rows * q_rank];
        let kv_low = &mut scratch.kv_low[..rows * low_width];
        match (&self.q_a, &latent.q_a) {
            (Some(q_a), Some((_, norm))) => {
                let products = [(q_a, &mut *q_low), (&self.kv_a, &mut *kv_low)];
                multiply(normed, rounded, products, stop)?;
                rms_norm_in_place(q_low, norm, config.norm_eps);
                multiply(q_low, rounded, [(of_q, q)], stop)?;
            }
            _ => {
                let products = [(of_q, q), (&self.kv_a, &mut *kv_low)];
                multiply(normed, rounded, products, stop)?;
            }
        }
        let latents = scratch.normed.chunks_exact_mut(rank);
        for (out, low) in latents.zip(kv_low.chunks_exact(low_width)) {
            rms_norm(&low[..rank], &latent.kv_norm, config.norm_eps, out);
        }
        Ok(())
    }

    /// Each head's part of keys and values, of `rows` latents.
    fn expand(
        &self,
        config: &Config,
        rows: usize,
        (scratch, rounded): (&mut LatentScratch, &mut QuantisedRows),
        stop: &Stop,
    ) -> Result<(), Stopped> {
        let [_, _, _, rank, expanded] = widths(config, self.latent.shape);
        let normed = &scratch.normed[..rows * rank];
        let expanded = &mut scratch.expanded[..rows * expanded];
        multiply(normed, rounded, [(&self.kv_b, expanded)], stop)?;
        match &self.k_b {
            Some(keys) => keys.multiply(normed, &mut scratch.keys, stop),
            None => Ok(()),
        }
    }

    /// Queries, keys and values of `rows` rows, as attention reads them.
    fn assemble(
        &self,
        config: &Config,
        rows: usize,
        scratch: &LatentScratch,
        [q, k, v]: [&mut [f32]; 3],
    ) {
        let shape = self.latent.shape;
        let (plain, rotated, dim) = (shape.plain, shape.rotated, shape.plain + shape.rotated);
        let heads = config.q_heads;
        for (to, from) in q.chunks_exact_mut(dim).zip(scratch.q.chunks_exact(dim)) {
            to[..rotated].copy_from_slice(&from[plain..]);
            to[rotated..].copy_from_slice(&from[..plain]);
        }
        let expanded = match shape.apart {
            true => shape.value,
            false => shape.expanded(),
        };
        let from = scratch.expanded.chunks_exact(expanded);
        let to = k.chunks_exact_mut(dim).zip(v.chunks_exact_mut(dim));
        for (at, ((k, v), from)) in to.zip(from).take(rows * heads).enumerate() {
            let (row, head) = (at / heads, at % heads);
            let low = &scratch.kv_low[row * (shape.kv_rank + rotated)..];
            k[..rotated].copy_from_slice(&low[shape.kv_rank..][..rotated]);
            let (key, value) = match scratch.keys.get(head) {
                Some(own) => (&own.0[row * plain..][..plain], from),
                None => from.split_at(plain),
            };
            k[rotated..].copy_from_slice(key);
            v[..shape.value].copy_from_slice(value);
            v[shape.value..].fill(0.0);
        }
    }
}
