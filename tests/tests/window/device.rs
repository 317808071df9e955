//! The device in the app: the reason for not using a GPU, and another worker when the user chooses one. The CUDA worker
//! is a stand-in, a script that names a GPU and then starts the plain worker: the window tests do not use a GPU.
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use kept_tests::window::{ANSWER, App, Home, Launch, QUESTION, first_start};
use serde_json::Value;

/// The plain worker's program, next to the app's.
fn plain(app: &App<'_>) -> PathBuf {
    let window = app.process().program().expect("the window's program");
    window.with_file_name("kept-worker")
}

/// The stand-in for the CUDA worker; it appends the arguments of each start to the file `words`.
fn stand_in(home: &Home, worker: &str) -> PathBuf {
    let words = home.path().join("words");
    let script = format!(
        r#"#!/bin/sh
if [ "$1" = --gpus ]; then
    echo '{{"gpus":[{{"device":"cuda:0","name":"NVIDIA Stand-in","capability":"8.9","memory":25769803776,"free":23622320128}}],"why_none":null}}'
    exit
fi
echo "$*" >> '{}'
exec '{worker}' "$@"
"#,
        words.display()
    );
    let path = home.file("kept-worker-cuda", script);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a program");
    path
}

fn words(home: &Home) -> Vec<String> {
    let words = fs::read_to_string(home.path().join("words")).unwrap_or_default();
    words.lines().map(str::to_owned).collect()
}

/// Waits until the settings show this device.
fn says_now(app: &App<'_>, words: &str) -> String {
    app.until(&format!("the settings say {words:?}"), |app| {
        app.text("device-now").filter(|t| t.contains(words))
    })
}

fn offered(app: &App<'_>) -> Value {
    let script = "return [...$('settings-device').options].map(o => [o.value, o.text.trim()])";
    app.script(script, Value::Null)
}

#[test]
fn without_a_gpu_the_settings_give_the_reason() {
    let Some(home) = Home::new() else { return };
    let app = first_start(&home);
    app.click("settings-button");
    let said = says_now(&app, "Runs on the CPU.");
    assert!(said.contains("no GPU support"), "{said}");
    assert_eq!(
        offered(&app),
        serde_json::json!([["", "Automatic"], ["cpu", "Processor"]])
    );
    app.script(
        "$('settings-device').scrollIntoView({block: 'center'})",
        Value::Null,
    );
    app.picture("no-GPU");
    app.close();
}

#[test]
fn a_change_of_device_restarts_the_engine_only() {
    let Some(home) = Home::new() else { return };
    let app = first_start(&home);
    let worker = plain(&app);
    app.ask(QUESTION);
    app.is_answered();
    app.close();

    let script = stand_in(&home, worker.to_str().expect("a path in UTF-8"));
    let script = script.to_str().expect("a path in UTF-8");
    let app = Launch::plain()
        .variable("KEPT_WORKER_CUDA", script)
        .open(&home);
    app.is_ready();
    assert_eq!(words(&home), ["--device auto"], "a GPU helps, so it says");
    app.click("settings-button");
    // The stand-in's engine has no GPU in the end: the CPU is used, and the reason is shown.
    says_now(
        &app,
        "Runs on the CPU. This build of Kept computes on the CPU only",
    );
    assert_eq!(
        offered(&app)[2],
        serde_json::json!(["cuda:0", "NVIDIA Stand-in (22.0 GiB of 24.0 GiB free)"])
    );
    app.script(
        "$('settings-device').scrollIntoView({block: 'center'})",
        Value::Null,
    );
    app.picture("a-GPU");

    // That GPU and no other: if it is unavailable, no model is open, and the remedy is named.
    app.choose("settings-device", "cuda:0");
    let error = app.until("the model is not open", |app| {
        app.snapshot()["modelError"].as_str().map(str::to_owned)
    });
    assert!(
        error.contains("GPU cuda:0") && error.contains("use the CPU"),
        "{error}"
    );
    assert_eq!(words(&home), ["--device auto", "--device cuda:0"]);

    app.choose("settings-device", "cpu");
    app.until("the refusal is of the past", |app| {
        app.snapshot()["modelError"].is_null()
    });
    app.is_ready();
    says_now(&app, "Runs on the CPU.");
    assert_eq!(words(&home).len(), 2, "the plain engine needs no words");
    app.driver().keys(&["\u{E00C}"]).expect("a key");
    assert_eq!(app.count("turn"), 1, "the conversation stays");
    app.ask(QUESTION);
    app.is_answered();
    assert!(app.answer().contains(ANSWER), "{}", app.answer());
    app.close();
}
