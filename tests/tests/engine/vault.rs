//! A document is read once: a later question's result from its vault equals a first reading bit for bit.

use kept_engine::kernels::PackedRows;
use kept_engine::models::{Model, RopeTable};
use kept_engine::{LayerRetention, Prompt};
use kept_eval::fidelity::{kl_divergence, same_top};
use kept_tests::engine::open;
use kept_tests::gguf_edit::GgufEdit;
use kept_tests::golden::{self, Unpacked};
use kept_tests::method_spec::{TestMethod, spec};
use kept_tests::vaults::{Case, Place, tokens};

/// Methods by measurement: observation windows shorter and longer than a question, sums over all tokens, keys and
/// values, keys before RoPE, expected queries, a reconstruction; budgets shared by layer and by head; merged rows and
/// re-assigned positions.
const METHODS: &[TestMethod] = &[
    spec("full", "", 400),
    spec("streaming_llm", "", 40),
    spec("streaming_llm", "positions=reassigned", 40),
    spec("snapkv", "w=8", 40),
    spec("snapkv", "w=60", 90),
    spec("snapkv", "w=8", 400),
    spec("pyramidkv", "w=8", 60),
    spec("adakv", "", 60),
    spec("adakv", "base=h2o", 60),
    spec("chunkkv", "reuse=2", 60),
    spec("hbw_kv", "w=10", 60),
    spec("tova", "", 40),
    spec("scissorhands", "", 60),
    spec("scissorhands", "history=70", 60),
    spec("pyramidinfer", "variant=budgeted", 60),
    spec("h2o", "", 40),
    spec("h2o", "", 400),
    spec("ems", "", 60),
    spec("ems", "positions=reassigned,w=40", 60),
    spec("treekv", "", 60),
    spec("cam", "base=h2o", 60),
    spec("keydiff", "", 80),
    spec("adakv", "base=keydiff", 80),
    spec("cam", "base=keydiff", 80),
    spec("expected_attention", "", 80),
    spec("expected_attention", "covariance=false", 80),
    spec("expected_attention", "decode_cap=90", 80),
    spec("kvzip", "chunk=50", 80),
    spec("kvzip", "chunk=50,spread=model", 80),
];

/// A first reading, then two more questions on its vault: each equals a first reading of its own.
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
    for &method in METHODS {
        for &document in documents {
            let with = |case: Case| Case { method, ..case };
            let first = with(Case::drawn(model, document, 14, 0));
            let later = [
                with(Case::drawn(model, document, 9, 1)),
                with(Case::drawn(model, document, 70, 2)),
            ];
            let what = format!("{name}, {method:?}, {document} tokens");
            asked_three_times(model, &first, &later, &what);
        }
    }
}

/// Chunks of 64 end before, at and after the document's end.
#[test]
fn vault_answers_equal_a_first_prefill() {
    for stem in ["group2-llama3-tied", "group4-linear-untied"] {
        methods_on(&open(&golden::model(stem)), stem, &[128, 150]);
    }
}

/// Architectures that are tested with every method.
const WINDOWED: [&str; 2] = ["gemma3", "gemma2"];

#[test]
fn vault_answers_equal_a_first_prefill_with_sliding_windows() {
    for stem in WINDOWED {
        let file = Unpacked::architecture(stem);
        methods_on(&open(&file.path()), stem, &[150]);
    }
}

#[test]
fn vault_answers_equal_a_first_prefill_for_every_model() {
    // `vault_answers_equal_a_first_prefill_with_sliding_windows` has the others.
    let stems = golden::ARCHITECTURES.into_iter();
    let stems = stems.filter(|stem| !WINDOWED.contains(stem));
    let files: Vec<Unpacked> = stems.map(Unpacked::architecture).collect();
    let stems = ["group2-plain-f16", "group4-plain-q8_0", "group1-plain-tied"];
    let paths = (files.iter().map(Unpacked::path)).chain(stems.map(golden::model));
    for path in paths {
        let model = open(&path);
        for method in [spec("snapkv", "w=8", 40), spec("h2o", "", 40)] {
            let with = |case: Case| Case { method, ..case };
            let first = with(Case::drawn(&model, 140, 14, 0));
            let later = [with(Case::drawn(&model, 140, 20, 1))];
            let what = format!("{}, {method:?}", path.display());
            asked_three_times(&model, &first, &later, &what);
        }
    }
}

