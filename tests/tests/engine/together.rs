//! Several methods on one shared prefill: each result equals that of a separate prefill bit for bit.

use std::sync::Arc;

use kept_engine::documents::Document;
use kept_engine::kernels::Stop;
use kept_engine::models::RopeTable;
use kept_engine::policies::{Budget, Method, Parameters, build, methods};
use kept_engine::{Ask, Decoder, Engine, MethodSpec, Prefill, PrefillOutcome, PromptText};
use kept_tests::golden;

const PROMPT: usize = 150;
const MAX_NEW_TOKENS: usize = 12;

/// Every method at two budgets, and methods with measurements that must not affect the others: keys before RoPE,
/// another observation window, other expected queries.
fn runs() -> Vec<(&'static str, &'static str, usize)> {
    let defaults = methods()
        .iter()
        .flat_map(|m| [(m.name, "", 40), (m.name, "", 90)]);
    let others = [
        ("ems", "positions=reassigned", 40),
        ("ems", "positions=reassigned,w=4", 60),
        ("expected_attention", "future=40,covariance=false", 50),
        ("expected_attention", "future=7", 50),
        ("snapkv", "w=3", 40),
        ("hbw_kv", "norm=prefix", 40),
        ("scissorhands", "history=70", 40),
        ("pyramidinfer", "recent=9", 60),
        ("snapkv", "", PROMPT + 50),
        ("h2o", "", PROMPT + 50),
    ];
    defaults.chain(others).collect()
}

fn built(name: &str, set: &str) -> Arc<dyn Method> {
    build(
        name,
        &Parameters::parse_assignments(set).expect("parameters"),
    )
    .expect("a method")
}

/// Logits after the prompt and after each token of the answer.
fn answered(
    engine: &Engine,
    rope: &RopeTable,
    outcome: PrefillOutcome,
    answer: &[u32],
) -> Vec<f32> {
    let mut decoder =
        Decoder::new(engine.model(), rope, outcome.evictor, outcome.cache).expect("memory");
    let mut logits = decoder.logits_of(&outcome.hidden).expect("logits").to_vec();
    for &token in answer {
        logits.extend_from_slice(decoder.step(token, None).expect("logits"));
    }
    logits
}

#[test]
fn a_shared_prefill_equals_separate_prefills() {
    for stem in ["group2-llama3-tied", "group4-linear-untied"] {
        let engine = Engine::open(&golden::model(stem)).expect("a golden model");
        let model = engine.model();
        let vocab = model.config().vocab as u32 - 3;
        let ids: Vec<u32> = (0..(PROMPT + MAX_NEW_TOKENS) as u32)
            .map(|i| 3 + (i * i + i * 37 + 11) % vocab)
            .collect();
        let (prompt, answer) = ids.split_at(PROMPT);
        let rope = RopeTable::new(model.config(), ids.len());
        let (runs, stop) = (runs(), Stop::new());
        let methods: Vec<_> = runs.iter().map(|(name, set, _)| built(name, set)).collect();
        let prefill =
            |method, budget| Prefill::new(model, prompt, method, budget, MAX_NEW_TOKENS, &rope);
        let prefills = methods.iter().zip(&runs);
        let prefills = prefills.map(|(method, run)| prefill(&**method, run.2));
        let mut prefills: Vec<Prefill<'_>> = prefills.collect();
        // A method that refuses does not stop the others.
        let refusing = built("snapkv", "w=30");
        prefills.insert(3, prefill(&*refusing, 20));
        let mut outcomes = Prefill::run_each(prefills, &mut |_| (), &stop).expect("a reading");
        assert!(outcomes.remove(3).is_err(), "20 rows are no window of 30");
        for ((outcome, method), (name, set, budget)) in outcomes.into_iter().zip(&methods).zip(runs)
        {
            let what = format!("{stem} {name} {set} at {budget}");
            let outcome = outcome.unwrap_or_else(|e| panic!("{what}: {e}"));
            let alone = prefill(&**method, budget);
            let alone = alone.run(&mut |_| (), &stop).expect("a reading");
            assert_eq!(outcome.map, alone.map, "{what}");
            assert_eq!(outcome.plan, alone.plan, "{what}");
            assert_eq!(outcome.cache.kv_bytes(), alone.cache.kv_bytes(), "{what}");
            let found = answered(&engine, &rope, outcome, answer);
            let expected = answered(&engine, &rope, alone, answer);
            assert!(found == expected, "{what}: other logits");
        }
    }
}

#[test]
fn answers_on_a_shared_prefill_equal_separate_answers() {
    let mini = golden::repository().join("assets/mini.gguf");
    let engine = Engine::open(&mini).expect("the built-in model");
    let sample = golden::repository().join("assets/sample.txt");
    let document = Document::open(&sample).expect("the sample");
    let question = "What is the locker code of Ann Quorvin?";
    let run = |name: &str, budget: usize| {
        let method = MethodSpec::plain(name);
        (method, Budget::Rows(budget))
    };
    let names = [
        "full",
        "snapkv",
        "h2o",
        "streaming_llm",
        "ems",
        "keydiff",
        "snapkv",
    ];
    let budgets = [5000, 96, 128, 64, 96, 300, 3];
    let runs: Vec<_> = names.iter().zip(budgets).map(|(n, b)| run(n, b)).collect();
    let text = PromptText::new(&document.text, question);
    let answers = engine
        .ask_each(&text, &runs, 24, None, &mut |_| (), &Stop::new())
        .expect("answers");
    assert_eq!(answers.prefills, 1, "the built-in model is small");
    for ((method, budget), found) in runs.iter().zip(&answers.texts) {
        let ask = Ask {
            budget: Some(*budget),
            max_tokens: 24,
            ..Ask::new(&document, question, method)
        };
        match (engine.ask(&ask, &mut |_| (), &Stop::new()), found) {
            (Ok(alone), Ok(found)) => {
                assert_eq!(alone.text, *found, "{} at {budget}", method.name);
                assert_eq!(alone.prompt.len(), answers.prompt_tokens);
            }
            (Err(alone), Err(found)) => assert_eq!(alone.to_string(), found.to_string()),
            (_, found) => panic!("{} at {budget}: {found:?}", method.name),
        }
    }
    assert!(answers.texts[6].is_err(), "3 rows are refused");
}
