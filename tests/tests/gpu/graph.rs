//! Decode as a CUDA graph: few launches, one replay per token, no allocation, few transfers. On the emulator, which
//! captures and replays launches as a GPU does.

use std::ops::Range;

use crate::gpus::*;
use kept_cuda::{Meter, emulated};
use kept_engine::kernels::{CacheType, Stop};
use kept_engine::models::{Model, RopeTable};
use kept_engine::{Decoder, Prefill, Sampler, Sampling, Votes};
use kept_engine_cuda::OnGpu;
use kept_models::testing::TinyLlama;
use kept_tests::compare::apart;
use kept_tests::method_spec::{TestMethod, spec};

/// Tokens of a prompt: more than the rows that methods keep of it.
const PROMPT: usize = 29;
const DOCUMENT: Range<usize> = 3..PROMPT - 12;
const STEPS: usize = 6;

/// Runs prefill, computes the first logits and passes the decoder to a closure.
fn decoding<T>(
    model: &Model,
    cache: CacheType,
    method: TestMethod,
    decode: impl FnOnce(Decoder<'_>) -> T,
) -> T {
    let ids = ids(PROMPT, model.config().vocab);
    let rope = RopeTable::new(model.config(), PROMPT + STEPS);
    let built = method.method();
    let outcome = Prefill::new(model, &ids, &*built, method.budget, STEPS, &rope)
        .with_document(DOCUMENT)
        .with_tail(2)
        .with_cache(cache)
        .run(&mut |_| (), &Stop::new())
        .expect("a prefill");
    let mut decoder = Decoder::new(model, &rope, outcome.evictor, outcome.cache).expect("memory");
    decoder.logits_of(&outcome.hidden).expect("logits");
    decode(decoder)
}

fn greedy() -> Sampler {
    Sampler::new(&Sampling::default()).expect("a sampler")
}

/// GPU operations.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Operations {
    launches: u64,
    runs: u64,
    allocations: u64,
    transfers: Transfers,
}

impl Operations {
    fn of(meter: &Meter) -> Self {
        Self {
            launches: meter.launches(),
            runs: meter.runs(),
            allocations: meter.allocations(),
            transfers: Transfers::of(meter),
        }
    }

    fn since(self, before: Self) -> Self {
        Self {
            launches: self.launches - before.launches,
            runs: self.runs - before.runs,
            allocations: self.allocations - before.allocations,
            transfers: self.transfers.since(before.transfers),
        }
    }
}

/// GPU operations per token of a greedy answer, after the first token.
fn of_a_token(model: &TinyLlama, method: TestMethod) -> Operations {
    let file = tiny(model);
    let (gpu, meter) = emulated::fault_injecting(86, 1 << 30);
    let there = on_gpu(open(&file.path), &gpu);
    decoding(&there, CacheType::F16, method, |mut decoder| {
        let mut sampler = greedy();
        let mut votes = Votes::new(DOCUMENT);
        let mut token = 5;
        let mut operations = Vec::new();
        for _ in 0..STEPS {
            let before = Operations::of(&meter);
            token = decoder
                .next(token, &mut sampler, Some(&mut votes))
                .expect("a token");
            operations.push(Operations::of(&meter).since(before));
        }
        let same = operations[1..].iter().all(|next| *next == operations[1]);
        assert!(same, "{operations:?}");
        operations[1]
    })
}

/// A norm at the beginning; product, heads, attention, product, product, product, and two norms more where the model has
/// norms before additions; at the end logits, and two launches that find the most likely token.
#[test]
fn a_decode_step_is_one_graph_of_six_launches_a_layer() {
    if without_emulator() {
        return;
    }
    for (arch, layers, of_layer) in [
        ("llama", 2, 6),
        ("qwen2", 3, 6),
        ("qwen3", 2, 6),
        ("phi3", 2, 6),
        ("gemma2", 2, 8),
    ] {
        let model = quick(arch, layers);
        let asked = of_a_token(&model, spec("snapkv", "w=8", 24));
        let vocab = open(&tiny(&model).path).config().vocab;
        assert!(vocab > 64, "the likeliest of some");
        assert_eq!(asked.launches, of_layer * layers as u64 + 4, "{arch}");
        assert_eq!((asked.runs, asked.allocations), (1, 0), "{arch}");
        // Upload: the embedding and the slot table. Download: the most likely tokens, and the attention votes of each
        // head.
        let slots = layers * 6 * model.kv_heads + 1;
        let votes = 2 * layers * model.q_heads;
        let expected = Transfers {
            uploaded: 4 * (model.width + slots) as u64,
            downloaded: 4 * (128 + votes) as u64,
        };
        assert_eq!(asked.transfers, expected, "{arch}");
    }
    let odd = TinyLlama {
        head_dim: 80,
        ..quick("llama", 2)
    };
    let asked = of_a_token(&odd, spec("full", "", 100));
    assert_eq!(asked.launches, 7 * 2 + 4, "heads that are not made of 32s");
}

