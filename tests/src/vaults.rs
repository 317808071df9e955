//! Runs prefill and decode by hand with vaults in a separate folder: what the vault holds, and how a later question
//! uses it.

use std::ops::Range;
use std::path::PathBuf;

use kept_engine::kernels::{CacheType, PackedRows, Stop, argmax};
use kept_engine::models::{Model, RopeTable};
use kept_engine::vault::{ModelFingerprint, VaultAccess, VaultFolder, VaultUse, Vaults};
use kept_engine::{Decoder, EngineError, Prefill, RetentionMap};

use crate::method_spec::{TestMethod, spec};

/// A temporary folder of vaults, removed on drop.
pub struct Place {
    folder: tempfile::TempDir,
    /// The vaults in the folder.
    pub vaults: VaultFolder,
}

impl Default for Place {
    fn default() -> Self {
        Self::new(1 << 30)
    }
}

impl Place {
    /// An empty folder with a budget of `budget` bytes.
    pub fn new(budget: u64) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        Self {
            vaults: VaultFolder::new(&folder.path().join("vaults"), budget),
            folder,
        }
    }

    /// All files in the folder except locks, sorted.
    pub fn files(&self) -> Vec<PathBuf> {
        files_of(&self.folder.path().join("vaults"))
    }
}

/// All files in a vault folder except locks, sorted; empty if the folder does not exist.
pub fn files_of(folder: &std::path::Path) -> Vec<PathBuf> {
    let Ok(files) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let paths = files.map(|file| file.expect("a file").path());
    let mut paths: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|e| e != "lock"))
        .collect();
    paths.sort();
    paths
}

/// A document as tokens, and a question about it.
#[derive(Debug, Clone)]
pub struct Case {
    /// Tokens before the document, then the document's.
    pub prefix: Vec<u32>,
    /// Tokens of `prefix` that precede the document.
    pub before: usize,
    /// Tokens after the document.
    pub rest: Vec<u32>,
    /// Tokens of each earlier turn at the beginning of `rest`.
    pub turns: Vec<usize>,
    /// The method.
    pub method: TestMethod,
    /// Prefill chunk size in tokens.
    pub chunk: usize,
}

/// Result of prefill and decode.
#[derive(Debug, PartialEq)]
pub struct Found {
    /// The retention map.
    pub map: RetentionMap,
    /// `[1 + steps, vocab]`: logits after the prompt, and after each token of the answer.
    pub logits: Vec<f32>,
}

/// `count` non-special tokens that depend on `salt`.
pub fn tokens(count: usize, salt: u32, vocab: usize) -> Vec<u32> {
    let token = |i: u32| 3 + (i * i * 31 + i * (37 + salt) + 11 * salt) % (vocab as u32 - 3);
    (0..count as u32).map(token).collect()
}

/// Decode steps of an answer.
pub const STEPS: usize = 3;

impl Case {
    /// A document of `document` tokens after five others, in chunks of 64, and a question of `rest` tokens that depends
    /// on `salt`; under the full cache.
    pub fn drawn(model: &Model, document: usize, rest: usize, salt: u32) -> Self {
        let vocab = model.config().vocab;
        Self {
            prefix: tokens(document, 5, vocab),
            before: 5,
            rest: tokens(rest, 100 + salt, vocab),
            turns: Vec::new(),
            method: spec("full", "", 0),
            chunk: 64,
        }
    }

    /// The same with a short question, under a method.
    pub fn under(model: &Model, method: TestMethod, document: usize, salt: u32) -> Self {
        Self {
            method,
            ..Self::drawn(model, document, 15, salt)
        }
    }

    /// A question of `rest` tokens after earlier turns of `turns` tokens each.
    pub fn after_turns(self, model: &Model, turns: &[usize], rest: usize) -> Self {
        let vocab = model.config().vocab;
        let turn = |(i, &count): (usize, &usize)| tokens(count, 200 + i as u32, vocab);
        let said = turns.iter().enumerate().flat_map(turn);
        let question = tokens(rest, 300 + turns.len() as u32, vocab);
        Self {
            rest: said.chain(question).collect(),
            turns: turns.to_vec(),
            ..self
        }
    }

