//! Methods that measure, merge or sum rows, on a GPU: the GPU computes on the rows in place, only requested
//! measurements and kept rows are downloaded, and other methods on the same layer see the original rows.

use crate::gpus::*;
use kept_engine::kernels::{CacheType, Stop};
use kept_engine::models::{Model, RopeTable};
use kept_engine::{Decoder, Prefill, PrefillOutcome, RetentionMap};
use kept_tests::compare::apart;
use kept_tests::method_spec::{TestMethod, spec};

const STEPS: usize = 3;
const CACHE: CacheType = CacheType::F16;

/// The retention map, and the logits of an answer from it.
type Answered = (RetentionMap, Vec<Vec<f32>>);

fn answer(model: &Model, rope: &RopeTable, read: PrefillOutcome) -> Answered {
    let map = read.map;
    let mut decoder = Decoder::new(model, rope, read.evictor, read.cache).expect("memory");
    let mut logits = vec![decoder.logits_of(&read.hidden).expect("logits").to_vec()];
    for token in 10..10 + STEPS as u32 {
        logits.push(decoder.step(token, None).expect("logits").to_vec());
    }
    (map, logits)
}

fn alone(model: &Model, method: TestMethod, ids: &[u32]) -> Answered {
    let rope = RopeTable::new(model.config(), ids.len() + STEPS);
    let built = method.method();
    let read = Prefill::new(model, ids, &*built, method.budget, STEPS, &rope)
        .with_cache(CACHE)
        .run(&mut |_| (), &Stop::new())
        .unwrap_or_else(|e| panic!("{method:?}: {e}"));
    answer(model, &rope, read)
}

/// Bytes downloaded per layer, without the kept rows and the last row of the residual stream.
struct Numbers {
    /// Per token and query head.
    of_query_heads: usize,
    /// Per token and KV head.
    of_heads: usize,
    /// Independent of the number of tokens.
    besides: usize,
}

/// For a prompt of several hundred tokens, a layer's rows are not downloaded under any method: only its measurements
/// and its kept rows are.
#[test]
fn measurements_are_downloaded_and_not_the_rows() {
    let file = tiny(&quick("llama", 2));
    let (gpu, meter) = limited(1 << 30);
    let there = on_gpu(open(&file.path), &gpu);
    let config = there.config();
    let (tokens, budget) = (420, 60);
    let ids = ids(tokens, config.vocab);
    let rope = RopeTable::new(config, ids.len() + STEPS);
    let (q_heads, heads, dim) = (config.q_heads, config.kv_heads, config.head_dim);
    let seen = |of_query_heads, of_heads, besides| Numbers {
        of_query_heads,
        of_heads,
        besides,
    };
    // Scores of the observation window and of all rows; for each token that may be merged, the nearest kept row, the
    // cosine and the norms.
    let merged = seen(8, 0, 3 * 4 * heads * 4 * budget);
    // The means of 256 tokens each.
    let directions = seen(0, 4, 4 * heads * 3 * dim);
    // A logit and the value's norm per token, and the moments of the queries.
    let expected = seen(4, 4, 8 * q_heads * dim * (dim + 1));
    // Scores of the observation window, and the sums between two kept rows, in parts of 256 tokens.
    let left = seen(4, 0, 4 * heads * dim * (budget + 1 + tokens / 256));
    for (name, set, numbers) in [
        ("ems", "w=8", &merged),
        ("ems", "w=8,positions=reassigned", &merged),
        ("keydiff", "", &directions),
        ("expected_attention", "", &expected),
        ("cam", "base=snapkv,w=8", &left),
    ] {
        let built = built(name, set);
        let (_, before) = meter.copied();
        let read = Prefill::new(&there, &ids, &*built, budget, STEPS, &rope)
            .with_cache(CACHE)
            .run(&mut |_| (), &Stop::new())
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let brought = (meter.copied().1 - before) as usize;
        let merged: usize = read.map.merged.iter().flatten().map(Vec::len).sum();
        assert_eq!(merged > 0, name == "ems", "{set}: {merged} are merged");
        let rows = |count: usize| 2 * 2 * config.kinds.len() * heads * dim * count;
        // For each token also the attention of the last one.
        let of_tokens = q_heads * (numbers.of_query_heads + 4) + heads * numbers.of_heads;
        let told = config.kinds.len() * (of_tokens * tokens + numbers.besides);
        assert!(
            brought <= rows(budget) + told + 4 * config.width,
            "{name} {set}: {brought} bytes came, {} of kept rows and {told} of what is told",
            rows(budget)
        );
        assert!(brought < rows(tokens), "{name} {set}: as much as all rows");
    }
}

