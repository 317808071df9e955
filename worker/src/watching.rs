//! Observers of a question: its retention map, and its progress as replies.

use std::ops::Range;
use std::time::Instant;

use kept_engine::models::Model;
use kept_engine::{
    Answer, AttentionGrid, Citation, CompactLayer, Event, MapGrid, MemoryNow, Prompt, Source, Turn,
    ends16,
};
use kept_worker::protocol::{AnswerFacts, AskRequest, AttendedFacts, Reply, SourceInfo};

use crate::output::Output;
use crate::work::{Job, OpenDocument, OpenModel};

/// UTF-16 units of a text.
fn units(text: &str) -> usize {
    text.encode_utf16().count()
}

/// Mean share of layer-head slots that keep the tokens of the earlier turns.
fn turns_kept(answer: &Answer) -> Option<f32> {
    let earlier = &answer.prompt.earlier;
    if earlier.turns.is_empty() {
        return None;
    }
    earlier.mean_share(None, &answer.map.shares())
}

/// Fills the retention maps of one question: of the document, and of the earlier turns.
pub struct MapBuilder<'a> {
    model: &'a OpenModel,
    document: &'a OpenDocument,
    /// Positions of the document's tokens in the prompt.
    positions: Range<usize>,
    /// The map of the document.
    pub grid: MapGrid,
    /// Positions of the earlier turns' tokens.
    said: Vec<Range<usize>>,
    turns: MapGrid,
}

impl<'a> MapBuilder<'a> {
    pub fn new(model: &'a OpenModel, document: &'a OpenDocument) -> Self {
        Self {
            model,
            document,
            positions: 0..0,
            grid: MapGrid::new(0, 0, Vec::new()),
            said: Vec::new(),
            turns: MapGrid::new(0, 0, Vec::new()),
        }
    }

    /// What [`Reply::Layer`] reports of a layer; empty before it has arrived.
    fn known(&self, layer: usize) -> Vec<u8> {
        [&self.grid, &self.turns]
            .map(|grid| grid.layer_bytes(layer))
            .concat()
    }
}

impl MapBuilder<'_> {
    pub fn receive(&mut self, event: Event<'_>) {
        match event {
            Event::Prompt(prompt) => self.prompt(prompt),
            Event::Layer { layer, kept } => self.layer(layer, kept),
            _ => {}
        }
    }

    fn prompt(&mut self, prompt: &Prompt) {
        // The map covers global layers only: the method cuts these. Sliding-window layers keep their window.
        let layers = self.model.engine.model().config().full_layers().count();
        let ends = ends16(&self.document.document.text, prompt.spans());
        self.positions = prompt.document.clone();
        let kv_heads = self.model.facts.kv_heads;
        self.grid = MapGrid::bounded(layers, kv_heads, ends);
        self.turns = prompt.earlier.grid(layers, kv_heads);
        self.said.clone_from(&prompt.earlier.positions);
    }

    fn layer(&mut self, layer: usize, kept: &CompactLayer) {
        let document = std::slice::from_ref(&self.positions);
        let mut set = self.grid.set_kept(layer, kept, document);
        if !self.said.is_empty() {
            set = set.and_then(|()| self.turns.set_kept(layer, kept, &self.said));
        }
        if let Err(error) = set {
            tracing::error!(%error, "a layer does not fit the map");
        }
    }
}

/// Reports the progress of one question and its retention map.
pub struct QuestionReporter<'a> {
    ticket: u64,
    model: &'a OpenModel,
    document: &'a OpenDocument,
    /// The turns that were asked to be seen.
    turns: &'a [Turn],
    output: &'a Output,
    started: Instant,
    first_token: Option<f64>,
    /// What the next token attended to.
    attended: Vec<(u32, u8)>,
    map: MapBuilder<'a>,
    memory: MemoryNow,
    /// The start of the answer that the prompt already contains: the tag of a thought, or an empty string.
    opened: &'static str,
}

impl<'a> QuestionReporter<'a> {
    pub fn new(job: &'a Job, asked: &'a AskRequest, output: &'a Output) -> Self {
        Self {
            ticket: job.ticket,
            model: &job.model,
            document: &job.document,
            turns: &asked.turns,
            output,
            started: Instant::now(),
            first_token: None,
            attended: Vec::new(),
            map: MapBuilder::new(&job.model, &job.document),
            memory: MemoryNow::default(),
            opened: "",
        }
    }

    /// Reports what was forgotten during the answer.
    pub fn report_evictions(&self, answer: &Answer) {
        if !answer.evictions.is_empty() && self.map.grid.tokens_per_cell() == 1 {
            let ticket = self.ticket;
            let bytes = answer.evictions.to_bytes();
            self.output
                .send_with_bytes(&Reply::Evictions { ticket }, &bytes);
        }
    }

