//! Arguments for questions: document, question, and limits of prefill.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use kept_engine::documents::Document;
use kept_engine::{Engine, Limits, Sampler, Sampling, Streaming};

use super::{ReadingArguments, memory};
use crate::ask::open_documents;

/// When a document is read in streaming mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StreamingChoice {
    /// If the document is longer than the context length.
    Auto,
    /// Always.
    On,
    /// Never: a document beyond the context length is refused.
    Off,
}

/// Limits of prefill.
#[derive(Debug, Args)]
pub struct LimitArguments {
    /// Read in streaming mode, which is approximate: in bounded memory for any length, evicting rows on the way.
    #[arg(long, value_enum, default_value_t = StreamingChoice::Auto)]
    pub streaming: StreamingChoice,
    /// Memory limit, weights and program included, such as 6GiB; rows and chunk size are chosen to fit. With --device
    /// cuda:0 it limits the GPU's memory.
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub memory: Option<String>,
}

impl LimitArguments {
    /// The limits in the engine's form.
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

/// How a document is opened.
#[derive(Debug, Args)]
pub struct OpenArguments {
    /// Password of an encrypted PDF. Other programs of this computer can see the arguments of a command, and not its
    /// environment.
    #[arg(
        long,
        env = "KEPT_PASSWORD",
        hide_env_values = true,
        value_name = "TEXT",
        allow_hyphen_values = true
    )]
    pub password: Option<String>,
    /// Recognise the text of scanned pages and images in these languages, as tesseract names them: eng, or deu+eng.
    /// Tesseract and, for PDFs, pdftoppm of poppler must be installed.
    #[arg(long, value_name = "LANGUAGES", value_delimiter = '+')]
    pub recognise: Vec<String>,
}

/// A document and a question.
#[derive(Debug, Args)]
pub struct QuestionArguments {
    /// The document: text, Markdown, source code, PDF, Office, OpenDocument, EPUB, HTML, e-mail, subtitles.
    #[arg(long, value_name = "FILE", allow_hyphen_values = true)]
    pub document: PathBuf,
    #[command(flatten)]
    pub opening: OpenArguments,
    /// The question.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub question: String,
}

impl QuestionArguments {
    /// Opens the document.
    pub fn open(&self) -> anyhow::Result<Document> {
        open_documents(std::slice::from_ref(&self.document), &self.opening)
    }
}

/// When output is coloured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// If the terminal supports it.
    Auto,
    /// Also in files and pipes.
    Always,
    /// Plain text only.
    Never,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  git log -p | kept ask --document - --question \"What was renamed?\"
  kept ask --document book.pdf --question \"Who is the captain?\" --question \"Where does the ship sail?\"
      reads the document once and answers both; a later command on the same document does not read it again

