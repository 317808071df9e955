//! The vaults on disk: the setting for the worker, the worker's reports, and clearing.

use kept_engine::policies::Budget;
use kept_worker::protocol::Request;

use super::AppState;
use crate::contract::{AppEvent, NoticeKind, Place, Settings, Vault};
use crate::messages::{self, as_sentence};

/// The types of vault rows; the first is no vault.
const KINDS: [&str; 3] = ["off", "q8_0", "f16"];

/// A smaller disk limit removes what was read and holds no document.
const MIN_BYTES: u64 = 64 << 20;

/// Checks the vault settings and returns the disk budget in bytes, if one is set.
pub fn check_keeping(settings: &Settings) -> Result<Option<u64>, String> {
    if !KINDS.contains(&settings.keep.as_str()) {
        return Err(messages::keeping(&settings.keep));
    }
    let Some(typed) = &settings.keep_budget else {
        return Ok(None);
    };
    match typed.parse() {
        Ok(Budget::Bytes(bytes)) if bytes < MIN_BYTES => Err(messages::keep_budget_small(typed)),
        Ok(Budget::Bytes(bytes)) => Ok(Some(bytes)),
        _ => Err(messages::keep_budget(typed)),
    }
}

impl AppState {
    /// Sends the vault settings to the worker.
    pub(super) fn send_vault_settings(&mut self) {
        self.document_stored(true);
        let ticket = self.ticket();
        // Invalid values were refused when the user typed them; a stored one comes from a newer version.
        let budget = check_keeping(&self.settings).unwrap_or_default();
        let kind = self.settings.keep.clone();
        self.send(
            Request::KeepDocuments {
                ticket,
                kind,
                budget,
            },
            None,
        );
    }

    /// Requests the state of the vaults from the worker.
    pub(super) fn request_vaults(&mut self) {
        let ticket = self.ticket();
        self.send(Request::Vaults { ticket }, None);
    }

    pub(super) fn vault_told(&mut self, ticket: u64, vault: Vault) {
        if self.vaults.clearing == Some(ticket) {
            self.vaults.clearing = None;
            self.vaults.unwritten = false;
            let said = messages::vault_cleared(vault.documents);
            self.notice(NoticeKind::Info, Place::Settings, said);
        }
        self.set_vault(Some(vault));
    }

    pub(super) fn vault_failed(&mut self, message: &str) {
        self.vaults.clearing = None;
        tracing::warn!(message, "the vault cannot be used");
        self.notice(NoticeKind::Error, Place::Settings, as_sentence(message));
        self.set_vault(None);
    }

    fn set_vault(&mut self, vault: Option<Vault>) {
        self.vaults.known = vault;
        self.emit_vault();
    }

    /// The open document was read, and `stored` for later questions or not. Until that is known, and after a change that
    /// may help, it counts as stored.
    pub(super) fn document_stored(&mut self, stored: bool) {
        if self.vaults.unwritten == stored {
            self.vaults.unwritten = !stored;
            self.emit_vault();
        }
    }

    fn emit_vault(&mut self) {
        let (vault, unwritten) = (self.vaults.known.clone(), self.vaults.unwritten);
        self.emit(AppEvent::Vault { vault, unwritten });
    }

    /// Removes what conversations about the document of this name left in the vaults: one of them was deleted. The others
    /// read their turns once more. If there is none, and the document is not open, its own vaults are removed too.
    pub(super) fn clear_vaults_of(&mut self, document: String) {
        let is_open = (self.open.document.as_ref()).is_some_and(|open| open.info.name == document);
        let whole = !is_open && !self.is_discussed(&document);
        if self.worker.check_ready().is_ok() && !document.is_empty() {
            let ticket = self.ticket();
            let request = Request::ClearVaultsOf {
                ticket,
                document,
                whole,
            };
            self.send(request, None);
        }
    }

    /// Whether a conversation is about the document of this name.
    fn is_discussed(&self, document: &str) -> bool {
        let mut all = self.conversations.all.iter();
        all.any(|conversation| conversation.document == document)
    }

    /// Removes the vaults of a document that is not open any more, if its last conversation was deleted meanwhile.
    pub(super) fn clear_vaults_left(&mut self, document: &str) {
        let mut deleted = self.conversations.deleted.iter();
        if deleted.any(|deleted| deleted.document == document) && !self.is_discussed(document) {
            self.clear_vaults_of(document.to_owned());
        }
    }

    /// Removes all vaults that are not in use. Returns the reason for a refusal in one sentence.
    pub fn clear_vault(&mut self) -> Result<(), String> {
        self.worker.check_ready()?;
        let ticket = self.ticket();
        self.vaults.clearing = Some(ticket);
        self.send(Request::ClearVaults { ticket }, None);
        Ok(())
    }
}
