//! Conversations: which turns a model sees, and which of their rows are kept. Their prompts and answers are held
//! against llama.cpp's in `tests/models/real_models.rs`.

use kept_engine::documents::Document;
use kept_engine::kernels::Stop;
use kept_engine::policies::{Budget, methods};
use kept_engine::{
    Answer, Ask, CompactLayer, Engine, EngineError, Event, LayerRetention, Limits, MapGrid,
    MethodSpec, Note, Prompt, PromptText, Streaming, Turn,
};
use kept_tests::golden;

fn engine(model: &str) -> Engine {
    Engine::open(&golden::model(model)).expect("a tiny model")
}

fn document(words: usize) -> Document {
    let text = "The nets are mended in the morning. ".repeat(words.div_ceil(7));
    Document::from_bytes("notes.txt", text.into_bytes()).expect("a document")
}

/// `count` turns of about twenty tokens.
fn turns(count: usize) -> Vec<Turn> {
    let turn = |i| {
        Turn::new(
            &format!("What about net {i}?"),
            "It is mended in the morning.",
        )
    };
    (0..count).filter_map(turn).collect()
}

fn ask(
    engine: &Engine,
    document: &Document,
    turns: &[Turn],
    method: &str,
    budget: usize,
) -> Result<Answer, EngineError> {
    let method = MethodSpec::plain(method);
    let ask = Ask {
        turns,
        budget: Some(Budget::Rows(budget)),
        max_tokens: 4,
        ..Ask::new(document, "And now?", &method)
    };
    engine.ask(&ask, &mut |_| (), &Stop::new())
}

fn left_out(answer: &Answer) -> Option<(usize, Option<usize>)> {
    answer.notes.iter().find_map(|note| match note {
        Note::TurnsLeftOut { turns, context } => Some((*turns, *context)),
        _ => None,
    })
}

/// A budget that goes to instructions, turns and the question leaves nothing of the document, which is said.
#[test]
fn an_answer_without_the_document_says_so() {
    let (engine, document) = (engine("group2-llama3-tied"), document(140));
    let said = |turns: &[Turn], budget| {
        let answer = ask(&engine, &document, turns, "streaming_llm", budget).expect("an answer");
        let map = answer.map.shares();
        let kept: f32 = map[answer.prompt.document.clone()].iter().sum();
        let mut note = answer.notes.into_iter();
        let note = note.find(|note| matches!(note, Note::DocumentForgotten { .. }));
        (note, kept.round() as usize, answer.prompt.document.len())
    };
    for (count, budget) in [(0, 12), (4, 80)] {
        let (note, kept, tokens) = said(&turns(count), budget);
        let turns = count > 0;
        let expected = Note::DocumentForgotten {
            tokens,
            kept,
            turns,
        };
        assert!(kept < 8 && note == Some(expected), "{note:?}, {kept}");
    }
    for (count, budget) in [(0, 80), (4, 400)] {
        let (note, kept, _) = said(&turns(count), budget);
        assert!(kept > 8 && note.is_none(), "{note:?}, {kept}");
    }
}

/// Methods whose scores do not depend on the question: they keep everything behind the document.
const QUERY_AGNOSTIC: [&str; 5] = ["keydiff", "knorm", "kvzip", "expected_attention", "random"];

/// A quarter of 640 rows.
const SHARE: usize = 160;

/// Every layer and head keeps the turns that fit into the share whole; at least one does.
fn keeps_newest_turns(method: &str, answer: &Answer) {
    let prompt = &answer.prompt;
    let fits = |turn: &&std::ops::Range<usize>| prompt.len() - turn.start <= SHARE;
    let newest = prompt.turns.iter().find(fits).expect("one turn fits");
    for layer in answer.map.compressed_layers() {
        let LayerRetention::Kept(heads) = layer else {
            panic!("{method} keeps everything");
        };
        for kept in heads {
            let whole = (newest.start..prompt.len()).all(|p| kept.contains(&(p as u32)));
            assert!(whole, "{method}: {newest:?} of {kept:?}");
        }
    }
}

#[test]
fn newest_turns_are_kept_whole_within_a_quarter_of_the_budget() {
    let engine = engine("group2-llama3-tied");
    let (document, turns) = (document(600), turns(6));
    let methods = [
        "snapkv",
        "pyramidkv",
        "chunkkv",
        "hbw_kv",
        "h2o",
        "tova",
        "scissorhands",
        "ems",
        "adakv",
        "pyramidinfer",
    ];
    for method in methods {
        let answer = ask(&engine, &document, &turns, method, 4 * SHARE).expect(method);
        assert_eq!(answer.prompt.turns.len(), 6, "{method}");
        assert!(answer.prompt.len() - answer.prompt.turns[0].start > SHARE);
        if method != "ems" {
            keeps_newest_turns(method, &answer);
        }
    }
}

