//! Runs one method at one budget and compares it with the full cache.

use std::ops::Range;
use std::time::{Duration, Instant};

use kept_kernels::Stop;
use kept_policies::Budget;
use serde::{Deserialize, Serialize};

use super::divergence::{kl_divergence, same_top};
use super::indices::IndexFigures;
use super::recall::RecallSums;
use super::reference::Reference;
use kept_engine::vault::VaultAccess;
use kept_engine::{
    Decoder, Engine, EngineError, Event, Finish, MethodSpec, Plan, PrefillOutcome, PromptContext,
    RetentionMap,
};

/// Distance of the compact cache from the full cache, along the full cache's answer. Means are over the distributions
/// after each token of the answer; `None` if the answer is empty.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub struct Fidelity {
    /// Mean `KL(full || method)` of the next-token distributions, in nats.
    pub kl: Option<f64>,
    /// Share of distributions with the same most likely token.
    pub top1: Option<f64>,
    /// Share of the full cache's attention that falls on rows which the method holds: mean over layers, see
    /// `recall.rs`.
    pub attention_recall: Option<f64>,
    /// `[layers]`: attention recall by layer; empty without an answer.
    pub attention_recall_per_layer: Vec<f64>,
    /// `[answer tokens]`: KL after each token.
    pub kl_per_token: Vec<f64>,
    /// KL of the distribution before the first token, which most methods do not change.
    pub first_kl: f64,
}

/// Result of one method at one budget.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub struct MethodRun {
    /// Rows per KV head and layer that the budget amounts to.
    pub budget_rows: usize,
    /// Rows per KV head kept of the prompt, per layer.
    pub rows_per_layer: Vec<usize>,
    /// Name of the cache type.
    pub cache: String,
    /// Bytes of the kept keys and values after prefill.
    pub kv_bytes: u64,
    /// Bytes of the full cache at the prompt's length.
    pub kv_bytes_full: u64,
    /// Seconds of prefill, selection included.
    pub prefill_seconds: f64,
    /// Seconds spent observing, selecting and gathering.
    pub select_seconds: f64,
    /// Seconds until the first token of the answer.
    pub first_token_seconds: f64,
    /// Tokens per second when the full cache's answer runs over the compact cache; 0 without an answer.
    pub decode_tokens_per_second: f64,
    /// The method's own greedy answer.
    pub answer: String,
    /// Why it ended.
    #[serde(default = "whole")]
    pub finish: Finish,
    /// Whether it equals the full cache's answer exactly.
    pub same_answer: bool,
    /// Distance from the full cache.
    pub fidelity: Fidelity,
    /// Statistics of the selection.
    pub indices: IndexFigures,
    /// Which tokens of the prompt were kept; not part of a report.
    #[serde(skip)]
    pub map: RetentionMap,
}

impl MethodRun {
    /// Reads the reference's document, with `vault` if there is one, with the method of each run at its budget and
    /// compares it with the reference. Runs
    /// share prefills of the document as in [`Engine::ask_each`]; methods whose answer differs from the full cache's
    /// share a second prefill for their answers. `on_event` receives progress with the range of runs that share the
    /// prefill; `on_run` receives each run's index and result (or refusal) as soon as it is known.
    ///
    /// # Errors
    /// As [`Engine::ask`], except refusals; and errors of `on_run`.
    pub fn measure_each<E: From<EngineError>>(
        engine: &Engine,
        reference: &Reference,
        runs: &[(MethodSpec, Budget)],
        vault: Option<VaultAccess<'_>>,
        on_event: &mut dyn FnMut(Range<usize>, Event),
        on_run: &mut dyn FnMut(usize, Result<MethodRun, EngineError>) -> Result<(), E>,
        stop: &Stop,
    ) -> Result<(), E> {
        let context = PromptContext {
            vault,
            ..PromptContext::new(engine, &reference.prompt, reference.max_tokens)
        };
        let mut done = 0;
        while done < runs.len() {
            let left = &runs[done..];
            let now = &left[..engine.runs_per_prefill(left, &context)];
            let sharing = done..done + now.len();
            let mut on_event = |event: Event<'_>| on_event(sharing.clone(), event);
            let mut others = Vec::new();
            let mut measure =
                |index: usize, outcome: Result<(Plan, PrefillOutcome), EngineError>| {
                    let (planned, outcome) = match outcome {
                        Ok(outcome) => outcome,
                        Err(refusal) => return on_run(done + index, Err(refusal)),
                    };
                    let run = Self::compare(engine, reference, &context, planned, outcome, stop)?;
                    // If every most likely token is the full cache's, so is the answer; otherwise the answer is
                    // decoded in the second prefill.
                    if run.same_answer {
                        on_run(done + index, Ok(run))?
                    } else {
                        others.push((index, run))
                    }
                    Ok(())
                };
            engine.compress_each(&context, now, &mut on_event, &mut measure, stop)?;
            let asked: Vec<_> = others
                .iter()
                .map(|(index, _)| now[*index].clone())
                .collect();
            let mut others = others.into_iter();
            let mut answer = |_, outcome: Result<(Plan, PrefillOutcome), EngineError>| {
                let (index, mut run) = others.next().expect("one for each that was asked");
                let (_, outcome) = outcome?;
                let greedy = engine.decode_greedily(&context, outcome, stop)?;
                (run.answer, run.finish) = (greedy.text, greedy.finish);
                run.same_answer = run.answer == reference.report.answer;
                on_run(done + index, Ok(run))
            };
            if !asked.is_empty() {
                engine.compress_each(&context, &asked, &mut on_event, &mut answer, stop)?;
            }
            done += now.len();
        }
        Ok(())
    }

