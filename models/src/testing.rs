//! Tiny random GGUF files, for the tests of this crate and of those above it. Not part of the product: behind the
//! feature `testing`.
//!
//! [`GgufWriter`] writes any metadata and tensors, wrong ones too. [`TinyLlama`] writes a whole model with random
//! weights and a small byte-level tokenizer in which every byte has a token.

use std::path::Path;

use candle_core::quantized::k_quants::{
    BlockQ2K, BlockQ3K, BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1, BlockQ5K, BlockQ6K,
    BlockQ8_0, GgmlType,
};
use half::{bf16, f16};

use crate::architecture::{self, Architecture, Part, Sliding};
use crate::gguf::Gguf;
use crate::vocabulary::symbol_of_byte;

/// A metadata value to be written.
#[derive(Debug, Clone)]
pub enum MetaValue {
    /// As `u32`.
    Whole(u32),
    /// As `f32`.
    Number(f32),
    /// As `bool`.
    Flag(bool),
    /// As a string.
    Text(String),
    /// As an array of strings.
    Texts(Vec<String>),
    /// As an array of `u32`.
    Wholes(Vec<u32>),
    /// As an array of `f32`.
    Numbers(Vec<f32>),
}

/// Block types that can be written, by ggml's names.
pub const TYPES: [&str; 13] = [
    "F32", "F16", "BF16", "Q2_K", "Q3_K", "Q4_0", "Q4_1", "Q4_K", "Q5_0", "Q5_1", "Q5_K", "Q6_K",
    "Q8_0",
];

/// Builds a GGUF file.
#[derive(Debug, Clone)]
pub struct GgufWriter {
    /// Version written, 3 unless changed.
    pub version: u32,
    /// Alignment of tensor data, 32 unless changed (and then `general.alignment` is to be set too).
    pub alignment: usize,
    metadata: Vec<(String, MetaValue)>,
    /// Name, shape rows first, type number, data.
    tensors: Vec<(String, Vec<usize>, u32, Vec<u8>)>,
}

impl Default for GgufWriter {
    fn default() -> Self {
        GgufWriter {
            version: 3,
            alignment: 32,
            metadata: Vec::new(),
            tensors: Vec::new(),
        }
    }
}

impl GgufWriter {
    /// Set a metadata pair, replacing an earlier one of the same key.
    pub fn set(&mut self, key: &str, value: MetaValue) -> &mut Self {
        self.remove(key);
        self.metadata.push((key.to_owned(), value));
        self
    }

    /// Drop a metadata pair.
    pub fn remove(&mut self, key: &str) -> &mut Self {
        self.metadata.retain(|(k, _)| k != key);
        self
    }

    /// Add a tensor of `numbers` in a block type by its name, replacing an earlier one.
    ///
    /// # Panics
    /// When there is no such type, or a row is not whole blocks.
    pub fn tensor(
        &mut self,
        name: &str,
        shape: &[usize],
        kind: &str,
        numbers: &[f32],
    ) -> &mut Self {
        assert_eq!(numbers.len(), shape.iter().product::<usize>());
        let (number, data) = quantise(kind, numbers);
        self.raw_tensor(name, shape, number, data)
    }

    /// Add a tensor by the number of its type and its bytes, right or wrong, replacing an earlier one.
    pub fn raw_tensor(
        &mut self,
        name: &str,
        shape: &[usize],
        kind: u32,
        data: Vec<u8>,
    ) -> &mut Self {
        self.remove_tensor(name);
        self.tensors
            .push((name.to_owned(), shape.to_vec(), kind, data));
        self
    }

    /// Drop a tensor.
    pub fn remove_tensor(&mut self, name: &str) -> &mut Self {
        self.tensors.retain(|(n, ..)| n != name);
        self
    }

    /// The same in `parts` files, as `llama-gguf-split` would: the first has the metadata, each some of the tensors.
    pub fn split(&self, parts: usize) -> Vec<GgufWriter> {
        let each = self.tensors.len().div_ceil(parts);
        let part = |(number, tensors): (usize, &[_])| {
            let mut part = GgufWriter {
                metadata: match number {
                    0 => self.metadata.clone(),
                    _ => Vec::new(),
                },
                tensors: tensors.to_vec(),
                ..GgufWriter::default()
            };
            part.set("split.no", MetaValue::Whole(number as u32));
            part.set("split.count", MetaValue::Whole(parts as u32));
            let all = MetaValue::Whole(self.tensors.len() as u32);
            part.set("split.tensors.count", all);
            part
        };
        self.tensors.chunks(each).enumerate().map(part).collect()
    }

