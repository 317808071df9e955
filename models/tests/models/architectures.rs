//! Files of architectures other than llama, models in several files, and context extension.
//!
//! The workspace's `tests/` compare the arithmetic with transformers and llama.cpp.

use std::path::Path;

use crate::support::{batched, relative_distance, row_wise};
use kept_models::testing::{GgufWriter, MetaValue, TinyLlama};
use kept_models::{
    Config, LayerKind, LayerRotation, Model, ModelError, OpenOptions, RopeChoice, RopeScaling,
    RopeTable,
};

const ALL: [&str; 46] = [
    "llama",
    "arcee",
    "qwen2",
    "qwen2moe",
    "qwen2vl",
    "qwen3",
    "qwen3moe",
    "qwen3vl",
    "qwen3vlmoe",
    "glm4",
    "glm4moe",
    "apertus",
    "hunyuan-dense",
    "hunyuan-moe",
    "seed_oss",
    "internlm2",
    "minicpm",
    "exaone",
    "exaone4",
    "command-r",
    "cohere2",
    "ernie4_5",
    "ernie4_5-moe",
    "deepseek2",
    "bailingmoe2",
    "qwen35",
    "qwen35moe",
    "qwen3next",
    "gpt-oss",
    "phi3",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma4",
    "smollm3",
    "mistral3",
    "granite",
    "granitemoe",
    "granitehybrid",
    "olmo2",
    "olmoe",
    "minimax-m2",
    "lfm2",
    "lfm2moe",
    "nemotron_h",
    "nemotron_h_moe",
];

pub(crate) fn tiny(arch: &'static str) -> TinyLlama {
    TinyLlama {
        arch,
        layers: 6,
        width: 64,
        ffn: 96,
        head_dim: 16,
        ..Default::default()
    }
}

pub(crate) fn open(writer: &GgufWriter, options: &OpenOptions) -> Result<Model, ModelError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    writer.write(&path).unwrap();
    Model::open_with(&path, options)
}

pub(crate) fn opened(writer: &GgufWriter) -> Model {
    open(writer, &OpenOptions::default()).unwrap()
}

pub(crate) fn config(arch: &'static str, spoil: impl FnOnce(&mut GgufWriter)) -> Config {
    let mut writer = tiny(arch).writer();
    spoil(&mut writer);
    opened(&writer).config().clone()
}

#[test]
fn prefill_equals_decode_in_every_architecture() {
    let ids: Vec<u32> = (0..40).map(|i| i * 13 % 280).collect();
    for arch in ALL {
        for kind in ["F32", "Q8_0"] {
            let model = opened(&TinyLlama { kind, ..tiny(arch) }.writer());
            assert_eq!(model.config().architecture(), arch);
            let (many, one) = (batched(&model, &ids), row_wise(&model, &ids));
            let distance = relative_distance(&many, &one);
            let most = if kind == "F32" { 1e-5 } else { 5e-2 };
            assert!(distance < most, "{arch} {kind}: {distance}");
        }
    }
}

/// Mean `KL(exact || found)` of the next-token distributions, in nats.
fn kl(found: &[f32], exact: &[f32], vocab: usize) -> f64 {
    let log_softmax = |row: &[f32]| -> Vec<f64> {
        let most = row.iter().copied().fold(f32::MIN, f32::max);
        let each = row.iter().map(|x| f64::from(x - most));
        let sum: f64 = each.clone().map(f64::exp).sum();
        each.map(|x| x - sum.ln()).collect()
    };
    let rows = found.chunks_exact(vocab).zip(exact.chunks_exact(vocab));
    let each = rows.map(|(found, exact)| {
        let (found, exact) = (log_softmax(found), log_softmax(exact));
        let terms = exact.iter().zip(&found).map(|(e, f)| e.exp() * (e - f));
        terms.sum::<f64>()
    });
    each.sum::<f64>() / (found.len() / vocab) as f64
}

