//! The hub, as this computer is set up for it.

use crate::choose::offers;
use crate::{Download, HubCache, HubError, ModelRef, Offer, RepoId, Settings, download};

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
