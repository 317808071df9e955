//! Estimates for questions on a document that may be in a vault, and the handling of unusable vaults.

use std::path::Path;

use kept_engine::documents::Document;
use kept_engine::kernels::{CacheType, PackedRows, Stop};
use kept_engine::policies::Budget;
use kept_engine::vault::{VaultFolder, Vaults};
use kept_engine::{Answer, Ask, DocumentLength, Engine, Limits, MethodSpec, PlanRequest};
use kept_models::testing::TinyLlama;
use kept_tests::golden::repository;
use kept_tests::vaults::files_of;

/// As long as the question that an estimate assumes.
const QUESTION: &str = "What does the document say about the harbour?";
const MAX_NEW_TOKENS: usize = 16;

fn engine() -> Engine {
    Engine::open(&repository().join("assets/mini.gguf")).expect("the built-in model")
}

/// The sample with `behind` appended.
fn sample(behind: &str) -> Document {
    let text = std::fs::read_to_string(repository().join("assets/sample.txt")).expect("the sample");
    let place = tempfile::tempdir().expect("a folder");
    let path = place.path().join("sample.txt");
    std::fs::write(&path, format!("{text}{behind}")).expect("written");
    Document::open(&path).expect("a text")
}

fn vaults(folder: &VaultFolder) -> Vaults<'_> {
    Vaults::new(folder, PackedRows::Q8_0)
}

fn asked(
    engine: &Engine,
    document: &Document,
    method: &MethodSpec,
    folder: &VaultFolder,
) -> Answer {
    let budget = Some("256".parse().expect("rows"));
    asked_within(engine, document, method, folder, budget, Limits::default())
}

fn asked_within(
    engine: &Engine,
    document: &Document,
    method: &MethodSpec,
    folder: &VaultFolder,
    budget: Option<Budget>,
    limits: Limits,
) -> Answer {
    let ask = Ask {
        budget,
        max_tokens: MAX_NEW_TOKENS,
        limits,
        vault: Some(vaults(folder)),
        ..Ask::new(document, QUESTION, method)
    };
    let answer = engine.ask(&ask, &mut |_| (), &Stop::new());
    answer.expect("an answer")
}

fn folder(place: &Path) -> VaultFolder {
    VaultFolder::new(place, 1 << 30)
}

/// Memory is known before prefill, including the vault's share, whether the vault is created, used or extended.
#[test]
fn estimates_with_a_vault_equal_the_ledger() {
    let (engine, document) = (engine(), sample(""));
    let length = DocumentLength::new(engine.model(), &document.text).expect("counted");
    let place = tempfile::tempdir().expect("a folder");
    let folder = folder(place.path());
    // A vault is created, used, extended by sums and by a reconstruction, then used with all of it.
    let asked_for = [
        "snapkv", "snapkv", "h2o", "kvzip", "keydiff", "h2o", "kvzip",
    ];
    let mut used = Vec::new();
    for name in asked_for {
        let method = MethodSpec::plain(name);
        let budget = Some("256".parse().expect("rows"));
        let request = PlanRequest {
            limits: Limits::default(),
            text_bytes: document.text.len() as u64,
            vault: Some(PackedRows::Q8_0),
            ..PlanRequest::new(&length.prompt, &method, budget, MAX_NEW_TOKENS)
        };
        let foreseen = engine.estimate_with_vault(&request, &length.prefix_ids, vaults(&folder));
        let foreseen = foreseen.expect("an estimate");
        let answer = asked(&engine, &document, &method, &folder);
        let ledger = answer.ledger;
        assert_eq!(foreseen.prompt_tokens, answer.prompt.len(), "{name}");
        assert_eq!(
            foreseen.tokens_from_vault, answer.vault.tokens_from_vault,
            "{name}"
        );
        assert!(ledger.vault > 0, "{name}: {ledger:?}");
        assert_eq!(
            foreseen.weights + foreseen.kv_bytes + foreseen.scratch,
            ledger.peak(),
            "{name}: {ledger:?}"
        );
        used.push(answer.vault.used);
    }
    assert_eq!(used, [false, true, false, true, true, true, true]);
}

/// The vault of another document serves one with the same beginning; a damaged one is removed.
#[test]
fn a_damaged_vault_of_another_document_is_removed() {
    let engine = engine();
    let place = tempfile::tempdir().expect("a folder");
    let (folder, method) = (folder(place.path()), MethodSpec::plain("snapkv"));
    let first = asked(&engine, &sample(""), &method, &folder);
    assert!(first.vault.written, "{:?}", first.notes);
    let of_first = files_of(place.path()).pop().expect("a vault");
    let mut bytes = std::fs::read(&of_first).expect("bytes");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&of_first, &bytes).expect("written");

    let longer = sample(" One more sentence stands behind it.");
    let answer = asked(&engine, &longer, &method, &folder);
    let told = |note: &kept_engine::Note| {
        (note.to_string()).contains("is damaged, so the document was read again")
    };
    assert!(answer.notes.iter().any(told), "{:?}", answer.notes);
    assert!(!answer.vault.used && answer.vault.written);
    assert!(!of_first.exists(), "nobody is helped by it");
    assert_eq!(files_of(place.path()).len(), 1);
    let again = asked(&engine, &longer, &method, &folder);
    assert!(again.vault.used && !again.notes.iter().any(told));
    assert_eq!(again.text, answer.text);
}

