//! Command-line arguments. Most values are kept as strings and parsed where they are used, so that every error message
//! is ours and not clap's.

mod asking;
mod measuring;
mod models;
mod offered;
mod reading;
mod serving;
mod vaults;

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::builder::TypedValueParser;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use kept_engine::kernels::CacheType;
use kept_engine::models::{OpenOptions, RopeChoice};
use kept_engine::policies::{Budget, Parameters};
use kept_engine::{AUTO, ComputeDevice, Engine, MINI, MethodSpec};
use kept_engine_cuda::CudaGpus;

pub use self::asking::{AskArguments, ChatArguments, Color, MapArguments, OpenArguments};
pub use self::measuring::{
    BenchArguments, BenchmarkArguments, CompareArguments, EvalCommand, Gsm8kArguments,
    LongBenchArguments, NeedleArguments, PerplexityArguments, QaArguments,
};
pub use self::models::{
    FolderArguments, ListArguments, ModelsCommand, PullArguments, RemoveModelArguments,
    UseArguments,
};
pub use self::reading::{Reading, ReadingArguments};
pub use self::serving::{CompletionsArguments, ManualArguments, ServeArguments};
pub use self::vaults::{
    ReadArguments, RemoveArguments, VaultArguments, VaultsArguments, VaultsCommand,
};
use crate::model::model_path;

/// Ask questions about long documents on your own computer, and see which tokens the model kept.
#[derive(Debug, Parser)]
#[command(name = "kept", version, arg_required_else_help = true)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

impl Arguments {
    /// The program's arguments.
    ///
    /// # Errors
    /// clap's.
    pub fn read() -> Result<Self, clap::Error> {
        let mut command = taking_negative_numbers(Self::command());
        let matches = command.try_get_matches_from_mut(std::env::args_os())?;
        Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
    }
}

/// Lets every option take a negative number: what is wrong with it, its own message says.
fn taking_negative_numbers(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|argument| {
        let takes = argument.get_action().takes_values();
        argument.allow_negative_numbers(takes)
    });
    command.mut_subcommands(taking_negative_numbers)
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Ask a document a question.
    Ask(AskArguments),
    /// Hold a conversation, about a document or without one.
    Chat(ChatArguments),
    /// Show which tokens of a document a method keeps for a question.
    Map(MapArguments),
    /// Compare methods and budgets with the full cache, on one document and question.
    Compare(CompareArguments),
    /// Measure methods on questions with known answers.
    #[command(subcommand)]
    Eval(EvalCommand),
    /// List the methods: what each one keeps, when it acts, and its parameters.
    Methods(MethodsArguments),
    /// Run a method's selection on given queries and keys.
    Select(SelectArguments),
    /// Print the token ids of a text file.
    Tokenize(TokenizeArguments),
    /// Write the logits of given tokens.
    Logits(LogitsArguments),
    /// Measure reading and answering speed.
    Bench(BenchArguments),
    /// List, download, remove and inspect models.
    #[command(subcommand)]
    Models(ModelsCommand),
    /// Fill, list or remove vaults: documents kept on disk, so that they need not be read again.
    #[command(subcommand)]
    Vaults(VaultsCommand),
    /// Answer programs over HTTP, as OpenAI's API does: on this computer only.
    Serve(ServeArguments),
    /// Report what this computer supports and what is missing.
    Doctor(DoctorArguments),
    /// Print a script that completes this program's commands and options in a shell.
    Completions(CompletionsArguments),
    /// Write the manual pages into a folder.
    #[command(hide = true)]
    Manual(ManualArguments),
}

/// More threads than any supported computer has cores.
const MAX_THREADS: usize = 1024;

