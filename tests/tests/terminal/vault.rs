//! Vaults from the user's side: repeated `kept ask`, `kept vaults`, and the handling of faults.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use kept_engine::vault::VaultFolder;
use kept_tests::golden;
use kept_tests::terminal::{Run, assert_peak, kept_in, program, run};
use kept_tests::vaults::files_of;
use serde_json::Value;

const QUESTION: &str = "What is the locker code of Ann Quorvin?";
const OTHERS: [&str; 2] = [
    "What is the safe combination of Mira Stolden?",
    "What is the telephone extension of Professor Wexell?",
];

fn sample() -> PathBuf {
    golden::repository().join("assets/sample.txt")
}

fn arguments(document: &Path, questions: &[&str], extra: &[&str]) -> Vec<OsString> {
    let mut all: Vec<OsString> = vec!["ask".into(), "--json".into()];
    all.extend(["--document".into(), document.into()]);
    for question in questions {
        all.extend(["--question".into(), question.into()]);
    }
    all.extend(["--max-tokens".into(), "24".into()]);
    all.extend(extra.iter().map(Into::into));
    all
}

fn ask(vaults: &Path, question: &str, extra: &[&str]) -> Value {
    kept_in(vaults, arguments(&sample(), &[question], extra)).json()
}

fn whole(value: &Value, name: &str) -> u64 {
    let found = &value["vault"][name];
    found.as_u64().unwrap_or_else(|| panic!("{name}: {value}"))
}

fn notes(value: &Value) -> String {
    value["notes"].to_string()
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let place = tempfile::tempdir().expect("a folder");
    let vaults = place.path().join("deep").join("vaults");
    (place, vaults)
}

#[test]
fn later_questions_use_the_vault() {
    let (_place, vaults) = folder();
    let first = ask(&vaults, QUESTION, &[]);
    assert_eq!(first["vault"]["used"], false);
    assert_eq!(first["vault"]["kind"], "q8_0");
    assert_eq!(
        whole(&first, "tokens_read"),
        first["prompt_tokens"].as_u64().expect("tokens")
    );
    let size = std::fs::metadata(&files_of(&vaults)[0])
        .expect("a vault")
        .len();
    assert_eq!(whole(&first, "bytes"), size);
    for (question, says) in [(QUESTION, "4711"), (OTHERS[0], "58213"), (OTHERS[1], "318")] {
        let again = ask(&vaults, question, &[]);
        assert_eq!(again["vault"]["used"], true);
        let (read, known) = (
            whole(&again, "tokens_read"),
            whole(&again, "tokens_from_vault"),
        );
        assert!(read < 40, "{read} tokens were read");
        assert_eq!(
            read + known,
            again["prompt_tokens"].as_u64().expect("tokens")
        );
        assert_eq!(whole(&again, "bytes"), size);
        let answer = again["answer"].as_str().expect("text");
        assert!(answer.contains(says), "{question} {answer}");
    }
    assert_eq!(files_of(&vaults).len(), 1);
}

#[test]
fn a_document_is_read_before_its_first_question() {
    let (_place, vaults) = folder();
    let read = |extra: &[&str]| {
        let mut words: Vec<OsString> = ["vaults", "read", "--document"].map(Into::into).into();
        words.push(sample().into_os_string());
        words.extend(extra.iter().map(Into::into));
        kept_in(&vaults, words)
    };
    read(&["--vault", "off"]).refused(&["--vault off"]);
    let first = read(&["--json"]).json();
    let tokens = first["tokens"].as_u64().expect("tokens");
    assert!(tokens > 1000);
    assert_eq!(first["tokens_in_vault"].as_u64(), Some(tokens));
    assert_eq!(first["tokens_from_vault"], 0);
    assert_eq!(files_of(&vaults).len(), 1, "one vault");
    let again = read(&[]);
    let says = &again.succeeded().stdout;
    assert!(says.starts_with("sample.txt: 1,"), "{says}");
    let answer = ask(&vaults, QUESTION, &[]);
    assert_eq!(whole(&answer, "tokens_from_vault"), tokens);
    assert!(whole(&answer, "tokens_read") < 40);
    // What a method measures of the whole document is kept if it is named.
    let h2o = |vaults: &Path| ask(vaults, QUESTION, &["--method", "h2o", "--budget", "300"]);
    read(&["--method", "h2o"]).succeeded();
    assert_eq!(whole(&h2o(&vaults), "tokens_from_vault"), tokens);
    read(&["--method", "nomethod"]).refused(&["nomethod"]);
    // A vault that cannot be written is an error here.
    let (_place, other) = folder();
    let mut words: Vec<OsString> = ["vaults", "read", "--vault-budget", "4KiB"]
        .map(Into::into)
        .into();
    words.extend(["--document".into(), sample().into_os_string()]);
    let full = kept_in(&other, words);
    full.refused(&["vault"]);
    assert!(files_of(&other).is_empty());
}

