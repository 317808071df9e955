//! Results of `scripts/test-gpu` and `scripts/bench-gpu` when GPU time is short: a program that hangs, one that fails,
//! a kill, a second start. Shell scripts that record their arguments replace the programs of `make cuda`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Test programs: `hangs` and `fails` do so, and every one records itself.
const TEST: &str = r#"#!/bin/sh
echo "$(basename "$0") poison=${KEPT_GPU_POISON-no} only=${KEPT_GPU_ONLY-no}" >>"$NOTES"
case $(basename "$0") in
hangs) sleep 600 & echo $! >"$NOTES.sleeps"; wait ;;
fails) echo "it is wrong"; exit 101 ;;
esac
echo "test result: ok"
"#;

const KEPT: &str = r#"#!/bin/sh
echo "kept $* poison=${KEPT_GPU_POISON-no}" >>"$NOTES"
case "$*" in
doctor*--json*) printf '{\n "device": "cuda:0",\n "name": "A GPU"\n}\n' ;;
methods) printf 'snapkv  one\nh2o  another\n' ;;
ask*cuda:99*) echo "there is no GPU cuda:99" >&2; exit 1 ;;
ask*) [ "${CUDA_VISIBLE_DEVICES-some}" ] || { echo "no GPU cuda:0: use the CPU (--device cpu)" >&2; exit 1; }; echo '{"answer": "4711"}' ;;
bench*--bandwidth*) echo '{"gpu": "A GPU", "copy_gbs": 4000.0, "to_gpu_gbs": 50.0, "matrix_tflops": 400.0, "attention_tflops": 200.0}' ;;
bench*)
    case "$*" in *"$HANGS"*) [ -z "$HANGS" ] || exec sleep 600 ;; esac
    echo '{"decode_tokens_per_second": 100.0, "bandwidth_gbs": 1000.0, "bytes_per_token": 1000, "first_token_seconds": 1.0, "prefill_seconds": 1.0,
        "prefill_tokens_per_second": 5.0, "select_seconds": 0.01, "gpu_bytes": [100, 101], "again": [0.1, 100], "kv_bytes_full": 1000000,
        "kv_bytes": 1000, "prompt_tokens": 1000, "decode_tokens": 8, "peak_bytes": 5, "ledger_peak_bytes": 5}' ;;
esac
"#;

/// NVIDIA's compute-sanitizer on an unsupported device.
const CHECKER: &str = "#!/bin/sh
echo '========= Error: Device not supported.'
exit 101
";

