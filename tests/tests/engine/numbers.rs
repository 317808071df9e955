//! Weights that are not finite numbers: the question is refused, and the tensor is named.

use kept_engine::documents::Document;
use kept_engine::kernels::Stop;
use kept_engine::models::gguf::Gguf;
use kept_engine::{Ask, Engine, EngineError, MethodSpec, Sampling};
use kept_tests::golden::repository;

const NAN: [u8; 2] = 0x7e00u16.to_le_bytes();
const INFINITE: [u8; 2] = 0x7c00u16.to_le_bytes();

#[test]
fn weights_that_are_not_finite_are_refused_by_name() {
    let mini = repository().join("assets/mini.gguf");
    let whole = std::fs::read(&mini).expect("the built-in model");
    let gguf = Gguf::open(&mini).expect("the built-in model");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("damaged.gguf");
    let document = Document::from_bytes("note.txt", b"The keeper went out.".to_vec());
    let document = document.expect("a text");
    let parts = [
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_output",
        "ffn_gate",
        "ffn_up",
        "ffn_down",
    ];
    let layers = [0, 2, 4];
    let matrices = layers.iter().flat_map(|layer| {
        parts
            .iter()
            .map(move |part| format!("blk.{layer}.{part}.weight"))
    });
    let vectors = [
        "blk.1.attn_norm.weight",
        "blk.3.ffn_norm.weight",
        "output_norm.weight",
    ];
    for tensor in matrices.chain(vectors.map(str::to_owned)) {
        let info = gguf.tensor(&tensor).expect("a tensor of the model");
        for half in [NAN, INFINITE] {
            let mut bytes = whole.clone();
            // The scale of the second block of 32 bytes, or the upper half of the second float.
            let (at, half) = match info.shape.len() {
                1 => (
                    info.start + 6,
                    if half == NAN {
                        [0xc0, 0x7f]
                    } else {
                        [0x80, 0x7f]
                    },
                ),
                _ => (info.start + 34, half),
            };
            bytes[at..at + 2].copy_from_slice(&half);
            std::fs::write(&path, bytes).expect("a damaged model");
            let engine = Engine::open(&path).expect("its header is whole");
            for temperature in [0.0, 0.8] {
                let sampling = Sampling {
                    temperature,
                    ..Sampling::default()
                };
                let method = MethodSpec::plain("snapkv");
                let asked = Ask {
                    sampling: &sampling,
                    max_tokens: 4,
                    ..Ask::new(&document, "Who went out?", &method)
                };
                let answer = engine.ask(&asked, &mut |_| (), &Stop::new());
                let Err(EngineError::DamagedTensor { tensor: named }) = answer else {
                    panic!("{tensor}: {:?}", answer.map(|answer| answer.text));
                };
                assert_eq!(named, tensor);
            }
        }
    }
}
