//! Models in the page's form: models on this computer, recommended models, downloads, and what each model can read.
//!
//! The program assigns an id to every model. Paths are only displayed; no command accepts a path.

use kept_hub::Fit;
use serde::Serialize;
use ts_rs::TS;

/// A model on this computer.
#[derive(Debug, Clone, PartialEq, Serialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct FoundModel {
    /// Id for commands.
    pub id: String,
    /// Name, as in the terminal program.
    pub name: String,
    /// Title in the file's metadata.
    pub title: Option<String>,
    /// Architecture in the file's metadata.
    pub architecture: Option<String>,
    /// Quantisation of the weights.
    pub quantisation: Option<String>,
    /// Size of all parts.
    pub bytes: u64,
    /// Number of parts on disk.
    pub parts: usize,
    /// Number of parameters, if known.
    pub parameters: Option<u64>,
    /// Context length of the model.
    pub context: Option<u64>,
    /// The owner of its folder: `hub cache`, `LM Studio`, ...
    pub place: String,
    /// Path for display.
    pub lies: String,
    /// Why Kept cannot open it; `None` if it can, judged by the header.
    pub reason: Option<String>,
    /// It has a chat template; other models continue a text instead of answering.
    pub chats: bool,
    /// Its id in the list of chosen models, if it was chosen before.
    pub choice: Option<String>,
    /// The built-in model.
    pub in_box: bool,
    /// Kept may remove it.
    pub removable: bool,
}

/// An unfinished download of any program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct UnfinishedModel {
    /// Id for commands.
    pub id: String,
    /// The repository or file, if known.
    pub name: String,
    /// Downloaded bytes.
    pub bytes: Option<u64>,
    /// The owner of its folder.
    pub place: String,
    /// It is in the hub's cache, where Kept can resume or remove it.
    pub ours: bool,
}

/// A folder that the user added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct ModelFolder {
    /// Id for commands.
    pub id: String,
    /// Path for display.
    pub path: String,
}

/// A recommended model.
#[derive(Debug, Clone, PartialEq, Serialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct CatalogueModel {
    /// Displayed name.
    pub name: String,
    /// Reference for the download command.
    pub reference: String,
    /// Approximate size in bytes.
    pub about_bytes: u64,
    /// Minimum memory for comfortable use.
    pub needs_bytes: u64,
    /// Approximate number of parameters.
    pub parameters: u64,
    /// Context length of the model.
    pub context: u64,
    /// SPDX identifier, or the licence's own name.
    pub licence: String,
    /// Its purpose, in a sentence.
    pub good_for: String,
    /// How it suits the free memory.
    pub suits: Fit,
    /// Pages that this computer's processor reads in a minute with it, about; once that was measured.
    pub pages_per_minute: Option<f64>,
    /// Id of the same model on this computer, if it is present.
    pub here: Option<String>,
}

/// Models on this computer and recommended models.
#[derive(Debug, Clone, PartialEq, Serialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct Library {
    /// Models on this computer, the built-in one first.
    pub found: Vec<FoundModel>,
    /// Unfinished downloads that are not in the download list.
    pub unfinished: Vec<UnfinishedModel>,
    /// One sentence per folder that could not be searched.
    pub troubles: Vec<String>,
    /// Folders that the user added.
    pub folders: Vec<ModelFolder>,
    /// Recommended models, the best for this machine first; `None` while the processor is measured.
    pub catalogue: Option<Vec<CatalogueModel>>,
    /// Memory that is free now.
    pub free_memory: Option<u64>,
    /// Free bytes of the disk that downloads go to.
    pub free_disk: Option<u64>,
    /// Downloads are disabled (`HF_HUB_OFFLINE`).
    pub offline: bool,
}

/// The state of a download.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, TS)]
#[serde(rename_all = "camelCase")]
pub enum DownloadState {
    /// Waits for earlier downloads.
    Queued,
    /// Queries the hub for its files.
    Asking,
    /// Rehashes the part that was downloaded earlier.
    Checking,
    /// Receives bytes.
    Downloading,
    /// A temporary failure; `message` names it and the time of the next attempt.
    Waiting,
    /// Is being stopped.
    Stopping,
    /// Paused; the downloaded part is kept.
    Paused,
    /// The file is complete and its hash matches.
    Finished,
    /// Failed; `message` gives the reason.
    Failed,
}

/// A download.
#[derive(Debug, Clone, PartialEq, Serialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct Download {
    /// Id for commands.
    pub id: u64,
    /// `owner/name:file`.
    pub reference: String,
    /// Its state.
    pub state: DownloadState,
    /// Downloaded bytes; while checking, bytes rehashed.
    pub bytes_done: u64,
    /// 0 until the hub has answered.
    pub bytes_total: u64,
    /// Speed over the last seconds.
    pub bytes_per_second: Option<f64>,
    /// Remaining seconds at that speed.
    pub seconds_left: Option<f64>,
    /// The current part, from 1.
    pub part: usize,
    /// Number of parts.
    pub parts: usize,
    /// One sentence: why it failed, or what it waits for.
    pub message: Option<String>,
    /// Once finished: the id of the downloaded model.
    pub model: Option<String>,
}

/// A model that a repository offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct HubOffer {
    /// Reference for the download command.
    pub reference: String,
    /// Its first file's path in the repository.
    pub file: String,
    /// Size of all parts.
    pub bytes: u64,
    /// Number of parts.
    pub parts: u32,
    /// Quantisation, from its name.
    pub quantisation: Option<String>,
    /// How its weights suit the memory that is free now.
    pub suits: Fit,
    /// It is the file that the user typed.
    pub meant: bool,
    /// Id of the same model on this computer, if it is present.
    pub here: Option<String>,
}
