//! Decode as a CUDA graph: few launches, one replay per token, no allocation, few transfers. On the emulator, which
//! captures and replays launches as a GPU does.

use crate::gpus::*;
use kept_cuda::{Meter, emulated};
use kept_engine::kernels::{CacheType, Stop};
use kept_engine::models::{Model, RopeTable};
use kept_engine::policies::Policy;
use kept_engine::{Decoder, Prefill, Sampler, Sampling, Votes};
use kept_models::testing::TinyLlama;
use kept_tests::compare::apart;

const PROMPT: usize = 53;
const STEPS: usize = 6;

/// Runs prefill and passes the decoder and the prefill's outcome to a closure.
fn answering<T>(
    (model, cache): (&Model, CacheType),
    policy: &mut dyn Policy,
    budget: usize,
    answer: impl FnOnce(Decoder<'_>, &[f32]) -> T,
) -> T {
    let ids = ids(PROMPT, model.config().vocab);
    let rope = RopeTable::new(model.config(), PROMPT + STEPS);
    let outcome = Prefill::new(model, &ids, policy, budget, STEPS, &rope)
        .with_document(3..PROMPT - 12)
        .with_tail(2)
        .with_chunk(48)
        .with_cache(cache)
        .run(&mut |_| (), &Stop::new())
        .expect("a reading");
    let decoder = Decoder::new(model, &rope, policy, outcome.rows, outcome.cache);
    answer(decoder, &outcome.hidden)
}

fn greedy() -> Sampler {
    Sampler::new(&Sampling::default()).expect("a sampler")
}

/// GPU operations.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Asked {
    launches: u64,
    runs: u64,
    allocations: u64,
    sent: u64,
    brought: u64,
}

impl Asked {
    fn of(meter: &Meter) -> Self {
        let (sent, brought) = meter.copied();
        Self {
            launches: meter.launches(),
            runs: meter.runs(),
            allocations: meter.allocations(),
            sent,
            brought,
        }
    }

    fn since(self, before: Self) -> Self {
        Self {
            launches: self.launches - before.launches,
            runs: self.runs - before.runs,
            allocations: self.allocations - before.allocations,
            sent: self.sent - before.sent,
            brought: self.brought - before.brought,
        }
    }
}

/// GPU operations per token of a greedy answer, after the first token.
fn of_a_token(model: &TinyLlama, method: (&str, &str, usize)) -> Asked {
    let file = tiny(model);
    let (gpu, meter) = emulated::fault_injecting(86, 1 << 30);
    let there = on_gpu(open(&file.path), &gpu);
    let mut policy = policy(method.0, method.1);
    let model = (&there, CacheType::F16);
    answering(model, &mut *policy, method.2, |mut decoder, hidden| {
        decoder.try_logits_of(hidden).expect("logits");
        let mut sampler = greedy();
        let mut votes = Votes::new(3..PROMPT - 12);
        let mut token = 5;
        let mut asked = Vec::new();
        for _ in 0..STEPS {
            let before = Asked::of(&meter);
            token = decoder
                .try_next(token, &mut sampler, Some(&mut votes))
                .expect("a token");
            asked.push(Asked::of(&meter).since(before));
        }
        assert!(asked[1..].iter().all(|next| *next == asked[1]), "{asked:?}");
        asked[1]
    })
}

/// Norm, product, heads, attention, product, norm, product, product; and at the end norm, logits, and two launches that
/// find the most likely token.
#[test]
fn a_token_is_eight_launches_a_layer_run_as_one() {
    if without_emulator() {
        return;
    }
    for (arch, layers) in [
        ("llama", 2),
        ("qwen2", 3),
        ("qwen3", 2),
        ("phi3", 2),
        ("gemma2", 2),
    ] {
        let model = small(arch, layers);
        let asked = of_a_token(&model, ("snapkv", "w=8", 24));
        let vocab = open(&tiny(&model).path).config().vocab;
        assert!(vocab > 64, "the likeliest of some");
        assert_eq!(asked.launches, 8 * layers as u64 + 4, "{arch}");
        assert_eq!((asked.runs, asked.allocations), (1, 0), "{arch}");
        // Upload: the embedding and the slot table. Download: the most likely tokens, and the attention votes of each
        // head.
        let books = layers * 6 * model.kv_heads + 1;
        assert_eq!(asked.sent, 4 * (model.width + books) as u64, "{arch}");
        let looked = 2 * layers * model.q_heads;
        assert_eq!(asked.brought, 4 * (128 + looked) as u64, "{arch}");
    }
    let odd = TinyLlama {
        head_dim: 80,
        ..small("llama", 2)
    };
    let asked = of_a_token(&odd, ("full", "", 100));
    assert_eq!(asked.launches, 9 * 2 + 4, "heads that are not made of 32s");
}

/// Methods with host work after every token are not captured.
#[test]
fn methods_with_a_step_are_not_recorded() {
    if without_emulator() {
        return;
    }
    for method in [
        ("h2o", "", 24),
        ("ems", "", 24),
        ("streaming_llm", "positions=reassigned", 24),
    ] {
        let asked = of_a_token_with_host(method);
        assert_eq!(asked.runs, 0, "{method:?}");
        assert!(asked.launches > 8 * 2 + 4, "{method:?}: {asked:?}");
    }
}