/// Of several methods on a shared prefill, each keeps the rows that it keeps alone, whatever the methods before it
/// merged or measured.
#[test]
fn methods_on_a_shared_prefill_keep_their_own_rows() {
    let file = tiny(&quick("llama", 2));
    let gpu = gpus().remove(0);
    let there = on_gpu(open(&file.path), &gpu);
    let ids = ids(150, there.config().vocab);
    let methods = [
        spec("ems", "w=8", 40),
        spec("snapkv", "w=8", 40),
        spec("ems", "w=8,positions=reassigned", 40),
        spec("keydiff", "", 40),
        spec("expected_attention", "", 40),
        spec("ems", "w=12", 50),
        spec("cam", "base=snapkv,w=8", 40),
    ];
    let rope = RopeTable::new(there.config(), ids.len() + STEPS);
    let built: Vec<_> = methods.iter().map(TestMethod::method).collect();
    let prefills = built.iter().zip(methods);
    let prefills = prefills.map(|(built, method)| {
        Prefill::new(&there, &ids, &**built, method.budget, STEPS, &rope).with_cache(CACHE)
    });
    let outcomes = Prefill::run_each(prefills.collect(), &mut |_| (), &Stop::new());
    let outcomes = outcomes.expect("a reading");
    for (outcome, method) in outcomes.into_iter().zip(methods) {
        let read = outcome.unwrap_or_else(|e| panic!("{method:?}: {e}"));
        let found = answer(&there, &rope, read);
        assert!(found == alone(&there, method, &ids), "{method:?}");
    }
}

/// If nothing is evicted, nothing is measured under any method: the answer equals the CPU's.
#[test]
fn a_prompt_within_the_budget_is_kept_whole() {
    let file = tiny(&small("llama", 2));
    let there = on_gpu(open(&file.path), &gpus().remove(0));
    let ids = ids(30, there.config().vocab);
    let here = open(&file.path);
    let methods = [
        spec("keydiff", "", 40),
        spec("expected_attention", "", 40),
        spec("ems", "", 60),
        spec("ems", "positions=reassigned", 60),
        spec("cam", "base=snapkv,w=8", 40),
    ];
    let given = Decode::Given(&[10, 11, 12]);
    let found = run_shared(&there, CACHE, &methods, &ids, given);
    for (found, method) in found.iter().zip(methods) {
        let merged = found.map.merged.iter().flatten().flatten();
        assert_eq!(merged.count(), 0, "{method:?}");
        let expected = run(&here, CACHE, method, &ids, given);
        assert_near(found, &expected, BOUND, &format!("{method:?}"));
    }
}

/// Sums over hundreds of evicted neighbours are computed in parts, and equal the CPU's.
#[test]
fn sums_over_long_gaps_equal_the_cpus() {
    let file = tiny(&small("llama", 2));
    let there = on_gpu(open(&file.path), &gpus().remove(0));
    let here = open(&file.path);
    let ids = ids(300, here.config().vocab);
    // 270 tokens between the first and the last, in two parts.
    let method = spec("cam", "base=streaming_llm", 30);
    let ((map, logits), (expected_map, expected)) =
        (alone(&there, method, &ids), alone(&here, method, &ids));
    assert!(map == expected_map, "other rows");
    let apart = logits.iter().zip(&expected).map(|(a, b)| apart(a, b));
    let apart = apart.fold(0.0, f32::max);
    assert!(apart <= BOUND, "{apart:.1e} apart");
    // And they differ from those without merges.
    let (_, evicted) = alone(&here, spec("streaming_llm", "", 30), &ids);
    let moved = kept_tests::compare::apart(&evicted[1], &expected[1]);
    assert!(moved > 2.0 * BOUND, "{moved:.1e} by what is left");
}
