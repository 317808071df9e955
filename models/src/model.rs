//! A model file made ready: what [`Model::open`] reads and checks, and what can be asked of it.
//!
//! The arithmetic is in `llama.rs`. Not here: attention and caches.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use kept_kernels::mapped::MappedMatrix;

use crate::gguf::Gguf;
use crate::weights::{self, SharedMatrix};
use crate::{ChatTemplate, Config, ModelError, Tokenizer};

/// A model that is open: its shape, its mapped weights, its tokenizer and chat template.
///
/// Weights stay in the file's pages, so opening takes milliseconds whatever the size. The tokenizer and the chat
/// template are built when first asked for, and what is wrong with them is an error only then: a file that Kept
/// cannot tokenise can still be timed.
pub struct Model {
    pub(crate) gguf: Gguf,
    pub(crate) config: Config,
    name: String,
    /// `[vocab, width]`
    pub(crate) embedding: SharedMatrix,
    /// `[vocab, width]`; the embedding itself when tied.
    pub(crate) output: SharedMatrix,
    /// `[width]`
    pub(crate) output_norm: Vec<f32>,
    pub(crate) layers: Vec<Layer>,
    tokenizer: OnceLock<Result<Tokenizer, ModelError>>,
    template: OnceLock<Result<ChatTemplate, ModelError>>,
}

/// Weights of one decoder layer.
pub(crate) struct Layer {
    /// `[width]`
    pub(crate) attention_norm: Vec<f32>,
    /// `[q_heads * head_dim, width]`
    pub(crate) q: MappedMatrix,
    /// `[kv_heads * head_dim, width]`
    pub(crate) k: MappedMatrix,
    /// `[kv_heads * head_dim, width]`
    pub(crate) v: MappedMatrix,
    /// `[width, q_heads * head_dim]`
    pub(crate) o: MappedMatrix,
    /// `[width]`
    pub(crate) ffn_norm: Vec<f32>,
    /// `[ffn, width]`
    pub(crate) gate: MappedMatrix,
    /// `[ffn, width]`
    pub(crate) up: MappedMatrix,
    /// `[width, ffn]`
    pub(crate) down: MappedMatrix,
}

impl Layer {
    fn read(gguf: &Gguf, config: &Config, layer: usize) -> Result<Layer, ModelError> {
        let (width, ffn) = (config.width, config.ffn);
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let matrix = |part, rows, cols| weights::matrix(gguf, &name(part), (rows, cols));
        Ok(Layer {
            attention_norm: weights::vector(gguf, &name("attn_norm"), width)?,
            q: matrix("attn_q", config.q_width(), width)?,
            k: matrix("attn_k", config.kv_width(), width)?,
            v: matrix("attn_v", config.kv_width(), width)?,
            o: matrix("attn_output", width, config.q_width())?,
            ffn_norm: weights::vector(gguf, &name("ffn_norm"), width)?,
            gate: matrix("ffn_gate", ffn, width)?,
            up: matrix("ffn_up", ffn, width)?,
            down: matrix("ffn_down", width, ffn)?,
        })
    }

    pub(crate) fn matrices(&self) -> [&MappedMatrix; 7] {
        [
            &self.q, &self.k, &self.v, &self.o, &self.gate, &self.up, &self.down,
        ]
    }
}

/// Parts of a layer that [`Layer`] reads; anything else in a file would be left out of the computation.
const LAYER_PARTS: [&str; 9] = [
    "attn_norm",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_output",
    "ffn_norm",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
];

