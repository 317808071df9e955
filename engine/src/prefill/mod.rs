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
mod gpu;
mod placing;
mod prefix;
mod progress;
mod reader;
mod reconstruction;
mod scratch;
mod token_dropping;

use std::ops::Range;
use std::time::{Duration, Instant};

use kept_kernels::{CacheType, Stop};
use kept_models::{Model, RopeTable};
use kept_policies::{Policy, Pos, Positions, PromptShape};

use crate::compact::{CompactCache, CompactLayer};
use crate::sizes::{LayerKeeps, Sizes};
use crate::vault::{VaultAccess, VaultUse};
use crate::watch::EventSink;
use crate::{EngineError, MemoryLedger, RetentionMap, Segment, Watch};

pub(crate) use gpu::transfer_bytes;
pub(crate) use placing::{gpu_bytes, place_on_gpu};
use prefix::Prefix;
use progress::ReadingProgress;
use reader::{Read, Reader};
pub(crate) use reconstruction::ReconstructionPass;

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
    pub max_new_tokens: usize,
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
    /// The vaults that may be used and added to, if any.
    pub vault: Option<VaultAccess<'a>>,
    /// How kept rows are stored.
    pub cache: CacheType,
    /// Bytes of a GPU that weights and reading may take; all that are free where none are named.
    pub gpu_memory: Option<u64>,
}

/// A prompt that was read.
pub struct PrefillOutcome {
    /// The kept rows; on a GPU alone, where that read them and the method leaves all of the answer to it.
    pub cache: CompactCache,
    /// What was kept.
    pub map: RetentionMap,
    /// `[width]`, or `[n, width]` with `every_row`: the last layer's output, before the final norm.
    pub hidden: Vec<f32>,
    /// Rows per kv head that the method may keep, per layer.
    pub rows: Vec<usize>,
    /// Time spent observing, selecting and gathering.
    pub selecting: Duration,
    /// Time that reading took, selecting included; where several methods cut it, as if this one had been alone.
    pub reading: Duration,
    /// Memory, by category.
    pub ledger: MemoryLedger,
    /// What a person should know of this reading, one sentence each.
    pub notes: Vec<String>,
    /// The document's repetition, where the method asked for one and `every_row` for its output.
    pub repeated: Option<Repeated>,
    /// What came from the vault and went there, if there is one.
    pub vault: Option<VaultUse>,
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

/// One of several methods that cut the same reading.
pub struct Cut<'a> {
    /// The method.
    pub policy: &'a mut dyn Policy,
    /// Rows per kv head and layer on average.
    pub budget: usize,
    /// How its rows are stored.
    pub cache: CacheType,
}

impl Prefill<'_> {
    /// Tokens that run through a layer together, unless a reading says otherwise.
    pub const CHUNK: usize = CHUNK;
}

impl<'a> Prefill<'a> {
    /// Reading `ids` with the usual chunks, for an answer of up to `max_new_tokens` tokens.
    pub fn new(
        model: &'a Model,
        ids: &'a [u32],
        policy: &'a mut dyn Policy,
        budget: usize,
        max_new_tokens: usize,
        rope: &'a RopeTable,
    ) -> Self {
        Self {
            model,
            ids,
            policy,
            budget,
            max_new_tokens,
            rope,
            tail: 0,
            document: None,
            every_row: false,
            chunk: CHUNK,
            vault: None,
            cache: CacheType::F32,
            gpu_memory: None,
        }
    }

    /// The same reading, with at most `memory` bytes of a GPU.
    pub fn with_gpu_memory(self, gpu_memory: Option<u64>) -> Self {
        Self { gpu_memory, ..self }
    }

    /// The same reading, with kept rows stored as `cache`.
    pub fn with_cache(self, cache: CacheType) -> Self {
        Self { cache, ..self }
    }

