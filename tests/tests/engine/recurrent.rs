//! Models with recurrent layers, whose state has a constant size: methods see the other layers only.

use kept_engine::documents::Document;
use kept_engine::kernels::{PackedRows, Stop};
use kept_engine::policies::{Budget, methods};
use kept_engine::vault::Vaults;
use kept_engine::{Answer, Ask, Engine, EngineError, Limits, MethodSpec, Note, Sampling};
use kept_tests::golden::Unpacked;
use kept_tests::vaults::Place;

const MODELS: [&str; 2] = ["qwen35", "qwen35moe"];

fn ask(engine: &Engine, method: &str, vault: Option<Vaults<'_>>) -> Result<Answer, EngineError> {
    let text = "The nets are mended in the morning, and the tea is strong. ".repeat(8);
    let ask = Ask {
        document: &Document::from_bytes("text.txt", text.into_bytes()).unwrap(),
        turns: &[],
        question: "When?",
        method: &MethodSpec::plain(method),
        budget: Some(Budget::Share(0.5)),
        sampling: &Sampling::default(),
        max_tokens: 6,
        thinking: false,
        limits: Limits::default(),
        vault,
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
        let recurrent: Vec<bool> = config.kinds.iter().map(|kind| kind.recurrent).collect();
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
                    assert!(answer.answer_tokens > 0, "{what}");
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

/// A vault holds no state: a note says so, and the second answer is the first one.
#[test]
fn a_document_is_read_for_every_question() {
    let file = Unpacked::architecture("qwen35");
    let engine = Engine::open(&file.path()).unwrap();
    let place = Place::default();
    let vaults = Vaults {
        folder: &place.vaults,
        kind: PackedRows::F16,
    };
    let [first, second] = [(); 2].map(|()| ask(&engine, "snapkv", Some(vaults)).unwrap());
    assert!(first.notes.contains(&Note::NotStored), "{:?}", first.notes);
    assert_eq!(first.text, second.text);
    assert!(place.vaults.list().unwrap().is_empty());
    let alone = ask(&engine, "snapkv", None).unwrap();
    assert!(!alone.notes.contains(&Note::NotStored));
    assert_eq!(alone.text, first.text);
}
