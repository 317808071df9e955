//! Sequences of events for the app state, without a worker, a store or a page: replies in, effects out.

mod asking;
mod comparing;
mod conversations;
mod documents;
mod levels;
mod library;
mod life;
mod limits;
mod models;
mod neutral;
mod queue;
mod reading_ahead;
mod switching;
mod vault;

use std::time::{Duration, Instant};

use kept_engine::documents::{Document, Part};
use kept_worker::protocol::{
    Access, AnswerFacts, AttendedFacts, MemoryNow, Reply, Request, SourceInfo,
};

use super::*;
use crate::contract::{Choice, DocumentFacts, Refusal, Relation, Turn};

fn open_document(path: &str) -> Request {
    Request::OpenDocument {
        path: path.into(),
        adds: false,
        access: Access::Plain,
    }
}

/// An app state, the clock, and the effects since the last look.
struct Story {
    state: AppState,
    now: Instant,
    seen: Vec<Effect>,
    generation: u64,
}

impl Story {
    fn first_start() -> Self {
        Self::after(Remembered::default())
    }

    fn after(remembered: Remembered) -> Self {
        Self {
            state: AppState::new(remembered, true),
            now: Instant::now(),
            seen: Vec::new(),
            generation: 0,
        }
    }

    /// A first start, with the worker running and `mini` open.
    fn ready() -> Self {
        let mut story = Self::first_start();
        story.hello();
        story.hear(model("mini"));
        story.look();
        story
    }

    fn hello(&mut self) {
        self.generation += 1;
        self.state.worker_hello(self.generation);
    }

    fn hear(&mut self, reply: Reply) {
        self.hear_bytes(reply, &[]);
    }

    fn hear_bytes(&mut self, reply: Reply, bytes: &[u8]) {
        self.state
            .worker_reply(self.now, reply, bytes.to_vec())
            .expect("a reply that makes sense");
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
        self.state.tick(self.now);
    }

    /// The effects since the last look.
    fn look(&mut self) -> &[Effect] {
        self.seen = self.state.take_effects();
        &self.seen
    }

    fn requests(&mut self) -> Vec<Request> {
        let request = |effect: &Effect| match effect {
            Effect::Worker { request, .. } => Some(request.clone()),
            _ => None,
        };
        self.look().iter().filter_map(request).collect()
    }

    fn events(&mut self) -> Vec<AppEvent> {
        let event = |effect: &Effect| match effect {
            Effect::Page(event) => Some(event.clone()),
            _ => None,
        };
        self.look().iter().filter_map(event).collect()
    }

    fn notices(&mut self) -> Vec<String> {
        self.events().into_iter().filter_map(notice).collect()
    }

    fn document(&mut self) -> Option<DocumentFacts> {
        self.state.snapshot().document
    }

    /// Opens a conversation of the list, as it comes from the store.
    fn load(&mut self, conversation: u64, document: Arc<OpenDocument>, turns: Vec<Turn>) {
        let loaded = Loaded {
            conversation,
            document,
            comparison: None,
            turns,
        };
        assert_eq!(self.state.conversation_loaded(loaded), Ok(true));
    }

    /// Deletes the open conversation.
    fn delete(&mut self) {
        let open = self.state.snapshot().conversation;
        let deleted = self.state.delete_conversation(open.expect("one is open"));
        deleted.expect("deleted");
    }

    fn turn(&mut self) -> Turn {
        let turn = self.state.snapshot().turns.pop();
        turn.expect("a turn")
    }

    /// Asks a question; returns the turn and the worker's ticket.
    fn ask(&mut self, question: &str) -> (u64, u64) {
        self.look();
        let turn = self.try_to_ask(question).expect("accepted");
        let asked = self.requests();
        match asked.as_slice() {
            [Request::Ask { ticket, .. }] => (turn, *ticket),
            other => panic!("{other:?}"),
        }
    }

    fn try_to_ask(&mut self, question: &str) -> Result<u64, String> {
        let choice = Choice::plain("snapkv", None);
        self.state.ask(question, choice, Relation::default())
    }