    /// The same reading, with vaults.
    pub fn with_vault(self, vault: Option<VaultAccess<'a>>) -> Self {
        Self { vault, ..self }
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

    /// The same reading, in chunks of `chunk` tokens.
    pub fn with_chunk(self, chunk: usize) -> Self {
        Self { chunk, ..self }
    }

    /// Reads the prompt. `progress` hears about it; `stop` ends it within about a tenth of a second.
    pub fn run(
        self,
        progress: &mut dyn FnMut(crate::Event),
        stop: &Stop,
    ) -> Result<PrefillOutcome, EngineError> {
        self.run_watched(&mut EventSink(progress), stop)
    }

    /// Reads the prompt; `watch` hears about progress and every layer that is cut. `stop` as in [`Prefill::run`].
    pub fn run_watched(
        self,
        watch: &mut dyn Watch,
        stop: &Stop,
    ) -> Result<PrefillOutcome, EngineError> {
        let prompt = self.shape();
        let mut sizes = Sizes::new(
            self.model,
            &mut *self.policy,
            &prompt,
            self.budget,
            self.max_new_tokens,
            self.chunk,
        )?
        .with_cache(self.cache, &*self.policy)?;
        if self.every_row && sizes.drops_tokens() {
            let method = self.policy.name();
            return Err(EngineError::NoLogits { method });
        }
        let read = Read {
            model: self.model,
            ids: self.ids,
            rope: self.rope,
            every_row: self.every_row,
        };
        // Logits of every row need every row to run through the model.
        let mut prefix = match &self.vault {
            Some(access) if !self.every_row => Prefix::open(access, read, &sizes, &prompt),
            _ => Prefix::none(prompt.tokens),
        };
        sizes = prefix.sizes(sizes);
        place_on_gpu(self.model, &mut sizes, self.gpu_memory)?;
        let tokens_read = sizes.tokens_read();
        let mut cuts = [Cut {
            policy: &mut *self.policy,
            budget: self.budget,
            cache: self.cache,
        }];
        let sizes = vec![sizes];
        let outcome = read_and_cut(read, sizes, &mut prefix, &mut cuts, watch, stop)?.pop();
        let outcome = outcome.map(|mut outcome| {
            outcome.notes.extend_from_slice(prefix.notes());
            outcome.vault = prefix.into_use(tokens_read);
            outcome
        });
        Ok(outcome.expect("one method, one outcome"))
    }

    /// The prompt as the method knows it.
    fn shape(&self) -> PromptShape {
        shape(
            self.ids,
            self.document.clone(),
            self.tail,
            self.max_new_tokens,
        )
    }
}

/// A prompt as methods know it; without a known place of the document all of it is the document.
fn shape(
    ids: &[u32],
    document: Option<Range<usize>>,
    tail: usize,
    max_new_tokens: usize,
) -> PromptShape {
    let tokens = ids.len();
    let document = document.unwrap_or(0..tokens);
    PromptShape {
        tokens,
        before: document.start,
        after: tokens - document.end,
        tail,
        max_new_tokens,
    }
}

/// One reading that several methods cut, each layer after its own attention: what takes the time, running every token through
/// the model, happens once. Each outcome is, to the bit, that of a [`Prefill`] of its own. Methods that read in their own way (they
/// drop tokens, or have the document repeated) read alone.
pub struct SharedPrefill<'a> {
    /// The model.
    pub model: &'a Model,
    /// `[n]`: the prompt.
    pub ids: &'a [u32],
    /// Where the document stands in it; `None` where that is not known.
    pub document: Option<Range<usize>>,
    /// Tokens behind the question ([`crate::Prompt::tail`]); 0 where there is no template.
    pub tail: usize,
    /// Tokens that may follow the prompt.
    pub max_new_tokens: usize,
    /// Rotation for every position of the prompt.
    pub rope: &'a RopeTable,
}

impl SharedPrefill<'_> {
    /// Reads the prompt; in the order of `cuts` what each method made of it, or why it refuses its budget or type of rows
    /// ([`EngineError::is_refusal`]). Seconds are what each method would take alone: what several asked for and was measured once
    /// counts for each of them.
    ///
    /// # Errors
    /// As [`Prefill::run`], but for refusals.
    pub fn run(
        &self,
        cuts: Vec<Cut<'_>>,
        progress: &mut dyn FnMut(crate::Event),
        stop: &Stop,
    ) -> Result<Vec<Result<PrefillOutcome, EngineError>>, EngineError> {
        let prompt = shape(
            self.ids,
            self.document.clone(),
            self.tail,
            self.max_new_tokens,
        );
        let read = Read {
            model: self.model,
            ids: self.ids,
            rope: self.rope,
            every_row: false,
        };
        let mut watch = EventSink(progress);
        let mut results: Vec<Option<Result<PrefillOutcome, EngineError>>> = Vec::new();
        let (mut taken, mut sizes, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for (place, cut) in cuts.into_iter().enumerate() {
            let own = Sizes::new(
                self.model,
                &mut *cut.policy,
                &prompt,
                cut.budget,
                self.max_new_tokens,
                CHUNK,
            )
            .and_then(|own| own.with_cache(cut.cache, &*cut.policy))
            .and_then(|own| {
                let mut own = own.shared();
                place_on_gpu(self.model, &mut own, None)?;
                Ok(own)
            });
            results.push(match own {
                Ok(own) if own.needs_own_reading() => {
                    let mut alone = [cut];
                    let outcome = read_and_cut(
                        read,
                        vec![own],
                        &mut Prefix::none(self.ids.len()),
                        &mut alone,
                        &mut watch,
                        stop,
                    )?;
                    outcome.into_iter().next().map(Ok)
                }
                Ok(own) => {
                    taken.push(cut);
                    sizes.push(own);
                    places.push(place);
                    None
                }
                Err(refusal) if refusal.is_refusal() => Some(Err(refusal)),
                Err(error) => return Err(error),
            });
        }
        if !taken.is_empty() {
            let outcomes = read_and_cut(
                read,
                sizes,
                &mut Prefix::none(self.ids.len()),
                &mut taken,
                &mut watch,
                stop,
            )?;
            for (place, outcome) in places.into_iter().zip(outcomes) {
                results[place] = Some(Ok(outcome));
            }
        }
        let all = |result: Option<_>| result.expect("every method was taken, alone or with others");
        Ok(results.into_iter().map(all).collect())
    }
}

