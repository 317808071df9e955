//! Models with recurrent layers, whose state has a constant size: methods see the other layers only.

use kept_engine::documents::Document;
use kept_engine::kernels::{PackedRows, Stop};
use kept_engine::policies::{Budget, methods};
use kept_engine::vault::Vaults;
use kept_engine::{Answer, Ask, Engine, EngineError, MethodSpec};
use kept_tests::golden::Unpacked;
use kept_tests::vaults::Place;

const MODELS: [&str; 7] = [
    "qwen35",
    "qwen3next",
    "qwen35moe",
    "lfm2",
    "lfm2moe",
    "granitehybrid",
    "granitehybrid-experts",
];

fn ask(engine: &Engine, method: &str, vault: Option<Vaults<'_>>) -> Result<Answer, EngineError> {
    asked(engine, method, 8, vault)
}

/// A question on a document of `sentences` equal sentences.
fn asked(
    engine: &Engine,
    method: &str,
    sentences: usize,
    vault: Option<Vaults<'_>>,
) -> Result<Answer, EngineError> {
    let text = "The nets are mended in the morning, and the tea is strong. ".repeat(sentences);
    let document = Document::from_bytes("text.txt", text.into_bytes()).unwrap();
    let method = MethodSpec::plain(method);
    let ask = Ask {
        budget: Some(Budget::Share(0.5)),
        max_tokens: 6,
        vault,
        ..Ask::new(&document, "When?", &method)
    };
    engine.ask(&ask, &mut |_| (), &Stop::new())
}

/// Every method answers, and keeps rows in the layers with attention only, or says why it cannot.
#[test]
fn methods_compress_the_layers_with_attention() {
    for stem in MODELS {
        let file = Unpacked::architecture(stem);
        let engine = Engine::open(&file.path()).unwrap();
        let config = engine.model().config();
        let recurrent: Vec<bool> = config
            .kinds
            .iter()
            .map(|kind| kind.is_recurrent())
            .collect();
        assert!(
            recurrent.contains(&true) && recurrent.contains(&false),
            "{stem}"
        );
        for info in methods() {
            let what = format!("{stem} {}", info.name);
            match ask(&engine, info.name, None) {
                Ok(answer) => {
                    let windows = answer.map.windows.iter();
                    let found: Vec<bool> = windows.map(|window| *window == Some(0)).collect();
                    assert_eq!(found, recurrent, "{what}");
                    assert!(answer.report.answer_tokens > 0, "{what}");
                }
                Err(error) => {
                    assert!(error.is_refusal(), "{what}: {error}");
                    assert!(
                        error.to_string().contains("recurrent layers"),
                        "{what}: {error}"
                    );
                    assert!(
                        ["kvzip", "pyramidinfer"].contains(&info.name),
                        "{what}: {error}"
                    );
                }
            }
        }
    }
}

/// As above, of models whose layers have heads of two sizes or no keys of their own.
#[test]
fn methods_compress_the_layers_with_keys_of_their_own() {
    for stem in ["gemma4-dense", "gemma4-e", "gemma4-experts"] {
        let file = Unpacked::architecture(stem);
        let engine = Engine::open(&file.path()).unwrap();
        let config = engine.model().config();
        let windows: Vec<Option<usize>> = config.kinds.iter().map(|kind| kind.window()).collect();
        for info in methods() {
            let what = format!("{stem} {}", info.name);
            match ask(&engine, info.name, None) {
                Ok(answer) => {
                    assert_eq!(answer.map.windows, windows, "{what}");
                    assert!(answer.report.answer_tokens > 0, "{what}");
                }
                Err(error) => {
                    assert!(error.is_refusal(), "{what}: {error}");
                    assert!(
                        ["kvzip", "pyramidinfer"].contains(&info.name),
                        "{what}: {error}"
                    );
                }
            }
        }
    }
}

/// The state after the document comes from the vault, and the answer is the same. A document that only begins alike is
/// read: its state is another one.
#[test]
fn the_state_comes_from_the_vault() {
    for stem in MODELS {
        let file = Unpacked::architecture(stem);
        let engine = Engine::open(&file.path()).unwrap();
        let place = Place::default();
        let vaults = Vaults::new(&place.vaults, PackedRows::F16);
        let [first, second] = [(); 2].map(|()| ask(&engine, "snapkv", Some(vaults)).unwrap());
        assert!(
            first.vault.written && !first.vault.used,
            "{:?}",
            first.vault
        );
        assert!(second.vault.used, "{:?}", second.vault);
        assert_eq!(second.vault.tokens_from_vault, first.prompt.document.end);
        assert_eq!(first.text, second.text);
        let shorter = asked(&engine, "snapkv", 6, Some(vaults)).unwrap();
        assert!(!shorter.vault.used, "{:?}", shorter.vault);
        let longer = asked(&engine, "snapkv", 9, Some(vaults)).unwrap();
        let alone = asked(
            &engine,
            "snapkv",
            9,
            Some(Vaults::new(&Place::default().vaults, PackedRows::F16)),
        );
        assert_eq!(longer.text, alone.unwrap().text);
    }
}