/// Model, method, budget and cache type.
#[derive(Debug, Args)]
pub struct EngineArguments {
    /// A GGUF file, `mini` for the built-in model, or the name of a model on this computer (`kept models list`)
    /// [default: mini for bench and logits; for others the choice of `kept models use`, otherwise the best one found on
    /// this computer, otherwise mini].
    #[arg(long, value_name = "FILE|NAME|mini")]
    pub model: Option<String>,
    /// Compression method, with parameters in brackets if any: 'snapkv[w=8,sinks=0]'; `kept methods` lists them. With
    /// auto, method and budget are chosen for model, document and memory by measured fidelity [default: snapkv for
    /// bench and logits, which have no auto; for others auto].
    #[arg(long, value_parser = offered::METHODS_OR_AUTO, hide_possible_values = true)]
    pub method: Option<String>,
    /// Parameters of the method, as name=value[,name=value]; values in the brackets of --method take precedence.
    #[arg(long, default_value = "", value_name = "NAME=VALUE")]
    pub set: String,
    /// What may be kept: rows per head (512), a share of the prompt (10%) or bytes for the whole cache (512MiB)
    /// [default: with auto what it chooses, otherwise 25%, at least 256 rows].
    #[arg(long, allow_hyphen_values = true)]
    pub budget: Option<String>,
    /// Type of the kept rows: f32, f16, q8_0 or q4_0 (rotated by a Hadamard matrix). With a quantised type, the first
    /// and last rows of a prompt and the newest rows of the answer stay f16 [default: f16; for logits f32].
    #[arg(
        long,
        value_name = "TYPE",
        value_parser = offered::CACHES.try_map(|name| name.parse::<CacheType>()),
        hide_possible_values = true
    )]
    pub cache: Option<CacheType>,
    #[command(flatten)]
    pub compute: ComputeArguments,
}

/// Extension of the context length.
#[derive(Debug, Args)]
pub struct StretchArguments {
    /// Extend the context length with RoPE scaling, if the model file does not specify it: yarn:4 makes 128K of a
    /// Qwen's 32K; or linear:2.
    #[arg(long, value_name = "KIND:FACTOR")]
    pub rope: Option<RopeChoice>,
}

impl StretchArguments {
    /// The options for opening a model.
    pub fn options(&self) -> OpenOptions {
        OpenOptions { rope: self.rope }
    }
}

/// Choice of device.
#[derive(Debug, Args)]
pub struct DeviceArguments {
    /// Device: an NVIDIA GPU if this build supports one and the model fits on it, otherwise the CPU; or one device by
    /// name (`kept doctor` lists them).
    #[arg(
        long,
        default_value = "auto",
        value_name = "auto|cpu|cuda:N",
        value_parser = offered::DEVICES,
        hide_possible_values = true
    )]
    pub device: String,
}

/// What computes, and how far the context reaches.
#[derive(Debug, Args)]
pub struct ComputeArguments {
    /// CPU threads [default: all].
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    #[command(flatten)]
    pub stretch: StretchArguments,
    #[command(flatten)]
    pub device: DeviceArguments,
}

impl ComputeArguments {
    /// Opens `model` with, if given, the cache type `cache`. Called once, before any compute thread starts.
    pub fn open(&self, model: &Path, cache: Option<CacheType>) -> anyhow::Result<Engine> {
        let device: ComputeDevice = self.device.device.parse()?;
        if let Some(threads) = self.threads {
            anyhow::ensure!(
                (1..=MAX_THREADS).contains(&threads),
                "--threads {threads} is not between 1 and {MAX_THREADS}"
            );
            kept_engine::kernels::threads::configure(Some(threads));
        }
        let engine = Engine::open_with(model, &self.stretch.options())?;
        let (engine, why_cpu) = engine.placed(device, &CudaGpus)?;
        // Without the feature `cuda` the CPU is the only choice, so there is nothing to explain.
        if let Some(why) = why_cpu.filter(|_| cfg!(feature = "cuda")) {
            eprintln!("computing on the CPU: {why}");
        }
        Ok(match cache {
            Some(cache) => engine.with_cache(cache),
            None => engine,
        })
    }
}

impl EngineArguments {
    /// The model file for measurements. The default is always the built-in model, whatever other models are installed.
    pub fn model_path(&self) -> anyhow::Result<PathBuf> {
        model_path(self.model.as_deref().unwrap_or(MINI))
    }

    /// Opens a model file. Called once, before any compute thread starts.
    pub fn open(&self, model: &Path) -> anyhow::Result<Engine> {
        self.compute.open(model, self.cache)
    }

    /// The method with its checked parameters; snapkv by default.
    pub fn method(&self) -> anyhow::Result<MethodSpec> {
        method(
            self.method.as_deref().unwrap_or("snapkv").parse()?,
            &self.set,
        )
    }

