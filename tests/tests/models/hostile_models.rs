//! Broken and unsupported model files: one line that names the fault, never a panic, never a wrong answer.

use std::path::Path;

use kept_tests::gguf_edit::GgufEdit;
use kept_tests::golden;
use kept_tests::terminal::{Run, kept};

fn ask(model: &Path) -> Run {
    let document = golden::repository().join("assets/sample.txt");
    kept([
        "ask".as_ref(),
        "--model".as_ref(),
        model.as_os_str(),
        "--document".as_ref(),
        document.as_os_str(),
        "--question".as_ref(),
        "What is this?".as_ref(),
        "--max-tokens".as_ref(),
        "1".as_ref(),
    ])
}

fn good() -> GgufEdit {
    GgufEdit::of(&golden::model("group1-plain-tied"))
}

/// Asks with a broken copy and expects a line with every string of `says`.
#[track_caller]
fn refuses(broken: GgufEdit, says: &[&str]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("broken.gguf");
    broken.save(&path);
    ask(&path).refused(says);
}

#[test]
fn truncated_files_are_refused() {
    let length = good().bytes().len();
    refuses(good().cut(length / 2), &["cut short"]);
    refuses(good().cut(length - 1), &["cut short"]);
    for bytes in [0, 3, 4, 10, 23, 24, 31, 100, 1000, 5000] {
        refuses(good().cut(bytes), &[]);
    }
}

#[test]
fn files_that_are_no_models_are_refused() {
    ask(&golden::repository().join("assets/sample.txt")).refused(&["gguf"]);
    ask(golden::repository()).refused(&[]);
    ask(Path::new("no-such-model.gguf")).refused(&["no-such-model.gguf"]);
}

#[test]
fn an_unsupported_architecture_is_named() {
    let broken = good().string("general.architecture", "mamba");
    refuses(broken, &["mamba", "llama"]);
}

#[test]
fn an_unsupported_tensor_type_is_named() {
    refuses(good().tensor_type("blk.0.attn_q.weight", 9), &["Q8_1"]);
    refuses(good().tensor_type("blk.1.ffn_down.weight", 40), &["NVFP4"]);
    refuses(good().tensor_type("blk.0.ffn_up.weight", 9999), &["9999"]);
}

#[test]
fn an_unknown_pre_tokenizer_is_named() {
    refuses(good().string("tokenizer.ggml.pre", "smolll"), &["smolll"]);
}

#[test]
fn an_unknown_tokenizer_model_is_named() {
    refuses(good().string("tokenizer.ggml.model", "bert"), &["bert"]);
}

#[test]
fn an_unknown_rope_scaling_is_named() {
    let linear = GgufEdit::of(&golden::model("group4-linear-untied"));
    refuses(
        linear.string("llama.rope.scaling.type", "lineal"),
        &["lineal"],
    );
}

#[test]
fn missing_keys_and_tensors_are_named() {
    refuses(
        good().rename("llama.block_count", "llama.black_count"),
        &["llama.block_count"],
    );
    refuses(
        good().rename("tokenizer.ggml.tokens", "tokenizer.ggml.tokenz"),
        &["tokenizer.ggml.tokens"],
    );
    refuses(
        good().rename("blk.1.ffn_up.weight", "blk.1.ffn_uq.weight"),
        &["blk.1.ffn_up.weight"],
    );
}

#[test]
fn impossible_numbers_are_refused() {
    for key in [
        "llama.block_count",
        "llama.attention.head_count",
        "llama.attention.head_count_kv",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.attention.key_length",
        "llama.context_length",
        "llama.rope.dimension_count",
    ] {
        for value in [0, 7, 1_000_000_007, u32::MAX] {
            // A context length of seven or more may be valid; the file supports no other value of the other keys.
            if key != "llama.context_length" || value == 0 {
                refuses(good().number(key, value), &[]);
            }
        }
    }
}

#[test]
fn counts_beyond_the_file_are_refused() {
    for count in [1 << 20, 1 << 40, u64::MAX] {
        refuses(good().tensor_count(count), &[]);
        refuses(good().key_count(count), &[]);
        refuses(good().string_length("general.architecture", count), &[]);
        refuses(good().tensor_width("blk.0.attn_q.weight", count), &[]);
        refuses(good().tensor_offset("blk.0.attn_q.weight", count << 5), &[]);
    }
}

#[test]
fn a_tensor_of_a_wrong_shape_is_named() {
    refuses(
        good().tensor_width("blk.0.attn_q.weight", 32),
        &["blk.0.attn_q.weight"],
    );
    refuses(
        good().tensor_width("output_norm.weight", 32),
        &["output_norm.weight"],
    );
}

#[test]
fn values_of_a_wrong_type_are_refused() {
    for value_type in [0, 6, 9, 13, 255, u32::MAX] {
        refuses(good().value_type("llama.block_count", value_type), &[]);
    }
}

#[test]
fn unsupported_versions_are_named() {
    refuses(good().version(1), &["1"]);
    refuses(good().version(77), &["77"]);
}
