//! The same file in llama.cpp: the same greedy tokens, and the same tokens of strings.

use kept_engine::models::Model;
use kept_engine::policies::build;
use kept_tests::compare::{lead, likeliest};
use kept_tests::engine::{open, read_and_step};
use kept_tests::golden::{self, ids};
use kept_tests::terminal::kept;
use serde_json::Value;

/// Tokens that llama.cpp never chooses under `ignore_eos`: `<|endoftext|>` and `<|im_end|>`, in the tiny models
/// and in mini.
const ENDS: [u32; 2] = [0, 2];

/// Below this margin, in nats, a choice may differ between engines with another order of additions. Quantised kernels
/// round activations.
fn close_call(stem: &str) -> f64 {
    match stem {
        _ if stem.ends_with("f16") => 2e-2,
        _ if stem.ends_with("q8_0") => 0.5,
        "mini" => 0.1,
        _ => 1e-3,
    }
}

/// Decodes along llama.cpp's tokens: at each step, Kept's own greedy choice must be the same.
fn assert_greedy(stem: &str, model: &Model, answers: &Value, never: &[u32]) {
    let (mut compared, mut all) = (0, 0);
    for (number, answer) in answers.as_array().expect("answers").iter().enumerate() {
        let (prompt, expected) = (ids(&answer["prompt"]), ids(&answer["ids"]));
        let built = build("full", &[]).expect("full");
        let stepped = read_and_step(model, &*built, 4096, 512, &prompt, &expected);
        for (step, token) in expected.iter().enumerate() {
            let (row, gap) = (&stepped.logits[step], answer["gaps"][step].as_f64());
            all += 1;
            if gap.is_some_and(|gap| gap < close_call(stem)) {
                continue;
            }
            compared += 1;
            assert_eq!(
                likeliest(row, never),
                *token,
                "{stem}, prompt {number}, step {step}: llama.cpp led by {gap:?} nats, Kept by {}",
                lead(row)
            );
        }
        // An end token is the last of the list, and was compared like the others.
        let ends = expected.last().is_some_and(|last| ENDS.contains(last));
        assert_eq!(answer["ended"] == true, ends, "{stem}, prompt {number}");
    }
    assert!(
        4 * compared >= all && compared >= 40,
        "{stem}: {compared} of {all} choices are clear ones"
    );
}

#[test]
fn tiny_models_choose_like_llama_cpp() {
    let answers = golden::json("llama_cpp.json");
    for stem in golden::MODELS {
        assert_greedy(stem, &open(&golden::model(stem)), &answers[stem], &ENDS);
    }
}

fn assert_tokens(model: &Model, text: &str, expected: &[u32]) {
    let found = model.tokenizer().expect("a tokenizer").encode(text);
    assert_eq!(found.ids, expected, "the tokens of {text:?}");
}

#[test]
fn hard_strings_are_tokenized_like_in_llama_cpp() {
    let model = open(&golden::model("group1-plain-tied"));
    let strings = golden::json("strings.json");
    let strings = strings.as_array().expect("strings");
    assert!(strings.len() >= 200);
    for entry in strings {
        assert_tokens(
            &model,
            entry["text"].as_str().expect("a text"),
            &ids(&entry["ids"]),
        );
    }
}

mod mini {
    use super::*;

    fn golden_of_this_model() -> (Model, Value) {
        let path = golden::repository().join("assets/mini.gguf");
        let golden = golden::json("mini.json");
        assert_eq!(
            golden["fingerprint"],
            golden::fingerprint(&path),
            "golden/mini.json is of another assets/mini.gguf: run `make golden`"
        );
        (open(&path), golden)
    }

    #[test]
    fn the_built_in_model_answers_like_in_llama_cpp() {
        let (model, golden) = golden_of_this_model();
        assert_greedy("mini", &model, &golden["greedy"], &[]);
    }

    /// The same through the whole program: document and question as files and flags, with the prompt built by Kept.
    #[test]
    fn kept_ask_answers_like_llama_cpp() {
        let (_, golden) = golden_of_this_model();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("document.txt");
        let mut asked = 0;
        for answer in golden["greedy"].as_array().expect("answers") {
            let (Some(document), Some(question)) =
                (answer["document"].as_str(), answer["question"].as_str())
            else {
                continue;
            };
            std::fs::write(&file, document).expect("the document is written");
            let run = kept([
                "ask".as_ref(),
                "--json".as_ref(),
                "--document".as_ref(),
                file.as_os_str(),
                "--question".as_ref(),
                question.as_ref(),
                "--method".as_ref(),
                "full".as_ref(),
                "--max-tokens".as_ref(),
                "64".as_ref(),
            ]);
            let found = run.json();
            let prompt = answer["prompt"].as_array().expect("a prompt");
            assert_eq!(
                found["prompt_tokens"],
                prompt.len(),
                "the prompt of {question:?}"
            );
            let clear = |gap: &Value| gap.as_f64().is_none_or(|gap| gap >= close_call("mini"));
            if answer["gaps"].as_array().expect("gaps").iter().all(clear) {
                asked += 1;
                assert_eq!(found["answer"], answer["text"], "{question}");
            }
        }
        assert!(asked >= 2, "most answers are clear ones");
    }

    #[test]
    fn the_built_in_model_tokenizes_like_llama_cpp() {
        let (model, golden) = golden_of_this_model();
        let strings = golden::json("strings.json");
        let pairs = strings.as_array().expect("strings").iter();
        for (entry, expected) in pairs.zip(golden["ids"].as_array().expect("ids")) {
            assert_tokens(
                &model,
                entry["text"].as_str().expect("a text"),
                &ids(expected),
            );
        }
    }
}