    /// The file's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            put_text(&mut out, key);
            put_value(&mut out, value);
        }
        let mut offset = 0usize;
        for (name, shape, kind, data) in &self.tensors {
            put_text(&mut out, name);
            out.extend((shape.len() as u32).to_le_bytes());
            for dim in shape.iter().rev() {
                out.extend((*dim as u64).to_le_bytes());
            }
            out.extend(kind.to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset += data.len().next_multiple_of(self.alignment);
        }
        for (.., data) in &self.tensors {
            out.resize(out.len().next_multiple_of(self.alignment), 0);
            out.extend(data);
        }
        out
    }

    /// Write the file.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        std::fs::write(path, self.bytes())
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &MetaValue) {
    let put_kind = |out: &mut Vec<u8>, kind: u32| out.extend(kind.to_le_bytes());
    match value {
        MetaValue::Whole(n) => {
            put_kind(out, 4);
            out.extend(n.to_le_bytes());
        }
        MetaValue::Number(n) => {
            put_kind(out, 6);
            out.extend(n.to_le_bytes());
        }
        MetaValue::Flag(flag) => {
            put_kind(out, 7);
            out.push(u8::from(*flag));
        }
        MetaValue::Text(text) => {
            put_kind(out, 8);
            put_text(out, text);
        }
        MetaValue::Texts(texts) => {
            put_kind(out, 9);
            put_kind(out, 8);
            out.extend((texts.len() as u64).to_le_bytes());
            texts.iter().for_each(|text| put_text(out, text));
        }
        MetaValue::Wholes(numbers) => {
            put_kind(out, 9);
            put_kind(out, 4);
            out.extend((numbers.len() as u64).to_le_bytes());
            numbers.iter().for_each(|n| out.extend(n.to_le_bytes()));
        }
        MetaValue::Numbers(numbers) => {
            put_kind(out, 9);
            put_kind(out, 6);
            out.extend((numbers.len() as u64).to_le_bytes());
            numbers.iter().for_each(|n| out.extend(n.to_le_bytes()));
        }
    }
}

/// The type's number and the numbers as its blocks.
fn quantise(kind: &str, numbers: &[f32]) -> (u32, Vec<u8>) {
    /// Quantised by candle, which can show the bytes of its blocks only through a tensor's storage.
    fn blocks<T: GgmlType + 'static>(numbers: &[f32]) -> Vec<u8> {
        let mut blocks = vec![T::zeros(); numbers.len() / T::BLCK_SIZE];
        assert!(
            numbers.len().is_multiple_of(T::BLCK_SIZE),
            "not whole blocks"
        );
        T::from_float(numbers, &mut blocks);
        let storage = candle_core::quantized::QStorage::Cpu(Box::new(blocks));
        let tensor =
            candle_core::quantized::QTensor::new(storage, numbers.len()).expect("whole blocks");
        tensor.data().expect("on the CPU").into_owned()
    }
    match kind {
        "F32" => (0, numbers.iter().flat_map(|n| n.to_le_bytes()).collect()),
        "F16" => (
            1,
            numbers
                .iter()
                .flat_map(|n| f16::from_f32(*n).to_le_bytes())
                .collect(),
        ),
        "BF16" => (
            30,
            numbers
                .iter()
                .flat_map(|n| bf16::from_f32(*n).to_le_bytes())
                .collect(),
        ),
        "Q4_0" => (2, blocks::<BlockQ4_0>(numbers)),
        "Q4_1" => (3, blocks::<BlockQ4_1>(numbers)),
        "Q5_0" => (6, blocks::<BlockQ5_0>(numbers)),
        "Q5_1" => (7, blocks::<BlockQ5_1>(numbers)),
        "Q2_K" => (10, blocks::<BlockQ2K>(numbers)),
        "Q3_K" => (11, blocks::<BlockQ3K>(numbers)),
        "Q8_0" => (8, blocks::<BlockQ8_0>(numbers)),
        "Q4_K" => (12, blocks::<BlockQ4K>(numbers)),
        "Q5_K" => (13, blocks::<BlockQ5K>(numbers)),
        "Q6_K" => (14, blocks::<BlockQ6K>(numbers)),
        other => panic!("{other} is none of {TYPES:?}"),
    }
}

/// A model with random weights, a llama unless told otherwise. Change what a test is about; the rest is small and valid.
#[derive(Debug, Clone)]
pub struct TinyLlama {
    /// `general.architecture`: the file then has what its row of the table says.
    pub arch: &'static str,
    /// Decoder layers.
    pub layers: usize,
    /// Width of the residual stream; a multiple of 256 for the K-quants.
    pub width: usize,
    /// Width of the feed-forward's inner layer.
    pub ffn: usize,
    /// Query heads.
    pub q_heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Numbers in a head.
    pub head_dim: usize,
    /// Positions.
    pub context: usize,
    /// Block type of all matrices; `Q4_K_M` is Q4_K with the more delicate ones in Q6_K, as llama.cpp mixes them.
    pub kind: &'static str,
    /// Whether the output projection is the embedding.
    pub tied: bool,
    /// `tokenizer.ggml.pre`
    pub pre: &'static str,
    /// Of the random weights.
    pub seed: u64,
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
        }
    }
}

/// Merges of the tiny tokenizer, parts before wholes: enough that common words become one token.
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

/// Control tokens of the tiny tokenizer, with the ids from 0 on.
pub const CONTROL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