/// Random lengths and chunk sizes.
mod drawn {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

        #[test]
        fn vault_answers_equal_at_any_length_and_chunk_size(
            document in 64usize..330,
            questions in (1usize..90, 1usize..90),
            chunk in 8usize..140,
            before in 0usize..30,
            method in 0..METHODS.len(),
            windows: bool,
        ) {
            let method = METHODS[method];
            // A prompt that fits its budget is kept whole and not measured.
            prop_assume!(document + questions.0.min(questions.1) > method.budget);
            let file = windows.then(|| Unpacked::architecture("gemma3"));
            let model = match &file {
                Some(file) => open(&file.path()),
                None => open(&golden::model("group2-llama3-tied")),
            };
            let with = |rest: usize, salt: u32| Case {
                before,
                chunk,
                method,
                ..Case::drawn(&model, document, rest, salt)
            };
            // A reconstruction and an observation window may need more than this budget.
            prop_assume!(with(questions.0, 0).read(&model, None, PackedRows::F16).is_ok());
            prop_assume!(with(questions.1, 1).read(&model, None, PackedRows::F16).is_ok());
            let what = format!("{method:?}, {document} tokens by {chunk}");
            asked_three_times(&model, &with(questions.0, 0), &[with(questions.1, 1)], &what);
        }
    }
}

/// A measurement that the vault lacks is computed by one more prefill, once, and stored for the next question.
#[test]
fn missing_measurements_are_added_to_the_vault_once() {
    let model = open(&golden::model("group2-llama3-tied"));
    let place = Place::default();
    let ask = |method: TestMethod, salt: u32| {
        let case = Case::under(&model, method, 150, salt);
        let fresh = Place::default();
        let (expected, ..) = case
            .read(&model, Some(&fresh), PackedRows::F16)
            .expect("read");
        let (found, used, notes) = case
            .read(&model, Some(&place), PackedRows::F16)
            .expect("read");
        assert!(found == expected, "{method:?}: other rows or logits");
        (used.expect("vaults are allowed"), notes)
    };
    let (h2o, ems) = (spec("h2o", "", 40), spec("ems", "", 60));
    let kvzip = spec("kvzip", "chunk=50", 80);
    let queries = spec("expected_attention", "", 60);
    let means = spec("expected_attention", "covariance=false", 60);
    assert!(!ask(spec("snapkv", "w=8", 40), 1).0.used);
    for (method, rereads) in [
        (h2o, true),
        (ems, false),
        (queries, true),
        (h2o, false),
        (means, true),
        (queries, false),
    ] {
        let (used, notes) = ask(method, 2);
        assert_eq!(used.used, !rereads, "{method:?}: {notes:?}");
        assert_eq!(used.written, rereads, "{method:?}");
        let says = notes.iter().any(|note| note.contains("was read again"));
        assert_eq!(says, rereads, "{method:?}: {notes:?}");
    }
    // A reconstruction needs rows, which the vault has. The tokens after the document run twice: first to allocate the
    // budget, then to keep their rows.
    let (first, _) = ask(kvzip, 3);
    assert!(
        first.used && first.written && first.tokens_read > 150,
        "{first:?}"
    );
    let (again, notes) = ask(kvzip, 4);
    assert!(
        again.used && !again.written && again.tokens_read == 2 * 15,
        "{again:?} {notes:?}"
    );
    let (other, _) = ask(spec("kvzip", "chunk=70", 80), 5);
    assert!(other.written && other.tokens_read > 150, "{other:?}");
    for method in [kvzip, h2o, queries, means] {
        assert!(!ask(method, 6).0.written, "{method:?}: nothing was lost");
    }
    assert_eq!(place.files().len(), 1);
}

