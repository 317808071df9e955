//! A document is read once: what a later question makes of its vault is, to the bit, what a first reading would have made of it.

use kept_engine::kernels::PackedRows;
use kept_engine::models::Model;
use kept_tests::engine::open;
use kept_tests::golden::{self, Unpacked};
use kept_tests::vaults::{Case, Place, tokens};

/// Methods by what they look at: windows shorter and longer than a question, sums over all tokens, keys and values, keys before
/// RoPE, expected queries, a repetition; shares by layer and by head; merged and re-assigned rows.
const METHODS: &[(&str, &str, usize)] = &[
    ("full", "", 400),
    ("streaming_llm", "", 40),
    ("streaming_llm", "positions=reassigned", 40),
    ("snapkv", "w=8", 40),
    ("snapkv", "w=60", 90),
    ("snapkv", "w=8", 400),
    ("pyramidkv", "w=8", 60),
    ("adakv", "", 60),
    ("adakv", "base=h2o", 60),
    ("chunkkv", "reuse=2", 60),
    ("hbw_kv", "w=10", 60),
    ("tova", "", 40),
    ("scissorhands", "", 60),
    ("scissorhands", "history=70", 60),
    ("pyramidinfer", "variant=budgeted", 60),
    ("h2o", "", 40),
    ("h2o", "", 400),
    ("ems", "", 60),
    ("ems", "positions=reassigned,w=40", 60),
    ("treekv", "", 60),
    ("cam", "base=h2o", 60),
    ("keydiff", "", 60),
    ("expected_attention", "", 60),
    ("expected_attention", "covariance=false", 60),
    ("kvzip", "chunk=50", 80),
    ("kvzip", "chunk=50,spread=model", 80),
];

fn case(model: &Model, document: usize, rest: usize, salt: u32) -> Case {
    let vocab = model.config().vocab;
    Case {
        prefix: tokens(document, 5, vocab),
        before: 5,
        rest: tokens(rest, 100 + salt, vocab),
        method: ("full", String::new()),
        budget: 0,
        chunk: 64,
    }
}

/// A first reading, then two more questions on what it left: each is a first reading of its own.
#[track_caller]
fn asked_three_times(model: &Model, first: &Case, later: &[Case], what: &str) {
    let place = Place::default();
    let (_, used, notes) = first
        .read(model, Some(&place), PackedRows::F16)
        .unwrap_or_else(|e| panic!("{what}: {e}"));
    let used = used.expect("vaults are allowed");
    assert!(!used.used && used.written, "{what}: {used:?} {notes:?}");
    for case in later {
        let fresh = Place::default();
        let (expected, ..) = (case.read(model, Some(&fresh), PackedRows::F16)).expect("a reading");
        let (found, used, notes) =
            (case.read(model, Some(&place), PackedRows::F16)).expect("a question");
        let used = used.expect("vaults are allowed");
        assert_eq!(
            used.tokens_from_vault,
            case.prefix.len(),
            "{what}: {used:?} {notes:?}"
        );
        assert!(!used.written, "{what}: {notes:?}");
        assert!(used.tokens_read <= 2 * case.rest.len(), "{what}: {used:?}");
        assert_eq!(found.map, expected.map, "{what}: other rows");
        assert!(found.logits == expected.logits, "{what}: other logits");
    }
}

fn methods_on(model: &Model, name: &str, documents: &[usize]) {
    for &(method, set, budget) in METHODS {
        for &document in documents {
            let with = |case: Case| Case {
                method: (method, set.to_owned()),
                budget,
                ..case
            };
            let first = with(case(model, document, 14, 0));
            let later = [
                with(case(model, document, 9, 1)),
                with(case(model, document, 70, 2)),
            ];
            let what = format!("{name}, {method} {set} at {budget}, {document} tokens");
            asked_three_times(model, &first, &later, &what);
        }
    }
}

/// Chunks of 64 end before, on and behind the document's end.
#[test]
fn a_later_question_is_a_first_reading_to_the_bit() {
    for stem in ["group2-llama3-tied", "group4-linear-untied"] {
        methods_on(&open(&golden::model(stem)), stem, &[128, 150]);
    }
}

#[test]
fn so_it_is_where_layers_have_windows() {
    for stem in ["gemma3", "gemma2"] {
        let file = Unpacked::architecture(stem);
        methods_on(&open(&file.path()), stem, &[150]);
    }
}

#[test]
fn so_it_is_under_every_architecture_and_type_of_weights() {
    let names = ["qwen2", "qwen3", "phi-4-mini", "smollm3", "llama-bias-yarn"];
    let files = names.map(Unpacked::architecture);
    let stems = ["group2-plain-f16", "group4-plain-q8_0", "group1-plain-tied"];
    let paths = (files.iter().map(Unpacked::path)).chain(stems.map(golden::model));
    for path in paths {
        let model = open(&path);
        for (method, set, budget) in [("snapkv", "w=8", 40), ("h2o", "", 40)] {
            let with = |case: Case| Case {
                method: (method, set.to_owned()),
                budget,
                ..case
            };
            let first = with(case(&model, 140, 14, 0));
            let later = [with(case(&model, 140, 20, 1))];
            let what = format!("{}, {method}", path.display());
            asked_three_times(&model, &first, &later, &what);
        }
    }
}