/// Without a document the turns compete in its place.
#[test]
fn query_agnostic_methods_see_the_turns_that_fit_a_quarter_of_the_budget() {
    let engine = engine("group2-llama3-tied");
    let (document, turns) = (document(600), turns(12));
    for method in QUERY_AGNOSTIC {
        let answer = ask(&engine, &document, &turns, method, 4 * SHARE).expect(method);
        let seen = answer.prompt.turns.len();
        assert!((1..12).contains(&seen), "{method}: {seen}");
        assert_eq!(left_out(&answer), Some((12 - seen, None)), "{method}");
        keeps_newest_turns(method, &answer);
        let turns = self::turns(16);
        let chat = ask(&engine, &Document::empty(), &turns, method, 4 * SHARE).expect(method);
        assert_eq!((chat.prompt.turns.len(), left_out(&chat)), (16, None));
        assert!(chat.prompt.len() > 4 * SHARE);
        keeps_newest_turns(method, &chat);
    }
}

#[test]
fn auto_passes_over_methods_that_cannot_hold_the_question() {
    let engine = engine("group2-llama3-tied");
    let question = "Which of the nets is mended, and which is not? ".repeat(10);
    let method = MethodSpec::plain("auto");
    let document = document(40);
    let ask = Ask {
        turns: &turns(3),
        budget: Some(Budget::Share(0.25)),
        max_tokens: 4,
        ..Ask::new(&document, &question, &method)
    };
    let answer = engine.ask(&ask, &mut |_| (), &Stop::new());
    let answer = answer.expect("an answer");
    assert!(
        !QUERY_AGNOSTIC.contains(&answer.report.method.as_str()),
        "{}",
        answer.report.method
    );
    assert_eq!(answer.prompt.turns.len(), 3);
}

#[test]
fn thoughts_are_no_part_of_a_turn() {
    let said = |answer: &str| Turn::new(" Why? ", answer).map(|turn| turn.answer);
    assert_eq!(said(" Because. "), Some("Because.".to_owned()));
    assert_eq!(said("<think>hm</think>\n\nNo."), Some("No.".to_owned()));
    // The prompt opened the thought.
    assert_eq!(said("hm</think>No."), Some("No.".to_owned()));
    for nothing in ["", "  ", "<think>hm", "<think>hm</think> "] {
        assert_eq!(said(nothing), None, "{nothing:?}");
    }
}

/// No method refuses a question only because of what was said before.
#[test]
fn turns_that_the_budget_cannot_hold_are_left_out() {
    let engine = engine("group2-llama3-tied");
    let (document, turns) = (document(600), turns(12));
    for info in methods() {
        let alone = ask(&engine, &document, &[], info.name, 60);
        let answer = ask(&engine, &document, &turns, info.name, 60);
        let answer = match (alone, answer) {
            (Err(alone), Err(refusal)) => {
                assert_eq!(alone.to_string(), refusal.to_string(), "{}", info.name);
                continue;
            }
            (_, answer) => answer.unwrap_or_else(|error| panic!("{}: {error}", info.name)),
        };
        let seen = answer.prompt.turns.len();
        let expected = (seen < 12).then_some((12 - seen, None));
        assert_eq!(left_out(&answer), expected, "{}", info.name);
    }
    // A question of more rows than a quarter of the budget competes with the rest.
    for budget in [20, 40, 80] {
        let answer = ask(&engine, &document, &turns, "snapkv", budget).expect("an answer");
        assert_eq!((answer.prompt.turns.len(), left_out(&answer)), (12, None));
    }
}

#[test]
fn turns_beyond_the_context_are_left_out_oldest_first() {
    let engine = engine("group1-plain-tied");
    let context = engine.model().config().context;
    let (document, turns) = (document(100), turns(20));
    let answer = ask(&engine, &document, &turns, "full", 1).expect("an answer");
    let seen = answer.prompt.turns.len();
    assert!((1..20).contains(&seen), "{seen}");
    assert_eq!(left_out(&answer), Some((20 - seen, Some(context))));
    assert!(answer.prompt.len() < context && answer.prompt.turns_left_out == 20 - seen);
    // One turn more does not fit.
    let text = PromptText {
        turns: &turns[20 - seen - 1..],
        max_new_tokens: 4,
        ..PromptText::new(&document.text, "And now?")
    };
    let model = engine.model();
    let longer = Prompt::of(model, &text, &Stop::new()).expect("a prompt");
    assert_eq!((longer.turns.len(), longer.turns_left_out), (seen, 1));
    assert_eq!(longer.ids, answer.prompt.ids);
    // A longer answer leaves fewer tokens for turns.
    let longest = PromptText {
        max_new_tokens: usize::MAX,
        ..text
    };
    let shorter = Prompt::of(model, &longest, &Stop::new()).expect("a prompt");
    assert!(shorter.turns.len() < seen && shorter.len() <= context - context / 8);
    let shown = longer.render(model, &text);
    let shown = shown.expect("a prompt");
    assert!(
        shown.contains("And now?") && !shown.contains("net 0?"),
        "{shown}"
    );
}

