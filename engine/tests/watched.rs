//! Reports to the app window compared with the engine's results: estimates with ledgers, layers with the retention
//! map, memory with kept rows. With the built-in model.

use std::path::Path;

use kept_engine::documents::Document;
use kept_engine::kernels::Stop;
use kept_engine::policies::{Budget, PromptShape};
use kept_engine::{
    Answer, Ask, CompactLayer, DocumentLength, Engine, Event, Limits, MapGrid, MemoryNow,
    MethodSpec, Note, Phase, PlanRequest, Progress, Prompt, ends16,
};

const MAX_TOKENS: usize = 24;

fn assets(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../assets")
        .join(name)
}

fn mini() -> Engine {
    Engine::open(&assets("mini.gguf")).expect("the built-in model opens")
}

fn method(name: &str, parameters: &[(&str, &str)]) -> MethodSpec {
    let own = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
    MethodSpec {
        name: name.to_owned(),
        parameters: parameters.iter().map(own).collect(),
    }
}

/// Everything that was reported about a question.
#[derive(Default)]
struct Heard {
    grid: Option<MapGrid>,
    document: std::ops::Range<usize>,
    /// Layer reports before the first token, and in total.
    cut: usize,
    layers: usize,
    text: String,
    /// Tokens from the vault, once prefill is complete.
    reading: Option<usize>,
    progress: Vec<(Progress, MemoryNow)>,
}

impl Heard {
    fn receive(&mut self, event: Event<'_>) {
        match event {
            Event::Prompt(prompt) => self.prompt(prompt),
            Event::Layer { layer, kept } => self.layer(layer, kept),
            Event::Progress(progress, memory) => self.progress.push((progress, memory)),
            Event::Read { tokens_from_vault } => self.reading = Some(tokens_from_vault),
            Event::Token { text } => self.text += text,
            Event::Chosen { .. } | Event::Attended(_) => {}
        }
    }

    fn prompt(&mut self, prompt: &Prompt) {
        self.document = prompt.document.clone();
        let document = std::fs::read_to_string(assets("sample.txt")).unwrap();
        let ends = ends16(&document, prompt.spans());
        assert_eq!(
            ends.last().map(|&end| end as usize),
            Some(document.encode_utf16().count())
        );
        self.grid = Some(MapGrid::new(5, 2, ends));
    }

    fn layer(&mut self, layer: usize, kept: &CompactLayer) {
        let grid = self.grid.as_mut().expect("the prompt comes first");
        grid.set_layer(layer, &kept.counts(self.document.clone()))
            .unwrap();
        self.layers += 1;
        self.cut += usize::from(self.text.is_empty());
    }
}

fn watched(engine: &Engine, method: &MethodSpec, budget: Option<&str>) -> (Answer, Heard) {
    let document = Document::open(&assets("sample.txt")).expect("the sample opens");
    let ask = Ask {
        budget: budget.map(|text| text.parse().unwrap()),
        max_tokens: MAX_TOKENS,
        ..Ask::new(&document, "What is the locker code of Ann Quorvin?", method)
    };
    let mut heard = Heard::default();
    let answer = engine
        .ask(&ask, &mut |event| heard.receive(event), &Stop::new())
        .expect("an answer");
    (answer, heard)
}

