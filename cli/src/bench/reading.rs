//! The prefill of `kept bench`: synthetic tokens, in one prefill, in streaming mode or skipped; and a second question
//! with a vault.

use std::time::{Duration, Instant};

use anyhow::ensure;
use kept_engine::kernels::{PackedRows, Stop};
use kept_engine::models::RopeTable;
use kept_engine::policies::{Budget, Evict, Method, PromptShape};
use kept_engine::vault::Vaults;
use kept_engine::{
    CompactCache, Engine, Limits, MemoryLedger, MethodSpec, Phase, PlanRequest, Prefill, Progress,
    Stream, Streaming, SyntheticCache, synthetic_cache,
};

use crate::own_vaults::OwnVaults;
use crate::progress::ReadingBar;

/// Tokens of the question after the document.
const QUESTION: usize = 24;

/// The prompt and its options.
pub struct Asked<'a> {
    pub engine: &'a Engine,
    pub ids: &'a [u32],
    pub method: &'a MethodSpec,
    pub budget: Option<Budget>,
    pub max_new_tokens: usize,
    /// The vaults that store the document, if any: all tokens but the last few.
    pub vaults: Option<&'a OwnVaults>,
    /// GPU memory limit in bytes.
    pub gpu_memory: Option<u64>,
    /// Also time the parts of a decode step.
    pub kernels: bool,
}

/// What decode continues from.
pub struct PromptState {
    pub cache: CompactCache,
    /// `[width]`: the last token's residual stream.
    pub hidden: Vec<f32>,
    /// The method's state for the answer, if it evicts during decode.
    pub evictor: Option<Box<dyn Evict>>,
    /// Positions of prompt and answer together.
    pub positions: usize,
}

/// The measurements of prefill, of streaming mode, or of synthetic rows.
pub struct Reading {
    /// Rows per head.
    pub budget: usize,
    pub kv_bytes: u64,
    pub ledger: MemoryLedger,
    pub selecting: Duration,
    pub seconds: f64,
    /// Tokens per second in the first and in the last tenth, in streaming mode.
    pub tenths: Option<(f64, f64)>,
    /// Tokens per chunk.
    pub chunk: usize,
    /// Tokens that came from the vault.
    pub known: usize,
}

