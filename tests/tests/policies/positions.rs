//! Rows are not positions, for every method: after evictions, the next logits equal full attention with the evicted
//! keys masked; with re-assigned positions, those of the renumbered sequence. After selection and during decode.
//!
//! The test covers every method of the registry.

use kept_engine::models::{Model, RopeTable};
use kept_engine::policies::{
    ModelShape, Parameters, Positions, PromptShape, RowRequest, build, methods,
};
use kept_tests::compare::{apart, assert_same};
use kept_tests::engine::{Stepped, open, read_and_step};
use kept_tests::golden::{self, Tensors, Unpacked};
use kept_tests::slow::{Slow, Standing};

/// Relative to the largest logit of a row.
const BOUND: f32 = 2e-4;
const PROMPT: usize = 72;
const STEPS: usize = 14;
const BUDGET: usize = 24;

/// Methods whose rows are no longer rows of the prompt: merging ones have their own tests.
const MERGING: [&str; 2] = ["ems", "cam"];

/// Every method at its defaults, and with parameters that change positions or the sharing between heads.
fn variants() -> Vec<(&'static str, &'static str)> {
    let defaults = methods().iter().map(|method| (method.name, ""));
    let others = [
        ("streaming_llm", "positions=original"),
        ("streaming_llm", "sinks=0"),
        ("h2o", "recent=4,sinks=0"),
        ("tova", "force_last=false,sinks=0"),
        ("snapkv", "w=4,group=max,pooling=avg"),
        ("pyramidkv", "beta=2,schedule=code,sinks=0"),
        ("chunkkv", "heads=per_head,chunk=3"),
        ("chunkkv", "variant=literal,chunk=4,reuse=1"),
        ("hbw_kv", "block=3,norm=prefix"),
        ("treekv", "positions=original"),
        ("treekv", "decode=off"),
        ("adakv", "base=pyramidkv,floor=0"),
        ("adakv", "decode_cap=26,decode_every=3,decode_w=2,w=4"),
        ("scissorhands", "drop=3,history=9"),
        ("treekv", "block=4,recent=3,rule=printed"),
        ("adakv", "base=h2o,safeguard=reserve,floor=0"),
        ("adakv", "base=keydiff,floor=0.5"),
        ("keydiff", "sinks=0,recent=3"),
        ("expected_attention", "future=40,covariance=false"),
        ("kvzip", "spread=head,chunk=20"),
        ("kvzip", "spread=model,sinks=0"),
        (
            "kvzip",
            "spread=model,decode_cap=26,decode_every=3,decode_w=2",
        ),
        ("adakv", "base=kvzip,floor=0.3"),
        ("snapkv", "w=4,decode_cap=27,decode_every=4,decode_w=3"),
        // A threshold above any similarity: rows are only evicted, never merged.
        ("ems", "tau=2"),
        ("ems", "tau=2,w=4,sinks=0,protect=0"),
    ];
    defaults
        .chain(others)
        .filter(|(name, set)| !MERGING.contains(name) || set.contains("tau=2"))
        .collect()
}

fn ids(model: &Model) -> Vec<u32> {
    let usable = model.config().vocab as u32 - 3;
    (0..(PROMPT + STEPS) as u32)
        .map(|i| 3 + (i * i + i * 37 + 11) % usable)
        .collect()
}

fn request(model: &Model, budget: usize) -> RowRequest {
    let config = model.config();
    RowRequest {
        model: ModelShape {
            layers: config.layers,
            q_heads: config.q_heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
        },
        prompt: PromptShape::of(PROMPT),
        budget,
    }
}

fn run(model: &Model, name: &str, set: &str, budget: usize, ids: &[u32]) -> (Stepped, Standing) {
    let set = Parameters::parse_assignments(set).expect("parameters");
    let method = build(name, &set).unwrap_or_else(|e| panic!("{e}"));
    let plan = method.plan(&request(model, budget));
    let plan = plan.unwrap_or_else(|e| panic!("{e}"));
    let (prompt, steps) = ids.split_at(PROMPT);
    let found = read_and_step(model, &*method, budget, 19, prompt, steps);
    let standing = match plan.positions {
        Positions::Original => Standing::Original,
        Positions::Reassigned => Standing::Ranks,
    };
    (found, standing)
}

/// A model after prefill with full attention, and the logits after it.
fn read<'m>(model: &'m Model, rope: &'m RopeTable, ids: &[u32]) -> (Slow<'m>, Vec<f32>) {
    let mut slow = Slow::new(model, rope);
    let mut logits = Vec::new();
    for &token in &ids[..PROMPT] {
        logits = slow.read(token);
    }
    (slow, logits)
}

