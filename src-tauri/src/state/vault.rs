//! The vaults on disk: the setting for the worker, the worker's reports, and clearing.

use kept_engine::policies::Budget;
use kept_worker::protocol::Request;

use super::AppState;
use super::effect::Save;
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
        if let Some(removed) = self.vaults.removing.remove(&ticket) {
            self.conversations.to_clear.retain(|name| *name != removed);
            self.save_to_clear();
        }
        self.set_vault(Some(vault));
    }

    pub(super) fn vault_failed(&mut self, message: &str) {
        self.vaults.clearing = None;
        self.vaults.removing.clear();
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

    /// A conversation about the document of this name was deleted: its turns leave the vaults. The other conversations read
    /// theirs once more. Without any, the document leaves them too, as soon as it is not open.
    pub(super) fn clear_deleted(&mut self, document: String) {
        let is_last = !document.is_empty() && !self.is_discussed(&document);
        if !is_last || self.is_open(&document) {
            self.clear_vaults_of(document.clone(), false);
        }
        if is_last {
            self.conversations.to_clear.retain(|name| *name != document);
            // An earlier request was about what was read before.
            self.vaults.removing.retain(|_, name| *name != document);
            self.conversations.to_clear.push(document);
            self.save_to_clear();
            self.clear_left_documents();
        }
    }

    /// Removes the vaults of documents whose last conversation was deleted, but not of the open one. Until the worker has,
    /// their names stay: it may end before.
    pub(super) fn clear_left_documents(&mut self) {
        if self.worker.check_ready().is_err() || self.conversations.to_clear.is_empty() {
            return;
        }
        for document in std::mem::take(&mut self.conversations.to_clear) {
            let is_asked = self.vaults.removing.values().any(|name| *name == document);
            if !self.is_open(&document) && self.is_discussed(&document) {
                continue;
            }
            if !self.is_open(&document)
                && !is_asked
                && let Some(ticket) = self.clear_vaults_of(document.clone(), true)
            {
                self.vaults.removing.insert(ticket, document.clone());
            }
            self.conversations.to_clear.push(document);
        }
        self.save_to_clear();
    }

    /// The user opened the document of this name again: what is read of it now stays.
    pub(super) fn keep_vaults_of(&mut self, document: &str) {
        if self
            .conversations
            .to_clear
            .iter()
            .any(|name| name == document)
        {
            self.conversations.to_clear.retain(|name| name != document);
            self.vaults.removing.retain(|_, name| name != document);
            self.save_to_clear();
        }
    }

    fn save_to_clear(&mut self) {
        self.save(Save::VaultsToClear(self.conversations.to_clear.clone()));
    }

    /// Returns the ticket of the request, if the worker is there.
    fn clear_vaults_of(&mut self, document: String, whole: bool) -> Option<u64> {
        self.worker.check_ready().ok()?;
        let ticket = self.ticket();
        let request = Request::ClearVaultsOf {
            ticket,
            document,
            whole,
        };
        self.send(request, None);
        Some(ticket)
    }

    fn is_open(&self, document: &str) -> bool {
        let open = self.open.document.as_ref();
        open.is_some_and(|open| open.info.name == document)
    }

    /// Whether a conversation is about the document of this name.
    fn is_discussed(&self, document: &str) -> bool {
        let mut all = self.conversations.all.iter();
        all.any(|conversation| conversation.document == document)
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
