//! Every method with every parameter at and beyond the edges of its range: an answer, or a sentence that names the value
//! and the range; never a panic.

use kept_engine::documents::Document;
use kept_engine::kernels::Stop;
use kept_engine::policies::{Budget, MethodInfo, PolicyError, build, methods};
use kept_engine::{Ask, Engine, EngineError, Limits, MethodSpec, Streaming};
use kept_tests::golden::repository;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

/// Values for any parameter, in and out of its range; a parameter's own words come on top.
const VALUES: [&str; 36] = [
    "0",
    "1",
    "2",
    "3",
    "4",
    "7",
    "8",
    "31",
    "33",
    "64",
    "65",
    "255",
    "300",
    "1023",
    "1024",
    "32768",
    "32769",
    "65536",
    "16777216",
    "16777217",
    "4294967296",
    "18446744073709551615",
    "-1",
    "0.5",
    "0.999",
    "1.2",
    "-1000000",
    "1000000",
    "1000001",
    "1e308",
    "1e-300",
    "nan",
    "inf",
    "1+8",
    "0.5+0.5",
    "words",
];

/// Lengths of documents in words, which are about tokens.
const LENGTHS: [usize; 12] = [0, 1, 2, 3, 7, 8, 9, 31, 32, 64, 150, 300];

#[derive(Debug, Clone)]
struct Drawn {
    method: usize,
    /// Parameter and value, each modulo what there is.
    set: Vec<(usize, usize)>,
    words: usize,
    budget: Option<Budget>,
    max_tokens: usize,
    streaming: Streaming,
}

fn budgets() -> impl Strategy<Value = Option<Budget>> {
    let rows = prop::sample::select(vec![1, 2, 5, 9, 40, 64, 299, 300, 301, 1 << 30, usize::MAX]);
    let share = prop::sample::select(vec![1e-9, 0.01, 0.25, 0.999, 1.0]);
    let bytes = prop::sample::select(vec![1, 4096, 1 << 16, 1 << 20, 1 << 40, u64::MAX]);
    prop_oneof![
        Just(None),
        rows.prop_map(|rows| Some(Budget::Rows(rows))),
        (1..320usize).prop_map(|rows| Some(Budget::Rows(rows))),
        share.prop_map(|share| Some(Budget::Share(share))),
        bytes.prop_map(|bytes| Some(Budget::Bytes(bytes))),
    ]
}

fn drawn() -> impl Strategy<Value = Drawn> {
    let words = prop_oneof![prop::sample::select(LENGTHS.to_vec()), 0..300usize];
    let streaming = prop_oneof![Just(Streaming::Auto), Just(Streaming::On)];
    let set = prop::collection::vec((any::<usize>(), any::<usize>()), 0..5);
    let max_tokens = prop::sample::select(vec![1usize, 2, 20, 40]);
    let method = 0..methods().len();
    (method, set, words, budgets(), max_tokens, streaming).prop_map(
        |(method, set, words, budget, max_tokens, streaming)| Drawn {
            method,
            set,
            words,
            budget,
            max_tokens,
            streaming,
        },
    )
}

/// All values that are tried for a parameter with this range.
fn values(range: &'static str) -> Vec<&'static str> {
    let words = range.split(|c: char| !(c.is_alphanumeric() || c == '_'));
    VALUES
        .into_iter()
        .chain(words.filter(|w| !w.is_empty()))
        .collect()
}

impl Drawn {
    fn info(&self) -> &'static MethodInfo {
        &methods()[self.method]
    }

    /// The parameters as drawn. Those of an unbuildable combination are tried one by one elsewhere.
    fn parameters(&self) -> Vec<(String, String)> {
        let known = self.info().parameters;
        let pick = |&(parameter, value): &(usize, usize)| {
            let parameter = known.get(parameter % known.len().max(1))?;
            let values = values(parameter.range);
            Some((
                parameter.name.to_owned(),
                values[value % values.len()].to_owned(),
            ))
        };
        // A value out of its range would end the case before the method runs.
        let allowed =
            |set: &(String, String)| (self.info().build)(std::slice::from_ref(set)).is_ok();
        self.set.iter().filter_map(pick).filter(allowed).collect()
    }
}

/// What a refusal must not look like.
fn is_a_sentence(error: &EngineError) -> bool {
    let text = error.to_string();
    text.len() > 20 && !text.contains("overflow") && !text.contains("panicked")
}

#[test]
fn any_parameters_give_an_answer_or_a_sentence() {
    let engine =
        Engine::open(&repository().join("assets/mini.gguf")).expect("the built-in model opens");
    let text = std::fs::read_to_string(repository().join("assets/sample.txt")).expect("the sample");
    let words: Vec<&str> = text.split_inclusive(' ').collect();
    let config = ProptestConfig {
        cases: 600,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let result = TestRunner::new(config).run(&drawn(), |drawn| {
        let text = words[..drawn.words.min(words.len())].concat();
        let document = match text.trim() {
            "" => Document::empty(),
            _ => Document::from_bytes("some.txt", text.into_bytes()).expect("a text"),
        };
        let method = MethodSpec {
            name: drawn.info().name.to_owned(),
            parameters: drawn.parameters(),
        };
        let asked = Ask {
            budget: drawn.budget,
            max_tokens: drawn.max_tokens,
            limits: Limits::from(drawn.streaming),
            ..Ask::new(&document, "Who?", &method)
        };
        if let Err(error) = engine.ask(&asked, &mut |_| (), &Stop::new()) {
            prop_assert!(is_a_sentence(&error), "{:?}: {error}", method);
        }
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn a_value_out_of_range_is_refused_with_value_and_range() {
    let mut refused = 0;
    for info in methods() {
        for parameter in info.parameters {
            for value in values(parameter.range) {
                let set = [(parameter.name.to_owned(), value.to_owned())];
                let Err(error) = build(info.name, &set) else {
                    continue;
                };
                refused += 1;
                let text = error.to_string();
                let named = text.contains(&format!("{}={value}", parameter.name));
                assert!(named, "{}: {text}", info.name);
                if let PolicyError::Value { range, .. } = error {
                    assert!(text.contains(range), "{}: {text}", info.name);
                }
            }
        }
    }
    assert!(refused > 1000, "only {refused} values were refused");
}
