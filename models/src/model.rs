//! An opened model file: [`Model::open`] reads and checks it.
//!
//! `decoder.rs` has the arithmetic, `architecture.rs` the tensors of each architecture. The engine owns attention and
//! caches.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use kept_kernels::mapped::MappedMatrix;

use crate::architecture::{Part, QkNorm};
use crate::delta::DeltaNet;
use crate::experts::Experts;
use crate::gguf::{Gguf, TensorInfo};
use crate::gpu::GpuModel;
use crate::per_layer::{PerLayer, PerLayerTables};
use crate::weights::{self, SharedMatrix};
use crate::{ChatTemplate, Config, ExpertCounts, ModelError, OpenOptions, Tokenizer};

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
    /// The weights on a GPU, if they were uploaded.
    pub(crate) gpu: Option<Arc<GpuModel>>,
    tokenizer: OnceLock<Result<Tokenizer, ModelError>>,
    template: OnceLock<Result<ChatTemplate, ModelError>>,
}

/// Weights of one decoder layer. A weight is `None` if files of its architecture do not have it.
pub(crate) struct Layer {
    /// `[width]`
    pub(crate) attention_norm: Option<Vec<f32>>,
    pub(crate) mixer: Mixer,
    /// `[width]`: norm of the mixer's output before it is added.
    pub(crate) post_attention_norm: Option<Vec<f32>>,
    /// `[width]`
    pub(crate) ffn_norm: Option<Vec<f32>>,
    pub(crate) ffn: FeedForward,
    /// `[width]`: norm of the feed-forward output before it is added.
    pub(crate) post_ffn_norm: Option<Vec<f32>>,
    /// The embeddings that the layer adds.
    pub(crate) per_layer: Option<PerLayer>,
    /// Factor on the residual stream after the layer; 1 in most models.
    pub(crate) output_scale: f32,
}

/// What mixes the tokens of one layer.
pub(crate) enum Mixer {
    Attention(Attention),
    Recurrent(DeltaNet),
}

/// Weights of attention. A weight is `None` if files of its architecture do not have it.
pub(crate) struct Attention {
    /// `[q_heads * head_dim, width]`; with output gates `[q_heads * 2 * head_dim, width]`, each head's query and gate.
    pub(crate) q: MappedMatrix,
    /// `[kv_heads * head_dim, width]`; `None` in a layer that attends to the keys of an earlier one.
    pub(crate) k: Option<MappedMatrix>,
    /// `[kv_heads * head_dim, width]`; `None` if values are the keys as projected, or without keys.
    pub(crate) v: Option<MappedMatrix>,
    /// `[q_heads * head_dim]`
    pub(crate) q_bias: Option<Vec<f32>>,
    /// `[kv_heads * head_dim]`
    pub(crate) k_bias: Option<Vec<f32>>,
    /// `[kv_heads * head_dim]`
    pub(crate) v_bias: Option<Vec<f32>>,
    /// `[head_dim]`, or `[q_heads * head_dim]`: norm of each query head, or of all together, before RoPE.
    pub(crate) q_norm: Option<Vec<f32>>,
    /// `[head_dim]`, or `[kv_heads * head_dim]`: norm of each key head, or of all together, before RoPE.
    pub(crate) k_norm: Option<Vec<f32>>,
    /// `[head_dim]`: norm of each value head.
    pub(crate) v_norm: Option<Vec<f32>>,
    /// `[width, q_heads * head_dim]`
    pub(crate) o: MappedMatrix,
    /// `[width]`
    pub(crate) o_bias: Option<Vec<f32>>,
    /// `[q_heads]`: logits that take part in every softmax of a head and belong to no key.
    pub(crate) sinks: Option<Vec<f32>>,
}

/// The feed-forward of one layer.
pub(crate) enum FeedForward {
    Dense(Dense),
    Experts(Box<Experts>),
    /// The sum of both.
    Both(Box<DenseAndExperts>),
}

