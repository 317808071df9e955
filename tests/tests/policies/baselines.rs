//! The two baselines, by their definitions: KNorm keeps the keys of the smallest norms, Random keeps random tokens.

use kept_policies::{Observation, PromptShape, RowRequest, build};
use kept_tests::cases::Case;
use kept_tests::golden;
use kept_tests::selecting::{Measured, kept, positions, request};

fn own(set: &[(&str, &str)]) -> Vec<(String, String)> {
    let pairs = set.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned()));
    pairs.collect()
}

/// The cases of KVzip, some of which have a question after the document, for another method with as many sinks.
fn cases(method: &str) -> Vec<Case> {
    let cases = golden::packed("selections/kvzip.json.gz");
    let cases = cases.as_array().expect("a list of cases").iter();
    cases
        .map(|case| {
            let mut case = Case::from_json(case);
            case.set.retain(|(name, _)| name == "sinks");
            case.method = method.to_owned();
            case
        })
        .collect()
}

/// First and last tokens that both methods keep whatever their scores.
fn ends(case: &Case) -> [usize; 2] {
    let sinks = case.set.iter().find(|(name, _)| name == "sinks");
    let sinks = sinks.map_or(4, |(_, sinks)| sinks.parse().expect("a number"));
    [sinks, case.prompt().after]
}

/// The `budget` tokens of each head with the smallest norms, the ends among them; of equals the earlier.
fn smallest_norms(case: &Case) -> Vec<Vec<u32>> {
    let (n, [sinks, after]) = (case.n, ends(case));
    if case.budget >= n {
        return vec![(0..n as u32).collect(); case.kv_heads];
    }
    let heads = case.k.chunks_exact(n * case.head_dim);
    let kept = heads.map(|keys| {
        let norm = |token: usize| -> f32 {
            let key = &keys[token * case.head_dim..][..case.head_dim];
            let sum: f64 = key.iter().map(|x| f64::from(*x).powi(2)).sum();
            sum.sqrt() as f32
        };
        let mut order: Vec<usize> = (sinks..n - after).collect();
        order.sort_by(|&a, &b| norm(a).total_cmp(&norm(b)));
        order.truncate(case.budget - sinks - after);
        order.extend((0..sinks).chain(n - after..n));
        order.sort_unstable();
        order.into_iter().map(|token| token as u32).collect()
    });
    kept.collect()
}

#[test]
fn knorm_keeps_the_keys_of_the_smallest_norms() {
    let cases = cases("knorm");
    assert!(cases.len() >= 500);
    let (mut untouched, mut asked) = (0, 0);
    for case in cases {
        let expected = smallest_norms(&case);
        for measured in [Measured::Slowly, Measured::ByKernel] {
            let found = kept(&case, measured);
            assert_eq!(found, expected, "{measured:?}: {}", case.describe());
        }
        untouched += usize::from(case.budget >= case.n);
        asked += usize::from(case.prompt().after > 0);
    }
    assert!(untouched >= 50, "{untouched} budgets that hold everything");
    assert!(asked >= 100, "{asked} cases with a question");
}

/// The drawing at the head of `knorm.rs`.
#[test]
fn the_worked_example_of_knorm() {
    let case = Case {
        method: "knorm".to_owned(),
        set: own(&[("sinks", "0")]),
        budget: 2,
        n: 5,
        q_heads: 1,
        kv_heads: 1,
        head_dim: 2,
        k: vec![3.0, 4.0, 0.0, -1.0, 4.0, 0.0, 2.0, 0.0, 0.0, 3.0],
        v: vec![0.0; 10],
        layer: 0,
        layers: 1,
        repetition: None,
        ..cases("knorm").swap_remove(0)
    };
    assert_eq!(kept(&case, Measured::ByKernel), [[1, 3]]);
}

/// What Random keeps of a prompt: `[layer][kv head]` positions.
fn drawn(seed: &str, prompt: PromptShape, budget: usize) -> Vec<Vec<Vec<u32>>> {
    let case = Case {
        layers: 3,
        kv_heads: 4,
        q_heads: 8,
        n: prompt.tokens,
        ..cases("random").swap_remove(0)
    };
    let method = build("random", &own(&[("seed", seed)])).expect("random");
    let request = RowRequest {
        prompt,
        budget,
        ..request(&case)
    };
    let plan = method.plan(&request).expect("rows");
    let mut state = method.start(&plan);
    let layers = 0..case.layers;
    layers
        .map(|layer| {
            let observation = Observation {
                layer,
                tokens: prompt.tokens,
                kv_heads: case.kv_heads,
                group: 2,
                ..Observation::default()
            };
            positions(&state.select(&plan, &observation).retention, &case)
        })
        .collect()
}

#[test]
fn random_keeps_its_budget_and_what_is_protected() {
    for case in cases("random") {
        let [sinks, after] = ends(&case);
        let found = kept(&case, Measured::Slowly);
        assert_eq!(found, kept(&case, Measured::ByKernel));
        for head in found {
            assert_eq!(head.len(), case.budget.min(case.n), "{}", case.describe());
            assert!(head.is_sorted_by(|a, b| a < b));
            let mut ends = (0..sinks.min(case.n)).chain(case.n - after..case.n);
            assert!(ends.all(|token| head.contains(&(token as u32))));
        }
    }
}

#[test]
fn random_depends_on_seed_layer_and_head_alone() {
    let prompt = PromptShape {
        after: 5,
        ..PromptShape::of(200)
    };
    let first = drawn("7", prompt, 60);
    assert_eq!(drawn("7", prompt, 60), first, "the same again");
    let mut all: Vec<_> = first.iter().flatten().collect();
    let others: Vec<_> = ["0", "8", "70"]
        .iter()
        .flat_map(|seed| drawn(seed, prompt, 60))
        .collect();
    all.extend(others.iter().flatten());
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count, "every seed, layer and head differs");
    // A larger budget adds tokens and takes none away.
    let larger = drawn("7", prompt, 90);
    let pairs = first.iter().flatten().zip(larger.iter().flatten());
    for (few, many) in pairs {
        assert!(few.iter().all(|token| many.contains(token)));
    }
}

/// No token is preferred: each is kept about as often as any other.
#[test]
fn random_prefers_no_token() {
    let prompt = PromptShape::of(104);
    let mut counts = vec![0u32; 104];
    for seed in 0..50 {
        for token in drawn(&seed.to_string(), prompt, 54)
            .iter()
            .flatten()
            .flatten()
        {
            counts[*token as usize] += 1;
        }
    }
    // 50 seeds, 3 layers and 4 heads draw 50 of 100 tokens: 300 each, with a standard deviation of 12.
    assert!(counts[..4].iter().all(|count| *count == 600), "the sinks");
    let drawn = &counts[4..];
    assert!(
        drawn.iter().all(|count| (240..360).contains(count)),
        "{drawn:?}"
    );
}

/// The wrappers build on the scores of both.
#[test]
fn baselines_can_be_wrapped() {
    for base in ["knorm", "random"] {
        for wrapper in ["adakv", "cam"] {
            for mut case in cases(wrapper).into_iter().step_by(50) {
                case.set.push(("base".to_owned(), base.to_owned()));
                let rows: Vec<usize> = (kept(&case, Measured::Slowly).iter())
                    .map(Vec::len)
                    .collect();
                let budget = case.budget.min(case.n);
                let total = rows.iter().sum::<usize>();
                assert_eq!(total, budget * case.kv_heads, "{}", case.describe());
                assert!(wrapper == "adakv" || rows.iter().all(|rows| *rows == budget));
            }
        }
    }
}
