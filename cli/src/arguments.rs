//! What the commands take. Values are kept as typed; they are read where they are used, so that every refusal is our own
//! sentence.

mod models;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use kept_engine::kernels::{CacheType, PackedRows};
use kept_engine::models::{OpenOptions, RopeChoice};
use kept_engine::policies::{Budget, Parameters};
use kept_engine::{AUTO, ComputeDevice, Engine, Limits, Method, Sampling, Streaming};

pub use self::models::{
    FolderArguments, ListArguments, ModelsCommand, PullArguments, RemoveModelArguments,
};
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
    /// A GGUF file, `mini` for the model in the box, or the name of a model on this computer (`kept models list`).
    #[arg(long, default_value = "mini", value_name = "FILE|NAME|mini")]
    pub model: String,
    /// How the cache is compressed; `kept methods` lists them. With auto, method and budget are chosen for model, document and
    /// memory by measured fidelity [default: auto for ask and map, else snapkv].
    #[arg(long)]
    pub method: Option<String>,
    /// Parameters of the method, as name=value[,name=value].
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
    /// What computes: the processor, or cuda:0 for the first NVIDIA graphics card (`kept doctor` says what is there).
    #[arg(long, default_value = "cpu", value_name = "cpu|cuda:N")]
    pub device: String,
}

/// Opens `model` for computing with `threads`, kept rows stored as `cache` if that is named. Called once, before any thread computes.
pub fn open(
    model: &str,
    threads: Option<usize>,
    stretch: &StretchArguments,
    device: &DeviceArguments,
    cache: Option<CacheType>,
) -> anyhow::Result<Engine> {
    let device: ComputeDevice = device.device.parse()?;
    if let Some(threads) = threads {
        anyhow::ensure!(
            (1..=MOST_THREADS).contains(&threads),
            "--threads {threads} is not between 1 and {MOST_THREADS}"
        );
        kept_engine::kernels::threads::configure(Some(threads));
    }
    let engine = Engine::open_with(&model_path(model)?, &stretch.options())?;
    let engine = engine.on(device)?;
    Ok(match cache {
        Some(cache) => engine.with_cache(cache),
        None => engine,
    })
}

impl EngineArguments {
    /// Opens the model. Called once, before any thread computes.
    pub fn open(&self) -> anyhow::Result<Engine> {
        open(
            &self.model,
            self.threads,
            &self.stretch,
            &self.device,
            self.cache,
        )
    }

    /// The method with its parameters, checked; snapkv unless another is named.
    pub fn method(&self) -> anyhow::Result<Method> {
        let method = Method {
            name: self.method.clone().unwrap_or_else(|| "snapkv".to_owned()),
            parameters: Parameters::parse_assignments(&self.set)?,
        };
        method.build()?;
        Ok(method)
    }

    /// The method for a document: what is named, or the choice of one. Parameters alone are those of snapkv.
    pub fn method_or_auto(&self) -> anyhow::Result<Method> {
        let named = self
            .method
            .as_deref()
            .map_or(self.set.is_empty(), |name| name == AUTO);
        if !named {
            return self.method();
        }
        anyhow::ensure!(
            self.set.is_empty(),
            "--set {} needs a --method that it is for; auto has no parameters",
            self.set
        );
        Ok(Method {
            name: AUTO.to_owned(),
            parameters: Vec::new(),
        })
    }

    /// The budget, if one was given.
    pub fn budget(&self) -> anyhow::Result<Option<Budget>> {
        Ok(self.budget.as_deref().map(str::parse).transpose()?)
    }
}

/// When a document is read in streaming mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StreamingChoice {
    /// Where it is longer than the model's window.
    Auto,
    /// Always.
    On,
    /// Never: a document that is too long is refused.
    Off,
}

/// What reading has to keep to.
#[derive(Debug, Args)]
pub struct LimitArguments {
    /// Read in streaming mode, which is approximate: in bounded memory whatever the length, letting go of rows on the way.
    #[arg(long, value_enum, default_value_t = StreamingChoice::Auto)]
    pub streaming: StreamingChoice,
    /// Memory for everything, weights and program included, such as 6GiB; rows and chunks are chosen to fit.
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub memory: Option<String>,
}