/// A dense feed-forward and experts beside it.
pub(crate) struct DenseAndExperts {
    pub(crate) dense: Dense,
    pub(crate) experts: Experts,
    /// `[width]`: norm of the dense output.
    pub(crate) dense_norm: Vec<f32>,
    /// `[width]`: norm of the residual stream for the experts.
    pub(crate) input_norm: Vec<f32>,
    /// `[width]`: norm of the residual stream for the router.
    pub(crate) router_norm: Vec<f32>,
    /// `[width]`: norm of the experts' output.
    pub(crate) experts_norm: Vec<f32>,
}

impl DenseAndExperts {
    fn read(
        gguf: &Gguf,
        config: &Config,
        counts: ExpertCounts,
        layer: usize,
    ) -> Result<Self, ModelError> {
        let vector =
            |part: &str| weights::vector(gguf, &format!("blk.{layer}.{part}"), config.width);
        let mut router_norm = vector("ffn_gate_inp.scale")?;
        let scale = (config.width as f32).sqrt().recip();
        router_norm.iter_mut().for_each(|x| *x *= scale);
        Ok(Self {
            dense: Dense::read(gguf, config, layer)?,
            experts: Experts::read(gguf, config, counts, layer)?,
            dense_norm: vector("post_ffw_norm_1.weight")?,
            input_norm: vector("pre_ffw_norm_2.weight")?,
            router_norm,
            experts_norm: vector("post_ffw_norm_2.weight")?,
        })
    }
}

/// A feed-forward that every token passes through.
pub(crate) struct Dense {
    /// `[ffn, width]`
    pub(crate) gate: MappedMatrix,
    /// `[ffn, width]`
    pub(crate) up: MappedMatrix,
    /// `[width, ffn]`
    pub(crate) down: MappedMatrix,
}

impl Dense {
    fn read(gguf: &Gguf, config: &Config, layer: usize) -> Result<Dense, ModelError> {
        let (width, ffn) = (config.width, config.kinds[layer].ffn);
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let matrix = |part, rows, cols| weights::matrix(gguf, &name(part), rows, cols);
        let [gate, up] = if config.architecture.fused {
            weights::stacked(gguf, &name("ffn_up"), [ffn, ffn], width)?
        } else {
            [
                matrix("ffn_gate", ffn, width)?,
                matrix("ffn_up", ffn, width)?,
            ]
        };
        Ok(Dense {
            gate,
            up,
            down: matrix("ffn_down", width, ffn)?,
        })
    }
}

