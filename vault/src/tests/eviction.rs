//! Which vaults are evicted, and when.

use super::*;

#[test]
fn the_least_recently_used_closed_vault_is_evicted() {
    let size = shape(PackedRows::F16).bytes() + 512;
    let (_place, folder) = folder(3 * size);
    for digit in ['1', '2', '3'] {
        write(&folder, &key(digit), PackedRows::F16);
        // File times are coarse on some systems.
        std::thread::sleep(std::time::Duration::from_millis(30));
    }
    let open = find(&folder, &key('1')).expect("there");
    folder.record_use(&open);
    drop(open);
    let open = find(&folder, &key('2')).expect("there");
    folder.record_use(&open);
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
fn nothing_is_evicted_if_that_frees_too_little() {
    let size = shape(PackedRows::F16).bytes() + 512;
    let (_place, folder) = folder(2 * size);
    write(&folder, &key('1'), PackedRows::F16);
    write(&folder, &key('2'), PackedRows::F16);
    let open = find(&folder, &key('2')).expect("there");
    let larger = VaultShape {
        tokens: 150,
        ..shape(PackedRows::F16)
    };
    assert!(larger.bytes() > size && larger.bytes() < 2 * size);
    let refused = folder.begin(&key('3'), "", "", larger.clone());
    assert!(matches!(refused, Err(VaultError::TooLarge { .. })));
    assert_eq!(folder.list().expect("a list").len(), 2);
    drop(open);
    drop(folder.begin(&key('3'), "", "", larger).expect("memory"));
    assert!(folder.list().expect("a list").is_empty(), "both went");
}

#[test]
fn the_order_of_use_survives_a_clock_set_back() {
    let size = shape(PackedRows::F16).bytes() + 512;
    let (place, folder) = folder(2 * size);
    write(&folder, &key('1'), PackedRows::F16);
    // A year ahead, as if the clock was set back later.
    let ahead = std::time::SystemTime::now() + std::time::Duration::from_secs(365 * 86_400);
    let path = files(&place).pop().expect("one vault");
    let file = std::fs::File::options().append(true).open(path);
    file.and_then(|file| file.set_modified(ahead)).expect("set");
    write(&folder, &key('2'), PackedRows::F16);
    let order = |folder: &VaultFolder| -> Vec<VaultKey> {
        let entries = folder.list().expect("a list");
        entries.into_iter().map(|entry| entry.key).collect()
    };
    assert_eq!(order(&folder), [key('2'), key('1')], "made last");
    folder.record_use(&find(&folder, &key('1')).expect("there"));
    assert_eq!(order(&folder), [key('1'), key('2')], "used last");
    write(&folder, &key('3'), PackedRows::F16);
    assert_eq!(order(&folder), [key('3'), key('1')]);
}

#[test]
fn trimming_to_a_smaller_budget_keeps_open_vaults() {
    let size = shape(PackedRows::F16).bytes() + 512;
    let (place, folder) = folder(4 * size);
    for digit in ['1', '2', '3'] {
        write(&folder, &key(digit), PackedRows::F16);
    }
    let open = find(&folder, &key('1')).expect("there");
    let smaller = |budget| VaultFolder::new(&place.path().join("vaults"), budget);
    let left = || folder.list().expect("a list").len();
    smaller(3 * size).trim().expect("trimmed");
    assert_eq!(left(), 3, "all fit");
    smaller(2 * size).trim().expect("trimmed");
    assert_eq!(left(), 2);
    smaller(1).trim().expect("trimmed");
    assert_eq!(left(), 1, "one is open");
    drop(open);
    smaller(1).trim().expect("trimmed");
    assert_eq!(left(), 0);
    // Trimming a folder that does not exist does not create it.
    VaultFolder::new(&place.path().join("none"), 1)
        .trim()
        .expect("nothing");
    assert!(!place.path().join("none").exists());
}

#[test]
#[cfg(unix)]
fn the_error_of_an_unwritable_folder_names_path_and_variable() {
    let place = tempfile::tempdir().expect("a folder");
    let file = place.path().join("a file");
    std::fs::write(&file, "no folder").expect("written");
    let folder = VaultFolder::new(&file.join("vaults"), 1 << 20);
    let begun = folder.begin(&key('a'), "", "", shape(PackedRows::F16));
    let said = begun.expect_err("no folder").to_string();
    assert!(
        said.contains("a file/vaults") && said.contains("KEPT_VAULTS"),
        "{said}"
    );
}

#[test]
fn unfinished_vaults_count_with_their_final_size() {
    let size = shape(PackedRows::F16).bytes();
    let (_place, folder) = folder(size * 5 / 2);
    let begin = |digit| folder.begin(&key(digit), "", "", shape(PackedRows::F16));
    let (first, _second) = (begin('1').expect("begun"), begin('2').expect("begun"));
    let third = begin('3').expect_err("no room");
    assert!(matches!(third, VaultError::TooLarge { .. }), "{third}");
    drop(first);
    begin('3').expect("memory");
}
