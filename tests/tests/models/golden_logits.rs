//! Logits of whole prompts against `transformers`, through `kept logits` and through the engine step by step.

use kept_engine::policies::build;
use kept_tests::compare::{apart, assert_same};
use kept_tests::engine::{open, read_and_step};
use kept_tests::golden::{self, MODELS, Tensors};
use kept_tests::terminal::kept;

/// Largest error of a logit, relative to the largest of its row. The reference uses the same dequantised weights in
/// f32, so the rest is arithmetic: F16 and Q8_0 kernels also round the activations (llama.cpp's do too, with errors of
/// 2e-3 and 6e-2 on these models).
fn bound(stem: &str) -> f32 {
    match stem {
        _ if stem.ends_with("q8_0") => 1e-1,
        _ if stem.ends_with("f16") => 3e-3,
        _ => 1e-4,
    }
}

fn logits_of(stem: &str, ids: &[u32]) -> Vec<Vec<f32>> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let output = folder.path().join("logits.safetensors");
    let tokens = ids.iter().map(u32::to_string).collect::<Vec<_>>();
    kept([
        "logits".as_ref(),
        "--model".as_ref(),
        golden::model(stem).as_os_str(),
        "--tokens".as_ref(),
        tokens.join(",").as_ref(),
        "--output".as_ref(),
        output.as_os_str(),
    ])
    .succeeded();
    Tensors::read(&output).rows("logits")
}

fn assert_golden(stem: &str, prefix: &str) {
    let tensors = Tensors::golden(stem);
    let name = |what: &str| format!("{prefix}{what}");
    let ids = tensors.whole(&name("ids"));
    let found = logits_of(stem, &ids);
    assert_eq!(found.len(), ids.len(), "a row per token");
    let rows = tensors.whole(&name("rows"));
    for (&row, reference) in rows.iter().zip(&tensors.rows(&name("logits"))) {
        let what = format!("{stem} row {row} of {}", ids.len());
        assert_same(&found[row as usize], reference, bound(stem), &what);
    }
}

#[test]
fn kept_logits_equals_transformers() {
    for stem in MODELS {
        assert_golden(stem, "");
    }
}

#[test]
fn kept_logits_equals_transformers_over_several_chunks() {
    assert_golden("group2-llama3-tied", "long_");
}

/// Decode step by step equals prefill: no earlier token is lost or moved.
#[test]
fn decode_steps_equal_prefill() {
    for stem in MODELS {
        let (tensors, model) = (Tensors::golden(stem), open(&golden::model(stem)));
        let (ids, rows) = (tensors.whole("ids"), tensors.whole("rows"));
        let reference = tensors.rows("logits");
        let prompt = 41;
        let built = build("full", &[]).expect("full");
        let stepped =
            read_and_step(&model, &*built, 512, 16, &ids[..prompt], &ids[prompt..]).logits;
        for (row, reference) in rows.iter().zip(&reference) {
            if let Some(step) = (*row as usize + 1).checked_sub(prompt) {
                let what = format!("{stem} row {row}, step {step}");
                assert_same(&stepped[step], reference, bound(stem), &what);
            }
        }
    }
}

/// The result does not depend on the prefill chunk size.
#[test]
fn logits_do_not_depend_on_the_chunk_size() {
    let stem = "group4-linear-untied";
    let model = open(&golden::model(stem));
    let ids = Tensors::golden(stem).whole("ids");
    let last = |chunk: usize| {
        let built = build("full", &[]).expect("full");
        read_and_step(&model, &*built, 512, chunk, &ids, &[])
            .logits
            .remove(0)
    };
    let whole = last(512);
    for chunk in [1, 2, 31, 64, 95, 96] {
        let apart = apart(&last(chunk), &whole);
        assert!(apart < 1e-5, "chunks of {chunk}: {apart:.1e}");
    }
}
