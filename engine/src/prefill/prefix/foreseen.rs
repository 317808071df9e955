//! What a reading would take from the vault, said before anything is read: whoever asks can be told whether to wait.

use kept_models::RopeTable;
use kept_policies::{Budget, PromptShape};

use super::{Prefix, Wanted, is_of};
use crate::streaming::End;
use crate::vault::{FEW_SHARED, VaultKey, Vaults};
use crate::{Engine, EngineError, Method, Streaming};

impl Engine {
    /// Tokens of such a `prompt` that would not be read, if it were asked now: their rows are in a vault, and so is all that `method`
    /// measures of them. `begins` has the tokens that every prompt on the document begins with ([`crate::DocumentLength::begins`]).
    ///
    /// # Errors
    /// What is wrong with method or budget, as [`Engine::estimate`] says it.
    pub fn foresee_vault(
        &self,
        begins: &[u32],
        prompt: &PromptShape,
        method: &Method,
        budget: Option<Budget>,
        room: usize,
        vaults: Vaults<'_>,
    ) -> Result<usize, EngineError> {
        let end = begins.len().min(prompt.tokens.saturating_sub(1));
        if end < FEW_SHARED {
            return Ok(0);
        }
        if self.streams(Streaming::Auto, prompt.tokens) {
            let mut policy = method.build()?;
            let plan = self.stream_plan(&mut *policy, budget, prompt, room)?;
            let left = self.end_of(Some(vaults), begins, (method, &plan));
            return Ok(left.filter(End::is_known).map_or(0, |end| end.tokens()));
        }
        let (sizes, ..) = self.sizes(prompt, method, budget, room)?;
        if sizes.thins() {
            return Ok(0);
        }
        let ids = &begins[..end];
        let positions = prompt.tokens + self.room(prompt.tokens, room);
        let rope = RopeTable::frequencies_of(self.model().config(), positions);
        let key = VaultKey::new(self.print(), &rope, ids, vaults.kind);
        let mut prefix = Prefix::none(prompt.tokens);
        prefix.tokens = end;
        prefix.kind = Some(vaults.kind);
        match vaults.folder.find(&key, ids) {
            Ok(Some(vault)) if is_of(&vault, self.model()) => {
                prefix.use_vault(vault, ids, &Wanted::of(&sizes, prompt), prompt);
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "a vault could not be looked into"),
        }
        Ok(prefix.known)
    }
}
