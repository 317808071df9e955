//! Arguments for measurements: comparisons, questions with known answers, speed.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use kept_engine::kernels::CacheType;
use kept_engine::{Engine, MINI};

use super::asking::QuestionArguments;
use super::{ComputeArguments, EngineArguments, memory};
use crate::model::model_path;

/// The model of a measurement. The default is always the built-in model, whatever other models are installed.
#[derive(Debug, Args)]
pub struct MeasuredArguments {
    /// A GGUF file, `mini` for the built-in model, or the name of a model on this computer (`kept models list`).
    #[arg(long, default_value = MINI, value_name = "FILE|NAME|mini")]
    model: String,
    /// Type of the kept rows: f32, f16, q8_0 or q4_0; a full cache to compare with is f32 [default: f16].
    #[arg(long, value_name = "TYPE")]
    cache: Option<CacheType>,
    #[command(flatten)]
    compute: ComputeArguments,
}

impl MeasuredArguments {
    /// Opens the model.
    pub fn open(&self) -> anyhow::Result<Engine> {
        self.compute.open(&model_path(&self.model)?, self.cache)
    }
}

#[derive(Debug, Args)]
pub struct CompareArguments {
    #[command(flatten)]
    pub question: QuestionArguments,
    /// Methods, comma separated, with parameters in brackets if any; a method may be repeated with other parameters:
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
    /// Parameters, comma separated: name=value for every method that has it (sinks=0 as in most papers), or
    /// method:name=value. Brackets come first.
    #[arg(long, default_value = "", value_name = "[METHOD:]NAME=VALUE")]
    pub set: String,
    /// Longest answer of the full cache that the methods are compared along, in tokens.
    #[arg(long, default_value_t = 64, value_name = "N")]
    pub max_tokens: usize,
    #[command(flatten)]
    pub engine: MeasuredArguments,
    /// Also draw the figures as SVG files in this folder.
    #[arg(long, value_name = "FOLDER")]
    pub pictures: Option<PathBuf>,
    /// Print JSON, one object per line: the full cache first, then one for each method and budget.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum EvalCommand {
    /// Retrieve one planted fact at every length and depth.
    Needle(NeedleArguments),
    /// Ask questions with known answers about documents.
    Qa(QaArguments),
    /// LongBench: its tasks, prompts and scores, with its data.
    Longbench(LongBenchArguments),
    /// GSM8K: arithmetic problems behind solved examples.
    Gsm8k(Gsm8kArguments),
    /// Perplexity of a long text in streaming mode.
    Perplexity(PerplexityArguments),
}

/// What both benchmarks take.
#[derive(Debug, Args)]
pub struct BenchmarkArguments {
    /// Methods, comma separated, with parameters in brackets if any; a method may be repeated with other parameters:
    /// 'full,chunkkv,chunkkv[reuse=2]'.
    #[arg(
        long,
        default_value = "full,snapkv,pyramidkv,chunkkv,hbw_kv",
        value_name = "A,B[NAME=VALUE],C"
    )]
    pub methods: String,
    /// Budgets, comma separated: rows per head (512) or shares of the prompt (10%).
    #[arg(
        long,
        default_value = "10%,20%,30%",
        value_name = "X,Y",
        allow_hyphen_values = true
    )]
    pub budgets: String,
    /// Cases of each task, from the first [default: all].
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Longest prompt, in tokens: a longer one loses its middle [default: what the context length leaves].
    #[arg(long, value_name = "N")]
    pub length: Option<usize>,
    #[command(flatten)]
    pub engine: MeasuredArguments,
    /// Print JSON: one line per answer, then a summary.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct LongBenchArguments {
    /// The folder LongBench of LongBench's repository, with its config/, and the data unpacked into data/.
    #[arg(long, value_name = "FOLDER")]
    pub data: PathBuf,
    /// Tasks, comma separated [default: all in data/].
    #[arg(long, value_name = "A,B,C")]
    pub tasks: Option<String>,
    #[command(flatten)]
    pub benchmark: BenchmarkArguments,
}

#[derive(Debug, Args)]
pub struct Gsm8kArguments {
    /// A folder with GSM8K's train.jsonl and test.jsonl.
    #[arg(long, value_name = "FOLDER")]
    pub data: PathBuf,
    /// Solved examples before each problem: the text that methods compress.
    #[arg(long, default_value_t = 8, value_name = "N")]
    pub shots: usize,
    #[command(flatten)]
    pub benchmark: BenchmarkArguments,
}