/// Methods with query-agnostic scores keep the same rows of the document for every question, although the first reading
/// scored rows before quantisation, and as many as the question's length leaves.
#[test]
fn query_agnostic_methods_keep_the_same_rows_for_all_questions() {
    let mut alike = 0;
    for stem in ["group2-llama3-tied", "group4-linear-untied"] {
        let model = open(&golden::model(stem));
        for (method, set) in [
            ("keydiff", ""),
            ("keydiff", "recent=9"),
            ("adakv", "base=keydiff"),
            ("cam", "base=expected_attention"),
            ("expected_attention", ""),
            ("expected_attention", "covariance=false,vnorm=false,sinks=7"),
            ("kvzip", "chunk=50"),
            ("snapkv", "w=8"),
        ] {
            let place = Place::default();
            let read = |rest: usize, salt: u32| {
                let case = Case {
                    rest: tokens(rest, 100 + salt, model.config().vocab),
                    ..Case::under(&model, spec(method, set, 80), 300, salt)
                };
                let (found, used, _) =
                    (case.read(&model, Some(&place), PackedRows::Q8_0)).expect("read");
                assert_eq!(used.expect("vaults are allowed").used, salt > 0);
                // The document's rows of all heads and layers.
                let heads = found.map.layers.into_iter().flat_map(|layer| match layer {
                    LayerRetention::Kept(heads) => heads,
                    LayerRetention::Everything => panic!("{method}: nothing was cut"),
                });
                let document = |head: Vec<u32>| head.into_iter().filter(|&p| p < 300).collect();
                heads.map(document).collect::<Vec<Vec<u32>>>()
            };
            let (first, again, longer) = (read(20, 0), read(20, 1), read(45, 2));
            let same = first == again;
            assert_eq!(same, method != "snapkv", "{stem}, {method} {set}");
            alike += usize::from(same);
            // Heads that lose rows to a longer question depend on the budget shares.
            let shares = matches!(method, "adakv" | "snapkv");
            let within = (longer.iter().zip(&first)).all(|(l, f)| l.iter().all(|p| f.contains(p)));
            assert!(shares || within, "{stem}, {method} {set}");
            let fewer = |rows: &[Vec<u32>]| rows.iter().map(Vec::len).sum::<usize>();
            assert!(
                shares || fewer(&longer) < fewer(&first),
                "{stem}, {method} {set}"
            );
        }
    }
    assert_eq!(alike, 14);
}

/// Scores that a vault lacks are computed from its rows: the vault is not copied to add them.
#[test]
fn missing_scores_do_not_rewrite_the_vault() {
    let model = open(&golden::model("group2-llama3-tied"));
    let place = Place::default();
    let ask = |method: &'static str, salt: u32| {
        let case = Case::under(&model, spec(method, "", 60), 150, salt);
        let (found, used, _) = (case.read(&model, Some(&place), PackedRows::Q8_0)).expect("read");
        (found.map, used.expect("vaults are allowed"))
    };
    assert!(ask("snapkv", 0).1.written);
    let ((first, used), (again, _)) = (ask("keydiff", 1), ask("keydiff", 2));
    assert!(used.used && !used.written, "{used:?}");
    assert_eq!(first, again);
}

/// A method that drops tokens between layers can neither use nor create a vault, and a note states it.
#[test]
fn token_dropping_methods_use_no_vault() {
    let model = open(&golden::model("group2-llama3-tied"));
    let place = Place::default();
    let method = spec("pyramidinfer", "variant=faithful", 158);
    let case = Case::under(&model, method, 150, 1);
    let (_, used, notes) = case
        .read(&model, Some(&place), PackedRows::F16)
        .expect("read");
    assert!(used.is_none() && place.files().is_empty(), "{used:?}");
    assert!(
        notes.iter().any(|note| note.contains("drops tokens")),
        "{notes:?}"
    );
}

fn apart(a: &[f32], b: &[f32]) -> f32 {
    let largest = b.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let most = a.iter().zip(b).map(|(x, y)| (x - y).abs());
    most.fold(0.0, f32::max) / largest
}

