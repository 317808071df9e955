//! The other kinds of prefill on a GPU: from a vault, in streaming mode, with reconstruction, with the logits of every
//! row.

use crate::gpus::*;
use kept_cuda::emulated;
use kept_engine::kernels::{CacheType, PackedRows, Stop};
use kept_engine::models::{Model, RopeTable};
use kept_engine::policies::{PromptShape, STREAMING};
use kept_engine::{Decoder, Engine, MethodSpec, Stream, StreamPlan};
use kept_engine_cuda::OnGpu;
use kept_tests::compare::apart;
use kept_tests::method_spec::{TestMethod, spec};
use kept_tests::vaults::{Case, Place};

/// Rows from a vault are uploaded layer by layer: a later question's result equals a first reading bit for bit.
#[test]
fn vault_answers_on_a_gpu_equal_a_first_prefill() {
    let gpu = gpus().remove(0);
    let methods = [
        spec("full", "", 400),
        spec("snapkv", "w=8", 40),
        spec("snapkv", "w=30", 50),
        spec("h2o", "", 40),
        spec("treekv", "", 40),
        spec("expected_attention", "", 40),
        spec("kvzip", "chunk=50", 40),
    ];
    // Every measurement, and two of them with sliding windows.
    for (arch, methods) in [("llama", &methods[..]), ("gemma2", &methods[2..4])] {
        let file = tiny(&quick(arch, 2));
        let there = on_gpu(open(&file.path), &gpu);
        for &method in methods {
            assert_later_question_equals_first(&there, method, &format!("{arch} {method:?}"));
        }
    }
}

fn assert_later_question_equals_first(model: &Model, method: TestMethod, what: &str) {
    let first = Case::under(model, method, 90, 0);
    let later = Case {
        rest: kept_tests::vaults::tokens(9, 101, model.config().vocab),
        ..first.clone()
    };
    let (place, fresh) = (Place::default(), Place::default());
    let read = |case: &Case, place: &Place| {
        let read = case.read(model, Some(place), PackedRows::F16);
        read.unwrap_or_else(|e| panic!("{what}: {e}"))
    };
    read(&first, &place);
    let (found, used, notes) = read(&later, &place);
    let used = used.expect("vaults are allowed");
    assert_eq!(
        used.tokens_from_vault,
        later.prefix.len(),
        "{what}: {notes:?}"
    );
    let (expected, ..) = read(&later, &fresh);
    assert_eq!(found.map, expected.map, "{what}: other rows");
    assert!(found.logits == expected.logits, "{what}: other logits");
}

/// The turns of a conversation are uploaded like the document.
#[test]
fn a_follow_up_on_a_gpu_takes_the_turns_from_the_vault() {
    for arch in ["llama", "gemma2"] {
        let file = tiny(&quick(arch, 2));
        let there = on_gpu(open(&file.path), &gpus()[0]);
        let place = Place::default();
        for (turns, from_vault) in [(0, 0), (1, 90), (2, 90 + 20), (3, 90 + 90)] {
            let case = Case::under(&there, spec("snapkv", "w=8", 40), 90, 0);
            let case = case.after_turns(&there, &[20, 70, 5][..turns], 9);
            let read = |place: &Place| {
                let read = case.read(&there, Some(place), PackedRows::F16);
                read.unwrap_or_else(|e| panic!("{arch}: {e}"))
            };
            let (found, used, notes) = read(&place);
            let used = used.expect("vaults are allowed");
            assert_eq!(used.tokens_from_vault, from_vault, "{arch}: {notes:?}");
            let (expected, ..) = read(&Place::default());
            assert_eq!(found.map, expected.map, "{arch}: other rows");
            assert!(found.logits == expected.logits, "{arch}: other logits");
        }
    }
}

/// A vault written on the CPU serves the GPU, and vice versa: its rows are f16.
#[test]
fn vaults_are_shared_between_cpu_and_gpu() {
    let file = tiny(&quick("llama", 2));
    let here = open(&file.path);
    let there = on_gpu(open(&file.path), &gpus()[0]);
    let mut ways = vec![(&here, &there), (&there, &here)];
    // With asynchronous copies as late as allowed, and immediate.
    let eager =
        (!gpu_only()).then(|| on_gpu(open(&file.path), &emulated::with_eager_copies(86, 1 << 30)));
    if let Some(eager) = &eager {
        ways.extend([(&here, eager), (eager, &here)]);
    }
    for (writer, reader) in ways {
        let case = Case::under(&here, spec("snapkv", "w=8", 40), 90, 0);
        let place = Place::default();
        case.read(writer, Some(&place), PackedRows::F16)
            .expect("a reading");
        let (found, used, _) = case
            .read(reader, Some(&place), PackedRows::F16)
            .expect("a question");
        assert_eq!(
            used.expect("vaults are allowed").tokens_from_vault,
            case.prefix.len()
        );
        let (expected, ..) = case.read(&here, None, PackedRows::F16).expect("a reading");
        assert_eq!(found.map, expected.map, "other rows");
        let apart = apart(&found.logits, &expected.logits);
        assert!(apart <= 2.0 * BOUND, "logits are {apart:.1e} apart");
    }
}