    /// Positions of the document.
    pub fn document(&self) -> Range<usize> {
        self.before..self.prefix.len()
    }

    /// Ends of the turns in the prompt.
    fn turn_ends(&self) -> Vec<usize> {
        let mut end = self.prefix.len();
        let ends = self.turns.iter().map(|turn| {
            end += turn;
            end
        });
        ends.collect()
    }

    /// Runs prefill with the vaults of `place`, and decodes some tokens.
    pub fn read(
        &self,
        model: &Model,
        place: Option<&Place>,
        kind: PackedRows,
    ) -> Result<(Found, Option<VaultUse>, Vec<String>), EngineError> {
        let steps = tokens(STEPS, 77, model.config().vocab);
        let all = self.answered(model, place, kind, Some(&steps))?;
        Ok((all.found, all.vault, all.notes))
    }

    /// [`Case::read`] along `answer`, or along the most likely tokens.
    #[track_caller]
    pub fn answer(
        &self,
        model: &Model,
        place: Option<&Place>,
        kind: PackedRows,
        answer: Option<&[u32]>,
    ) -> Answered {
        let answered = self.answered(model, place, kind, answer);
        answered.unwrap_or_else(|e| panic!("{:?}: {e}", self.method))
    }

    fn answered(
        &self,
        model: &Model,
        place: Option<&Place>,
        kind: PackedRows,
        given: Option<&[u32]>,
    ) -> Result<Answered, EngineError> {
        let ids: Vec<u32> = self.prefix.iter().chain(&self.rest).copied().collect();
        let max_new_tokens = given.map_or(DRAWN, <[u32]>::len);
        let rope = RopeTable::new(model.config(), ids.len() + max_new_tokens);
        let fingerprint = ModelFingerprint::of(model);
        let built = self.method.method();
        let turns = self.turn_ends();
        let prefill = Prefill {
            chunk: self.chunk,
            // The most exact cache type, which on a GPU is f16.
            cache: match kept_engine::backend::of(model).has_own_memory() {
                true => CacheType::F16,
                false => CacheType::F32,
            },
            vault: place.map(|place| VaultAccess {
                vaults: Vaults::new(&place.vaults, kind),
                model: &fingerprint,
                document: "a document",
                turns: &turns,
                rebuild: false,
            }),
            ..Prefill::new(
                model,
                &ids,
                &*built,
                self.method.budget,
                max_new_tokens,
                &rope,
            )
            .with_tail(2)
            .with_document(self.document())
        };
        let outcome = prefill.run(&mut |_| (), &Stop::new())?;
        let notes = outcome.notes.iter().map(ToString::to_string).collect();
        let (vault, map) = (outcome.vault, outcome.map);
        let mut decoder =
            Decoder::new(model, &rope, outcome.evictor, outcome.cache).expect("memory");
        let mut logits = decoder.logits_of(&outcome.hidden).expect("logits").to_vec();
        let mut answer = Vec::new();
        for step in 0..max_new_tokens {
            let last = &logits[logits.len() - model.config().vocab..];
            let token = given.map_or_else(|| argmax(last) as u32, |given| given[step]);
            answer.push(token);
            logits.extend_from_slice(decoder.step(token, None).expect("logits"));
        }
        let found = Found { map, logits };
        Ok(Answered {
            found,
            answer,
            vault,
            notes,
        })
    }
}

/// Decode steps where the answer is not given.
const DRAWN: usize = 12;

/// Full result of prefill and decode.
pub struct Answered {
    /// The retention map and the logits.
    pub found: Found,
    /// The tokens of the answer.
    pub answer: Vec<u32>,
    /// Tokens read from the vault and written to it.
    pub vault: Option<VaultUse>,
    /// Notes for the user.
    pub notes: Vec<String>,
}