#[test]
fn estimate_equals_the_ledger_of_the_answer() {
    let engine = mini();
    for (method, budget) in [
        (method("full", &[]), None),
        (method("full", &[]), Some("10%")),
        (method("snapkv", &[]), None),
        (method("snapkv", &[("w", "7"), ("sinks", "2")]), Some("100")),
        (method("snapkv", &[]), Some("100%")),
        (method("streaming_llm", &[]), Some("64")),
        (method("adakv", &[("w", "7")]), Some("100")),
        (method("adakv", &[("base", "pyramidkv")]), Some("100")),
        (method("scissorhands", &[]), Some("100")),
        (method("expected_attention", &[]), Some("100")),
        (method("cam", &[("base", "h2o")]), Some("100")),
        (method("kvzip", &[]), Some("100")),
        (
            method("kvzip", &[("chunk", "100"), ("sinks", "0")]),
            Some("100"),
        ),
        (method("kvzip", &[("spread", "head")]), None),
        (method("kvzip", &[("spread", "model")]), Some("100")),
        (method("pyramidinfer", &[("variant", "faithful")]), None),
        (
            method("pyramidinfer", &[("variant", "faithful")]),
            Some("80%"),
        ),
        (
            method("keydiff", &[("decode_cap", "110"), ("decode_every", "3")]),
            Some("100"),
        ),
        (
            method("streaming_llm", &[("positions", "original")]),
            Some("1MiB"),
        ),
    ] {
        let (answer, _) = watched(&engine, &method, budget);
        let parsed = budget.map(|text| text.parse().unwrap());
        let shape = answer.prompt.shape();
        let n = shape.tokens;
        let estimate = engine
            .estimate(&PlanRequest {
                limits: Limits::default(),
                ..PlanRequest::new(&shape, &method, parsed, MAX_TOKENS)
            })
            .unwrap();
        let expected = engine
            .expected_ledger(&shape, &method, parsed, MAX_TOKENS)
            .unwrap();
        let case = format!("{method:?} {budget:?}");
        assert_eq!(expected, answer.ledger, "{case}");
        assert_eq!(estimate.prompt_tokens, n, "{case}");
        assert_eq!(estimate.kv_bytes, answer.report.kv_bytes, "{case}");
        assert_eq!(
            estimate.kv_bytes_full, answer.report.kv_bytes_full,
            "{case}"
        );
        assert_eq!(estimate.weights, answer.ledger.weights, "{case}");
        assert_eq!(
            estimate.weights + estimate.kv_bytes + estimate.scratch,
            answer.ledger.peak(),
            "{case}"
        );
        let rows: usize = answer.rows_per_layer.iter().sum();
        let mean = rows as f64 / answer.rows_per_layer.len() as f64;
        assert_eq!(estimate.rows, mean.round() as usize, "{case}");
        // What the answer says is not known before it.
        let known = |note: &&Note| {
            !matches!(
                note,
                Note::UnknownNumbers { .. } | Note::DocumentForgotten { .. }
            )
        };
        let notes: Vec<&Note> = answer.notes.iter().filter(known).collect();
        assert_eq!(Vec::from_iter(&estimate.notes), notes, "{case}");
    }
}

#[test]
fn estimate_refuses_invalid_budgets_and_methods() {
    let engine = mini();
    let refusal = |budget: &str, name: &str| {
        let parsed = Some(budget.parse().unwrap());
        let (prompt, method) = (PromptShape::of(1000), method(name, &[]));
        let result = engine.estimate(&PlanRequest::new(&prompt, &method, parsed, 64));
        result.unwrap_err().to_string()
    };
    assert!(refusal("3", "streaming_llm").contains("3"));
    assert!(refusal("0.01%", "snapkv").contains("0.01"));
    assert!(refusal("10%", "nonsense").contains("nonsense"));
}

#[test]
fn a_share_of_a_short_prompt_that_is_too_small_keeps_everything() {
    let engine = mini();
    let estimate = |tokens: usize, name: &str| {
        let (prompt, method, share) = (
            PromptShape::of(tokens),
            method(name, &[]),
            Budget::Share(0.02),
        );
        engine.estimate(&PlanRequest::new(&prompt, &method, Some(share), 64))
    };
    for name in ["snapkv", "treekv"] {
        for tokens in [3, 40, 72] {
            let estimate = estimate(tokens, name).expect(name);
            assert_eq!(estimate.rows, tokens, "{name}");
            let notes: Vec<String> = estimate.notes.iter().map(ToString::to_string).collect();
            let said = format!("2% of {tokens} tokens are too few for the method, so all are kept");
            assert_eq!(notes, [said], "{name}");
        }
    }
    assert!(
        estimate(257, "snapkv").is_err(),
        "a longer prompt is refused"
    );
    let auto = estimate(256, "auto").expect("auto");
    assert_eq!(auto.rows, 256, "auto evicts nothing of a short prompt");
}

