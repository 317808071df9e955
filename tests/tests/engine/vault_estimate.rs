//! Estimates for questions on a document that may be in a vault, and the handling of unusable vaults.

use std::path::Path;

use kept_engine::documents::Document;
use kept_engine::kernels::{PackedRows, Stop};
use kept_engine::vault::{VaultFolder, Vaults};
use kept_engine::{Answer, Ask, DocumentLength, Engine, Limits, MethodSpec, PlanRequest, Sampling};
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

fn method(name: &str) -> MethodSpec {
    MethodSpec {
        name: name.to_owned(),
        parameters: Vec::new(),
    }
}

fn vaults(folder: &VaultFolder) -> Vaults<'_> {
    Vaults {
        folder,
        kind: PackedRows::Q8_0,
    }
}

fn asked(
    engine: &Engine,
    document: &Document,
    method: &MethodSpec,
    folder: &VaultFolder,
) -> Answer {
    let ask = Ask {
        turns: &[],
        document,
        question: QUESTION,
        method,
        budget: Some("256".parse().expect("rows")),
        sampling: &Sampling::default(),
        max_tokens: MAX_NEW_TOKENS,
        thinking: false,
        limits: Limits::default(),
        vault: Some(vaults(folder)),
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
        let method = method(name);
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
    let (folder, method) = (folder(place.path()), method("snapkv"));
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
            let method = method(name);
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