#[test]
fn a_conversation_without_a_document_has_a_prompt_of_turns_only() {
    let engine = engine("group2-llama3-tied");
    let answer = ask(&engine, &Document::empty(), &turns(2), "snapkv", 256).expect("an answer");
    let prompt = &answer.prompt;
    assert!(prompt.document.is_empty() && prompt.turns.len() == 2);
    assert!(answer.sources.is_empty());
    let again = ask(&engine, &Document::empty(), &[], "kvzip", 256);
    assert!(again.is_ok(), "there is nothing to repeat");
}

/// Fills the map of the earlier turns.
struct Filling {
    layers: usize,
    kv_heads: usize,
    prompt: Option<Prompt>,
    grid: Option<MapGrid>,
}

impl Filling {
    fn receive(&mut self, event: Event<'_>) {
        match event {
            Event::Prompt(prompt) => self.prompt(prompt),
            Event::Layer { layer, kept } => self.layer(layer, kept),
            _ => {}
        }
    }

    fn prompt(&mut self, prompt: &Prompt) {
        self.grid = Some(prompt.earlier.grid(self.layers, self.kv_heads));
        self.prompt = Some(prompt.clone());
    }

    fn layer(&mut self, layer: usize, kept: &CompactLayer) {
        let positions = &self.prompt.as_ref().expect("a prompt").earlier.positions;
        let grid = self.grid.as_mut().expect("a map");
        grid.set_kept(layer, kept, positions).expect("fits");
    }
}

/// Also in streaming mode, with sliding-window layers, and with the full cache.
#[test]
fn the_map_of_the_earlier_turns_is_that_of_their_positions() {
    let cases = [
        ("group2-llama3-tied", "snapkv", Streaming::Auto),
        ("group2-llama3-tied", "ems", Streaming::Auto),
        ("group2-llama3-tied", "full", Streaming::Auto),
        ("group2-llama3-tied", "treekv", Streaming::On),
        ("gemma3", "tova", Streaming::Auto),
    ];
    let (document, turns) = (document(300), turns(9));
    let gemma = golden::Unpacked::architecture("gemma3");
    for (model, method, streaming) in cases {
        let what = format!("{model} {method}");
        let engine = match model {
            "gemma3" => Engine::open(&gemma.path()).expect("a tiny model"),
            _ => engine(model),
        };
        let config = engine.model().config();
        let mut filling = Filling {
            layers: config.full_layers().count(),
            kv_heads: config.kv_heads,
            prompt: None,
            grid: None,
        };
        let spec = MethodSpec::plain(method);
        let ask = Ask {
            turns: &turns,
            budget: (method != "full").then_some(Budget::Rows(200)),
            max_tokens: 0,
            limits: Limits::from(streaming),
            ..Ask::new(&document, "And now?", &spec)
        };
        let answer = engine.ask(&ask, &mut |event| filling.receive(event), &Stop::new());
        let answer = answer.unwrap_or_else(|error| panic!("{what}: {error}"));
        let (earlier, grid) = (&answer.prompt.earlier, filling.grid.expect("a map"));
        assert_eq!(earlier.turns.len(), answer.prompt.turns.len(), "{what}");
        assert!(!earlier.turns.is_empty(), "{what}");
        let counts = answer.map.counts();
        let own: Vec<u16> = (earlier.positions.iter().cloned().flatten())
            .map(|position| u16::try_from(counts[position]).expect("few slots"))
            .collect();
        assert_eq!(grid.counts(None), own, "{what}");
        assert_eq!(grid.holders(None) as usize, answer.map.holders(), "{what}");
        let whole = own
            .iter()
            .all(|&count| usize::from(count) == answer.map.holders());
        assert_eq!(whole, method == "full", "{what}");
        // Each token is where the prompt has its text.
        let tokenizer = engine.model().tokenizer().expect("a tokenizer");
        let seen = &turns[turns.len() - earlier.turns.len()..];
        for (said, [question, answered]) in seen.iter().zip(&earlier.turns) {
            assert_eq!(earlier.text[question.clone()], said.question, "{what}");
            assert_eq!(earlier.text[answered.clone()], said.answer, "{what}");
        }
        for (position, span) in earlier.spans() {
            let id = answer.prompt.ids[position];
            let token = tokenizer.decode_bytes(id);
            let text = earlier.text[span].trim_start();
            assert!(
                String::from_utf8_lossy(token).contains(text),
                "{what}: {text:?}"
            );
        }
    }
}

#[test]
fn a_question_without_turns_has_no_map_of_them() {
    let engine = engine("group2-llama3-tied");
    let answer = ask(&engine, &document(60), &[], "snapkv", 64).expect("an answer");
    assert_eq!(answer.prompt.earlier, Default::default());
    assert_eq!(answer.prompt.earlier.grid(4, 2).cells(), 0);
}