    pub fn facts(self, answer: Answer) -> AnswerFacts {
        let text = format!("{}{}", self.opened, answer.text);
        let turns_kept = turns_kept(&answer);
        let citations = answer.citations.iter().map(|citation| Citation {
            end: units(self.opened) + units(&answer.text[..citation.end]),
            ..*citation
        });
        let before = units(self.opened) as u32;
        let said: Vec<_> = (answer.attended.iter())
            .map(|one| 0..one.said as u32)
            .collect();
        let said = ends16(&answer.text, &said);
        let attended = answer.attended.iter().zip(said);
        let attended = attended.map(|(one, said)| AttendedFacts {
            said: before + said,
            cells: cells_of(&one.tokens, &self.map.grid),
        });
        AnswerFacts {
            by_head: AttentionGrid::new(&self.map.grid, &answer.by_head),
            attended: attended.collect(),
            citations: citations.collect(),
            sources: answer.sources.into_iter().map(|s| self.source(s)).collect(),
            text,
            report: answer.report,
            chosen: answer.chosen.map(Box::new),
            turns_seen: answer.prompt.turns.len(),
            turns_kept,
            rows_per_layer: answer.map.compressed_rows(),
            first_token_seconds: self
                .first_token
                .unwrap_or_else(|| self.started.elapsed().as_secs_f64()),
            notes: answer.notes,
            memory: self.memory,
            vault: Box::new(answer.vault),
        }
    }

    fn source(&self, source: Source) -> SourceInfo {
        let text = &self.document.document.text;
        let start = units(&text[..source.start]);
        let end = start + units(&text[source.start..source.end]);
        let part = self.document.document.part_of(source.start);
        SourceInfo {
            document: part.map(|part| part.document.name.clone()),
            start,
            end,
            page: source.page,
            text: source.text,
            weight: source.weight,
            kept: self.map.grid.share_of(start as u32..end as u32).0,
        }
    }
}

impl QuestionReporter<'_> {
    pub fn receive(&mut self, event: Event<'_>) {
        let ticket = self.ticket;
        match event {
            Event::Chosen { .. } => {}
            Event::Prompt(prompt) => self.prompt(prompt),
            Event::Layer { layer, kept } => self.layer(layer, kept),
            Event::Progress(progress, memory) => {
                let memory = memory.with_system();
                self.memory = memory;
                self.output.send(&Reply::Progress {
                    ticket,
                    progress,
                    memory,
                });
            }
            Event::Read { tokens_from_vault } => self.output.send(&Reply::Read {
                ticket,
                tokens_from_vault,
            }),
            Event::Token { text } => self.token(text),
            Event::Attended(tokens) => self.attended = cells_of(tokens, &self.map.grid),
        }
    }

    fn prompt(&mut self, prompt: &Prompt) {
        let facts = &self.model.facts;
        let model = self.model.engine.model();
        self.opened = opened_thought(model, prompt);
        self.map.prompt(prompt);
        let (grid, turns) = (&self.map.grid, &self.map.turns);
        let ends = grid.ends16().iter().chain(turns.ends16());
        let bytes: Vec<u8> = ends.flat_map(|end| end.to_le_bytes()).collect();
        let seen = &self.turns[prompt.turns_left_out.min(self.turns.len())..];
        self.output.send_with_bytes(
            &Reply::Prompt {
                ticket: self.ticket,
                document_tokens: prompt.document.len(),
                tokens_per_cell: grid.tokens_per_cell(),
                turns: seen.to_vec(),
                turns_left_out: prompt.turns_left_out,
                turns_cells: turns.cells(),
                turns_tokens_per_cell: turns.tokens_per_cell(),
                layers: grid.layers(),
                windows: model.config().kinds.iter().map(|k| k.window()).collect(),
                kv_heads: facts.kv_heads,
            },
            &bytes,
        );
    }

    fn layer(&mut self, layer: usize, kept: &CompactLayer) {
        let before = self.map.grid.layer(layer).map(|_| self.map.known(layer));
        self.map.layer(layer, kept);
        let known = self.map.known(layer);
        if before.as_ref() == Some(&known) {
            return; // Already reported.
        }
        let reply = Reply::Layer {
            ticket: self.ticket,
            layer,
        };
        self.output.send_with_bytes(&reply, &known);
    }

    fn token(&mut self, text: &str) {
        // A reader of the answer must see where the thought began.
        let opened = match self.first_token {
            None => self.opened,
            Some(_) => "",
        };
        self.first_token
            .get_or_insert_with(|| self.started.elapsed().as_secs_f64());
        self.output.send(&Reply::Token {
            ticket: self.ticket,
            text: format!("{opened}{text}"),
            attended: std::mem::take(&mut self.attended),
        });
    }
}

/// The cells of the document's tokens, each once, with weights for the page: 255 for 1.
fn cells_of(tokens: &[(u32, f32)], grid: &MapGrid) -> Vec<(u32, u8)> {
    let mut cells: Vec<(u32, u8)> = Vec::with_capacity(tokens.len());
    for &(token, share) in tokens {
        let cell = token / grid.tokens_per_cell() as u32;
        if cells.iter().all(|known| known.0 != cell) {
            cells.push((cell, (share * 255.0).round() as u8));
        }
    }
    cells
}

/// `<think>` if the prompt ends inside a thought: some chat templates open the thought themselves.
fn opened_thought(model: &Model, prompt: &Prompt) -> &'static str {
    const TAG: &str = "<think>";
    let Ok(tokenizer) = model.tokenizer() else {
        return "";
    };
    let mut end = String::new();
    for &id in &prompt.ids[prompt.question.end..] {
        if tokenizer.is_control(id) {
            end.push_str(tokenizer.token_text(id))
        } else {
            end.push_str(&String::from_utf8_lossy(tokenizer.decode_bytes(id)))
        }
    }
    match (end.rfind(TAG), end.rfind("</think>")) {
        (Some(opens), closes) if closes.is_none_or(|closes| closes < opens) => TAG,
        _ => "",
    }
}
