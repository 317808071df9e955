//! Prefill: the outer loop runs over layers, the inner one over chunks of tokens. Each layer's cache is
//! compacted right after the layer's own attention.
//!
//! At any moment, the full keys and values of one layer exist, plus the residual stream of the whole prompt.
//! The result is exact: a layer's attention sees all of its keys, whatever the layers before it kept.
//!
//! Sliding-window layers (Gemma) are read in the same way and keep the positions of their window; methods do
//! not see these layers.
//!
//! ```text
//! residual [n, width] --layer 0: chunk, chunk, chunk--> residual --layer 1: ...--> last row -> logits
//!                            | keys, values [n]
//!                            v
//!                     observe -> select -> gather -> CompactLayer 0
//! ```

mod check;
mod input;
mod planned;
mod prefix;
mod progress;
mod reader;
mod reconstruction;
mod shared;
mod token_dropping;

use std::ops::Range;
use std::time::{Duration, Instant};

use kept_kernels::{CacheType, Stop};
use kept_models::{Model, RopeTable};
use kept_policies::{Evict, Method, Pos, PromptShape, RowPlan, Select};

use crate::backend::{self, DeviceRows};
use crate::compact::{CompactCache, CompactLayer};
use crate::plan::{CHUNK, LayerKeeps, PrefillPlan};
use crate::votes::HeadPeak;
use crate::{EngineError, Event, MemoryLedger, Note, RetentionMap};
use kept_vault::{VaultAccess, VaultUse};

pub(crate) use input::PrefillTask;
pub(crate) use planned::PlannedPrefill;
pub(crate) use prefix::{DROPS_TOKENS, Prefix, file_bytes};
use progress::ReadingProgress;
pub use reader::Reconstructed;
use reader::{GlobalLayer, Reader};
pub(crate) use reconstruction::ReconstructionPass;

/// The input of a prefill and the method that compacts its cache.
pub struct Prefill<'a> {
    /// The model.
    pub model: &'a Model,
    /// `[n]`: the prompt.
    pub ids: &'a [u32],
    /// The method.
    pub method: &'a dyn Method,
    /// Rows per KV head and layer on average.
    pub budget: usize,
    /// Tokens that may follow the prompt.
    pub max_new_tokens: usize,
    /// Rotation for every position of the prompt.
    pub rope: &'a RopeTable,
    /// Tokens after the question ([`crate::Prompt::tail`]); 0 without a chat template.
    pub tail: usize,
    /// Positions of the document; `None` treats the whole prompt as the document.
    pub document: Option<Range<usize>>,
    /// Return the last layer's output of every row instead of the last row only, for logits of the whole
    /// prompt.
    pub every_row: bool,
    /// Tokens per chunk; the result does not depend on it.
    pub chunk: usize,
    /// Vaults to read from and write to, if any.
    pub vault: Option<VaultAccess<'a>>,
    /// Type of the kept rows.
    pub cache: CacheType,
    /// Bytes of GPU memory for weights and prefill; `None` allows all free memory.
    pub gpu_memory: Option<u64>,
}

/// Result of a prefill.
pub struct PrefillOutcome {
    /// The kept rows. They are on the GPU only, if the GPU read the prompt and the method does not change them
    /// during decode.
    pub cache: CompactCache,
    /// What was kept.
    pub map: RetentionMap,
    /// `[width]`, or `[n, width]` with `every_row`: the last layer's output, before the final norm.
    pub hidden: Vec<f32>,
    /// What the last token attended to; empty if several methods share the prefill.
    pub last_attended: Vec<HeadPeak>,
    /// What the method did: rows per layer, and what happens during decode.
    pub plan: RowPlan,
    /// The method's state for the answer, if it evicts during decode.
    pub evictor: Option<Box<dyn Evict>>,
    /// Time spent observing, selecting and gathering.
    pub selecting: Duration,
    /// Duration of the prefill, including `selecting`. With several methods on one prefill, the duration that
    /// this method would have had alone.
    pub reading: Duration,
    /// Memory, by category.
    pub ledger: MemoryLedger,
    /// Tokens that ran through a layer together.
    pub chunk: usize,
    /// Notes for the user about this prefill.
    pub notes: Vec<Note>,
    /// The reconstruction of the document, if the method needs one and `every_row` is set.
    pub repeated: Option<Reconstructed>,
    /// What was read from and written to the vault; `None` without a vault.
    pub vault: Option<VaultUse>,
    /// Tokens that ran through the model, counted once per pass.
    pub tokens_read: usize,
}

impl Prefill<'_> {
    /// Tokens that run through a layer together, by default; more on a GPU with memory for them.
    pub const CHUNK: usize = CHUNK;
}

