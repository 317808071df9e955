//! Prefill: layers outside, chunks inside, each layer cut right after its own attention.
//!
//! At any moment one layer's full keys and values exist, beside the residual stream of the whole prompt. The result is exact:
//! a layer's attention sees all of its keys, whatever the layers before it kept.
//!
//! Layers that attend to the last positions only (Gemma) are read in the same way and keep those: no method sees them.
//!
//! ```text
//! residual [n, width] --layer 0: chunk, chunk, chunk--> residual --layer 1: ...--> last row -> logits
//!                            | keys, values [n]
//!                            v
//!                     observe -> select -> gather -> CompactLayer 0
//! ```

mod check;
mod reader;
mod repetition;
mod scratch;
mod tally;
mod thinning;

use std::ops::Range;
use std::time::{Duration, Instant};

use kept_kernels::Stop;
use kept_models::{Model, RopeTable};
use kept_policies::{Policy, Pos, Positions, PromptShape};

use crate::compact::CompactCache;
use crate::sizes::{LayerKeeps, Sizes};
use crate::watch::Told;
use crate::{EngineError, MemoryLedger, RetentionMap, Segment, Watch};

use reader::Reader;
pub(crate) use repetition::Repetition;
use tally::Tally;

/// Tokens that run through a layer together: enough for the matrix kernels, small enough for the scratch.
pub(crate) const CHUNK: usize = 512;

/// What is to be read, and how it is cut.
pub struct Prefill<'a> {
    /// The model.
    pub model: &'a Model,
    /// `[n]`: the prompt.
    pub ids: &'a [u32],
    /// The method.
    pub policy: &'a mut dyn Policy,
    /// Rows per kv head and layer on average.
    pub budget: usize,
    /// Tokens that may follow the prompt.
    pub room: usize,
    /// Rotation for every position of the prompt.
    pub rope: &'a RopeTable,
    /// Tokens behind the question ([`crate::Prompt::tail`]); 0 where there is no template.
    pub tail: usize,
    /// Positions of the document; `None` takes all of the prompt for it.
    pub document: Option<Range<usize>>,
    /// Keep the last layer's output of every row, not only of the last: for logits of the whole prompt.
    pub every_row: bool,
    /// Tokens per chunk; the result does not depend on it.
    pub chunk: usize,
}

/// A prompt that was read.
pub struct PrefillOutcome {
    /// The kept rows.
    pub cache: CompactCache,
    /// What was kept.
    pub map: RetentionMap,
    /// `[width]`, or `[n, width]` with `every_row`: the last layer's output, before the final norm.
    pub hidden: Vec<f32>,
    /// Rows per kv head that the method may keep, per layer.
    pub rows: Vec<usize>,
    /// Time spent observing, selecting and gathering.
    pub selecting: Duration,
    /// Memory, by category.
    pub ledger: MemoryLedger,
    /// What a person should know of this reading, one sentence each.
    pub notes: Vec<String>,
    /// The document's repetition, where the method asked for one and `every_row` for its output.
    pub repeated: Option<Repeated>,
}

/// The document's repetition: every chunk is read behind the document as if no other had been.
pub struct Repeated {
    /// The chunks, and the rows of each.
    pub segments: Vec<Segment>,
    /// `[rows]`: token ids.
    pub ids: Vec<u32>,
    /// `[rows, width]`: the last layer's output, before the final norm.
    pub hidden: Vec<f32>,
}

impl<'a> Prefill<'a> {
    /// Reading `ids` with the usual chunks, for an answer of up to `room` tokens.
    pub fn new(
        model: &'a Model,
        ids: &'a [u32],
        policy: &'a mut dyn Policy,
        budget: usize,
        room: usize,
        rope: &'a RopeTable,
    ) -> Self {
        Self {
            model,
            ids,
            policy,
            budget,
            room,
            rope,
            tail: 0,
            document: None,
            every_row: false,
            chunk: CHUNK,
        }
    }