    /// Runs the full cache's answer through the method's compact cache. The method's own answer is known only if it
    /// is the same.
    fn compare(
        engine: &Engine,
        reference: &Reference,
        context: &PromptContext<'_>,
        planned: Plan,
        outcome: PrefillOutcome,
        stop: &Stop,
    ) -> Result<MethodRun, EngineError> {
        let model = engine.model();
        let kv_bytes = outcome.cache.kv_bytes();
        let mut decoder = Decoder::new(model, &context.rope, outcome.evictor, outcome.cache)?;
        let started = Instant::now();
        let logits = decoder.logits_of(&outcome.hidden)?;
        let first_token_seconds = (outcome.reading + started.elapsed()).as_secs_f64();
        let first_kl = distance(reference.logits_after(0), logits)?;
        let mut same_answer = same_top(reference.logits_after(0), logits);

        let mut decoding = Duration::ZERO;
        let mut recall = RecallSums::new(model.config().full_layers().count());
        let mut kl_per_token = Vec::with_capacity(reference.answer_ids.len());
        let mut agreed = 0;
        for (i, &token) in reference.answer_ids.iter().enumerate() {
            if stop.is_requested() {
                return Err(EngineError::Stopped);
            }
            if let Some(attention) = reference.attention.get(i) {
                recall.add(attention, decoder.cache());
            }
            let started = Instant::now();
            let logits = decoder.step(token, None)?;
            decoding += started.elapsed();
            let full = reference.logits_after(i + 1);
            kl_per_token.push(distance(full, logits)?);
            let same = same_top(full, logits);
            agreed += usize::from(same);
            // The token after the longest answer is never sampled.
            same_answer &= same || i + 1 == context.max_new_tokens;
        }
        drop(decoder);
        let compared = kl_per_token.len();
        let mean = |sum: f64| (compared > 0).then(|| sum / compared as f64);
        let per_layer = recall.means().unwrap_or_default();
        let fidelity = Fidelity {
            kl: mean(kl_per_token.iter().sum()),
            top1: mean(agreed as f64),
            attention_recall: (!per_layer.is_empty())
                .then(|| per_layer.iter().sum::<f64>() / per_layer.len() as f64),
            attention_recall_per_layer: per_layer,
            kl_per_token,
            first_kl,
        };
        Ok(MethodRun {
            budget_rows: planned.rows(),
            cache: planned.cache().name().to_owned(),
            rows_per_layer: outcome.map.rows_per_layer(),
            kv_bytes,
            kv_bytes_full: engine.kv_bytes_full(reference.prompt.len()),
            prefill_seconds: outcome.reading.as_secs_f64(),
            select_seconds: outcome.selecting.as_secs_f64(),
            first_token_seconds,
            decode_tokens_per_second: if decoding.is_zero() {
                0.0
            } else {
                compared as f64 / decoding.as_secs_f64()
            },
            answer: if same_answer {
                reference.report.answer.clone()
            } else {
                String::new()
            },
            finish: reference.report.finish,
            same_answer,
            fidelity,
            indices: IndexFigures::from_map(&outcome.map),
            map: outcome.map,
        })
    }
}

/// Of a run that was stored before runs had the reason.
fn whole() -> Finish {
    Finish::End
}

fn distance(full: &[f32], method: &[f32]) -> Result<f64, EngineError> {
    let kl = kl_divergence(full, method);
    if kl.is_nan() {
        Err(EngineError::NotANumber)
    } else {
        Ok(kl)
    }
}
