//! Deviations that llama.cpp accepts and that do not change results are accepted too: such a file gives the logits and
//! tokens of the plain file. `docs/model-files.md` lists the rules.

use crate::support::{batched, relative_distance, row_wise};
use kept_models::gguf::Gguf;
use kept_models::testing::{GgufWriter, MetaValue, TinyLlama};
use kept_models::{Model, ModelError};

fn tiny(arch: &'static str) -> TinyLlama {
    TinyLlama {
        arch,
        layers: 6,
        width: 32,
        ffn: 32,
        q_heads: 2,
        kv_heads: 1,
        head_dim: 16,
        ..Default::default()
    }
}

fn open(writer: &GgufWriter) -> Result<Model, ModelError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    writer.write(&path).unwrap();
    Model::open(&path)
}

fn changed(arch: &'static str, change: impl FnOnce(&mut GgufWriter)) -> Result<Model, ModelError> {
    let mut writer = tiny(arch).writer();
    change(&mut writer);
    open(&writer)
}

/// Logits of many rows and of single rows.
fn logits(model: &Model) -> Vec<f32> {
    let ids: Vec<u32> = (0..24).map(|i| i * 13 % 280).collect();
    [batched(model, &ids), row_wise(model, &ids)].concat()
}

/// Asserts that a modified file opens and gives the logits of the plain file.
#[track_caller]
fn computes_the_same(arch: &'static str, change: impl FnOnce(&mut GgufWriter)) {
    let model = changed(arch, change).expect("it opens");
    assert_eq!(logits(&model), logits(&changed(arch, |_| {}).unwrap()));
}

fn text(value: &str) -> MetaValue {
    MetaValue::Text(value.to_owned())
}

/// Shape, type and bytes of a tensor.
type Raw = (Vec<usize>, u32, Vec<u8>);

fn raw(writer: &GgufWriter, name: &str) -> Raw {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    writer.write(&path).unwrap();
    let gguf = Gguf::open(&path).unwrap();
    let tensor = gguf.tensor(name).expect(name);
    let bytes = &gguf.file_of(tensor).bytes()[tensor.start..][..tensor.bytes];
    (tensor.shape.clone(), tensor.kind.number(), bytes.to_vec())
}

#[test]
fn shapes_may_be_padded_with_ones() {
    computes_the_same("llama", |w| {
        for name in [
            "token_embd.weight",
            "blk.0.attn_q.weight",
            "output_norm.weight",
        ] {
            let (shape, kind, bytes) = raw(w, name);
            let filled = [vec![1; 4 - shape.len()], shape].concat();
            w.raw_tensor(name, &filled, kind, bytes);
        }
    });
}

fn join_qkv(w: &mut GgufWriter, layer: usize) {
    let name = |part: &str| format!("blk.{layer}.attn_{part}.weight");
    let (mut rows, mut data) = (0, Vec::new());
    for part in ["q", "k", "v"] {
        let (shape, _, bytes) = raw(w, &name(part));
        rows += shape[0];
        data.extend(bytes);
        w.remove_tensor(&name(part));
    }
    w.raw_tensor(&name("qkv"), &[rows, 32], 0, data);
}

#[test]
fn q_k_and_v_may_be_one_tensor_or_three() {
    for arch in ["llama", "qwen3", "gemma2"] {
        computes_the_same(arch, |w| (0..6).for_each(|layer| join_qkv(w, layer)));
    }
    computes_the_same("phi3", |w| {
        for layer in 0..6 {
            let name = |part: &str| format!("blk.{layer}.attn_{part}.weight");
            let (_, kind, bytes) = raw(w, &name("qkv"));
            w.remove_tensor(&name("qkv"));
            let row = bytes.len() / 64;
            for (part, first, rows) in [("q", 0, 32), ("k", 32, 16), ("v", 48, 16)] {
                let own = bytes[first * row..][..rows * row].to_vec();
                w.raw_tensor(&name(part), &[rows, 32], kind, own);
            }
        }
    });
    // With both, one of them would be ignored.
    let both = changed("llama", |w| {
        let (shape, kind, bytes) = raw(w, "blk.1.attn_q.weight");
        join_qkv(w, 1);
        w.raw_tensor("blk.1.attn_q.weight", &shape, kind, bytes);
    });
    let name = "blk.1.attn_q.weight".to_owned();
    assert_eq!(both.unwrap_err(), ModelError::UnknownTensor { name });
}