#[test]
fn later_questions_use_the_streaming_checkpoint() {
    let (_place, vaults) = folder();
    let extra = ["--streaming", "on", "--method", "treekv", "--budget", "200"];
    let first = ask(&vaults, QUESTION, &extra);
    assert_eq!(first["vault"]["used"], false);
    assert_eq!(first["vault"]["kind"], "end");
    for question in OTHERS {
        let again = ask(&vaults, question, &extra);
        assert_eq!(again["vault"]["used"], true, "{again}");
        assert!(whole(&again, "tokens_read") < 40);
        let (_place, fresh) = folder();
        assert_eq!(again["answer"], ask(&fresh, question, &extra)["answer"]);
    }
    let listed = kept_in(&vaults, ["vaults", "list"]);
    let list = &listed.succeeded().stdout;
    let says = "its end, 200 rows a head by treekv";
    assert!(list.contains("sample.txt") && list.contains(says), "{list}");
    let list = kept_in(&vaults, ["vaults", "list", "--json"]).json();
    assert_eq!(list["vaults"][0]["kind"], "end");
    // A path, as it was given to open the document.
    let removed = kept_in(&vaults, ["vaults", "remove", "./assets/sample.txt"]);
    removed.succeeded();
    assert!(files_of(&vaults).is_empty());
}

/// Rows kept by a query-agnostic method serve every question, and the output states it where they are reused.
#[test]
fn query_agnostic_methods_are_noted() {
    let (_place, vaults) = folder();
    for (method, title) in [("keydiff", "KeyDiff"), ("snapkv", "SnapKV")] {
        let extra = ["--method", method, "--budget", "400"];
        let (first, again) = (
            ask(&vaults, OTHERS[0], &extra),
            ask(&vaults, QUESTION, &extra),
        );
        let says = format!("{title} ranks the document without the question");
        assert_eq!(again["vault"]["used"], true);
        assert_eq!(notes(&again).contains(&says), method == "keydiff");
        assert!(method == "snapkv" || !notes(&first).contains(&says));
    }
}

/// A map is a question like any other: it stores the document's vault, and is the same when computed from the vault.
#[test]
fn a_map_uses_and_writes_the_vault() {
    let (_place, vaults) = folder();
    let map = |extra: &[&str]| {
        let mut words: Vec<OsString> = vec!["map".into(), "--json".into()];
        words.extend(["--document".into(), sample().into_os_string()]);
        words.extend(["--question", QUESTION, "--budget", "300"].map(OsString::from));
        words.extend(extra.iter().map(Into::into));
        kept_in(&vaults, words)
    };
    map(&["--vault", "off"]).succeeded();
    assert!(files_of(&vaults).is_empty());
    let first = map(&["--vault", "f16"]).json();
    let [file] = &files_of(&vaults)[..] else {
        panic!("one vault")
    };
    assert_eq!(
        ask(&vaults, QUESTION, &["--vault", "f16"])["vault"]["used"],
        true
    );
    assert_eq!(map(&["--vault", "f16"]).json(), first);
    // The file's first row is damaged: no later row is usable without it.
    let mut bytes = std::fs::read(file).expect("a vault");
    bytes[0] ^= 1;
    std::fs::write(file, bytes).expect("it is written");
    let damaged = map(&["--vault", "f16"]);
    let says = "the document was read again";
    assert!(damaged.stderr.contains(says), "{}", damaged.stderr);
    assert_eq!(damaged.json(), first);
}

