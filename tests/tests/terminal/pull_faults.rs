//! `kept models pull` with faults: of the connection, the server, the hub's replies, the disk.

use std::fs;

use kept_tests::hub::pulling::{FILE, MIB, assert_whole, length, pull};
use kept_tests::hub::{Faults, Hub, Origin, REPO, Refusal, some_bytes};
use kept_tests::terminal::run;

fn refusal(origin: Origin, file: bool, status: u16, code: &'static str) -> Faults {
    Faults {
        refusal: Some(Refusal {
            origin,
            file,
            status,
            code,
            retry_after: None,
            times: 100,
        }),
        ..Faults::default()
    }
}

#[test]
fn a_cut_connection_is_resumed() {
    let bytes = some_bytes(2 * MIB, 9);
    let hub = Hub::with(&[(FILE, &bytes)]);
    hub.set(Faults {
        cut_after: Some(600_000),
        cuts: 2,
        ..Faults::default()
    });
    let done = pull(&hub, &["--retries", "1", "--json"]).json();
    assert_eq!(done["downloaded_bytes"], bytes.len());
    assert_eq!(hub.starts(), [0, 600_000, 1_200_000]);
    assert_whole(&hub, FILE, &bytes);
}

#[test]
fn a_connection_without_progress_is_given_up() {
    let bytes = some_bytes(MIB, 10);
    let hub = Hub::with(&[(FILE, &bytes)]);
    hub.set(Faults {
        cut_after: Some(0),
        cuts: 100,
        ..Faults::default()
    });
    let failed = pull(&hub, &["--retries", "1"]);
    let line = failed
        .refused(&["was cut 2 times in a row; what has arrived is kept: start it again to resume"]);
    assert!(
        !line.contains("Signature"),
        "addresses are not shown: {line}"
    );
    assert_eq!(hub.starts().len(), 2);
}

#[test]
fn a_server_without_ranges_restarts_the_file() {
    let bytes = some_bytes(2 * MIB, 11);
    let hub = Hub::with(&[(FILE, &bytes)]);
    hub.set(Faults {
        cut_after: Some(MIB as u64),
        cuts: 1,
        no_ranges: true,
        ..Faults::default()
    });
    let done = pull(&hub, &["--json"]).json();
    assert_eq!(done["downloaded_bytes"], 3 * MIB);
    assert_whole(&hub, FILE, &bytes);
}

#[test]
fn bytes_with_a_wrong_hash_are_removed() {
    let bytes = some_bytes(MIB, 12);
    let hub = Hub::with(&[(FILE, &bytes)]);
    hub.set(Faults {
        wrong_bytes: true,
        ..Faults::default()
    });
    pull(&hub, &[]).refused(&["'tiny-Q8_0.gguf' arrived damaged: its SHA-256 is not the one the hub names, so what was downloaded is removed"]);
    assert!(!hub.partial(&bytes).exists() && !hub.blob(&bytes).exists());
    assert!(!hub.repo().join("snapshots").exists() && !hub.repo().join("refs").exists());
    hub.set(Faults::default());
    pull(&hub, &[]).succeeded();
    assert_whole(&hub, FILE, &bytes);
}

#[test]
fn a_damaged_partial_file_is_downloaded_again() {
    let bytes = some_bytes(2 * MIB, 13);
    let hub = Hub::with(&[(FILE, &bytes)]);
    let partial = hub.partial(&bytes);
    fs::create_dir_all(partial.parent().unwrap()).unwrap();
    fs::write(&partial, vec![0; MIB]).unwrap();
    let done = pull(&hub, &["--json"]).json();
    assert_eq!(
        hub.starts(),
        [MIB as u64, 0],
        "once from where it ended, once anew"
    );
    assert_eq!(done["downloaded_bytes"], 3 * MIB);
    assert_whole(&hub, FILE, &bytes);
}

#[test]
fn a_wrong_content_length_is_refused() {
    let bytes = some_bytes(MIB, 15);
    let hub = Hub::with(&[(FILE, &bytes)]);
    hub.set(Faults {
        wrong_length: true,
        ..Faults::default()
    });
    let offered = format!(
        "offers {} bytes of 'tiny-Q8_0.gguf', which has {}",
        MIB + 1,
        MIB
    );
    pull(&hub, &["--retries", "0"]).refused(&[&offered, "try again later"]);
    assert!(!hub.blob(&bytes).exists());
}

