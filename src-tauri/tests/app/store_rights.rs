//! Access rights of the stored files: only their owner may read them.
#![cfg(unix)]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use kept_app::store;

fn rights(path: &Path) -> u32 {
    let found = std::fs::metadata(path).expect("it is there");
    found.permissions().mode() & 0o777
}

#[tokio::test]
async fn other_users_cannot_read_the_saved_files() {
    let home = tempfile::tempdir().expect("a folder");
    let folder = home.path().join("kept");
    std::fs::create_dir(&folder).expect("a folder");
    for name in ["kept.db", "kept.lock"] {
        let path = folder.join(name);
        std::fs::write(&path, b"").expect("a file of an earlier version");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).expect("wide rights");
    }
    std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o755)).expect("wide rights");

    let opened = store::open(&folder).await.expect("the store opens");
    assert_eq!(rights(&folder), 0o700);
    let mut files = 0;
    for entry in std::fs::read_dir(&folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        assert_eq!(rights(&path), 0o600, "{}", path.display());
        files += 1;
    }
    assert!(files >= 3, "the file, its log and the lock");
    drop(opened);
}
