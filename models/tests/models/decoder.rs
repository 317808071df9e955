//! The decoder's components: tensor types, the two entry points to a layer, RoPE, and a comparison with candle's
//! implementation.

use crate::support::{batched, dot, relative_distance, row_wise};
use candle_core::quantized::GgmlDType;
use candle_core::{Device, Tensor};
use kept_kernels::mapped::MappedMatrix;
use kept_kernels::{Pairing, Stop, WeightType};
use kept_models::gguf::Gguf;
use kept_models::testing::{GgufWriter, MetaValue, TYPES, TinyLlama};
use kept_models::{Config, Model, RopeScaling, RopeTable};

/// candle's names of [`TYPES`].
const DTYPES: [GgmlDType; 13] = [
    GgmlDType::F32,
    GgmlDType::F16,
    GgmlDType::BF16,
    GgmlDType::Q2K,
    GgmlDType::Q3K,
    GgmlDType::Q4_0,
    GgmlDType::Q4_1,
    GgmlDType::Q4K,
    GgmlDType::Q5_0,
    GgmlDType::Q5_1,
    GgmlDType::Q5K,
    GgmlDType::Q6K,
    GgmlDType::Q8_0,
];

fn open(tiny: &TinyLlama) -> (tempfile::TempDir, Model) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    tiny.write(&path).unwrap();
    let model = Model::open(&path).unwrap();
    (dir, model)
}

const IDS: [u32; 12] = [5, 90, 17, 200, 33, 260, 261, 8, 8, 120, 3, 77];

#[test]
fn every_tensor_type_gives_logits_close_to_f32() {
    let (_dir, exact) = open(&TinyLlama::default());
    let exact = row_wise(&exact, &IDS);
    for kind in TYPES {
        let (_dir, model) = open(&TinyLlama {
            kind,
            ..Default::default()
        });
        let distance = relative_distance(&row_wise(&model, &IDS), &exact);
        let most = match kind {
            "F32" => 1e-6,
            "F16" => 2e-3,
            "BF16" => 2e-2,
            "Q8_0" => 2e-2,
            "Q6_K" => 5e-2,
            "Q5_K" | "Q5_0" | "Q5_1" => 1e-1,
            "Q3_K" => 4e-1,
            "Q2_K" => 8e-1,
            _ => 2e-1,
        };
        assert!(distance <= most, "{kind}: {distance}");
        assert!(
            kind == "F32" || distance > 0.0,
            "{kind} is not what was computed"
        );
    }
}

#[test]
fn mapped_products_equal_those_of_the_dequantised_rows() {
    const COLS: usize = 512;
    for (kind, dtype) in TYPES.into_iter().zip(DTYPES) {
        let numbers: Vec<f32> = (0..37 * COLS)
            .map(|i| (i as f32 * 0.7).sin() / 20.0)
            .collect();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("matrix.gguf");
        GgufWriter::default()
            .tensor("m", &[37, COLS], kind, &numbers)
            .write(&path)
            .unwrap();
        let gguf = Gguf::open(&path).unwrap();
        let start = gguf.tensor("m").unwrap().start;
        let weights = WeightType::of_candle(dtype).unwrap();
        let matrix = MappedMatrix::new(&gguf.files()[0], start, weights, 37, COLS).unwrap();
        let inputs: Vec<f32> = (0..3 * COLS).map(|i| (i as f32 * 1.3).cos()).collect();
        let mut products = vec![0.0; 3 * 37];
        matrix.multiply(3, &inputs, &mut products);
        let mut row = vec![0.0; COLS];
        // Inputs are rounded too: to 8 bits for quantised weights, to the weights' type for half floats.
        let most = if kind == "F32" { 1e-6 } else { 1e-3 };
        for n in 0..37 {
            matrix.row_to_f32(n, &mut row);
            for (m, inputs) in inputs.chunks(COLS).enumerate() {
                let norms = (dot(inputs, inputs) * dot(&row, &row)).sqrt();
                let distance = (products[m * 37 + n] - dot(inputs, &row)).abs() / norms;
                assert!(distance < most, "{kind} row {n}: {distance}");
            }
        }
    }
}

#[test]
fn many_rows_equal_single_rows() {
    let ids: Vec<u32> = (0..300).map(|i| i * 7 % 280).collect();
    for kind in TYPES {
        for (n, width, ffn) in [(5, 256, 512), (40, 256, 1280), (300, 256, 512)] {
            let (_dir, model) = open(&TinyLlama {
                kind,
                width,
                ffn,
                ..Default::default()
            });
            let (many, one) = (batched(&model, &ids[..n]), row_wise(&model, &ids[..n]));
            let distance = relative_distance(&many, &one);
            // Quantised weights quantise their inputs: another order of summation changes the last bit, and
            // occasionally an input halfway between two bytes is rounded to the other one. For half floats, inputs of
            // one row are rounded and those of many are not.
            let most = if kind.starts_with('Q') {
                2e-2
            } else if kind == "F32" {
                1e-5
            } else {
                1e-2
            };
            assert!(distance <= most, "{kind} {n} rows: {distance}");
        }
    }
}