#[test]
fn several_questions_in_one_command_are_answered_in_order() {
    let (_place, vaults) = folder();
    let all = [QUESTION, OTHERS[0], OTHERS[1]];
    let answers = kept_in(&vaults, arguments(&sample(), &all, &["--vault", "f16"])).json_lines();
    assert_eq!(answers.len(), 3);
    for (i, (answer, question)) in answers.iter().zip(all).enumerate() {
        assert_eq!(answer["question"], question);
        assert_eq!(answer["vault"]["used"], i > 0);
        // Equal to the output of a separate command, to the letter and to the row.
        let (_place, fresh) = folder();
        let alone = ask(&fresh, question, &["--vault", "f16"]);
        for field in ["answer", "rows_per_layer", "sources", "kv_bytes"] {
            assert_eq!(answer[field], alone[field], "{question}");
        }
    }
    let mut plain = arguments(&sample(), &all[..2], &[]);
    plain.remove(1);
    let run = kept_in(&vaults, plain);
    run.succeeded();
    let says = |text: &str| {
        run.stdout
            .find(text)
            .unwrap_or_else(|| panic!("{text}: {run:?}"))
    };
    assert!(says(&format!("> {QUESTION}")) < says("4711"));
    assert!(says("4711") < says(&format!("> {}", OTHERS[0])));
    assert!(
        run.stderr.contains("tokens from the vault"),
        "{}",
        run.stderr
    );
    let map = arguments(&sample(), &all, &["--map", "map.json"]);
    kept_in(&vaults, map).refused(&["--map", "3"]);
}

#[test]
fn vault_off_writes_nothing_and_bad_values_are_refused() {
    let (_place, vaults) = folder();
    for _ in 0..2 {
        let answer = ask(&vaults, QUESTION, &["--vault", "off"]);
        assert_eq!(answer["vault"]["kind"], "off");
        assert_eq!(whole(&answer, "tokens_from_vault"), 0);
    }
    assert!(!vaults.exists(), "nothing was made");
    let odd = arguments(&sample(), &[QUESTION], &["--vault", "q4"]);
    kept_in(&vaults, odd).refused(&["--vault", "q4", "q8_0"]);
    let odd = arguments(&sample(), &[QUESTION], &["--vault-budget", "12%"]);
    kept_in(&vaults, odd).refused(&["--vault-budget", "12%", "20GiB"]);
    let mut words: Vec<OsString> = ["vaults", "read", "--document"]
        .map(OsString::from)
        .to_vec();
    words.push(sample().into_os_string());
    words.extend(["--method", "pyramidinfer[variant=faithful]"].map(OsString::from));
    kept_in(&vaults, words).refused(&["drops tokens as it reads", "neither used nor made"]);
}

#[test]
#[cfg(unix)]
fn vault_files_are_private_to_the_user() {
    use std::os::unix::fs::PermissionsExt;
    let (_place, vaults) = folder();
    ask(&vaults, QUESTION, &[]);
    let mode = |path: &Path| std::fs::metadata(path).expect("facts").permissions().mode() & 0o777;
    assert_eq!(mode(&vaults), 0o700);
    for file in std::fs::read_dir(&vaults).expect("files") {
        assert_eq!(mode(&file.expect("a file").path()), 0o600);
    }
}

#[test]
fn an_unwritable_vault_folder_is_noted() {
    let (place, _) = folder();
    let file = place.path().join("a file");
    std::fs::write(&file, "no folder").expect("written");
    let answer = ask(&file.join("vaults"), QUESTION, &[]);
    assert!(answer["answer"].as_str().expect("text").contains("4711"));
    assert!(
        notes(&answer).contains("the vault could not be written"),
        "{answer}"
    );
    let answer = ask(
        &place.path().join("small"),
        QUESTION,
        &["--vault-budget", "1MiB"],
    );
    assert!(answer["answer"].as_str().expect("text").contains("4711"));
    assert!(
        notes(&answer).contains("may take 1.0 MiB in all"),
        "{answer}"
    );
    assert_eq!(whole(&answer, "bytes"), 0);
}

