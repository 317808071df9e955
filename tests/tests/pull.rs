//! `kept models pull` against a hub on this computer: everything that goes wrong between a hub and a disk, through the real program.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use kept_hub::{Hub as Client, Phase, Settings};
use kept_tests::hub::{Faults, Hub, Origin, REPO, Refusal, sha256, some_bytes};
use kept_tests::terminal::{Run, run};
use serde_json::Value;

const FILE: &str = "tiny-Q8_0.gguf";
const MIB: usize = 1 << 20;

fn pull(hub: &Hub, more: &[&str]) -> Run {
    let what = format!("{REPO}:{FILE}");
    let mut arguments = vec!["models", "pull", what.as_str()];
    arguments.extend(more);
    run(hub.kept(&arguments))
}

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

/// The layout that the hub's tools share, with these bytes in it and nothing unfinished.
#[track_caller]
fn assert_whole(hub: &Hub, path: &str, bytes: &[u8]) {
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
                .join(sha256(bytes))
        );
    }
}

#[test]
fn a_model_is_downloaded_once() {
    let bytes = some_bytes(3 * MIB + 17, 1);
    let hub = Hub::with(&[(FILE, &bytes), ("README.md", b"hello")]);
    let first = pull(&hub, &["--json"]).json();
    assert_whole(&hub, FILE, &bytes);
    assert_eq!(first["downloaded_bytes"], bytes.len());
    assert_eq!(first["bytes"], bytes.len());
    assert_eq!(first["reference"], format!("{REPO}:{FILE}"));
    assert_eq!(first["supported"], false, "it only looks like a model");
    let path = first["path"].as_str().unwrap();
    assert!(fs::read(path).unwrap() == bytes);
    let again = pull(&hub, &["--json"]).json();
    assert_eq!(again["downloaded_bytes"], 0);
    assert_eq!(hub.served(), bytes.len() as u64);
    assert_eq!(hub.starts(), [0]);
}

#[test]
fn a_quantisation_a_page_and_a_file_in_a_folder_name_a_model() {
    let bytes = some_bytes(MIB, 2);
    let other = some_bytes(MIB, 3);
    let hub = Hub::with(&[
        ("sub/tiny q4_k_m.gguf", &bytes),
        (FILE, &other),
        ("mmproj-f16.gguf", &other),
    ]);
    run(hub.kept(&["models", "pull", &format!("{REPO}:q4_k_m")])).succeeded();
    assert_whole(&hub, "sub/tiny q4_k_m.gguf", &bytes);
    let page = format!("https://huggingface.co/{REPO}/blob/main/{FILE}?download=true");
    run(hub.kept(&["models", "pull", &page])).succeeded();
    assert_whole(&hub, FILE, &other);
    let several = run(hub.kept(&["models", "pull", REPO]));
    several.refused(&["several models", "Q4_K_M (1.0 MiB)", "Q8_0 (1.0 MiB)"]);
    let none = run(hub.kept(&["models", "pull", &format!("{REPO}:Q2_K")]));
    none.refused(&["has no model 'Q2_K'; it has Q4_K_M (1.0 MiB), Q8_0 (1.0 MiB)"]);
}

#[test]
fn a_split_model_is_downloaded_whole() {
    let parts: Vec<Vec<u8>> = (0..3).map(|n| some_bytes(MIB + n, n as u64 + 5)).collect();
    let names: Vec<String> = (1..=3)
        .map(|n| format!("big-Q8_0-{n:05}-of-00003.gguf"))
        .collect();
    let hub = Hub::with(&[
        (&names[2], &parts[2]),
        (&names[0], &parts[0]),
        (&names[1], &parts[1]),
    ]);
    let done = run(hub.kept(&["models", "pull", &format!("{REPO}:Q8_0"), "--json"])).json();
    assert!(
        done["path"]
            .as_str()
            .unwrap()
            .ends_with("big-Q8_0-00001-of-00003.gguf")
    );
    for (name, bytes) in names.iter().zip(&parts) {
        assert_whole(&hub, name, bytes);
    }
    let listed = run(hub.kept(&["models", "list", "--json"])).json();
    let models = listed["models"].as_array().unwrap();
    assert_eq!(models.len(), 1, "{models:?}");
    assert_eq!(models[0]["parts"], 3);
    assert_eq!(models[0]["bytes"], 3 * MIB + 3);
}

