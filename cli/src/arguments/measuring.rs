//! What measuring takes: comparisons, questions with known answers, speed.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use kept_engine::kernels::CacheType;

use super::asking::QuestionArguments;
use super::{DeviceArguments, EngineArguments, StretchArguments, memory};

#[derive(Debug, Args)]
pub struct CompareArguments {
    #[command(flatten)]
    pub question: QuestionArguments,
    /// A GGUF file, `mini` for the model in the box, or the name of a model on this computer (`kept models list`).
    #[arg(long, default_value = "mini", value_name = "FILE|NAME|mini")]
    pub model: String,
    /// Methods, comma separated, with parameters in brackets if any; one may be named again with others:
    /// 'snapkv,snapkv[w=8,sinks=0]' [default: all; `kept methods` lists them].
    #[arg(long, value_name = "A,B[NAME=VALUE],C")]
    pub methods: Option<String>,
    /// Budgets, comma separated: rows per head (512), shares of the prompt (10%) or bytes for the whole cache (512MiB).
    #[arg(
        long,
        default_value = "25%",
        value_name = "X,Y",
        allow_hyphen_values = true
    )]
    pub budgets: String,
    /// Parameters of single methods, as method:name=value[,method:name=value]: of every entry of that name, where its brackets do not
    /// set them.
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
    /// Questions with known answers about documents.
    Qa(QaArguments),
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
    /// Methods, comma separated, with parameters in brackets if any; one may be named again with others:
    /// 'snapkv,snapkv[w=8,sinks=0]' [default: all; `kept methods` lists them].
    #[arg(long, value_name = "A,B[NAME=VALUE],C")]
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
pub struct QaArguments {
    /// A folder with questions.jsonl and documents/, such as tests/qa.
    #[arg(long, value_name = "FOLDER")]
    pub data: PathBuf,
    /// A GGUF file, `mini` for the model in the box, or the name of a model on this computer (`kept models list`).
    #[arg(long, default_value = "mini", value_name = "FILE|NAME|mini")]
    pub model: String,
    /// Methods, comma separated (`kept methods` lists them).
    #[arg(long, default_value = "full", value_name = "A,B,C")]
    pub methods: String,
    /// Parameters of single methods, as method:name=value[,method:name=value].
    #[arg(long, default_value = "", value_name = "METHOD:NAME=VALUE")]
    pub set: String,
    /// Budgets, comma separated.
    #[arg(
        long,
        default_value = "25%",
        value_name = "X,Y",
        allow_hyphen_values = true
    )]
    pub budgets: String,
    /// Longest answer, in tokens.
    #[arg(
        long,
        default_value_t = 48,
        value_name = "N",
        allow_negative_numbers = true
    )]
    pub max_tokens: usize,
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
    /// Print JSON: a line for each answer, then a summary.
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
    /// Methods, comma separated, with parameters in brackets if any ('h2o,h2o[recent=8]'): those that can read in streaming mode, and
    /// full as far as the model's window reaches.
    #[arg(
        long,
        default_value = "streaming_llm,treekv,h2o,tova,ems",
        value_name = "A,B,C"
    )]
    pub methods: String,
    /// Parameters of single methods, as method:name=value[,method:name=value]: of every entry of that name, where its brackets do not
    /// set them.
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
    /// Keep what was read in a vault, a temporary one, and ask once more behind it.
    #[arg(long, conflicts_with_all = ["streaming", "after"])]
    pub again: bool,
    /// Take at most so much of the GPU that computes, weights included: 8GiB.
    #[arg(long, value_name = "SIZE", conflicts_with_all = ["streaming", "after"])]
    pub memory: Option<String>,
    /// Measure only how fast this machine copies and reads memory.
    #[arg(long)]
    pub bandwidth: bool,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

impl BenchArguments {
    /// What of a GPU may be taken, in bytes.
    pub fn gpu_memory(&self) -> anyhow::Result<Option<u64>> {
        self.memory.as_deref().map(memory).transpose()
    }
}