/// A full file system: `ulimit -f` limits the file size, and the write fails in the middle.
#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_costs_no_answer_and_leaves_no_vault() {
    let (_place, vaults) = folder();
    let mut shell = std::process::Command::new("sh");
    // In blocks of 512 bytes: a quarter of the vault.
    shell.args(["-c", "trap '' XFSZ; ulimit -f 2400; exec \"$@\"", "sh"]);
    shell.arg(program());
    let model = ["--model", "mini"];
    shell.args(arguments(&sample(), &[QUESTION, OTHERS[0]], &model));
    shell.env("KEPT_VAULTS", &vaults);
    let answers = run(shell).json_lines();
    for (answer, says) in answers.iter().zip(["4711", "58213"]) {
        assert!(answer["answer"].as_str().expect("text").contains(says));
        assert_eq!(answer["vault"]["written"], false);
        assert_eq!(answer["vault"]["used"], false);
        assert!(
            notes(answer).contains("the vault could not be written"),
            "{answer}"
        );
        assert!(notes(answer).contains("the vault's file: "), "{answer}");
    }
    assert_eq!(files_of(&vaults), Vec::<PathBuf>::new());
}

/// A power cut as seen by a process: it is killed during a write.
#[test]
fn a_process_killed_while_writing_leaves_no_vault() {
    let (_place, vaults) = folder();
    let expected = ask(&vaults, QUESTION, &["--vault", "off"]);
    let parts = || {
        let files = files_of(&vaults).into_iter();
        files.filter(|path| path.extension().is_some_and(|e| e == "part"))
    };
    let mut cut = 0;
    for wait in [0, 10, 40] {
        let mut command = std::process::Command::new(program());
        command.args(arguments(&sample(), &[QUESTION], &[]));
        command.env("KEPT_VAULTS", &vaults);
        command.stdout(std::process::Stdio::null());
        let mut child = command.spawn().expect("kept starts");
        while parts().next().is_none() && child.try_wait().expect("a child").is_none() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        std::thread::sleep(std::time::Duration::from_millis(wait));
        child.kill().expect("it is ours");
        child.wait().expect("it ended");
        cut += parts().count();
        let found = ask(&vaults, QUESTION, &[]);
        assert_eq!(found["answer"], expected["answer"]);
        let files = files_of(&vaults);
        assert!(parts().next().is_none() && files.len() == 1, "{files:?}");
        assert_eq!(ask(&vaults, QUESTION, &[])["vault"]["used"], true);
        std::fs::remove_file(&files[0]).expect("removed");
    }
    assert!(cut > 0, "none was killed while it wrote");
}

#[test]
fn a_damaged_vault_is_rebuilt() {
    let (_place, vaults) = folder();
    let first = ask(&vaults, QUESTION, &["--vault", "f16"]);
    let path = files_of(&vaults).pop().expect("a vault");
    let good = std::fs::read(&path).expect("bytes");
    let middle = good.len() / 2;
    let mut flipped = good.clone();
    flipped[middle] ^= 8;
    for (damaged, says) in [
        (flipped, "the document was read again"),
        (good[..middle].to_vec(), ""),
        (Vec::new(), ""),
    ] {
        std::fs::write(&path, &damaged).expect("written");
        let again = ask(&vaults, QUESTION, &["--vault", "f16"]);
        assert_eq!(again["answer"], first["answer"]);
        assert_eq!(again["vault"]["used"], false);
        assert_eq!(again["vault"]["written"], true);
        assert!(notes(&again).contains(says), "{again}");
        assert!(std::fs::read(&path).expect("bytes") == good, "made anew");
    }
    let mut old = good.clone();
    *old.last_mut().expect("bytes") = b'1';
    std::fs::write(&path, &old).expect("written");
    assert_eq!(
        ask(&vaults, QUESTION, &["--vault", "f16"])["answer"],
        first["answer"]
    );
    assert!(
        std::fs::read(&path).expect("bytes") == good,
        "another version's is made anew"
    );
}

#[test]
fn concurrent_processes_write_one_vault() {
    let (_place, vaults) = folder();
    let (_other, elsewhere) = folder();
    let expected = ask(&elsewhere, QUESTION, &["--vault", "f16"]);
    let start = || {
        let vaults = vaults.clone();
        std::thread::spawn(move || ask(&vaults, QUESTION, &["--vault", "f16"]))
    };
    let both: Vec<_> = (0..4).map(|_| start()).collect();
    for thread in both {
        let found = thread.join().expect("an answer");
        assert_eq!(found["answer"], expected["answer"]);
        assert_eq!(found["rows_per_layer"], expected["rows_per_layer"]);
    }
    let files = files_of(&vaults);
    assert_eq!(files.len(), 1, "{files:?}");
    let bytes = |folder: &Path| std::fs::read(&files_of(folder)[0]).expect("a vault");
    assert!(bytes(&vaults) == bytes(&elsewhere));
}

