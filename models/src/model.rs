//! An opened model file: [`Model::open`] reads and checks it.
//!
//! `decoder.rs` has the arithmetic, `architecture.rs` the tensors of each architecture. The engine owns attention and
//! caches.

use std::any::Any;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use crate::architecture::{HasExperts, IsRecurrent};
use crate::gguf::{Gguf, TensorInfo};
use crate::layer::{Layer, Mixer};
use crate::per_layer::PerLayerTables;
use crate::weights::{self, SharedMatrix};
use crate::{ChatTemplate, Config, LayerKind, ModelError, OpenOptions, Tokenizer};

/// How names of projections of attention start.
const PROJECTIONS: [&str; 10] = [
    "attn_q.",
    "attn_k.",
    "attn_v.",
    "attn_qkv.",
    "attn_q_a.",
    "attn_q_b.",
    "attn_kv_a_mqa.",
    "attn_kv_b.",
    "attn_k_b.",
    "attn_v_b.",
];

/// An opened model: its shape, mapped weights, tokenizer and chat template.
///
/// Weights remain in the file's pages, so opening takes milliseconds for any size. The tokenizer and the chat template
/// are built on first use, and their defects are reported only then: a model without a supported tokenizer can be
/// benchmarked.
pub struct Model {
    pub(crate) gguf: Gguf,
    pub(crate) config: Config,
    name: String,
    /// `[vocab, width]`
    pub(crate) embedding: SharedMatrix,
    /// `[vocab, width]`; the embedding itself if tied.
    pub(crate) output: SharedMatrix,
    /// `[width]`
    pub(crate) output_norm: Vec<f32>,
    pub(crate) layers: Vec<Layer>,
    /// Tables of the embeddings that each layer adds, if the model has them.
    pub(crate) per_layer: Option<PerLayerTables>,
    /// What a device has of the model, such as its weights in device memory.
    attachment: Option<Box<dyn Any + Send + Sync>>,
    tokenizer: OnceLock<Result<Tokenizer, ModelError>>,
    template: OnceLock<Result<ChatTemplate, ModelError>>,
}

impl Model {
    /// Opens a GGUF file and checks that all tensors needed are present and have the right shape.
    ///
    /// # Errors
    /// Every [`ModelError`] except those of the tokenizer and the chat template.
    pub fn open(path: &Path) -> Result<Model, ModelError> {
        Model::open_with(path, &OpenOptions::default())
    }

    /// [`Model::open`] with the user's settings.
    ///
    /// # Errors
    /// As [`Model::open`].
    pub fn open_with(path: &Path, options: &OpenOptions) -> Result<Model, ModelError> {
        let gguf = Gguf::open(path)?;
        let config = Config::read(&gguf, options)?;
        let vocab_matrix = |name| weights::matrix(&gguf, name, config.vocab, config.width);
        let embedding = Arc::new(vocab_matrix("token_embd.weight")?);
        let output = if config.tied_output {
            Arc::clone(&embedding)
        } else {
            Arc::new(vocab_matrix("output.weight")?)
        };
        // Not `with_capacity`: an inflated layer count ends at a missing tensor.
        let mut layers = Vec::new();
        for layer in 0..config.layers {
            layers.push(Layer::read(&gguf, &config, layer)?);
        }
        refuse_unknown_tensors(&gguf, &config)?;
        let per_layer = (config.per_layer)
            .map(|per_layer| PerLayerTables::read(&gguf, &config, per_layer))
            .transpose()?;
        Ok(Model {
            name: name_of(&gguf, path),
            output_norm: weights::vector(&gguf, config.architecture.output_norm, config.width)?,
            gguf,
            config,
            embedding,
            output,
            per_layer,
            layers,
            attachment: None,
            tokenizer: OnceLock::new(),
            template: OnceLock::new(),
        })
    }

