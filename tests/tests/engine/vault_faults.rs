//! Vault faults never cost an answer: damaged, truncated and old files, one that another process writes, no disk space,
//! a stop at any moment.

use kept_engine::kernels::{HeadShape, PackedRows, Stop};
use kept_engine::models::RopeTable;
use kept_engine::vault::{ModelFingerprint, StoredRows, VaultAccess, VaultKey, VaultShape, Vaults};
use kept_engine::{EngineError, Event, Prefill};
use kept_tests::engine::open;
use kept_tests::golden;
use kept_tests::method_spec::spec;
use kept_tests::vaults::{Case, Place};

/// A layer found damaged at its use, a missing layer, and a vault of another version.
#[test]
fn damage_anywhere_in_a_vault_is_detected() {
    let model = open(&golden::model("group2-llama3-tied"));
    let case = Case::under(&model, spec("snapkv", "w=8", 40), 150, 1);
    let place = Place::default();
    let (expected, ..) = case
        .read(&model, Some(&place), PackedRows::F16)
        .expect("read");
    let path = place.files().pop().expect("a vault");
    let whole = std::fs::read(&path).expect("bytes");
    for at in (0..whole.len()).step_by(whole.len() / 40) {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        std::fs::write(&path, &damaged).expect("written");
        let (found, used, _) = case
            .read(&model, Some(&place), PackedRows::F16)
            .expect("the document is read again");
        let used = used.expect("vaults are allowed");
        assert!(!used.used && used.written && found == expected, "byte {at}");
    }
    for length in [0, 5, 300, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&path, &whole[..length]).expect("written");
        let (found, used, _) = case
            .read(&model, Some(&place), PackedRows::F16)
            .expect("read");
        let used = used.expect("vaults are allowed");
        assert!(
            !used.used && used.written && found == expected,
            "{length} bytes"
        );
    }
    let mut old = whole.clone();
    *old.last_mut().expect("a digit") = b'1';
    std::fs::write(&path, &old).expect("written");
    let (found, used, _) = case
        .read(&model, Some(&place), PackedRows::F16)
        .expect("read");
    assert!(!used.expect("vaults are allowed").used && found == expected);
    assert_eq!(
        std::fs::read(&path).expect("bytes"),
        whole,
        "made anew, the same"
    );
}

fn shape(tokens: usize, heads: HeadShape, layers: usize) -> VaultShape {
    VaultShape {
        tokens,
        from: None,
        window_heads: None,
        heads,
        kind: PackedRows::F16,
        queries: 0,
        windows: vec![StoredRows::All; layers],
        state: 0,
        measurements: Vec::new(),
    }
}

/// Prefill does not wait for another writer of the same vault; it answers all the same, and so it does if nothing can
/// be stored.
#[test]
fn a_busy_or_full_vault_folder_costs_no_answer() {
    let model = open(&golden::model("group2-llama3-tied"));
    let case = Case::under(&model, spec("snapkv", "w=8", 40), 150, 1);
    let place = Place::default();
    let (expected, ..) = case
        .read(&model, Some(&Place::default()), PackedRows::F16)
        .expect("read");
    let rope = RopeTable::new(model.config(), 300);
    let fingerprint = ModelFingerprint::of(&model);
    let key = VaultKey::new(&fingerprint, &rope, &case.prefix, PackedRows::F16);
    let shape = shape(150, HeadShape::new(4, 2, 32), 3);
    let other = place.vaults.begin(&key, "", "", shape).expect("begun");
    let (found, used, notes) = case
        .read(&model, Some(&place), PackedRows::F16)
        .expect("read");
    assert!(found == expected && !used.expect("allowed").written);
    assert!(
        notes.iter().any(|note| note.contains("did not wait")),
        "{notes:?}"
    );
    drop(other);
    assert!(place.files().is_empty());

    let small = Place::new(1000);
    let (found, used, notes) = case
        .read(&model, Some(&small), PackedRows::F16)
        .expect("read");
    assert!(found == expected && !used.expect("allowed").written);
    assert!(notes.iter().any(|note| note.contains("1000")), "{notes:?}");
}

/// A valid file under the document's name that belongs to another model: it is not used, and replaced.
#[test]
fn a_vault_of_another_model_is_replaced() {
    let model = open(&golden::model("group2-llama3-tied"));
    let case = Case::under(&model, spec("snapkv", "w=8", 40), 150, 1);
    let place = Place::default();
    let (expected, ..) = case
        .read(&model, Some(&Place::default()), PackedRows::F16)
        .expect("read");
    let rope = RopeTable::new(model.config(), 300);
    let fingerprint = ModelFingerprint::of(&model);
    let key = VaultKey::new(&fingerprint, &rope, &case.prefix, PackedRows::F16);
    let shape = shape(case.prefix.len(), HeadShape::new(4, 2, 64), 0);
    let other = place.vaults.begin(&key, "", "", shape).expect("begun");
    other.finish(&case.prefix).expect("finished");
    let (found, used, notes) = case
        .read(&model, Some(&place), PackedRows::F16)
        .expect("read");
    let used = used.expect("vaults are allowed");
    assert!(found == expected && !used.used && used.written);
    assert!(
        notes.iter().any(|note| note.contains("another model")),
        "{notes:?}"
    );
    let (found, used, _) = case
        .read(&model, Some(&place), PackedRows::F16)
        .expect("read");
    assert!(found == expected && used.expect("allowed").used);
}

/// A stop at any moment leaves no partial file, and an existing vault remains.
#[test]
fn a_stop_leaves_no_partial_vault() {
    let model = open(&golden::model("group2-llama3-tied"));
    let place = Place::default();
    let rope = RopeTable::new(model.config(), 400);
    let fingerprint = ModelFingerprint::of(&model);
    let method = spec("kvzip", "chunk=50,spread=layer", 80);
    let mut stopped = 0;
    for after in 0..60 {
        let case = Case {
            chunk: 16,
            ..Case::under(&model, method, 150, 1)
        };
        let ids: Vec<u32> = case.prefix.iter().chain(&case.rest).copied().collect();
        let (stop, built) = (Stop::new(), case.method.method());
        let mut heard = 0;
        let prefill = Prefill {
            chunk: case.chunk,
            vault: Some(VaultAccess {
                vaults: Vaults::new(&place.vaults, PackedRows::Q8_0),
                model: &fingerprint,
                document: "a document",
                turns: &[],
                rebuild: false,
            }),
            ..Prefill::new(&model, &ids, &*built, case.method.budget, 6, &rope)
                .with_document(case.document())
        };
        let mut count = |event: Event<'_>| {
            if matches!(event, Event::Layer { .. } | Event::Progress(..)) {
                heard += 1;
                if heard > after {
                    stop.request();
                }
            }
        };
        let result = prefill.run(&mut count, &stop);
        match result {
            Err(EngineError::Stopped) => {
                stopped += 1;
                assert_eq!(
                    place.files(),
                    Vec::<std::path::PathBuf>::new(),
                    "after {after}"
                );
            }
            Ok(_) => break,
            Err(error) => panic!("after {after}: {error}"),
        }
    }
    assert!(stopped >= 3, "{stopped}");
    assert_eq!(place.files().len(), 1, "the last reading was not stopped");
}
