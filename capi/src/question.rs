//! Questions as C writes them.

use std::ffi::{c_char, c_void};
use std::path::{Path, PathBuf};

use anyhow::Context;
use kept_engine::documents::Document;
use kept_engine::kernels::{CacheType, PackedRows, Stop};
use kept_engine::policies::Budget;
use kept_engine::vault::{VaultFolder, Vaults};
use kept_engine::{
    AUTO, Ask, Engine, Event, Limits, MINI, MethodSpec, Sampling, Turn, available_memory,
};
use kept_hub::{Finder, ModelChoice};

use crate::{KeptAnswer, nul_terminated, null, optional, required};

/// An earlier question of the conversation and its answer.
#[repr(C)]
pub struct KeptTurn {
    /// The question.
    pub question: *const c_char,
    /// Its answer.
    pub answer: *const c_char,
}

/// What happens while a question is answered.
#[repr(C)]
pub struct KeptEvent {
    /// The next piece of the answer; NULL while the document is read.
    pub text: *const c_char,
    /// Tokens that are read.
    pub tokens_done: usize,
    /// Tokens to read; 0 where text is set.
    pub tokens_total: usize,
    /// Seconds until the document is read, at the speed so far.
    pub seconds_left: f64,
}

/// Receives events on the thread that asks. Returns whether to go on: false ends the answer with its text so far, or
/// with an error if the document is not yet read.
pub type KeptWatch =
    Option<unsafe extern "C" fn(user: *mut c_void, event: *const KeptEvent) -> bool>;

/// A question. Zero in every field but `question` means the defaults. Texts end with a zero byte.
#[repr(C)]
pub struct KeptQuestion {
    /// The question.
    pub question: *const c_char,
    /// Earlier turns of the conversation, oldest first; NULL for a question that stands alone.
    pub turns: *const KeptTurn,
    /// Number of turns.
    pub turn_count: usize,
    /// The method, such as "snapkv" or "snapkv[w=8]"; NULL leaves the choice to Kept.
    pub method: *const c_char,
    /// What may be kept: "25%", "512" rows per head, "64MiB"; NULL is the default.
    pub budget: *const c_char,
    /// Limit of all memory, such as "6GiB"; NULL for none.
    pub memory: *const c_char,
    /// Type of the kept rows: "f32", "f16", "q8_0", "q4_0"; NULL is the default.
    pub cache: *const c_char,
    /// Folder of the vaults, "" for that of `kept ask`; NULL uses none.
    pub vault: *const c_char,
    /// Longest answer in tokens; 0 is the default.
    pub max_tokens: usize,
    /// 0 selects the most likely token.
    pub temperature: f64,
    /// Keeps only the most likely tokens whose probabilities add up to this; 0 keeps all.
    pub top_p: f64,
    /// Equal seeds give equal answers.
    pub seed: u64,
    /// Whether a model that can think before it answers does so.
    pub thinking: bool,
    /// Receives events; NULL for none.
    pub watch: KeptWatch,
    /// Passed to `watch`.
    pub user: *mut c_void,
}