#[test]
fn logits_are_those_of_full_attention_with_a_mask() {
    let llamas = [
        "group1-plain-tied",
        "group2-llama3-tied",
        "group4-linear-untied",
    ];
    let llamas = llamas.map(|stem| (stem, open(&golden::model(stem))));
    // Sliding windows, soft caps, layers without RoPE, scaled RoPE, partial RoPE, norms after RoPE.
    let others = [
        "gemma2",
        "gemma3",
        "smollm3",
        "phi-4-mini",
        "qwen3",
        "hunyuan-dense",
    ];
    let others = others.map(|stem| (stem, open(&Unpacked::architecture(stem).path())));
    for (stem, model) in llamas.into_iter().chain(others) {
        let ids = ids(&model);
        let rope = RopeTable::new(model.config(), ids.len());
        let (slow, first) = read(&model, &rope, &ids);
        let full = run(&model, "full", "", PROMPT, &ids).0.logits;
        for (name, set) in variants() {
            let what = format!("{stem} {name} {set}");
            let (found, standing) = run(&model, name, set, BUDGET, &ids);
            assert_same(
                &found.logits[0],
                &first,
                BOUND,
                &format!("{what}: the prompt"),
            );
            let mut slow = slow.clone();
            let mut moved = 0;
            for (step, held) in found.held.iter().enumerate() {
                let expected = slow.step(ids[PROMPT + step], standing, |layer, head| {
                    &held[layer][head]
                });
                assert_same(
                    &found.logits[1 + step],
                    &expected,
                    BOUND,
                    &format!("{what}: step {step}"),
                );
                moved += usize::from(apart(&full[1 + step], &expected) > 10.0 * BOUND);
            }
            // The test is meaningful: most steps differ from the full cache far beyond the bound.
            assert!(
                name == "full" || 2 * moved > STEPS,
                "{what}: {moved} steps moved"
            );
        }
    }
}

/// Methods that declare eviction during decode never exceed their declared rows, and do evict rows from the middle of
/// the prompt.
#[test]
fn rows_leave_while_answering() {
    let model = open(&golden::model("group2-llama3-tied"));
    let ids = ids(&model);
    for name in ["streaming_llm", "h2o", "tova", "treekv"] {
        let (found, _) = run(&model, name, "", BUDGET, &ids);
        for heads in found.held.iter().flatten() {
            assert!(heads.iter().all(|head| head.len() <= BUDGET), "{name}");
        }
        let (first, last) = (&found.held[0], &found.held[STEPS - 1]);
        let left = (first.iter().flatten().zip(last.iter().flatten()))
            .flat_map(|(first, last)| first.iter().filter(|p| !last.contains(p)))
            .count();
        assert!(left >= STEPS / 2, "{name}: {left} rows left");
    }
}

/// With `decode=off`, every step appends a row and none leaves; streaming mode, which evicts, is refused.
#[test]
fn rows_are_only_appended_with_decode_off() {
    let model = open(&golden::model("group2-llama3-tied"));
    let ids = ids(&model);
    for name in ["h2o", "tova", "treekv"] {
        let (found, _) = run(&model, name, "decode=off", BUDGET, &ids);
        let first = &found.held[0];
        for (step, held) in found.held.iter().enumerate() {
            for (first, head) in first.iter().flatten().zip(held.iter().flatten()) {
                assert_eq!(head.len(), first.len() + step, "{name}");
                assert!(first.iter().all(|p| head.contains(p)), "{name}");
            }
        }
        let set = Parameters::parse_assignments("decode=off").expect("a parameter");
        let method = build(name, &set).expect("a method");
        let refused = method.stream_plan(&request(&model, BUDGET));
        let refused = refused.expect_err("streaming evicts");
        assert!(refused.to_string().contains("decode=off"), "{refused}");
    }
}

/// With nothing to evict, every method equals the full cache: bit for bit where keys keep their text positions.
#[test]
fn a_budget_that_holds_everything_changes_nothing() {
    let model = open(&golden::model("group2-llama3-tied"));
    let ids = ids(&model);
    let full = run(&model, "full", "", PROMPT, &ids).0.logits;
    // A decode cap below the budget is refused.
    let uncapped = |(_, set): &(&str, &str)| !set.contains("decode_cap");
    for (name, set) in variants().into_iter().filter(uncapped) {
        for budget in [PROMPT + STEPS, 10 * PROMPT] {
            let what = format!("{name} {set} at {budget}");
            let (found, standing) = run(&model, name, set, budget, &ids);
            if standing == Standing::Original {
                assert_eq!(found.logits, full, "{what}");
            } else {
                for (row, reference) in found.logits.iter().zip(&full) {
                    assert_same(row, reference, 1e-5, &what);
                }
            }
        }
    }
}

/// Prefill uses full attention whatever the selection: the first token does not depend on it.
#[test]
fn the_first_token_is_that_of_the_full_cache() {
    let model = open(&golden::model("group4-linear-untied"));
    let ids = &ids(&model)[..];
    let full = run(&model, "full", "", PROMPT, ids).0.logits;
    for (name, set) in variants() {
        let found = run(&model, name, set, BUDGET, ids).0.logits;
        assert_eq!(found[0], full[0], "{name} {set}");
    }
}

/// The reference model itself: on random rows it agrees with transformers and a mask.
#[test]
fn the_slow_model_is_transformers_with_a_mask() {
    for stem in ["group2-llama3-tied", "group4-linear-untied"] {
        let model = open(&golden::model(stem));
        let tensors = Tensors::golden(&format!("{stem}.evicted"));
        let ids = tensors.whole("ids");
        let prompt = tensors.whole("prompt")[0];
        let rope = RopeTable::new(model.config(), ids.len());
        let mut held: Vec<Vec<Vec<u32>>> = (0..model.config().layers)
            .map(|layer| tensors.whole_rows(&format!("random_kept_{layer}")))
            .collect();
        let mut slow = Slow::new(&model, &rope);
        let mut found = Vec::new();
        for (position, &token) in (0u32..).zip(&ids) {
            if position < prompt {
                found = vec![slow.read(token)];
                continue;
            }
            found.push(slow.step(token, Standing::Original, |layer, head| &held[layer][head]));
            held.iter_mut()
                .flatten()
                .for_each(|head| head.push(position));
        }
        for (row, reference) in found.iter().zip(&tensors.rows("random_logits")) {
            assert_same(row, reference, 1e-4, stem);
        }
    }
}