impl<'a> Prefill<'a> {
    /// A prefill of `ids` in chunks of the default size, for an answer of up to `max_new_tokens` tokens.
    pub fn new(
        model: &'a Model,
        ids: &'a [u32],
        method: &'a dyn Method,
        budget: usize,
        max_new_tokens: usize,
        rope: &'a RopeTable,
    ) -> Self {
        Self {
            model,
            ids,
            method,
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

    /// Limits GPU memory to `gpu_memory` bytes.
    pub fn with_gpu_memory(self, gpu_memory: Option<u64>) -> Self {
        Self { gpu_memory, ..self }
    }

    /// Sets the type of the kept rows.
    pub fn with_cache(self, cache: CacheType) -> Self {
        Self { cache, ..self }
    }

    /// Sets the vaults.
    pub fn with_vault(self, vault: Option<VaultAccess<'a>>) -> Self {
        Self { vault, ..self }
    }

    /// Sets the number of tokens that the template puts after the question.
    pub fn with_tail(self, tail: usize) -> Self {
        Self { tail, ..self }
    }

    /// Sets the positions of the document.
    pub fn with_document(self, document: Range<usize>) -> Self {
        Self {
            document: Some(document),
            ..self
        }
    }

    /// Sets the chunk size in tokens.
    #[doc(hidden)]
    pub fn with_chunk(self, chunk: usize) -> Self {
        Self { chunk, ..self }
    }

    /// Reads the prompt. `watch` receives progress and every compacted layer; a request of `stop` takes effect within
    /// about 0.1 s.
    pub fn run(
        self,
        watch: &mut dyn FnMut(Event<'_>),
        stop: &Stop,
    ) -> Result<PrefillOutcome, EngineError> {
        self.planned()?.run(watch, stop)
    }

    /// Makes the plan.
    fn planned(self) -> Result<PlannedPrefill<'a>, EngineError> {
        let tokens = self.ids.len();
        // Without `document`, the whole prompt is the document.
        let document = self.document.unwrap_or(0..tokens);
        let prompt = PromptShape {
            tokens,
            before: document.start,
            after: tokens - document.end,
            tail: self.tail,
            kept_last: 0,
            max_new_tokens: self.max_new_tokens,
        };
        let plan = PrefillPlan::new(
            self.model,
            self.method,
            &prompt,
            self.budget,
            self.max_new_tokens,
            self.chunk,
            self.cache,
        )?;
        if self.every_row && plan.drops_tokens() {
            let method = self.method.name();
            return Err(EngineError::NoLogits { method });
        }
        Ok(PlannedPrefill {
            input: PrefillTask {
                model: self.model,
                ids: self.ids,
                rope: self.rope,
                every_row: self.every_row,
            },
            method: self.method,
            plan,
            vault: self.vault,
            gpu_memory: self.gpu_memory,
        })
    }
}

/// What one method has kept of the layers read so far.
struct KeptLayers {
    /// The method's state.
    select: Box<dyn Select>,
    map: RetentionMap,
    layers: Vec<CompactLayer>,
    /// Time spent observing, selecting and gathering.
    selecting: Duration,
}

/// Layer by layer: all tokens through the layer, then every method's selection. A method with a score pass is
/// the only method, and its first prefill only measures.
fn read_and_compress(
    input: PrefillTask<'_>,
    mut plans: Vec<PrefillPlan>,
    prefix: &mut Prefix,
    methods: &[&dyn Method],
    watch: &mut dyn FnMut(Event<'_>),
    stop: &Stop,
) -> Result<Vec<PrefillOutcome>, EngineError> {
    let began = Instant::now();
    let tokens_read = plans[0].tokens_read();
    let notes: Vec<Vec<Note>> = plans.iter().map(PrefillPlan::notes).collect();
    let of_each = methods.iter().zip(&plans);
    let mut selects: Vec<_> = of_each.map(|(m, plan)| m.start(&plan.row_plan)).collect();
    let mut progress = ReadingProgress::new(&plans[0], input.model, input.rope);
    let mut scoring = Duration::ZERO;
    let (mut score_pass, mut repeated) = (None, None);
    if plans[0].row_plan.score_pass {
        let started = Instant::now();
        let mut reader = Reader::new(input, &plans, prefix, &mut progress)?;
        reader.run_score_pass(&mut *selects[0], watch, stop)?;
        let end = reader.end()?;
        score_pass = Some(end.ledger);
        repeated = end.repeated;
        let plan = selects[0].allocate_budget(&plans[0].row_plan);
        plans[0].allocate_budget(plan);
        scoring = started.elapsed();
    }

    let mut reader = Reader::new(input, &plans, prefix, &mut progress)?;
    let (mut kept, selecting) = compress_layers(&mut reader, methods, selects, watch, stop)?;
    kept[0].selecting += scoring;
    let mut end = reader.end()?;
    let reading = match score_pass {
        // Host memory is that of the first pass; the kept rows of the second pass are added below.
        Some(first) => MemoryLedger {
            gpu: first.gpu.max(end.ledger.gpu),
            ..first
        },
        None => end.ledger,
    };
    let reading = MemoryLedger {
        weights: backend::weights_in_memory(input.model),
        vocabulary: input.model.vocabulary_bytes(),
        prompt: MemoryLedger::prompt_bytes(input.ids.len()),
        rope: input.rope.bytes(),
        decode: 0,
        ..reading
    };
    let mut repeated = repeated.or(end.repeated);
    let mut hidden = vec![end.hidden; methods.len()].into_iter();
    let alone = began.elapsed().saturating_sub(scoring + selecting);
    let all = kept.into_iter().zip(notes).zip(plans);
    let outcomes = all.map(|((kept, notes), plan)| {
        let cache = compact_cache(kept.layers, &plan, end.cache.take());
        PrefillOutcome {
            ledger: MemoryLedger {
                kept_rows: cache.allocated_bytes() - cache.bytes_on_gpu(),
                kept_on_gpu: cache.bytes_on_gpu(),
                tables: cache.table_bytes() + plan.row_plan.bytes,
                ..reading
            },
            cache,
            map: kept.map,
            hidden: hidden.next().expect("one for each"),
            last_attended: std::mem::take(&mut end.last_attended),
            evictor: evictor(kept.select, &plan.row_plan),
            chunk: plan.chunk,
            plan: plan.row_plan,
            selecting: kept.selecting,
            reading: alone + kept.selecting,
            notes,
            repeated: repeated.take(),
            vault: None,
            tokens_read,
        }
    });
    Ok(outcomes.collect())
}

/// The state of the answer, for methods that evict or merge during decode.
pub(crate) fn evictor(select: Box<dyn Select>, plan: &RowPlan) -> Option<Box<dyn Evict>> {
    let evicts = plan.decode_rows.is_some() || plan.table.is_some();
    evicts.then(|| select.evictor()).flatten()
}

/// Reads every layer and compresses it with every method. Returns the layers of each method, and the time spent on
/// all selections; measurements that methods share count once.
fn compress_layers(
    reader: &mut Reader<'_>,
    methods: &[&dyn Method],
    selects: Vec<Box<dyn Select>>,
    watch: &mut dyn FnMut(Event<'_>),
    stop: &Stop,
) -> Result<(Vec<KeptLayers>, Duration), EngineError> {
    let all = reader.plans;
    let nothing = |(plan, select): (&PrefillPlan, _)| KeptLayers {
        select,
        map: RetentionMap::new(plan.tokens(), reader.heads.kv_heads),
        layers: Vec::with_capacity(plan.keeps.len()),
        selecting: Duration::ZERO,
    };
    let mut kept: Vec<KeptLayers> = all.iter().zip(selects).map(nothing).collect();
    let mut spent = Duration::ZERO;
    for (in_model, &keeps) in all[0].keeps.iter().enumerate() {
        let measuring = reader.read(in_model, watch, stop)?;
        let LayerKeeps::Compressed(in_policy) = keeps else {
            for (method_index, kept) in kept.iter_mut().enumerate() {
                let layer = reader.keep_uncompressed(keeps, method_index)?;
                kept.map.push_window(layer.window().unwrap_or(0));
                kept.layers.push(layer);
            }
            continue;
        };
        spent += measuring;
        for (kept, plan) in kept.iter_mut().zip(all) {
            let needs = plan.needs[in_policy];
            if needs.column_sums
                || needs.expected_queries.is_some()
                || needs.reconstruction.is_some()
            {
                kept.selecting += measuring;
            }
        }
        let layer = GlobalLayer {
            in_model,
            in_policy,
        };
        if methods.len() == 1 {
            reader.attend_last(layer, stop)?;
        }
        for (method_index, (method, kept)) in methods.iter().zip(&mut kept).enumerate() {
            let started = Instant::now();
            let select = &mut *kept.select;
            let compact = reader.compress_layer(layer, method_index, *method, select, stop)?;
            kept.map.push_kept(&compact);
            let took = started.elapsed();
            kept.selecting += took;
            spent += took;
            watch(Event::Layer {
                layer: in_policy,
                kept: &compact,
            });
            kept.layers.push(compact);
        }
    }
    Ok((kept, spent))
}

/// The compact cache of the kept `layers` after the prompt. Its rows may be on the GPU.
fn compact_cache(
    layers: Vec<CompactLayer>,
    plan: &PrefillPlan,
    on_gpu: Option<DeviceRows>,
) -> CompactCache {
    CompactCache {
        layers,
        next: Pos(plan.tokens() as u32),
        window_rope_origin: Pos(0),
        reassigned: plan.reassigns_positions(),
        widest: plan.max_capacity,
        kind: plan.cache,
        on_gpu,
    }
}