#[test]
fn vaults_are_listed_and_removed_unless_in_use() {
    let (place, vaults) = folder();
    let run = |arguments: &[&str]| kept_in(&vaults, arguments);
    let empty = run(&["vaults", "list"]);
    assert!(empty.succeeded().stdout.contains("no document is kept"));
    let other = place.path().join("other.txt");
    let text = std::fs::read_to_string(sample()).expect("the sample");
    std::fs::write(&other, format!("Another text.\n{text}")).expect("written");
    ask(&vaults, QUESTION, &[]);
    kept_in(&vaults, arguments(&other, &[QUESTION], &[])).json();
    let list = run(&["vaults", "list", "--json"]).json();
    let entries = list["vaults"].as_array().expect("a list");
    assert_eq!(entries.len(), 2);
    assert_eq!(entries[0]["document"], "other.txt", "the last used first");
    assert_eq!(entries[1]["document"], "sample.txt");
    assert_eq!(entries[1]["model"], "mini");
    assert_eq!(entries[1]["kind"], "q8_0");
    let sum: u64 = entries
        .iter()
        .map(|e| e["bytes"].as_u64().expect("bytes"))
        .sum();
    assert_eq!(list["bytes"].as_u64(), Some(sum));
    assert_eq!(list["folder"], vaults.display().to_string());
    let text = run(&["vaults", "list"]).stdout;
    assert!(
        text.contains("other.txt") && text.contains("q8_0"),
        "{text}"
    );
    for entry in entries {
        let key = entry["key"].as_str().expect("a key");
        assert!(text.contains(&format!("{}  ", &key[..12])), "{key}: {text}");
    }

    run(&["vaults", "remove", "nobody.txt"]).refused(&["nobody.txt", "kept vaults list"]);
    let removed = run(&["vaults", "remove", "other.txt", "--json"]).json();
    assert_eq!(removed["removed"], 1);
    let key = entries[1]["key"].as_str().expect("a key");
    // This process has the vault open.
    let folder = VaultFolder::new(&vaults, 1 << 30);
    let key = kept_engine::vault::VaultKey::parse(key).expect("a key");
    let open = folder.find(&key, &[]).expect("no error").expect("there");
    for arguments in [
        vec!["vaults", "clear", "--json"],
        vec!["vaults", "remove", "sample.txt", "--json"],
    ] {
        let kept = run(&arguments).json();
        assert_eq!((&kept["removed"], &kept["in_use"]), (&0.into(), &1.into()));
    }
    assert_eq!(
        ask(&vaults, OTHERS[0], &[])["vault"]["used"],
        true,
        "many may read it"
    );
    drop(open);
    assert_eq!(run(&["vaults", "clear", "--json"]).json()["removed"], 1);
    assert!(files_of(&vaults).is_empty());
}

/// The vault just written counts towards the total budget, and the least recently used one is evicted.
#[test]
fn the_least_recently_used_vault_is_evicted() {
    let (place, vaults) = folder();
    let text = std::fs::read_to_string(sample()).expect("the sample");
    let document = |i: usize| {
        let path = place.path().join(format!("{i}.txt"));
        std::fs::write(&path, format!("Copy number {i}.\n{text}")).expect("written");
        path
    };
    let ask = |i: usize| {
        // File times are coarse on some systems.
        std::thread::sleep(std::time::Duration::from_millis(30));
        let run: Run = kept_in(
            &vaults,
            arguments(&document(i), &[QUESTION], &["--vault-budget", "6MiB"]),
        );
        run.json()["vault"]["used"].as_bool().expect("a flag")
    };
    assert!(!ask(1) && !ask(2), "between 2 and 3 MiB each");
    assert!(ask(1));
    assert!(!ask(3), "2 goes");
    assert!(ask(1) && ask(3));
    assert!(!ask(2));
}