#[test]
fn a_file_that_changes_on_the_hub_is_downloaded_anew() {
    let (old, new) = (some_bytes(MIB, 16), some_bytes(MIB + 5, 17));
    let hub = Hub::with(&[(FILE, &old)]);
    hub.set(Faults {
        replace: vec![new.clone()],
        ..Faults::default()
    });
    pull(&hub, &[]).succeeded();
    assert_whole(&hub, FILE, &new);
    assert!(!hub.partial(&old).exists());
    // A file that changes again and again is an error.
    let (one, two) = (some_bytes(MIB, 30), some_bytes(MIB, 31));
    let other = Hub::with(&[(FILE, &old)]);
    other.set(Faults {
        replace: vec![two, one],
        ..Faults::default()
    });
    pull(&other, &[]).refused(&["keeps changing on the hub while it is downloaded"]);
    // A change between two runs: a new commit, a new file; the old one remains.
    let newer = some_bytes(MIB, 18);
    hub.replace(FILE, &newer);
    pull(&hub, &[]).succeeded();
    assert_whole(&hub, FILE, &newer);
    assert!(hub.blob(&new).exists());
}

#[test]
fn a_stalled_server_times_out() {
    let bytes = some_bytes(MIB, 19);
    let hub = Hub::with(&[(FILE, &bytes)]);
    hub.set(Faults {
        stall_after: Some(300_000),
        ..Faults::default()
    });
    pull(&hub, &["--retries", "0", "--timeout", "1"])
        .refused(&["has sent nothing for 1 seconds", "what has arrived is kept"]);
    assert_eq!(length(&hub.partial(&bytes)), 300_000);
    hub.set(Faults::default());
    assert_eq!(
        pull(&hub, &["--json"]).json()["downloaded_bytes"],
        MIB - 300_000
    );
}

#[test]
fn hub_refusals_name_the_remedy() {
    let bytes = some_bytes(1000, 20);
    let hub = Hub::with(&[(FILE, &bytes)]);
    let host = hub.endpoint().replace("http://", "");
    for (faults, says) in [
        (
            refusal(Origin::Hub, false, 401, "RepoNotFound"),
            format!(
                "there is no repository '{REPO}' on {host}, or it is private; check the spelling, or give a token"
            ),
        ),
        (
            refusal(Origin::Hub, false, 404, "RepoNotFound"),
            "there is no repository".to_owned(),
        ),
        (
            refusal(Origin::Hub, true, 403, "GatedRepo"),
            format!(
                "is gated: its owner wants conditions accepted first; accept them on {}/{REPO}, then give a token of that account",
                hub.endpoint()
            ),
        ),
        (
            refusal(Origin::Hub, true, 403, ""),
            format!("{host} refuses '{REPO}' to you; ask its owner for access, or give a token"),
        ),
        (
            refusal(Origin::Hub, true, 404, "EntryNotFound"),
            format!("'{FILE}' is no longer in '{REPO}'; look again"),
        ),
        (
            refusal(Origin::Hub, false, 418, ""),
            "answers with error 418; check HF_ENDPOINT".to_owned(),
        ),
        (
            Faults {
                nonsense: true,
                ..Faults::default()
            },
            "does not answer as the hub does (its answer is no list of files); check HF_ENDPOINT"
                .to_owned(),
        ),
        (
            Faults {
                no_hash: true,
                ..Faults::default()
            },
            format!(
                "{host} names no SHA-256 for '{FILE}', so it could not be checked; it is not downloaded"
            ),
        ),
    ] {
        hub.set(faults);
        pull(&hub, &[]).refused(&[&says]);
    }
    assert_eq!(hub.served(), 0);
}

#[test]
fn temporary_errors_are_retried() {
    let bytes = some_bytes(1000, 21);
    let hub = Hub::with(&[(FILE, &bytes)]);
    let passing = |origin, file, status, retry_after, times| Faults {
        refusal: Some(Refusal {
            origin,
            file,
            status,
            code: "",
            retry_after,
            times,
        }),
        ..Faults::default()
    };
    for faults in [
        passing(Origin::Hub, true, 500, None, 1),
        passing(Origin::Hub, true, 429, Some(1), 1),
        passing(Origin::Storage, true, 503, None, 1),
        // An expired signed address.
        passing(Origin::Storage, true, 403, None, 1),
    ] {
        hub.set(faults);
        let _ = fs::remove_dir_all(hub.cache());
        pull(&hub, &[]).succeeded();
        assert_whole(&hub, FILE, &bytes);
    }
    let _ = fs::remove_dir_all(hub.cache());
    for (faults, says) in [
        (
            passing(Origin::Hub, false, 500, None, 100),
            "answers with error 500; the fault is there: try again later",
        ),
        (
            passing(Origin::Hub, true, 429, Some(7200), 100),
            "asks to wait 2 h 0 min; try again later",
        ),
        (
            passing(Origin::Hub, true, 429, None, 100),
            "asks to wait; try again later",
        ),
        (
            passing(Origin::Storage, true, 503, None, 100),
            "answers with error 503",
        ),
    ] {
        hub.set(faults);
        pull(&hub, &["--retries", "0"]).refused(&[says]);
    }
}