/// A text that extends a known one is read from the end of the common part; sums over the beginning are continued.
#[test]
fn only_tokens_after_a_known_prefix_are_read() {
    let gemma = Unpacked::architecture("gemma3");
    let models = [
        open(&golden::model("group2-llama3-tied")),
        open(&gemma.path()),
    ];
    for model in &models {
        for method in [
            spec("snapkv", "w=8", 40),
            spec("snapkv", "w=100", 120),
            spec("h2o", "", 40),
            spec("expected_attention", "", 60),
            spec("kvzip", "chunk=50", 80),
        ] {
            let place = Place::default();
            let read = |document: usize, changed: Option<usize>| {
                let mut case = Case::under(model, method, document, 1);
                if let Some(token) = changed {
                    case.prefix[token] += 1;
                }
                let fresh = Place::default();
                let (alone, ..) = (case.read(model, Some(&fresh), PackedRows::F16)).expect("read");
                let (found, used, _) = case
                    .read(model, Some(&place), PackedRows::F16)
                    .expect("read");
                // Other chunks: not bit for bit.
                let off = apart(&found.logits, &alone.logits);
                assert!(off < 1e-3, "{method:?}, {document} tokens: {off}");
                used.expect("vaults are allowed")
            };
            assert_eq!(read(150, None).tokens_from_vault, 0);
            let longer = read(230, None);
            assert!(longer.written, "{method:?}");
            assert_eq!(longer.tokens_from_vault, 150, "{method:?}");
            // Its last tokens changed, as when a word is continued: sums over them are unusable.
            let (grown, sums) = (read(260, Some(228)), ["h2o", "expected_attention"]);
            let known = if sums.contains(&method.name) { 0 } else { 228 };
            assert_eq!(grown.tokens_from_vault, known, "{method:?}");
            // The first text was replaced by the longer one.
            for (document, changed) in [(230, None), (260, Some(228))] {
                let again = read(document, changed);
                assert_eq!(again.tokens_from_vault, document, "{method:?}");
                assert!(!again.written);
            }
            assert_eq!(place.files().len(), 2, "{method:?}");
        }
    }
}

/// For a sliding-window layer a vault has the last rows only. A text that lost its end needs some earlier ones; it is
/// read again, so that its vault is complete and serves the next text that loses its end.
#[test]
fn a_shortened_text_writes_a_complete_vault() {
    let gemma = Unpacked::architecture("gemma3");
    let llama = open(&golden::model("group2-llama3-tied"));
    for (model, windows) in [(open(&gemma.path()), true), (llama, false)] {
        let place = Place::default();
        let read = |document: usize| {
            let case = Case::under(&model, spec("snapkv", "w=8", 40), document, 1);
            let fresh = Place::default();
            let (alone, ..) = (case.read(&model, Some(&fresh), PackedRows::F16)).expect("read");
            let (found, used, _) =
                (case.read(&model, Some(&place), PackedRows::F16)).expect("read");
            let off = apart(&found.logits, &alone.logits);
            assert!(off < 1e-3, "{document} tokens: {off}");
            used.expect("vaults are allowed").tokens_from_vault
        };
        for (document, known) in [(260, 0), (230, 230), (205, 205)] {
            let known = if windows { 0 } else { known };
            assert_eq!(read(document), known, "{document} tokens");
            assert_eq!(read(document), document);
        }
    }
}

/// Results for an extended text equal those of one reading, within the rounding of sums.
#[test]
fn an_extended_text_equals_one_prefill() {
    let model = open(&golden::model("group4-linear-untied"));
    for method in [
        spec("full", "", 1),
        spec("h2o", "", 80),
        spec("expected_attention", "", 90),
    ] {
        let (place, fresh) = (Place::default(), Place::default());
        for document in [90, 150, 210] {
            let case = Case::under(&model, method, document, 2);
            let (found, ..) = case
                .read(&model, Some(&place), PackedRows::F16)
                .expect("read");
            let at_once = Place::default();
            let (expected, ..) = case
                .read(&model, Some(&at_once), PackedRows::F16)
                .expect("read");
            let off = apart(&found.logits, &expected.logits);
            assert!(off < 1e-3, "{method:?}, {document} tokens: {off}");
        }
        drop(fresh);
    }
}