impl KeptQuestion {
    /// Answers the question.
    ///
    /// # Safety
    /// Every text is NULL or ends with a zero byte, `turns` has `turn_count` entries, and `watch` may be called with
    /// `user`.
    pub(crate) unsafe fn ask(
        &self,
        engine: &Engine,
        document: &Document,
    ) -> anyhow::Result<KeptAnswer> {
        // SAFETY: the caller's promise, here and for every text below.
        let text = |what, pointer| unsafe { optional(what, pointer) };
        // SAFETY: the caller's promise.
        let question = unsafe { required("question", self.question) }?;
        // SAFETY: the caller's promise.
        let turns = unsafe { self.turns() }?;
        let method: MethodSpec = text("method", self.method)?.unwrap_or(AUTO).parse()?;
        let budget = text("budget", self.budget)?;
        let budget = budget.map(str::parse::<Budget>).transpose()?;
        let memory = text("memory", self.memory)?.map(|written| {
            Limits::memory_of(written).with_context(|| {
                format!("memory={written:?} is not a size; write for example 6GiB or 900MiB")
            })
        });
        let cache = text("cache", self.cache)?;
        let engine = match cache.map(str::parse::<CacheType>).transpose()? {
            Some(cache) => engine.clone().with_cache(cache),
            None => engine.clone(),
        };
        let folder = match text("vault", self.vault)? {
            None => None,
            Some("") => Some(VaultFolder::standard(None)?),
            Some(path) => {
                let path = Path::new(path);
                Some(VaultFolder::new(path, VaultFolder::default_budget(path)))
            }
        };
        let ask = Ask {
            document,
            turns: &turns,
            question,
            method: &method,
            budget,
            sampling: &Sampling {
                temperature: self.temperature,
                top_p: Some(self.top_p).filter(|&p| p != 0.0),
                seed: self.seed,
                ..Sampling::default()
            },
            max_tokens: match self.max_tokens {
                0 => Engine::DEFAULT_MAX_TOKENS,
                set => set,
            },
            thinking: self.thinking,
            limits: Limits {
                memory: memory.transpose()?,
                ..Limits::default()
            },
            vault: folder
                .as_ref()
                .map(|folder| Vaults::new(folder, PackedRows::Q8_0)),
        };
        let stop = Stop::new();
        let mut watch = |event: Event<'_>| {
            // SAFETY: the caller's promise.
            if !unsafe { self.tell(event) } {
                stop.request();
            }
        };
        let answer = engine.ask(&ask, &mut watch, &stop)?;
        KeptAnswer::new(answer, engine.model().name())
    }

    /// # Safety
    /// As [`KeptQuestion::ask`].
    unsafe fn turns(&self) -> anyhow::Result<Vec<Turn>> {
        if self.turn_count == 0 {
            return Ok(Vec::new());
        }
        if self.turns.is_null() {
            return Err(null("turns"));
        }
        // SAFETY: the caller's promise.
        let turns = unsafe { std::slice::from_raw_parts(self.turns, self.turn_count) };
        // SAFETY: the caller's promise.
        let text = |what, pointer| unsafe { required(what, pointer) };
        let turn = |turn: &KeptTurn| -> anyhow::Result<Option<Turn>> {
            let question = text("question of a turn", turn.question)?;
            Ok(Turn::new(question, text("answer of a turn", turn.answer)?))
        };
        turns.iter().filter_map(|t| turn(t).transpose()).collect()
    }

    /// Passes an event on. Returns whether to go on.
    ///
    /// # Safety
    /// As [`KeptQuestion::ask`].
    unsafe fn tell(&self, event: Event<'_>) -> bool {
        let Some(watch) = self.watch else { return true };
        let mut told = KeptEvent {
            text: std::ptr::null(),
            tokens_done: 0,
            tokens_total: 0,
            seconds_left: 0.0,
        };
        let piece;
        match event {
            Event::Token { text } => {
                piece = nul_terminated(text);
                told.text = piece.as_ptr();
            }
            Event::Progress(progress, _) if progress.phase == kept_engine::Phase::Reading => {
                told.tokens_done = progress.tokens_done;
                told.tokens_total = progress.tokens_total;
                told.seconds_left = progress.seconds_left;
            }
            _ => return true,
        }
        // SAFETY: the caller's promise.
        unsafe { watch(self.user, &told) }
    }
}

/// The file of the model `name`, or of the model that `kept ask` uses.
pub(crate) fn model_path(name: Option<&str>) -> anyhow::Result<PathBuf> {
    let Some(name) = name else {
        let preferred =
            Finder::from_env()?.preferred(&ModelChoice::from_env(), MINI, available_memory())?;
        return match preferred.path {
            Some(path) => Ok(path),
            None => Ok(kept_engine::model_path(MINI)?),
        };
    };
    // A name that ends like a file is a path even if there is no such file: opening it says so.
    if name == MINI || Path::new(name).exists() || name.ends_with(".gguf") {
        return Ok(kept_engine::model_path(name)?);
    }
    Ok(Finder::from_env()?.choose(name)?)
}
