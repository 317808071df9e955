//! The turns of a conversation are read once: a follow-up question's result with their rows from the vault equals a
//! first reading bit for bit.

use kept_engine::documents::Document;
use kept_engine::kernels::{PackedRows, Stop};
use kept_engine::models::Model;
use kept_engine::policies::Budget;
use kept_engine::vault::{VaultContent, VaultUse, Vaults};
use kept_engine::{Ask, Engine, MethodSpec, Turn};
use kept_tests::engine::open;
use kept_tests::golden::{self, Unpacked};
use kept_tests::method_spec::{TestMethod, spec};
use kept_tests::vaults::{Case, Place, tokens};

/// Tokens of each turn: shorter and longer than 64, and than a chunk.
const TURNS: [usize; 4] = [40, 150, 7, 64];
const QUESTION: usize = 20;

/// A question after the first `turns` of [`TURNS`].
fn follow_up(model: &Model, method: TestMethod, turns: usize) -> Case {
    Case::under(model, method, 150, 0).after_turns(model, &TURNS[..turns], QUESTION)
}

/// A result with the vaults of `place`; it must equal a first reading.
#[track_caller]
fn exact(model: &Model, case: &Case, place: &Place) -> VaultUse {
    let read = |place: &Place| {
        let read = case.read(model, Some(place), PackedRows::F16);
        read.unwrap_or_else(|e| panic!("{:?}: {e}", case.method))
    };
    let (found, used, notes) = read(place);
    let (expected, ..) = read(&Place::default());
    let what = format!(
        "{:?} after {:?}: {used:?} {notes:?}",
        case.method, case.turns
    );
    assert!(found.map == expected.map, "other rows: {what}");
    assert!(found.logits == expected.logits, "other logits: {what}");
    used.expect("vaults are allowed")
}

/// Vaults of conversations in `place`: their tokens.
fn conversations(place: &Place) -> Vec<usize> {
    let vaults = place.vaults.list().expect("a list");
    let turns = vaults
        .iter()
        .filter(|v| matches!(v.holds, Some(VaultContent::Turns(_))));
    turns.map(|vault| vault.tokens).collect()
}

/// Asks five questions in a row; returns the tokens that each took from the vault.
fn conversation(model: &Model, method: TestMethod) -> Vec<usize> {
    let place = Place::default();
    let used = (0..=TURNS.len())
        .map(|turns| exact(model, &follow_up(model, method, turns), &place).tokens_from_vault);
    used.collect()
}

#[test]
fn a_follow_up_takes_the_turns_from_the_vault() {
    let from_vault = vec![0, 150, 150 + 40, 150 + 190, 150 + 197];
    for stem in ["group2-llama3-tied", "group4-linear-untied"] {
        let model = open(&golden::model(stem));
        for method in [
            spec("full", "", 600),
            spec("streaming_llm", "", 40),
            spec("snapkv", "w=8", 60),
            spec("adakv", "", 60),
            spec("chunkkv", "reuse=2", 60),
            spec("treekv", "", 60),
            spec("keydiff", "", 400),
        ] {
            assert_eq!(
                conversation(&model, method),
                from_vault,
                "{stem}, {method:?}"
            );
        }
    }
    for stem in [
        "gemma3",
        "gemma2",
        "qwen3",
        "qwen35",
        "lfm2moe",
        "granitehybrid",
        "gpt-oss",
        "phi-4-mini",
    ] {
        let file = Unpacked::architecture(stem);
        let method = spec("snapkv", "w=8", 60);
        assert_eq!(
            conversation(&open(&file.path()), method),
            from_vault,
            "{stem}"
        );
    }
}

/// The queries of an observation window are computed, not stored; a turn in the window is read again.
#[test]
fn turns_in_the_observation_window_are_read_again() {
    let model = open(&golden::model("group2-llama3-tied"));
    let place = Place::default();
    let method = spec("snapkv", "w=100", 200);
    let from_vault =
        |turns| exact(&model, &follow_up(&model, method, turns), &place).tokens_from_vault;
    from_vault(0);
    from_vault(4);
    // 20 tokens of the question, 64 and 7 of the last turns, and 9 of the turn before.
    assert_eq!(from_vault(4), 150 + 40);
    assert_eq!(from_vault(4), 150 + 40);
}

/// A reconstruction uses the space of the turns' rows; its scores are stored with the document.
#[test]
fn the_reconstruction_of_a_document_leaves_the_turns_to_be_read() {
    let model = open(&golden::model("group2-llama3-tied"));
    let (place, method) = (Place::default(), spec("kvzip", "chunk=50", 370));
    let from_vault =
        |turns| exact(&model, &follow_up(&model, method, turns), &place).tokens_from_vault;
    // At first everything fits the budget, so nothing is measured.
    assert_eq!([0, 1, 2, 3].map(from_vault), [0, 150, 150 + 40, 150 + 190]);
    assert_eq!([4, 4].map(from_vault), [150, 150 + 261]);
}

/// Sums over all queries exist only while the turns are read.
#[test]
fn methods_with_sums_read_the_turns_again() {
    let model = open(&golden::model("group2-llama3-tied"));
    let from_vault = conversation(&model, spec("h2o", "", 60));
    assert_eq!(from_vault, [0, 150, 150, 150, 150]);
}

