//! Models on the hub and on disk: downloads, discovery, the catalogue.
//!
//! This is the only crate of Kept that opens connections, and it does so only in [`Download::start`], [`Settings::offers`]
//! and [`Settings::model_of`], for a command or a click. The terminal program and the app use it; the engine and the worker
//! do not depend on it.
//!
//! # Downloads
//!
//! ```no_run
//! use kept_hub::{Phase, Settings};
//!
//! # async fn example() -> Result<(), kept_hub::HubError> {
//! let hub = Settings::from_env();
//! let download = hub.download("HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF:Q4_K_M".parse()?);
//! let mut statuses = download.watch(); // a tokio watch channel of `Status`, the type that a page receives
//! download.start(); // continues from the bytes on disk after a pause, crash or power loss
//! while statuses.changed().await.is_ok() {
//!     let status = statuses.borrow_and_update().clone();
//!     if status.phase.is_at_rest() {
//!         break; // Finished (`path`), Failed (`message`, `can_retry`), Paused or Cancelled
//!     }
//! }
//! download.pause(); // stops within a moment and keeps the received bytes; `cancel` removes them
//! # Ok(()) }
//! ```
//!
//! A [`Download`] runs on its own thread: it needs no runtime, can be created in one and watched in another, and none
//! of its methods waits for the network. [`Settings::offers`] (the models of a repository) and [`Settings::model_of`] are
//! `async`.
//!
//! # Models on disk
//!
//! [`Finder::from_env`] covers the folders of the hub's cache, LM Studio, Ollama, Jan, GPT4All, llama.cpp and those
//! that the user added ([`Folders`]). [`Finder::find`] reads the header of each file and returns [`FoundModel`]s, each
//! with whether Kept can open it, and if not, why. [`Finder::choose`] resolves the argument of `--model`. Both
//! functions block on disk access; call them from `spawn_blocking`.
//!
//! # The catalogue
//!
//! [`catalogue`] is a short list of recommended models, and [`Entry::fit`] rates them for a machine. Nothing is
//! downloaded until the user requests it.
//!
//! All types that a page displays implement `Serialize`, in camel case.

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
mod request_failure;
mod settings;
pub mod text;
mod transfer;

pub use cache::{BlobLock, HubCache, HubFile};
pub use catalogue::{Entry, Fit, catalogue};
pub use choose::{Listed, Offer};
pub use download::Download;
pub use error::HubError;
pub use found::{
    AUTO, Finder, Folders, Found, FoundModel, ModelChoice, Place, Preferred, PreferredBy,
    Unfinished, is_same_file,
};
pub use progress::{Phase, Status};
pub use reference::{ModelRef, RepoId};
pub use settings::{ENDPOINT, Settings, Token};