impl TinyLlama {
    /// Tokens of the vocabulary.
    pub fn vocab(&self) -> usize {
        tokens().len()
    }

    /// A writer with everything in place, for tests that then spoil something.
    pub fn writer(&self) -> GgufWriter {
        let mut w = GgufWriter::default();
        let whole = |n: usize| MetaValue::Whole(n as u32);
        let text = |t: &str| MetaValue::Text(t.to_owned());
        w.set("general.architecture", text(self.arch));
        w.set("general.name", text("tiny"));
        let key = |key: &str| format!("{}.{key}", self.arch);
        for (part, value) in [
            ("block_count", self.layers),
            ("embedding_length", self.width),
            ("feed_forward_length", self.ffn),
            ("attention.head_count", self.q_heads),
            ("attention.head_count_kv", self.kv_heads),
            ("attention.key_length", self.head_dim),
            ("attention.value_length", self.head_dim),
            ("rope.dimension_count", self.head_dim),
            ("context_length", self.context),
        ] {
            w.set(&key(part), whole(value));
        }
        w.set(
            &key("attention.layer_norm_rms_epsilon"),
            MetaValue::Number(1e-5),
        );
        w.set(&key("rope.freq_base"), MetaValue::Number(10_000.0));
        if let Sliding::Most { .. } = self.architecture().sliding {
            w.set(&key("attention.sliding_window"), whole(8));
        }
        self.tokenizer(&mut w);
        self.tensors(&mut w);
        w
    }

    /// Write the model.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        self.writer().write(path)
    }

    fn architecture(&self) -> &'static Architecture {
        architecture::find(self.arch).expect("a supported architecture")
    }

    /// A writer of the same model with the tokenizer of another file, and its name. The output projection is the embedding.
    ///
    /// # Panics
    /// Where the file has no tokens.
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

    fn tensors(&self, w: &mut GgufWriter) {
        let mut random = Random(self.seed);
        let (q, kv) = (self.q_heads * self.head_dim, self.kv_heads * self.head_dim);
        let mut matrix = |w: &mut GgufWriter, name: &str, rows: usize, cols: usize| {
            let scale = 1.0 / (cols as f32).sqrt();
            let numbers: Vec<f32> = (0..rows * cols).map(|_| random.next() * scale).collect();
            let delicate = ["token_embd", "output.", "attn_v", "attn_qkv", "ffn_down"];
            let kind = match self.kind {
                "Q4_K_M" if delicate.iter().any(|part| name.contains(part)) => "Q6_K",
                "Q4_K_M" => "Q4_K",
                kind => kind,
            };
            w.tensor(name, &[rows, cols], kind, &numbers);
        };
        matrix(w, "token_embd.weight", self.vocab(), self.width);
        if !self.tied {
            matrix(w, "output.weight", self.vocab(), self.width);
        }
        let (width, ffn) = (self.width, self.ffn);
        let fused: &[(&str, usize, usize)] = &[
            ("attn_qkv", q + 2 * kv, width),
            ("attn_output", width, q),
            ("ffn_up", 2 * ffn, width),
            ("ffn_down", width, ffn),
        ];
        let apart: &[(&str, usize, usize)] = &[
            ("attn_q", q, width),
            ("attn_k", kv, width),
            ("attn_v", kv, width),
            ("attn_output", width, q),
            ("ffn_gate", ffn, width),
            ("ffn_up", ffn, width),
            ("ffn_down", width, ffn),
        ];
        let own = self.architecture();
        for layer in 0..self.layers {
            for (part, rows, cols) in if own.fused { fused } else { apart } {
                matrix(w, &format!("blk.{layer}.{part}.weight"), *rows, *cols);
            }
        }
        let mut vector = |name: &str, len: usize, around: f32| {
            let numbers: Vec<f32> = (0..len).map(|_| around + 0.1 * random.next()).collect();
            w.tensor(name, &[len], "F32", &numbers);
        };
        vector("output_norm.weight", width, 1.0);
        for layer in 0..self.layers {
            let name = |part: &str| format!("blk.{layer}.{part}");
            vector(&name("attn_norm.weight"), width, 1.0);
            vector(&name("ffn_norm.weight"), width, 1.0);
            if own.qk_norm {
                vector(&name("attn_q_norm.weight"), self.head_dim, 1.0);
                vector(&name("attn_k_norm.weight"), self.head_dim, 1.0);
            }
            if own.sandwich {
                vector(&name("post_attention_norm.weight"), width, 1.0);
                vector(&name("post_ffw_norm.weight"), width, 1.0);
            }
            if own.qkv_bias == Part::Required {
                vector(&name("attn_q.bias"), q, 0.0);
                vector(&name("attn_k.bias"), kv, 0.0);
                vector(&name("attn_v.bias"), kv, 0.0);
            }
        }
    }
}

/// A value of another file, to be written again.
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

/// Numbers from -1 to 1, the same on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        // SplitMix64 (Steele, Lea and Flood, 2014).
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}