#[test]
fn the_token_goes_to_the_hub_only() {
    let bytes = some_bytes(MIB, 22);
    let hub = Hub::with(&[(FILE, &bytes)]);
    hub.set(Faults {
        token: Some("hf_right".into()),
        ..Faults::default()
    });
    pull(&hub, &[]).refused(&["or it is private", "HF_TOKEN"]);
    let what = format!("{REPO}:{FILE}");
    let with = |name: &str, token: &str| {
        let mut command = hub.kept(&["models", "pull", &what]);
        command.env(name, token).env("KEPT_LOG", "trace");
        run(command)
    };
    let wrong = with("HF_TOKEN", "hf_wrong");
    assert!(
        wrong
            .stderr
            .contains("does not accept the token from HF_TOKEN; make a new one"),
        "{}",
        wrong.stderr
    );
    let right = with("HUGGING_FACE_HUB_TOKEN", "hf_right");
    right.succeeded();
    assert_whole(&hub, FILE, &bytes);
    for run in [&wrong, &right] {
        assert!(
            !format!("{}{}", run.stdout, run.stderr).contains("hf_"),
            "the token is never shown"
        );
    }
    let _ = fs::remove_dir_all(hub.cache());
    let folder = hub.home.path().join(".cache/huggingface");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("token"), "hf_right\n").unwrap();
    pull(&hub, &[]).succeeded();
    let requests = hub.requests();
    let at_storage: Vec<_> = requests
        .iter()
        .filter(|r| r.origin == Origin::Storage)
        .collect();
    assert!(at_storage.len() >= 2);
    assert!(
        at_storage
            .iter()
            .all(|request| request.authorization.is_none())
    );
    assert!(
        requests
            .iter()
            .any(|r| r.authorization.as_deref() == Some("Bearer hf_right"))
    );
}

#[test]
fn offline_and_unreachable_hubs_are_refused() {
    let bytes = some_bytes(1000, 23);
    let hub = Hub::with(&[(FILE, &bytes)]);
    let mut offline = hub.kept(&["models", "pull", &format!("{REPO}:{FILE}")]);
    offline.env("HF_HUB_OFFLINE", "1");
    run(offline).refused(&["HF_HUB_OFFLINE is set, so nothing is fetched; start Kept without it to download 'maker/tiny-GGUF:tiny-Q8_0.gguf'"]);
    assert!(hub.requests().is_empty());
    let mut nowhere = hub.kept(&["models", "pull", REPO]);
    nowhere.env("HF_ENDPOINT", "http://127.0.0.1:9");
    run(nowhere).refused(&["127.0.0.1:9 cannot be reached", "check the connection"]);
    // An `https:` endpoint must be encrypted: the plain server counts as unreachable.
    let mut plain = hub.kept(&["models", "pull", REPO]);
    plain.env("HF_ENDPOINT", hub.endpoint().replace("http:", "https:"));
    run(plain).refused(&["cannot be reached"]);
    run(hub.kept(&["models", "pull", "nonsense"]))
        .refused(&["'nonsense' names no model of the hub", "OWNER/NAME:FILE"]);
    run(hub.kept(&["models", "pull", REPO, "--timeout", "0"])).refused(&["--timeout 0"]);
}

#[test]
fn mirrors_and_hubs_without_storage_work() {
    let bytes = some_bytes(MIB, 24);
    let hub = Hub::with(&[(FILE, &bytes)]);
    hub.set(Faults {
        bare_lists: true,
        ..Faults::default()
    });
    pull(&hub, &[]).succeeded();
    assert_whole(&hub, FILE, &bytes);
    assert!(
        hub.requests()
            .iter()
            .any(|request| request.method == "HEAD")
    );
    let _ = fs::remove_dir_all(hub.cache());
    hub.set(Faults {
        direct: true,
        ..Faults::default()
    });
    pull(&hub, &[]).succeeded();
    assert_whole(&hub, FILE, &bytes);
}

#[cfg(unix)]
#[test]
fn an_unwritable_cache_is_named() {
    let bytes = some_bytes(1000, 26);
    let hub = Hub::with(&[(FILE, &bytes)]);
    fs::create_dir_all(hub.cache().parent().unwrap()).unwrap();
    fs::write(hub.cache(), "a file, no folder").unwrap();
    pull(&hub, &[]).refused(&[".cache/huggingface/hub", "cannot be made"]);
}

#[test]
fn a_file_larger_than_the_disk_is_refused() {
    let hub = Hub::with(&[(FILE, b"GGUF")]);
    hub.set(Faults {
        claimed_bytes: Some(u64::MAX >> 1),
        ..Faults::default()
    });
    pull(&hub, &[]).refused(&[
        "free, but 8589934592.00 GiB are still to be downloaded",
        "are missing; free some space, or set HF_HUB_CACHE",
    ]);
    assert_eq!(hub.served(), 0);
}