/// A size in bytes.
fn memory(text: &str) -> anyhow::Result<u64> {
    match text.parse() {
        Ok(Budget::Bytes(bytes)) => Ok(bytes),
        _ => anyhow::bail!("--memory takes a size such as 8GiB or 900MiB, and {text:?} is none"),
    }
}

impl LimitArguments {
    /// The limits as the engine takes them.
    pub fn limits(&self) -> anyhow::Result<Limits> {
        Ok(Limits {
            streaming: match self.streaming {
                StreamingChoice::Auto => Streaming::Auto,
                StreamingChoice::On => Streaming::On,
                StreamingChoice::Off => Streaming::Off,
            },
            memory: self.memory.as_deref().map(memory).transpose()?,
        })
    }
}

/// A document and a question.
#[derive(Debug, Args)]
pub struct QuestionArguments {
    /// The document: text, Markdown, source code or PDF.
    #[arg(long, value_name = "FILE", allow_hyphen_values = true)]
    pub document: PathBuf,
    /// The question.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub question: String,
}

/// When output is painted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// If the terminal can show it.
    Auto,
    /// Also into files and pipes.
    Always,
    /// Plain text only.
    Never,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kept ask --document book.pdf --question \"Who is the captain?\" --question \"Where does the ship sail?\"
      reads the document once and answers both; a later command on the same document does not read it again

The vault keeps what the model computed of a document in $KEPT_VAULTS, or else in kept/vaults where the system keeps caches;
kept vaults list shows what is there.")]
pub struct AskArguments {
    /// The document: text, Markdown, source code or PDF. Several are read in this order, as one text that names each.
    #[arg(long, value_name = "FILE", allow_hyphen_values = true, required = true)]
    pub document: Vec<PathBuf>,
    /// The question; several are answered in order, and the document is read once.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, required = true)]
    pub question: Vec<String>,
    #[command(flatten)]
    pub engine: EngineArguments,
    #[command(flatten)]
    pub limits: LimitArguments,
    #[command(flatten)]
    pub vault: VaultArguments,
    /// Longest answer, in tokens.
    #[arg(long, default_value_t = Engine::DEFAULT_MAX_TOKENS, value_name = "N", allow_negative_numbers = true)]
    pub max_tokens: usize,
    /// 0 takes the most likely token; larger is more varied.
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub temperature: f64,
    /// Draw from the K most likely tokens only.
    #[arg(long, value_name = "K", allow_negative_numbers = true)]
    pub top_k: Option<usize>,
    /// Draw from the likeliest tokens that make up this probability.
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub top_p: Option<f64>,
    /// Draw from tokens at least this share as likely as the likeliest.
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub min_p: Option<f64>,
    /// Same seed, same answer.
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    pub seed: u64,
    /// Let a model that can think before it answers do so.
    #[arg(long)]
    pub thinking: bool,
    /// Also write what was kept to this file, as `kept map --json` prints it.
    #[arg(long, value_name = "FILE")]
    pub map: Option<PathBuf>,
    /// Print the document after the answer, painted with what was kept.
    #[arg(long, conflicts_with = "json")]
    pub paint: bool,
    /// When to use colour.
    #[arg(long, value_enum, default_value_t = Color::Auto)]
    pub color: Color,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

impl AskArguments {
    pub fn sampling(&self) -> Sampling {
        Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            seed: self.seed,
        }
    }
}

/// Whether a document is read once and asked many times.
#[derive(Debug, Args)]
pub struct VaultArguments {
    /// How the document is kept on disk for later questions: q8_0, f16 (twice as large; later answers are then exactly those of a
    /// first reading) or off.
    #[arg(long, default_value = "q8_0", value_name = "q8_0|f16|off")]
    pub vault: String,
    /// What all kept documents may take on disk, such as 20GiB; those not used for longest go first [default: 20GiB, or half of what
    /// is free].
    #[arg(long, value_name = "SIZE")]
    pub vault_budget: Option<String>,
}

impl VaultArguments {
    /// How rows are stored; `None` is off.
    pub fn kind(&self) -> anyhow::Result<Option<PackedRows>> {
        match (self.vault.as_str(), PackedRows::named(&self.vault)) {
            ("off", _) => Ok(None),
            (_, Some(kind)) => Ok(Some(kind)),
            (other, None) => {
                anyhow::bail!("--vault {other:?} is not known; it takes q8_0, f16 or off")
            }
        }
    }