fn start(hub: &Hub) -> Child {
    let mut command = hub.kept(&[
        "models",
        "pull",
        &format!("{REPO}:{FILE}"),
        "--timeout",
        "300",
    ]);
    let silent = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    silent.spawn().unwrap()
}

fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |about| about.len())
}

#[track_caller]
fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(
            started.elapsed() < Duration::from_secs(120),
            "waited too long: {what}"
        );
        sleep(Duration::from_micros(300));
    }
}

/// The server stops at a gate, so that a test says when the process dies: at odd turns when everything has arrived that was sent,
/// at even turns in the middle of it.
#[test]
fn a_pull_that_is_killed_ten_times_still_ends_with_the_right_file_and_fetches_nothing_twice() {
    const KILLS: u64 = 10;
    let bytes = some_bytes(22 * MIB + 12_345, 7);
    let hub = Hub::with(&[(FILE, &bytes)]);
    let partial = hub.partial(&bytes);
    let (mut expected, mut lost) = (vec![0], 0);
    let mut random = 0x9E37_79B9_7F4A_7C15u64;
    for turn in 1..=KILLS {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let gate = turn * 2 * MIB as u64 - (random >> 33) % MIB as u64;
        hub.gate(gate);
        let before = length(&partial);
        let mut process = start(&hub);
        let until = match turn % 2 {
            1 => gate,
            _ => before + (gate - before) / 2,
        };
        wait_until("bytes arrive", || length(&partial) >= until);
        process.kill().unwrap();
        process.wait().unwrap();
        // Nobody sends to the dead any more.
        hub.gate(0);
        sleep(Duration::from_millis(50));
        let there = length(&partial);
        assert!(
            fs::read(&partial).unwrap() == bytes[..there as usize],
            "turn {turn}"
        );
        lost += gate - there;
        expected.push(there);
    }
    hub.gate(u64::MAX);
    let last = pull(&hub, &["--json"]).json();
    assert_whole(&hub, FILE, &bytes);
    let left = bytes.len() as u64 - expected[KILLS as usize];
    assert_eq!(last["downloaded_bytes"], left);
    assert_eq!(
        hub.starts(),
        expected,
        "each run asks for what the one before did not have"
    );
    // What was sent twice can only be what was under way when a process died.
    assert!(
        hub.served() <= bytes.len() as u64 + lost,
        "{} bytes sent",
        hub.served()
    );
}

#[cfg(unix)]
#[test]
fn ctrl_c_pauses_and_says_how_to_go_on() {
    let bytes = some_bytes(2 * MIB, 8);
    let hub = Hub::with(&[(FILE, &bytes)]);
    hub.gate(MIB as u64);
    let mut command = hub.kept(&["models", "pull", &format!("{REPO}:Q8_0")]);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let process = command.spawn().unwrap();
    wait_until("bytes arrive", || {
        length(&hub.partial(&bytes)) == MIB as u64
    });
    let signal = std::process::Command::new("kill")
        .args(["-INT", &process.id().to_string()])
        .status();
    assert!(signal.unwrap().success());
    let output = process.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(output.stdout.is_empty());
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        format!(
            "paused: 1.0 MiB of 2.0 MiB are kept; go on with: kept models pull {REPO}:{FILE}\n"
        )
    );
    hub.gate(u64::MAX);
    assert_eq!(pull(&hub, &["--json"]).json()["downloaded_bytes"], MIB);
    assert_whole(&hub, FILE, &bytes);
}