#[derive(Debug, Args)]
pub struct NeedleArguments {
    /// Text to hide the fact in: a file, or a folder of .txt files.
    #[arg(long, value_name = "FILE|FOLDER")]
    pub data: PathBuf,
    /// Methods, comma separated, with parameters in brackets if any; a method may be repeated with other parameters:
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
    /// Prompt lengths in tokens, comma separated; exact to within a sentence or two.
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
    /// Number of different facts and pieces of text for every length and depth.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub repeats: u64,
    #[command(flatten)]
    pub engine: MeasuredArguments,
    /// Store every case in this file, one line of JSON each. Stored cases are not run again: a long grid can be stopped
    /// and resumed.
    #[arg(long, value_name = "FILE")]
    pub grid: Option<PathBuf>,
    /// Also draw the grid as an SVG file.
    #[arg(long, value_name = "FILE")]
    pub picture: Option<PathBuf>,
    /// Print JSON: one line per case, then a summary.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct QaArguments {
    /// A folder with questions.jsonl and documents/, such as tests/qa.
    #[arg(long, value_name = "FOLDER")]
    pub data: PathBuf,
    /// Methods, comma separated (`kept methods` lists them).
    #[arg(long, default_value = "full", value_name = "A,B,C")]
    pub methods: String,
    /// Parameters, comma separated: name=value for every method that has it (sinks=0 as in most papers), or
    /// method:name=value.
    #[arg(long, default_value = "", value_name = "[METHOD:]NAME=VALUE")]
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
    #[arg(long, default_value_t = 48, value_name = "N")]
    pub max_tokens: usize,
    #[command(flatten)]
    pub engine: MeasuredArguments,
    /// Print JSON: one line per answer, then a summary.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct PerplexityArguments {
    /// The text: a file, or a folder of .txt files.
    #[arg(long, value_name = "FILE|FOLDER")]
    pub data: PathBuf,
    /// Methods, comma separated, with parameters in brackets if any ('h2o,h2o[recent=8]'): those with a streaming mode,
    /// and full up to the model's context length.
    #[arg(
        long,
        default_value = "streaming_llm,treekv,h2o,tova,ems",
        value_name = "A,B,C"
    )]
    pub methods: String,
    /// Parameters, comma separated: name=value for every method that has it (sinks=0 as in most papers), or
    /// method:name=value. Brackets come first.
    #[arg(long, default_value = "", value_name = "[METHOD:]NAME=VALUE")]
    pub set: String,
    /// Budgets, comma separated: rows per head (512) or bytes for the whole cache (512MiB) [default: a quarter of the
    /// context length].
    #[arg(long, value_name = "X,Y", allow_hyphen_values = true)]
    pub budgets: Option<String>,
    /// Lengths in tokens, comma separated; the longest is read once [default: the whole text].
    #[arg(long, value_name = "X,Y", allow_hyphen_values = true)]
    pub lengths: Option<String>,
    /// Tokens per chunk; 1 is token by token, as in the papers [default: 512, or what the context length leaves].
    #[arg(long, value_name = "N")]
    pub chunk: Option<usize>,
    #[command(flatten)]
    pub engine: MeasuredArguments,
    /// Print JSON: one line per method and budget.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct BenchArguments {
    #[command(flatten)]
    pub engine: EngineArguments,
    /// Prompt length in tokens.
    #[arg(long, default_value_t = 512, value_name = "N")]
    pub prompt_tokens: usize,
    /// Answer length in tokens.
    #[arg(long, default_value_t = 64, value_name = "N")]
    pub decode_tokens: usize,
    /// Read in streaming mode, with any number of tokens.
    #[arg(long)]
    pub streaming: bool,
    /// Skip prefill: decode with the cache that the method leaves after N tokens, filled with synthetic rows.
    #[arg(long, value_name = "N", conflicts_with_all = ["prompt_tokens", "streaming"])]
    pub after: Option<usize>,
    /// Store the prompt in a temporary vault, and measure a second question with it.
    #[arg(long, conflicts_with_all = ["streaming", "after"])]
    pub again: bool,
    /// Limit the memory of the GPU, weights included: 8GiB.
    #[arg(long, value_name = "SIZE", conflicts_with_all = ["streaming", "after"])]
    pub memory: Option<String>,
    /// Measure only the memory bandwidth of this machine: copying and reading.
    #[arg(long)]
    pub bandwidth: bool,
    /// Also measure the parts of a decode step: microseconds of a layer, GB/s, and the share of the memory bandwidth.
    #[arg(long)]
    pub kernels: bool,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

impl BenchArguments {
    /// Tokens before the first decoded one.
    pub fn tokens(&self) -> usize {
        self.after.unwrap_or(self.prompt_tokens)
    }

    /// GPU memory limit in bytes.
    pub fn gpu_memory(&self) -> anyhow::Result<Option<u64>> {
        self.memory.as_deref().map(memory).transpose()
    }
}
