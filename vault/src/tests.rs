//! Vaults on a real file system: reads return what was written; damaged or foreign data are never used.

mod eviction;

use std::path::PathBuf;

use kept_kernels::{HeadShape, PackedRows, RowStore, Stop};
use kept_policies::Snapshot;

use super::*;

const HEADS: HeadShape = HeadShape::new(4, 2, 32);

const SUMS: [StoredMeasurement; 3] = [
    StoredMeasurement::ColumnSums,
    StoredMeasurement::QuerySums {
        skip: 4,
        products: true,
    },
    StoredMeasurement::Reconstruction {
        from: 2,
        chunk: Some(3),
        sinks: 4,
    },
];

/// Layer 0 has a window of three positions.
fn shape(kind: PackedRows) -> VaultShape {
    VaultShape {
        tokens: 90,
        from: None,
        heads: HEADS,
        window_heads: None,
        kind,
        queries: 7,
        windows: vec![StoredRows::Last(3), StoredRows::All],
        state: 0,
        measurements: SUMS.to_vec(),
    }
}

fn key(digit: char) -> VaultKey {
    key_of(digit, digit)
}

/// The key of the tokens `tokens` and the model `model`.
fn key_of(tokens: char, model: char) -> VaultKey {
    let half = |digit: char| digit.to_string().repeat(32);
    VaultKey::parse(&(half(tokens) + &half(model))).expect("64 digits")
}

/// Rows that all differ, with capacity for `capacity` rows.
fn rows(capacity: usize, salt: f32) -> RowStore {
    let mut rows = RowStore::uniform(HEADS.kv_heads, capacity, HEADS.head_dim);
    for h in 0..HEADS.kv_heads {
        for (i, x) in rows.head_mut(h).iter_mut().enumerate() {
            *x = (i as f32 * 0.31 + h as f32 + salt).sin();
        }
    }
    rows
}

fn elements(count: usize, salt: f32) -> Vec<f32> {
    (0..count).map(|i| i as f32 + salt).collect()
}

fn ids() -> Vec<u32> {
    (0..90).map(|i| i * 7).collect()
}

/// The elements of layer 1 other than its rows.
fn beside() -> LayerElements {
    let doubles = (0..4 * (32 + 32 * 33 / 2)).map(|i| f64::from(i) * 0.1);
    LayerElements {
        queries: elements(7 * 4 * 32, 0.1),
        measured: vec![
            MeasuredValues::Single(elements(4 * 90, 0.7)),
            MeasuredValues::Double(doubles.collect()),
            MeasuredValues::Single(elements(2 * 90, 0.9)),
        ],
        state: Vec::new(),
    }
}

fn write(folder: &VaultFolder, key: &VaultKey, kind: PackedRows) {
    let mut writer = folder
        .begin(key, "a book", "a model", shape(kind))
        .expect("begun");
    for layer in 0..2 {
        let salt = layer as f32;
        let (keys, values) = (rows(100, salt), rows(100, salt + 5.0));
        writer.rows(&keys, &values, 0..90).expect("written");
        end_layer(&mut writer, layer);
    }
    let bytes = writer.finish(&ids()).expect("finished");
    assert!(bytes.abs_diff(shape(kind).bytes()) < 1024, "{bytes}");
}

/// Ends a layer, with its elements other than rows.
fn end_layer(writer: &mut VaultWriter, layer: usize) {
    if layer == 1 {
        let beside = beside();
        writer.elements(&beside.queries).expect("written");
        for measured in &beside.measured {
            writer.elements(measured.single()).expect("written");
            writer.sums(measured.double()).expect("written");
        }
    }
    writer.end_layer();
}

/// As `write`, with rows chunk by chunk, packed by the caller.
fn write_in_chunks(folder: &VaultFolder, key: &VaultKey, kind: PackedRows) {
    let mut writer = folder
        .begin(key, "a book", "a model", shape(kind))
        .expect("begun");
    for layer in 0..2 {
        let salt = layer as f32;
        let stores = [rows(100, salt), rows(100, salt + 5.0)];
        for first in (0..90).step_by(17) {
            let end = 90.min(first + 17);
            for (side, store) in RowsOf::BOTH.into_iter().zip(&stores) {
                for head in [1, 0] {
                    let mut packed = vec![0; (end - first) * kind.row_bytes(32)];
                    kind.pack(&store.head(head)[first * 32..end * 32], 32, &mut packed);
                    writer.packed(side, head, first, &packed).expect("written");
                }
            }
        }
        end_layer(&mut writer, layer);
    }
    writer.finish(&ids()).expect("finished");
}

