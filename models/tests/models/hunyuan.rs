//! Files of Hunyuan, whose norms of queries and keys follow RoPE.

use crate::architectures::{config, open, tiny};
use crate::support::relative_distance;
use kept_models::testing::GgufWriter;
use kept_models::{ModelError, OpenOptions, RopeChoice, RopeTable};

/// `weight * x / rms(x)`
fn normed(x: &[f32], weights: &[f32]) -> Vec<f32> {
    let square: f32 = x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32;
    let factor = 1.0 / (square + 1e-5).sqrt();
    let each = x.iter().zip(weights);
    each.map(|(x, weight)| weight * x * factor).collect()
}

/// The weights are split so that dot products are those of norms after RoPE, and keys have their length.
#[test]
fn norms_after_rope_are_computed_around_it() {
    let of_queries: Vec<f32> = (0..16).map(|i| 1.0 + 0.1 * (i as f32).sin()).collect();
    let mut of_keys: Vec<f32> = (0..16).map(|i| 0.5 + (i as f32).cos()).collect();
    (of_keys[3], of_keys[11], of_keys[4]) = (0.0, 0.0, -0.25);
    let write = |w: &mut GgufWriter| {
        for (part, weights) in [("q", &of_queries), ("k", &of_keys)] {
            let name = format!("blk.2.attn_{part}_norm.weight");
            w.remove_tensor(&name);
            w.tensor(&name, &[16], "F32", weights);
        }
    };
    let config = config("hunyuan-dense", write);
    let norm = &config.norms_after_rope[2];
    let sum = |x: &[f32]| x.iter().map(|x| x * x).sum::<f32>();
    assert!((sum(&norm.key) - sum(&of_keys)).abs() < 1e-4);
    assert_eq!(norm.key[..8], norm.key[8..], "a pair has one weight");
    let table = RopeTable::new(&config, 64);
    let rope = table.of_layer(2).unwrap();
    let x = |seed: f32| -> Vec<f32> { (0..16).map(|i| (i as f32 * seed).sin()).collect() };
    let (query, key) = (x(0.7), x(1.3));
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    for (of_query, of_key) in [(0, 0), (9, 2), (40, 39), (63, 1)] {
        let turned = |x: &[f32], at: usize, weights: &[f32]| {
            let mut x = x.to_vec();
            rope.rotate_at(&mut x, at);
            normed(&x, weights)
        };
        let right = dot(
            &turned(&query, of_query, &of_queries),
            &turned(&key, of_key, &of_keys),
        );
        let mut own_query = normed(&query, &[1.0; 16]);
        let mut own_key = normed(&key, &norm.key);
        rope.rotate_query_at(&mut own_query, of_query);
        rope.rotate_at(&mut own_key, of_key);
        let found = dot(&own_query, &own_key);
        assert!((found - right).abs() < 1e-4, "{found} for {right}");
        // Rows rotate as one row does.
        let mut rows = [x(0.2), normed(&query, &[1.0; 16])].concat();
        let first = of_query.saturating_sub(1);
        rope.rotate_queries(&mut rows, 1, first);
        let mut one = normed(&query, &[1.0; 16]);
        rope.rotate_query_at(&mut one, first + 1);
        assert!(relative_distance(&rows[16..], &one) < 1e-6);
    }
}

/// The norms divide by YaRN's magnitude.
#[test]
fn norms_after_rope_leave_no_magnitude() {
    let rope = Some("yarn:4".parse::<RopeChoice>().unwrap());
    let model = open(&tiny("hunyuan-dense").writer(), &OpenOptions { rope }).unwrap();
    let rope = &model.config().rope;
    assert_eq!((rope.magnitude, rope.scaling.name()), (1.0, "yarn"));
    assert!(
        model
            .dense_weights()
            .is_err_and(|part| part.contains("after RoPE"))
    );
}

/// Without its width, the expert for every token would be left out.
#[test]
fn an_expert_for_every_token_without_a_width_is_refused() {
    for arch in ["hunyuan-moe", "granitemoe"] {
        let mut writer = tiny(arch).writer();
        writer.remove(&format!("{arch}.expert_shared_feed_forward_length"));
        let error = open(&writer, &OpenOptions::default()).unwrap_err();
        let name = "blk.0.ffn_down_shexp.weight".to_owned();
        assert_eq!(error, ModelError::UnknownTensor { name }, "{arch}");
    }
}
