//! What the commands take. Values are kept as typed; they are read where they are used, so that every refusal is our own
//! sentence.

mod asking;
mod measuring;
mod models;
mod vaults;

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use kept_engine::kernels::CacheType;
use kept_engine::models::{OpenOptions, RopeChoice};
use kept_engine::policies::{Budget, Parameters};
use kept_engine::{AUTO, DeviceChoice, Engine, MINI, Method};

pub use self::asking::{AskArguments, Color, MapArguments};
pub use self::measuring::{
    BenchArguments, CompareArguments, EvalCommand, NeedleArguments, PerplexityArguments,
    QaArguments,
};
pub use self::models::{
    FolderArguments, ListArguments, ModelsCommand, PullArguments, RemoveModelArguments,
    UseArguments,
};
pub use self::vaults::{RemoveArguments, VaultArguments, VaultsArguments, VaultsCommand};
use crate::model::model_path;

/// Ask long documents on your own computer, and see which tokens the model kept.
#[derive(Debug, Parser)]
#[command(name = "kept", version, arg_required_else_help = true)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Ask a document a question.
    Ask(AskArguments),
    /// Show which tokens of a document a method keeps for a question.
    Map(MapArguments),
    /// Hold methods and budgets against the full cache, on one document and question.
    Compare(CompareArguments),
    /// Measure methods on questions with known answers.
    #[command(subcommand)]
    Eval(EvalCommand),
    /// List the methods: what each keeps, when it acts, what can be set.
    Methods(MethodsArguments),
    /// Run a method's selection on given queries and keys.
    Select(SelectArguments),
    /// Print the token ids of a text file.
    Tokenize(TokenizeArguments),
    /// Write the logits of given tokens.
    Logits(LogitsArguments),
    /// Measure reading and answering speed.
    Bench(BenchArguments),
    /// Look at model files.
    #[command(subcommand)]
    Models(ModelsCommand),
    /// What was kept of documents on disk, so that they need not be read again.
    #[command(subcommand)]
    Vaults(VaultsCommand),
    /// Say what this computer offers and what is missing.
    Doctor(DoctorArguments),
}

/// More threads than any computer this runs on has cores.
const MOST_THREADS: usize = 1024;

/// Which model, and how its cache is compressed.
#[derive(Debug, Args)]
pub struct EngineArguments {
    /// A GGUF file, `mini` for the model in the box, or the name of a model on this computer (`kept models list`) [default for ask and
    /// map: what kept models use says, else: mini].
    #[arg(long, value_name = "FILE|NAME|mini")]
    pub model: Option<String>,
    /// How the cache is compressed, with parameters in brackets if any: 'snapkv[w=8,sinks=0]'; `kept methods` lists them. With auto, method and budget are chosen for model, document and
    /// memory by measured fidelity [default: auto for ask and map, else snapkv].
    #[arg(long)]
    pub method: Option<String>,
    /// Parameters of the method, as name=value[,name=value]; what its brackets set wins.
    #[arg(long, default_value = "", value_name = "NAME=VALUE")]
    pub set: String,
    /// What may stay in memory: rows per head (512), a share of the prompt (10%) or bytes for the whole cache (512MiB)
    /// [default: 25%, at least 256 rows].
    #[arg(long, allow_hyphen_values = true)]
    pub budget: Option<String>,
    /// How kept rows are stored: f32, f16, q8_0 or q4_0 (turned by a Hadamard matrix). The first and the last rows of a prompt and the
    /// newest of the answer stay f16 where rows are quantised [default: f16; logits: f32].
    #[arg(long, value_name = "TYPE")]
    pub cache: Option<CacheType>,
    /// Threads to compute with [default: all].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub threads: Option<usize>,
    #[command(flatten)]
    pub stretch: StretchArguments,
    #[command(flatten)]
    pub device: DeviceArguments,
}

/// A context beyond the model's own.
#[derive(Debug, Args)]
pub struct StretchArguments {
    /// Stretch the model's context, where its file does not say how: yarn:4 makes 128K of a Qwen's 32K; or linear:2.
    #[arg(long, value_name = "KIND:FACTOR")]
    pub rope: Option<RopeChoice>,
}

impl StretchArguments {
    /// What a model is opened with.
    pub fn options(&self) -> OpenOptions {
        OpenOptions { rope: self.rope }
    }
}

/// What computes.
#[derive(Debug, Args)]
pub struct DeviceArguments {
    /// What computes: an NVIDIA GPU if this build can use one and the model fits it, else the processor; or one of them by name
    /// (`kept doctor` says what is there).
    #[arg(long, default_value = "auto", value_name = "auto|cpu|cuda:N")]
    pub device: String,
}

/// Opens `model` for computing with `threads`, kept rows stored as `cache` if that is named. Called once, before any thread computes.
pub fn open(
    model: &Path,
    threads: Option<usize>,
    stretch: &StretchArguments,
    device: &DeviceArguments,
    cache: Option<CacheType>,
) -> anyhow::Result<Engine> {
    let device: DeviceChoice = device.device.parse()?;
    if let Some(threads) = threads {
        anyhow::ensure!(
            (1..=MOST_THREADS).contains(&threads),
            "--threads {threads} is not between 1 and {MOST_THREADS}"
        );
        kept_engine::kernels::threads::configure(Some(threads));
    }
    let engine = Engine::open_with(model, &stretch.options())?;
    let (engine, why_processor) = engine.placed(device)?;
    // A build for the processor alone need not say that it is one.
    if let Some(why) = why_processor.filter(|_| cfg!(feature = "cuda")) {
        eprintln!("computing on the processor: {why}");
    }
    Ok(match cache {
        Some(cache) => engine.with_cache(cache),
        None => engine,
    })
}