#[test]
fn quantised_models_have_a_small_kl_to_f32() {
    let ids: Vec<u32> = (0..24).map(|i| i * 13 % 280).collect();
    for arch in ALL {
        // With seed 1 two of its experts are so close for a token that Q8_0 chooses the other one: KL 1.3e-3, and 5e-5 to
        // 3e-4 with the seeds 2 to 8.
        let seed = if arch == "minimax-m2" { 4 } else { 1 };
        let of = |kind| {
            let model = opened(
                &TinyLlama {
                    kind,
                    seed,
                    width: 256,
                    ffn: 512,
                    head_dim: 64,
                    ..tiny(arch)
                }
                .writer(),
            );
            (row_wise(&model, &ids), model.config().vocab)
        };
        let (exact, vocab) = of("F32");
        // A recurrent layer carries its error on through all later tokens; a convolution is of the product of two
        // projections, multiplied by a third.
        let more = match arch {
            "qwen35" | "qwen35moe" | "qwen3next" | "granitehybrid" | "nemotron_h"
            | "nemotron_h_moe" => 5.0,
            "lfm2" | "lfm2moe" => 8.0,
            _ => 1.0,
        };
        for (kind, most) in [("Q8_0", 5e-4 * more), ("Q4_K_M", 1e-2 * more)] {
            let kl = kl(&of(kind).0, &exact, vocab);
            println!("{arch} {kind}: KL {kl:.1e}");
            assert!(kl > 0.0 && kl < most, "{arch} {kind}: KL {kl:.1e}");
        }
    }
}

/// GLM-4.5's files have a further block, which only predicts tokens ahead.
#[test]
fn blocks_that_predict_tokens_ahead_are_left_out() {
    let ahead = config("glm4moe", |w| {
        w.set("glm4moe.block_count", MetaValue::Whole(7));
        w.set("glm4moe.nextn_predict_layers", MetaValue::Whole(1));
        for part in ["attn_norm.weight", "nextn.enorm.weight"] {
            w.tensor(&format!("blk.6.{part}"), &[64], "F32", &[1.0; 64]);
        }
    });
    assert_eq!((ahead.layers, ahead.prediction_layers), (6, 1));
}

#[test]
fn minicpm_without_its_factors_is_refused() {
    for key in ["embedding_scale", "residual_scale", "logit_scale"] {
        let key = format!("minicpm.{key}");
        let mut writer = tiny("minicpm").writer();
        writer.remove(&key);
        let error = open(&writer, &OpenOptions::default()).unwrap_err();
        assert_eq!(error, ModelError::MissingKey { key });
    }
    let mut writer = tiny("granite").writer();
    writer.remove("granite.residual_scale");
    assert!(open(&writer, &OpenOptions::default()).is_ok());
}

