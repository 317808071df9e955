//! Arguments for vaults.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use kept_engine::kernels::PackedRows;
use kept_engine::policies::Budget;
use kept_engine::vault::VaultFolder;

use super::{ComputeArguments, OpenArguments, offered};

/// Storage of documents in vaults.
#[derive(Debug, Args)]
pub struct VaultArguments {
    /// How the document is stored on disk for later questions: q8_0, f16 (twice as large; later answers are then
    /// exactly those of a first reading) or off.
    #[arg(
        long,
        default_value = "q8_0",
        value_name = "q8_0|f16|off",
        value_parser = offered::VAULTS,
        hide_possible_values = true
    )]
    pub vault: String,
    /// Disk space for all vaults, such as 20GiB; the least recently used are evicted first [default: 20GiB, or half of
    /// the free space].
    #[arg(long, value_name = "SIZE")]
    pub vault_budget: Option<String>,
}

/// The vault folder and the type of the rows in it.
pub type Kept = (VaultFolder, PackedRows);

impl VaultArguments {
    /// Type of the stored rows; `None` is off.
    fn kind(&self) -> anyhow::Result<Option<PackedRows>> {
        match (self.vault.as_str(), PackedRows::named(&self.vault)) {
            ("off", _) => Ok(None),
            (_, Some(kind)) => Ok(Some(kind)),
            (other, None) => {
                anyhow::bail!("--vault {other:?} is not known; it takes q8_0, f16 or off")
            }
        }
    }

    /// The vault folder and row type, if vaults are on; and the reason if there is no location for vaults. Questions
    /// are then answered without a vault.
    pub fn open(&self) -> anyhow::Result<(Option<Kept>, Option<String>)> {
        let (kind, budget) = (self.kind()?, self.budget()?);
        let Some(kind) = kind else {
            return Ok((None, None));
        };
        Ok(match VaultFolder::standard(budget) {
            Ok(folder) => (Some((folder, kind)), None),
            Err(error) => (None, Some(format!("the document is not kept: {error}"))),
        })
    }

    /// Disk space for all vaults in bytes, if given.
    fn budget(&self) -> anyhow::Result<Option<u64>> {
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
    /// List the vaults, most recently used first.
    List(VaultsArguments),
    /// Read a document into its vault, so that the first question starts at once. After Ctrl-C the next reading, or the
    /// first question, goes on where it stopped.
    Read(Box<ReadArguments>),
    /// Remove the vault of a document.
    Remove(RemoveArguments),
    /// Remove all vaults that are not in use.
    Clear(VaultsArguments),
}

#[derive(Debug, Args)]
pub struct VaultsArguments {
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ReadArguments {
    /// The document: text, Markdown, source code, PDF, Office, OpenDocument, EPUB, HTML, e-mail, subtitles; several are read as one text.
    #[arg(long, required = true, value_name = "FILE", allow_hyphen_values = true)]
    pub document: Vec<PathBuf>,
    #[command(flatten)]
    pub opening: OpenArguments,
    /// As in `kept ask`.
    #[arg(long, value_name = "FILE|NAME|mini")]
    pub model: Option<String>,
    /// The method of the questions to come, with parameters in brackets if any: what it measures of the whole document
    /// is kept too.
    #[arg(
        long,
        value_name = "NAME",
        value_parser = offered::METHODS_OR_AUTO,
        hide_possible_values = true
    )]
    pub method: Option<String>,
    /// Limit of all memory, such as 6GiB.
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<String>,
    #[command(flatten)]
    pub compute: ComputeArguments,
    #[command(flatten)]
    pub vault: VaultArguments,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct RemoveArguments {
    /// The name of a document or its path, of which the name counts: all vaults of that name go; or the first digits of one
    /// vault's key: see `kept vaults list`.
    #[arg(value_name = "DOCUMENT|KEY")]
    pub which: String,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}
