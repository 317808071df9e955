//! Every storage type of weights: against the `gguf` package's reading of the same blocks (`golden/weight_types.py`), and
//! a model of the types that only llama.cpp writes (`golden/quantised.py`).

use kept_engine::policies::build;
use kept_kernels::WeightType;
use kept_kernels::mapped::{MappedFile, MappedMatrix};
use kept_tests::compare::likeliest;
use kept_tests::engine::{open, read_and_step};
use kept_tests::golden::{self, Tensors};

#[test]
fn weights_are_read_bit_for_bit_as_by_the_reference() {
    let golden = Tensors::golden("weight_types");
    let quantised = WeightType::ALL.iter().filter(|kind| kind.is_quantised());
    for &kind in quantised {
        let blocks = golden.bytes(&format!("{kind}.blocks"));
        let rows = golden.rows(&format!("{kind}.numbers"));
        let cols = rows[0].len();
        assert_eq!((cols, blocks.len() / rows.len()), kind.block(), "{kind}");
        let file = MappedFile::from_bytes(&blocks).unwrap();
        let matrix = MappedMatrix::new(&file, 0, kind, rows.len(), cols).unwrap();
        let mut read = vec![0.0; cols];
        for (r, expected) in rows.iter().enumerate() {
            matrix.row_to_f32(r, &mut read);
            let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            // 0 and -0 are the same weight.
            let read: Vec<f32> = read.iter().map(|x| x + 0.0).collect();
            let expected: Vec<f32> = expected.iter().map(|x| x + 0.0).collect();
            assert_eq!(bits(&read), bits(&expected), "{kind}, row {r}");
        }
    }
}

/// `ln(softmax(logits))`.
fn log_probabilities(logits: &[f32]) -> Vec<f64> {
    let most = f64::from(logits.iter().copied().fold(f32::MIN, f32::max));
    let sum: f64 = logits.iter().map(|&x| (f64::from(x) - most).exp()).sum();
    let log = |&x: &f32| f64::from(x) - most - sum.ln();
    logits.iter().map(log).collect()
}

/// Root of the mean squared difference, as a share of the reference's standard deviation.
fn distance(row: &[f64], reference: &[f64]) -> f64 {
    let n = row.len() as f64;
    let mean = reference.iter().sum::<f64>() / n;
    let spread: f64 = reference.iter().map(|x| (x - mean).powi(2)).sum();
    let apart = row.iter().zip(reference).map(|(a, b)| (a - b).powi(2));
    (apart.sum::<f64>() / spread).sqrt()
}

/// Prefill and decode, against transformers with the weights as read. Rounding the inputs costs llama.cpp 2.1 to 2.7 %.
#[test]
fn logits_of_iq_tq_and_mxfp4_weights_are_as_close_as_those_of_llama_cpp() {
    let golden = Tensors::golden("quantised");
    let model = open(&golden::path("quantised.gguf"));
    let (ids, rows) = (golden.whole("ids"), golden.whole("rows"));
    let built = build("full", &[]).expect("full");
    let run = |prompt: usize, steps: &[u32]| {
        read_and_step(&model, &*built, 512, 512, &ids[..prompt], steps).logits
    };
    let first = rows[0] as usize + 1;
    let decoded = run(first, &ids[first..]);
    let references = golden
        .rows("logits")
        .into_iter()
        .zip(golden.rows("llama_cpp"));
    for (row, (exact, llama)) in rows.iter().map(|&row| row as usize).zip(references) {
        let (exact, llama) = (log_probabilities(&exact), log_probabilities(&llama));
        let bound = distance(&llama, &exact);
        for (how, logits) in [
            ("prefill", &run(row + 1, &[])[0]),
            ("decode", &decoded[row + 1 - first]),
        ] {
            let found = log_probabilities(logits);
            let apart = distance(&found, &exact);
            assert!(
                apart < bound,
                "{how}, row {row}: {apart:.4}, llama.cpp {bound:.4}"
            );
            let apart = distance(&found, &llama);
            assert!(apart < 0.04, "{how}, row {row}: {apart:.4} from llama.cpp");
            let of_exact: Vec<f32> = exact.iter().map(|&x| x as f32).collect();
            assert_eq!(
                likeliest(logits, &[]),
                likeliest(&of_exact, &[]),
                "{how}, row {row}"
            );
        }
    }
}