#[test]
fn vault_questions_peak_at_the_expected_memory() {
    let (place, vaults) = folder();
    let path = place.path().join("larger.gguf");
    kept_models::testing::TinyLlama {
        layers: 4,
        width: 1024,
        ffn: 3072,
        q_heads: 16,
        kv_heads: 8,
        head_dim: 64,
        kind: "Q8_0",
        ..kept_models::testing::TinyLlama::default()
    }
    .write(&path)
    .expect("the model is written");
    let text = std::fs::read_to_string(sample()).expect("the sample");
    let document = place.path().join("shorter.txt");
    std::fs::write(&document, &text[..3000]).expect("written");
    let model = path.to_str().expect("a path");
    for method in ["h2o", "h2o", "expected_attention"] {
        let extra = ["--model", model, "--method", method, "--budget", "300"];
        let answer = kept_in(&vaults, arguments(&document, &[QUESTION], &extra)).json();
        assert_eq!(answer["streamed"], false);
        let number = |name: &str| answer[name].as_f64();
        let (Some(peak), Some(expected)) = (number("peak_bytes"), number("expected_peak_bytes"))
        else {
            println!("skipped: this system does not tell a process's memory");
            return;
        };
        assert!(
            answer["ledger"]["vault"].as_u64().expect("bytes") > 256 << 10,
            "{answer}"
        );
        assert_peak(expected, peak, method);
    }
}

/// Several documents in one question: each is named, sources and map are attributed, and an added document is read
/// after the known ones.
#[test]
fn several_documents_are_read_as_one_text() {
    let (place, vaults) = folder();
    let text = std::fs::read_to_string(sample()).expect("the sample");
    let at = text.find("\n\n").expect("paragraphs") + 2;
    let middle = at + text[at..].find("Ann Quorvin").expect("the code");
    let cut = text[..middle].rfind("\n").expect("a line") + 1;
    let write = |name: &str, text: &str| {
        let path = place.path().join(name);
        std::fs::write(&path, text).expect("written");
        path
    };
    let (a, b) = (write("a.txt", &text[..cut]), write("b.txt", &text[cut..]));
    let ask = |documents: &[&Path], question: &str, extra: &[&str]| {
        let mut all = arguments(documents[0], &[question], extra);
        for document in &documents[1..] {
            all.extend(["--document".into(), document.into()]);
        }
        kept_in(&vaults, all).json()
    };
    let first = ask(&[&a], OTHERS[0], &[]);
    let map = place.path().join("map.json");
    let map_to = ["--map", map.to_str().expect("a path")];
    let both = ask(&[&a, &b], QUESTION, &map_to);
    let known = whole(&both, "tokens_from_vault");
    // All of the first document except a token or two at its end, which may have changed.
    let whole_first = whole(&first, "tokens_read") - 40;
    assert!(known > whole_first, "{known} of {whole_first}: {both}");
    assert!(
        both["answer"].as_str().expect("text").contains("4711"),
        "{both}"
    );
    let source = &both["sources"][0];
    assert_eq!(source["within"]["document"], "b.txt", "{source}");
    let number = |name: &str| source["within"][name].as_u64().expect("a byte") as usize;
    let own = &text[cut..][number("start")..number("end")];
    assert_eq!(source["text"], own, "where it is in its own file");
    assert!(own.contains("4711"), "{own}");
    let map: Value = serde_json::from_slice(&std::fs::read(&map).expect("a map")).expect("JSON");
    let parts = map["document"]["parts"].as_array().expect("parts");
    assert_eq!(parts.len(), 2);
    assert_eq!(
        (&parts[0]["name"], &parts[1]["name"]),
        (&"a.txt".into(), &"b.txt".into())
    );
    let joined = map["document"]["text"].as_str().expect("text");
    let part = |i: usize| {
        let byte = |name: &str| parts[i][name].as_u64().expect("a byte") as usize;
        &joined[byte("start")..byte("end")]
    };
    assert_eq!((part(0), part(1)), (&text[..cut], &text[cut..]));
    let of = |name: &str| {
        let tokens = map["tokens"].as_array().expect("tokens").iter();
        tokens.filter(|token| token["document"] == name).count()
    };
    assert!(of("a.txt") > 50 && of("b.txt") > 50);
    let again = ask(&[&a, &b], OTHERS[0], &[]);
    assert!(whole(&again, "tokens_read") < 40, "{again}");
    let wrong = place.path().join("nothing.txt");
    let mut missing = arguments(&a, &[QUESTION], &[]);
    missing.extend(["--document".into(), wrong.into()]);
    kept_in(&vaults, missing).refused(&["nothing.txt"]);
}
