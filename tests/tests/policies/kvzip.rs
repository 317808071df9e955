//! KVzip: its scores and shares against numpy, its rows against kvpress, its reconstruction pass against transformers,
//! and the independence of its selection from the question. `golden/kvzip.py` and `golden/kvpress_kvzip.py` generate
//! the files.

use kept_engine::kernels::Stop;
use kept_engine::models::{Model, RopeTable};
use kept_engine::policies::{Parameters, build};
use kept_engine::{Decoder, EngineError, Prefill};
use kept_tests::cases::{Case, ranges};
use kept_tests::compare::assert_same;
use kept_tests::engine::{TokenPrompt, open, read_document_and_step};
use kept_tests::golden::{self, Tensors};
use kept_tests::selecting::{Measured, kept};

/// Relative to the largest logit of a row.
const BOUND: f32 = 1e-4;

#[test]
fn drawn_cases_are_kept_as_numpy_keeps_them() {
    let cases = golden::packed("selections/kvzip.json.gz");
    let cases = cases.as_array().expect("a list of cases");
    assert!(cases.len() >= 500, "{} cases", cases.len());
    let (mut ties, mut untouched, mut ragged, mut bare, mut groups) = (0, 0, 0, 0, [0; 8]);
    for value in cases {
        let case = Case::from_json(value);
        for measured in [Measured::Slowly, Measured::ByKernel] {
            let found = kept(&case, measured);
            assert_eq!(found, case.kept, "{measured:?}: {}", case.describe());
        }
        ties += usize::from(!value["repeat"].is_null());
        untouched += usize::from(case.budget >= case.n);
        ragged += usize::from(
            case.kept
                .iter()
                .any(|head| head.len() != case.kept[0].len()),
        );
        bare += usize::from(case.set.contains(&("sinks".to_owned(), "0".to_owned())));
        groups[case.q_heads / case.kv_heads] += 1;
    }
    assert!(ties >= 100, "{ties} cases with ties");
    assert!(untouched >= 50, "{untouched} budgets that hold everything");
    assert!(ragged >= 100, "{ragged} cases whose heads differ");
    assert!(bare >= 100, "{bare} cases without sinks");
    assert!([1, 2, 4, 7].into_iter().all(|group| groups[group] >= 50));
}

struct Ask<'a> {
    model: &'a Model,
    set: &'a str,
    budget: usize,
    chunk: usize,
}

impl Ask<'_> {
    /// `[layer][kv head]` positions, and logits after the prompt and after each of `steps`.
    fn read(&self, ids: &[u32], document: std::ops::Range<usize>, steps: &[u32]) -> Read {
        let set = Parameters::parse_assignments(self.set).expect("parameters");
        let method = build("kvzip", &set).expect("kvzip");
        let prompt = TokenPrompt {
            ids,
            document: Some(document),
        };
        let found =
            read_document_and_step(self.model, &*method, self.budget, self.chunk, prompt, steps);
        Read {
            kept: found.kept,
            logits: found.logits,
        }
    }
}

struct Read {
    kept: Vec<Vec<Vec<u32>>>,
    logits: Vec<Vec<f32>>,
}

#[test]
fn rows_and_logits_are_those_of_kvpress() {
    let cases = golden::json("kvpress_kvzip.json");
    let tensors = Tensors::golden("kvpress_kvzip");
    let cases = cases.as_array().expect("a list of cases");
    assert!(cases.len() >= 15);
    for case in cases {
        let text = |name: &str| case[name].as_str().expect(name);
        let number = |name: &str| case[name].as_u64().expect(name) as usize;
        let (stem, name) = (text("model"), text("case"));
        let logits = tensors.rows(&format!("{stem}.{name}"));
        let ids = tensors.whole(&format!("{stem}.ids"));
        let (prompt, steps) = ids.split_at(128);
        let model = open(&golden::model(stem));
        let ask = Ask {
            model: &model,
            set: text("set"),
            budget: number("budget"),
            chunk: 512,
        };
        let steps = &steps[..logits.len() - 1];
        let found = ask.read(prompt, number("before")..128, steps);
        let layers = case["kept"].as_array().expect("layers").iter();
        let heads = |layer: &serde_json::Value| -> Vec<Vec<u32>> {
            let heads = layer.as_array().expect("heads").iter();
            heads
                .map(|head| ranges(head.as_str().expect("ranges")))
                .collect()
        };
        let expected: Vec<Vec<Vec<u32>>> = layers.map(heads).collect();
        assert_eq!(found.kept, expected, "{stem} {name}");
        for (step, (row, reference)) in found.logits.iter().zip(&logits).enumerate() {
            let what = format!("{stem} {name}, step {step}");
            assert_same(row, reference, BOUND, &what);
        }
    }
}

