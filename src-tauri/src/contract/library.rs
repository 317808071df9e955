//! Models as the page sees them: what lies on this computer, what can be had, what is on its way, and what each can read.
//!
//! Every model has an id that the program gave. Where one lies is written out to be read; no command takes it back.

use serde::Serialize;

/// How a model suits the memory that is free now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Suits {
    /// It has the memory it wants.
    Fits,
    /// Its weights fit, but little is left for the document.
    Tight,
    /// Its weights alone do not fit.
    TooLarge,
    /// The system does not say how much is free.
    Unknown,
}

/// A model on this computer.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FoundModel {
    /// What commands take.
    pub id: String,
    /// As the terminal calls it.
    pub name: String,
    /// What the file calls itself.
    pub title: Option<String>,
    /// As the file says it.
    pub architecture: Option<String>,
    /// How the weights are stored.
    pub quantisation: Option<String>,
    /// All parts together.
    pub bytes: u64,
    /// Number of parts that are there.
    pub parts: usize,
    /// Numbers in all tensors, where it is known.
    pub parameters: Option<u64>,
    /// Positions it was made for.
    pub context: Option<u64>,
    /// Whose folder it lies in: `hub cache`, `LM Studio`, ...
    pub place: String,
    /// Where it lies, to be read.
    pub lies: String,
    /// Why Kept cannot open it; `None` if it can, as far as the header tells.
    pub reason: Option<String>,
    /// The entry of the models that can be chosen which is this file, if it was chosen before.
    pub choice: Option<String>,
    /// The model in the box.
    pub in_box: bool,
    /// It lies where Kept may remove it.
    pub removable: bool,
}

/// A download that some program has begun and not finished.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UnfinishedModel {
    /// What commands take.
    pub id: String,
    /// The repository or file, as far as it is known.
    pub name: String,
    /// What has arrived.
    pub bytes: Option<u64>,
    /// Whose folder it lies in.
    pub place: String,
    /// It lies in the hub's cache, where Kept can go on with it or remove it.
    pub ours: bool,
}

/// A folder that the person added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelFolder {
    /// What commands take.
    pub id: String,
    /// Its path, to be read.
    pub path: String,
}

/// A recommended model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CatalogueModel {
    /// Its name for people.
    pub name: String,
    /// What a download takes.
    pub reference: String,
    /// About how long it is.
    pub about_bytes: u64,
    /// Memory below which it is no pleasure.
    pub needs_bytes: u64,
    /// About how many numbers it has.
    pub parameters: u64,
    /// Positions it was made for.
    pub context: u64,
    /// SPDX identifier, or the licence's own name.
    pub licence: String,
    /// What it is good for, in a sentence.
    pub good_for: String,
    /// How it suits the memory that is free now.
    pub suits: Suits,
    /// The model on this computer that it is, by its id.
    pub here: Option<String>,
}

/// Models on this computer and models worth having.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Library {
    /// Those on this computer, the one in the box first.
    pub found: Vec<FoundModel>,
    /// Downloads that nobody goes on with.
    pub unfinished: Vec<UnfinishedModel>,
    /// One sentence for each folder that could not be looked through.
    pub troubles: Vec<String>,
    /// Folders that the person added.
    pub folders: Vec<ModelFolder>,
    /// Those worth downloading, the best for this machine first.
    pub catalogue: Vec<CatalogueModel>,
    /// Memory that is free now.
    pub free_memory: Option<u64>,
    /// Nothing may be fetched (`HF_HUB_OFFLINE`).
    pub offline: bool,
}

/// How far a download has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum DownloadState {
    /// Waits for those before it.
    Queued,
    /// Asks the hub what there is.
    Asking,
    /// Reads again what arrived earlier, for its hash.
    Checking,
    /// Bytes arrive.
    Downloading,
    /// Something failed that may pass; `message` says what, and when it is tried again.
    Waiting,
    /// Asked to stop, and about to.
    Stopping,
    /// Paused; what has arrived is kept.
    Paused,
    /// The file is there and its hash is right.
    Finished,
    /// `message` says why.
    Failed,
}

/// A download.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Download {
    /// What commands take.
    pub id: u64,
    /// `owner/name:file`.
    pub reference: String,
    /// How far it has come.
    pub state: DownloadState,
    /// Bytes there; while checking, bytes read again.
    pub bytes_done: u64,
    /// 0 until the hub has answered.
    pub bytes_total: u64,
    /// Of the last seconds.
    pub bytes_per_second: Option<f64>,
    /// At that speed.
    pub seconds_left: Option<f64>,
    /// The part that is downloaded now, from 1.
    pub part: usize,
    /// Number of parts.
    pub parts: usize,
    /// One sentence: why it failed, or what it waits for.
    pub message: Option<String>,
    /// Once finished: the model on this computer that it has become.
    pub model: Option<String>,
}

/// A model that a repository offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HubOffer {
    /// What a download takes.
    pub reference: String,
    /// Its first file's path in the repository.
    pub file: String,
    /// All parts together.
    pub bytes: u64,
    /// Number of parts.
    pub parts: u32,
    /// As its name says it.
    pub quantisation: Option<String>,
    /// How its weights suit the memory that is free now.
    pub suits: Suits,
    /// It is what the person wrote.
    pub meant: bool,
    /// The model on this computer that it is.
    pub here: Option<String>,
}

/// What one budget buys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FitLine {
    /// Rows per kv head that are kept; `None` keeps everything.
    pub rows: Option<usize>,
    /// The longest text, in tokens.
    pub tokens: usize,
    /// The same in pages.
    pub pages: usize,
    /// Bytes at the worst moment, weights included.
    pub peak_bytes: u64,
    /// The model's context ends it, and not memory.
    pub whole_context: bool,
}

/// What a model can read with the memory that is free now, from its header alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Inspection {
    /// Layers.
    pub layers: usize,
    /// Layers that hold their last tokens only, whatever the method.
    pub sliding_layers: usize,
    /// How many.
    pub window: Option<usize>,
    /// Tokens that it reads, stretched if that was asked for.
    pub context: usize,
    /// Size of all weights.
    pub weights_bytes: u64,
    /// What 1,000 more tokens take in the full cache.
    pub kv_bytes_per_thousand: u64,
    /// What the sliding layers take in a long text.
    pub window_bytes: u64,
    /// It can think before it answers.
    pub can_think: bool,
    /// Memory that is free now.
    pub free_bytes: Option<u64>,
    /// Bytes that are missing to read a single page; 0 when it fits.
    pub missing_bytes: u64,
    /// What each budget buys; none where the free memory is not known.
    pub lines: Vec<FitLine>,
}
