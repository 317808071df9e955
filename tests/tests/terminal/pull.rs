//! `kept models pull` from a local hub, through the real program and the library.

use std::fs;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::Duration;

use kept_hub::{Phase, Settings};
use kept_tests::hub::pulling::{FILE, MIB, assert_whole, length, pull, wait_until};
use kept_tests::hub::{Faults, Hub, REPO, some_bytes};
use kept_tests::terminal::run;
use serde_json::Value;

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

fn client(hub: &Hub) -> Settings {
    Settings {
        endpoint: hub.endpoint(),
        cache: hub.cache(),
        token: None,
        offline: false,
        retries: 1,
        timeout: Duration::from_secs(20),
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
fn models_are_named_by_type_page_or_file() {
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
fn a_catalogue_model_that_the_hub_lost_is_searched_for() {
    let hub = Hub::with(&[(FILE, b"another model")]);
    let lost = &kept_hub::catalogue()[0];
    let pulled = run(hub.kept(&["models", "pull", &format!("{}:{}", lost.repo, lost.file)]));
    pulled.refused(&[
        &format!("{} is on Kept's list", lost.name),
        &format!("has no '{}' any more", lost.repo),
        &format!(
            "{}/models?search={}",
            hub.endpoint(),
            lost.name.replace(' ', "+")
        ),
    ]);
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

/// The server stops at a gate, so that the test controls when the process dies: in odd rounds after all sent bytes have
/// arrived, in even rounds during the transfer.
#[test]
fn a_killed_pull_resumes_without_refetching() {
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
        // Stop sending to the killed process.
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
    // Only bytes in transit at a kill may be sent twice.
    assert!(
        hub.served() <= bytes.len() as u64 + lost,
        "{} bytes sent",
        hub.served()
    );
}

#[cfg(unix)]
#[test]
fn ctrl_c_pauses_and_names_the_resume_command() {
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
fn a_partial_file_of_another_program_is_resumed() {
    let bytes = some_bytes(2 * MIB, 14);
    let hub = Hub::with(&[(FILE, &bytes)]);
    let partial = hub.partial(&bytes);
    fs::create_dir_all(partial.parent().unwrap()).unwrap();
    fs::write(&partial, &bytes[..MIB + 1]).unwrap();
    pull(&hub, &[]).succeeded();
    assert_eq!(hub.starts(), [MIB as u64 + 1]);
    // A complete partial file, and one longer than the blob.
    fs::rename(hub.blob(&bytes), &partial).unwrap();
    assert_eq!(pull(&hub, &["--json"]).json()["downloaded_bytes"], 0);
    assert_whole(&hub, FILE, &bytes);
    fs::remove_file(hub.blob(&bytes)).unwrap();
    fs::write(&partial, [bytes.as_slice(), b"more"].concat()).unwrap();
    pull(&hub, &[]).succeeded();
    assert_whole(&hub, FILE, &bytes);
}

#[test]
fn two_processes_do_not_download_one_file() {
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

#[test]
fn downloads_pause_resume_and_cancel() {
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
    // Resume and pause before the first pause has taken effect.
    download.start();
    download.pause();
    download.start();
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
    // Also if already paused.
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
fn a_failed_download_states_cause_and_retry() {
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
