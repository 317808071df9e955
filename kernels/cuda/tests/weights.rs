//! Products with weights of every kind, against the products of the CPU.

mod support;

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device as Cpu, Tensor};
use kept_cuda::{ProductScratch, Weights};
use support::*;

#[test]
fn products_with_every_kind_are_the_exact_ones_to_what_quantising_the_inputs_costs() {
    use GgmlDType::*;
    let kinds = [
        F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K,
    ];
    let (rows, cols) = (37, 512);
    for device in devices() {
        let mut numbers = Numbers::new(11);
        for kind in kinds {
            let weights = Tensor::from_vec(numbers.rows(rows * cols), (rows, cols), &Cpu::Cpu)
                .expect("a tensor");
            let quantised = QTensor::quantize(&weights, kind).expect("quantised");
            let exact = quantised.dequantize(&Cpu::Cpu).expect("numbers");
            let exact = exact
                .flatten_all()
                .expect("flat")
                .to_vec1::<f32>()
                .expect("numbers");
            let blocks = quantised.data().expect("bytes");
            let there = Weights::new(&device, kind, (rows, cols), &blocks).expect("room");
            for inputs in [1, 3, 8, 9, 40] {
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
                let mut scratch = ProductScratch::new(&device, inputs, cols).expect("room");
                let x = device.copy_of(&x).expect("room");
                let mut out = device.room(inputs * rows).expect("room");
                for _ in 0..2 {
                    device
                        .multiply(&there, &x, inputs, &mut scratch, &mut out)
                        .expect("it runs");
                    // A product is a sum of 512 numbers of which each input is off by half a 127th at most.
                    let tolerance = if kind.block_size() == 1 { 1e-3 } else { 0.15 };
                    close(
                        &out.to_vec().expect("read"),
                        &expected,
                        tolerance,
                        &format!("{kind:?}, {inputs}"),
                    );
                }
            }
        }
    }
}

#[test]
fn a_kind_without_a_product_is_refused_by_name() {
    let [device, _] = devices();
    let refused = Weights::new(&device, GgmlDType::Q8K, (1, 256), &[0; 292]).err();
    let sentence = refused.expect("refused").to_string();
    assert!(
        sentence.contains("Q8K") && sentence.contains("--device cpu"),
        "{sentence}"
    );
}
