//! What the worker says, and which part of the desk hears it.

use std::sync::Arc;
use std::time::Instant;

use kept_engine::protocol::{self, Failure, Reply};
use kept_engine::{MapGrid, Phase as EnginePhase};

use super::AppState;
use super::facts::{chosen_of, memory};
use crate::contract::{
    self, ComparisonState, Estimate, Memory, NoticeKind, Phase, Place, TurnState, Vault,
};
use crate::messages::present_error;

impl AppState {
    /// A reply of the worker, with the bytes that came with it (empty if none). [`Reply::Hello`] is not for the desk:
    /// see [`AppState::worker_hello`]. An error says that the reply makes no sense.
    pub fn worker_reply(
        &mut self,
        now: Instant,
        reply: Reply,
        bytes: Vec<u8>,
    ) -> Result<(), String> {
        match reply {
            Reply::Hello { .. } => return Err("a second hello".to_owned()),
            Reply::Model { model } => self.model_arrived(model),
            Reply::Document { document } => {
                let text = String::from_utf8(bytes)
                    .map_err(|_| "a document's text that is not UTF-8".to_owned())?;
                self.document_arrived(document, Arc::from(text));
            }
            Reply::Tokens {
                tokens,
                at_least,
                context,
                fits,
                message,
                streams,
            } => {
                let refusal = message.filter(|_| !fits);
                let refusal = refusal.map(|message| present_error(&message));
                let context = streams.then_some(context);
                self.tokens_counted(tokens, at_least, refusal, context);
            }
            Reply::Inspected { ticket, inspection } => self.inspected(ticket, Ok(*inspection)),
            Reply::Estimate { ticket, estimate } => self.estimated(ticket, Ok(estimate)),
            Reply::Prompt {
                ticket,
                document_tokens,
                tokens_per_cell,
                layers,
                kv_heads,
                windows,
                ..
            } => {
                if let Some(turn) = self.turn_of(ticket) {
                    let per_cell = tokens_per_cell.max(1);
                    let ends = words(&bytes, document_tokens.div_ceil(per_cell))?;
                    let map = MapGrid::of_cells(layers, kv_heads, per_cell, ends);
                    self.map_begins(turn, map, windows);
                }
            }
            Reply::Layer { ticket, layer } => {
                if let Some(turn) = self.turn_of(ticket) {
                    self.layer_arrived(now, turn, layer, &bytes);
                }
            }
            Reply::Progress {
                ticket,
                progress,
                memory: used,
            } => {
                if let Some(turn) = self.turn_of(ticket) {
                    self.progressed(now, turn, (progress_of(&progress), memory(&used)));
                }
            }
            Reply::Read { ticket, .. } => {
                if let Some(turn) = self.turn_of(ticket) {
                    self.set_state(turn, TurnState::Answering);
                }
            }
            Reply::Vaults {
                ticket,
                folder,
                documents,
                bytes,
                budget,
                ..
            } => {
                let vault = Vault {
                    folder,
                    documents,
                    bytes,
                    budget,
                };
                self.vault_told(ticket, vault);
            }
            Reply::Token { ticket, text } => {
                if let Some(turn) = self.turn_of(ticket) {
                    self.text_arrived(now, turn, &text);
                }
            }
            Reply::Answered { ticket, answer } => self.answered(ticket, answer),
            Reply::Comparing {
                ticket,
                run,
                sharing,
                progress,
            } => self.compared_progress(now, ticket, (run, sharing), progress_of(&progress)),
            Reply::Reference {
                ticket,
                seconds,
                report,
            } => self.reference_arrived(ticket, seconds, *report),
            Reply::Run {
                ticket,
                run,
                seconds,
                report,
            } => self.run_arrived(ticket, run, seconds, *report)?,
            Reply::Compared { ticket } => self.compared(ticket, ComparisonState::Done, None),
            Reply::Failed {
                ticket,
                what,
                message,
                stopped,
            } => self.failed(ticket, what, &message, stopped),
        }
        Ok(())
    }