/// A recurrent layer stores its state in place of rows.
#[test]
fn a_state_comes_back() {
    let (_place, folder) = folder(1 << 30);
    let shape = VaultShape {
        windows: vec![StoredRows::None, StoredRows::All],
        state: 1000,
        ..shape(PackedRows::F16)
    };
    assert_eq!(shape.rows(0), 90..90);
    let mut writer = folder
        .begin(&key('5'), "a book", "a model", shape)
        .expect("begun");
    let state = elements(1000, 0.3);
    writer.elements(&state[..900]).expect("written");
    writer.elements(&state[900..]).expect("written");
    writer.end_layer();
    writer
        .rows(&rows(100, 1.0), &rows(100, 6.0), 0..90)
        .expect("written");
    end_layer(&mut writer, 1);
    writer.finish(&ids()).expect("finished");
    let mut vault = find(&folder, &key('5')).expect("a vault");
    assert!(vault.fits(
        [HEADS; 2],
        [StoredRows::None, StoredRows::All].into_iter(),
        1000
    ));
    assert!(!vault.fits(
        [HEADS; 2],
        [StoredRows::None, StoredRows::All].into_iter(),
        999
    ));
    let (mut keys, mut values) = (rows(110, 9.0), rows(110, 9.0));
    let mut read = |layer| {
        let mut to = HostRows {
            keys: &mut keys,
            values: &mut values,
            space: &mut Vec::new(),
        };
        vault.layer(layer, 90, &mut to).expect("whole")
    };
    assert_eq!(read(0).state, state);
    assert_eq!(read(1), beside());
}

fn find(folder: &VaultFolder, key: &VaultKey) -> Option<Vault> {
    folder.find(key, &ids()).expect("no error")
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
fn layers_read_back_as_written() {
    for kind in [PackedRows::F16, PackedRows::Q8_0] {
        let (_place, folder) = folder(1 << 20);
        assert!(find(&folder, &key('a')).is_none());
        write(&folder, &key('a'), kind);
        let mut vault = find(&folder, &key('a')).expect("there it is");
        assert_eq!((vault.document(), vault.model()), ("a book", "a model"));
        assert_eq!((vault.shape(), vault.ids()), (&shape(kind), &ids()[..]));
        // The sliding-window layer stores its last rows and some before them.
        for (layer, tokens, stored) in [(0, 90, 23), (1, 90, 0), (1, 40, 0), (0, 20, 23)] {
            let (mut keys, mut values) = (rows(110, 9.0), rows(110, 9.0));
            let elements = vault.layer(
                layer,
                tokens,
                &mut HostRows {
                    keys: &mut keys,
                    values: &mut values,
                    space: &mut Vec::new(),
                },
            );
            let expected = [LayerElements::default(), beside()];
            assert_eq!(elements.expect("whole"), expected[layer]);
            for (found, salt) in [(keys, layer as f32), (values, layer as f32 + 5.0)] {
                for h in 0..2 {
                    let mut expected = rows(110, 9.0).head(h).to_vec();
                    if stored < tokens {
                        let mut known = rows(100, salt).head(h)[stored * 32..tokens * 32].to_vec();
                        kind.round(&mut known, 32);
                        expected[stored * 32..tokens * 32].copy_from_slice(&known);
                    }
                    assert_eq!(found.head(h), expected, "layer {layer}, {tokens} tokens");
                }
            }
        }
        let (_, holds) = (shape(kind), beside());
        for (measurement, elements) in SUMS.iter().zip(&holds.measured) {
            assert_eq!(
                holds.measurement(&shape(kind), *measurement),
                Some(elements)
            );
        }
        let other = StoredMeasurement::QuerySums {
            skip: 4,
            products: false,
        };
        assert_eq!(holds.measurement(&shape(kind), other), None);
    }
}

#[test]
fn rows_written_in_chunks_give_the_same_file() {
    for kind in [PackedRows::F16, PackedRows::Q8_0] {
        let bytes = [write, write_in_chunks].map(|write| {
            let (place, folder) = folder(1 << 20);
            write(&folder, &key('a'), kind);
            std::fs::read(files(&place).pop().expect("one vault")).expect("bytes")
        });
        assert!(bytes[0] == bytes[1], "{kind:?}");
    }
}

#[test]
#[should_panic(expected = "rows before token 40")]
fn a_gap_in_the_rows_panics() {
    let (_place, folder) = folder(1 << 20);
    let begun = folder.begin(&key('a'), "", "", shape(PackedRows::F16));
    let mut writer = begun.expect("begun");
    let _ = writer.packed(RowsOf::Keys, 0, 40, &[0; 64]);
}

/// A destination with a buffer for few rows in transit, or that stops accepting rows at some point.
struct Narrow<'a> {
    rows: HostRows<'a>,
    bytes: usize,
    times: usize,
}

