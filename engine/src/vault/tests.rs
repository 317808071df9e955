//! Vaults on a real file system: what was written is read, and nothing else ever is.

use std::path::{Path, PathBuf};

use kept_kernels::{PackedRows, RowStore};

use super::*;

const HEADS: LayerShape = LayerShape {
    q_heads: 4,
    kv_heads: 2,
    head_dim: 32,
};

fn shape(kind: PackedRows) -> VaultShape {
    VaultShape {
        tokens: 9,
        layers: 2,
        heads: HEADS,
        kind,
        column_sums: true,
    }
}

fn key(digit: char) -> VaultKey {
    let name = digit.to_string().repeat(64);
    VaultKey::of_file(Path::new(&format!("{name}.vault"))).expect("64 digits")
}

/// Rows of which each differs, with room for `capacity` of them.
fn rows(capacity: usize, salt: f32) -> RowStore {
    let mut rows = RowStore::uniform(HEADS.kv_heads, capacity, HEADS.head_dim);
    for h in 0..HEADS.kv_heads {
        for (i, x) in rows.head_mut(h).iter_mut().enumerate() {
            *x = (i as f32 * 0.31 + h as f32 + salt).sin();
        }
    }
    rows
}

fn numbers(count: usize, salt: f32) -> Vec<f32> {
    (0..count).map(|i| i as f32 + salt).collect()
}

fn queries(layer: usize) -> Vec<f32> {
    numbers(9 * 4 * 32, layer as f32 * 0.1)
}

fn sums(layer: usize) -> Vec<f32> {
    numbers(4 * 9, layer as f32 * 0.7)
}

fn write(folder: &VaultFolder, key: &VaultKey, kind: PackedRows) {
    let mut writer = folder
        .begin(key, "a book", "a model", shape(kind))
        .expect("begun");
    for layer in 0..2 {
        let salt = layer as f32;
        let (keys, values) = (rows(12, salt), rows(12, salt + 5.0));
        let written = writer.layer(&keys, &values, &queries(layer), &sums(layer));
        written.expect("written");
    }
    writer.finish().expect("finished");
}

fn folder(budget: u64) -> (tempfile::TempDir, VaultFolder) {
    let place = tempfile::tempdir().expect("a folder");
    let folder = VaultFolder::new(&place.path().join("vaults"), budget);
    (place, folder)
}

fn files(place: &tempfile::TempDir) -> Vec<PathBuf> {
    let files = std::fs::read_dir(place.path().join("vaults")).expect("a folder");
    let paths = files.map(|file| file.expect("a file").path());
    paths
        .filter(|path| path.extension().is_some_and(|e| e != "lock"))
        .collect()
}

#[test]
fn what_was_written_is_read() {
    for kind in [PackedRows::F16, PackedRows::Q8_0] {
        let (_place, folder) = folder(1 << 20);
        assert!(folder.find(&key('a')).expect("no error").is_none());
        write(&folder, &key('a'), kind);
        let vault = folder
            .find(&key('a'))
            .expect("no error")
            .expect("there it is");
        assert_eq!((vault.document(), vault.model()), ("a book", "a model"));
        assert_eq!(vault.shape(), shape(kind));
        for layer in 0..2 {
            let (mut keys, mut values) = (rows(20, 9.0), rows(20, 9.0));
            vault.rows(layer, &mut keys, &mut values).expect("whole");
            for (found, salt) in [(keys, layer as f32), (values, layer as f32 + 5.0)] {
                for h in 0..2 {
                    let mut expected = rows(12, salt).head(h)[..9 * 32].to_vec();
                    kind.round(&mut expected, 32);
                    assert_eq!(found.head(h)[..9 * 32], expected);
                    assert_eq!(
                        found.head(h)[9 * 32..],
                        rows(20, 9.0).head(h)[9 * 32..],
                        "the rest"
                    );
                }
            }
            let mut last = vec![7.0];
            assert!(vault.queries(layer, 10, &mut last).is_none(), "there are 9");
            vault.queries(layer, 2, &mut last).expect("stored");
            assert_eq!(last[1..], queries(layer)[7 * 4 * 32..]);
            let mut out = vec![0.0; 4 * 11];
            vault.column_sums(layer, &mut out, 11).expect("stored");
            for (out, sums) in out.chunks_exact(11).zip(sums(layer).chunks_exact(9)) {
                assert_eq!((&out[..9], &out[9..]), (sums, &[0.0, 0.0][..]));
            }
        }
    }
}

