//! Arguments of the commands that read documents and answer questions about them.

use clap::Args;
use kept_engine::policies::Budget;
use kept_engine::vault::Vaults;
use kept_engine::{Engine, Limits, MethodSpec};

use super::asking::LimitArguments;
use super::vaults::Kept;
use super::{EngineArguments, VaultArguments};
use crate::model::Answering;

/// How documents are read.
#[derive(Debug, Args)]
pub struct ReadingArguments {
    #[command(flatten)]
    engine: EngineArguments,
    #[command(flatten)]
    limits: LimitArguments,
    #[command(flatten)]
    vault: VaultArguments,
}

impl ReadingArguments {
    /// Checks the arguments and resolves the model's name. Nothing is opened but the folder of vaults.
    pub fn check(&self) -> anyhow::Result<Reading<'_>> {
        let method = self.engine.method_or_auto()?;
        let budget = self.engine.budget()?;
        let limits = self.limits.limits()?;
        let (vault, trouble) = self.vault.open()?;
        Ok(Reading {
            method,
            budget,
            limits,
            vault,
            trouble,
            model: Answering::resolve(self.engine.model.as_deref())?,
            engine: &self.engine,
        })
    }
}

/// Checked [`ReadingArguments`].
pub struct Reading<'a> {
    pub method: MethodSpec,
    pub budget: Option<Budget>,
    pub limits: Limits,
    /// The vault folder and row type, if vaults are on.
    pub vault: Option<Kept>,
    /// Why there are no vaults though they are on.
    pub trouble: Option<String>,
    pub model: Answering,
    engine: &'a EngineArguments,
}

impl Reading<'_> {
    /// Opens the model. Called once, before any compute thread starts.
    pub fn open(&self) -> anyhow::Result<Engine> {
        self.engine.open(&self.model.path)
    }

    pub fn vaults(&self) -> Option<Vaults<'_>> {
        (self.vault.as_ref()).map(|&(ref folder, kind)| Vaults { folder, kind })
    }
}