#[test]
fn a_cut_connection_is_taken_up_where_it_was_cut() {
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
fn a_connection_that_is_cut_at_once_again_and_again_is_given_up() {
    let bytes = some_bytes(MIB, 10);
    let hub = Hub::with(&[(FILE, &bytes)]);
    hub.set(Faults {
        cut_after: Some(0),
        cuts: 100,
        ..Faults::default()
    });
    let failed = pull(&hub, &["--retries", "1"]);
    let line = failed.refused(&[
        "was cut 2 times in a row; what has arrived is kept: run the same again to go on",
    ]);
    assert!(
        !line.contains("Signature"),
        "addresses are not shown: {line}"
    );
    assert_eq!(hub.starts().len(), 2);
}

#[test]
fn a_server_without_ranges_costs_bytes_but_not_the_file() {
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
fn wrong_bytes_are_removed() {
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
fn a_damaged_beginning_is_found_and_downloaded_again() {
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
fn what_another_program_began_is_gone_on_with() {
    let bytes = some_bytes(2 * MIB, 14);
    let hub = Hub::with(&[(FILE, &bytes)]);
    let partial = hub.partial(&bytes);
    fs::create_dir_all(partial.parent().unwrap()).unwrap();
    fs::write(&partial, &bytes[..MIB + 1]).unwrap();
    pull(&hub, &[]).succeeded();
    assert_eq!(hub.starts(), [MIB as u64 + 1]);
    // A file that is there in full, and one that is longer than it may be.
    fs::rename(hub.blob(&bytes), &partial).unwrap();
    assert_eq!(pull(&hub, &["--json"]).json()["downloaded_bytes"], 0);
    assert_whole(&hub, FILE, &bytes);
    fs::remove_file(hub.blob(&bytes)).unwrap();
    fs::write(&partial, [bytes.as_slice(), b"more"].concat()).unwrap();
    pull(&hub, &[]).succeeded();
    assert_whole(&hub, FILE, &bytes);
}

#[test]
fn a_server_that_announces_another_length_is_not_believed() {
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
    pull(&hub, &["--retries", "0"]).refused(&[&offered, "run the same again later"]);
    assert!(!hub.blob(&bytes).exists());
}

#[test]
fn a_file_that_changes_between_list_and_download_is_downloaded_as_it_is_now() {
    let (old, new) = (some_bytes(MIB, 16), some_bytes(MIB + 5, 17));
    let hub = Hub::with(&[(FILE, &old)]);
    hub.set(Faults {
        replace: Some(new.clone()),
        ..Faults::default()
    });
    pull(&hub, &[]).succeeded();
    assert_whole(&hub, FILE, &new);
    assert!(!hub.partial(&old).exists());
    // And between two runs: a new commit, a new file; the old one stays.
    let newer = some_bytes(MIB, 18);
    hub.replace(FILE, &newer);
    pull(&hub, &[]).succeeded();
    assert_whole(&hub, FILE, &newer);
    assert!(hub.blob(&new).exists());
}

#[test]
fn a_stalled_server_is_left_in_time() {
    let bytes = some_bytes(MIB, 19);
    let hub = Hub::with(&[(FILE, &bytes)]);
    hub.set(Faults {
        stall_after: Some(300_000),
        ..Faults::default()
    });
    pull(&hub, &["--retries", "0", "--timeout", "1"]).refused(&[
        "has sent nothing for 1 seconds",
        "go on from where it stopped",
    ]);
    assert_eq!(length(&hub.partial(&bytes)), 300_000);
    hub.set(Faults::default());
    assert_eq!(
        pull(&hub, &["--json"]).json()["downloaded_bytes"],
        MIB - 300_000
    );
}

#[test]
fn refusals_of_the_hub_say_the_way_out() {
    let bytes = some_bytes(1000, 20);
    let hub = Hub::with(&[(FILE, &bytes)]);
    let host = hub.endpoint().replace("http://", "");
    for (faults, says) in [
        (
            refusal(Origin::Hub, false, 401, "RepoNotFound"),
            format!(
                "there is no repository '{REPO}' on {host}, or it is private; check the spelling, or set HF_TOKEN"
            ),
        ),
        (
            refusal(Origin::Hub, false, 404, "RepoNotFound"),
            "there is no repository".to_owned(),
        ),
        (
            refusal(Origin::Hub, true, 403, "GatedRepo"),
            format!(
                "is gated: its owner wants conditions accepted first; accept them on {}/{REPO}, then set HF_TOKEN",
                hub.endpoint()
            ),
        ),
        (
            refusal(Origin::Hub, true, 403, ""),
            format!("{host} refuses '{REPO}' to you; ask its owner for access, or set HF_TOKEN"),
        ),
        (
            refusal(Origin::Hub, true, 404, "EntryNotFound"),
            format!("'{FILE}' is no longer in '{REPO}'; run the same again"),
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
fn passing_trouble_is_waited_out() {
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
        // Its signed address has run out.
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
            "answers with error 500; the fault is there: run the same again later",
        ),
        (
            passing(Origin::Hub, true, 429, Some(7200), 100),
            "asks to wait 2 h 0 min; run the same again later",
        ),
        (
            passing(Origin::Hub, true, 429, None, 100),
            "asks to wait; run the same again later",
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
fn the_token_goes_to_the_hub_and_nowhere_else() {
    let bytes = some_bytes(MIB, 22);
    let hub = Hub::with(&[(FILE, &bytes)]);
    hub.set(Faults {
        token: Some("hf_right".into()),
        ..Faults::default()
    });
    pull(&hub, &[]).refused(&["or it is private", "set HF_TOKEN"]);
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
fn nothing_is_fetched_offline_and_nowhere_without_a_hub() {
    let bytes = some_bytes(1000, 23);
    let hub = Hub::with(&[(FILE, &bytes)]);
    let mut offline = hub.kept(&["models", "pull", &format!("{REPO}:{FILE}")]);
    offline.env("HF_HUB_OFFLINE", "1");
    run(offline).refused(&["HF_HUB_OFFLINE is set, so nothing is fetched; unset it to download 'maker/tiny-GGUF:tiny-Q8_0.gguf'"]);
    assert!(hub.requests().is_empty());
    let mut nowhere = hub.kept(&["models", "pull", REPO]);
    nowhere.env("HF_ENDPOINT", "http://127.0.0.1:9");
    run(nowhere).refused(&["127.0.0.1:9 cannot be reached", "check the connection"]);
    run(hub.kept(&["models", "pull", "nonsense"]))
        .refused(&["'nonsense' names no model of the hub", "OWNER/NAME:FILE"]);
    run(hub.kept(&["models", "pull", REPO, "--timeout", "0"])).refused(&["--timeout 0"]);
}

#[test]
fn a_mirror_with_bare_lists_and_a_hub_without_storage_will_do() {
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

#[test]
fn two_processes_never_write_one_file() {
    let bytes = some_bytes(2 * MIB, 25);
    let hub = Hub::with(&[(FILE, &bytes)]);
    hub.gate(MIB as u64);
    let mut first = start(&hub);
    wait_until("bytes arrive", || {
        length(&hub.partial(&bytes)) == MIB as u64
    });
    pull(&hub, &[]).refused(&[
        "'tiny-Q8_0.gguf' is being downloaded by another program already; wait until it is done",
    ]);
    assert_eq!(length(&hub.partial(&bytes)), MIB as u64);
    first.kill().unwrap();
    first.wait().unwrap();
    hub.gate(u64::MAX);
    pull(&hub, &[]).succeeded();
    assert_whole(&hub, FILE, &bytes);
}

#[cfg(unix)]
#[test]
fn a_cache_that_cannot_be_written_is_named() {
    let bytes = some_bytes(1000, 26);
    let hub = Hub::with(&[(FILE, &bytes)]);
    fs::create_dir_all(hub.cache().parent().unwrap()).unwrap();
    fs::write(hub.cache(), "a file, no folder").unwrap();
    pull(&hub, &[]).refused(&[".cache/huggingface/hub", "cannot be made"]);
}

fn client(hub: &Hub) -> Client {
    Client::new(Settings {
        endpoint: hub.endpoint(),
        cache: hub.cache(),
        token: None,
        offline: false,
        retries: 1,
        patience: Duration::from_secs(20),
    })
}

#[test]
fn the_library_pauses_goes_on_and_gives_up() {
    let bytes = some_bytes(2 * MIB, 27);
    let hub = Hub::with(&[(FILE, &bytes)]);
    hub.gate(MIB as u64);
    let download = client(&hub).download(format!("{REPO}:Q8_0").parse().unwrap());
    assert_eq!(download.status().phase, Phase::Idle);
    download.start();
    download.start();
    wait_until("bytes arrive", || {
        length(&hub.partial(&bytes)) == MIB as u64
    });
    download.pause();
    let paused = download.at_rest_blocking(|_| {}).unwrap();
    assert_eq!(
        (paused.phase, paused.bytes_done),
        (Phase::Paused, MIB as u64)
    );
    assert_eq!(
        (paused.bytes_total, paused.seconds_left),
        (2 * MIB as u64, None)
    );
    // Paused and started again before it has stopped.
    download.resume();
    download.pause();
    download.resume();
    hub.gate(u64::MAX);
    let mut phases = Vec::new();
    let done = download
        .at_rest_blocking(|status| phases.push(status.phase))
        .unwrap();
    assert_eq!(done.phase, Phase::Finished, "{:?}", done.message);
    assert_eq!(done.bytes_done, done.bytes_total);
    assert!(fs::read(done.path.unwrap()).unwrap() == bytes);
    assert_eq!(phases.last(), Some(&Phase::Finished));
    assert_whole(&hub, FILE, &bytes);
    download.cancel();
    assert_eq!(
        download.status().phase,
        Phase::Finished,
        "what is finished stays"
    );

    let _ = fs::remove_dir_all(hub.cache());
    hub.gate(MIB as u64);
    let given_up = client(&hub).download(format!("{REPO}:Q8_0").parse().unwrap());
    given_up.start();
    wait_until("bytes arrive", || {
        length(&hub.partial(&bytes)) == MIB as u64
    });
    given_up.cancel();
    let status = given_up.at_rest_blocking(|_| {}).unwrap();
    assert_eq!(status.phase, Phase::Cancelled);
    assert!(!hub.partial(&bytes).exists());
    // Also when it is paused already.
    given_up.start();
    wait_until("bytes arrive", || {
        length(&hub.partial(&bytes)) == MIB as u64
    });
    given_up.pause();
    given_up.at_rest_blocking(|_| {}).unwrap();
    given_up.cancel();
    assert_eq!(given_up.status().phase, Phase::Cancelled);
    assert!(!hub.partial(&bytes).exists());
}

#[test]
fn the_library_says_what_failed_and_whether_trying_again_helps() {
    let bytes = some_bytes(MIB, 28);
    let hub = Hub::with(&[(FILE, &bytes)]);
    hub.set(Faults {
        wrong_bytes: true,
        ..Faults::default()
    });
    let download = client(&hub).download(format!("{REPO}:Q8_0").parse().unwrap());
    download.start();
    let status = download.at_rest_blocking(|_| {}).unwrap();
    assert_eq!((status.phase, status.can_retry), (Phase::Failed, true));
    assert_eq!(
        status.message,
        download.failure().map(|error| error.to_string())
    );
    hub.set(Faults::default());
    download.start();
    assert_eq!(
        download.at_rest_blocking(|_| {}).unwrap().phase,
        Phase::Finished
    );
    let json: Value = serde_json::to_value(download.status()).unwrap();
    assert_eq!(json["bytesDone"], MIB);
}

#[test]
fn a_file_larger_than_the_disk_is_refused_before_a_byte_is_fetched() {
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
