//! Files with latent attention (DeepSeek-V2, GLM-4.7-Flash): what is computed as the file says, and what is refused.

use crate::architectures::{config, open, opened, tiny};
use crate::support::{batched, relative_distance};
use kept_models::testing::{GgufWriter, MetaValue};
use kept_models::{OpenOptions, RopeChoice};

/// Latent attention is as wide as the file's lengths for it say, whatever its cache would have.
#[test]
fn latent_attention_has_a_kv_head_for_each_query_head() {
    let tiny_config = config("deepseek2", |_| {});
    let shape = tiny_config.latent.unwrap();
    assert_eq!((shape.plain, shape.rotated, shape.value), (8, 8, 16));
    assert_eq!((shape.q_rank, shape.kv_rank), (Some(64), 64));
    assert_eq!((tiny_config.kv_heads, tiny_config.head_dim), (4, 16));
    assert_eq!(tiny_config.attention_scale, 0.25);
    assert_eq!(tiny_config.rope.dims, 8);
    assert_eq!(tiny_config.experts.unwrap().shared_ffn, Some(96));
    let text = |text: &str| MetaValue::Text(text.to_owned());
    let yarn = |multiplier: f32| {
        config("deepseek2", |w| {
            w.set("deepseek2.rope.scaling.type", text("yarn"));
            w.set("deepseek2.rope.scaling.factor", MetaValue::Number(4.0));
            let key = "deepseek2.rope.scaling.yarn_log_multiplier";
            w.set(key, MetaValue::Number(multiplier));
        })
    };
    // Angles have no magnitude; dot products have its square.
    let stretched = yarn(0.1);
    let magnitude = 1.0 + 0.1 * 4f32.ln();
    assert_eq!(stretched.rope.magnitude, 1.0);
    assert!((stretched.attention_scale - 0.25 * magnitude * magnitude).abs() < 1e-6);
    let half = 1.0 + 0.05 * 4f32.ln();
    assert!((yarn(0.05).attention_scale - 0.25 * half * half).abs() < 1e-6);
    // A block that only predicts tokens ahead is left out.
    let ahead = config("deepseek2", |w| {
        w.set("deepseek2.block_count", MetaValue::Whole(7));
        w.set("deepseek2.nextn_predict_layers", MetaValue::Whole(1));
        w.tensor("blk.6.nextn.enorm.weight", &[64], "F32", &[1.0; 64]);
    });
    assert_eq!((ahead.layers, ahead.prediction_layers), (6, 1));
}

/// What would change the arithmetic of latent attention or of its experts is refused by its key.
#[test]
fn unsupported_latent_attention_is_refused_by_its_key() {
    let refused = |change: &dyn Fn(&mut GgufWriter)| {
        let mut writer = tiny("deepseek2").writer();
        change(&mut writer);
        let error = open(&writer, &OpenOptions::default()).unwrap_err();
        error.to_string()
    };
    let whole = MetaValue::Whole;
    for (key, value) in [
        ("attention.head_count_kv", whole(2)),
        ("attention.key_length_mla", whole(0)),
        ("attention.value_length_mla", whole(17)),
        ("attention.value_length_mla", whole(0)),
        ("attention.q_lora_rank", whole(u32::MAX)),
        ("attention.kv_lora_rank", whole(0)),
        ("attention.kv_lora_rank", whole(u32::MAX)),
        ("rope.dimension_count", whole(16)),
        ("rope.dimension_count", whole(7)),
        ("attention.temperature_scale", MetaValue::Number(0.1)),
        ("rope.scaling.attn_factor", MetaValue::Number(1.2)),
        ("expert_group_count", whole(8)),
        ("expert_gating_func", whole(3)),
        ("expert_shared_count", whole(1 << 30)),
    ] {
        let key = format!("deepseek2.{key}");
        let error = refused(&|w| {
            w.set(&key, value.clone());
        });
        assert!(error.contains(&key), "{key}: {error}");
    }
    for key in [
        "attention.kv_lora_rank",
        "attention.value_length_mla",
        "rope.dimension_count",
        "expert_feed_forward_length",
    ] {
        let key = format!("deepseek2.{key}");
        let error = refused(&|w| {
            w.remove(&key);
        });
        assert!(error.contains(&key), "{key}: {error}");
    }
    // transformers and llama.cpp differ about YaRN without its multiplier.
    let error = refused(&|w| {
        let yarn = MetaValue::Text("yarn".to_owned());
        w.set("deepseek2.rope.scaling.type", yarn);
    });
    assert!(error.contains("yarn_log_multiplier"), "{error}");
    // Without the lengths for absorbed attention, the file would have `attn_kv_b`.
    let error = refused(&|w| {
        w.remove("deepseek2.attention.key_length_mla");
        w.set("deepseek2.attention.head_count_kv", whole(4));
        w.set("deepseek2.attention.key_length", whole(16));
        w.set("deepseek2.attention.value_length", whole(16));
    });
    assert!(error.contains("attn_k_b"), "{error}");
    let options = OpenOptions {
        rope: Some(RopeChoice::Yarn(4.0)),
    };
    let error = open(&tiny("deepseek2").writer(), &options).unwrap_err();
    assert!(error.to_string().contains("latent attention"), "{error}");
}

/// A file that does not name the function of its scores has a bias for the choice of experts if it is the sigmoid.
#[test]
fn the_function_of_scores_is_that_of_the_file() {
    let ids: Vec<u32> = (0..8).collect();
    let logits = |change: &dyn Fn(&mut GgufWriter)| {
        let mut writer = tiny("deepseek2").writer();
        change(&mut writer);
        batched(&opened(&writer), &ids)
    };
    let key = "deepseek2.expert_gating_func";
    let without_bias = |w: &mut GgufWriter| {
        for layer in 1..6 {
            w.remove_tensor(&format!("blk.{layer}.exp_probs_b.bias"));
        }
    };
    let sigmoid = logits(&|_| {});
    let unnamed = logits(&|w| {
        w.remove(key);
    });
    assert_eq!(sigmoid, unnamed);
    let softmax = logits(&|w| {
        w.set(key, MetaValue::Whole(1));
        without_bias(w);
    });
    let unnamed = logits(&|w| {
        w.remove(key);
        without_bias(w);
    });
    assert_eq!(softmax, unnamed);
    assert!(relative_distance(&sigmoid, &softmax) > 1e-3);
    let undivided = logits(&|w| {
        w.set("deepseek2.expert_weights_norm", MetaValue::Flag(false));
    });
    assert!(relative_distance(&sigmoid, &undivided) > 1e-3);
}
