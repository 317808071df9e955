//! Perplexity of a text in streaming mode: the measure of StreamingLLM and TreeKV (tables 1 and 2).

use std::time::Instant;

use kept_engine::{
    Engine, EngineError, Event, MemoryLedger, MemoryNow, MethodSpec, Phase, ProgressMeter, Stream,
    StreamPlan,
};
use kept_kernels::Stop;
use kept_models::{Model, RopeTable, RowScratch};
use kept_policies::PromptShape;
use serde::Serialize;

/// A text, and how its perplexity is measured.
#[derive(Debug, Clone, Copy)]
pub struct PerplexityTask<'a> {
    /// `[tokens]`: token ids, at least two.
    pub ids: &'a [u32],
    /// The method; `full` keeps everything, up to the model's context length.
    pub method: &'a MethodSpec,
    /// Maximum number of rows per KV head; `None` for the default budget of streaming mode.
    pub rows: Option<usize>,
    /// Tokens per chunk; `None` for the default size.
    pub chunk: Option<usize>,
    /// Numbers of first tokens, ascending from 2, whose perplexity is measured too.
    pub lengths: &'a [usize],
}

/// Perplexity of a text's first tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PerplexityAt {
    /// Number of these tokens.
    pub tokens: usize,
    /// `exp` of the mean negative log-likelihood of all of them except the first.
    pub perplexity: f64,
    /// Seconds to read them.
    pub seconds: f64,
}

/// Mean over one stretch of the text.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PerplexityPoint {
    /// Tokens read at its end.
    pub tokens: usize,
    /// Mean negative log-likelihood of its tokens, in nats.
    pub nll: f64,
    /// Seconds since the start.
    pub seconds: f64,
}

/// Perplexity of a text.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Perplexity {
    /// Tokens that were predicted: all except the first.
    pub tokens: usize,
    /// `exp` of the mean negative log-likelihood.
    pub perplexity: f64,
    /// Perplexity of the requested lengths that the text reaches.
    pub at: Vec<PerplexityAt>,
    /// Largest number of rows per KV head in a layer.
    pub rows: usize,
    /// Tokens per chunk.
    pub chunk: usize,
    /// Bytes of live rows at the end.
    pub kv_bytes: u64,
    /// Memory by category.
    pub ledger: MemoryLedger,
    /// Total seconds.
    pub seconds: f64,
    /// One point per stretch.
    pub points: Vec<PerplexityPoint>,
}

impl PerplexityTask<'_> {
    /// Whether the full cache is kept.
    fn is_full(&self) -> bool {
        self.method.is_full()
    }

    fn check(&self, model: &Model) -> Result<(), EngineError> {
        let (config, tokens) = (model.config(), self.ids.len());
        if let Some(&token) = self.ids.iter().find(|&&id| id as usize >= config.vocab) {
            return Err(EngineError::UnknownToken {
                token,
                vocabulary: config.vocab,
            });
        }
        if tokens < 2 {
            return Err(EngineError::TextTooShort { tokens });
        }
        if self.is_full() && tokens > config.context {
            return Err(EngineError::FullBeyondContext {
                tokens,
                context: config.context,
            });
        }
        Ok(())
    }
}

/// Sums the negative log-likelihoods of a text's tokens.
struct TextScorer<'a> {
    model: &'a Model,
    task: &'a PerplexityTask<'a>,
    scratch: RowScratch,
    /// `[vocab]`
    logits: Vec<f32>,
    started: Instant,
    /// Negative log-likelihood of all tokens so far, in nats.
    sum: f64,
    at: Vec<PerplexityAt>,
    points: Vec<PerplexityPoint>,
}

impl<'a> TextScorer<'a> {
    fn new(model: &'a Model, task: &'a PerplexityTask<'a>) -> Self {
        let config = model.config();
        Self {
            model,
            task,
            scratch: RowScratch::new(config),
            logits: vec![0.0; config.vocab],
            started: Instant::now(),
            sum: 0.0,
            at: Vec::new(),
            points: Vec::new(),
        }
    }

