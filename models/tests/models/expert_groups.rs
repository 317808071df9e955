//! Experts that are chosen from groups (DeepSeek V3, Ling 2.0), and their expert for every token.

use crate::architectures::{config, open, opened, tiny};
use crate::support::{batched, relative_distance, row_wise};
use kept_models::testing::{GgufWriter, MetaValue};
use kept_models::{ModelError, OpenOptions};

const ARCHITECTURES: [&str; 3] = ["deepseek2", "bailingmoe2", "glm4moe"];

/// Sets the groups of four experts, and how many of them a token uses.
fn grouped(w: &mut GgufWriter, arch: &str, groups: u32, used: u32) {
    for (key, n) in [("count", groups), ("used_count", used)] {
        w.set(&format!("{arch}.expert_group_{key}"), MetaValue::Whole(n));
    }
}

#[test]
fn experts_outside_the_chosen_groups_are_not_used() {
    let ids: Vec<u32> = (0..40).map(|i| i * 13 % 280).collect();
    for arch in ARCHITECTURES {
        let of = |groups: u32, used: u32| {
            let mut writer = tiny(arch).writer();
            grouped(&mut writer, arch, groups, used);
            let model = opened(&writer);
            let (many, one) = (batched(&model, &ids), row_wise(&model, &ids));
            assert!(relative_distance(&many, &one) < 1e-5, "{arch}");
            one
        };
        let (all, one_of_two) = (of(1, 1), of(2, 1));
        assert_eq!(of(2, 2), all, "{arch}: all groups are one");
        assert!(relative_distance(&one_of_two, &all) > 1e-2, "{arch}");
    }
}

#[test]
fn other_groups_are_refused_by_their_key() {
    let refused = |arch: &'static str, change: &dyn Fn(&mut GgufWriter)| {
        let mut writer = tiny(arch).writer();
        change(&mut writer);
        let error = open(&writer, &OpenOptions::default()).unwrap_err();
        let sentence = error.to_string();
        assert!(sentence.len() < 400, "{sentence}");
        sentence
    };
    for arch in ARCHITECTURES {
        for (groups, used, says) in [
            (3, 1, "groups of at least 2"),
            (4, 2, "groups of at least 2"),
            (65, 2, "groups of at least 2"),
            (2, 3, "out of 2"),
            (2, 0, "from 1 to"),
        ] {
            let error = refused(arch, &|w| grouped(w, arch, groups, used));
            assert!(error.contains(says), "{arch}, {groups}: {error}");
            assert!(error.contains("expert_group_"), "{error}");
        }
        let error = refused(arch, &|w| {
            grouped(w, arch, 2, 1);
            w.remove(&format!("{arch}.expert_group_used_count"));
        });
        assert!(error.contains("expert_group_used_count"), "{error}");
        // More experts than the groups have.
        let error = refused(arch, &|w| {
            grouped(w, arch, 2, 1);
            w.set(&format!("{arch}.expert_used_count"), MetaValue::Whole(3));
        });
        assert!(error.contains("groups with 3 experts"), "{error}");
        // transformers and llama.cpp score groups of a softmax differently.
        let error = refused(arch, &|w| {
            grouped(w, arch, 2, 1);
            w.set(&format!("{arch}.expert_gating_func"), MetaValue::Whole(1));
        });
        assert!(error.contains("softmax"), "{error}");
    }
    let error = refused("ernie4_5-moe", &|w| grouped(w, "ernie4_5-moe", 2, 1));
    assert!(
        error.contains("only 1 is supported in ernie4_5-moe"),
        "{error}"
    );
}

/// Ling's expert for every token is as wide as its key says, once for each that is declared.
#[test]
fn the_width_of_counted_experts_may_be_declared() {
    const WIDTH: &str = "bailingmoe2.expert_shared_feed_forward_length";
    let shared = |spoil: &dyn Fn(&mut GgufWriter)| {
        let config = config("bailingmoe2", spoil);
        config.experts.unwrap().shared_ffn
    };
    assert_eq!(shared(&|_| {}), Some(96));
    let undeclared = |w: &mut GgufWriter| {
        w.remove(WIDTH);
    };
    assert_eq!(shared(&undeclared), Some(96));
    let halves = |w: &mut GgufWriter| {
        w.set(WIDTH, MetaValue::Whole(48));
        w.set("bailingmoe2.expert_shared_count", MetaValue::Whole(2));
    };
    assert_eq!(shared(&halves), Some(96));
    let mut writer = tiny("bailingmoe2").writer();
    writer.set("bailingmoe2.expert_shared_count", MetaValue::Whole(2));
    let error = open(&writer, &OpenOptions::default()).unwrap_err();
    assert!(matches!(error, ModelError::WrongShape { .. }), "{error}");
}