impl Attention {
    fn read(gguf: &Gguf, config: &Config, layer: usize) -> Result<Self, ModelError> {
        let width = config.width;
        let (q_width, kv_width) = (config.q_width_of(layer), config.kv_width_of(layer));
        let (architecture, kind) = (config.architecture, &config.kinds[layer]);
        let weight = |part: &str| format!("blk.{layer}.{part}.weight");
        let matrix = |part, rows, cols| weights::matrix(gguf, &weight(part), rows, cols);
        let bias = |kind: Part, part: &str, len: usize| {
            let name = format!("blk.{layer}.{part}.bias");
            match kind {
                Part::Absent => Ok(None),
                Part::Optional => weights::optional_vector(gguf, &name, len),
                Part::Required => weights::vector(gguf, &name, len).map(Some),
            }
        };
        let has = |part: &str| gguf.tensor(&weight(part)).is_some();
        let q_rows = if architecture.output_gate {
            2 * q_width
        } else {
            q_width
        };
        let [q, k, v] = if kind.keys_of.is_some() {
            [Some(matrix("attn_q", q_rows, width)?), None, None]
        } else if architecture.value_norm && !has("attn_v") && !has("attn_qkv") {
            let k = matrix("attn_k", kv_width, width)?;
            [Some(matrix("attn_q", q_rows, width)?), Some(k), None]
        } else if has("attn_qkv") || architecture.fused && !has("attn_q") {
            // With both, one of the tensors would be ignored.
            if let Some(part) = ["attn_q", "attn_k", "attn_v"]
                .into_iter()
                .find(|part| has(part))
            {
                return Err(ModelError::UnknownTensor { name: weight(part) });
            }
            let qkv = [q_rows, kv_width, kv_width];
            weights::stacked(gguf, &weight("attn_qkv"), qkv, width)?.map(Some)
        } else {
            let [k, v] = ["attn_k", "attn_v"].map(|part| matrix(part, kv_width, width));
            [matrix("attn_q", q_rows, width)?, k?, v?].map(Some)
        };
        let norm = |part, width| match architecture.qk_norm {
            QkNorm::None => Ok(None),
            QkNorm::Heads => weights::vector(gguf, &weight(part), kind.head_dim).map(Some),
            QkNorm::Together => weights::vector(gguf, &weight(part), width).map(Some),
        };
        let of_keys = k.is_some();
        let key_bias = |part| match of_keys {
            true => bias(architecture.qkv_bias, part, kv_width),
            false => Ok(None),
        };
        Ok(Self {
            q: q.expect("every layer has queries"),
            q_bias: bias(architecture.qkv_bias, "attn_q", q_rows)?,
            k_bias: key_bias("attn_k")?,
            v_bias: key_bias("attn_v")?,
            q_norm: norm("attn_q_norm", q_width)?,
            k_norm: match of_keys {
                true => norm("attn_k_norm", kv_width)?,
                false => None,
            },
            v_norm: (architecture.value_norm && of_keys).then(|| vec![1.0; kind.head_dim]),
            k,
            v,
            o: matrix("attn_output", width, q_width)?,
            o_bias: bias(architecture.output_bias, "attn_output", width)?,
            sinks: (architecture.sinks)
                .then(|| weights::vector(gguf, &weight("attn_sinks"), config.q_heads))
                .transpose()?,
        })
    }
}

impl Layer {
    fn read(gguf: &Gguf, config: &Config, layer: usize) -> Result<Layer, ModelError> {
        let (width, architecture) = (config.width, config.architecture);
        let name = |part: &str| format!("blk.{layer}.{part}");
        let norm = |part: &str| weights::vector(gguf, &name(part), width);
        let norm_if = |there: bool, part| there.then(|| norm(part)).transpose();
        let recurrent = config.delta.filter(|_| config.kinds[layer].recurrent);
        Ok(Layer {
            attention_norm: norm_if(architecture.pre_norm, "attn_norm.weight")?,
            mixer: match recurrent {
                Some(shape) => Mixer::Recurrent(DeltaNet::read(gguf, config, shape, layer)?),
                None => Mixer::Attention(Attention::read(gguf, config, layer)?),
            },
            post_attention_norm: norm_if(architecture.sandwich, "post_attention_norm.weight")?,
            ffn_norm: norm_if(architecture.pre_norm, architecture.ffn_norm)?,
            ffn: match (config.experts, architecture.experts) {
                (Some(counts), Part::Optional) => {
                    let both = DenseAndExperts::read(gguf, config, counts, layer)?;
                    FeedForward::Both(Box::new(both))
                }
                (Some(counts), _) => {
                    FeedForward::Experts(Box::new(Experts::read(gguf, config, counts, layer)?))
                }
                (None, _) => FeedForward::Dense(Dense::read(gguf, config, layer)?),
            },
            post_ffn_norm: norm_if(architecture.sandwich, "post_ffw_norm.weight")?,
            per_layer: (config.per_layer)
                .map(|per_layer| PerLayer::read(gguf, config, per_layer, layer))
                .transpose()?,
            output_scale: match architecture.output_scale {
                true => weights::optional_vector(gguf, &name("layer_output_scale.weight"), 1)?,
                false => None,
            }
            .map_or(1.0, |scale| scale[0]),
        })
    }