    /// The model's shape.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The attention sinks of a layer, `[q_heads]`: learned logits that take part in every softmax and have no value.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn attention_sinks(&self, layer: usize) -> Option<&[f32]> {
        match &self.layers[layer].mixer {
            Mixer::Attention(attention) => attention.sinks.as_deref(),
            Mixer::Recurrent(_) => None,
        }
    }

    /// The container, for inspection.
    pub fn gguf(&self) -> &Gguf {
        &self.gguf
    }

    /// The file's name without `.gguf`. `general.name` is often that of a training run, or shared by several
    /// quantisations; it names files that other programs call by their hash.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The tokenizer, built on first use.
    ///
    /// # Errors
    /// [`ModelError`]: `UnsupportedTokenizer`, `UnsupportedPreTokenizer`, `BadVocabulary`, `MissingKey`, `BadValue`.
    pub fn tokenizer(&self) -> Result<&Tokenizer, ModelError> {
        let built = self
            .tokenizer
            .get_or_init(|| Tokenizer::read(&self.gguf, Some(self.config.vocab)));
        built.as_ref().map_err(Clone::clone)
    }

    /// The chat template, built on first use.
    ///
    /// # Errors
    /// Those of [`Self::tokenizer`], and `Template`.
    pub fn chat_template(&self) -> Result<&ChatTemplate, ModelError> {
        let built = self
            .template
            .get_or_init(|| ChatTemplate::of_file(&self.gguf, self.tokenizer()?));
        built.as_ref().map_err(Clone::clone)
    }

    /// The first tensor with a weight that is NaN or infinite. Reads all weights: seconds for a large model.
    pub fn tensor_not_finite(&self) -> Option<String> {
        let mut tensors: Vec<_> = self.gguf.tensors().collect();
        tensors.sort_by_key(|tensor| (tensor.part, tensor.start));
        let mut tensors = tensors.into_iter();
        let found = tensors.find(|tensor| !weights::is_finite(&self.gguf, tensor));
        found.map(|tensor| tensor.name.clone())
    }

    /// Number of parameters: elements of all tensors.
    pub fn parameters(&self) -> u64 {
        let elements = |shape: &[usize]| shape.iter().map(|&n| n as u64).product::<u64>();
        self.gguf.tensors().map(|t| elements(&t.shape)).sum()
    }

    /// Bytes of all weights in the file.
    pub fn weights_bytes(&self) -> u64 {
        self.gguf.tensor_bytes()
    }

    /// Bytes of weights read per decoded token: all except a separate embedding table, of which one row is read, and
    /// the experts that a token does not use.
    pub fn step_bytes(&self) -> u64 {
        let bytes = |name| self.gguf.tensor(name).map_or(0, |t| t.bytes as u64);
        let unused = (self.gguf.tensors()).map(|t| t.bytes as u64 - self.read_bytes(t));
        let unused = unused.sum::<u64>() + bytes("per_layer_token_embd.weight");
        let read = self.weights_bytes() - unused;
        match bytes("output.weight") {
            // Tied: the table is the output projection too.
            0 => read,
            _ => read - bytes("token_embd.weight"),
        }
    }

    /// Bytes of a layer's tensor read per token: of experts, those of the experts that a token uses.
    fn read_bytes(&self, tensor: &TensorInfo) -> u64 {
        let bytes = tensor.bytes as u64;
        match self.config.experts {
            Some(counts) if tensor.name.contains("_exps.") => {
                bytes / counts.all as u64 * counts.used as u64
            }
            _ => bytes,
        }
    }

    /// Bytes of weights read per decoded token by the projections of attention, by recurrent layers, by the rest of the
    /// other layers, and by the logits: together [`Model::step_bytes`].
    pub fn part_bytes(&self) -> [u64; 4] {
        let (mut projections, mut recurrent) = (0, 0);
        for tensor in self.gguf.tensors() {
            let Some((block, name)) =
                (tensor.name.strip_prefix("blk.")).and_then(|rest| rest.split_once('.'))
            else {
                continue;
            };
            let mut kinds = self.config.kinds.iter();
            let kind = (block.parse().ok())
                .and_then(|block| kinds.find(|kind| kind.blocks.contains(block)));
            if kind.is_some_and(LayerKind::is_recurrent) {
                recurrent += self.read_bytes(tensor);
            } else if PROJECTIONS.iter().any(|part| name.starts_with(part)) {
                projections += tensor.bytes as u64;
            }
        }
        let logits = self.output.bytes().len() as u64;
        [
            projections,
            recurrent,
            self.step_bytes() - projections - recurrent - logits,
            logits,
        ]
    }

    /// Bytes of weights read per prompt token: those of the layers.
    pub fn layers_bytes(&self) -> u64 {
        let bytes = |name| self.gguf.tensor(name).map_or(0, |t| t.bytes as u64);
        let tables = [
            "token_embd.weight",
            "output.weight",
            "per_layer_token_embd.weight",
        ];
        self.weights_bytes() - tables.map(bytes).iter().sum::<u64>()
    }

    /// Memory of the tokenizer and of the mapped metadata that it was built from, in bytes; 0 until it is built.
    pub fn vocabulary_bytes(&self) -> u64 {
        let built = self.tokenizer.get().and_then(|built| built.as_ref().ok());
        built.map_or(0, |built| built.bytes() + self.gguf.bytes_besides_tensors())
    }

    /// Bytes of the f32 copies of one layer's weights during prefill, the maximum over layers; 0 if all are quantised and
    /// none transposed, as in most models.
    pub fn layer_tiles_bytes(&self) -> u64 {
        (self.layers.iter().map(Layer::copied_bytes))
            .max()
            .unwrap_or(0)
    }

    /// Keeps `attachment` with the model: what a device has of it, such as its weights in device memory. Replaces an
    /// earlier one. This crate does not read it.
    pub fn attach(&mut self, attachment: impl Any + Send + Sync) {
        self.attachment = Some(Box::new(attachment));
    }

    /// The attachment, if it has this type.
    pub fn attached<T: Any>(&self) -> Option<&T> {
        self.attachment.as_deref()?.downcast_ref()
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

/// What [`Model::name`] says.
fn name_of(gguf: &Gguf, path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let named = path.extension().is_some_and(|end| end == "gguf");
    let title = gguf.text("general.name").ok().flatten();
    match title.filter(|title| !named && !title.trim().is_empty()) {
        Some(title) => title.to_owned(),
        None => stem.into_owned(),
    }
}

fn refuse_unknown_tensors(gguf: &Gguf, config: &Config) -> Result<(), ModelError> {
    let blocks = config.kinds.iter().map(|kind| kind.blocks.last() + 1).max();
    let mut block_tensors = vec![Vec::new(); blocks.unwrap_or(0)];
    // Read only if the file declares its width.
    let shares = config
        .experts
        .is_some_and(|counts| counts.shared_ffn.is_some());
    for kind in &config.kinds {
        let mixer = Some(IsRecurrent(kind.is_recurrent()));
        let feed_forward = Some(HasExperts(kind.experts));
        let tensors = |mixer, ffn| {
            let mut names = config.architecture.block_tensors(mixer, ffn);
            names.retain(|name| shares || !name.contains("_shexp."));
            names
        };
        match kind.blocks.feed_forward {
            Some(block) if block == kind.blocks.mixer => {
                block_tensors[block] = tensors(mixer, feed_forward);
            }
            other => {
                block_tensors[kind.blocks.mixer] = tensors(mixer, None);
                if let Some(block) = other {
                    block_tensors[block] = tensors(None, feed_forward);
                }
            }
        }
    }
    let model_tensors = config.architecture.model_tensors();
    let known = |name: &str| match name.strip_prefix("blk.").and_then(|r| r.split_once('.')) {
        Some((layer, part)) => layer.parse::<usize>().is_ok_and(|l| {
            let unused = block_tensors.len()..block_tensors.len() + config.prediction_layers;
            unused.contains(&l) || block_tensors.get(l).is_some_and(|own| own.contains(&part))
        }),
        None => model_tensors.contains(&name),
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
