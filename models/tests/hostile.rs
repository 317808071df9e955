//! Malicious files. None may cause a panic, or an allocation larger than the file itself justifies.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use kept_models::gguf::Gguf;
use kept_models::testing::{GgufWriter, MetaValue, TinyLlama};
use kept_models::{Model, ModelError};

/// An allocator that records the largest single allocation.
struct Watched;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

#[expect(
    unsafe_code,
    reason = "measuring allocations requires an allocator of our own; test only"
)]
// SAFETY: forwards to the system allocator unchanged.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract, which is that of `System.alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract, which is that of `System.dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

fn tiny() -> TinyLlama {
    TinyLlama {
        layers: 1,
        width: 32,
        ffn: 32,
        q_heads: 2,
        kv_heads: 1,
        head_dim: 16,
        ..Default::default()
    }
}

struct File {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

fn file() -> File {
    let dir = tempfile::tempdir().unwrap();
    File {
        path: dir.path().join("model.gguf"),
        _dir: dir,
    }
}

fn open_all(path: &Path) -> Result<(), ModelError> {
    let model = Model::open(path)?;
    model.tokenizer()?.encode("Hello world <|im_end|>");
    model.chat_template()?.render(&[], true, false)?;
    Ok(())
}

fn error_of(spoil: impl FnOnce(&mut GgufWriter)) -> ModelError {
    let file = file();
    let mut writer = tiny().writer();
    spoil(&mut writer);
    writer.write(&file.path).unwrap();
    let error = open_all(&file.path).unwrap_err();
    let sentence = error.to_string();
    assert!(
        !sentence.contains('\n') && sentence.len() < 400,
        "{sentence}"
    );
    error
}

fn text(t: &str) -> MetaValue {
    MetaValue::Text(t.to_owned())
}

#[test]
fn a_valid_file_opens() {
    let file = file();
    tiny().write(&file.path).unwrap();
    open_all(&file.path).unwrap();
    let model = Model::open(&file.path).unwrap();
    assert_eq!(model.name(), "model");
    assert_eq!(model.config().head_dim, 16);
    assert!(model.weights_bytes() > 0);
}

#[test]
fn a_truncated_file_is_refused() {
    let file = file();
    let bytes = tiny().writer().bytes();
    for part in 0..50 {
        std::fs::write(&file.path, &bytes[..bytes.len() * part / 50]).unwrap();
        match open_all(&file.path) {
            Err(ModelError::Truncated { needs, has }) => assert!(needs > has),
            Err(ModelError::NotGguf { .. }) => assert_eq!(part, 0),
            other => panic!("{part}/50: {other:?}"),
        }
    }
    // Without the last byte of the last tensor.
    std::fs::write(&file.path, &bytes[..bytes.len() - 1]).unwrap();
    let error = open_all(&file.path).unwrap_err().to_string();
    let (needs, has) = (bytes.len(), bytes.len() - 1);
    assert_eq!(
        error,
        format!(
            "the model file is cut short: it needs {needs} bytes and has {has}; download it again"
        )
    );
}

#[test]
fn flipped_bytes_cause_no_panic_or_huge_allocation() {
    for (arch, layers, cases) in [("llama", 1, 4000), ("gemma2", 2, 400), ("phi3", 1, 400)] {
        let tiny = TinyLlama {
            arch,
            layers,
            ..tiny()
        };
        flip_bytes(&tiny, cases);
    }
}

fn flip_bytes(tiny: &TinyLlama, cases: usize) {
    let file = file();
    let bytes = tiny.writer().bytes();
    let header = bytes.len() - 40_000.min(bytes.len() / 2);
    LARGEST.store(0, Ordering::Relaxed);
    let mut state = 11u64;
    let mut random = move |below: usize| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    let mut opened = 0;
    for case in 0..cases {
        let mut spoiled = bytes.clone();
        for _ in 0..1 + case % 4 {
            // Mostly in the region of lengths and names, sometimes anywhere.
            let at = if case % 8 == 0 {
                random(spoiled.len())
            } else {
                random(header.min(12_000))
            };
            spoiled[at] = match case % 3 {
                0 => 0xff,
                1 => spoiled[at] ^ (1 << random(8)),
                _ => random(256) as u8,
            };
        }
        std::fs::write(&file.path, &spoiled).unwrap();
        opened += usize::from(open_all(&file.path).is_ok());
    }
    assert!(0 < opened && opened < cases);
    let largest = LARGEST.load(Ordering::Relaxed);
    // The largest legitimate allocation is the table of character classes (4.4 MB of text).
    assert!(largest <= 16 << 20, "an allocation of {largest} bytes");
}

#[test]
fn other_formats_and_versions_are_refused() {
    let file = file();
    std::fs::write(&file.path, b"PK\x03\x04 a zip file, say").unwrap();
    assert!(matches!(
        open_all(&file.path),
        Err(ModelError::NotGguf { .. })
    ));
    std::fs::write(&file.path, b"").unwrap();
    assert!(matches!(
        open_all(&file.path),
        Err(ModelError::NotGguf { .. })
    ));
    assert!(matches!(
        open_all(Path::new("/nowhere/at all.gguf")),
        Err(ModelError::Unreadable { .. })
    ));
    assert!(matches!(
        open_all(Path::new("/")),
        Err(ModelError::Unreadable { .. })
    ));
    assert_eq!(
        error_of(|w| w.version = 1),
        ModelError::UnsupportedVersion { version: 1 }
    );
    assert!(matches!(
        error_of(|w| w.version = 3u32.swap_bytes()),
        ModelError::UnsupportedVersion { .. }
    ));
    let file = self::file();
    let mut writer = tiny().writer();
    writer.version = 2;
    writer.write(&file.path).unwrap();
    open_all(&file.path).unwrap();
}

#[test]
fn unsupported_features_are_refused_by_name() {
    let error = error_of(|w| {
        w.set("general.architecture", text("qwen9"));
    });
    assert!(error.to_string().contains("\"qwen9\"") && error.to_string().contains("qwen3next"));
    for (number, name) in [
        (10, "Q2_K"),
        (15, "Q8_K"),
        (26, "I32"),
        (40, "NVFP4"),
        (99, "type 99"),
    ] {
        let error = error_of(|w| {
            w.raw_tensor(
                "blk.0.attn_q.weight",
                &[32, 256],
                number,
                vec![0; 32 * 256 * 4],
            );
        });
        match error {
            ModelError::UnsupportedType { name: found, .. } => assert_eq!(found, name),
            // A supported type of another block size is reported as a wrong shape first.
            ModelError::WrongShape { .. } => {}
            other => panic!("{other}"),
        }
    }
    let error = error_of(|w| {
        w.raw_tensor("blk.0.attn_q.weight", &[32, 32], 9, vec![0; 32 * 36]);
    });
    let sentence = error.to_string();
    assert!(
        sentence.contains("Q8_1") && sentence.contains("Q4_K") && sentence.contains("blk.0.attn_q"),
        "{sentence}"
    );
    let error = error_of(|w| {
        w.set("llama.rope.scaling.type", text("dynamic"));
    });
    assert_eq!(
        error,
        ModelError::UnsupportedRopeScaling {
            name: "dynamic".into()
        }
    );
    for (name, says) in [
        ("falcon-h1", "supported: llama, "),
        ("gemma3n", "supported: gemma, gemma2, gemma3, gemma4 and "),
        ("gpt2", "supported: gpt-oss and "),
        ("", "supported: llama, "),
    ] {
        let error = error_of(|w| {
            w.set("general.architecture", text(name));
        });
        let sentence = error.to_string();
        assert!(
            sentence.contains(&format!("{name:?}")) && sentence.contains(says),
            "{sentence}"
        );
    }
    let error = error_of(|w| {
        w.rename_architecture("llama", "qwen2");
        w.set("qwen2.expert_count", MetaValue::Whole(8));
    });
    assert!(
        error.to_string().contains("experts are not supported"),
        "{error}"
    );
}

#[test]
fn missing_keys_and_tensors_are_named() {
    for key in [
        "general.architecture",
        "llama.block_count",
        "llama.embedding_length",
        "llama.context_length",
        "llama.attention.head_count",
        "llama.feed_forward_length",
        "llama.attention.layer_norm_rms_epsilon",
    ] {
        let error = error_of(|w| {
            w.remove(key);
        });
        assert_eq!(error, ModelError::MissingKey { key: key.into() });
    }
    for name in [
        "token_embd.weight",
        "output_norm.weight",
        "blk.0.ffn_down.weight",
        "blk.0.attn_norm.weight",
    ] {
        let error = error_of(|w| {
            w.remove_tensor(name);
        });
        assert_eq!(error, ModelError::MissingTensor { name: name.into() });
    }
    // More layers than tensors.
    let error = error_of(|w| {
        w.set("llama.block_count", MetaValue::Whole(1 << 20));
    });
    assert_eq!(
        error,
        ModelError::MissingTensor {
            name: "blk.1.attn_norm.weight".into()
        }
    );
}

#[test]
fn tensors_of_wrong_shape_or_unknown_name_are_refused() {
    let error = error_of(|w| {
        w.tensor("blk.0.attn_k.weight", &[8, 32], "F32", &[0.0; 256]);
    });
    let expected = ModelError::WrongShape {
        name: "blk.0.attn_k.weight".into(),
        found: vec![8, 32],
        expected: vec![16, 32],
    };
    assert_eq!(error, expected);
    let error = error_of(|w| {
        w.tensor("blk.0.attn_q_norm.weight", &[16], "F32", &[1.0; 16]);
    });
    assert_eq!(
        error,
        ModelError::UnknownTensor {
            name: "blk.0.attn_q_norm.weight".into()
        }
    );
}

#[test]
fn bad_metadata_values_are_refused() {
    for (key, value) in [
        (
            "llama.attention.head_count_kv",
            MetaValue::Wholes(vec![1, 2]),
        ),
        ("llama.attention.head_count_kv", MetaValue::Whole(3)),
        ("llama.attention.head_count", MetaValue::Whole(0)),
        ("llama.block_count", MetaValue::Whole(u32::MAX)),
        ("llama.block_count", text("two")),
        (
            "llama.attention.layer_norm_rms_epsilon",
            MetaValue::Number(f32::NAN),
        ),
        ("llama.rope.dimension_count", MetaValue::Whole(15)),
        ("llama.rope.dimension_count", MetaValue::Whole(64)),
        ("llama.rope.freq_base", MetaValue::Number(0.0)),
        (
            "llama.embedding_length_per_layer_input",
            MetaValue::Whole(8),
        ),
        ("llama.attn_logit_softcapping", MetaValue::Number(50.0)),
        ("llama.rope.scaling.attn_factor", MetaValue::Number(0.0)),
        ("llama.attention.causal", MetaValue::Flag(false)),
        ("llama.attention.value_length", MetaValue::Whole(8)),
        ("general.alignment", MetaValue::Whole(3)),
    ] {
        let error = error_of(|w| {
            w.set(key, value);
        });
        assert!(
            matches!(error, ModelError::BadValue { .. }),
            "{key}: {error}"
        );
    }
}

#[test]
fn equal_numbers_per_layer_are_one_number() {
    let file = file();
    let mut writer = tiny().writer();
    writer
        .set("llama.attention.head_count_kv", MetaValue::Wholes(vec![1]))
        .write(&file.path)
        .unwrap();
    open_all(&file.path).unwrap();
}

/// Writes a header from the given pairs and tensors.
fn by_hand(
    tensors: &[(&str, &[u64], u32, u64)],
    pairs: &[u8],
    pair_count: u64,
    data: usize,
) -> Vec<u8> {
    let mut out = b"GGUF\x03\0\0\0".to_vec();
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend(pair_count.to_le_bytes());
    out.extend(pairs);
    for (name, dims, kind, offset) in tensors {
        out.extend((name.len() as u64).to_le_bytes());
        out.extend(name.as_bytes());
        out.extend((dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
        out.extend(kind.to_le_bytes());
        out.extend(offset.to_le_bytes());
    }
    out.resize(out.len().next_multiple_of(32) + data, 0);
    out
}

fn gguf_error(bytes: &[u8]) -> ModelError {
    let file = file();
    std::fs::write(&file.path, bytes).unwrap();
    Gguf::open(&file.path).map(|_| ()).unwrap_err()
}

fn says(bytes: &[u8], what: &str) {
    match gguf_error(bytes) {
        ModelError::Malformed { what: found } => {
            assert!(found.contains(what), "{found:?} is not about {what:?}")
        }
        other => panic!("{other:?} is not about {what:?}"),
    }
}

#[test]
fn contradictory_tensor_entries_are_refused() {
    says(
        &by_hand(&[("a", &[8], 0, 0), ("a", &[8], 0, 32)], &[], 0, 64),
        "twice",
    );
    says(
        &by_hand(&[("a", &[16], 0, 0), ("b", &[16], 0, 32)], &[], 0, 128),
        "overlap",
    );
    says(&by_hand(&[("a", &[8], 0, 4)], &[], 0, 64), "multiple");
    says(&by_hand(&[("a", &[33], 8, 0)], &[], 0, 640), "multiple");
    says(&by_hand(&[("a", &[0], 0, 0)], &[], 0, 64), "dimension");
    says(
        &by_hand(&[("a", &[1 << 40, 1 << 40], 0, 0)], &[], 0, 64),
        "dimension",
    );
    says(
        &by_hand(&[("a", &[u64::MAX], 0, 0)], &[], 0, 64),
        "dimension",
    );
    says(&by_hand(&[("a", &[1; 9], 0, 0)], &[], 0, 64), "dimensions");
    says(&by_hand(&[("a", &[], 0, 0)], &[], 0, 64), "dimensions");
    says(
        &by_hand(&[("a", &[8], 0, u64::MAX - 31)], &[], 0, 64),
        "lies at",
    );
    assert!(matches!(
        gguf_error(&by_hand(&[("a", &[32], 0, 0)], &[], 0, 64)),
        ModelError::Truncated { .. }
    ));
    let far = by_hand(&[("a", &[8], 0, 1 << 61)], &[], 0, 64);
    assert!(matches!(gguf_error(&far), ModelError::Truncated { needs, .. } if needs > 1 << 61));
}

#[test]
fn inflated_metadata_lengths_are_refused() {
    let key = |kind: u32| {
        let mut pair = 1u64.to_le_bytes().to_vec();
        pair.push(b'k');
        pair.extend(kind.to_le_bytes());
        pair
    };
    let with = |kind: u32, rest: &[&[u8]]| by_hand(&[], &[key(kind), rest.concat()].concat(), 1, 0);
    says(&with(8, &[&u64::MAX.to_le_bytes()]), "declares");
    assert!(matches!(
        gguf_error(&with(8, &[&(1u64 << 29).to_le_bytes()])),
        ModelError::Truncated { .. }
    ));
    says(
        &with(9, &[&8u32.to_le_bytes(), &u64::MAX.to_le_bytes()]),
        "declares",
    );
    let many_texts = with(9, &[&8u32.to_le_bytes(), &(1u64 << 29).to_le_bytes()]);
    assert!(matches!(
        gguf_error(&many_texts),
        ModelError::Truncated { .. }
    ));
    let many_numbers = with(9, &[&10u32.to_le_bytes(), &(1u64 << 30).to_le_bytes()]);
    assert!(matches!(
        gguf_error(&many_numbers),
        ModelError::Truncated { .. }
    ));
    says(&with(13, &[]), "unknown kind");
    let mut nested = Vec::new();
    for _ in 0..100 {
        nested.extend(9u32.to_le_bytes());
        nested.extend(1u64.to_le_bytes());
    }
    says(&with(9, &[&nested]), "nests");
    let twice = [key(7), vec![1], key(7), vec![0]].concat();
    says(&by_hand(&[], &twice, 2, 0), "twice");
    let mut announced = b"GGUF\x03\0\0\0".to_vec();
    announced.extend(u64::MAX.to_le_bytes());
    announced.extend(0u64.to_le_bytes());
    says(&announced, "declares");
}
