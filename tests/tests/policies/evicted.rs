//! Evicting rows equals full attention with their keys masked: decode steps after selection, against `transformers`
//! with a mask.
//!
//! This test catches any confusion of cache rows with token positions: wrong positions, wrong masks and wrong heads all
//! move these logits far past the bound.

use kept_engine::policies::build;
use kept_tests::compare::{apart, assert_same};
use kept_tests::engine::{Told, open, read_and_step};
use kept_tests::golden::{self, Tensors};

const MODELS: [&str; 2] = ["group2-llama3-tied", "group4-linear-untied"];
/// Relative to the largest logit of a row.
const BOUND: f32 = 1e-4;

struct Golden {
    tensors: Tensors,
    prompt: Vec<u32>,
    steps: Vec<u32>,
}

fn golden(stem: &str) -> Golden {
    let tensors = Tensors::golden(&format!("{stem}.evicted"));
    let mut prompt = tensors.whole("ids");
    let steps = prompt.split_off(tensors.whole("prompt")[0] as usize);
    Golden {
        tensors,
        prompt,
        steps,
    }
}

impl Golden {
    fn kept(&self, case: &str, layers: usize) -> Vec<Vec<Vec<u32>>> {
        (0..layers)
            .map(|layer| self.tensors.whole_rows(&format!("{case}_kept_{layer}")))
            .collect()
    }

    fn assert_steps(&self, found: &[Vec<f32>], case: &str, stem: &str) {
        let expected = self.tensors.rows(&format!("{case}_logits"));
        assert_eq!(found.len(), expected.len());
        for (step, (row, reference)) in found.iter().zip(&expected).enumerate() {
            assert_same(row, reference, BOUND, &format!("{stem} {case} step {step}"));
        }
    }
}

fn set(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    let own = |text: &str| text.to_owned();
    pairs.iter().map(|(a, b)| (own(a), own(b))).collect()
}

#[test]
fn any_set_of_rows_in_every_layer_and_head() {
    for stem in MODELS {
        let (golden, model) = (golden(stem), open(&golden::model(stem)));
        let kept = golden.kept("random", model.config().layers);
        let told = Told(kept.clone());
        for chunk in [512, 17] {
            let found = read_and_step(&model, &told, 24, chunk, &golden.prompt, &golden.steps);
            assert_eq!(found.kept, kept, "{stem}: the cache holds what was told");
            golden.assert_steps(&found.logits, "random", stem);
        }
    }
}

#[test]
fn rows_that_snapkv_keeps() {
    for stem in MODELS {
        let (golden, model) = (golden(stem), open(&golden::model(stem)));
        let parameters = set(&[
            ("w", "8"),
            ("kernel", "5"),
            ("pooling", "max"),
            ("sinks", "4"),
        ]);
        let method = build("snapkv", &parameters).expect("snapkv");
        let found = read_and_step(&model, &*method, 24, 512, &golden.prompt, &golden.steps);
        let kept = golden.kept("snapkv", model.config().layers);
        assert_eq!(found.kept, kept, "{stem}: the oracle keeps the same rows");
        golden.assert_steps(&found.logits, "snapkv", stem);
    }
}

#[test]
fn streaming_llm_with_and_without_new_positions() {
    for stem in MODELS {
        let (golden, model) = (golden(stem), open(&golden::model(stem)));
        for positions in ["original", "reassigned"] {
            let parameters = set(&[("sinks", "4"), ("positions", positions)]);
            let method = build("streaming_llm", &parameters).expect("streaming_llm");
            let found = read_and_step(&model, &*method, 24, 512, &golden.prompt, &golden.steps);
            golden.assert_steps(&found.logits, &format!("streaming_{positions}"), stem);
        }
    }
}

/// With nothing to evict, every method equals the full cache bit for bit.
#[test]
fn a_budget_that_holds_everything_changes_nothing() {
    let stem = MODELS[0];
    let (golden, model) = (golden(stem), open(&golden::model(stem)));
    let n = golden.prompt.len();
    let run = |method: &str, budget: usize| {
        let method = build(method, &[]).expect(method);
        read_and_step(&model, &*method, budget, 512, &golden.prompt, &golden.steps).logits
    };
    let full = run("full", n);
    for budget in [n, n + 1, 10 * n] {
        for method in ["snapkv", "kvzip"] {
            assert_eq!(run(method, budget), full, "{method} at {budget} of {n}");
        }
    }
    let room_for_all = n + golden.steps.len();
    let parameters = set(&[("positions", "original")]);
    let method = build("streaming_llm", &parameters).expect("streaming_llm");
    let streamed = read_and_step(
        &model,
        &*method,
        room_for_all,
        512,
        &golden.prompt,
        &golden.steps,
    );
    assert_eq!(streamed.logits, full, "streaming_llm at {room_for_all}");
}

/// Prefill always uses full attention: the first token does not depend on the selection.
#[test]
fn the_first_token_is_that_of_the_full_cache() {
    let stem = MODELS[1];
    let (golden, model) = (golden(stem), open(&golden::model(stem)));
    let first = |method: &str, parameters: &[(&str, &str)], budget: usize| {
        let method = build(method, &set(parameters)).expect(method);
        read_and_step(&model, &*method, budget, 512, &golden.prompt, &[]).logits
    };
    let full = first("full", &[], golden.prompt.len());
    assert_eq!(first("snapkv", &[("w", "1")], 6), full);
    assert_eq!(first("streaming_llm", &[], 5), full);
    for spread in ["head", "layer", "model"] {
        assert_eq!(first("kvzip", &[("spread", spread)], 6), full, "{spread}");
    }
}

/// The bound is meaningful: one exchanged row in one head of one layer moves the logits past it.
#[test]
fn one_wrong_row_shows() {
    let stem = MODELS[0];
    let (golden, model) = (golden(stem), open(&golden::model(stem)));
    let mut kept = golden.kept("random", model.config().layers);
    let head = &mut kept[1][1];
    let absent = (0..golden.prompt.len() as u32).find(|p| !head.contains(p));
    head[3] = absent.expect("a row that is not kept");
    head.sort_unstable();
    let found = read_and_step(&model, &Told(kept), 24, 512, &golden.prompt, &golden.steps).logits;
    let reference = golden.tensors.rows("random_logits");
    let moved = (1..found.len()).filter(|&i| apart(&found[i], &reference[i]) > BOUND);
    assert!(moved.count() * 2 > found.len(), "most steps notice");
}