#[test]
fn missing_and_unknown_tensors_of_architectures_are_named() {
    for (arch, part) in [
        ("qwen2", "attn_k.bias"),
        ("qwen3", "attn_q_norm.weight"),
        ("phi3", "attn_qkv.weight"),
        ("gemma2", "post_ffw_norm.weight"),
        ("gemma3", "attn_k_norm.weight"),
        ("olmo2", "post_attention_norm.weight"),
        ("lfm2", "attn_q_norm.weight"),
        ("lfm2moe", "exp_probs_b.bias"),
        ("ernie4_5-moe", "exp_probs_b.bias"),
        ("seed_oss", "attn_v.bias"),
        ("exaone4", "attn_q_norm.weight"),
        ("granitemoe", "ffn_up_shexp.weight"),
        ("deepseek2", "attn_q_a_norm.weight"),
        ("deepseek2", "attn_k_b.weight"),
        ("deepseek2", "ffn_up_shexp.weight"),
        ("qwen3next", "ffn_gate_inp_shexp.weight"),
        ("glm4moe", "post_attention_norm.weight"),
        ("minimax-m2", "exp_probs_b.bias"),
        ("apertus", "attn_q_norm.weight"),
        ("hunyuan-dense", "attn_q_norm.weight"),
        ("bailingmoe2", "attn_k_norm.weight"),
        ("hunyuan-moe", "ffn_up_shexp.weight"),
    ] {
        let name = format!("blk.1.{part}");
        let mut writer = tiny(arch).writer();
        writer.remove_tensor(&name);
        let error = open(&writer, &OpenOptions::default()).unwrap_err();
        assert_eq!(error, ModelError::MissingTensor { name });
    }
    for (arch, part) in [
        ("qwen3", "attn_output.bias"),
        ("gemma2", "attn_q_norm.weight"),
        ("phi3", "ffn_gate.weight"),
        ("smollm3", "attn_sinks.weight"),
        ("olmo2", "attn_norm.weight"),
        ("lfm2", "shortconv.in_proj.weight"),
        ("lfm2moe", "ffn_gate.weight"),
        ("granitemoe", "ffn_gate_inp_shexp.weight"),
        ("granitehybrid", "ssm_in.weight"),
        ("nemotron_h", "ffn_gate.weight"),
        ("nemotron_h", "ssm_in.weight"),
        ("nemotron_h_moe", "ffn_gate_shexp.weight"),
        ("deepseek2", "attn_kv_b.weight"),
        ("deepseek2", "attn_q.weight"),
        ("deepseek2", "attn_k.weight"),
        ("deepseek2", "attn_q.bias"),
        ("arcee", "ffn_gate.weight"),
        ("apertus", "ffn_gate.weight"),
        ("apertus", "attn_q_norm.bias"),
        ("olmoe", "exp_probs_b.bias"),
        ("qwen2moe", "attn_q_norm.weight"),
        ("gemma", "post_ffw_norm.weight"),
    ] {
        let name = format!("blk.1.{part}");
        let mut writer = tiny(arch).writer();
        writer.tensor(&name, &[16], "F32", &[0.5; 16]);
        let error = open(&writer, &OpenOptions::default()).unwrap_err();
        assert_eq!(error, ModelError::UnknownTensor { name });
    }
}

/// Granite's hybrids: state spaces where the file gives no KV heads, and experts only if it declares them.
#[test]
fn granite_has_state_spaces_where_the_file_gives_no_kv_heads() {
    let hybrid = config("granitehybrid", |_| {});
    let recurrent: Vec<bool> = hybrid
        .kinds
        .iter()
        .map(|kind| kind.is_recurrent())
        .collect();
    assert_eq!(recurrent, [true, false, true, false, true, false]);
    assert!(hybrid.experts.is_none() && config("granitemoe", |_| {}).experts.is_some());
    // Four heads of 64 by 16, and three inputs of values and of two groups of keys and queries.
    assert_eq!(
        hybrid.state_bytes(),
        3 * 4 * (256 * 16 + 3 * (256 + 2 * 2 * 16))
    );
    let refused = |change: &dyn Fn(&mut GgufWriter)| {
        let mut writer = tiny("granitehybrid").writer();
        change(&mut writer);
        let error = open(&writer, &OpenOptions::default()).unwrap_err();
        error.to_string()
    };
    for (key, value) in [
        ("ssm.group_count", 3),
        ("ssm.inner_size", 255),
        ("ssm.state_size", 2048),
        ("ssm.conv_kernel", 1),
        ("ssm.time_step_rank", 0),
        ("expert_count", 4),
    ] {
        let key = format!("granitehybrid.{key}");
        let error = refused(&|w| {
            w.set(&key, MetaValue::Whole(value));
        });
        // Experts need further keys.
        assert!(error.contains("granitehybrid."), "{key}: {error}");
    }
    for name in [
        "blk.0.ssm_in.weight",
        "blk.2.ssm_d",
        "blk.4.ssm_conv1d.bias",
    ] {
        let error = refused(&|w| {
            w.remove_tensor(name);
        });
        assert!(error.contains(name), "{error}");
    }
    let error = refused(&|w| {
        w.tensor("blk.0.attn_q.weight", &[64], "F32", &[0.0; 64]);
    });
    assert!(error.contains("blk.0.attn_q.weight"), "{error}");
}