/// Some models rotate long texts differently from short ones: a vault made under one rotation is unusable under the
/// other.
#[test]
fn another_rope_table_has_another_vault() {
    let file = Unpacked::architecture("phi-4-mini");
    let long = 200;
    // The golden model's original context is shorter than the minimum length of a vault.
    let edited =
        GgufEdit::of(&file.path()).number("phi3.rope.scaling.original_context_length", long);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("edited.gguf");
    edited.save(&path);
    let (model, long) = (open(&path), long as usize);
    let place = Place::default();
    let read = |document: usize, rest: usize| {
        let case = Case {
            rest: tokens(rest, 9, model.config().vocab),
            ..Case::under(&model, spec("snapkv", "w=8", 40), document, 1)
        };
        let fresh = Place::default();
        let (expected, ..) = case
            .read(&model, Some(&fresh), PackedRows::F16)
            .expect("read");
        let (found, used, _) = case
            .read(&model, Some(&place), PackedRows::F16)
            .expect("read");
        assert!(found == expected, "{document} and {rest} tokens");
        used.expect("vaults are allowed").tokens_from_vault
    };
    let rotations = |tokens: usize| {
        RopeTable::new(model.config(), tokens)
            .frequencies()
            .to_vec()
    };
    assert_ne!(
        rotations(long),
        rotations(long + 1),
        "the golden model's two sets"
    );
    let document = long - 40;
    assert_eq!(read(document, 20), 0);
    assert_eq!(read(document, 21), document);
    assert_eq!(read(document, 60), 0, "the prompt is long now");
    assert_eq!(read(document, 61), document);
    assert_eq!(
        read(document, 22),
        document,
        "the first vault is still there"
    );
    assert_eq!(place.files().len(), 2);
}

/// With q8_0 a later question attends to quantised rows: the resulting divergence along the answer.
#[test]
fn q8_0_vault_answers_have_a_small_divergence() {
    let model = open(&golden::repository().join("assets/mini.gguf"));
    let vocab = model.config().vocab;
    let sample = golden::repository().join("assets/sample.txt");
    let text = std::fs::read_to_string(sample).expect("the sample");
    for (method, bound) in Q8_0_BOUNDS {
        let place = Place::default();
        let (mut all, mut same) = (Vec::new(), 0);
        for (i, asked) in ASKED.iter().enumerate() {
            let prompt = Prompt::new(&model, &text, asked).expect("a prompt");
            let (prefix, rest) = prompt.ids.split_at(prompt.document.end);
            let case = Case {
                prefix: prefix.to_vec(),
                before: prompt.document.start,
                turns: Vec::new(),
                rest: rest.to_vec(),
                method: spec(method, "", 400),
                chunk: 512,
            };
            let exact = case.answer(&model, None, PackedRows::Q8_0, None);
            let answer = Some(exact.answer.as_slice());
            let found = case.answer(&model, Some(&place), PackedRows::Q8_0, answer);
            if i == 0 {
                continue; // The first reading.
            }
            assert!(found.vault.is_some_and(|vault| vault.used));
            let rows = exact.found.logits.chunks_exact(vocab);
            for (exact, found) in rows.zip(found.found.logits.chunks_exact(vocab)) {
                all.push(kl_divergence(exact, found));
                same += usize::from(same_top(exact, found));
            }
        }
        let (count, most) = (all.len(), all.iter().copied().fold(0.0, f64::max));
        let mean = all.iter().sum::<f64>() / count as f64;
        println!("KL {method}: mean {mean:.1e}, most {most:.1e}, same token {same} of {count}");
        assert!(mean < bound, "{method}: {mean:.1e}");
        assert!(mean > 0.0, "{method}: rounded rows show");
    }
}

const ASKED: [&str; 4] = [
    "What is the locker code of Ann Quorvin?",
    "What is the safe combination of Mira Stolden?",
    "What is the telephone extension of Professor Wexell?",
    "What is the locker code of Ann Quorvin?",
];

/// Mean KL in nats of the next-token distribution, along the exact answer.
const Q8_0_BOUNDS: [(&str, f64); 5] = [
    ("full", 1e-3),
    ("snapkv", 1e-3),
    ("h2o", 1e-3),
    ("ems", 1e-3),
    ("kvzip", 1e-3),
];
