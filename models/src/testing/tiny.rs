//! A complete model with random weights.

use std::path::Path;

use super::{GgufWriter, MetaValue};
use crate::architecture::{self, Activation, Architecture, Part, QkNorm, Shared, Sliding};
use crate::gguf::Gguf;
use crate::tokenizer::vocabulary::symbol_of_byte;

/// A model with random weights, small and valid, by default a llama. A test changes the fields it needs.
#[derive(Debug, Clone)]
pub struct TinyLlama {
    /// `general.architecture`; determines the tensors and keys of the file.
    pub arch: &'static str,
    /// Decoder layers.
    pub layers: usize,
    /// Width of the residual stream; a multiple of 256 for the K-quants.
    pub width: usize,
    /// Width of the feed-forward's hidden layer.
    pub ffn: usize,
    /// Query heads.
    pub q_heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// Context length.
    pub context: usize,
    /// Block type of all matrices; `Q4_K_M` is Q4_K with the more sensitive matrices in Q6_K, as in llama.cpp.
    pub kind: &'static str,
    /// Whether the output projection is tied to the embedding.
    pub tied: bool,
    /// `tokenizer.ggml.pre`
    pub pre: &'static str,
    /// Seed of the random weights.
    pub seed: u64,
    /// Whether answers never end or repeat: every token is followed by the next one of the vocabulary. Needs `tied:
    /// false`.
    pub endless: bool,
}

impl Default for TinyLlama {
    fn default() -> Self {
        TinyLlama {
            arch: "llama",
            layers: 2,
            width: 256,
            ffn: 512,
            q_heads: 4,
            kv_heads: 2,
            head_dim: 64,
            context: 4096,
            kind: "F32",
            tied: false,
            pre: "smollm",
            seed: 1,
            endless: false,
        }
    }
}

/// Merges of the tiny tokenizer, parts before wholes; enough that common words are single tokens.
const MERGES: &[&str] = &[
    "Ġ t",
    "h e",
    "Ġt he",
    "i n",
    "e r",
    "a n",
    "an d",
    "Ġ and",
    "o n",
    "Ġ a",
    "r e",
    "Ġ o",
    "Ġo f",
    "H e",
    "l l",
    "He ll",
    "Hell o",
    "Ġ w",
    "o r",
    "Ġw or",
    "l d",
    "Ġwor ld",
    "Ġ Ġ",
    "ĠĠ ĠĠ",
    "Ċ Ċ",
    "1 2",
    "ð Ł",
    "ðŁ Ļ",
    "ã ģ",
];

/// Experts of a layer, of architectures that have them.
pub(super) const EXPERTS: usize = 4;

/// Control tokens of the tiny tokenizer, with ids from 0.
pub const CONTROL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

impl TinyLlama {
    /// Number of tokens in the vocabulary.
    pub fn vocab(&self) -> usize {
        tokens().len()
    }

    /// A writer of the complete model, for tests that then modify it.
    pub fn writer(&self) -> GgufWriter {
        let mut w = GgufWriter::default();
        let whole = |n: usize| MetaValue::Whole(n as u32);
        let text = |t: &str| MetaValue::Text(t.to_owned());
        w.set("general.architecture", text(self.arch));
        w.set("general.name", text("tiny"));
        let key = |key: &str| format!("{}.{key}", self.arch);
        for (part, value) in [
            ("block_count", self.blocks()),
            ("embedding_length", self.width),
            ("attention.head_count", self.q_heads),
            ("attention.key_length", self.head_dim),
            ("attention.value_length", self.head_dim),
            ("rope.dimension_count", self.head_dim),
            ("context_length", self.context),
        ] {
            w.set(&key(part), whole(value));
        }
        w.set(&key("attention.head_count_kv"), self.head_counts());
        w.set(&key("feed_forward_length"), self.ffn_widths());
        w.set(
            &key("attention.layer_norm_rms_epsilon"),
            MetaValue::Number(1e-5),
        );
        w.set(&key("rope.freq_base"), MetaValue::Number(10_000.0));
        let own = self.architecture();
        if let Sliding::Most { .. } = own.sliding {
            w.set(&key("attention.sliding_window"), whole(8));
        }
        if own.multipliers.is_allowed() {
            for (part, value) in [
                ("embedding_scale", 1.5),
                ("attention.scale", 0.1),
                ("residual_scale", 0.5),
                ("logit_scale", 2.0),
            ] {
                w.set(&key(part), MetaValue::Number(value));
            }
        }
        if let Activation::Xielu(_) = own.activation {
            self.xielu_keys(&mut w);
        }
        if own.logit_factor {
            w.set(&key("logit_scale"), MetaValue::Number(0.25));
        }
        if own.scaled_queries {
            w.set(&key("attention.temperature_scale"), MetaValue::Number(0.1));
            w.set(&key("attention.temperature_length"), whole(8));
        }
        if own.experts == Part::Required {
            self.expert_keys(&mut w);
        }
        if own.latent {
            self.latent_keys(&mut w);
        }
        self.recurrent_keys(&mut w);
        self.tokenizer(&mut w);
        self.tensors(&mut w);
        w
    }