/// Nemotron's blocks have one part each, so a feed-forward joins the layer before it.
#[test]
fn nemotron_has_layers_of_one_or_two_blocks() {
    let dense = config("nemotron_h", |_| {});
    let blocks = |config: &Config| -> Vec<_> {
        let of = |kind: &LayerKind| (kind.blocks.mixer, kind.blocks.feed_forward);
        config.kinds.iter().map(of).collect()
    };
    let two = |layer: usize| (2 * layer, Some(2 * layer + 1));
    assert_eq!(blocks(&dense), (0..6).map(two).collect::<Vec<_>>());
    assert!(dense.kinds[0].is_recurrent() && !dense.kinds[1].is_recurrent());
    // A block that only predicts tokens ahead is left out.
    let ahead = config("nemotron_h", |w| {
        w.set("nemotron_h.block_count", MetaValue::Whole(13));
        w.set("nemotron_h.nextn_predict_layers", MetaValue::Whole(1));
        w.tensor("blk.12.attn_norm.weight", &[256], "F32", &[1.0; 256]);
    });
    assert_eq!((ahead.layers, ahead.prediction_layers), (6, 1));
    let refused = |arch: &'static str, key: &str, value: MetaValue| {
        let mut writer = tiny(arch).writer();
        writer.set(&format!("{arch}.{key}"), value);
        let error = open(&writer, &OpenOptions::default()).unwrap_err();
        error.to_string()
    };
    let whole = MetaValue::Whole;
    let kv_heads = MetaValue::Wholes([0, 0, 2, 2].repeat(3));
    let two_in_a_row = MetaValue::Wholes([0, 512, 512, 512].repeat(3));
    for (arch, key, value, said) in [
        ("nemotron_h", "feed_forward_length", whole(512), "a list"),
        (
            "nemotron_h",
            "feed_forward_length",
            two_in_a_row,
            "not both",
        ),
        (
            "nemotron_h",
            "attention.head_count_kv",
            kv_heads,
            "not both",
        ),
        ("nemotron_h_moe", "moe_latent_size", whole(64), "only 0"),
        ("nemotron_h_moe", "expert_group_count", whole(2), "only 1"),
        ("nemotron_h_moe", "expert_gating_func", whole(1), "sigmoid"),
        ("lfm2moe", "expert_gating_func", whole(1), "sigmoid"),
    ] {
        let error = refused(arch, key, value);
        assert!(
            error.contains(key) || error.contains("feed_forward_length"),
            "{error}"
        );
        assert!(error.contains(said), "{error}");
    }
}

