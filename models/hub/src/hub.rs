//! The hub, as this computer is set up for it.

use crate::choose::offers;
use crate::{Download, HubCache, HubError, HubFile, ModelRef, Offer, RepoId, Settings, download};

/// The hub with its settings. Making one opens no connection.
#[derive(Debug, Clone)]
pub struct Hub {
    settings: Settings,
}

impl Hub {
    /// With what the environment says.
    pub fn from_env() -> Hub {
        Hub::new(Settings::from_env())
    }

    /// With these settings.
    pub fn new(settings: Settings) -> Hub {
        Hub { settings }
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The cache folder.
    pub fn cache(&self) -> HubCache {
        HubCache::new(&self.settings.cache)
    }

    /// A download, not yet started.
    pub fn download(&self, reference: ModelRef) -> Download {
        Download::new(self.settings.clone(), reference)
    }

    /// A download that an earlier run has begun: `files` is what [`Download::files`] said then. It is paused, with what lies on the
    /// disk now; starting it asks the hub again, giving it up removes what has arrived.
    pub fn begun(&self, reference: ModelRef, files: Vec<HubFile>) -> Download {
        Download::begun(self.settings.clone(), reference, files)
    }

    /// The model that an unfinished file of the cache ([`HubCache::partial_of`]) belongs to, by the hub's list. Opens a connection;
    /// needs a tokio runtime.
    ///
    /// # Errors
    /// Those of [`Hub::offers`], and [`HubError::Outdated`] where the hub no longer has that file.
    pub async fn model_of(&self, repo: &RepoId, sha256: &str) -> Result<ModelRef, HubError> {
        let offers = self.offers(repo).await?;
        let is_it = |offer: &&Offer| {
            let mut hashes = offer.files.iter().filter_map(|file| file.sha256.as_deref());
            hashes.any(|hash| hash.eq_ignore_ascii_case(sha256))
        };
        let offer = offers
            .iter()
            .find(is_it)
            .ok_or_else(|| HubError::Outdated { repo: repo.clone() })?;
        Ok(ModelRef {
            repo: repo.clone(),
            what: Some(offer.path().to_owned()),
        })
    }

    /// The models that a repository offers, by size. Opens a connection; needs a tokio runtime.
    ///
    /// # Errors
    /// Those of the connection, [`HubError::Offline`], and [`HubError::NoGguf`] where there is none.
    pub async fn offers(&self, repo: &RepoId) -> Result<Vec<Offer>, HubError> {
        let reference = ModelRef {
            repo: repo.clone(),
            what: None,
        };
        let offers = offers(&download::ask(&self.settings, &reference).await?);
        match offers.is_empty() {
            true => Err(HubError::NoGguf { repo: repo.clone() }),
            false => Ok(offers),
        }
    }
}