/// A Python that claims to have the packages for making models; no model has to be made.
const PYTHON: &str = r#"#!/bin/sh
case "$*" in *"import bench_models"*) exit 0 ;; esac
exec python3 "$@"
"#;

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new(tests: &[&str]) -> Self {
        let place = Self {
            folder: tempfile::tempdir().expect("a folder"),
        };
        let programs = [
            ("kept", KEPT),
            ("python", PYTHON),
            ("bin/compute-sanitizer", CHECKER),
        ];
        let tests = tests.iter().map(|test| (format!("tests/{test}"), TEST));
        let programs = programs.map(|(name, text)| (name.to_owned(), text));
        for (name, text) in programs.into_iter().chain(tests) {
            let path = place.path(&name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(&path, text).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
        }
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// A command that runs the script with these programs and `arguments`.
    fn script(&self, script: &str, arguments: &[&str]) -> Command {
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts");
        let mut command = Command::new(scripts.join(script));
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .arg(self.folder.path())
            .args(arguments)
            .env("NOTES", self.path("notes"))
            .env("HANGS", "")
            .env("PATH", format!("{}:{path}", self.path("bin").display()))
            .env("CARGO_TARGET_DIR", self.path("target"))
            .env("BENCH_PYTHON", self.path("python"))
            .env_remove("OUT")
            .env_remove("CUDA_VISIBLE_DEVICES")
            .env_remove("KEPT_GPU_POISON")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        command
    }

    /// Waits for a text in a file.
    #[track_caller]
    fn until(&self, name: &str, text: &str) {
        let end = Instant::now() + Duration::from_secs(60);
        while !self.read(name).contains(text) {
            assert!(Instant::now() < end, "no {text} in {}", self.read(name));
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Kills a script and its process group without warning, like a machine that is reclaimed.
fn kill(mut script: Child) {
    let group = format!("-{}", script.id());
    let killed = Command::new("kill").args(["-9", "--", &group]).status();
    assert!(killed.expect("kill").success());
    script.wait().expect("it has ended");
}

fn code(command: &mut Command) -> i32 {
    command.status().expect("it starts").code().expect("a code")
}

/// A process exists until its parent has waited for it.
fn runs(id: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", id.trim())).unwrap_or_default();
    !status.is_empty() && !status.contains("State:\tZ")
}

#[test]
fn test_gpu_lists_hanging_and_failing_programs() {
    let place = Place::new(&["gpu", "cuda", "fails", "hangs", "last"]);
    let mut script = place.script("test-gpu", &["tests", "words", "refusals", "sanitizer"]);
    let out = place.path("out");
    let code = code(script.env("OUT", &out).env("KEPT_TEST_SECONDS", "2"));
    let log = place.read("out/test-gpu.log");
    assert_eq!(code, 1, "{log}");
    assert!(log.contains("failed: fails hangs ("), "{log}");
    assert!(log.contains("it has not ended within 2 s"), "{log}");
    assert!(!runs(&place.read("notes.sleeps")), "what hung still runs");
    for held in [
        "it is wrong",
        "h2o on cuda:0: 4711",
        "a GPU that is not there: one sentence",
        "no GPU: one sentence",
        "does not work with this device (Error: Device not supported.)",
    ] {
        assert!(log.contains(held), "{held}: {log}");
    }
    let notes = place.read("notes");
    assert!(notes.contains("last poison=1 only=1"), "{notes}");
    let kept = notes.lines().filter(|note| note.starts_with("kept"));
    assert!(kept.clone().count() > 5, "{notes}");
    assert!(
        kept.clone().all(|note| note.ends_with("poison=no")),
        "{notes}"
    );
}

#[test]
fn test_gpu_keeps_the_output_before_a_kill() {
    let place = Place::new(&["gpu", "hangs"]);
    let out = place.path("out");
    let mut script = place.script("test-gpu", &["--out", &out.display().to_string(), "tests"]);
    let script = script.env("KEPT_TEST_SECONDS", "5").spawn();
    place.until("out/test-gpu.log", "== hangs");
    kill(script.expect("it starts"));
    let log = place.read("out/test-gpu.log");
    assert!(
        log.contains("== gpu") && log.contains("test result: ok"),
        "{log}"
    );
}

#[test]
fn bench_gpu_ends_in_time_and_resumes() {
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("skipped: there is no python3 here");
        return;
    }
    let checked = ["cuda", "gpu"];
    let place = Place::new(&checked);
    for model in ["llama-8b-q4_k_m", "llama-1b-q4_k_m"] {
        let path = place.path(&format!("target/bench/{model}.gguf"));
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, "").expect("written");
    }
    let bench = |more: &[&str]| {
        let all = [&["--parts", "gpu", "--runs", "1"], more].concat();
        place.script("bench-gpu", &all)
    };
    let of = |name: &str| place.path(name).display().to_string();
    let (first, second, third) = (of("first"), of("second"), of("third"));

    // One run hangs until the time is up.
    let begun = Instant::now();
    let mut late = bench(&["--out", &first, "--seconds", "8"]);
    let ended = code(late.env("HANGS", "--after 32768"));
    let log = place.read("first/bench-gpu.log");
    assert_eq!(ended, 3, "{log}");
    assert!(begun.elapsed() < Duration::from_secs(30), "{log}");
    let table = place.read("first/gpu.md");
    assert!(table.starts_with("# A GPU\n"), "{table}");
    assert!(table.contains("after 2,048 tokens | 100.0"), "{table}");
    assert!(
        table.contains("--after 32768") && table.contains("no time was left"),
        "{table}"
    );
    let found = place.read("first/gpu-runs.jsonl").lines().count();
    assert_eq!(found, 4, "{log}");

    // A second folder resumes the first; the script is killed in the next run.
    fs::write(place.path("notes"), "").expect("written");
    let mut killed = bench(&["--from", &first, "--out", &second]);
    let killed = killed.env("HANGS", "--prompt-tokens 8192").spawn();
    place.until("notes", "--prompt-tokens 8192");
    kill(killed.expect("it starts"));
    let notes = place.read("notes");
    assert!(
        !notes.contains("cuda poison") && !notes.contains("--bandwidth"),
        "{notes}"
    );
    assert!(!notes.contains("--after 2048"), "{notes}");
    assert_eq!(
        place.read("second/gpu-runs.jsonl").lines().count(),
        6,
        "{notes}"
    );

    // A third folder completes the runs.
    fs::write(place.path("notes"), "").expect("written");
    assert_eq!(code(&mut bench(&["--from", &second, "--out", &third])), 0);
    let (notes, table) = (place.read("notes"), place.read("third/gpu.md"));
    assert!(!notes.contains("--after"), "{notes}");
    assert!(
        table.contains("131,072 tokens on llama-8b") && !table.contains("Left out"),
        "{table}"
    );

    // Other programs invalidate the results so far.
    fs::write(place.path("kept"), format!("{KEPT}# another\n")).expect("written");
    fs::write(place.path("notes"), "").expect("written");
    assert_eq!(code(&mut bench(&["--from", &third, "--out", &third])), 0);
    let notes = place.read("notes");
    assert!(
        notes.contains("cuda poison") && notes.contains("--bandwidth"),
        "{notes}"
    );
}
