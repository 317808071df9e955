//! The latent attention of a model with random weights: low ranks as wide as the model, and half of each head rotated.

use super::tiny::Random;
use super::{GgufWriter, MetaValue, TinyLlama};

impl TinyLlama {
    pub(super) fn latent_keys(&self, w: &mut GgufWriter) {
        let rotated = self.head_dim / 2;
        for (key, value) in [
            ("attention.head_count_kv", 1),
            ("attention.key_length", self.width + rotated),
            ("attention.value_length", self.width),
            ("attention.key_length_mla", self.head_dim),
            ("attention.value_length_mla", self.head_dim),
            ("attention.q_lora_rank", self.width),
            ("attention.kv_lora_rank", self.width),
            ("rope.dimension_count", rotated),
        ] {
            let key = format!("{}.{key}", self.arch);
            w.set(&key, MetaValue::Whole(value as u32));
        }
    }

    pub(super) fn latent_matrices(&self, w: &mut GgufWriter, random: &mut Random, block: usize) {
        let (width, heads, dim) = (self.width, self.q_heads, self.head_dim);
        let matrices: [(&str, &[usize]); 6] = [
            ("attn_q_a", &[width, width]),
            ("attn_q_b", &[heads * dim, width]),
            ("attn_kv_a_mqa", &[width + dim / 2, width]),
            ("attn_k_b", &[heads, width, dim / 2]),
            ("attn_v_b", &[heads, dim, width]),
            ("attn_output", &[width, heads * dim]),
        ];
        for (part, shape) in matrices {
            self.matrix(w, random, &format!("blk.{block}.{part}.weight"), shape);
        }
    }
}