    /// Bytes that all vaults may take, where that was said.
    pub fn budget(&self) -> anyhow::Result<Option<u64>> {
        let Some(text) = &self.vault_budget else {
            return Ok(None);
        };
        match text.parse() {
            Ok(Budget::Bytes(bytes)) => Ok(Some(bytes)),
            _ => anyhow::bail!(
                "--vault-budget takes a size such as 20GiB or 900MiB, and {text:?} is none"
            ),
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum VaultsCommand {
    /// List the documents that are kept, the last used first.
    List(VaultsArguments),
    /// Remove what was kept of a document.
    Remove(RemoveArguments),
    /// Remove everything that was kept, but what is in use.
    Clear(VaultsArguments),
}

#[derive(Debug, Args)]
pub struct VaultsArguments {
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct RemoveArguments {
    /// The name of the document, or the first digits of the key that `kept vaults list` shows.
    #[arg(value_name = "DOCUMENT|KEY")]
    pub which: String,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct MapArguments {
    #[command(flatten)]
    pub question: QuestionArguments,
    #[command(flatten)]
    pub engine: EngineArguments,
    #[command(flatten)]
    pub limits: LimitArguments,
    /// Also write a page with the painted document that any browser opens.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// When to use colour.
    #[arg(long, value_enum, default_value_t = Color::Auto)]
    pub color: Color,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct CompareArguments {
    #[command(flatten)]
    pub question: QuestionArguments,
    /// A GGUF file, `mini` for the model in the box, or the name of a model on this computer (`kept models list`).
    #[arg(long, default_value = "mini", value_name = "FILE|NAME|mini")]
    pub model: String,
    /// Methods, comma separated [default: all; `kept methods` lists them].
    #[arg(long, value_name = "A,B,C")]
    pub methods: Option<String>,
    /// Budgets, comma separated: rows per head (512), shares of the prompt (10%) or bytes for the whole cache (512MiB).
    #[arg(
        long,
        default_value = "25%",
        value_name = "X,Y",
        allow_hyphen_values = true
    )]
    pub budgets: String,
    /// Parameters of single methods, as method:name=value[,method:name=value].
    #[arg(long, default_value = "", value_name = "METHOD:NAME=VALUE")]
    pub set: String,
    /// How rows that methods keep are stored: f32, f16, q8_0 or q4_0; those of the full cache beside them are f32 [default: f16].
    #[arg(long, value_name = "TYPE")]
    pub cache: Option<CacheType>,
    /// Longest answer of the full cache to compare along, in tokens.
    #[arg(
        long,
        default_value_t = 64,
        value_name = "N",
        allow_negative_numbers = true
    )]
    pub max_tokens: usize,
    /// Threads to compute with [default: all].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub threads: Option<usize>,
    #[command(flatten)]
    pub stretch: StretchArguments,
    #[command(flatten)]
    pub device: DeviceArguments,
    /// Also draw the figures into this folder, as SVG.
    #[arg(long, value_name = "FOLDER")]
    pub pictures: Option<PathBuf>,
    /// Print JSON, one object a line: the full cache first, then one for each method and budget.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum EvalCommand {
    /// One planted fact, asked for at every length and depth.
    Needle(NeedleArguments),
    /// How well a long text is foretold in streaming mode.
    Perplexity(PerplexityArguments),
}

#[derive(Debug, Args)]
pub struct NeedleArguments {
    /// Text to hide the fact in: a file, or a folder of .txt files.
    #[arg(long, value_name = "FILE|FOLDER")]
    pub data: PathBuf,
    /// A GGUF file, `mini` for the model in the box, or the name of a model on this computer (`kept models list`).
    #[arg(long, default_value = "mini", value_name = "FILE|NAME|mini")]
    pub model: String,
    /// Methods, comma separated [default: all; `kept methods` lists them].
    #[arg(long, value_name = "A,B,C")]
    pub methods: Option<String>,
    /// Budgets, comma separated.
    #[arg(
        long,
        default_value = "64,128,256,512",
        value_name = "X,Y",
        allow_hyphen_values = true
    )]
    pub budgets: String,
    /// Lengths of the prompt in tokens, comma separated; met within a sentence or two.
    #[arg(
        long,
        default_value = "512,1024,2048",
        value_name = "X,Y",
        allow_hyphen_values = true
    )]
    pub lengths: String,
    /// Depths in percent, comma separated: 0 is the beginning of the document, 100 its end.
    #[arg(
        long,
        default_value = "0,25,50,75,100",
        value_name = "X,Y",
        allow_hyphen_values = true
    )]
    pub depths: String,
    /// Different facts and pieces of text for every length and depth.
    #[arg(
        long,
        default_value_t = 1,
        value_name = "N",
        allow_negative_numbers = true
    )]
    pub repeats: u64,
    /// How kept rows are stored: f32, f16, q8_0 or q4_0 [default: f16].
    #[arg(long, value_name = "TYPE")]
    pub cache: Option<CacheType>,
    /// Threads to compute with [default: all].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub threads: Option<usize>,
    #[command(flatten)]
    pub stretch: StretchArguments,
    #[command(flatten)]
    pub device: DeviceArguments,
    /// Keep every case in this file, a line of JSON each. What it has already is not asked again: a long grid can be stopped and
    /// gone on with.
    #[arg(long, value_name = "FILE")]
    pub grid: Option<PathBuf>,
    /// Also draw the grid into this file, as SVG.
    #[arg(long, value_name = "FILE")]
    pub picture: Option<PathBuf>,
    /// Print JSON: a line for each case, then a summary.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct PerplexityArguments {
    /// The text: a file, or a folder of .txt files.
    #[arg(long, value_name = "FILE|FOLDER")]
    pub data: PathBuf,
    /// A GGUF file, `mini` for the model in the box, or the name of a model on this computer (`kept models list`).
    #[arg(long, default_value = "mini", value_name = "FILE|NAME|mini")]
    pub model: String,
    /// Methods, comma separated: those that can read in streaming mode, and full as far as the model's window reaches.
    #[arg(
        long,
        default_value = "streaming_llm,treekv,h2o,tova,ems",
        value_name = "A,B,C"
    )]
    pub methods: String,
    /// Parameters of single methods, as method:name=value[,method:name=value].
    #[arg(long, default_value = "", value_name = "METHOD:NAME=VALUE")]
    pub set: String,
    /// Budgets, comma separated: rows per head (512) or bytes for the whole cache (512MiB) [default: a quarter of the window].
    #[arg(long, value_name = "X,Y", allow_hyphen_values = true)]
    pub budgets: Option<String>,
    /// Lengths in tokens, comma separated; the longest is read once [default: the whole text].
    #[arg(long, value_name = "X,Y", allow_hyphen_values = true)]
    pub lengths: Option<String>,
    /// Tokens that are read together; 1 is the papers' token by token [default: 512, or what the window leaves].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub chunk: Option<usize>,
    /// How kept rows are stored: f32, f16, q8_0 or q4_0 [default: f16].
    #[arg(long, value_name = "TYPE")]
    pub cache: Option<CacheType>,
    /// Threads to compute with [default: all].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub threads: Option<usize>,
    #[command(flatten)]
    pub stretch: StretchArguments,
    #[command(flatten)]
    pub device: DeviceArguments,
    /// Print JSON: a line for each method and budget.
    #[arg(long)]
    pub json: bool,
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
    /// The method.
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
    /// Parameters of the method, as name=value[,name=value].
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
pub struct BenchArguments {
    #[command(flatten)]
    pub engine: EngineArguments,
    /// Tokens to read.
    #[arg(long, default_value_t = 512, value_name = "N")]
    pub prompt_tokens: usize,
    /// Tokens to write.
    #[arg(long, default_value_t = 64, value_name = "N")]
    pub decode_tokens: usize,
    /// Read in streaming mode, any number of tokens.
    #[arg(long)]
    pub streaming: bool,
    /// Read nothing: write over a cache as the method leaves it after N tokens, filled with drawn numbers.
    #[arg(long, value_name = "N", conflicts_with_all = ["prompt_tokens", "streaming"])]
    pub after: Option<usize>,
    /// Measure only how fast this machine copies and reads memory.
    #[arg(long)]
    pub bandwidth: bool,
    /// Print one JSON object instead of text.
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
        let Some(text) = &self.memory else {
            return Ok(kept_engine::available_memory());
        };
        memory(text).map(Some)
    }
}

#[derive(Debug, Args)]
pub struct DoctorArguments {
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}