impl Asked<'_> {
    fn request<'p>(&'p self, prompt: &'p PromptShape) -> PlanRequest<'p> {
        PlanRequest::new(prompt, self.method, self.budget, self.max_new_tokens)
    }

    pub fn prefill(
        &self,
        method: &dyn Method,
        bar: &ReadingBar,
        stop: &Stop,
    ) -> anyhow::Result<(PromptState, Reading)> {
        let (model, n) = (self.engine.model(), self.ids.len());
        let shape = PromptShape::of(n);
        let budget = self.engine.rows_for(method, &self.request(&shape))?;
        let positions = n + self.max_new_tokens;
        let rope = RopeTable::new(model.config(), positions);
        let started = Instant::now();
        let access = self.vaults.map(|vaults| {
            let vaults = Vaults::new(&vaults.folder, PackedRows::Q8_0);
            self.engine.vault_access(vaults, "drawn")
        });
        let mut prefill = Prefill::new(model, self.ids, method, budget, self.max_new_tokens, &rope)
            .with_cache(self.engine.cache_type())
            .with_gpu_memory(self.gpu_memory);
        if access.is_some() {
            prefill = prefill
                .with_document(0..n.saturating_sub(QUESTION))
                .with_vault(access);
        }
        let outcome = prefill.run(&mut |event| bar.event(&event), stop)?;
        let reading = Reading {
            seconds: started.elapsed().as_secs_f64(),
            budget,
            kv_bytes: outcome.cache.kv_bytes(),
            ledger: outcome.ledger,
            selecting: outcome.selecting,
            tenths: None,
            chunk: outcome.chunk,
            known: outcome.vault.map_or(0, |used| used.tokens_from_vault),
        };
        let prompt = PromptState {
            cache: outcome.cache,
            hidden: outcome.hidden,
            evictor: outcome.evictor,
            positions,
        };
        Ok((prompt, reading))
    }

    /// Prefills a second question about the same document, which [`Asked::prefill`] stored in the vault.
    pub fn second_question(
        &self,
        method: &dyn Method,
        bar: &ReadingBar,
        stop: &Stop,
    ) -> anyhow::Result<Reading> {
        let mut ids = self.ids.to_vec();
        let question = ids.len().saturating_sub(QUESTION);
        ids[question..].reverse();
        let (_, reading) = Asked { ids: &ids, ..*self }.prefill(method, bar, stop)?;
        bar.clear();
        ensure!(
            reading.known > 0,
            "no vault of {} tokens was written; give more --prompt-tokens, or free space in {}",
            self.ids.len(),
            std::env::temp_dir().display()
        );
        Ok(reading)
    }

    /// Skips prefill and fills the cache with synthetic rows.
    pub fn synthetic(&self, method: &dyn Method) -> anyhow::Result<(PromptState, Reading)> {
        let (model, n) = (self.engine.model(), self.ids.len());
        let budget = (self.engine).rows_for(method, &self.request(&PromptShape::of(n)))?;
        let SyntheticCache {
            cache,
            plan,
            evictor,
        } = synthetic_cache(
            model,
            method,
            n,
            budget,
            self.max_new_tokens,
            self.engine.cache_type(),
        )?;
        ensure!(
            plan.decode_rows.is_none() || plan.bytes == 0,
            "--after draws a cache that nobody read, and {} goes on from what it measured while reading; give --prompt-tokens, or a method that cuts the prompt only",
            method.name()
        );
        let reading = Reading {
            ledger: MemoryLedger {
                weights: model.weights_bytes(),
                kept_rows: cache.allocated_bytes(),
                tables: cache.table_bytes() + plan.bytes,
                ..MemoryLedger::default()
            },
            budget,
            kv_bytes: cache.kv_bytes(),
            selecting: Duration::ZERO,
            seconds: 0.0,
            tenths: None,
            chunk: Prefill::CHUNK,
            known: 0,
        };
        let prompt = PromptState {
            cache,
            hidden: vec![1.0; model.config().width],
            evictor,
            positions: n + self.max_new_tokens,
        };
        Ok((prompt, reading))
    }

    pub fn stream(
        &self,
        method: &dyn Method,
        bar: &ReadingBar,
        stop: &Stop,
    ) -> anyhow::Result<(PromptState, Reading)> {
        let model = self.engine.model();
        let shape = PromptShape::of(self.ids.len());
        let request = PlanRequest {
            limits: Limits::from(Streaming::On),
            ..self.request(&shape)
        };
        let plan = self.engine.stream_plan(method, &request)?;
        let (budget, positions, ledger) = (plan.rows, plan.positions, plan.ledger(model));
        let chunk = plan.chunk;
        let rope = RopeTable::new(model.config(), positions);
        let started = Instant::now();
        let mut stream = Stream::new(model, method, plan, &rope);
        let total = self.ids.len() * model.config().layers;
        let mut done = 0;
        // Tokens read so far, and the elapsed seconds.
        let mut marks = vec![(0, 0.0)];
        for ids in self.ids.chunks(stream.chunk_group()) {
            let mut passed = |rows: usize, _: &Stream<'_>| {
                done += rows;
                let (share, seconds) =
                    (done as f64 / total as f64, started.elapsed().as_secs_f64());
                bar.show(&Progress {
                    phase: Phase::Reading,
                    tokens_done: (share * self.ids.len() as f64) as usize,
                    tokens_total: self.ids.len(),
                    tokens_from_vault: 0,
                    tokens_per_second: share * self.ids.len() as f64 / seconds,
                    seconds_left: seconds * (1.0 - share) / share,
                });
            };
            stream.feed(ids, &mut passed, stop)?;
            let read = marks.last().map_or(0, |&(read, _)| read) + ids.len();
            marks.push((read, started.elapsed().as_secs_f64()));
        }
        let streamed = stream.into_streamed();
        let reading = Reading {
            seconds: started.elapsed().as_secs_f64(),
            budget,
            kv_bytes: streamed.cache.kv_bytes(),
            ledger,
            selecting: Duration::ZERO,
            tenths: tenths(&marks),
            chunk,
            known: 0,
        };
        let prompt = PromptState {
            evictor: streamed.evictor,
            cache: streamed.cache,
            hidden: streamed.hidden,
            positions,
        };
        Ok((prompt, reading))
    }
}

/// Tokens per second in the first and in the last tenth, from marks `(tokens, seconds)`; `None` if the marks are too
/// coarse for tenths.
fn tenths(marks: &[(usize, f64)]) -> Option<(f64, f64)> {
    let (&begin, &end) = (marks.first()?, marks.last()?);
    let speed = |from: (usize, f64), to: (usize, f64)| (to.0 - from.0) as f64 / (to.1 - from.1);
    let early = marks.iter().find(|mark| mark.0 >= end.0 / 10)?;
    let late = marks.iter().rfind(|mark| mark.0 <= end.0 - end.0 / 10)?;
    (marks.len() > 10).then(|| (speed(begin, *early), speed(*late, end)))
}