/// A half-supported LFM2 is refused by the name of its key or tensor.
#[test]
fn lfm2_has_convolutions_where_the_file_gives_no_kv_heads() {
    let lfm2 = config("lfm2moe", |_| {});
    let kinds = |of: fn(&LayerKind) -> bool| -> Vec<bool> { lfm2.kinds.iter().map(of).collect() };
    assert_eq!(
        kinds(|kind| kind.is_recurrent()),
        [true, false, true, false, true, false]
    );
    assert_eq!(
        kinds(|kind| kind.experts),
        [false, true, true, true, true, true]
    );
    assert_eq!(lfm2.full_layers().collect::<Vec<_>>(), [1, 3, 5]);
    // Two rows of the width, in three layers.
    assert_eq!(lfm2.state_bytes(), 3 * 2 * 64 * 4);
    let refused = |arch: &'static str, change: &dyn Fn(&mut GgufWriter)| {
        let mut writer = tiny(arch).writer();
        change(&mut writer);
        let error = open(&writer, &OpenOptions::default()).unwrap_err();
        error.to_string()
    };
    for (key, value) in [
        ("shortconv.l_cache", MetaValue::Whole(1)),
        ("attention.head_count_kv", MetaValue::Wholes(vec![0; 6])),
        ("attention.head_count_kv", MetaValue::Wholes(vec![0, 2])),
        ("attention.sliding_window", MetaValue::Whole(8)),
        ("attention.causal", MetaValue::Flag(false)),
        ("expert_gating_func", MetaValue::Whole(1)),
        ("expert_weights_norm", MetaValue::Flag(false)),
    ] {
        let key = format!("lfm2moe.{key}");
        let error = refused("lfm2moe", &|w| {
            w.set(&key, value.clone());
        });
        assert!(error.contains(&key), "{error}");
    }
    let key = "lfm2.shortconv.l_cache";
    let error = refused("lfm2", &|w| {
        w.remove(key);
    });
    assert!(error.contains(key), "{error}");
    for name in [
        "blk.0.shortconv.conv.weight",
        "blk.2.shortconv.out_proj.weight",
        "blk.1.attn_output.weight",
        "token_embd_norm.weight",
    ] {
        let error = refused("lfm2", &|w| {
            w.remove_tensor(name);
        });
        assert!(error.contains(name), "{error}");
    }
    for name in [
        "blk.0.attn_q.weight",
        "blk.0.shortconv.conv.bias",
        "output_norm.weight",
        "dense_2.weight",
    ] {
        let error = refused("lfm2", &|w| {
            w.tensor(name, &[64], "F32", &[0.0; 64]);
        });
        assert!(error.contains(name), "{error}");
    }
}