    /// Writes the model.
    ///
    /// # Errors
    /// I/O errors.
    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        self.writer().write(path)
    }

    pub(super) fn architecture(&self) -> &'static Architecture {
        architecture::find(self.arch).expect("a supported architecture")
    }

    /// A writer of the same model with the tokenizer and name of another file. The output projection is tied.
    ///
    /// # Panics
    /// If the file has no tokens.
    pub fn writer_with_tokenizer_of(&self, gguf: &Gguf) -> GgufWriter {
        let mut w = self.writer();
        let tokenizer = |key: &str| key.starts_with("tokenizer.");
        w.metadata.retain(|(key, _)| !tokenizer(key));
        for (key, _) in gguf.metadata().filter(|(key, _)| tokenizer(key)) {
            w.set(key, copied(gguf, key));
        }
        w.set("general.name", copied(gguf, "general.name"));
        let tokens = gguf.texts("tokenizer.ggml.tokens");
        let tokens = tokens.ok().flatten().expect("tokens").len();
        let mut random = Random(self.seed);
        let numbers: Vec<f32> = (0..tokens * self.width).map(|_| random.next()).collect();
        w.remove_tensor("output.weight");
        let shape = [tokens, self.width];
        w.tensor("token_embd.weight", &shape, self.kind, &numbers);
        w
    }

    fn tokenizer(&self, w: &mut GgufWriter) {
        let tokens = tokens();
        let kinds = (0..tokens.len())
            .map(|id| if id < CONTROL.len() { 3 } else { 1 })
            .collect();
        w.set("tokenizer.ggml.model", MetaValue::Text("gpt2".to_owned()));
        w.set("tokenizer.ggml.pre", MetaValue::Text(self.pre.to_owned()));
        w.set("tokenizer.ggml.tokens", MetaValue::Texts(tokens));
        w.set("tokenizer.ggml.token_type", MetaValue::Wholes(kinds));
        let merges = MERGES.iter().map(|&line| line.to_owned()).collect();
        w.set("tokenizer.ggml.merges", MetaValue::Texts(merges));
        w.set("tokenizer.ggml.bos_token_id", MetaValue::Whole(0));
        w.set("tokenizer.ggml.eos_token_id", MetaValue::Whole(2));
        w.set("tokenizer.ggml.add_bos_token", MetaValue::Flag(false));
    }

    /// The output projection of an endless model, `[vocab, width]`: a token's row is the embedding of the previous
    /// token in the vocabulary, so that answers count through all tokens except control tokens.
    fn next_token(&self, width: usize) -> Vec<f32> {
        let mut random = Random(self.seed);
        let mut rows: Vec<f32> = (0..self.vocab() * width).map(|_| random.next()).collect();
        let control = CONTROL.len() * width;
        rows[..control].fill(0.0);
        rows[control..].rotate_right(width);
        rows
    }

    fn tensors(&self, w: &mut GgufWriter) {
        let mut random = Random(self.seed);
        self.matrices(w, &mut random);
        self.vectors(w, &mut random);
        self.taps(w, &mut random);
        let (width, ffn) = (self.width, self.ffn);
        for layer in (0..self.layers).filter(|_| self.architecture().expert_bias) {
            let layer = self.ffn_block(layer);
            for (part, rows) in [("gate", ffn), ("up", ffn), ("down", width)] {
                let numbers: Vec<f32> = (0..EXPERTS * rows).map(|_| 0.1 * random.next()).collect();
                let name = format!("blk.{layer}.ffn_{part}_exps.bias");
                w.tensor(&name, &[EXPERTS, rows], "F32", &numbers);
            }
        }
    }

    pub(super) fn matrix(
        &self,
        w: &mut GgufWriter,
        random: &mut Random,
        name: &str,
        shape: &[usize],
    ) {
        let (cols, rows) = (shape[shape.len() - 1], shape[..shape.len() - 1].iter());
        let rows: usize = rows.product();
        let scale = 1.0 / (cols as f32).sqrt();
        let mut numbers: Vec<f32> = (0..rows * cols).map(|_| random.next() * scale).collect();
        if self.endless {
            match name {
                "token_embd.weight" => numbers.iter_mut().for_each(|n| *n *= 16.0),
                "output.weight" => numbers = self.next_token(cols),
                _ => {}
            }
        }
        let delicate = ["token_embd", "output.", "attn_v", "attn_qkv", "ffn_down"];
        // Converters leave small and sensitive matrices as they are.
        let precise = ["ffn_gate_inp", "ssm_alpha", "ssm_beta", "ssm_ba"];
        let kind = match self.kind {
            _ if precise.iter().any(|part| name.contains(part)) => "F32",
            // Its rows are short.
            "Q4_K" | "Q4_K_M" if name.contains("attn_k_b") => "Q8_0",
            "Q8_0" if !cols.is_multiple_of(32) => "F32",
            "Q4_K_M" if delicate.iter().any(|part| name.contains(part)) => "Q6_K",
            "Q4_K_M" => "Q4_K",
            kind => kind,
        };
        w.tensor(name, shape, kind, &numbers);
    }

    fn matrices(&self, w: &mut GgufWriter, random: &mut Random) {
        let (q, kv) = (self.q_heads * self.head_dim, self.kv_heads * self.head_dim);
        self.matrix(w, random, "token_embd.weight", &[self.vocab(), self.width]);
        if !self.tied {
            self.matrix(w, random, "output.weight", &[self.vocab(), self.width]);
        }
        let (width, own) = (self.width, self.architecture());
        let q_rows = if own.output_gate { 2 * q } else { q };
        let attention: &[(&str, &[usize])] = if own.fused {
            &[
                ("attn_qkv", &[q + 2 * kv, width]),
                ("attn_output", &[width, q]),
            ]
        } else {
            &[
                ("attn_q", &[q_rows, width]),
                ("attn_k", &[kv, width]),
                ("attn_v", &[kv, width]),
                ("attn_output", &[width, q]),
            ]
        };
        for layer in 0..self.layers {
            let block = self.block(layer);
            let mixer = match self.recurs(layer) {
                true => {
                    self.recurrent_matrices(w, random, block);
                    &[]
                }
                false if own.latent => {
                    self.latent_matrices(w, random, block);
                    &[]
                }
                false => attention,
            };
            for (part, shape) in mixer {
                self.matrix(w, random, &format!("blk.{block}.{part}.weight"), shape);
            }
            self.feed_forward_matrices(w, random, layer);
        }
    }

    fn vectors(&self, w: &mut GgufWriter, random: &mut Random) {
        let (q, kv) = (self.q_heads * self.head_dim, self.kv_heads * self.head_dim);
        let (own, width) = (self.architecture(), self.width);
        let mut vector = |name: &str, shape: &[usize], around: f32| {
            let count = 0..shape.iter().product();
            let numbers: Vec<f32> = count.map(|_| around + 0.1 * random.next()).collect();
            w.tensor(name, shape, "F32", &numbers);
        };
        vector(own.output_norm, &[width], 1.0);
        for layer in 0..self.layers {
            let name = |part: &str| format!("blk.{}.{part}", self.block(layer));
            let of_ffn = |part: &str| format!("blk.{}.{part}", self.ffn_block(layer));
            if own.pre_norm {
                vector(&name("attn_norm.weight"), &[width], 1.0);
            }
            if own.pre_norm && !own.parallel {
                vector(&of_ffn(own.ffn_norm), &[width], 1.0);
            }
            if own.shared_expert == Shared::Gated {
                vector(&of_ffn("ffn_gate_inp_shexp.weight"), &[width], 0.0);
            }
            if own.expert_bias {
                vector(&of_ffn("ffn_gate_inp.bias"), &[EXPERTS], 0.0);
            }
            if own.has_choice_bias() && self.routes(layer) {
                vector(&of_ffn("exp_probs_b.bias"), &[EXPERTS], 0.0);
            }
            if self.recurs(layer) {
                for (part, shape, mean) in self.recurrent_vectors() {
                    vector(&name(part), shape, *mean);
                }
                continue;
            }
            if own.latent {
                vector(&name("attn_q_a_norm.weight"), &[width], 1.0);
                vector(&name("attn_kv_a_norm.weight"), &[width], 1.0);
            }
            if own.sinks {
                vector(&name("attn_sinks.weight"), &[self.q_heads], 0.0);
            }
            if own.output_bias == Part::Required {
                vector(&name("attn_output.bias"), &[width], 0.0);
            }
            let norms = match own.qk_norm {
                QkNorm::None | QkNorm::HeadsInSome => None,
                QkNorm::Heads | QkNorm::HeadsAfterRope => Some([self.head_dim; 2]),
                QkNorm::Together => Some([q, kv]),
            };
            if let Some([of_q, of_k]) = norms {
                // Without another scale, norms keep dot products small, as in trained models.
                let around = if own.unscaled_attention { 0.3 } else { 1.0 };
                vector(&name("attn_q_norm.weight"), &[of_q], around);
                vector(&name("attn_k_norm.weight"), &[of_k], around);
            }
            if own.sandwich {
                vector(&name("post_attention_norm.weight"), &[width], 1.0);
                vector(&name("post_ffw_norm.weight"), &[width], 1.0);
            }
            if own.qkv_bias == Part::Required {
                vector(&name("attn_q.bias"), &[q], 0.0);
                vector(&name("attn_k.bias"), &[kv], 0.0);
                vector(&name("attn_v.bias"), &[kv], 0.0);
            }
        }
    }
}

