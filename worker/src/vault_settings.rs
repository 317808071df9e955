//! The vault settings: whether documents are stored for later questions, in which format and where.

use std::time::UNIX_EPOCH;

use kept_engine::kernels::PackedRows;
use kept_engine::vault::{VaultContent, VaultEntry, VaultError, VaultFolder, Vaults};
use kept_worker::protocol::{Reply, StoredDocument, Vault};

/// Vault settings of the worker.
#[derive(Debug, Clone)]
pub struct VaultSettings {
    /// `None`: off.
    kind: Option<PackedRows>,
    budget: Option<u64>,
    /// `None` where no vault folder is available.
    folder: Option<VaultFolder>,
}

impl Default for VaultSettings {
    fn default() -> Self {
        Self::new(Some(PackedRows::Q8_0), None)
    }
}

impl VaultSettings {
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

    /// Parses the user's choice: `q8_0`, `f16` or `off`.
    pub fn parse(kind: &str, budget: Option<u64>) -> Result<Self, String> {
        match (kind, PackedRows::named(kind)) {
            ("off", _) => Ok(Self::new(None, budget)),
            (_, Some(kind)) => Ok(Self::new(Some(kind), budget)),
            _ => Err(format!(
                "documents can be kept as q8_0 or f16, or not (off); {kind:?} is none of these"
            )),
        }
    }

    /// Settings with an up-to-date default budget: the free disk space changes.
    pub fn refreshed(&self) -> Self {
        match self.budget {
            Some(_) => self.clone(),
            None => Self::new(self.kind, None),
        }
    }

    /// The vaults that a question may read and extend.
    pub fn vaults(&self) -> Option<Vaults<'_>> {
        let folder = self.folder.as_ref()?;
        self.kind.map(|kind| Vaults { folder, kind })
    }

    /// Removes all vaults that are not in use.
    pub fn clear(&self) -> Result<(), String> {
        let folder = self.folder()?;
        folder.clear().map_err(|error| error.to_string())?;
        Ok(())
    }

    /// Removes what conversations about the document of this name left, with `whole` the document's own vaults too,
    /// unless they are in use.
    pub fn clear_vaults_of(&self, document: &str, whole: bool) -> Result<(), String> {
        let folder = self.folder()?;
        let entries = folder.list().map_err(|error| error.to_string())?;
        let is_meant = |entry: &&VaultEntry| {
            let turns = matches!(entry.holds, Some(VaultContent::Turns(_)));
            (whole || turns) && entry.document.as_deref() == Some(document)
        };
        for entry in entries.iter().filter(is_meant) {
            folder.remove_or_warn(&entry.key);
        }
        Ok(())
    }

    /// Evicts vaults down to the user's limit, the least recently used first, except those in use. A vault that
    /// cannot be removed now is evicted when the next document is stored.
    pub fn trim(&self) {
        if let (Some(folder), Some(_)) = (&self.folder, self.budget)
            && let Err(error) = folder.trim()
        {
            tracing::warn!(%error, "vaults exceed the disk limit and could not be evicted");
        }
    }

    /// The list of vaults as a reply to the app.
    pub fn report(&self, ticket: u64) -> Result<Reply, String> {
        let folder = self.folder()?;
        let vaults = folder.list().map_err(|error| error.to_string())?;
        let stored = stored(&vaults);
        let vault = Vault {
            kind: self.kind.map_or("off", PackedRows::name).to_owned(),
            folder: folder.path().display().to_string(),
            documents: stored.len(),
            bytes: vaults.iter().map(|entry| entry.bytes).sum(),
            budget: folder.budget(),
            stored,
        };
        Ok(Reply::Vaults { ticket, vault })
    }

    fn folder(&self) -> Result<&VaultFolder, String> {
        (self.folder.as_ref()).ok_or_else(|| VaultError::NoHome.to_string())
    }
}

/// The documents in a list of vaults, in the list's order; damaged vaults have none.
fn stored(entries: &[VaultEntry]) -> Vec<StoredDocument> {
    let mut all: Vec<StoredDocument> = Vec::new();
    for entry in entries {
        let Some(name) = &entry.document else {
            continue;
        };
        let used = entry.used.duration_since(UNIX_EPOCH);
        let used = used.map_or(0, |since| since.as_secs());
        match all.iter_mut().find(|known| known.name == *name) {
            Some(known) => {
                known.tokens = known.tokens.max(entry.tokens);
                known.bytes += entry.bytes;
                known.used = known.used.max(used);
            }
            None => all.push(StoredDocument {
                name: name.clone(),
                tokens: entry.tokens,
                bytes: entry.bytes,
                used,
            }),
        }
    }
    all
}