/// After a damaged layer of the vault the document is read again, and nothing is left of the prefill before.
#[test]
fn damage_is_detected_in_every_layer() {
    let file = tiny(&quick("llama", 3));
    let there = on_gpu(open(&file.path), &gpus()[0]);
    let case = Case::under(&there, spec("snapkv", "w=8", 40), 90, 0);
    let place = Place::default();
    let read = || case.read(&there, Some(&place), PackedRows::F16);
    let (expected, ..) = read().expect("a reading");
    let path = place.files().pop().expect("a vault");
    let whole = std::fs::read(&path).expect("bytes");
    for layer in 0..3 {
        let mut damaged = whole.clone();
        damaged[whole.len() * (2 * layer + 1) / 7] ^= 1;
        std::fs::write(&path, &damaged).expect("written");
        let (found, used, notes) = read().expect("the document is read again");
        assert!(found == expected && used.expect("vaults are allowed").written);
        let said = format!("layer {layer} has changed");
        assert!(notes.iter().any(|note| note.contains(&said)), "{notes:?}");
    }
    std::fs::write(&path, &whole).expect("written");
    let (found, used, _) = read().expect("a question");
    assert_eq!(
        used.expect("vaults are allowed").tokens_read,
        case.rest.len()
    );
    assert!(found == expected);
}

/// Runs prefill on `ids` in streaming mode and decodes along `given`: logits after each token.
fn stream(
    model: &Model,
    cache: CacheType,
    name: &str,
    ids: &[u32],
    given: &[u32],
) -> (Vec<Vec<f32>>, kept_engine::RetentionMap) {
    let built = built(name, "");
    let shape = PromptShape::of(ids.len());
    // With a quantised type, more rows than the exact ones.
    let rows = (cache != CacheType::F16).then_some(84);
    let chunk = Some(32);
    let plan = StreamPlan::new(model, &*built, &shape, rows, given.len(), chunk, cache)
        .unwrap_or_else(|e| panic!("{name}: {e}"));
    let rope = RopeTable::new(model.config(), plan.positions);
    let mut stream = Stream::new(model, &*built, plan, &rope);
    for part in ids.chunks(stream.chunk_group()) {
        stream
            .feed(part, &mut |_, _| (), &Stop::new())
            .unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    let streamed = stream.into_streamed();
    let mut decoder = Decoder::new(model, &rope, streamed.evictor, streamed.cache).expect("memory");
    let last = decoder.logits_of(&streamed.hidden).expect("logits");
    let mut logits = vec![last.to_vec()];
    for &token in given {
        logits.push(decoder.step(token, None).expect("logits").to_vec());
    }
    (logits, streamed.map)
}

/// Every method that supports streaming mode, beyond the context length; also with quantised cache types.
#[test]
fn streaming_on_a_gpu_equals_the_cpus() {
    let gpu = gpus().remove(0);
    let mut shares = Vec::new();
    for (arch, cache) in [
        ("llama", CacheType::F16),
        ("gemma2", CacheType::F16),
        ("llama", CacheType::Q8_0),
    ] {
        let model = kept_models::testing::TinyLlama {
            context: 128,
            ..quick(arch, 2)
        };
        let file = tiny(&model);
        let here = open(&file.path);
        let there = on_gpu(open(&file.path), &gpu);
        let ids = ids(170, here.config().vocab);
        let given = &ids[20..23];
        for name in STREAMING {
            // With quantised rows two methods suffice: one that reuses slots, and one that also re-assigns positions.
            if cache != CacheType::F16 && name != "tova" && name != "treekv" {
                continue;
            }
            let (expected, kept) = stream(&here, cache, name, &ids, given);
            let (found, kept_there) = stream(&there, cache, name, &ids, given);
            // Of two nearly tied rows another may be evicted; from then on the caches differ.
            let alike = alike(&kept_there, &kept);
            assert!(alike > 0.85, "{arch} {cache} {name}: {alike} of the rows");
            assert!(
                alike == 1.0 || name != "streaming_llm",
                "it looks at nothing"
            );
            shares.push(alike);
            if kept_there != kept {
                continue;
            }
            for (step, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let apart = apart(found, expected);
                assert!(
                    // Products round their inputs to bytes; in a model this small one quantisation step is noticeable.
                    apart <= 6.0 * BOUND,
                    "{arch} {cache} {name}: logits {step} are {apart:.1e} apart"
                );
            }
        }
    }
    let mean = shares.iter().sum::<f32>() / shares.len() as f32;
    assert!(mean > 0.96, "of the rows {shares:?} are the processor's");
}

/// `kept logits`: the logits of every row, and of decoded tokens.
#[test]
fn logits_of_every_row_equal_the_cpus() {
    if without_emulator() {
        return;
    }
    // With sliding windows, norms behind attention and feed-forward, and a cap of the logits.
    let file = tiny(&small("gemma2", 2));
    let open = || {
        let engine = Engine::open(&file.path).expect("a model");
        engine.with_cache(CacheType::F16)
    };
    let there = open().on_gpu(emulated::device(86, 1 << 30));
    let there = there.expect("memory");
    let method = MethodSpec {
        name: "snapkv".to_owned(),
        parameters: vec![("w".to_owned(), "8".to_owned())],
    };
    let vocab = there.model().config().vocab;
    let ids = ids(60, vocab);
    let logits = |engine: &Engine| {
        let budget = Some(kept_engine::policies::Budget::Rows(30));
        let shape = PromptShape::of(54);
        let forced = kept_eval::ForcedLogits::compute(
            engine,
            &ids,
            &shape,
            &method,
            budget,
            &mut |_| (),
            &Stop::new(),
        );
        forced.expect("logits").logits
    };
    let (found, expected) = (logits(&there), logits(&open()));
    assert_eq!(found.len(), ids.len() * vocab);
    for (row, (found, expected)) in (found.chunks(vocab).zip(expected.chunks(vocab))).enumerate() {
        let apart = apart(found, expected);
        assert!(apart <= 2.0 * BOUND, "row {row} is {apart:.1e} apart");
    }
}