/// The feed-forward of many rows is computed in slices, and more rows than a block in several blocks.
#[test]
fn a_sliced_feed_forward_equals_single_rows() {
    let ids: Vec<u32> = (0..530).map(|i| i * 7 % 280).collect();
    for (arch, kind, ffn) in [("llama", "Q4_K", 1280), ("gemma3", "Q8_0", 2112)] {
        let tiny = TinyLlama {
            arch,
            kind,
            // All of Gemma's layers but every sixth are sliding-window layers.
            layers: if arch == "llama" { 1 } else { 6 },
            width: 256,
            ffn,
            ..Default::default()
        };
        let (_dir, model) = open(&tiny);
        let distance = relative_distance(&batched(&model, &ids), &row_wise(&model, &ids));
        assert!(distance <= 2e-2, "{arch} {kind}: {distance}");
    }
}

#[test]
fn large_matrices_give_the_same_with_many_rows() {
    for kind in ["Q8_0", "F16"] {
        let tiny = TinyLlama {
            kind,
            layers: 1,
            width: 1024,
            ffn: 2048,
            ..Default::default()
        };
        let (_dir, model) = open(&tiny);
        let distance = relative_distance(&batched(&model, &IDS), &row_wise(&model, &IDS));
        assert!(distance <= 3e-2, "{kind}: {distance}");
    }
}

#[test]
fn widths_without_candle_tiles_are_multiplied() {
    for kind in ["Q8_0", "Q4_0", "F16"] {
        let tiny = TinyLlama {
            kind,
            width: 96,
            ffn: 160,
            q_heads: 3,
            kv_heads: 1,
            head_dim: 32,
            ..Default::default()
        };
        let (_dir, model) = open(&tiny);
        let distance = relative_distance(&batched(&model, &IDS), &row_wise(&model, &IDS));
        assert!(distance <= 3e-2, "{kind}: {distance}");
    }
}

#[test]
fn logits_equal_those_of_candle_transformers() {
    for tied in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tiny.gguf");
        TinyLlama {
            tied,
            ..Default::default()
        }
        .write(&path)
        .unwrap();
        let model = Model::open(&path).unwrap();
        assert_eq!(model.config().tied_output, tied);

        let mut file = std::fs::File::open(&path).unwrap();
        let content = candle_core::quantized::gguf_file::Content::read(&mut file).unwrap();
        let device = Device::Cpu;
        let mut witness = candle_transformers::models::quantized_llama::ModelWeights::from_gguf(
            content, &mut file, &device,
        )
        .unwrap();
        let ours = row_wise(&model, &IDS);
        for (pos, id) in IDS.iter().enumerate() {
            let token = Tensor::new(&[[*id]], &device).unwrap();
            let logits: Vec<f32> = witness
                .forward(&token, pos)
                .unwrap()
                .flatten_all()
                .unwrap()
                .to_vec1()
                .unwrap();
            let vocab = model.config().vocab;
            let distance = relative_distance(&ours[pos * vocab..][..vocab], &logits);
            assert!(distance < 1e-4, "position {pos}, tied {tied}: {distance}");
        }
    }
}

#[test]
fn a_stopped_pass_fails_and_can_be_reused() {
    let (_dir, model) = open(&TinyLlama {
        kind: "Q8_0",
        ..Default::default()
    });
    let config = model.config();
    let stop = Stop::new();
    stop.request();
    let mut pass = model.layer_pass(0, 64);
    let mut residual = vec![0.5; 64 * config.width];
    let mut q = vec![0.0; 64 * config.q_width()];
    let (mut k, mut v) = (
        vec![0.0; 64 * config.kv_width()],
        vec![0.0; 64 * config.kv_width()],
    );
    assert!(
        pass.project(&residual, &mut q, &mut k, &mut v, &stop)
            .is_err()
    );
    assert!(pass.finish(&q, &[0; 64], &mut residual, &stop).is_err());
    // A stopped pass can be used again.
    let go = Stop::new();
    pass.project(&residual, &mut q, &mut k, &mut v, &go)
        .unwrap();
    assert!(q.iter().all(|n| n.is_finite()) && q.iter().any(|n| *n != 0.0));
}