impl VaultRows for Narrow<'_> {
    fn space(&mut self) -> Option<&mut [u8]> {
        self.times = self.times.checked_sub(1)?;
        self.rows.space().map(|space| &mut space[..self.bytes])
    }

    fn take(&mut self, kind: PackedRows, runs: &[Run]) {
        self.rows.take(kind, runs);
    }
}

#[test]
fn rows_are_read_through_buffers_of_any_size() {
    let (_place, folder) = folder(1 << 20);
    write(&folder, &key('a'), PackedRows::Q8_0);
    let mut vault = find(&folder, &key('a')).expect("there");
    // A row has 34 bytes, a head 90 rows.
    for (bytes, times) in [(34, 360), (100, 180), (3060, 4), (4000, 4), (20_000, 1)] {
        for times in [times, times - 1] {
            let (mut keys, mut values) = (rows(90, 9.0), rows(90, 9.0));
            let mut narrow = Narrow {
                rows: HostRows {
                    keys: &mut keys,
                    values: &mut values,
                    space: &mut Vec::new(),
                },
                bytes,
                times,
            };
            let elements = vault.layer(1, 90, &mut narrow).expect("whole");
            // A destination that accepts no more rows is not damage to the vault.
            let all = narrow.times == 0 && elements == beside();
            let none = elements == LayerElements::default();
            let mut expected = rows(100, 6.0).head(1)[..90 * 32].to_vec();
            PackedRows::Q8_0.round(&mut expected, 32);
            let came = values.head(1) == expected;
            assert!(all == came && none != came, "{bytes} bytes, {times} times");
        }
    }
}

#[test]
fn a_vault_is_found_by_shared_first_tokens() {
    let (_place, folder) = folder(1 << 20);
    write(&folder, &key('a'), PackedRows::F16);
    // The same model and settings, other tokens.
    let other = key_of('b', 'a');
    let mut longer = ids();
    longer.extend([5, 6]);
    let found = folder.find(&other, &longer).expect("no error");
    assert_eq!(found.map(|vault| vault.ids().len()), Some(90));
    let mut changed = ids();
    changed[MIN_SHARED_TOKENS] = 1;
    assert!(folder.find(&other, &changed).expect("no error").is_some());
    changed[MIN_SHARED_TOKENS - 1] = 1;
    assert!(folder.find(&other, &changed).expect("no error").is_none());
    // A vault of another model.
    assert!(folder.find(&key('b'), &ids()).expect("no error").is_none());
}

#[test]
fn truncated_or_changed_vaults_are_refused() {
    let (place, folder) = folder(1 << 20);
    write(&folder, &key('b'), PackedRows::Q8_0);
    let path = files(&place).pop().expect("one vault");
    let whole = std::fs::read(&path).expect("bytes");
    let layers = [0, 1].map(|layer| shape(PackedRows::Q8_0).layer_bytes(layer) as usize);
    let [first, body] = [layers[0], layers[0] + layers[1]];
    for length in (0..whole.len()).step_by(997).chain(body..whole.len()) {
        std::fs::write(&path, &whole[..length]).expect("written");
        assert!(find(&folder, &key('b')).is_none(), "{length} bytes");
        assert!(!path.exists(), "it is removed");
    }
    // A changed byte in the footer is detected on opening, one in a layer when the layer is read.
    for at in (0..whole.len()).step_by(331).chain(body..whole.len()) {
        let mut changed = whole.clone();
        changed[at] ^= 4;
        std::fs::write(&path, &changed).expect("written");
        if let Some(mut vault) = find(&folder, &key('b')) {
            assert!(at < body, "byte {at} of the end");
            let (mut keys, mut values) = (rows(90, 0.0), rows(90, 0.0));
            let layer = usize::from(at >= first);
            let used = vault.layer(
                layer,
                90,
                &mut HostRows {
                    keys: &mut keys,
                    values: &mut values,
                    space: &mut Vec::new(),
                },
            );
            assert!(matches!(used, Err(VaultError::Damaged { .. })), "byte {at}");
        }
    }
}