    /// The layer's attention.
    ///
    /// # Panics
    /// If the layer is recurrent.
    pub(crate) fn attention(&self) -> &Attention {
        match &self.mixer {
            Mixer::Attention(attention) => attention,
            Mixer::Recurrent(_) => panic!("a recurrent layer has no attention"),
        }
    }

    /// The matrices that are copied if they are not quantised: all but those of the experts.
    fn copied(&self) -> Vec<&MappedMatrix> {
        let mut all: Vec<&MappedMatrix> = match &self.mixer {
            Mixer::Attention(Attention { q, k, v, o, .. }) => {
                [Some(q), k.as_ref(), v.as_ref(), Some(o)]
                    .into_iter()
                    .flatten()
                    .collect()
            }
            Mixer::Recurrent(delta) => delta.matrices().to_vec(),
        };
        match &self.ffn {
            FeedForward::Dense(Dense { gate, up, down }) => all.extend([gate, up, down]),
            FeedForward::Experts(experts) => all.push(&experts.router),
            FeedForward::Both(both) => {
                let Dense { gate, up, down } = &both.dense;
                all.extend([gate, up, down, &both.experts.router]);
            }
        }
        all
    }
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
        let name = gguf
            .text("general.name")
            .ok()
            .flatten()
            .filter(|name| !name.trim().is_empty());
        let stem = || {
            path.file_stem()
                .map_or_else(String::new, |s| s.to_string_lossy().into_owned())
        };
        let per_layer = (config.per_layer)
            .map(|per_layer| PerLayerTables::read(&gguf, &config, per_layer))
            .transpose()?;
        Ok(Model {
            name: name.map_or_else(stem, str::to_owned),
            output_norm: weights::vector(&gguf, "output_norm.weight", config.width)?,
            gguf,
            config,
            embedding,
            output,
            per_layer,
            layers,
            gpu: None,
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

    /// `general.name`, or the file's name if it is absent or blank.
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
        let numbers = |shape: &[usize]| shape.iter().map(|&n| n as u64).product::<u64>();
        self.gguf.tensors().map(|t| numbers(&t.shape)).sum()
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
            let Some((layer, name)) =
                (tensor.name.strip_prefix("blk.")).and_then(|rest| rest.split_once('.'))
            else {
                continue;
            };
            let layer = layer.parse().ok().and_then(|i: usize| self.layers.get(i));
            if layer.is_some_and(|layer| matches!(layer.mixer, Mixer::Recurrent(_))) {
                recurrent += self.read_bytes(tensor);
            } else if ["attn_q.", "attn_k.", "attn_v.", "attn_qkv."]
                .iter()
                .any(|part| name.starts_with(part))
            {
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

    /// Host memory of the weights in bytes: the file's pages, and copies of layers that do not fit on a GPU.
    pub fn weights_in_memory(&self) -> u64 {
        self.weights_bytes() + self.gpu().map_or(0, GpuModel::host_bytes)
    }

    /// Memory of the tokenizer in bytes; 0 until it is built.
    pub fn vocabulary_bytes(&self) -> u64 {
        let built = self.tokenizer.get().and_then(|built| built.as_ref().ok());
        built.map_or(0, Tokenizer::bytes)
    }

    /// Bytes of the f32 copies of one layer's weights during prefill, the maximum over layers; 0 if all are quantised,
    /// as in most models.
    pub fn layer_tiles_bytes(&self) -> u64 {
        let layer = |layer: &Layer| {
            let matrices = layer.copied().into_iter();
            matrices.map(weights::copied_bytes).sum()
        };
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
    let layer_tensors = config.architecture.layer_tensors(config.experts.is_some());
    let model_tensors = config.architecture.model_tensors();
    let known = |name: &str| match name.strip_prefix("blk.").and_then(|r| r.split_once('.')) {
        Some((layer, part)) => layer.parse::<usize>().is_ok_and(|l| {
            let unused = config.layers..config.layers + config.prediction_layers;
            unused.contains(&l) || l < config.layers && layer_tensors.contains(&part)
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