#[test]
fn biases_of_q_k_and_v_are_added() {
    for arch in ["qwen3", "phi3", "gemma2", "gemma3"] {
        let biased = |by: f32| {
            move |w: &mut GgufWriter| {
                for (part, len) in [("q", 32), ("k", 16), ("v", 16)] {
                    let name = format!("blk.2.attn_{part}.bias");
                    w.tensor(&name, &[len], "F32", &vec![by; len]);
                }
            }
        };
        computes_the_same(arch, biased(0.0));
        let (moved, plain) = (changed(arch, biased(0.5)), changed(arch, |_| {}));
        let distance = relative_distance(&logits(&moved.unwrap()), &logits(&plain.unwrap()));
        assert!(distance > 1e-3, "{arch}: {distance}");
    }
}

#[test]
fn rope_scaling_by_zero_or_one_is_none() {
    const FACTOR: &str = "llama.rope.scaling.factor";
    const TYPE: &str = "llama.rope.scaling.type";
    for kind in ["linear", "yarn"] {
        computes_the_same("llama", |w| {
            w.set(TYPE, text(kind));
        });
        computes_the_same("llama", |w| {
            w.set(TYPE, text(kind)).set(FACTOR, MetaValue::Number(0.0));
        });
    }
    computes_the_same("llama", |w| {
        w.set("llama.rope.scale_linear", MetaValue::Number(0.0));
    });
    computes_the_same("llama", |w| {
        w.set(TYPE, text("none"));
        w.set(FACTOR, MetaValue::Number(4.0));
    });
    // A factor without a type is linear, as in llama.cpp.
    let untyped = changed("llama", |w| {
        w.set(FACTOR, MetaValue::Number(4.0));
    });
    let linear = changed("llama", |w| {
        w.set(TYPE, text("linear"))
            .set(FACTOR, MetaValue::Number(4.0));
    });
    let untyped = logits(&untyped.unwrap());
    assert_eq!(untyped, logits(&linear.unwrap()));
    let plain = logits(&changed("llama", |_| {}).unwrap());
    assert!(relative_distance(&untyped, &plain) > 1e-3);
    let negative = changed("llama", |w| {
        w.set(FACTOR, MetaValue::Number(-4.0));
    });
    assert!(negative.unwrap_err().to_string().contains(FACTOR));
}

#[test]
fn scales_of_one_are_accepted_and_others_refused() {
    for key in ["logit_scale", "residual_scale", "embedding_scale"] {
        let key = format!("llama.{key}");
        computes_the_same("llama", |w| {
            w.set(&key, MetaValue::Number(1.0));
        });
        let scaled = changed("llama", |w| {
            w.set(&key, MetaValue::Number(2.0));
        });
        assert!(scaled.unwrap_err().to_string().contains(&key));
    }
}

const TEXT: &str =
    "Hello world, and the order of 12 \u{1f642}.\n\n  He wore an <|im_end|> and a hat.";

/// Tokens of a text from a model with a modified vocabulary.
fn tokens(change: impl FnOnce(&mut GgufWriter)) -> Result<Vec<u32>, ModelError> {
    let model = changed("llama", change)?;
    Ok(model.tokenizer()?.encode(TEXT).ids)
}