/// Layer by layer: all tokens through the layer, then every method's cut. A method that surveys is the only one, and its first
/// reading only measures.
fn read_and_cut(
    read: Read<'_>,
    mut sizes: Vec<Sizes>,
    prefix: &mut Prefix,
    cuts: &mut [Cut<'_>],
    watch: &mut dyn Watch,
    stop: &Stop,
) -> Result<Vec<PrefillOutcome>, EngineError> {
    let began = Instant::now();
    let n = read.ids.len();
    let kv_heads = read.model.config().kv_heads;
    let notes = sizes.iter().zip(cuts.iter());
    let notes: Vec<Vec<String>> = notes.map(|(s, cut)| s.notes(&*cut.policy)).collect();
    let mut maps = vec![RetentionMap::new(n, kv_heads); cuts.len()];
    let mut layers: Vec<Vec<CompactLayer>> = cuts.iter().map(|_| Vec::new()).collect();
    let mut selecting = vec![Duration::ZERO; cuts.len()];
    // What was spent on selecting by all of them: measuring once though several asked.
    let mut spent = Duration::ZERO;
    let mut progress = ReadingProgress::new(&sizes[0], read.model, read.rope);
    let (mut surveyed, mut repeated) = (None, None);
    if sizes[0].has_score_pass {
        let started = Instant::now();
        let mut reader = Reader::new(read, &sizes, prefix, &mut progress)?;
        for (layer, &keeps) in sizes[0].keeps.iter().enumerate() {
            reader.read(layer, watch, stop)?;
            if let LayerKeeps::Cut(own) = keeps {
                reader.score_pass((layer, own), &mut *cuts[0].policy, stop)?;
            }
        }
        reader.end();
        surveyed = Some(reader.ledger());
        repeated = reader.into_output()?.1;
        sizes[0].allocate_budget(&mut *cuts[0].policy);
        selecting[0] += started.elapsed();
        spent += selecting[0];
    }

    let mut reader = Reader::new(read, &sizes, prefix, &mut progress)?;
    for (layer, &keeps) in sizes[0].keeps.iter().enumerate() {
        let measuring = reader.read(layer, watch, stop)?;
        let own = match keeps {
            LayerKeeps::Cut(own) => own,
            LayerKeeps::Window(window) => {
                for (which, (map, layers)) in maps.iter_mut().zip(&mut layers).enumerate() {
                    map.push_window(window);
                    layers.push(reader.keep_window(window, which)?);
                }
                continue;
            }
        };
        let asked = |sizes: &Sizes| {
            let needs = sizes.needs[own];
            needs.column_sums || needs.future.is_some() || needs.reconstruction.is_some()
        };
        spent += measuring;
        for (selecting, _) in selecting.iter_mut().zip(&sizes).filter(|(_, s)| asked(s)) {
            *selecting += measuring;
        }
        for (which, cut) in cuts.iter_mut().enumerate() {
            let started = Instant::now();
            let (compact, retention) = reader.cut((layer, own), which, &mut *cut.policy, stop)?;
            maps[which].push(&retention);
            let took = started.elapsed();
            selecting[which] += took;
            spent += took;
            watch.layer(own, &compact);
            layers[which].push(compact);
        }
    }
    reader.end();
    let last = reader.ledger();
    let reading = match surveyed {
        // The kept rows are of the second reading.
        Some(first) => MemoryLedger {
            gpu: first.gpu.max(last.gpu),
            ..first
        },
        None => last,
    };
    let mut on_gpu = reader.take_cache();
    let (hidden, again) = reader.into_output()?;
    let mut repeated = repeated.or(again);
    let mut hidden = vec![hidden; cuts.len()].into_iter();
    let alone = began.elapsed().saturating_sub(spent);
    let all =
        (layers.into_iter().zip(maps).zip(selecting).zip(notes)).zip(sizes.into_iter().zip(cuts));
    let outcome =
        |((((layers, map), selecting), notes), (sizes, cut)): (_, (Sizes, &mut Cut<'_>))| {
            let cache = CompactCache {
                layers,
                next: Pos(n as u32),
                turned_from: Pos(0),
                reassigned: sizes.positions == Positions::Reassigned,
                widest: sizes.max_capacity,
                kind: sizes.cache,
                on_gpu: on_gpu.take(),
            };
            PrefillOutcome {
                ledger: MemoryLedger {
                    weights: read.model.weights_in_memory(),
                    vocabulary: read.model.vocabulary_bytes(),
                    prompt: MemoryLedger::prompt_bytes(n),
                    rope: read.rope.bytes(),
                    kept_rows: cache.allocated_bytes() - cache.bytes_on_gpu(),
                    kept_on_gpu: cache.bytes_on_gpu(),
                    tables: cache.table_bytes() + cut.policy.bytes(),
                    decode: 0,
                    ..reading
                },
                cache,
                map,
                hidden: hidden.next().expect("one for each"),
                rows: sizes.rows,
                selecting,
                reading: alone + selecting,
                notes,
                repeated: repeated.take(),
                vault: None,
            }
        };
    Ok(all.map(outcome).collect())
}
