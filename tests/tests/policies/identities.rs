//! Identities between methods and between parameters that hold for all inputs (specification, section 8).
//!
//! proptest generates the inputs and shrinks failing ones. Mostly methods without a model, on naive attention.

use kept_engine::kernels::{DecodeAttention, DecodeScratch, HeadShape, RowStore, decode_attention};
use kept_policies::{
    ModelShape, Observation, Pos, PromptShape, Retention, Row, RowRequest, Schedule, Selection,
    StepObservation, build, methods, thinning_lengths,
};
use kept_tests::cases::Case;
use kept_tests::selecting::{Measured, Replay, kept, newest};
use proptest::prelude::*;
use serde_json::json;

/// A prompt with random attention: group 1, 2, 4 or 7, one to three KV heads.
#[derive(Debug, Clone)]
struct Drawn {
    seed: u64,
    n: usize,
    group: usize,
    kv_heads: usize,
    w: usize,
    sinks: usize,
    /// Rows beyond the observation window, the sinks and one.
    spare: usize,
}

fn drawn() -> impl Strategy<Value = Drawn> {
    let group = prop_oneof![Just(1usize), Just(2), Just(4), Just(7)];
    (
        any::<u32>(),
        16..70usize,
        group,
        1..4usize,
        1..7usize,
        0..5usize,
        0..60usize,
    )
        .prop_map(|(seed, n, group, kv_heads, w, sinks, spare)| Drawn {
            seed: u64::from(seed),
            n,
            group,
            kv_heads,
            w,
            sinks,
            spare,
        })
}

impl Drawn {
    fn budget(&self) -> usize {
        self.w + self.sinks + 1 + self.spare
    }

    fn case(&self, method: &str, set: &str, budget: usize) -> Case {
        let pairs = set.split(',').filter_map(|pair| pair.split_once('='));
        let set: serde_json::Map<_, _> = pairs.map(|(a, b)| (a.to_owned(), json!(b))).collect();
        Case::from_json(&json!({
            "method": method, "seed": self.seed, "n": self.n, "q_heads": self.group * self.kv_heads,
            "kv_heads": self.kv_heads, "head_dim": 8, "budget": budget, "set": set, "kept": [],
        }))
    }