impl Model {
    /// Open a GGUF file and check that everything the computation needs is there, in the right shape.
    ///
    /// # Errors
    /// Every [`ModelError`] but those of the tokenizer and the chat template.
    pub fn open(path: &Path) -> Result<Model, ModelError> {
        let gguf = Gguf::open(path)?;
        let config = Config::read(&gguf)?;
        let vocab_by_width = (config.vocab, config.width);
        let embedding = Arc::new(weights::matrix(&gguf, "token_embd.weight", vocab_by_width)?);
        let output = match config.tied_output {
            true => Arc::clone(&embedding),
            false => Arc::new(weights::matrix(&gguf, "output.weight", vocab_by_width)?),
        };
        // The layers are read one by one rather than into a reserved list: a false count ends at a missing tensor.
        let mut layers = Vec::new();
        for layer in 0..config.layers {
            layers.push(Layer::read(&gguf, &config, layer)?);
        }
        refuse_unknown_tensors(&gguf, &config)?;
        let name = gguf
            .text("general.name")
            .ok()
            .flatten()
            .filter(|name| !name.trim().is_empty());
        let stem = || {
            path.file_stem()
                .map_or_else(String::new, |s| s.to_string_lossy().into_owned())
        };
        Ok(Model {
            name: name.map_or_else(stem, str::to_owned),
            output_norm: weights::vector(&gguf, "output_norm.weight", config.width)?,
            gguf,
            config,
            embedding,
            output,
            layers,
            tokenizer: OnceLock::new(),
            template: OnceLock::new(),
        })
    }

    /// The model's shape.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The container, for listing what is in it.
    pub fn gguf(&self) -> &Gguf {
        &self.gguf
    }

    /// `general.name`, or the file's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The tokenizer, built when first asked for.
    ///
    /// # Errors
    /// [`ModelError`]: `UnsupportedTokenizer`, `UnsupportedPreTokenizer`, `BadVocabulary`, `MissingKey`, `BadValue`.
    pub fn tokenizer(&self) -> Result<&Tokenizer, ModelError> {
        let built = self
            .tokenizer
            .get_or_init(|| Tokenizer::read(&self.gguf, self.config.vocab));
        built.as_ref().map_err(Clone::clone)
    }

    /// The chat template, built when first asked for.
    ///
    /// # Errors
    /// Those of [`Self::tokenizer`], `Template` and `NoTemplate`.
    pub fn chat_template(&self) -> Result<&ChatTemplate, ModelError> {
        let built = self
            .template
            .get_or_init(|| ChatTemplate::read(&self.gguf, self.tokenizer()?));
        built.as_ref().map_err(Clone::clone)
    }

    /// Bytes of all weights, which are read from the file's pages.
    pub fn weights_bytes(&self) -> u64 {
        self.gguf.tensor_bytes()
    }

    /// About how many bytes the tiles of the largest layer take during prefill, above the weights.
    pub fn layer_tiles_bytes(&self) -> u64 {
        let layer = |layer: &Layer| layer.matrices().into_iter().map(weights::tiles_bytes).sum();
        self.layers.iter().map(layer).max().unwrap_or(0)
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model")
            .field("name", &self.name)
            .field("config", &self.config)
            .finish()
    }
}

fn refuse_unknown_tensors(gguf: &Gguf, config: &Config) -> Result<(), ModelError> {
    let known = |name: &str| -> bool {
        if let Some((layer, part)) = name
            .strip_prefix("blk.")
            .and_then(|rest| rest.split_once('.'))
        {
            return layer.parse::<usize>().is_ok_and(|layer| layer < config.layers)
                // `attn_rot_embd` holds the angles that old converters wrote out; ours are computed.
                && (part == "attn_rot_embd.weight"
                    || part.strip_suffix(".weight").is_some_and(|part| LAYER_PARTS.contains(&part)));
        }
        [
            "token_embd.weight",
            "output.weight",
            "output_norm.weight",
            "rope_freqs.weight",
        ]
        .contains(&name)
    };
    let unknown = gguf
        .tensors()
        .map(|tensor| &tensor.name)
        .filter(|name| !known(name))
        .min();
    match unknown {
        Some(name) => Err(ModelError::UnknownTensor { name: name.clone() }),
        None => Ok(()),
    }
}