The vault keeps what the model computed of a document in $KEPT_VAULTS, or else in kept/vaults where the system keeps caches;
kept vaults list shows what is there.")]
pub struct AskArguments {
    /// The document: text, Markdown, source code, PDF, Office, OpenDocument, EPUB, HTML, e-mail, subtitles. Several documents are read in this order, as one text with
    /// their names; - reads the standard input.
    #[arg(long, value_name = "FILE", allow_hyphen_values = true, required = true)]
    pub document: Vec<PathBuf>,
    #[command(flatten)]
    pub opening: OpenArguments,
    /// The question; several are answered in order, and with the vault the document is read once.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, required = true)]
    pub question: Vec<String>,
    #[command(flatten)]
    pub reading: ReadingArguments,
    #[command(flatten)]
    pub answer: AnswerArguments,
    /// Also write the retention map to this file, in the format of `kept map --json`.
    #[arg(long, value_name = "FILE")]
    pub map: Option<PathBuf>,
    /// Print the document after the answer, painted by the kept tokens.
    #[arg(long, conflicts_with = "json")]
    pub paint: bool,
    /// When to use colour.
    #[arg(long, value_enum, default_value_t = Color::Auto)]
    pub color: Color,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Every question sees the earlier ones. Lines that begin with a slash are commands; /help lists them. Ctrl-C stops an answer,
Ctrl-D ends the conversation. With --json every line of the input is one question, as text or as an object:
  {\"question\": \"Who is the captain?\", \"method\": \"snapkv\", \"budget\": \"25%\", \"alone\": true}
and every line of the output is its answer, with the fields of kept ask --json, or {\"error\": ...}.")]
pub struct ChatArguments {
    /// The document: text, Markdown, source code, PDF, Office, OpenDocument, EPUB, HTML, e-mail, subtitles; several are read as one text. Without one, the model answers
    /// from what it knows.
    #[arg(long, value_name = "FILE", allow_hyphen_values = true)]
    pub document: Vec<PathBuf>,
    #[command(flatten)]
    pub opening: OpenArguments,
    #[command(flatten)]
    pub reading: ReadingArguments,
    #[command(flatten)]
    pub answer: AnswerArguments,
    /// When to use colour.
    #[arg(long, value_enum, default_value_t = Color::Auto)]
    pub color: Color,
    /// Read one question and print one JSON object per line.
    #[arg(long)]
    pub json: bool,
}

/// How an answer is written.
#[derive(Debug, Args)]
pub struct AnswerArguments {
    /// Longest answer, in tokens.
    #[arg(long, default_value_t = Engine::DEFAULT_MAX_TOKENS, value_name = "N", value_parser = count)]
    pub max_tokens: usize,
    /// Sampling temperature: 0 takes the most likely token; larger values give more varied answers.
    #[arg(long, default_value_t = 0.0, value_parser = temperature)]
    pub temperature: f64,
    /// Sample from the K most likely tokens only.
    #[arg(long, value_name = "K", value_parser = count)]
    pub top_k: Option<usize>,
    /// Sample from the most likely tokens that together have this probability.
    #[arg(long, value_name = "P")]
    pub top_p: Option<f64>,
    /// Sample from tokens with at least this share of the probability of the most likely token.
    #[arg(long, value_name = "P")]
    pub min_p: Option<f64>,
    /// Make tokens that the answer already contains less likely: 1 is off, 1.1 is usual against repetition, 2 is the
    /// maximum.
    #[arg(long, value_name = "F")]
    pub repeat_penalty: Option<f64>,
    /// Seed of the sampling: the same seed gives the same answer.
    #[arg(long, default_value_t = 0, value_parser = seed)]
    pub seed: u64,
    /// Let a model with a thinking mode think before it answers.
    #[arg(long)]
    pub thinking: bool,
    /// Print the prompt as the model sees it, in its chat template.
    #[arg(long)]
    pub show_prompt: bool,
}

fn count(text: &str) -> Result<usize, String> {
    text.parse()
        .map_err(|_| "it takes a whole number from 1".to_owned())
}

fn seed(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("it takes a whole number from 0 to {}", u64::MAX))
}

fn temperature(text: &str) -> Result<f64, String> {
    let number = text.parse().ok();
    number
        .filter(|number: &f64| number.is_finite() && *number >= 0.0)
        .ok_or_else(|| "it takes a number from 0".to_owned())
}

impl AnswerArguments {
    /// # Errors
    /// If no answer is allowed, or a sampling parameter is out of range.
    pub fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.max_tokens > 0,
            "--max-tokens 0 leaves no room for an answer; give at least 1"
        );
        Sampler::new(&self.sampling())?;
        Ok(())
    }

    pub fn sampling(&self) -> Sampling {
        Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            seed: self.seed,
        }
    }
}

#[derive(Debug, Args)]
pub struct MapArguments {
    #[command(flatten)]
    pub question: QuestionArguments,
    #[command(flatten)]
    pub reading: ReadingArguments,
    /// Also write the painted document as an HTML page.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// When to use colour.
    #[arg(long, value_enum, default_value_t = Color::Auto)]
    pub color: Color,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}