    fn kept(&self, method: &str, set: &str) -> Vec<Vec<u32>> {
        let (w, sinks) = (self.w, self.sinks);
        let set = set
            .replace("w=?", &format!("w={w}"))
            .replace("sinks=?", &format!("sinks={sinks}"));
        kept(&self.case(method, &set, self.budget()), Measured::Slowly)
    }
}

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 48,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    /// Exactly the budget, ascending, without repeats, with sinks and observation window.
    #[test]
    fn what_is_kept_is_exact_and_holds_what_is_protected(d in drawn()) {
        for (method, set, window) in [
            ("streaming_llm", "sinks=?", 1),
            ("snapkv", "w=?,sinks=?,kernel=5", d.w),
            ("chunkkv", "w=?,sinks=?,chunk=4", d.w),
            ("chunkkv", "w=?,sinks=?,chunk=7,heads=per_head", d.w),
            ("hbw_kv", "w=?,sinks=?,block=3", d.w),
            ("tova", "sinks=?", 1),
            ("h2o", "sinks=?,recent=1", 1),
        ] {
            for head in d.kept(method, set) {
                prop_assert_eq!(head.len(), d.budget().min(d.n), "{}", method);
                prop_assert!(head.is_sorted_by(|a, b| a < b), "{}: {:?}", method, head);
                prop_assert!((0..d.sinks.min(d.n) as u32).all(|p| head.contains(&p)), "{}: sinks of {:?}", method, head);
                prop_assert!((d.n - window..d.n).all(|p| head.contains(&(p as u32))), "{}: window of {:?}", method, head);
            }
        }
    }

    /// HBW-KV in blocks of one with one round, ChunkKV in chunks of one per head, and SnapKV without pooling are equal.
    #[test]
    fn units_of_one_are_snapkv_without_pooling(d in drawn()) {
        let snapkv = d.kept("snapkv", "w=?,sinks=?,kernel=1");
        prop_assert_eq!(&d.kept("chunkkv", "w=?,sinks=?,chunk=1,heads=per_head"), &snapkv);
        prop_assert_eq!(&d.kept("hbw_kv", "w=?,sinks=?,block=1,rounds=1,shares=1"), &snapkv);
    }

    /// With one KV head, sharing a budget between heads has no effect.
    #[test]
    fn one_head_shares_with_itself(mut d in drawn()) {
        d.kv_heads = 1;
        prop_assert_eq!(d.kept("chunkkv", "w=?,sinks=?,chunk=5"), d.kept("chunkkv", "w=?,sinks=?,chunk=5,heads=per_head"));
    }

    /// The schedule of PyramidKV sums to the budget exactly, never rises, and never exceeds the prompt.
    #[test]
    fn the_pyramid_sums_to_its_budget(avg in 1..400usize, more in 0..4000usize, w in 1..40usize, layers in 1..90usize, beta in 1.0..40.0f64) {
        let n = avg + w + more;
        let rows = Schedule::Exact.prefix_rows(avg, w, n, layers, beta);
        prop_assert_eq!(rows.iter().sum::<usize>(), layers * avg);
        prop_assert!(rows.is_sorted_by(|a, b| a >= b), "{:?}", rows);
        prop_assert!(rows[0] <= n - w);
    }

    /// Every method keeps all of a prompt that fits.
    #[test]
    fn a_prompt_that_fits_is_untouched(d in drawn(), over in 0..9usize) {
        for method in methods() {
            let plan = build(method.name, &[]).expect("a method").plan(&d.request(3, d.n + over));
            // TreeKV still needs a minimum budget for its parts.
            if let Ok(plan) = plan {
                prop_assert!(plan.rows.iter().all(|&rows| rows >= d.n), "{}: {:?}", method.name, plan.rows);
            } else {
                prop_assert!(method.name == "treekv", "{}", method.name);
            }
        }
    }

    /// ChunkKV's follower layers request no measurements and copy their leader; with a reuse of 1 every layer selects
    /// by itself.
    #[test]
    fn followers_copy_their_leader(d in drawn(), reuse in 1..5usize, layers in 1..9usize) {
        let method = build("chunkkv", &[
            ("w".into(), d.w.to_string()), ("sinks".into(), d.sinks.to_string()), ("reuse".into(), reuse.to_string()),
        ]).expect("chunkkv");
        let plan = method.plan(&d.request(layers, d.budget())).expect("rows");
        let mut state = method.start(&plan);
        let mut leader: Vec<Vec<u32>> = Vec::new();
        for layer in 0..layers {
            // Every layer has different attention.
            let other = Drawn { seed: d.seed + layer as u64, ..d.clone() };
            let needs = plan.needs[layer];
            prop_assert_eq!(needs.observation_window.is_some(), layer % reuse == 0);
            prop_assert!(!needs.column_sums && !needs.rows && !needs.even_if_all_kept);
            let case = other.case("chunkkv", "", d.budget());
            let window = needs.observation_window.map(|window| case.observed(window));
            let retention = state.select(&plan, &observation(&case, layer, window.as_deref())).retention;
            let alone = other.kept("chunkkv", "w=?,sinks=?,reuse=1");
            let found: Vec<Vec<u32>> = match retention {
                Retention::Everything => vec![(0..d.n as u32).collect(); d.kv_heads],
                Retention::Keep(heads) => heads.into_iter().map(|h| h.into_iter().map(|p| p.0).collect()).collect(),
                Retention::Merge(_) => unreachable!("ChunkKV merges nothing"),
            };
            if layer % reuse == 0 {
                prop_assert_eq!(&found, &alone);
                leader = found;
            } else {
                prop_assert_eq!(&found, &leader);
            }
        }
    }

    /// KVzip's budget spreads against one another: with one head, sharing between heads has no effect; with one layer,
    /// sharing between layers has none; AdaKV without a floor equals sharing between the heads of a layer; and over all
    /// layers the budget is met to the row.
    #[test]
    fn repetition_scores_are_shared_as_they_say(d in drawn(), layers in 1..5usize, before in 0..6usize, after in 0..6usize, seen in prop::collection::vec(0..50u32, 5 * 3 * 70)) {
        let prompt = PromptShape { before, after, ..PromptShape::of(d.n) };
        let budget = before.max(d.sinks) + after + 1 + d.spare;
        let run = |method: &str, set: &str, layers: usize, kv_heads: usize| -> Vec<Vec<Vec<u32>>> {
            let set: Vec<(String, String)> = (format!("{set},sinks={}", d.sinks).split(','))
                .filter_map(|pair| pair.split_once('='))
                .map(|(a, b)| (a.to_owned(), b.to_owned()))
                .collect();
            let method = build(method, &set).expect("a method");
            let model = ModelShape { layers, q_heads: kv_heads * d.group, kv_heads, head_dim: 8 };
            let mut plan = method.plan(&RowRequest { model, prompt, budget }).expect("rows");
            let mut state = method.start(&plan);
            let scores: Vec<Vec<f32>> = (0..layers)
                .map(|layer| seen[layer * kv_heads * d.n..][..kv_heads * d.n].iter().map(|&s| s as f32 / 64.0).collect())
                .collect();
            let told = |layer: usize| Observation { layer, tokens: d.n, kv_heads, group: d.group, reconstruction: Some(&scores[layer]), ..Observation::default() };
            if plan.score_pass {
                (0..layers).for_each(|layer| state.score_pass(&plan, &told(layer)));
                plan = state.allocate_budget(&plan);
            }
            (0..layers).map(|layer| match state.select(&plan, &told(layer)).retention {
                Retention::Everything => vec![(0..d.n as u32).collect(); kv_heads],
                Retention::Keep(heads) => heads.into_iter().map(|head| head.into_iter().map(|p| p.0).collect()).collect(),
                Retention::Merge(_) => unreachable!("KVzip merges nothing"),
            }).collect()
        };
        let heads = d.kv_heads;
        prop_assert_eq!(run("kvzip", "spread=layer", layers, 1), run("kvzip", "spread=head", layers, 1));
        prop_assert_eq!(run("kvzip", "spread=model", 1, heads), run("kvzip", "spread=layer", 1, heads));
        prop_assert_eq!(run("adakv", "base=kvzip,floor=0,safeguard=reserve", layers, heads), run("kvzip", "spread=layer", layers, heads));
        for spread in ["head", "layer", "model"] {
            let kept = run("kvzip", &format!("spread={spread}"), layers, heads);
            let total: usize = kept.iter().flatten().map(Vec::len).sum();
            prop_assert_eq!(total, budget.min(d.n) * layers * heads, "{}", spread);
            let first = before.max(d.sinks).min(d.n);
            for head in kept.iter().flatten() {
                prop_assert!(head.is_sorted_by(|a, b| a < b));
                let ends = (0..first).chain(d.n - after.min(d.n - first)..d.n);
                prop_assert!(ends.into_iter().all(|p| head.contains(&(p as u32))), "{}: {:?}", spread, head);
            }
        }
        // No dropped score exceeds a kept one, over all layers and heads; among equal scores the earlier position is
        // kept.
        let kept = run("kvzip", "spread=model", layers, heads);
        let between = before.max(d.sinks).min(d.n)..d.n - after.min(d.n - before.max(d.sinks).min(d.n));
        let mut order: Vec<(u32, usize, usize, usize)> = (0..layers)
            .flat_map(|l| (0..heads).flat_map(move |h| (0..d.n).map(move |p| (l, h, p))))
            .filter(|(_, _, p)| between.contains(p))
            .map(|(l, h, p)| (u32::MAX - seen[l * heads * d.n + h * d.n + p], l, h, p))
            .collect();
        order.sort_unstable();
        let rows = budget.min(d.n) - (d.n - between.len());
        for (rank, (_, l, h, p)) in order.into_iter().enumerate() {
            prop_assert_eq!(kept[l][h].contains(&(p as u32)), rank < rows * layers * heads, "rank {}", rank);
        }
    }

    /// Token dropping between layers: the lengths never rise, the first layer has all tokens, and a budget is met from
    /// below as closely as any ratio allows, or refused with the smallest reachable one.
    #[test]
    fn thinned_lengths_meet_their_budget(n in 2..3000usize, layers in 1..40usize, share in 0.3..1.0f64, tried in prop::collection::vec(0.0..1.0f64, 40)) {
        let model = ModelShape { layers, q_heads: 2, kv_heads: 1, head_dim: 8 };
        let budget = ((n as f64 * share) as usize).max(1);
        let total = |ratio: f64| thinning_lengths(n, layers, n / 5, 64, ratio).iter().sum::<usize>();
        let method = build("pyramidinfer", &[("variant".into(), "faithful".into())]).expect("a method");
        let plan = |budget: usize| method.plan(&RowRequest { model, prompt: PromptShape::of(n), budget });
        match plan(budget) {
            Ok(plan) => {
                let rows = plan.rows;
                let found = rows.iter().sum::<usize>();
                prop_assert_eq!(rows[0], n);
                prop_assert!(rows.is_sorted_by(|a, b| a >= b), "{:?}", rows);
                prop_assert!(found <= budget * layers, "{} of {}", found, budget * layers);
                let better = tried.into_iter().map(total).filter(|t| *t <= budget * layers && *t > found + layers).count();
                prop_assert_eq!(better, 0, "{} of {}", found, budget * layers);
            }
            Err(error) => {
                prop_assert!(tried.into_iter().map(total).all(|t| t > budget * layers), "{}", error);
                let least: usize = error.to_string().split("at least ").nth(1).and_then(|t| t.split(' ').next()).expect("a figure").parse().expect("a number");
                prop_assert!(least > budget);
                prop_assert!(plan(least).is_ok(), "what is said to be reachable is");
            }
        }
    }

    /// TreeKV without sinks and recent tokens is algorithm 1 as printed in the paper.
    #[test]
    fn a_bare_tree_is_algorithm_1(c in 1..12usize, printed in any::<bool>(), seen in prop::collection::vec(prop::collection::vec(1..64u32, 13), 1..70)) {
        let probability = |step: usize, rank: usize| seen[step][rank] as f32 / 64.0;
        let set = [("sinks", "0"), ("recent", "0"), ("block", "1"), ("rule", if printed { "printed" } else { "cycle" })];
        let mut cache = first_token("treekv", &set, c);
        let (mut rows, mut idx) = (vec![(0u32, 1.0f64, 1.0f64)], 1);
        for step in 0..seen.len() {
            rows.push((step as u32 + 1, 0.0, 0.0));
            for (rank, row) in rows.iter_mut().enumerate() {
                row.1 += f64::from(probability(step, rank));
                row.2 += 1.0;
            }
            let mut gone = None;
            if rows.len() == c + 1 {
                let (left, right) = (rows[idx - 1], rows[idx]);
                let out = if left.1 / left.2 <= right.1 / right.2 { idx - 1 } else { idx };
                gone = Some(rows.remove(out).0);
                idx = if printed { (idx + 1) % c + 1 } else { idx % c + 1 };
            }
            let left = cache.step(Pos(step as u32 + 1), |_, rank| probability(step, rank));
            prop_assert_eq!(left, vec![gone], "step {}", step);
        }
    }

    /// Rows are a set: in another slot order the same position is evicted.
    #[test]
    fn slots_carry_no_order(order in Just((0..9u32).collect::<Vec<_>>()).prop_shuffle(), weights in prop::collection::vec(1..1000u32, 9)) {
        for method in ["streaming_llm", "tova"] {
            let leaves = |slots: &[u32]| {
                let method = build(method, &[("sinks".into(), "2".into())]).expect("a method");
                let model = ModelShape { layers: 1, q_heads: 1, kv_heads: 1, head_dim: 8 };
                let plan = method.plan(&RowRequest { model, prompt: PromptShape::of(8), budget: 8 }).expect("rows");
                let mut evictor = method.start(&plan).evictor().expect("it evicts during decode");
                let positions: Vec<Pos> = slots.iter().copied().map(Pos).collect();
                let probabilities: Vec<f32> = slots.iter().map(|&p| weights[p as usize] as f32 / 1000.0).collect();
                let mut evict = [None];
                evictor.step(&StepObservation {
                    layer: 0, rows: &[9], firsts: &[0], positions: &positions, newest: &[newest(&positions)], group: 1, probabilities: &probabilities, stride: 9,
                }, &mut evict);
                evict[0].map(|Row(slot)| slots[slot as usize])
            };
            let straight: Vec<u32> = (0..9).collect();
            prop_assert!(leaves(&straight).is_some());
            prop_assert_eq!(leaves(&straight), leaves(&order), "{}", method);
        }
    }

    /// Where keys carry their positions (RoPE applied), rows stored in another order give the same attention.
    #[test]
    fn rows_carry_no_order(d in drawn(), order in Just((0..40usize).collect::<Vec<_>>()).prop_shuffle()) {
        let d = Drawn { n: 40, ..d };
        let case = d.case("full", "", 40);
        let shape = HeadShape { q_heads: case.q_heads, kv_heads: case.kv_heads, head_dim: 8 };
        let attention = |order: &[usize]| {
            let stored = |tensor: &[f32]| {
                let mut store = RowStore::uniform(case.kv_heads, 40, 8);
                for head in 0..case.kv_heads {
                    for (slot, row) in order.iter().enumerate() {
                        store.row_mut(head, slot).copy_from_slice(&tensor[(head * 40 + row) * 8..][..8]);
                    }
                }
                store
            };
            let (keys, values) = (stored(&case.k), stored(&case.v));
            let query: Vec<f32> = (0..case.q_heads).flat_map(|head| case.q[(head * 40 + 39) * 8..][..8].to_vec()).collect();
            let task = DecodeAttention {
                shape, scale: 0.35.into(), query: &query, keys: &keys, values: &values, rows: &vec![40; case.kv_heads], rotation: None,
            };
            let mut out = vec![0.0; case.q_heads * 8];
            decode_attention(&task, &mut DecodeScratch::new(shape, 40, 1), &mut out);
            out
        };
        let straight: Vec<usize> = (0..40).collect();
        for (a, b) in attention(&straight).iter().zip(attention(&order)) {
            prop_assert!((a - b).abs() < 1e-5, "{} is not {}", a, b);
        }
    }

    /// A cache never exceeds its budget, whatever the attention, and always holds the newest token and the sinks.
    #[test]
    fn a_cache_never_outgrows_its_budget(budget in 8..14usize, seen in prop::collection::vec(prop::collection::vec(0..1000u32, 15), 20..60)) {
        for (method, set) in [
            ("streaming_llm", &[("sinks", "2")][..]),
            ("h2o", &[("sinks", "2"), ("recent", "3")]),
            ("tova", &[("sinks", "2")]),
            ("treekv", &[("sinks", "2"), ("recent", "3"), ("block", "1")]),
        ] {
            let mut cache = first_token(method, set, budget);
            for (step, row) in seen.iter().enumerate() {
                let new = step as u32 + 1;
                cache.step(Pos(new), |_, rank| row[rank] as f32 / 1000.0);
                let held = cache.held(0);
                prop_assert_eq!(held.len(), budget.min(new as usize + 1), "{}", method);
                prop_assert!(held.is_sorted_by(|a, b| a < b));
                prop_assert!(held.contains(&new) && held.contains(&0) && held.contains(&1), "{}: {:?}", method, held);
            }
        }
    }
}

