//! What a method forgets while it answers: its log between the map before the answer and the map after it.

use std::collections::BTreeSet;
use std::ops::Range;

use kept_engine::documents::Document;
use kept_engine::kernels::Stop;
use kept_engine::policies::{Budget, STREAMING, methods};
use kept_engine::{
    Ask, CompactLayer, Engine, Event, Limits, MapGrid, MethodSpec, Prompt, Sampling, Streaming,
    ends16,
};
use kept_tests::golden;

/// The map of a question, as the app fills it.
struct Filling<'a> {
    engine: &'a Engine,
    text: &'a str,
    document: Range<usize>,
    grid: MapGrid,
    /// The counts before the answer.
    before: Vec<u16>,
}

impl Filling<'_> {
    fn receive(&mut self, event: Event<'_>) {
        match event {
            Event::Prompt(prompt) => self.prompt(prompt),
            Event::Layer { layer, kept } => self.layer(layer, kept),
            Event::Read { .. } => self.before = self.grid.counts(None),
            _ => {}
        }
    }

    fn prompt(&mut self, prompt: &Prompt) {
        let config = self.engine.model().config();
        let ends = ends16(self.text, prompt.spans());
        self.document = prompt.document.clone();
        self.grid = MapGrid::new(config.full_layers().count(), config.kv_heads, ends);
    }

    fn layer(&mut self, layer: usize, kept: &CompactLayer) {
        let document = std::slice::from_ref(&self.document);
        let set = self.grid.set_kept(layer, kept, document);
        set.expect("a layer that fits");
    }
}

/// Whether `spec` forgot anything during its answer. Its log, replayed from the map before the answer, must give the map
/// after it.
fn forgets(engine: &Engine, document: &Document, spec: &str, streaming: Streaming) -> bool {
    let mut filling = Filling {
        engine,
        text: &document.text,
        document: 0..0,
        grid: MapGrid::new(0, 0, Vec::new()),
        before: Vec::new(),
    };
    let method = spec.parse::<MethodSpec>().expect(spec);
    let ask = Ask {
        budget: Some(Budget::Rows(72)),
        sampling: &Sampling {
            temperature: 1.0,
            ..Sampling::default()
        },
        max_tokens: 48,
        limits: Limits::from(streaming),
        ..Ask::new(document, "When are the nets mended?", &method)
    };
    let answer = engine.ask(&ask, &mut |event| filling.receive(event), &Stop::new());
    let answer = answer.unwrap_or_else(|error| panic!("{spec}: {error}"));
    let counts = answer.map.counts();
    let before: Vec<u32> = filling.before.iter().map(|&count| count.into()).collect();
    assert_eq!(counts[answer.prompt.document.clone()], before, "{spec}");

    let log = &answer.evictions;
    let mut replayed = before.clone();
    for one in log.evicted() {
        assert!(one.step < log.tokens() && log.every() == 1, "{spec}");
        let left = replayed[one.token as usize].checked_sub(one.holders);
        replayed[one.token as usize] = left.expect("no more than was there");
    }
    let after = filling.grid.counts(None).into_iter().map(u32::from);
    assert_eq!(replayed, after.collect::<Vec<u32>>(), "{spec}");
    !log.is_empty()
}

#[test]
fn the_log_of_every_method_leads_from_the_first_map_to_the_last() {
    let text = "The nets are mended in the morning, and the boats are tarred at noon. ".repeat(9);
    let document = Document::from_bytes("notes.txt", text.into_bytes()).expect("a document");
    let (mut forgetful, mut streamed) = (BTreeSet::new(), BTreeSet::new());
    for arch in ["qwen2", "gemma3"] {
        let file = golden::Unpacked::architecture(arch);
        let engine = Engine::open(&file.path()).expect("a tiny model");
        for info in methods() {
            if forgets(&engine, &document, info.name, Streaming::Off) {
                forgetful.insert(info.name);
            }
            let capped = info.parameters.iter().any(|p| p.name == "decode_cap");
            if capped {
                let spec = format!("{}[decode_cap=72,decode_every=8]", info.name);
                assert!(forgets(&engine, &document, &spec, Streaming::Off), "{spec}");
            }
        }
        for name in STREAMING {
            if forgets(&engine, &document, name, Streaming::On) {
                streamed.insert(name);
            }
        }
    }
    let evicting = [
        "streaming_llm",
        "h2o",
        "tova",
        "scissorhands",
        "treekv",
        "ems",
    ];
    assert_eq!(forgetful, BTreeSet::from(evicting));
    assert_eq!(streamed, BTreeSet::from(STREAMING));
}