#[test]
fn a_vault_that_was_cut_or_changed_is_never_used() {
    let (place, folder) = folder(1 << 20);
    write(&folder, &key('b'), PackedRows::Q8_0);
    let path = files(&place).pop().expect("one vault");
    let whole = std::fs::read(&path).expect("bytes");
    let layers = 2 * shape(PackedRows::Q8_0).layer_bytes();
    for length in (0..whole.len()).step_by(97).chain(layers..whole.len()) {
        std::fs::write(&path, &whole[..length]).expect("written");
        assert!(
            folder.find(&key('b')).expect("no error").is_none(),
            "{length} bytes"
        );
        assert!(!path.exists(), "it is removed");
    }
    // A changed byte in the footer is found when it is opened, one in a layer when the layer is used.
    for at in (0..whole.len()).step_by(31).chain(layers..whole.len()) {
        let mut changed = whole.clone();
        changed[at] ^= 4;
        std::fs::write(&path, &changed).expect("written");
        if let Some(vault) = folder.find(&key('b')).expect("no error") {
            assert!(at < layers, "byte {at} of the footer");
            let (mut keys, mut values) = (rows(9, 0.0), rows(9, 0.0));
            let used = vault.rows(at / (layers / 2), &mut keys, &mut values);
            assert!(matches!(used, Err(VaultError::Damaged { .. })), "byte {at}");
        }
    }
}

#[test]
fn a_vault_under_another_name_is_not_taken_for_its_own() {
    let (place, folder) = folder(1 << 20);
    write(&folder, &key('c'), PackedRows::F16);
    let path = files(&place).pop().expect("one vault");
    std::fs::rename(&path, path.with_file_name(format!("{}.vault", key('d')))).expect("renamed");
    assert!(folder.find(&key('d')).expect("no error").is_none());
}

#[test]
fn the_least_recently_used_makes_room_but_never_an_open_one() {
    let size = shape(PackedRows::F16).bytes() + 1024;
    let (_place, folder) = folder(3 * size);
    for digit in ['1', '2', '3'] {
        write(&folder, &key(digit), PackedRows::F16);
        // File times are coarse on some systems.
        std::thread::sleep(std::time::Duration::from_millis(30));
    }
    let open = folder.find(&key('1')).expect("no error").expect("there");
    drop(open);
    let open = folder.find(&key('2')).expect("no error").expect("there");
    // 3 is the oldest now, and 2 is open.
    write(&folder, &key('4'), PackedRows::F16);
    let left = |folder: &VaultFolder| -> Vec<VaultKey> {
        let entries = folder.list().expect("a list");
        entries.into_iter().map(|entry| entry.key).collect()
    };
    assert_eq!(left(&folder).len(), 3);
    assert!(!left(&folder).contains(&key('3')));
    write(&folder, &key('5'), PackedRows::F16);
    write(&folder, &key('6'), PackedRows::F16);
    assert!(left(&folder).contains(&key('2')), "it is open");
    assert!(!folder.remove(&key('2')).expect("no error"));
    drop(open);
    assert!(folder.remove(&key('2')).expect("no error"));
    assert!(!left(&folder).contains(&key('2')));
}

#[test]
fn two_never_write_one_vault_and_a_dropped_one_leaves_nothing() {
    let (place, folder) = folder(1 << 20);
    let first = folder
        .begin(&key('7'), "", "", shape(PackedRows::F16))
        .expect("begun");
    let second = folder.begin(&key('7'), "", "", shape(PackedRows::F16));
    assert!(matches!(second, Err(VaultError::Busy)));
    drop(first);
    assert!(files(&place).is_empty());
    write(&folder, &key('7'), PackedRows::F16);
    assert_eq!(folder.list().expect("a list")[0].tokens, 9);
}

#[test]
fn what_a_dead_process_left_is_swept_away() {
    let (place, folder) = folder(1 << 20);
    write(&folder, &key('8'), PackedRows::F16);
    let left = place
        .path()
        .join("vaults")
        .join(format!("{}.part", key('9')));
    std::fs::write(&left, b"half a vault").expect("written");
    write(&folder, &key('a'), PackedRows::F16);
    assert!(!left.exists());
}

#[test]
fn a_vault_larger_than_the_budget_is_refused_with_both_figures() {
    let (_place, folder) = folder(1000);
    let refused = folder.begin(&key('e'), "", "", shape(PackedRows::F16));
    let sentence = refused.expect_err("too large").to_string();
    assert!(sentence.contains("1000"), "{sentence}");
    assert!(
        sentence.contains(&shape(PackedRows::F16).bytes().to_string()),
        "{sentence}"
    );
}