/// Methods that act after every token are captured too. Probabilities take one launch more in each layer, class tables
/// five in place of one. Probabilities and the new rows are downloaded.
#[test]
fn steps_of_methods_that_change_rows_are_one_graph() {
    if without_emulator() {
        return;
    }
    let model = quick("llama", 2);
    for (method, of_layer) in [
        (spec("h2o", "", 24), 7),
        (spec("ems", "", 24), 10),
        (spec("streaming_llm", "positions=reassigned", 24), 7),
    ] {
        let asked = of_a_token(&model, method);
        assert_eq!(asked.launches, 2 * of_layer + 4, "{asked:?}");
        assert_eq!((asked.runs, asked.allocations), (1, 0), "{asked:?}");
        let votes = 4 * (128 + 2 * 2 * model.q_heads as u64);
        assert!(asked.transfers.downloaded > votes, "{asked:?}");
    }
}

/// Each part of a step is replayed alone: together they read all weights and kept rows.
#[test]
fn the_parts_of_a_step_are_timed() {
    if without_emulator() {
        return;
    }
    for arch in ["llama", "gemma2"] {
        let file = tiny(&quick(arch, 2));
        let (gpu, _) = emulated::fault_injecting(86, 1 << 30);
        let there = on_gpu(open(&file.path), &gpu);
        decoding(
            &there,
            CacheType::F16,
            spec("snapkv", "w=8", 24),
            |mut decoder| {
                for token in 0..3 {
                    decoder.next(token, &mut greedy(), None).expect("a token");
                }
                let rows = decoder.cache().kv_bytes();
                let parts = decoder.part_times().expect("times");
                assert!(parts.iter().all(|part| part.seconds > 0.0), "{parts:?}");
                let bytes: u64 = parts.iter().map(|part| part.bytes).sum();
                let (weights, all) = (bytes - rows, there.gpu().expect("a GPU").bytes());
                assert!(
                    weights < all && weights > all / 10 * 9,
                    "{weights} of {all} without norms"
                );
            },
        );
    }
}

/// Logits `[STEPS][vocab]` after the answer's tokens, those tokens, and the votes.
fn answer(
    model: &Model,
    cache: CacheType,
    mut next: impl FnMut(&mut Decoder<'_>, u32, &mut Votes) -> u32,
) -> (Vec<u32>, Vec<f32>) {
    decoding(model, cache, spec("snapkv", "w=8", 24), |mut decoder| {
        let mut votes = Votes::new(DOCUMENT);
        let mut tokens = vec![5];
        for step in 0..STEPS {
            tokens.push(next(&mut decoder, tokens[step], &mut votes));
            votes.end_step(0, tokens[step]);
        }
        let mut summed = vec![0.0; DOCUMENT.len()];
        for &(token, vote) in votes.steps().iter().flat_map(|step| &step.votes) {
            summed[token as usize] += vote;
        }
        (tokens, summed)
    })
}

/// The token that the GPU chooses is the most likely of the logits, and the votes equal the CPU's.
#[test]
fn the_gpu_chooses_the_most_likely_token() {
    let mut sampler = greedy();
    for (model, cache) in [
        // Logits with a cap.
        (small("gemma2", 2), CacheType::F16),
        (quick("qwen3", 2), CacheType::Q8_0),
    ] {
        let file = tiny(&model);
        let here = open(&file.path);
        let there = on_gpu(open(&file.path), &gpus()[0]);
        let (chosen, votes) = answer(&there, cache, |decoder, token, votes| {
            decoder
                .next(token, &mut sampler, Some(votes))
                .expect("a token")
        });
        let mut step = 0;
        let (of_logits, _) = answer(&there, cache, |decoder, token, votes| {
            let logits = decoder.step(token, Some(votes)).expect("logits");
            step += 1;
            // The chosen tokens, given as input, lead to the same answer, token by token.
            assert_eq!(chosen[step], kept_engine::kernels::argmax(logits) as u32);
            chosen[step]
        });
        assert_eq!(of_logits, chosen, "{}", model.arch);
        let mut step = 0;
        let (_, expected) = answer(&here, cache, |decoder, token, votes| {
            decoder.step(token, Some(votes)).expect("logits");
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
fn sampling_uses_the_top_k_or_all_logits() {
    let file = tiny(&quick("llama", 2));
    let there = on_gpu(open(&file.path), &gpus()[0]);
    let mut logits = Vec::new();
    answer(&there, CacheType::F16, |decoder, _, _| {
        logits.push(decoder.step(5, None).expect("logits").to_vec());
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
        let drawn = decoder.next(5, &mut sampler, None).expect("a token");
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
        let drawn = decoder.next(5, &mut sampler(), None).expect("a token");
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
fn peak_gpu_memory_is_recorded() {
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