/// A document in a vault is not read again, so its questions get the memory for reading as rows; a method whose
/// measurements the vault lacks does not.
#[test]
fn a_question_on_a_stored_document_uses_up_its_memory_limit() {
    let place = tempfile::tempdir().expect("a folder");
    let model = place.path().join("wide.gguf");
    let shape = TinyLlama {
        layers: 4,
        width: 1024,
        ffn: 1024,
        q_heads: 16,
        kv_heads: 8,
        head_dim: 64,
        kind: "Q8_0",
        context: 8192,
        ..TinyLlama::default()
    };
    shape.write(&model).expect("a model");
    let engine = Engine::open(&model)
        .expect("a model")
        .with_cache(CacheType::F16);
    let text = place.path().join("part.txt");
    std::fs::write(&text, &sample("").text[..3000]).expect("a text");
    let document = Document::open(&text).expect("a text");
    let length = DocumentLength::new(engine.model(), &document.text).expect("counted");
    let program = engine.program_bytes() + document.text.len() as u64;
    // A quarter of the rows fits beside what reading needs.
    let limits = |method: &MethodSpec| {
        let quarter = Some("25%".parse().expect("a share"));
        let ledger = engine.expected_ledger(&length.prompt, method, quarter, MAX_NEW_TOKENS);
        Limits {
            memory: Some(program + ledger.expect("a ledger").peak()),
            ..Limits::default()
        }
    };
    let within = |folder: &VaultFolder, method: &MethodSpec| {
        let limits = limits(method);
        let request = PlanRequest {
            limits,
            text_bytes: document.text.len() as u64,
            vault: Some(PackedRows::Q8_0),
            ..PlanRequest::new(&length.prompt, method, None, MAX_NEW_TOKENS)
        };
        let estimate = engine.estimate_with_vault(&request, &length.prefix_ids, vaults(folder));
        let estimate = estimate.expect("an estimate");
        let answer = asked_within(&engine, &document, method, folder, None, limits);
        let (expected, taken) = (
            estimate.weights + estimate.kv_bytes + estimate.scratch,
            answer.ledger.peak(),
        );
        assert_eq!(expected, taken, "{method:?}");
        assert!(
            program + taken <= limits.memory.expect("a limit"),
            "{method:?}"
        );
        (estimate.rows, answer.vault.used)
    };
    let stored = |number: &str, method: &MethodSpec| {
        let folder = folder(&place.path().join(number));
        asked_within(&engine, &document, method, &folder, None, Limits::default());
        folder
    };
    for name in ["snapkv", "h2o"] {
        let method = MethodSpec::plain(name);
        let (first, unread) = within(&folder(&place.path().join("none")), &method);
        let (second, used) = within(&stored(name, &method), &method);
        assert!(!unread && used, "{name}");
        assert!(
            second > first + first / 10,
            "{name}: {first}, {second} rows"
        );
    }
    // A vault without the sums that the method measures: the document is read again.
    let (h2o, other) = (
        MethodSpec::plain("h2o"),
        stored("other", &MethodSpec::plain("snapkv")),
    );
    let (first, _) = within(&folder(&place.path().join("none")), &h2o);
    assert!(within(&other, &h2o).0 <= first);
}

/// Where memory is short, a vault must not cost most of the rows, and more memory must not lose more.
#[test]
fn a_vault_never_costs_half_of_the_rows() {
    let (engine, document) = (engine(), sample(""));
    let length = DocumentLength::new(engine.model(), &document.text).expect("counted");
    let place = tempfile::tempdir().expect("a folder");
    let folder = folder(place.path());
    let (mut left_out, mut least) = (0, f64::INFINITY);
    for kib in (12 << 10..40 << 10).step_by(256) {
        for name in ["auto", "snapkv"] {
            let method = MethodSpec::plain(name);
            let request = PlanRequest {
                limits: Limits {
                    memory: Some(engine.program_bytes() + (kib << 10)),
                    ..Limits::default()
                },
                text_bytes: document.text.len() as u64,
                vault: Some(PackedRows::Q8_0),
                ..PlanRequest::new(&length.prompt, &method, None, MAX_NEW_TOKENS)
            };
            let without = engine.estimate(&PlanRequest {
                vault: None,
                ..request
            });
            let with = engine.estimate_with_vault(&request, &length.prefix_ids, vaults(&folder));
            let (Ok(with), Ok(without)) = (&with, &without) else {
                assert!(
                    with.is_err() && without.is_err(),
                    "{kib} KiB: {with:?}, {without:?}"
                );
                continue;
            };
            assert!(
                2 * with.rows >= without.rows,
                "{name}, {kib} KiB: {} and {}",
                with.rows,
                without.rows
            );
            if let Some(kl) = with.chosen.as_ref().and_then(|chosen| chosen.kl) {
                assert!(kl <= 1.25 * least + 0.011, "{kib} KiB: {kl} after {least}");
                least = least.min(kl);
            }
            let said = with
                .notes
                .iter()
                .any(|note| note.to_string().contains("vault is not used"));
            left_out += usize::from(said);
        }
    }
    assert!(left_out > 0, "some limits are too small for the vault");
}
