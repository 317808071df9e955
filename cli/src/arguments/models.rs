//! Arguments of `kept models ...`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::InspectArguments;

#[derive(Debug, Subcommand)]
pub enum ModelsCommand {
    /// List the models on this computer, or those worth downloading.
    List(ListArguments),
    /// Download a model from the hub, or resume a download.
    Pull(PullArguments),
    /// Add a folder to search for models.
    Add(FolderArguments),
    /// Remove an added folder from the search.
    Forget(FolderArguments),
    /// Choose the default model, or print the current choice.
    Use(UseArguments),
    /// Remove a model from the hub's cache.
    Remove(RemoveModelArguments),
    /// Print the contents of a GGUF file.
    Inspect(InspectArguments),
}

#[derive(Debug, Args)]
pub struct ListArguments {
    /// Show models worth downloading, those that suit this computer's free memory first; nothing is downloaded.
    #[arg(long, conflicts_with = "folder")]
    pub catalogue: bool,
    /// Also search this folder, for this run only.
    #[arg(long, value_name = "FOLDER")]
    pub folder: Vec<PathBuf>,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

/// How a model is downloaded.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kept models pull HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF:Q4_K_M
  kept models pull bartowski/Llama-3.2-1B-Instruct-GGUF:Llama-3.2-1B-Instruct-Q8_0.gguf
  kept models pull Qwen/Qwen3-8B-GGUF      says which files there are

Ctrl-C pauses: what has arrived is kept, and the same command goes on from there, also after a crash or a power cut. A file gets
its name only when its SHA-256 is the one that the hub names. Models made of several files are downloaded whole.

Files lie in the cache folder that all tools of the hub share (~/.cache/huggingface/hub): what they downloaded is found here, and
the other way round.

Environment:
  HF_TOKEN            a token, for private and gated repositories; also read from HF_TOKEN_PATH and $HF_HOME/token
  HF_HUB_CACHE        another cache folder; HF_HOME its parent
  HF_ENDPOINT         another hub
  HF_HUB_OFFLINE=1    fetch nothing")]
pub struct PullArguments {
    /// The repository, and which of its models: a file name or a quantisation.
    #[arg(value_name = "OWNER/NAME[:FILE|QUANTISATION]")]
    pub reference: String,
    /// Number of retries without any progress in between.
    #[arg(long, default_value_t = kept_hub::Settings::RETRIES, value_name = "N")]
    pub retries: u32,
    /// Longest time to wait for the server to send data.
    #[arg(long, default_value_t = kept_hub::Settings::TIMEOUT.as_secs(), value_name = "SECONDS")]
    pub timeout: u64,
    /// Print one JSON object instead of the path.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct FolderArguments {
    /// The folder.
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
}

/// The default model.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kept models use SmolLM2-1.7B-Instruct-Q4_K_M
  kept models use          which model answers now, and why
  kept models use auto     no longer the chosen one, but the best on this computer

Where none is chosen, kept ask and kept map take the model with a chat template that has most parameters, of those that fit the free
memory and have at most 3 GiB (larger ones answer slowly without a GPU); else the built-in model.")]
pub struct UseArguments {
    /// The model, as for --model; auto removes the choice.
    #[arg(value_name = "FILE|NAME|mini|auto")]
    pub name: Option<String>,
    /// Remove the choice, like auto.
    #[arg(long, conflicts_with = "name")]
    pub clear: bool,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Files to remove.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kept models remove HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF:Q4_K_M
  kept models remove --unfinished Qwen/Qwen3-8B-GGUF     what has arrived of a download that was never finished
  kept models remove --unfinished                        of every such download

Only what lies in the cache folder of the hub's tools is removed; models of other programs are theirs to remove.")]
pub struct RemoveModelArguments {
    /// The model's name in `kept models list`.
    #[arg(value_name = "NAME", required_unless_present = "unfinished")]
    pub name: Option<String>,
    /// Remove the partial files of unfinished downloads, instead of models.
    #[arg(long)]
    pub unfinished: bool,
    /// Do not ask for confirmation.
    #[arg(long)]
    pub yes: bool,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}