#[test]
fn windows_and_rotations_follow_the_architecture() {
    let windows = |config: &Config| -> Vec<Option<usize>> {
        config.kinds.iter().map(|kind| kind.window()).collect()
    };
    let gemma3 = config("gemma3", |_| {});
    let w = Some(8);
    assert_eq!(windows(&gemma3), [w, w, w, w, w, None]);
    assert_eq!(gemma3.full_layers().collect::<Vec<_>>(), [5]);
    assert_eq!(gemma3.kinds[0].rotation, LayerRotation::WindowRope);
    assert_eq!(gemma3.kinds[5].rotation, LayerRotation::Rope);
    assert_eq!(gemma3.window_rope.as_ref().unwrap().base, 10_000.0);
    assert_eq!(gemma3.embedding_scale, 8.0);
    let gemma2 = config("gemma2", |w| {
        w.remove("gemma2.attention.sliding_window");
    });
    assert_eq!(windows(&gemma2)[..2], [Some(4096), None]);
    assert_eq!(
        (gemma2.attention_cap, gemma2.logit_cap),
        (Some(50.0), Some(30.0))
    );
    assert!(gemma2.window_rope.is_none());
    let every_third = config("gemma3", |w| {
        w.set(
            "gemma3.attention.sliding_window_pattern",
            MetaValue::Whole(3),
        );
    });
    assert_eq!(windows(&every_third), [w, w, None, w, w, None]);
    let listed = config("gemma3", |w| {
        let flags = MetaValue::Wholes(vec![0, 1, 0, 0, 1, 1]);
        w.set("gemma3.attention.sliding_window_pattern", flags);
    });
    assert_eq!(windows(&listed), [None, w, None, None, w, w]);
    let smollm3 = config("smollm3", |_| {});
    let rotated: Vec<bool> = (smollm3.kinds.iter())
        .map(|kind| kind.rotation != LayerRotation::None)
        .collect();
    assert_eq!(rotated, [true, true, true, false, true, true]);
    let table = RopeTable::new(&smollm3, 4);
    assert!(table.of_layer(3).is_none() && table.of_layer(4).is_some());
    // EXAONE's global layers have no RoPE where others have a window.
    let exaone = config("exaone4", |_| {});
    assert_eq!(windows(&exaone)[2..5], [w, None, w]);
    assert!(
        (exaone.kinds.iter())
            .all(|kind| { (kind.rotation == LayerRotation::None) == kind.window().is_none() })
    );
    let global = config("exaone4", |w| {
        w.remove("exaone4.attention.sliding_window");
    });
    let turned = |kind: &LayerKind| kind.rotation == LayerRotation::Rope;
    assert!(global.kinds.iter().all(turned));
    // IBM's files switch RoPE off by this key.
    let granite = config("granite", |w| {
        w.set("granite.rope.scaling.finetuned", MetaValue::Flag(false));
    });
    let rotation = granite.kinds[0].rotation;
    assert_eq!(rotation, LayerRotation::None);
    // Mistral's and Phi's window: declared in the file, but not applied.
    for arch in ["llama", "phi3", "qwen2"] {
        let key = format!("{arch}.attention.sliding_window");
        let ignoring = config(arch, |w| {
            w.set(&key, MetaValue::Whole(16));
        });
        assert_eq!(ignoring.ignored_window, Some(16));
        assert_eq!(ignoring.windows().count(), 0);
    }
    for (pattern, says) in [
        (MetaValue::Wholes(vec![1; 6]), "at least one layer"),
        (MetaValue::Wholes(vec![1; 5]), "each of the 6 layers"),
        (MetaValue::Whole(0), "from 1 to"),
    ] {
        let mut writer = tiny("gemma3").writer();
        writer.set("gemma3.attention.sliding_window_pattern", pattern);
        let error = open(&writer, &OpenOptions::default())
            .unwrap_err()
            .to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn the_largest_gemmas_scale_attention_by_width_per_head() {
    for (arch, layers) in [("gemma2", 46), ("gemma3", 62)] {
        let tiny = TinyLlama {
            layers,
            ..tiny(arch)
        };
        let wide = opened(&tiny.writer()).config().attention_scale;
        assert_eq!(wide, 1.0 / (64.0f32 / 4.0).sqrt(), "{arch}");
        let shape = TinyLlama {
            head_dim: 32,
            ..tiny
        };
        assert_eq!(
            opened(&shape.writer()).config().attention_scale,
            wide,
            "{arch}"
        );
        let one_less = TinyLlama {
            layers: layers - 1,
            ..shape
        };
        let scale = opened(&one_less.writer()).config().attention_scale;
        assert_eq!(scale, 1.0 / 32f32.sqrt(), "{arch}");
    }
}

fn phi3(short: &[f32], long: &[f32]) -> GgufWriter {
    let mut writer = tiny("phi3").writer();
    writer
        .set("phi3.rope.dimension_count", MetaValue::Whole(12))
        .set(
            "phi3.rope.scaling.original_context_length",
            MetaValue::Whole(64),
        )
        .set("phi3.rope.scaling.attn_factor", MetaValue::Number(1.25))
        .tensor("rope_factors_short.weight", &[6], "F32", short)
        .tensor("rope_factors_long.weight", &[6], "F32", long);
    writer
}

#[test]
fn longrope_switches_divisors_and_unrotates_exactly() {
    let (short, long) = ([1.0; 6], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let model = opened(&phi3(&short, &long));
    let rope = &model.config().rope;
    assert_eq!(rope.frequencies(64)[3], rope.frequencies(1)[3]);
    assert_eq!(rope.frequencies(65)[3], rope.frequencies(64)[3] / 4.0);
    let table = RopeTable::new(model.config(), 65);
    let x: Vec<f32> = (0..32).map(|i| (i as f32 * 0.37).sin()).collect();
    let mut turned = x.clone();
    table.rotate_at(&mut turned, 50);
    let length = |x: &[f32]| x.iter().map(|x| x * x).sum::<f32>().sqrt();
    assert!((length(&turned[..12]) / length(&x[..12]) - 1.25).abs() < 1e-5);
    assert_eq!(turned[12..16], x[12..16], "not rotated, not stretched");
    table.unrotate_at(&mut turned, 50);
    assert!(relative_distance(&turned, &x) < 1e-6);
    let mut writer = phi3(&short, &long);
    writer.remove_tensor("rope_factors_long.weight");
    let error = open(&writer, &OpenOptions::default()).unwrap_err();
    assert!(error.to_string().contains("rope_factors_long"), "{error}");
}

#[test]
fn open_options_extend_the_context_length() {
    let stretched = |arch: &'static str, rope: &str| {
        let rope = Some(rope.parse::<RopeChoice>().unwrap());
        open(&tiny(arch).writer(), &OpenOptions { rope })
    };
    let model = stretched("qwen2", "yarn:4").unwrap();
    let RopeScaling::Yarn(yarn) = model.config().rope.scaling else {
        panic!("{:?}", model.config().rope)
    };
    assert_eq!((yarn.factor, yarn.original), (4.0, 4096));
    assert_eq!(model.config().context, 4 * 4096);
    assert!((model.config().rope.magnitude - (0.1 * 4f64.ln() + 1.0)).abs() < 1e-12);
    let model = stretched("llama", "linear:2").unwrap();
    assert_eq!(
        model.config().rope.scaling,
        RopeScaling::Linear { factor: 2.0 }
    );
    let rope = Some(RopeChoice::Yarn(2.0));
    let error = open(&phi3(&[1.0; 6], &[2.0; 6]), &OpenOptions { rope }).unwrap_err();
    let sentence = error.to_string();
    assert!(
        sentence.contains("longrope") && sentence.contains("yarn:2"),
        "{sentence}"
    );
}

/// The tensors of `tiny`, split over three files as by llama-gguf-split.
fn split(folder: &Path, tiny: &TinyLlama) -> Vec<std::path::PathBuf> {
    let whole = tiny.writer();
    let mut parts = whole.split(3);
    let names = (1..=3).map(|part| folder.join(format!("tiny-{part:05}-of-00003.gguf")));
    let names: Vec<_> = names.collect();
    for (part, name) in parts.iter_mut().zip(&names) {
        part.write(name).unwrap();
    }
    names
}

#[test]
fn a_split_model_equals_the_model_in_one_file() {
    let dir = tempfile::tempdir().unwrap();
    let tiny = tiny("qwen3");
    let whole = row_wise(&opened(&tiny.writer()), &[3, 50, 7]);
    let names = split(dir.path(), &tiny);
    for name in &names {
        let model = Model::open(name).unwrap();
        assert_eq!(model.gguf().files().len(), 3);
        assert_eq!(row_wise(&model, &[3, 50, 7]), whole, "{}", name.display());
        model.tokenizer().unwrap();
    }
    std::fs::remove_file(&names[1]).unwrap();
    for name in [&names[0], &names[2]] {
        let error = Model::open(name).unwrap_err();
        let missing = ModelError::MissingPart {
            part: 2,
            parts: 3,
            name: "tiny-00002-of-00003.gguf".into(),
        };
        assert_eq!(error, missing);
    }
    let renamed = dir.path().join("mine.gguf");
    std::fs::rename(&names[2], &renamed).unwrap();
    let error = Model::open(&renamed).unwrap_err().to_string();
    assert!(
        error.contains("part 3") && error.contains("-00003-of-00003.gguf"),
        "{error}"
    );
    // A part of another model, and a file that is not a part.
    std::fs::copy(&names[0], &names[1]).unwrap();
    let error = Model::open(&names[0]).unwrap_err().to_string();
    assert!(error.contains("does not say that it is part 2"), "{error}");
    tiny.write(&names[1]).unwrap();
    let error = Model::open(&names[0]).unwrap_err().to_string();
    assert!(error.contains("does not say that it is part 2"), "{error}");
}
