//! Requests to the hub, with its settings.

use crate::choose::offers;
use crate::{Download, HubCache, HubError, HubFile, ModelRef, Offer, RepoId, Settings, download};

impl Settings {
    /// The cache folder.
    pub fn hub_cache(&self) -> HubCache {
        HubCache::new(&self.cache)
    }

    /// A download, not yet started.
    pub fn download(&self, reference: ModelRef) -> Download {
        Download::new(self.clone(), reference)
    }

    /// A download that an earlier run started. `files` is the result of [`Download::files`] in that run. The download
    /// is paused, with the bytes on disk counted; starting it queries the hub again, cancelling it removes the received
    /// bytes.
    pub fn begun(&self, reference: ModelRef, files: Vec<HubFile>) -> Download {
        Download::begun(self.clone(), reference, files)
    }

    /// The model to which an unfinished file of the cache ([`HubCache::partial_of`]) belongs, according to the hub's
    /// list. Opens a connection; requires a tokio runtime.
    ///
    /// # Errors
    /// Those of [`Settings::offers`], and [`HubError::Outdated`] if the hub no longer has the file.
    pub async fn model_of(&self, repo: &RepoId, sha256: &str) -> Result<ModelRef, HubError> {
        let offers = self.offers(repo).await?;
        let is_it = |offer: &&Offer| {
            let mut hashes = offer.files.iter().filter_map(|file| file.sha256.as_deref());
            hashes.any(|hash| hash.eq_ignore_ascii_case(sha256))
        };
        let offer = offers
            .iter()
            .find(is_it)
            .ok_or_else(|| HubError::Outdated(repo.clone()))?;
        Ok(ModelRef {
            repo: repo.clone(),
            what: Some(offer.path().to_owned()),
        })
    }

    /// The models of a repository, by size. Opens a connection; requires a tokio runtime.
    ///
    /// # Errors
    /// Those of the connection, [`HubError::Offline`], and [`HubError::NoGguf`] if it has no model.
    pub async fn offers(&self, repo: &RepoId) -> Result<Vec<Offer>, HubError> {
        let reference = ModelRef {
            repo: repo.clone(),
            what: None,
        };
        let offers = offers(&download::ask(self, &reference).await?);
        if offers.is_empty() {
            Err(HubError::NoGguf(repo.clone()))
        } else {
            Ok(offers)
        }
    }
}
