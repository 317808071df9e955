//! Tokens that share rows, on a graphics card: they are compared and merged where they lie, what comes to the host are the rows of classes, and other
//! methods that look at the same layer see it as it is.

mod cards;

use cards::*;
use kept_engine::kernels::{CacheType, Stop};
use kept_engine::models::{Model, RopeTable};
use kept_engine::policies::Policy;
use kept_engine::{Cut, Decoder, Prefill, PrefillOutcome, RetentionMap, SharedPrefill};

const STEPS: usize = 3;
const CACHE: CacheType = CacheType::F16;

/// What was kept, and the logits of an answer from it.
type Answered = (RetentionMap, Vec<Vec<f32>>);

fn answer(
    model: &Model,
    rope: &RopeTable,
    policy: &mut dyn Policy,
    read: PrefillOutcome,
) -> Answered {
    let map = read.map;
    let mut decoder = Decoder::new(model, rope, policy, read.rows, read.cache);
    let mut logits = vec![decoder.logits_of(&read.hidden).to_vec()];
    for token in 10..10 + STEPS as u32 {
        logits.push(decoder.step(token, None).to_vec());
    }
    (map, logits)
}

fn alone(model: &Model, (name, set, budget): (&str, &str, usize), ids: &[u32]) -> Answered {
    let rope = RopeTable::new(model.config(), ids.len() + STEPS);
    let mut policy = policy(name, set);
    let read = Prefill::new(model, ids, &mut *policy, budget, STEPS, &rope)
        .with_cache(CACHE)
        .run(&mut |_| (), &Stop::new())
        .unwrap_or_else(|e| panic!("{name} {set}: {e}"));
    answer(model, &rope, &mut *policy, read)
}

/// Of a prompt of several hundred tokens a layer's rows are not brought: what is seen of them, and the classes' rows, are.
#[test]
fn the_rows_of_classes_travel_and_no_others() {
    let file = tiny(&quick("llama", 2));
    let (card, meter) = limited(1 << 30);
    let there = on_card(open(&file.path), &card);
    let config = there.config();
    let (tokens, budget) = (600, 60);
    let ids = ids(tokens, config.vocab);
    let rope = RopeTable::new(config, ids.len() + STEPS);
    for set in ["w=8", "w=8,positions=reassigned"] {
        let mut policy = policy("ems", set);
        let (_, before) = meter.carried();
        let read = Prefill::new(&there, &ids, &mut *policy, budget, STEPS, &rope)
            .with_cache(CACHE)
            .run(&mut |_| (), &Stop::new())
            .expect("a reading");
        let brought = (meter.carried().1 - before) as usize;
        let merged: usize = read.map.merged.iter().flatten().map(Vec::len).sum();
        assert!(merged > 0, "{set}: nothing was merged");
        let (layers, heads) = (config.kinds.len(), config.kv_heads);
        let rows = |count: usize| 2 * 2 * layers * heads * config.head_dim * count;
        // What the window and all rows see of each token; of the tokens that may be merged the best, how alike and how long.
        let seen = 2 * 4 * layers * config.q_heads * tokens + 3 * 4 * layers * heads * 4 * budget;
        let last = 4 * config.width;
        assert!(
            brought <= rows(budget) + seen + last,
            "{set}: {brought} bytes came, of rows {} and of what is seen {seen}",
            rows(budget)
        );
        assert!(brought < rows(tokens), "{set}: as much as all rows");
    }
}

/// Of several methods that cut the same reading each keeps what it keeps alone, whoever merged rows or looked at all of them before.
#[test]
fn methods_beside_one_that_merges_keep_their_own_rows() {
    let file = tiny(&quick("llama", 2));
    let card = cards().remove(0);
    let there = on_card(open(&file.path), &card);
    let ids = ids(150, there.config().vocab);
    let methods = [
        ("ems", "w=8", 40),
        ("snapkv", "w=8", 40),
        ("ems", "w=8,positions=reassigned", 40),
        ("keydiff", "", 40),
        ("ems", "w=12", 50),
        ("cam", "base=snapkv,w=8", 40),
    ];
    let rope = RopeTable::new(there.config(), ids.len() + STEPS);
    let mut policies: Vec<Box<dyn Policy>> = methods
        .iter()
        .map(|(name, set, _)| policy(name, set))
        .collect();
    let shared = SharedPrefill {
        model: &there,
        ids: &ids,
        document: None,
        tail: 0,
        room: STEPS,
        rope: &rope,
    };
    let cuts = policies.iter_mut().zip(methods);
    let cuts = cuts.map(|(policy, (.., budget))| Cut {
        policy: &mut **policy,
        budget,
        cache: CACHE,
    });
    let outcomes = shared
        .run(cuts.collect(), &mut |_| (), &Stop::new())
        .expect("a reading");
    for ((outcome, policy), method) in outcomes.into_iter().zip(&mut policies).zip(methods) {
        let read = outcome.unwrap_or_else(|e| panic!("{method:?}: {e}"));
        let found = answer(&there, &rope, &mut **policy, read);
        assert!(found == alone(&there, method, &ids), "{method:?}");
    }
}