    fn failed(&mut self, ticket: Option<u64>, what: Failure, message: &str, stopped: bool) {
        match (what, ticket) {
            (Failure::Model, _) => self.model_failed(message),
            (Failure::Document, _) => self.document_failed(message, stopped),
            (Failure::Inspect, Some(ticket)) => self.inspected(ticket, Err(message)),
            (Failure::Estimate, Some(ticket)) => {
                self.estimated(ticket, Err(present_error(message)))
            }
            (Failure::Compare, Some(ticket)) => {
                let (state, error) = match stopped {
                    true => (ComparisonState::Stopped, None),
                    false => (ComparisonState::Failed, Some(present_error(message))),
                };
                self.compared(ticket, state, error);
            }
            (Failure::Ask, Some(ticket)) => self.ask_failed(ticket, message, stopped),
            (Failure::Vaults, _) => self.vault_failed(message),
            _ => {
                tracing::warn!(?what, message, "the engine refused a request");
                let message = present_error(message);
                self.notice(NoticeKind::Error, Place::Conversation, message);
            }
        }
    }

    fn estimated(&mut self, ticket: u64, estimate: Result<protocol::Estimate, String>) {
        if let Some(waiting) = self.estimates.remove(&ticket) {
            let (streams, sample) = self.how_it_is_read();
            let estimate = estimate.map(|estimate| Estimate {
                chosen: (estimate.chosen.as_deref())
                    .map(|chosen| chosen_of(chosen, estimate.prompt_tokens, sample)),
                tokens_from_vault: estimate.tokens_from_vault,
                cache: estimate.cache.clone(),
                note: said_besides(&estimate, streams),
                prompt_tokens: estimate.prompt_tokens,
                rows: estimate.rows,
                memory: Memory {
                    weights: estimate.weights,
                    kept: estimate.kv_bytes,
                    kept_full: estimate.kv_bytes_full,
                    tables: 0,
                    scratch: estimate.scratch,
                    available: None,
                    total: None,
                },
            });
            // The page may have stopped waiting.
            let _ = waiting.send(estimate);
        }
    }
}

/// What a person should know of an estimate: what was chosen for a memory limit, and what there is besides.
fn said_besides(estimate: &protocol::Estimate, streams: bool) -> Option<String> {
    let fitted = estimate.fitted.clone();
    // Of streaming the document's own sentence says it.
    let rest = (!streams).then(|| besides(estimate)).flatten();
    let said: Vec<String> = (fitted.into_iter().chain(rest))
        .map(|note| present_error(&note))
        .collect();
    (!said.is_empty()).then(|| said.join(" "))
}

/// What is said of an estimate besides what was chosen and why.
fn besides(estimate: &protocol::Estimate) -> Option<String> {
    let note = estimate.note.as_deref()?;
    let chosen = estimate.chosen.as_deref();
    let chosen = chosen.map_or(String::new(), |c| format!("auto chooses {}", c.reason));
    let rest = note.strip_prefix(&chosen).unwrap_or(note);
    let rest = rest.trim_start_matches("; ");
    (!rest.is_empty()).then(|| rest.to_owned())
}

fn progress_of(progress: &kept_engine::Progress) -> contract::Progress {
    contract::Progress {
        phase: match progress.phase {
            EnginePhase::Reading => Phase::Reading,
            EnginePhase::Answering => Phase::Answering,
        },
        tokens_done: progress.tokens_done,
        tokens_total: progress.tokens_total,
        tokens_per_second: progress.tokens_per_second,
        seconds_left: progress.seconds_left,
        tokens_from_vault: progress.tokens_from_vault,
    }
}

/// `count` little-endian words.
fn words(bytes: &[u8], count: usize) -> Result<Vec<u32>, String> {
    if bytes.len() != count * 4 {
        return Err(format!("{} bytes for {count} token ends", bytes.len()));
    }
    Ok(bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|word| u32::from_le_bytes(*word))
        .collect())
}
