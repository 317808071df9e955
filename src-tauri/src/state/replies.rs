//! Dispatches the worker's replies to the parts of the app state.

use std::sync::Arc;
use std::time::Instant;

use kept_engine::{AttentionGrid, EvictionLog, MapGrid, Note};
use kept_worker::protocol::{self, Failure, Fault, FaultCode, Reply};

use super::AppState;
use super::facts::chosen_of;
use super::turn_map::{EarlierMap, EarlierTexts, TurnMap};
use crate::contract::{
    self, ComparisonState, Estimate, Memory, NoticeKind, Place, Refusal, RefusalCode, TurnState,
};
use crate::messages::{self, as_sentence};

impl AppState {
    /// Handles a reply of the worker, with the bytes that follow it (empty if none). [`Reply::Hello`] is handled by
    /// [`AppState::worker_hello`] instead.
    ///
    /// # Errors
    /// If the reply is invalid.
    pub fn worker_reply(
        &mut self,
        now: Instant,
        reply: Reply,
        bytes: Vec<u8>,
    ) -> Result<(), String> {
        self.dispatch(now, reply, bytes)?;
        self.ask_next();
        self.ask_levels();
        self.ask_neutral();
        self.read_ahead();
        Ok(())
    }

    /// Passes a reply to the part of the state that waits for it.
    fn dispatch(&mut self, now: Instant, reply: Reply, bytes: Vec<u8>) -> Result<(), String> {
        match reply {
            Reply::Hello => return Err("a second hello".to_owned()),
            Reply::Model { model } => self.model_arrived(model),
            Reply::Recognising { done, pages } => {
                self.emit(contract::AppEvent::Recognising { done, pages });
            }
            Reply::Document {
                document,
                languages,
            } => self.document_arrived(document, text(bytes)?, languages),
            Reply::Tokens {
                tokens,
                estimated,
                context,
                streams,
                refusal,
            } => {
                let refusal = refusal.as_deref().map(as_sentence);
                let context = streams.then_some(context);
                self.tokens_counted(tokens, estimated, refusal, context);
            }
            Reply::Inspected { ticket, inspection } => self.inspected(ticket, Ok(*inspection)),
            Reply::Estimate { ticket, estimate } => self.estimated(ticket, Ok(estimate)),
            Reply::Vaults { ticket, vault } => self.vault_told(ticket, vault),
            Reply::Prompt { ticket, .. }
            | Reply::Layer { ticket, .. }
            | Reply::Evictions { ticket }
            | Reply::Progress { ticket, .. }
            | Reply::Read { ticket, .. }
            | Reply::Token { ticket, .. } => {
                if let Some(turn) = self.turn_of(ticket) {
                    self.turn_progressed(now, turn, reply, &bytes)?;
                }
            }
            Reply::Answered { ticket, answer } => self.answered(ticket, *answer),
            Reply::Comparing {
                ticket,
                run,
                sharing,
                progress,
            } => self.compared_progress(now, ticket, run, sharing, progress),
            Reply::Reference {
                ticket,
                seconds,
                report,
            } => self.reference_arrived(ticket, seconds, *report, &bytes),
            Reply::Run {
                ticket,
                run,
                seconds,
                report,
            } => self.run_arrived(ticket, run, seconds, *report, bytes)?,
            Reply::ReadAhead { ticket, progress } => self.reading_progressed(ticket, progress),
            Reply::DocumentRead {
                ticket,
                tokens,
                stored,
                notes,
            } => self.document_read(ticket, stored == tokens, &notes),
            Reply::NeutralMap { ticket } => self.neutral_arrived(ticket, &bytes)?,
            Reply::NeutralDone { ticket } => drop(self.maps.neutral.ended(Some(ticket), false)),
            Reply::Level { ticket, percent } => self.level_arrived(ticket, percent, bytes),
            Reply::LevelsDone { ticket } => self.levels_ended(Some(ticket), false),
            Reply::Compared { ticket } => self.compared(ticket, ComparisonState::Done, None),
            Reply::Failed {
                ticket,
                what,
                message,
                code,
                stopped,
            } => self.failed(ticket, what, &Fault { code, message }, stopped),
        }
        Ok(())
    }

    /// A reply on the way to the answer of `turn`: prompt, layers and progress of prefill, then the answer's text.
    ///
    /// # Errors
    /// If the reply is invalid.
    fn turn_progressed(
        &mut self,
        now: Instant,
        turn: u64,
        reply: Reply,
        bytes: &[u8],
    ) -> Result<(), String> {
        match reply {
            Reply::Prompt {
                document_tokens,
                tokens_per_cell,
                turns,
                turns_left_out,
                turns_cells,
                turns_tokens_per_cell,
                layers,
                kv_heads,
                windows,
                ..
            } => {
                let cells = document_tokens.div_ceil(tokens_per_cell.max(1));
                let mut ends = words(bytes, cells.saturating_add(turns_cells))?;
                let of_turns = ends.split_off(cells);
                let grid = |per_cell, ends| MapGrid::of_cells(layers, kv_heads, per_cell, ends);
                let left_out = turns_left_out;
                let map = TurnMap {
                    document: grid(tokens_per_cell, ends),
                    earlier: (!turns.is_empty()).then(|| EarlierMap {
                        texts: EarlierTexts { turns, left_out },
                        grid: grid(turns_tokens_per_cell, of_turns),
                    }),
                    attended: Vec::new(),
                    by_head: AttentionGrid::default(),
                    evictions: EvictionLog::default(),
                };
                self.map_begins(turn, map, windows);
            }
            Reply::Layer { layer, .. } => self.layer_arrived(now, turn, layer, bytes),
            Reply::Evictions { .. } => self.evictions_arrived(turn, bytes)?,
            Reply::Progress {
                progress, memory, ..
            } => self.progressed(now, turn, progress, memory),
            Reply::Read { .. } => self.set_state(turn, TurnState::Answering),
            Reply::Token { text, attended, .. } => self.text_arrived(now, turn, &text, attended),
            _ => {}
        }
        Ok(())
    }

