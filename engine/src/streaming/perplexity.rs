//! Perplexity of a text in streaming mode: the measure of StreamingLLM and TreeKV (tables 1 and 2).

use std::time::Instant;

use kept_kernels::Stop;
use kept_models::{RopeTable, RowScratch};
use kept_policies::PromptShape;
use serde::Serialize;

use super::{Stream, StreamPlan};
use crate::watch::ProgressMeter;
use crate::{Engine, EngineError, Event, MemoryLedger, Method, Phase};

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

impl Engine {
    /// Reads `ids` in streaming mode with at most `rows` rows per KV head and `method` (`full` keeps
    /// everything, up to the model's context length). Returns the perplexity of the text, and of its first
    /// tokens for each of `lengths` (ascending, from 2).
    ///
    /// # Errors
    /// As [`StreamPlan::new`]; texts of fewer than two tokens; tokens outside the vocabulary.
    pub fn stream_perplexity(
        &self,
        ids: &[u32],
        method: &Method,
        (rows, chunk): (Option<usize>, Option<usize>),
        lengths: &[usize],
        on_event: &mut dyn FnMut(Event),
        stop: &Stop,
    ) -> Result<Perplexity, EngineError> {
        let model = self.model();
        let config = model.config();
        if let Some(&token) = ids.iter().find(|&&id| id as usize >= config.vocab) {
            return Err(EngineError::UnknownToken {
                token,
                vocabulary: config.vocab,
            });
        }
        if ids.len() < 2 {
            return Err(EngineError::TextTooShort { tokens: ids.len() });
        }
        let full = method.name == "full";
        if full && ids.len() > config.context {
            return Err(EngineError::FullBeyondContext {
                tokens: ids.len(),
                context: config.context,
            });
        }
        // The full cache is StreamingLLM without evictions.
        let (mut policy, rows) = if full {
            (kept_policies::build("streaming_llm", &[])?, Some(ids.len()))
        } else {
            (method.build()?, rows)
        };
        let shape = PromptShape::of(ids.len());
        let plan = StreamPlan::new(model, &mut *policy, &shape, rows, 0, chunk)?
            .with_cache(self.cache_type(), &*policy)?;
        let (rows, chunk, ledger) = (plan.rows, plan.chunk, plan.ledger(model));
        let rope = RopeTable::new(config, plan.positions);
        let mut stream = Stream::new(model, &mut *policy, plan, &rope).with_every_row();
        let mut scratch = RowScratch::new(config);
        let mut logits = vec![0.0; config.vocab];
        let mut meter = ProgressMeter::new(Phase::Reading, ids.len(), ids.len() * config.layers);
        let started = Instant::now();
        let (mut sum, mut steps, mut points, mut at) = (0.0, 0, Vec::new(), Vec::new());
        for (first, stretch) in ids.chunks(stream.stretch()).enumerate() {
            let first = first * stream.stretch();
            let mut passed = |rows: usize, _: &Stream<'_>| {
                steps += rows;
                if let Some(progress) = meter.after(steps) {
                    on_event(Event::Progress(progress));
                }
            };
            let hidden = stream.feed(stretch, &mut passed, stop)?;
            let (mut here, mut foretold) = (0.0, 0);
            for (row, hidden) in hidden.chunks_exact(config.width).enumerate() {
                let Some(&next) = ids.get(first + row + 1) else {
                    break;
                };
                stop.check()?;
                model.logits_row(hidden, &mut scratch, &mut logits);
                here += surprise(&logits, next as usize)?;
                foretold += 1;
                // Tokens so far: predicted ones and the first.
                let so_far = first + row + 2;
                if lengths.contains(&so_far) {
                    at.push(PerplexityAt {
                        tokens: so_far,
                        perplexity: ((sum + here) / (so_far - 1) as f64).exp(),
                        seconds: started.elapsed().as_secs_f64(),
                    });
                }
            }
            sum += here;
            if foretold > 0 {
                points.push(PerplexityPoint {
                    tokens: first + stretch.len(),
                    nll: here / f64::from(foretold),
                    seconds: started.elapsed().as_secs_f64(),
                });
            }
        }
        let seconds = started.elapsed().as_secs_f64();
        let tokens = ids.len() - 1;
        Ok(Perplexity {
            tokens,
            perplexity: (sum / tokens as f64).exp(),
            at,
            rows,
            chunk,
            kv_bytes: stream.into_streamed().cache.kv_bytes(),
            ledger,
            seconds,
            points,
        })
    }
}

/// Negative log-likelihood of `token`, in nats.
fn surprise(logits: &[f32], token: usize) -> Result<f64, EngineError> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|l| f64::from(l - most).exp()).sum();
    let surprise = sum.ln() - f64::from(logits[token] - most);
    if surprise.is_nan() {
        Err(EngineError::NotANumber)
    } else {
        Ok(surprise)
    }
}