    /// The same of a prompt whose last `tail` tokens are the template's.
    pub fn with_tail(self, tail: usize) -> Self {
        Self { tail, ..self }
    }

    /// The same reading, of a prompt whose document stands at `document`.
    pub fn with_document(self, document: Range<usize>) -> Self {
        Self {
            document: Some(document),
            ..self
        }
    }

    /// Reads the prompt. `progress` hears about it; `stop` ends it within about a tenth of a second.
    pub fn run(
        self,
        progress: &mut dyn FnMut(crate::Event),
        stop: &Stop,
    ) -> Result<PrefillOutcome, EngineError> {
        self.run_watched(&mut Told(progress), stop)
    }

    /// Reads the prompt; `watch` hears about progress and every layer that is cut. `stop` as in [`Prefill::run`].
    pub fn run_watched(
        self,
        watch: &mut dyn Watch,
        stop: &Stop,
    ) -> Result<PrefillOutcome, EngineError> {
        let n = self.ids.len();
        let prompt = self.shape();
        let mut sizes = Sizes::new(
            self.model,
            &mut *self.policy,
            &prompt,
            self.budget,
            self.room,
            self.chunk,
        )?;
        if self.every_row && sizes.thins() {
            let method = self.policy.name();
            return Err(EngineError::NoLogits { method });
        }
        let notes = sizes.notes(&*self.policy);
        let mut tally = Tally::new(&sizes, self.model, self.rope);
        let mut selecting = Duration::ZERO;
        let (mut surveyed, mut repeated) = (None, None);
        if sizes.surveys {
            let started = Instant::now();
            let mut reader = Reader::new(&self, &sizes, &mut tally);
            for (layer, &keeps) in sizes.keeps.iter().enumerate() {
                reader.read(layer, watch, stop)?;
                if let LayerKeeps::Cut(cut) = keeps {
                    reader.survey(layer, cut, &mut *self.policy, stop)?;
                }
            }
            surveyed = Some(reader.ledger());
            repeated = reader.into_output().1;
            sizes.settle(&mut *self.policy);
            selecting += started.elapsed();
        }

        let mut map = RetentionMap::new(n, self.model.config().kv_heads);
        let mut layers = Vec::with_capacity(sizes.keeps.len());
        let mut reader = Reader::new(&self, &sizes, &mut tally);
        for (layer, &keeps) in sizes.keeps.iter().enumerate() {
            selecting += reader.read(layer, watch, stop)?;
            let started = Instant::now();
            layers.push(match keeps {
                LayerKeeps::Window(window) => {
                    map.push_window(window);
                    reader.keep_window(window)
                }
                LayerKeeps::Cut(cut) => {
                    let (compact, retention) = reader.cut(layer, cut, &mut *self.policy, stop)?;
                    map.push(&retention);
                    selecting += started.elapsed();
                    watch.layer(cut, &compact);
                    compact
                }
            });
        }

        let cache = CompactCache {
            layers,
            next: Pos(n as u32),
            reassigned: sizes.positions == Positions::Reassigned,
            widest: sizes.max_capacity,
        };
        let ledger = MemoryLedger {
            weights: self.model.weights_bytes(),
            layer_tiles: self.model.layer_tiles_bytes(),
            rope: self.rope.bytes(),
            kept_rows: cache.allocated_bytes(),
            tables: cache.table_bytes(),
            decode: 0,
            ..surveyed.unwrap_or(reader.ledger())
        };
        let (hidden, again) = reader.into_output();
        Ok(PrefillOutcome {
            cache,
            map,
            hidden,
            rows: sizes.rows,
            selecting,
            ledger,
            notes,
            repeated: repeated.or(again),
        })
    }

    /// The prompt as the method knows it.
    fn shape(&self) -> PromptShape {
        let tokens = self.ids.len();
        let document = self.document.clone().unwrap_or(0..tokens);
        PromptShape {
            tokens,
            before: document.start,
            after: tokens - document.end,
            tail: self.tail,
        }
    }
}