#[test]
fn embedding_rows_do_not_depend_on_the_batch() {
    let (_dir, model) = open(&TinyLlama {
        kind: "F16",
        ..Default::default()
    });
    let width = model.config().width;
    let (mut both, mut one) = (vec![0.0; 2 * width], vec![0.0; width]);
    model.embed(&[7, 280], &mut both);
    model.embed(&[280], &mut one);
    assert_eq!(both[width..], one);
    assert!(both[..width] != both[width..]);
}

fn config(spoil: impl FnOnce(&mut kept_models::testing::GgufWriter)) -> Config {
    let tiny = TinyLlama {
        layers: 1,
        width: 64,
        ffn: 64,
        q_heads: 2,
        kv_heads: 1,
        head_dim: 32,
        ..Default::default()
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    let mut writer = tiny.writer();
    spoil(&mut writer);
    writer.write(&path).unwrap();
    Model::open(&path).unwrap().config().clone()
}

/// The paper's formula, in f64, pair by pair.
fn rotated(x: &[f32], pos: usize, config: &Config, divisor: impl Fn(usize) -> f64) -> Vec<f32> {
    let dims = config.rope.dims;
    let mut out = x.to_vec();
    for head in out.chunks_mut(config.head_dim) {
        for i in 0..dims / 2 {
            let angle =
                pos as f64 / config.rope.base.powf(2.0 * i as f64 / dims as f64) / divisor(i);
            let (at, with) = match config.rope.pairing {
                Pairing::Neighbours => (2 * i, 2 * i + 1),
                Pairing::Halves => (i, i + dims / 2),
            };
            let (a, b) = (f64::from(head[at]), f64::from(head[with]));
            head[at] = (a * angle.cos() - b * angle.sin()) as f32;
            head[with] = (a * angle.sin() + b * angle.cos()) as f32;
        }
    }
    out
}

fn check_rope(config: &Config, divisor: impl Fn(usize) -> f64 + Copy) {
    const POSITIONS: usize = 200;
    let table = RopeTable::new(config, POSITIONS);
    assert_eq!(table.bytes(), (POSITIONS * config.rope.dims * 4) as u64);
    for position in 0..POSITIONS {
        let (mut cos, mut sin) = (vec![0.0; table.pairs()], vec![0.0; table.pairs()]);
        table.fill(position, &mut cos, &mut sin);
        assert_eq!(
            (table.cos(position), table.sin(position)),
            (&cos[..], &sin[..])
        );
    }
    let width = 2 * config.head_dim;
    let x: Vec<f32> = (0..3 * width).map(|i| (i as f32 * 0.37).sin()).collect();
    let mut rows = x.clone();
    // Crosses two multiples of `STEPS`.
    table.rotate_rows(&mut rows, 2, 126);
    for (row, x) in x.chunks(width).enumerate() {
        let expected = rotated(x, 126 + row, config, divisor);
        let mut one = x.to_vec();
        table.rotate_at(&mut one, 126 + row);
        assert_eq!(one, rows[row * width..][..width]);
        assert!(relative_distance(&one, &expected) < 1e-6);
        table.unrotate_at(&mut one, 126 + row);
        assert!(relative_distance(&one, x) < 1e-6);
        // Beyond the table, where f32 angles would be off by thousandths.
        let (mut cos, mut sin) = (vec![0.0; table.pairs()], vec![0.0; table.pairs()]);
        table.fill(1_000_003, &mut cos, &mut sin);
        let mut far = x.to_vec();
        table.rotate_with(&mut far, &cos, &sin);
        assert!(relative_distance(&far, &rotated(x, 1_000_003, config, divisor)) < 1e-6);
        table.unrotate_with(&mut far, &cos, &sin);
        assert!(relative_distance(&far, x) < 1e-6);
    }
}

#[test]
fn rope_equals_the_f64_formula() {
    let plain = config(|_| {});
    assert_eq!(plain.rope.scaling, RopeScaling::None);
    check_rope(&plain, |_| 1.0);
    let mut halves = plain.clone();
    halves.rope.pairing = Pairing::Halves;
    check_rope(&halves, |_| 1.0);
    let partial = config(|w| {
        w.set("llama.rope.dimension_count", MetaValue::Whole(24));
    });
    check_rope(&partial, |_| 1.0);
    let linear = config(|w| {
        w.set("llama.rope.scaling.type", MetaValue::Text("linear".into()));
        w.set("llama.rope.scaling.factor", MetaValue::Number(4.0));
    });
    check_rope(&linear, |_| 4.0);
    let factors: Vec<f32> = (0..16).map(|i| 1.0 + i as f32 / 2.0).collect();
    let llama3 = config(|w| {
        w.tensor("rope_freqs.weight", &[16], "F32", &factors);
        w.set("llama.rope.freq_base", MetaValue::Number(500_000.0));
    });
    check_rope(&llama3, |i| f64::from(factors[i]));
}
