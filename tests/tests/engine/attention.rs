//! What the heads of an answer looked at, beside the map of what they kept.

use std::collections::BTreeSet;

use kept_engine::documents::Document;
use kept_engine::kernels::Stop;
use kept_engine::policies::Budget;
use kept_engine::{Ask, Engine, LayerRetention, MethodSpec};
use kept_tests::fetched;
use kept_tests::golden::{Unpacked, repository};

/// A head can look at nothing that its row of the map has forgotten: layers and heads are those of the map, also where
/// some layers have windows, are recurrent or share keys.
#[test]
fn heads_look_at_what_their_row_of_the_map_keeps() {
    let text = "The nets are mended in the morning, and the boats are tarred at noon. ".repeat(9);
    let document = Document::from_bytes("notes.txt", text.into_bytes()).expect("a document");
    for arch in [
        "qwen2",
        "gemma2",
        "gemma3",
        "gemma4-e",
        "qwen35",
        "lfm2",
        "granitehybrid",
        "deepseek_v2",
    ] {
        let file = Unpacked::architecture(arch);
        let engine = Engine::open(&file.path()).expect("a tiny model");
        let method = MethodSpec::plain("snapkv");
        let ask = Ask {
            budget: Some(Budget::Rows(60)),
            max_tokens: 12,
            ..Ask::new(&document, "When are the nets mended?", &method)
        };
        let answer = engine.ask(&ask, &mut |_| (), &Stop::new());
        let answer = answer.unwrap_or_else(|error| panic!("{arch}: {error}"));
        let layers: Vec<&LayerRetention> = answer.map.compressed_layers().collect();
        let looked: BTreeSet<usize> = answer.by_head.iter().map(|of| of.layer).collect();
        assert!(
            looked.iter().eq(&(0..layers.len()).collect::<Vec<_>>()),
            "{arch}: {looked:?}"
        );
        let mut forgotten = false;
        for of in &answer.by_head {
            let LayerRetention::Kept(heads) = layers[of.layer] else {
                panic!("{arch}: layer {} keeps everything", of.layer);
            };
            let kept = &heads[of.head];
            let document = answer.prompt.document.clone();
            forgotten |= document.clone().any(|at| !kept.contains(&(at as u32)));
            for &(token, _) in &of.tokens {
                let position = (document.start + token as usize) as u32;
                assert!(
                    kept.contains(&position),
                    "{arch}: {of:?} looks at {position}"
                );
            }
        }
        assert!(forgotten, "{arch}: the budget is smaller than the document");
    }
}

/// No step of decode chooses the first token: what the prompt's last token attended to is its evidence.
#[test]
fn an_answer_of_one_token_has_its_source() {
    let Some(path) = fetched::file("gemma-3-270m-q4_k_m.gguf", "models") else {
        return;
    };
    let engine = Engine::open(&path).expect("the model");
    let minutes = repository().join("tests/qa/documents/minutes.md");
    let document = Document::open(&minutes).expect("the minutes");
    let method = MethodSpec::plain("full");
    let ask = Ask {
        max_tokens: 1,
        ..Ask::new(
            &document,
            "Who is the soloist in the clarinet concerto?",
            &method,
        )
    };
    let answer = engine.ask(&ask, &mut |_| (), &Stop::new());
    let answer = answer.expect("an answer");
    assert_eq!((answer.text.as_str(), answer.attended[0].said), (" Mil", 0));
    let [source] = answer.sources.as_slice() else {
        panic!("{:?}", answer.sources)
    };
    assert!(source.text.contains("Milena Kovac"), "{source:?}");
}