impl Drawn {
    fn model(&self, layers: usize) -> ModelShape {
        ModelShape {
            layers,
            q_heads: self.group * self.kv_heads,
            kv_heads: self.kv_heads,
            head_dim: 8,
        }
    }

    fn request(&self, layers: usize, budget: usize) -> RowRequest {
        RowRequest {
            model: self.model(layers),
            prompt: PromptShape::of(self.n),
            budget,
        }
    }
}

fn observation<'a>(case: &Case, layer: usize, window: Option<&'a [f32]>) -> Observation<'a> {
    Observation {
        layer,
        tokens: case.n,
        kv_heads: case.kv_heads,
        group: case.q_heads / case.kv_heads,
        observation_window: window,
        column_sums: None,
        ..Observation::default()
    }
}

/// A cache of one KV head with the first token, whose query attended to itself.
fn first_token(method: &str, set: &[(&str, &str)], budget: usize) -> Replay {
    let set: Vec<(String, String)> = (set.iter())
        .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()))
        .collect();
    let method = build(method, &set).expect("a method");
    let request = RowRequest {
        model: ModelShape {
            layers: 1,
            q_heads: 1,
            kv_heads: 1,
            head_dim: 8,
        },
        prompt: PromptShape::of(1),
        budget,
    };
    let plan = method.plan(&request).expect("rows");
    let mut state = method.start(&plan);
    let seen = [1.0f32];
    let observation = Observation {
        layer: 0,
        tokens: 1,
        kv_heads: 1,
        group: 1,
        observation_window: Some(&seen),
        column_sums: Some(&seen),
        ..Observation::default()
    };
    let selection = state.select(&plan, &observation);
    assert_eq!(selection, Selection::from(Retention::Everything));
    Replay::new(state, 1, &[vec![0]])
}