    /// The method for a document: the named one, or `auto`.
    pub fn method_or_auto(&self) -> anyhow::Result<MethodSpec> {
        method_or_auto(self.method.as_deref(), &self.set)
    }

    /// The budget, if one was given.
    pub fn budget(&self) -> anyhow::Result<Option<Budget>> {
        Ok(self.budget.as_deref().map(str::parse).transpose()?)
    }
}

/// `method` with the parameters `set` too, checked.
fn method(mut method: MethodSpec, set: &str) -> anyhow::Result<MethodSpec> {
    method.set_further(&Parameters::parse_assignments(set)?);
    method.build()?;
    Ok(method)
}

/// As [`method`], or `auto`, which has no parameters.
pub fn method_or_auto(named: Option<&str>, set: &str) -> anyhow::Result<MethodSpec> {
    let spec: MethodSpec = named.unwrap_or(AUTO).parse()?;
    if spec.name != AUTO {
        return method(spec, set);
    }
    anyhow::ensure!(
        spec.parameters.is_empty(),
        "{spec} sets parameters, and auto has none; name the method that they are for"
    );
    anyhow::ensure!(
        set.is_empty(),
        "--set {set} needs a --method that it is for; auto has no parameters"
    );
    Ok(spec)
}

/// Parses a size in bytes.
pub fn memory(text: &str) -> anyhow::Result<u64> {
    kept_engine::Limits::memory_of(text).with_context(|| {
        format!("--memory takes a size such as 8GiB or 900MiB, and {text:?} is none")
    })
}

#[derive(Debug, Args)]
pub struct MethodsArguments {
    /// Show this method only.
    #[arg(value_name = "METHOD", value_parser = offered::METHODS, hide_possible_values = true)]
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
    /// Rows per KV head (512) or a share of the tokens (10%).
    #[arg(long, allow_hyphen_values = true)]
    pub budget: String,
    /// A safetensors file with f32 tensors q [q_heads, n, d], k and v [kv_heads, n, d], used as given (no RoPE is
    /// applied). kvzip also needs q_repeat [q_heads, m, d], k_repeat [kv_heads, m, d] and integers chunks [c, 4]: for
    /// every chunk of the document its first token, its end, the first row of its repetition, and the rows' end.
    #[arg(long, value_name = "FILE")]
    pub input: PathBuf,
    /// Parameters of the method, as name=value[,name=value]; values in the brackets of --method take precedence.
    #[arg(long, default_value = "", value_name = "NAME=VALUE")]
    pub set: String,
    /// The layer of the tensors, from 0.
    #[arg(long, default_value_t = 0)]
    pub layer: usize,
    /// Number of layers of the model.
    #[arg(long, default_value_t = 1)]
    pub layers: usize,
    /// No effect: the output is always JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct TokenizeArguments {
    /// A GGUF file, `mini`, or the name of a model on this computer.
    #[arg(long, default_value = "mini", value_name = "FILE|NAME|mini")]
    pub model: String,
    /// A UTF-8 text file.
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
    /// The safetensors file to write, with one tensor: `logits` [n, vocabulary], f32.
    #[arg(long, value_name = "FILE")]
    pub output: PathBuf,
    /// Prefill only the first N tokens and compress their cache; the remaining tokens run one by one over the kept rows
    /// [default: all tokens; no row that a later token needs is evicted].
    #[arg(long, value_name = "N")]
    pub prompt_tokens: Option<usize>,
    /// Print a JSON description of the output file.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct InspectArguments {
    /// A GGUF file, `mini`, or the name of a model on this computer.
    #[arg(value_name = "FILE|NAME|mini", default_value = "mini")]
    pub model: String,
    /// Memory for the estimate of the longest document, such as 8GiB [default: the memory that is free now].
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<String>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub stretch: StretchArguments,
}

impl InspectArguments {
    /// Memory for the estimate in bytes; `None` if it is unknown.
    pub fn memory(&self) -> anyhow::Result<Option<u64>> {
        let named = self.named_memory()?;
        Ok(named.or_else(kept_engine::available_memory))
    }

    /// The value of `--memory` in bytes.
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