#[test]
fn one_conversation_has_one_vault_and_a_branch_has_its_own() {
    let model = open(&golden::model("group2-llama3-tied"));
    let (place, method) = (Place::default(), spec("snapkv", "w=8", 60));
    for turns in 0..=4 {
        exact(&model, &follow_up(&model, method, turns), &place);
        let expected: Vec<usize> = (turns > 0)
            .then(|| 150 + TURNS[..turns].iter().sum::<usize>())
            .into_iter()
            .collect();
        assert_eq!(conversations(&place), expected);
    }
    // Another second turn.
    let mut branch = follow_up(&model, method, 3);
    branch.rest[50..60].copy_from_slice(&tokens(10, 400, model.config().vocab));
    assert_eq!(exact(&model, &branch, &place).tokens_from_vault, 150 + 40);
    assert_eq!(conversations(&place).len(), 2);
    // The conversation before is as it was.
    let again = exact(&model, &follow_up(&model, method, 4), &place);
    assert_eq!(again.tokens_from_vault, 150 + 261);
}

#[test]
fn a_damaged_or_missing_vault_costs_only_time() {
    let model = open(&golden::model("group2-llama3-tied"));
    let (place, method) = (Place::default(), spec("snapkv", "w=8", 60));
    for turns in 0..3 {
        exact(&model, &follow_up(&model, method, turns), &place);
    }
    let of_turns = |place: &Place| {
        let vaults = place.vaults.list().expect("a list");
        let found = vaults
            .into_iter()
            .find(|v| matches!(v.holds, Some(VaultContent::Turns(_))));
        let key = found.expect("a conversation").key.to_string();
        let mut files = place.files().into_iter();
        files
            .find(|file| file.display().to_string().contains(&key))
            .expect("its file")
    };
    // A footer cut off is noticed at once.
    let path = of_turns(&place);
    let bytes = std::fs::read(&path).expect("a file");
    std::fs::write(&path, &bytes[..bytes.len() - 5]).expect("written");
    let used = exact(&model, &follow_up(&model, method, 2), &place);
    assert_eq!(used.tokens_from_vault, 150);
    // Changed rows are noticed when they are read.
    let path = of_turns(&place);
    let mut bytes = std::fs::read(&path).expect("a file");
    bytes[100] ^= 1;
    std::fs::write(&path, &bytes).expect("written");
    let used = exact(&model, &follow_up(&model, method, 3), &place);
    assert!(used.written && used.tokens_from_vault == 0, "{used:?}");
    // Without the document's rows those of the turns are of no use.
    let place = Place::default();
    exact(&model, &follow_up(&model, method, 0), &place);
    exact(&model, &follow_up(&model, method, 2), &place);
    for vault in place.vaults.list().expect("a list") {
        if matches!(vault.holds, Some(VaultContent::Rows(_))) {
            place.vaults.remove_or_warn(&vault.key);
        }
    }
    let used = exact(&model, &follow_up(&model, method, 3), &place);
    assert!(used.written && used.tokens_from_vault == 0, "{used:?}");
    let used = exact(&model, &follow_up(&model, method, 4), &place);
    assert_eq!(used.tokens_from_vault, 150 + 197);
}

/// Asks through the engine in a chat without a document.
fn chat(engine: &Engine, turns: &[Turn], place: Option<&Place>) -> (String, VaultUse, Vec<String>) {
    let document = Document::empty();
    let method = MethodSpec::plain("snapkv");
    let ask = Ask {
        turns,
        budget: Some(Budget::Rows(400)),
        max_tokens: 6,
        vault: place.map(|place| Vaults::new(&place.vaults, PackedRows::F16)),
        ..Ask::new(&document, "And now?", &method)
    };
    let answer = engine
        .ask(&ask, &mut |_| (), &Stop::new())
        .expect("an answer");
    let notes = answer.notes.iter().map(ToString::to_string).collect();
    (answer.text, answer.vault, notes)
}

#[test]
fn a_chat_without_a_document_has_a_vault_from_its_second_question_on() {
    let engine = Engine::open(&golden::model("group2-llama3-tied")).expect("a tiny model");
    let turn = |i| {
        Turn::new(
            &format!("What about net {i}, which is torn? ").repeat(4),
            "It is mended.",
        )
    };
    let turns: Vec<Turn> = (0..6).filter_map(turn).collect();
    let place = Place::default();
    let (_, used, _) = chat(&engine, &[], Some(&place));
    assert!(!used.used && place.files().is_empty());
    let mut before = 0;
    for seen in 1..=6 {
        let (text, used, notes) = chat(&engine, &turns[..seen], Some(&place));
        let (fresh, ..) = chat(&engine, &turns[..seen], Some(&Place::default()));
        assert_eq!(text, fresh, "{notes:?}");
        assert_eq!(used.used, seen > 1, "{notes:?}");
        assert!(used.tokens_from_vault >= before);
        before = used.tokens_from_vault;
        assert_eq!(conversations(&place).len(), 1);
    }
    let path = place.files().remove(0);
    let mut bytes = std::fs::read(&path).expect("a file");
    bytes[100] ^= 1;
    std::fs::write(&path, &bytes).expect("written");
    let (fresh, ..) = chat(&engine, &turns, Some(&Place::default()));
    let (text, used, notes) = chat(&engine, &turns, Some(&place));
    assert_eq!(text, fresh);
    assert!(!used.used && !notes.is_empty(), "{used:?} {notes:?}");
}