    fn failed(&mut self, ticket: Option<u64>, what: Failure, fault: &Fault, stopped: bool) {
        let message = fault.message.as_str();
        match (what, ticket) {
            (Failure::Model, _) => self.model_failed(message),
            (Failure::Document, _) => self.document_failed(fault, stopped),
            (Failure::Inspect, Some(ticket)) => self.inspected(ticket, Err(message)),
            (Failure::Estimate, Some(ticket)) => self.estimated(ticket, Err(refusal(fault))),
            (Failure::Compare, Some(ticket)) => {
                let (state, error) = if stopped {
                    (ComparisonState::Stopped, None)
                } else {
                    (ComparisonState::Failed, Some(messages::fault(fault)))
                };
                self.compared(ticket, state, error);
            }
            (Failure::Ask, Some(ticket)) => self.ask_failed(ticket, fault, stopped),
            (Failure::Read, ticket) => self.reading_failed(ticket, message, stopped),
            (Failure::Neutral, ticket) => {
                if !stopped {
                    tracing::info!(message, "there is no map of what is kept whatever is asked");
                }
                self.maps.neutral.ended(ticket, stopped);
            }
            (Failure::Levels, ticket) => {
                if !stopped {
                    tracing::info!(message, "less memory cannot be shown");
                }
                self.levels_ended(ticket, stopped);
            }
            (Failure::Vaults, _) => self.vault_failed(message),
            _ => {
                tracing::warn!(?what, message, "the engine refused a request");
                let message = as_sentence(message);
                self.notice(NoticeKind::Error, Place::Conversation, message);
            }
        }
    }

    fn estimated(&mut self, ticket: u64, estimate: Result<protocol::Estimate, Refusal>) {
        if let Some(waiting) = self.worker.estimates.remove(&ticket) {
            let (streams, sample) = (self.open.is_streamed(), self.open.is_sample());
            let estimate = estimate.map(|estimate| Estimate {
                chosen: (estimate.chosen.as_deref())
                    .map(|chosen| chosen_of(chosen, estimate.prompt_tokens, sample)),
                tokens_from_vault: estimate.tokens_from_vault,
                tokens_to_repeat: estimate.tokens_to_repeat,
                cache: estimate.cache.clone(),
                notes: notes_of(&estimate, streams),
                prompt_tokens: estimate.prompt_tokens,
                rows: estimate.rows,
                memory: Memory {
                    weights: estimate.weights,
                    kept: estimate.kv_bytes,
                    kept_full: estimate.kv_bytes_full,
                    scratch: estimate.scratch,
                    ..Memory::default()
                },
            });
            // The page may have stopped waiting.
            let _ = waiting.send(estimate);
        }
    }
}

/// The notes of an estimate, without the choice of `auto` and streaming mode, which the page shows elsewhere.
fn notes_of(estimate: &protocol::Estimate, streams: bool) -> Vec<String> {
    let shown = |note: &&Note| match note {
        // Shown by other fields of the estimate.
        Note::AutoChose { .. } | Note::Reconstruction { .. } => false,
        Note::WithinMemory(_) => true,
        _ => !streams,
    };
    let notes = estimate.notes.iter().filter(shown);
    notes.map(messages::note).collect()
}

/// The reason for a refused estimate, in the page's form.
fn refusal(fault: &Fault) -> Refusal {
    Refusal {
        message: messages::fault(fault),
        code: match &fault.code {
            FaultCode::MemoryLimit { .. } => Some(RefusalCode::MemoryLimit),
            FaultCode::CacheType { .. } => Some(RefusalCode::CacheType),
            FaultCode::Parameter { name } => Some(RefusalCode::Parameter { name: name.clone() }),
            FaultCode::Password { .. } | FaultCode::Scan { .. } | FaultCode::Other => None,
        },
    }
}

/// Decodes a document's text.
fn text(bytes: Vec<u8>) -> Result<Arc<str>, String> {
    String::from_utf8(bytes)
        .map(Arc::from)
        .map_err(|_| "a document's text that is not UTF-8".to_owned())
}

/// Decodes `count` little-endian u32 values.
fn words(bytes: &[u8], count: usize) -> Result<Vec<u32>, String> {
    if bytes.len() != count.saturating_mul(4) {
        return Err(format!("{} bytes for {count} token ends", bytes.len()));
    }
    Ok(bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|word| u32::from_le_bytes(*word))
        .collect())
}