impl EngineArguments {
    /// The model's file for measurements, which take the one in the box if none is named, whatever else is on the computer.
    pub fn model_path(&self) -> anyhow::Result<PathBuf> {
        model_path(self.model.as_deref().unwrap_or(MINI))
    }

    /// Opens the file of a model. Called once, before any thread computes.
    pub fn open(&self, model: &Path) -> anyhow::Result<Engine> {
        open(model, self.threads, &self.stretch, &self.device, self.cache)
    }

    /// The method with its parameters, checked; snapkv unless another is named.
    pub fn method(&self) -> anyhow::Result<Method> {
        let mut method: Method = self.method.as_deref().unwrap_or("snapkv").parse()?;
        method.set_further(&Parameters::parse_assignments(&self.set)?);
        method.build()?;
        Ok(method)
    }

    /// The method for a document: what is named, or the choice of one. Parameters alone are those of snapkv.
    pub fn method_or_auto(&self) -> anyhow::Result<Method> {
        let named: Option<Method> = self.method.as_deref().map(str::parse).transpose()?;
        let auto = named
            .as_ref()
            .map_or(self.set.is_empty(), |method| method.name == AUTO);
        if !auto {
            return self.method();
        }
        if let Some(named) = named.filter(|named| !named.parameters.is_empty()) {
            anyhow::bail!(
                "{named} sets parameters, and auto has none; name the method that they are for"
            );
        }
        anyhow::ensure!(
            self.set.is_empty(),
            "--set {} needs a --method that it is for; auto has no parameters",
            self.set
        );
        Ok(Method::plain(AUTO))
    }

    /// The budget, if one was given.
    pub fn budget(&self) -> anyhow::Result<Option<Budget>> {
        Ok(self.budget.as_deref().map(str::parse).transpose()?)
    }
}

/// A size in bytes.
fn memory(text: &str) -> anyhow::Result<u64> {
    kept_engine::Limits::memory_of(text).with_context(|| {
        format!("--memory takes a size such as 8GiB or 900MiB, and {text:?} is none")
    })
}

#[derive(Debug, Args)]
pub struct MethodsArguments {
    /// Only this method.
    #[arg(value_name = "METHOD")]
    pub method: Option<String>,
    /// Print the table as Markdown.
    #[arg(long, conflicts_with = "json")]
    pub markdown: bool,
    /// Print a JSON list instead of text.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct SelectArguments {
    /// The method, with parameters in brackets if any: 'snapkv[w=8,sinks=0]'.
    #[arg(long)]
    pub method: String,
    /// Rows per kv head (512) or a share of the tokens (10%).
    #[arg(long, allow_hyphen_values = true)]
    pub budget: String,
    /// A safetensors file with f32 tensors q [q_heads, n, d], k and v [kv_heads, n, d], used as given (no RoPE is applied). For
    /// kvzip also q_repeat [q_heads, m, d], k_repeat [kv_heads, m, d] and whole numbers chunks [c, 4]: of every chunk of the document
    /// its first token, its end, the first row of its repetition, its end.
    #[arg(long, value_name = "FILE")]
    pub input: PathBuf,
    /// Parameters of the method, as name=value[,name=value]; what its brackets set wins.
    #[arg(long, default_value = "", value_name = "NAME=VALUE")]
    pub set: String,
    /// Which layer the tensors are of, from 0.
    #[arg(long, default_value_t = 0)]
    pub layer: usize,
    /// How many layers the model has.
    #[arg(long, default_value_t = 1)]
    pub layers: usize,
    /// Accepted for symmetry: the result is always JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct TokenizeArguments {
    /// A GGUF file, `mini`, or the name of a model on this computer.
    #[arg(long, default_value = "mini", value_name = "FILE|NAME|mini")]
    pub model: String,
    /// The text file; its bytes are read as UTF-8.
    #[arg(long, value_name = "FILE")]
    pub file: PathBuf,
    /// Print one JSON object instead of ids.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct LogitsArguments {
    #[command(flatten)]
    pub engine: EngineArguments,
    /// Token ids, comma separated.
    #[arg(long, value_name = "1,2,3")]
    pub tokens: String,
    /// Where to write the tensor `logits` [n, vocabulary], f32, as safetensors.
    #[arg(long, value_name = "FILE")]
    pub output: PathBuf,
    /// Read only the first N tokens as the prompt and cut their cache; the others run one by one over what was kept
    /// [default: all, nothing is cut that a later token would miss].
    #[arg(long, value_name = "N")]
    pub prompt_tokens: Option<usize>,
    /// Print what was written as JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct InspectArguments {
    /// A GGUF file, `mini`, or the name of a model on this computer.
    #[arg(value_name = "FILE|NAME|mini", default_value = "mini")]
    pub model: String,
    /// Memory to say what can be read with, such as 8GiB [default: what is free now].
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<String>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub stretch: StretchArguments,
}

impl InspectArguments {
    /// Bytes that may be taken, where they are known.
    pub fn memory(&self) -> anyhow::Result<Option<u64>> {
        let named = self.named_memory()?;
        Ok(named.or_else(kept_engine::available_memory))
    }

    /// Bytes that were named.
    pub fn named_memory(&self) -> anyhow::Result<Option<u64>> {
        self.memory.as_deref().map(memory).transpose()
    }
}

#[derive(Debug, Args)]
pub struct DoctorArguments {
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}
