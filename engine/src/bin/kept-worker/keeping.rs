//! Whether documents are kept for later questions, how and where.

use kept_engine::kernels::PackedRows;
use kept_engine::protocol::Reply;
use kept_engine::vault::{VaultError, VaultFolder, Vaults};

/// See the head of this file.
#[derive(Debug, Clone)]
pub struct Keeping {
    /// Nothing is off.
    kind: Option<PackedRows>,
    budget: Option<u64>,
    /// The place, where there is one.
    folder: Option<VaultFolder>,
}

impl Default for Keeping {
    fn default() -> Self {
        Self::new(Some(PackedRows::Q8_0), None)
    }
}

impl Keeping {
    fn new(kind: Option<PackedRows>, budget: Option<u64>) -> Self {
        let folder = VaultFolder::standard(budget);
        if let Err(error) = &folder {
            tracing::warn!(%error, "documents are not kept");
        }
        Self {
            kind,
            budget,
            folder: folder.ok(),
        }
    }

    /// As a person chose: `q8_0`, `f16` or `off`.
    pub fn named(kind: &str, budget: Option<u64>) -> Result<Self, String> {
        match (kind, PackedRows::named(kind)) {
            ("off", _) => Ok(Self::new(None, budget)),
            (_, Some(kind)) => Ok(Self::new(Some(kind), budget)),
            _ => Err(format!(
                "documents can be kept as q8_0 or f16, or not (off); {kind:?} is none of these"
            )),
        }
    }

    /// The same with the default budget of this moment: what is free on the disk changes.
    pub fn now(&self) -> Self {
        match self.budget {
            Some(_) => self.clone(),
            None => Self::new(self.kind, None),
        }
    }

    /// What a question may use and add to.
    pub fn vaults(&self) -> Option<Vaults<'_>> {
        let folder = self.folder.as_ref()?;
        self.kind.map(|kind| Vaults { folder, kind })
    }

    /// Removes what is kept, but what is in use.
    pub fn clear(&self) -> Result<(), String> {
        let folder = self.folder()?;
        folder.clear().map_err(|error| error.to_string())?;
        Ok(())
    }

    /// Removes what is more than a person allowed, the least recently used first, but nothing that is in use. What cannot be removed now
    /// goes when the next document is kept.
    pub fn trim(&self) {
        if let (Some(folder), Some(_)) = (&self.folder, self.budget)
            && let Err(error) = folder.trim()
        {
            tracing::warn!(%error, "what is kept is more than is allowed");
        }
    }

    /// What is kept, as the window is told.
    pub fn told(&self, ticket: u64) -> Result<Reply, String> {
        let folder = self.folder()?;
        let documents = folder.list().map_err(|error| error.to_string())?;
        Ok(Reply::Vaults {
            ticket,
            kind: self.kind.map_or("off", PackedRows::name).to_owned(),
            folder: folder.path().display().to_string(),
            documents: documents.len(),
            bytes: documents.iter().map(|entry| entry.bytes).sum(),
            budget: folder.budget(),
        })
    }

    fn folder(&self) -> Result<&VaultFolder, String> {
        (self.folder.as_ref()).ok_or_else(|| VaultError::NoHome.to_string())
    }
}