/// The reconstruction pass equals the model with each chunk's repetition placed directly after the document.
#[test]
fn the_repetition_is_read_as_if_behind_the_document() {
    let tensors = Tensors::golden("kvpress_kvzip");
    let cases = golden::json("kvpress_kvzip.json");
    let before = cases[0]["before"].as_u64().expect("before") as usize;
    for stem in [
        "group1-plain-tied",
        "group2-llama3-tied",
        "group4-linear-untied",
    ] {
        let model = open(&golden::model(stem));
        let mut ids = tensors.whole(&format!("{stem}.ids"));
        ids.truncate(128);
        // A question after the document, which the reconstruction must not attend to.
        ids.extend([70, 71, 72, 73, 74, 75]);
        let expected = tensors.rows(&format!("{stem}.repeat_logits"));
        for (set, chunk) in [("chunk=40", 512), ("chunk=40,spread=model", 19)] {
            let set = Parameters::parse_assignments(set).expect("parameters");
            let method = build("kvzip", &set).expect("kvzip");
            let rope = RopeTable::new(model.config(), ids.len());
            let mut prefill =
                Prefill::new(&model, &ids, &*method, 48, 0, &rope).with_document(before..128);
            prefill.every_row = true;
            prefill.chunk = chunk;
            let outcome = prefill.run(&mut |_| (), &Stop::new()).expect("it is read");
            let repeated = outcome.repeated.expect("a repetition");
            assert_eq!(repeated.ids, tensors.whole(&format!("{stem}.repeat_ids")));
            assert_eq!(repeated.segments.len(), (128 - before).div_ceil(40));
            let width = model.config().width;
            assert_eq!(repeated.hidden.len(), repeated.ids.len() * width);
            let mut decoder =
                Decoder::new(&model, &rope, outcome.evictor, outcome.cache).expect("memory");
            let rows = repeated.hidden.chunks_exact(width).step_by(7);
            assert_eq!(rows.len(), expected.len());
            for (row, (hidden, reference)) in rows.zip(&expected).enumerate() {
                let what = format!("{stem} row {}", 7 * row);
                assert_same(
                    decoder.logits_of(hidden).expect("logits"),
                    reference,
                    BOUND,
                    &what,
                );
            }
        }
    }
}

fn prompt(model: &Model, question: &[u32]) -> (Vec<u32>, std::ops::Range<usize>) {
    let usable = model.config().vocab as u32 - 3;
    let drawn = |i: u32| 3 + (i * i + i * 37 + 11) % usable;
    let mut ids: Vec<u32> = vec![1, 50, 51];
    ids.extend((0..140).map(drawn));
    let document = 3..ids.len();
    ids.extend_from_slice(question);
    (ids, document)
}

/// The kept part of the document does not depend on the question's words; its length matters only through the rows that
/// the question occupies.
#[test]
fn no_question_changes_what_is_kept_of_the_document() {
    let model = open(&golden::model("group2-llama3-tied"));
    let of_document = |question: &[u32], budget: usize, set: &str| {
        let (ids, document) = prompt(&model, question);
        let ask = Ask {
            model: &model,
            set,
            budget,
            chunk: 64,
        };
        let mut read = ask.read(&ids, document.clone(), &[]);
        for head in read.kept.iter_mut().flatten() {
            let after = head.split_off(head.partition_point(|&p| (p as usize) < document.end));
            let question = document.end as u32..ids.len() as u32;
            assert!(
                after.iter().copied().eq(question),
                "the question stays whole"
            );
            assert!(
                head.starts_with(&[0, 1, 2, 3]),
                "and so does what is before the document"
            );
        }
        read.kept
    };
    let (one, other) = ([60, 61, 62, 63, 64], [200, 90, 10, 77, 130]);
    let longer = [9, 8, 7, 60, 61, 62, 63, 64, 99, 98, 97, 96];
    for set in ["", "spread=head,chunk=30", "spread=model,chunk=30"] {
        let first = of_document(&one, 48, set);
        assert_eq!(of_document(&other, 48, set), first, "{set}");
        assert_eq!(of_document(&longer, 48 + 7, set), first, "{set}");
        assert_ne!(of_document(&one, 49, set), first, "{set}: rows are used");
    }
}

#[test]
fn the_chunk_of_reading_changes_nothing() {
    let model = open(&golden::model("group4-linear-untied"));
    let (ids, document) = prompt(&model, &[60, 61, 62]);
    for set in ["", "chunk=33,spread=model"] {
        let read = |chunk| {
            let ask = Ask {
                model: &model,
                set,
                budget: 48,
                chunk,
            };
            ask.read(&ids, document.clone(), &[20, 21, 22])
        };
        let whole = read(512);
        for chunk in [1, 7, 64] {
            let found = read(chunk);
            assert_eq!(found.kept, whole.kept, "{set}, chunks of {chunk}");
            for (row, reference) in found.logits.iter().zip(&whole.logits) {
                assert_same(row, reference, 1e-5, &format!("{set}, chunks of {chunk}"));
            }
        }
    }
}

/// A document longer than half of the context length is reconstructed in smaller chunks; an explicit chunk size is not
/// reduced.
#[test]
fn a_repetition_ends_where_the_model_does() {
    let model = open(&golden::model("group1-plain-tied"));
    assert_eq!(model.config().context, 512);
    let ids: Vec<u32> = (0..300).map(|i| 3 + i * 7 % 300).collect();
    let rope = RopeTable::new(model.config(), ids.len());
    let run = |ids: &[u32], set: &str| {
        let set = Parameters::parse_assignments(set).expect("parameters");
        let method = build("kvzip", &set).expect("kvzip");
        let mut prefill = Prefill::new(&model, ids, &*method, 64, 0, &rope);
        prefill.every_row = true;
        let outcome = prefill.run(&mut |_| (), &Stop::new());
        outcome.map(|outcome| {
            let repeated = outcome.repeated.expect("a repetition");
            (repeated.segments, outcome.notes)
        })
    };
    let (segments, notes) = run(&ids, "").expect("it is read");
    assert!(segments.len() > 1, "not at once: {segments:?}");
    let longest = segments.iter().map(|s| s.rows.len()).max().unwrap_or(0);
    assert!(300 + longest <= 512, "{segments:?}");
    assert_eq!(segments.last().map(|s| s.chunk.end), Some(300));
    assert!(notes[0].to_string().contains("read again"), "{notes:?}");
    let error = run(&ids, "chunk=250").expect_err("refused");
    assert!(matches!(error, EngineError::TooLongToRepeat { .. }));
    let (said, most) = (error.to_string(), segments[0].chunk.len());
    assert!(said.contains(&format!("set chunk to {most}")), "{said}");
    assert!(run(&ids, &format!("chunk={most}")).is_ok());
}