    /// Adds a stretch that begins at token `first`. Each row of `hidden [rows, width]`, the last layer's output,
    /// predicts the token after it.
    fn add_stretch(
        &mut self,
        first: usize,
        hidden: &[f32],
        stop: &Stop,
    ) -> Result<(), EngineError> {
        let width = self.model.config().width;
        let (mut sum, mut predicted) = (0.0, 0);
        for (row, hidden) in hidden.chunks_exact(width).enumerate() {
            let Some(&next) = self.task.ids.get(first + row + 1) else {
                break;
            };
            stop.check()?;
            (self.model).logits_row(hidden, &mut self.scratch, &mut self.logits);
            sum += negative_log_likelihood(&self.logits, next as usize)?;
            predicted += 1;
            // Tokens so far: predicted ones and the first.
            let so_far = first + row + 2;
            if self.task.lengths.contains(&so_far) {
                self.at.push(PerplexityAt {
                    tokens: so_far,
                    perplexity: ((self.sum + sum) / (so_far - 1) as f64).exp(),
                    seconds: self.started.elapsed().as_secs_f64(),
                });
            }
        }
        self.sum += sum;
        if predicted > 0 {
            self.points.push(PerplexityPoint {
                tokens: first + hidden.len() / width,
                nll: sum / f64::from(predicted),
                seconds: self.started.elapsed().as_secs_f64(),
            });
        }
        Ok(())
    }
}

impl Perplexity {
    /// Reads a text in streaming mode and returns its perplexity, and that of its first tokens for each of the
    /// requested lengths.
    ///
    /// # Errors
    /// As [`StreamPlan::new`]; texts of fewer than two tokens; tokens outside the vocabulary.
    pub fn measure(
        engine: &Engine,
        task: &PerplexityTask<'_>,
        on_event: &mut dyn FnMut(Event),
        stop: &Stop,
    ) -> Result<Perplexity, EngineError> {
        let (model, ids) = (engine.model(), task.ids);
        task.check(model)?;
        // The full cache is StreamingLLM without evictions.
        let (method, rows) = if task.is_full() {
            (kept_policies::build("streaming_llm", &[])?, Some(ids.len()))
        } else {
            (task.method.build()?, task.rows)
        };
        let shape = PromptShape::of(ids.len());
        let cache = engine.cache_type();
        let plan = StreamPlan::new(model, &*method, &shape, rows, 0, task.chunk, cache)?;
        let (rows, chunk, ledger) = (plan.rows, plan.chunk, plan.ledger(model));
        let rope = RopeTable::new(model.config(), plan.positions);
        let mut stream = Stream::new(model, &*method, plan, &rope).with_every_row();
        let layers = model.config().layers;
        let mut meter = ProgressMeter::new(Phase::Reading, ids.len(), ids.len() * layers);
        let mut scorer = TextScorer::new(model, task);
        let mut steps = 0;
        for (number, stretch) in ids.chunks(stream.chunk_group()).enumerate() {
            let first = number * stream.chunk_group();
            let mut passed = |rows: usize, _: &Stream<'_>| {
                steps += rows;
                if let Some(progress) = meter.progress_if_due(steps) {
                    on_event(Event::Progress(progress, MemoryNow::default()));
                }
            };
            let hidden = stream.feed(stretch, &mut passed, stop)?;
            scorer.add_stretch(first, hidden, stop)?;
        }
        let seconds = scorer.started.elapsed().as_secs_f64();
        let tokens = ids.len() - 1;
        Ok(Self {
            tokens,
            perplexity: (scorer.sum / tokens as f64).exp(),
            at: scorer.at,
            rows,
            chunk,
            kv_bytes: stream.into_streamed().cache.kv_bytes(),
            ledger,
            seconds,
            points: scorer.points,
        })
    }
}

/// Negative log-likelihood of `token`, in nats.
fn negative_log_likelihood(logits: &[f32], token: usize) -> Result<f64, EngineError> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|l| f64::from(l - most).exp()).sum();
    let nll = sum.ln() - f64::from(logits[token] - most);
    if nll.is_nan() {
        Err(EngineError::NotANumber)
    } else {
        Ok(nll)
    }
}
