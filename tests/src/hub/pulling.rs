//! Runs `kept models pull` and checks the resulting files.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{Hub, REPO};
use crate::terminal::{Run, run};

/// The model that most tests download.
pub const FILE: &str = "tiny-Q8_0.gguf";
/// A mebibyte.
pub const MIB: usize = 1 << 20;

/// `kept models pull` of [`FILE`].
pub fn pull(hub: &Hub, more: &[&str]) -> Run {
    let what = format!("{REPO}:{FILE}");
    let mut arguments = vec!["models", "pull", what.as_str()];
    arguments.extend(more);
    run(hub.kept(&arguments))
}

/// Asserts the hub tools' cache layout with these bytes in it and no partial download.
#[track_caller]
pub fn assert_whole(hub: &Hub, path: &str, bytes: &[u8]) {
    let pointer = hub.repo().join("snapshots").join(hub.commit()).join(path);
    assert!(fs::read(&pointer).unwrap() == bytes, "the file's bytes");
    assert!(
        fs::read(hub.blob(bytes)).unwrap() == bytes,
        "the blob's bytes"
    );
    assert!(!hub.partial(bytes).exists(), "nothing unfinished is left");
    let main = fs::read_to_string(hub.repo().join("refs/main")).unwrap();
    assert_eq!(main, hub.commit());
    #[cfg(unix)]
    {
        let link = fs::read_link(&pointer).unwrap();
        let depth = path.split('/').count() + 1;
        assert_eq!(
            link,
            Path::new(&"../".repeat(depth))
                .join("blobs")
                .join(super::sha256(bytes))
        );
    }
}

/// Length of a file; 0 if it does not exist.
pub fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |about| about.len())
}

/// Waits for a condition that another process brings about.
#[track_caller]
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(
            started.elapsed() < Duration::from_secs(120),
            "waited too long: {what}"
        );
        sleep(Duration::from_micros(300));
    }
}