/// A value of another file, in the form that the writer takes.
fn copied(gguf: &Gguf, key: &str) -> MetaValue {
    if let Ok(Some(text)) = gguf.text(key) {
        return MetaValue::Text(text.to_owned());
    }
    if let Ok(Some(flag)) = gguf.flag(key) {
        return MetaValue::Flag(flag);
    }
    if let Ok(Some(number)) = gguf.whole(key) {
        return MetaValue::Whole(number as u32);
    }
    if let Ok(Some(texts)) = gguf.texts(key) {
        return MetaValue::Texts(texts.into_iter().map(str::to_owned).collect());
    }
    if let Ok(Some(numbers)) = gguf.wholes(key) {
        return MetaValue::Wholes(numbers.into_iter().map(|n| n as u32).collect());
    }
    match gguf.numbers(key) {
        Ok(Some(numbers)) => MetaValue::Numbers(numbers),
        _ => panic!("{key} is of no kind that a tokenizer has"),
    }
}

fn tokens() -> Vec<String> {
    let mut tokens: Vec<String> = CONTROL.iter().map(|&text| text.to_owned()).collect();
    tokens.extend((0..=255u8).map(|byte| symbol_of_byte(byte).to_string()));
    tokens.extend(MERGES.iter().map(|line| line.replace(' ', "")));
    tokens
}

/// Random numbers from -1 to 1, the same on every machine.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn next(&mut self) -> f32 {
        // SplitMix64 (Steele, Lea and Flood, 2014).
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}