#[test]
fn watched_layers_match_the_retention_map() {
    let engine = mini();
    for name in ["full", "snapkv"] {
        let (answer, heard) = watched(&engine, &method(name, &[]), Some("15%"));
        let grid = heard.grid.expect("a map");
        assert_eq!((heard.cut, heard.layers), (5, 5), "{name}");
        let counts: Vec<u32> = grid.counts(None).into_iter().map(u32::from).collect();
        let document = answer.prompt.document.clone();
        assert_eq!(counts, answer.map.counts()[document], "{name}");
        assert_eq!(heard.text, answer.text, "{name}");
    }
}

#[test]
fn watched_layers_shrink_while_a_method_evicts() {
    let engine = mini();
    let (answer, heard) = watched(&engine, &method("streaming_llm", &[]), Some("128"));
    assert_eq!((heard.cut, heard.layers), (5, 10));
    let grid = heard.grid.expect("a map");
    let before = answer.map.counts();
    let before = &before[answer.prompt.document.clone()];
    let after = grid.counts(None);
    let kept = |counts: &mut dyn Iterator<Item = u32>| counts.filter(|&c| c > 0).count();
    let (had, has) = (
        kept(&mut before.iter().copied()),
        kept(&mut after.iter().map(|&c| u32::from(c))),
    );
    // Every decoded token evicts one token of the document, in every slot at once.
    assert_eq!(
        has,
        had - answer.report.answer_tokens,
        "{:?}",
        answer.report.finish
    );
    assert!(after.iter().all(|&c| c == 0 || c == 10));
}

#[test]
fn progress_reports_the_memory_in_use() {
    let engine = mini();
    let (answer, heard) = watched(&engine, &method("snapkv", &[]), None);
    let row = engine.bytes_per_row();
    let of = |phase| {
        let of_phase = heard.progress.iter().filter(move |(p, _)| p.phase == phase);
        of_phase.copied().collect::<Vec<_>>()
    };
    let (reading, answering) = (of(Phase::Reading), of(Phase::Answering));
    for (_, memory) in &reading {
        assert_eq!(memory.weights, answer.ledger.weights);
        assert_eq!(memory.kept_full, row * answer.prompt.len() as u64);
        assert!(memory.scratch >= answer.ledger.reading());
        assert!(memory.weights + memory.kept + memory.scratch <= answer.ledger.peak());
    }
    assert!(
        reading
            .windows(2)
            .all(|pair| pair[0].1.kept <= pair[1].1.kept),
        "kept rows only grow while reading"
    );
    let (progress, memory) = answering.last().expect("the end of the answer is told");
    assert_eq!(progress.tokens_done, answer.report.answer_tokens);
    assert_eq!(progress.tokens_total, MAX_TOKENS);
    // Every emitted token was also decoded, and is in the cache.
    let steps = (memory.kept - answer.report.kv_bytes) / row;
    assert_eq!(steps, answer.report.answer_tokens as u64);
    assert_eq!(
        memory.kept_full,
        row * (answer.prompt.len() + answer.report.answer_tokens) as u64
    );
    assert_eq!(
        memory.kept + memory.scratch,
        answer.ledger.kept_rows + answer.ledger.rope + answer.ledger.decode
    );
    let from_vault = heard.reading.expect("reading ends");
    assert_eq!(from_vault, answer.vault.tokens_from_vault);
}

#[test]
fn document_length_matches_prompt_and_says_what_streams() {
    let engine = mini();
    let text = std::fs::read_to_string(assets("sample.txt")).unwrap();
    let length = DocumentLength::new(engine.model(), &text).unwrap();
    let prompt = Prompt::new(engine.model(), &text, "Why?").unwrap();
    assert_eq!(length.tokens, prompt.document.len());
    assert!(length.prompt_tokens > length.tokens && length.too_long.is_none());
    assert!(!length.streams);
    let one = length.tokens as f64;
    for times in [3, 4000] {
        let length = DocumentLength::new(engine.model(), &text.repeat(times)).unwrap();
        // Of the longer text only samples are counted.
        let off = length.tokens as f64 / (one * f64::from(times as u32)) - 1.0;
        assert!(off.abs() < 0.05 && length.too_long.is_none(), "{off}");
        assert_eq!(length.estimated, times == 4000);
        assert!(length.streams);
    }
}
