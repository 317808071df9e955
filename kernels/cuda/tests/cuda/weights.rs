//! Products with weights of every type, against the products of the CPU.

use crate::support::*;
use candle_core::quantized::GgmlDType;
use kept_cuda::{Device, ProductScratch, Weights};

#[test]
fn products_of_every_type_match_exact_products() {
    use GgmlDType::*;
    let kinds = [
        F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K,
    ];
    // Odd and even rows, in one tile and in several; few inputs, one tile of inputs, slightly more than one, and two.
    let shapes: [((usize, usize), &[usize]); 4] = [
        ((37, 512), &[1, 3, 8, 9, 40]),
        ((131, 768), &[2, 8, 65]),
        ((66, 2304), &[1, 129]),
        // No type with blocks of 256 has rows of this length.
        ((35, 896), &[1, 5, 64]),
    ];
    for device in devices() {
        let mut numbers = Numbers::new(11);
        for kind in kinds {
            for ((rows, cols), counts) in shapes {
                if cols % kind.block_size() == 0 {
                    products(&device, &mut numbers, kind, rows, cols, counts);
                }
            }
        }
    }
}

/// Products of random weights for each number of inputs, twice each.
fn products(
    device: &Device,
    numbers: &mut Numbers,
    kind: GgmlDType,
    rows: usize,
    cols: usize,
    counts: &[usize],
) {
    let (weights, exact) = weights(device, numbers, kind, rows, cols);
    for &inputs in counts {
        let x = numbers.rows(inputs * cols);
        let mut expected = vec![0.0; inputs * rows];
        for (i, out) in expected.iter_mut().enumerate() {
            let (input, row) = (i / rows, i % rows);
            let pairs = x[input * cols..][..cols]
                .iter()
                .zip(&exact[row * cols..][..cols]);
            *out = pairs
                .map(|(a, b)| f64::from(*a) * f64::from(*b))
                .sum::<f64>() as f32;
        }
        let mut scratch = ProductScratch::new(device, inputs, cols).expect("memory");
        let x = device.copy_of(&x).expect("memory");
        let mut out = device.alloc_uninit(inputs * rows).expect("memory");
        for _ in 0..2 {
            device
                .multiply(&weights, &x, inputs, &mut scratch, &mut out)
                .expect("it runs");
            let tolerance = match kind.block_size() {
                1 => 1e-3,
                _ => rounded_inputs(cols),
            };
            close(
                &out.to_vec().expect("read"),
                &expected,
                tolerance,
                &format!("{kind:?} [{rows}, {cols}], {inputs}"),
            );
        }
    }
}

#[test]
fn an_unsupported_type_is_refused_by_name() {
    let device = devices().remove(0);
    let refused = Weights::new(&device, GgmlDType::Q8K, 1, 256, &[0; 292]).err();
    let sentence = refused.expect("refused").to_string();
    assert!(
        sentence.contains("Q8K") && sentence.contains("CPU"),
        "{sentence}"
    );
}