    /// Sends a map of three tokens in two layers with one head, of which `layers` have arrived.
    fn read(&mut self, ticket: u64, layers: usize) {
        let ends: Vec<u8> = [1u32, 2, 3].iter().flat_map(|e| e.to_le_bytes()).collect();
        self.hear_bytes(prompt(ticket), &ends);
        for layer in 0..layers {
            self.hear_bytes(Reply::Layer { ticket, layer }, &[1, 0, 1]);
        }
    }
}

fn notice(event: AppEvent) -> Option<String> {
    match event {
        AppEvent::Notice { message, .. } => Some(message),
        _ => None,
    }
}

fn model(choice: &str) -> Reply {
    Reply::Model {
        model: kept_worker::protocol::ModelFacts {
            name: choice.into(),
            file: format!("{choice}.gguf"),
            quantisation: "Q8_0".into(),
            layers: 2,
            kv_heads: 1,
            context: 2048,
            parameters: 1,
            weights_bytes: 3 << 20,
            stretch: None,
            can_think: false,
            computes_on: "the processor".into(),
            why_processor: None,
        },
    }
}

fn failed(what: kept_worker::protocol::Failure, message: &str) -> Reply {
    Reply::failed(None, what, message, false)
}

fn info(name: &str) -> Document {
    Document {
        name: name.into(),
        ..plain_text(String::new(), "")
    }
}

fn document(name: &str) -> Reply {
    Reply::Document {
        document: info(name),
        languages: Vec::new(),
    }
}

fn tokens(tokens: usize, context: usize) -> Reply {
    Reply::Tokens {
        tokens,
        estimated: false,
        context,
        streams: false,
        refusal: None,
    }
}

/// Three tokens in two layers with one head.
fn prompt(ticket: u64) -> Reply {
    Reply::Prompt {
        ticket,
        document_tokens: 3,
        tokens_per_cell: 1,
        turns: Vec::new(),
        turns_left_out: 0,
        turns_cells: 0,
        turns_tokens_per_cell: 1,
        layers: 2,
        windows: Vec::new(),
        kv_heads: 1,
    }
}

fn token(ticket: u64, text: &str) -> Reply {
    Reply::Token {
        ticket,
        text: text.into(),
        attended: vec![(1, 255)],
    }
}

fn memory_now() -> MemoryNow {
    MemoryNow {
        weights: 7,
        kept: 20,
        kept_full: 80,
        tables: 0,
        scratch: 3,
        resident: None,
        available: Some(100),
        total: Some(200),
    }
}

fn answered(ticket: u64, text: &str, finish: kept_engine::Finish) -> Reply {
    Reply::Answered {
        ticket,
        answer: Box::new(AnswerFacts {
            text: text.into(),
            report: kept_engine::AnswerReport {
                finish,
                method: "snapkv".into(),
                cache: "f16".into(),
                streamed: false,
                prompt_tokens: 5,
                answer_tokens: 2,
                kv_bytes: 20,
                kv_bytes_full: 80,
                peak_bytes: None,
                prefill_seconds: 1.0,
                select_seconds: 0.1,
                decode_seconds: 0.5,
            },
            chosen: None,
            turns_seen: 0,
            turns_kept: None,
            citations: vec![kept_engine::Citation {
                end: text.len(),
                source: 0,
            }],
            attended: vec![AttendedFacts {
                said: 0,
                cells: vec![(1, 255), (0, 40)],
            }],
            by_head: kept_engine::AttentionGrid::default(),
            rows_per_layer: vec![2, 3],
            first_token_seconds: 1.1,
            sources: vec![SourceInfo {
                start: 3,
                end: 8,
                page: None,
                document: None,
                text: "words".into(),
                weight: 0.5,
                kept: 1.0,
            }],
            notes: Vec::new(),
            memory: memory_now(),
            vault: Box::new(kept_engine::vault::VaultUse::none(5)),
        }),
    }
}