fn of_a_token_with_host(method: (&str, &str, usize)) -> Asked {
    let file = tiny(&small("llama", 2));
    let (gpu, meter) = emulated::fault_injecting(86, 1 << 30);
    let there = on_gpu(open(&file.path), &gpu);
    let mut policy = policy(method.0, method.1);
    let model = (&there, CacheType::F16);
    answering(model, &mut *policy, method.2, |mut decoder, hidden| {
        decoder.try_logits_of(hidden).expect("logits");
        let before = Asked::of(&meter);
        decoder.try_next(5, &mut greedy(), None).expect("a token");
        Asked::of(&meter).since(before)
    })
}

/// Logits `[STEPS][vocab]` after the answer's tokens, those tokens, and the votes.
fn answer(
    model: &Model,
    cache: CacheType,
    mut next: impl FnMut(&mut Decoder<'_>, u32, &mut Votes) -> u32,
) -> (Vec<u32>, Vec<f32>) {
    let mut policy = policy("snapkv", "w=8");
    answering((model, cache), &mut *policy, 24, |mut decoder, hidden| {
        decoder.try_logits_of(hidden).expect("logits");
        let mut votes = Votes::new(3..PROMPT - 12);
        let mut tokens = vec![5];
        for step in 0..STEPS {
            tokens.push(next(&mut decoder, tokens[step], &mut votes));
        }
        (tokens, votes.per_token().to_vec())
    })
}

/// The token that the GPU chooses is the most likely of the logits, and the votes equal the CPU's.
#[test]
fn the_likeliest_token_is_found_there() {
    let mut sampler = greedy();
    for (model, cache) in [
        (small("llama", 2), CacheType::F16),
        (small("gemma2", 2), CacheType::F16),
        (quick("qwen3", 2), CacheType::Q8_0),
    ] {
        let file = tiny(&model);
        let here = open(&file.path);
        let there = on_gpu(open(&file.path), &gpus()[0]);
        let (chosen, votes) = answer(&there, cache, |decoder, token, votes| {
            decoder
                .try_next(token, &mut sampler, Some(votes))
                .expect("a token")
        });
        let mut step = 0;
        let (of_logits, _) = answer(&there, cache, |decoder, token, votes| {
            let logits = decoder.try_step(token, Some(votes)).expect("logits");
            step += 1;
            // The chosen tokens, given as input, lead to the same answer, token by token.
            assert_eq!(chosen[step], kept_engine::kernels::argmax(logits) as u32);
            chosen[step]
        });
        assert_eq!(of_logits, chosen, "{}", model.arch);
        let mut step = 0;
        let (_, expected) = answer(&here, cache, |decoder, token, votes| {
            decoder.step(token, Some(votes));
            step += 1;
            chosen[step]
        });
        assert!(votes.iter().sum::<f32>() > 0.0, "{}: no votes", model.arch);
        let apart = apart(&votes, &expected);
        assert!(
            apart < 2.0 * BOUND,
            "{}: votes {apart:.1e} apart",
            model.arch
        );
    }
}

/// Sampling from the k most likely tokens gives different results; without a top-k, all logits are downloaded.
#[test]
fn tokens_are_drawn_of_the_likeliest() {
    let file = tiny(&small("llama", 2));
    let there = on_gpu(open(&file.path), &gpus()[0]);
    let mut logits = Vec::new();
    answer(&there, CacheType::F16, |decoder, _, _| {
        logits.push(decoder.try_step(5, None).expect("logits").to_vec());
        5
    });
    let mut places = Vec::new();
    answer(&there, CacheType::F16, |decoder, _, _| {
        let step = places.len();
        let sampling = Sampling {
            temperature: 50.0,
            top_k: Some(3),
            seed: step as u64,
            ..Sampling::default()
        };
        let mut sampler = Sampler::new(&sampling).expect("a sampler");
        let drawn = decoder.try_next(5, &mut sampler, None).expect("a token");
        let likelier = logits[step]
            .iter()
            .filter(|x| **x > logits[step][drawn as usize]);
        places.push(likelier.count());
        5
    });
    assert!(places.iter().all(|place| *place < 3), "{places:?}");
    assert!(places.iter().any(|place| *place != places[0]), "{places:?}");
    let mut step = 0;
    answer(&there, CacheType::F16, |decoder, _, _| {
        let sampling = Sampling {
            temperature: 1.0,
            ..Sampling::default()
        };
        let sampler = || Sampler::new(&sampling).expect("a sampler");
        let drawn = decoder.try_next(5, &mut sampler(), None).expect("a token");
        let expected = sampler().next(&mut logits[step]).expect("a token");
        assert_eq!(
            drawn, expected,
            "of all logits the same seed draws the same"
        );
        step += 1;
        5
    });
}

/// The driver's figure of GPU memory is recorded at its peak, also after the peak has passed.
#[test]
fn what_is_taken_of_a_gpu_is_seen() {
    let file = tiny(&small("llama", 2));
    let gpu = limited(1 << 30).0;
    let engine = kept_engine::Engine::open(&file.path).expect("a model");
    assert!(engine.watch_gpu().expect("none").is_none());
    let engine = engine.on_gpu(gpu.clone()).expect("memory");
    let watch = engine.watch_gpu().expect("it answers");
    let watch = watch.expect("a GPU");
    // The driver's figure: at least the program's own count.
    let weights = watch.most().expect("it answers");
    let counted = engine.model().gpu().expect("a GPU").bytes();
    assert!(weights >= counted, "{weights} of {counted}");
    let held = gpu.alloc_uninit::<u8>(1 << 20).expect("memory");
    let most = watch.most().expect("it answers");
    // A GPU allocates whole pages.
    let more = most - weights;
    assert!((1 << 20..(1 << 20) + 4096).contains(&more), "{more}");
    drop(held);
    assert_eq!(watch.most().expect("it answers"), most);
}
