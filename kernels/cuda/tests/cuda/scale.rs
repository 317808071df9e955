//! Kernels at the shapes of an 8B model: every multiprocessor busy, several tiles of each product per block, many
//! splits of one head's keys. The emulator runs small versions. Sampled outputs are compared with sums in f64.

use crate::step_attention::{Layer, Twins, step};
use crate::support::*;
use candle_core::quantized::GgmlDType;
use kept_cuda::{AttentionScratch, Device, PrefillAttention, ProductScratch, RowKind, StepScratch};
use kept_kernels::{HeadShape, Scale};

/// Outputs of each kernel that are compared.
const SAMPLES: usize = 256;
const SHAPE: HeadShape = HeadShape::new(32, 8, 128);

fn is_emulated(device: &Device) -> bool {
    device.properties().name.starts_with("emulated")
}

#[test]
fn products_at_the_shapes_of_an_8b_model() {
    for device in devices() {
        // Rows, columns and inputs.
        let shapes = match is_emulated(&device) {
            true => vec![(256, 512, 160)],
            false => vec![
                (14336, 4096, 512),
                (4096, 14336, 512),
                (1024, 4096, 512),
                (4096, 4096, 300),
            ],
        };
        for (rows, cols, inputs) in shapes {
            for kind in [GgmlDType::Q4K, GgmlDType::Q6K, GgmlDType::Q8_0] {
                product(&device, kind, rows, cols, inputs);
            }
        }
    }
}

fn product(device: &Device, kind: GgmlDType, rows: usize, cols: usize, inputs: usize) {
    let what = format!("{kind:?} [{rows}, {cols}], {inputs} inputs");
    let mut numbers = Numbers::new(31);
    let (weights, exact) = weights(device, &mut numbers, kind, rows, cols);
    let x = numbers.rows(inputs * cols);
    let mut scratch = ProductScratch::new(device, inputs, cols).expect("memory");
    let on_device = device.copy_of(&x).expect("memory");
    let mut out = device.alloc_uninit(inputs * rows).expect("memory");
    let mut run = || {
        device
            .multiply(&weights, &on_device, inputs, &mut scratch, &mut out)
            .expect("it runs");
        out.to_vec().expect("read")
    };
    let found = run();
    assert!(run() == found, "{what}: another result when run again");
    let tolerance = rounded_inputs(cols);
    // The last row and input, and random ones.
    for sample in 0..SAMPLES {
        let (input, row) = match sample {
            0 => (inputs - 1, rows - 1),
            _ => (numbers.below(inputs), numbers.below(rows)),
        };
        let pairs = (x[input * cols..][..cols].iter()).zip(&exact[row * cols..][..cols]);
        let expected: f64 = pairs.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
        let place = format!("{what}: input {input}, row {row}");
        close(
            &[found[input * rows + row]],
            &[expected as f32],
            tolerance,
            &place,
        );
    }
    assert!(found.iter().all(|x| x.is_finite()), "{what}");
}

#[test]
fn prefill_attention_over_long_prompts() {
    for device in devices() {
        // Rows, and positions before them.
        let chunks = match is_emulated(&device) {
            true => vec![(80, 200)],
            false => vec![(512, 30_208), (512, 122_368)],
        };
        let shape = match is_emulated(&device) {
            true => HeadShape {
                q_heads: 4,
                kv_heads: 2,
                ..SHAPE
            },
            false => SHAPE,
        };
        for (rows, first) in chunks {
            prefill(&device, shape, rows, first);
        }
    }
}

fn prefill(device: &Device, shape: HeadShape, rows: usize, first: usize) {
    let HeadShape {
        q_heads, head_dim, ..
    } = shape;
    let mut numbers = Numbers::new(32);
    let (host_keys, keys) = layer(device, &mut numbers, &shape, first + rows);
    let (host_values, values) = layer(device, &mut numbers, &shape, first + rows);
    let host_queries = numbers.rows(rows * q_heads * head_dim);
    let queries = queries(device, &host_queries);
    let mut scratch = AttentionScratch::new(device, shape).expect("memory");
    let mut out = device.alloc_uninit(host_queries.len()).expect("memory");
    // Large enough that the weights differ: with small ones every output would be near 0.
    let factor = 1.0f32;
    let task = PrefillAttention {
        shape,
        scale: Scale::from(factor),
        window: None,
        queries: &queries,
        rows,
        first,
        keys: &keys,
        values: &values,
    };
    let mut run = || {
        device
            .prefill_attention(&task, &mut scratch, &mut out, None)
            .expect("it runs");
        out.to_vec().expect("read")
    };
    let found = run();
    assert!(run() == found, "another result when run again");
    for sample in 0..16 {
        let (row, head) = match sample {
            0 => (rows - 1, q_heads - 1),
            _ => (numbers.below(rows), numbers.below(q_heads)),
        };
        let kv_head = head / shape.group();
        let at = (row * q_heads + head) * head_dim;
        let query = &host_queries[at..][..head_dim];
        let dot = |key: &[f32]| -> f64 {
            let pairs = query.iter().zip(key);
            pairs.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
        };
        let seen = (first + row + 1) * head_dim;
        let of_head = host_keys.head(kv_head)[..seen].chunks(head_dim);
        let logits: Vec<f64> = of_head.map(|key| f64::from(factor) * dot(key)).collect();
        let largest = logits.iter().copied().fold(f64::MIN, f64::max);
        let mut expected = vec![0.0; head_dim];
        let mut total = 0.0;
        for (logit, value) in logits
            .iter()
            .zip(host_values.head(kv_head).chunks(head_dim))
        {
            let weight = (logit - largest).exp();
            total += weight;
            for (sum, x) in expected.iter_mut().zip(value) {
                *sum += weight * f64::from(*x);
            }
        }
        let expected: Vec<f32> = expected.iter().map(|sum| (sum / total) as f32).collect();
        let what = format!("{rows} rows from {first}: row {row}, head {head}");
        close(&found[at..][..head_dim], &expected, 2e-3, &what);
    }
}

/// Attention over all rows of a long prompt: equal to the reference, and to itself from run to run. The blocks of a
/// head finish in any order; the last one adds up.
#[test]
fn decode_attention_over_long_prompts_is_the_same_each_time() {
    for device in devices() {
        let (rows, runs) = match is_emulated(&device) {
            true => (700, 3),
            false => (131_071, 200),
        };
        let mut numbers = Numbers::new(33);
        let layer = Layer::random(&device, SHAPE, rows + 1, &mut numbers);
        let mut twins = Twins::new(&device, SHAPE, RowKind::F16, false, rows);
        let copies = device
            .alloc_uninit(2 * SHAPE.kv_heads * SHAPE.head_dim)
            .expect("memory");
        let mut cached = twins.cache.step_layers(rows + 1, Some(&copies));
        let mut scratch = StepScratch::new(&device, SHAPE, rows, 0).expect("memory");
        let all = vec![rows; SHAPE.kv_heads];
        twins.fill(&[0; SHAPE.kv_heads], &all, &mut numbers);
        let token = layer.project(&mut numbers, rows);
        twins.send_token(&all, rows, None);
        let mut run = || step(&layer, &token, &mut cached[0], &copies, &mut scratch, rows);
        let (prepared, found) = run();
        for time in 1..runs {
            let (_, again) = run();
            assert!(again == found, "run {time} has another result");
        }
        twins.append(&all, &prepared[1]);
        let (expected, _) = twins.expected(&layer, &all, &prepared[0]);
        close(&found[0], &expected, 4e-3, "attention");
    }
}