#[test]
fn a_vault_under_another_key_is_refused() {
    let (place, folder) = folder(1 << 20);
    write(&folder, &key('c'), PackedRows::F16);
    let path = files(&place).pop().expect("one vault");
    std::fs::rename(&path, path.with_file_name(format!("{}.vault", key('d')))).expect("renamed");
    assert!(find(&folder, &key('d')).is_none());
}

#[test]
fn an_unusable_file_does_not_block_other_vaults() {
    let (place, folder) = folder(1 << 20);
    write(&folder, &key('a'), PackedRows::F16);
    // A folder with the name of a vault, which cannot be removed as a file.
    let bad = place
        .path()
        .join(format!("vaults/{}.vault", key_of('0', 'a')));
    std::fs::create_dir(&bad).expect("made");
    let other = key_of('b', 'a');
    assert!(folder.find(&other, &ids()).expect("no error").is_some());
    write(&folder, &key('b'), PackedRows::F16);
    let said = folder.clear().expect_err("it stays");
    assert!(said.to_string().contains("the vault's file"), "{said}");
    assert!(find(&folder, &key('a')).is_none() && find(&folder, &key('b')).is_none());
    assert_eq!(files(&place), [bad]);
}

#[cfg(unix)]
#[test]
fn a_pipe_in_the_folder_is_refused_and_never_waited_for() {
    let (place, folder) = folder(1 << 20);
    write(&folder, &key('a'), PackedRows::F16);
    let pipe = |name: &str| {
        let path = place.path().join("vaults").join(name);
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.expect("mkfifo runs").success());
        path
    };
    for name in ["vault", "end"] {
        pipe(&format!("{}.{name}", "b".repeat(64)));
    }
    assert!(folder.find(&key('b'), &ids()).is_err());
    assert!(find(&folder, &key('a')).is_some());
    assert_eq!(folder.list().expect("a list").len(), 2);
    let begin = || folder.begin(&key('c'), "", "", shape(PackedRows::F16));
    let lock = pipe(&format!("{}.lock", "c".repeat(64)));
    let said = begin().expect_err("no writer").to_string();
    assert!(said.contains("not an ordinary file"), "{said}");
    std::fs::remove_file(lock).expect("removed");
    // What a dead process left is removed, whatever it is.
    pipe(&format!("{}.part", "c".repeat(64)));
    assert!(begin().is_ok());
    std::fs::remove_file(place.path().join("vaults/counting.lock")).expect("removed");
    pipe("counting.lock");
    assert!(folder.trim().is_err());
}

#[test]
fn two_documents_are_written_at_the_same_time() {
    let (place, folder) = folder(1 << 20);
    let begin = |key: &VaultKey| folder.begin(key, "", "", shape(PackedRows::F16));
    // Keys with a common prefix are independent.
    let first = begin(&key('7')).expect("begun");
    let akin = VaultKey::parse(&format!("{}8", "7".repeat(63))).expect("a key");
    let second = begin(&akin).expect("begun");
    drop((first, second));
    // The lock files for writing were removed; the counting lock persists.
    let all = std::fs::read_dir(place.path().join("vaults")).expect("a folder");
    let names: Vec<_> = all.map(|file| file.expect("a file").file_name()).collect();
    assert_eq!(names, ["counting.lock"]);
}

#[test]
fn a_second_writer_is_refused_until_the_first_is_dropped() {
    let (place, folder) = folder(1 << 20);
    let first = folder
        .begin(&key('7'), "", "", shape(PackedRows::F16))
        .expect("begun");
    let second = folder.begin(&key('7'), "", "", shape(PackedRows::F16));
    assert!(matches!(second, Err(VaultError::Busy)));
    drop(first);
    assert!(files(&place).is_empty());
    write(&folder, &key('7'), PackedRows::F16);
    assert_eq!(folder.list().expect("a list")[0].tokens, 90);
}

/// A visit over a list with capacity for `most` elements.
fn shown(list: &mut Vec<f32>, most: usize) -> impl FnMut(&mut dyn Snapshot) {
    move |through| {
        let mut count = list.len();
        through.count(&mut count, most);
        list.resize(count, 0.0);
        through.floats(list);
    }
}

