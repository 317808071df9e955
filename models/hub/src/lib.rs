//! Models from the hub and models already on disk: downloads, discovery, the catalogue.
//!
//! This is the only crate of Kept that opens a connection, and it opens one only for [`Download::start`] and [`Hub::offers`]: for
//! a command or a click. Terminal and window are built on it; the engine and the worker do not depend on it.
//!
//! # Downloads
//!
//! ```no_run
//! use kept_hub::{Hub, Phase};
//!
//! # async fn example() -> Result<(), kept_hub::HubError> {
//! let hub = Hub::from_env();
//! let download = hub.download("HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF:Q4_K_M".parse()?);
//! let mut statuses = download.watch(); // a tokio watch channel of `Status`, which is what a page is sent
//! download.start(); //  also `resume`: goes on from whatever is on disk, after a pause, a crash or a power cut
//! while statuses.changed().await.is_ok() {
//!     let status = statuses.borrow_and_update().clone();
//!     if status.phase.is_at_rest() {
//!         break; // Finished (`path`), Failed (`message`, `can_retry`), Paused or Cancelled
//!     }
//! }
//! download.pause(); //  stops within a moment and keeps what has arrived; `cancel` removes it
//! # Ok(()) }
//! ```
//!
//! A [`Download`] runs on a thread of its own: it needs no runtime, may be made in one and watched in another, and none of its
//! methods waits for the network. [`Hub::offers`] (what a repository has) is the one `async` function.
//!
//! # Models on disk
//!
//! [`Finder::from_env`] knows the folders of the hub's cache, LM Studio, Ollama, Jan, GPT4All, llama.cpp and those that the
//! person added ([`Folders`]); [`Finder::find`] reads the header of each file in them and gives [`FoundModel`]s, each with
//! whether Kept can open it, and why not. [`Finder::choose`] is what `--model` means. Both block, on the disk: call them from
//! `spawn_blocking`.
//!
//! # The catalogue
//!
//! [`catalogue`] is a short list of models worth starting with, and [`Entry::fit`] says which suit a machine. Nothing in it is
//! fetched until somebody asks.
//!
//! Every type that a page is shown is `Serialize`, in camel case.

mod cache;
mod catalogue;
pub mod choose;
mod download;
mod error;
mod found;
mod hub;
mod progress;
mod reference;
mod remote;
mod reporter;
mod settings;
pub mod text;
mod transfer;
mod trouble;

pub use cache::{BlobLock, HubCache, HubFile};
pub use catalogue::{Entry, Fit, catalogue};
pub use choose::{Listed, Offer};
pub use download::Download;
pub use error::HubError;
pub use found::{
    AUTO, Finder, Folders, Found, FoundModel, ModelChoice, Place, Preferred, PreferredBy,
    Unfinished,
};
pub use hub::Hub;
pub use progress::{Phase, Status};
pub use reference::{ModelRef, RepoId};
pub use settings::{ENDPOINT, Settings, Token};