/// The token types of the tiny vocabulary, with another type for `token`.
fn kinds_with(w: &mut GgufWriter, token: &str, kind: u32) {
    let plain = open(w).unwrap();
    let tokenizer = plain.tokenizer().unwrap();
    let id = tokenizer.token_id(token).expect(token);
    let of = |other: u32| match (other == id, tokenizer.is_control(other)) {
        (true, _) => kind,
        (_, true) => 3,
        _ => 1,
    };
    let kinds = (0..tokenizer.vocab() as u32).map(of).collect();
    w.set("tokenizer.ggml.token_type", MetaValue::Wholes(kinds));
}

fn merges_and(w: &mut GgufWriter, more: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    w.write(&path).unwrap();
    let gguf = Gguf::open(&path).unwrap();
    let merges = gguf.texts("tokenizer.ggml.merges").unwrap().unwrap();
    let merges = merges.into_iter().chain([more]).map(str::to_owned);
    w.set("tokenizer.ggml.merges", MetaValue::Texts(merges.collect()));
}

#[test]
fn excess_token_types_and_invalid_roles_are_ignored() {
    let plain = tokens(|_| {}).unwrap();
    let longer = tokens(|w| {
        let tokens = tiny("llama").vocab();
        let kind = |id| if id < 3 { 3 } else { 1 };
        let kinds = (0..tokens + 7).map(kind).collect();
        w.set("tokenizer.ggml.token_type", MetaValue::Wholes(kinds));
    });
    assert_eq!(longer.unwrap(), plain);
    for role in ["bos", "eos", "eot", "unknown"] {
        let key = format!("tokenizer.ggml.{role}_token_id");
        let model = changed("llama", |w| {
            w.set(&key, MetaValue::Whole(99_999));
        });
        let model = model.unwrap();
        let tokenizer = model.tokenizer().unwrap();
        assert_eq!(tokenizer.encode(TEXT).ids, plain, "{role}");
        // The name still marks it as the end of an answer.
        assert!(tokenizer.is_end(tokenizer.token_id("<|im_end|>").unwrap()));
        let others = (tokenizer.bos(), tokenizer.eos());
        let expected = match role {
            "bos" => (None, Some(2)),
            "eos" => (Some(0), None),
            _ => (Some(0), Some(2)),
        };
        assert_eq!(others, expected, "{role}");
    }
}

#[test]
fn merges_that_never_apply_are_ignored() {
    let plain = tokens(|_| {}).unwrap();
    for never in ["he nowhere", "nowhere he", "qq qqq"] {
        assert_eq!(tokens(|w| merges_and(w, never)).unwrap(), plain, "{never}");
    }
    // The merges' results are tokens that the model does not have.
    for unknown in ["h h", "he he"] {
        let error = tokens(|w| merges_and(w, unknown)).unwrap_err();
        assert!(matches!(error, ModelError::BadVocabulary { .. }), "{error}");
    }
    // "or" is split off as a user-defined token, with and without a merge that produces it.
    let cut_out = tokens(|w| kinds_with(w, "or", 4)).unwrap();
    let model = changed("llama", |w| kinds_with(w, "or", 4)).unwrap();
    let or = model.tokenizer().unwrap().token_id("or").unwrap();
    assert_eq!(cut_out.iter().filter(|&&id| id == or).count(), 3);
    // A document never produces it as a control token.
    let control = changed("llama", |w| kinds_with(w, "or", 3)).unwrap();
    let tokenizer = control.tokenizer().unwrap();
    assert!(tokenizer.is_control(or));
    assert!(!tokenizer.encode(TEXT).ids.contains(&or));
}

#[test]
fn an_empty_chat_template_counts_as_absent() {
    let absent = changed("llama", |_| {}).unwrap();
    let absent = absent.chat_template().unwrap();
    for blank in ["", " \n"] {
        let model = changed("llama", |w| {
            w.set("tokenizer.chat_template", text(blank));
        });
        let model = model.unwrap();
        let template = model.chat_template().unwrap();
        assert_eq!(template.source(), absent.source());
        assert!(template.note().is_some_and(|note| note.contains("ChatML")));
    }
}