#[test]
fn checkpoints_are_listed_evicted_and_checked_like_vaults() {
    let of = || CheckpointInfo {
        document: "a book".into(),
        model: "a model".into(),
        tokens: 9,
        settings: "4 rows".into(),
    };
    let mut elements: Vec<f32> = (0..300_000).map(|i| i as f32).collect();
    let most = elements.len();
    let (place, folder) = folder(2 << 20);
    let mut save = |digit| {
        folder.save_checkpoint(
            &key(digit),
            of(),
            &mut shown(&mut elements, most),
            &Stop::new(),
        )
    };
    let bytes = save('a').expect("saved");
    assert_eq!(files(&place)[0].metadata().expect("a file").len(), bytes);
    assert!(folder.has_checkpoint(&key('a')) && !folder.has_checkpoint(&key('b')));
    let listed = folder.list().expect("a list");
    let [entry] = &listed[..] else {
        panic!("{listed:?}")
    };
    assert_eq!(entry.holds, Some(VaultContent::Checkpoint("4 rows".into())));
    assert_eq!((entry.tokens, entry.bytes), (9, bytes));
    assert_eq!(entry.document.as_deref(), Some("a book"));

    // The budget holds one of them only.
    save('b').expect("saved");
    assert!(!folder.has_checkpoint(&key('a')) && folder.has_checkpoint(&key('b')));
    let mut read = Vec::new();
    let mut load = |digit, most| {
        folder.load_checkpoint(&key(digit), &mut shown(&mut read, most), &Stop::new())
    };
    assert!(matches!(load('a', most), Ok(None)));
    let loaded = LoadedCheckpoint { tokens: 9, bytes };
    assert_eq!(load('b', most).expect("it is read"), Some(loaded));
    // A count above the capacity is rejected, and the file is removed.
    let error = load('b', most - 1).expect_err("no room");
    assert!(matches!(error, VaultError::Damaged { .. }), "{error}");
    assert!(files(&place).is_empty());
    save('c').expect("saved");
    let mut read = Vec::new();
    let found = folder.load_checkpoint(&key('c'), &mut shown(&mut read, most), &Stop::new());
    assert!(matches!(found, Ok(Some(_))));
    let stop = Stop::new();
    stop.request();
    let mut other = Vec::new();
    let found = folder.load_checkpoint(&key('c'), &mut shown(&mut other, most), &stop);
    assert!(matches!(found, Err(VaultError::Io { .. })));
    let left = folder.save_checkpoint(&key('d'), of(), &mut shown(&mut elements, most), &stop);
    assert!(matches!(left, Err(VaultError::Io { .. })) && other.is_empty());
    // The failed write had evicted the other vault, and left no partial file.
    assert!(files(&place).is_empty());
    assert_eq!(read, elements);
}

#[test]
fn files_of_dead_processes_are_removed() {
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
fn the_error_of_a_too_large_vault_names_size_and_budget() {
    let (_place, folder) = folder(1000);
    let refused = folder.begin(&key('e'), "", "", shape(PackedRows::F16));
    let sentence = refused.expect_err("too large").to_string();
    let needed = kept_kernels::format_bytes(shape(PackedRows::F16).bytes());
    assert!(
        sentence.contains("1000 bytes") && sentence.contains(&needed),
        "{sentence}"
    );
}

#[test]
fn truncation_of_an_open_vault_is_an_error() {
    let (place, folder) = folder(1 << 20);
    write(&folder, &key('a'), PackedRows::Q8_0);
    let mut vault = find(&folder, &key('a')).expect("there");
    let path = files(&place).pop().expect("one vault");
    let file = std::fs::OpenOptions::new().write(true).open(&path);
    file.and_then(|file| file.set_len(2000)).expect("cut short");
    let (mut keys, mut values) = (rows(90, 0.0), rows(90, 0.0));
    let used = vault.layer(
        1,
        90,
        &mut HostRows {
            keys: &mut keys,
            values: &mut values,
            space: &mut Vec::new(),
        },
    );
    assert!(matches!(used, Err(VaultError::Damaged { .. })), "{used:?}");
}

/// A file with the same size and a valid checksum, but other kinds of elements, would be misinterpreted.
#[test]
fn a_checkpoint_of_another_layout_is_refused() {
    let (place, folder) = folder(1 << 20);
    let mut words = vec![7_u32; 100];
    let of = CheckpointInfo {
        document: String::new(),
        model: String::new(),
        tokens: 9,
        settings: String::new(),
    };
    let mut show = |through: &mut dyn Snapshot| through.words(&mut words);
    (folder.save_checkpoint(&key('a'), of, &mut show, &Stop::new())).expect("saved");
    let mut floats = vec![0.0; 100];
    let mut take = |through: &mut dyn Snapshot| through.floats(&mut floats);
    let error = folder.load_checkpoint(&key('a'), &mut take, &Stop::new());
    let error = error.expect_err("other elements");
    assert!(error.to_string().contains("another version"), "{error}");
    assert!(files(&place).is_empty(), "it is removed");
}
