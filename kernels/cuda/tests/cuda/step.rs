//! Decode step of one token in few launches: products with every type of weights, norms and top-k.

use crate::support::*;
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device as Cpu, Tensor};
use kept_cuda::{
    Activation, Buffer, Candidates, CapturedGraph, Device, RmsNorm, RowInputs, Weights,
    fault_injecting,
};

use GgmlDType::*;

const KINDS: [GgmlDType; 13] = [
    F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K,
];

/// Random weights of a type on a device, and their dequantised values.
fn matrix(
    device: &Device,
    numbers: &mut Numbers,
    kind: GgmlDType,
    rows: usize,
    cols: usize,
) -> (Weights, Vec<f32>) {
    let weights = Tensor::from_vec(numbers.rows(rows * cols), (rows, cols), &Cpu::Cpu);
    let quantised = QTensor::quantize(&weights.expect("a tensor"), kind).expect("quantised");
    let exact = quantised.dequantize(&Cpu::Cpu).expect("numbers");
    let exact = exact.flatten_all().expect("flat").to_vec1::<f32>();
    let blocks = quantised.data().expect("bytes");
    let weights = Weights::new(device, kind, rows, cols, &blocks).expect("memory");
    (weights, exact.expect("numbers"))
}

/// A row on the device, quantised for weights that need it.
fn inputs(device: &Device, x: &[f32]) -> RowInputs {
    let mut row = RowInputs::new(device, x.len()).expect("memory");
    row.values_mut().write(0, x).expect("written");
    device.step_inputs(&mut row).expect("it runs");
    row
}

fn rounded(x: &[f32], kind: GgmlDType) -> Vec<f32> {
    if kind.block_size() == 1 {
        return x.to_vec();
    }
    let run = |run: &[f32]| {
        let scale = run.iter().fold(0.0f32, |most, x| most.max(x.abs())) / 127.0;
        let round = move |x: &f32| {
            if scale > 0.0 {
                (x / scale).round() * scale
            } else {
                0.0
            }
        };
        run.iter().map(round).collect::<Vec<f32>>()
    };
    x.chunks(32).flat_map(run).collect()
}

/// `weights [rows, cols] * x`, in f64.
fn product(weights: &[f32], x: &[f32]) -> Vec<f32> {
    let row = |row: &[f32]| {
        let pairs = row.iter().zip(x);
        pairs
            .map(|(a, b)| f64::from(*a) * f64::from(*b))
            .sum::<f64>() as f32
    };
    weights.chunks(x.len()).map(row).collect()
}

#[test]
fn three_matrices_of_mixed_types_in_one_launch() {
    let (shapes, cols) = ([37, 8, 3], 512);
    for device in devices() {
        let mut numbers = Numbers::new(21);
        for i in 0..KINDS.len() {
            let x = numbers.rows(cols);
            let row = inputs(&device, &x);
            // Together with the two types that follow.
            let kinds = [0, 1, 2].map(|next| KINDS[(i + next) % KINDS.len()]);
            let mut own = |which: usize| {
                let (rows, kind) = (shapes[which], kinds[which]);
                let (weights, exact) = matrix(&device, &mut numbers, kind, rows, cols);
                let (bias, before) = (numbers.rows(rows), numbers.rows(rows));
                let products = product(&exact, &rounded(&x, kind));
                let expected: Vec<f32> = (products.iter().zip(&bias).zip(&before))
                    .map(|((x, bias), before)| x + bias + before)
                    .collect();
                let bias = device.copy_of(&bias).expect("memory");
                (
                    weights,
                    bias,
                    device.copy_of(&before).expect("memory"),
                    expected,
                )
            };
            let [mut a, mut b, mut c] = [0, 1, 2].map(&mut own);
            let mut products = [
                (&a.0, Some(&a.1), &mut a.2),
                (&b.0, Some(&b.1), &mut b.2),
                (&c.0, Some(&c.1), &mut c.2),
            ];
            device
                .step_products(&mut products, &row, true, None)
                .expect("it runs");
            for ((_, _, out, expected), kind) in [a, b, c].iter().zip(kinds) {
                let found = out.to_vec().expect("read");
                close(&found, expected, 2e-3, &format!("{kind:?} of {kinds:?}"));
            }
        }
    }
}

/// One and several matrices of one type: each type has its own kernel. Rows whose length is not a multiple of a lane's
/// piece are multiplied one number at a time.
#[test]
fn matrices_of_one_type_match_exact_products() {
    for device in devices() {
        let mut numbers = Numbers::new(24);
        for kind in KINDS {
            for (shapes, cols) in [
                (vec![9], 768),
                (vec![37, 3], 512),
                (vec![5, 8, 1], 5120),
                (vec![11], 35),
            ] {
                if cols % 256 != 0 && !matches!(kind, F32 | F16 | BF16) {
                    continue;
                }
                let x = numbers.rows(cols);
                let row = inputs(&device, &x);
                let mut all: Vec<_> = (shapes.iter())
                    .map(|&rows| {
                        let (weights, exact) = matrix(&device, &mut numbers, kind, rows, cols);
                        let expected = product(&exact, &rounded(&x, kind));
                        let out = device.alloc_uninit(rows).expect("memory");
                        (weights, out, expected)
                    })
                    .collect();
                let mut products: Vec<_> = (all.iter_mut())
                    .map(|(weights, out, _)| (&*weights, None, out))
                    .collect();
                device
                    .step_products(&mut products, &row, false, None)
                    .expect("it runs");
                for (_, out, expected) in &all {
                    let found = out.to_vec().expect("read");
                    close(&found, expected, 8e-3, &format!("{kind:?} of {cols}"));
                }
            }
        }
    }
}

#[test]
fn a_product_replaces_its_output_and_is_capped() {
    for device in devices() {
        let mut numbers = Numbers::new(22);
        let (weights, exact) = matrix(&device, &mut numbers, F16, 70, 33);
        let x = numbers.rows(33);
        let row = inputs(&device, &x);
        let mut out = device.alloc_uninit(70).expect("memory");
        let cap = 1.5f32;
        device
            .step_products(&mut [(&weights, None, &mut out)], &row, false, Some(cap))
            .expect("it runs");
        let capped = |x: &f32| cap * (x / cap).tanh();
        let expected: Vec<f32> = product(&exact, &x).iter().map(capped).collect();
        close(&out.to_vec().expect("read"), &expected, 1e-3, "capped");
    }
}

#[test]
fn gated_products_are_activated_and_quantised() {
    let (rows, cols) = (80, 256);
    for device in devices() {
        let mut numbers = Numbers::new(23);
        for (activation, kinds) in [
            (Activation::Gelu, [Q8_0, F16]),
            (Activation::Silu, [BF16, BF16]),
        ]
        .into_iter()
        .chain(KINDS.map(|kind| (Activation::Silu, [kind, kind])))
        {
            let x = numbers.rows(cols);
            let row = inputs(&device, &x);
            let (gate, exact_gate) = matrix(&device, &mut numbers, kinds[0], rows, cols);
            let (up, exact_up) = matrix(&device, &mut numbers, kinds[1], rows, cols);
            let mut out = RowInputs::new(&device, rows).expect("memory");
            device
                .step_gated(activation, &gate, &up, &row, &mut out)
                .expect("it runs");
            let gate = product(&exact_gate, &rounded(&x, kinds[0]));
            let up = product(&exact_up, &rounded(&x, kinds[1]));
            let activate = |x: f32| match activation {
                Activation::Silu => x / (1.0 + (-x).exp()),
                Activation::Gelu => {
                    0.5 * x * (1.0 + (0.797_884_6 * (x + 0.044_715 * x * x * x)).tanh())
                }
            };
            let expected: Vec<f32> = (gate.iter().zip(&up))
                .map(|(gate, up)| activate(*gate) * up)
                .collect();
            let found = out.values().to_vec().expect("read");
            close(&found, &expected, 2e-2, &format!("{activation:?}"));
            // The quantised result is the input of the next product.
            let (next, exact) = matrix(&device, &mut numbers, Q5_1, 4, 64);
            let mut narrow = RowInputs::new(&device, 64).expect("memory");
            narrow.values_mut().write(0, &found[..64]).expect("written");
            device.step_inputs(&mut narrow).expect("it runs");
            let mut of_next = [0, 1].map(|_| device.alloc_uninit(4).expect("memory"));
            for (row, out) in [&out, &narrow].into_iter().zip(&mut of_next) {
                device
                    .step_products(&mut [(&next, None, out)], row, false, None)
                    .expect("it runs");
            }
            let [of_next, of_narrow] = of_next.map(|out| out.to_vec().expect("read"));
            assert_eq!(of_next, of_narrow, "rounded in the same way");
            close(
                &of_next,
                &product(&exact, &rounded(&found[..64], Q5_1)),
                0.05,
                "the next",
            );
        }
    }
}

fn normed(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let squares: f32 = x.iter().map(|x| x * x).sum();
    let factor = 1.0 / (squares / x.len() as f32 + eps).sqrt();
    x.iter().zip(weight).map(|(x, w)| x * factor * w).collect()
}

#[test]
fn step_norm_adds_the_pending_output_first() {
    let eps = 1e-5;
    for device in devices() {
        let mut numbers = Numbers::new(24);
        // 50 is not a multiple of a run, 1600 needs more than one round of the block.
        for width in [50, 1600] {
            for pending in 0..3 {
                let [x, added, post, weight] = [0; 4].map(|_| numbers.rows(width));
                let [device_added, device_post, device_weight] =
                    [&added, &post, &weight].map(|row| device.copy_of(row).expect("memory"));
                let mut residual = device.copy_of(&x).expect("memory");
                let mut out = RowInputs::new(&device, width).expect("memory");
                let task = match pending {
                    0 => None,
                    1 => Some((&device_added, None)),
                    _ => Some((&device_added, Some(&device_post))),
                };
                let norm = RmsNorm {
                    weight: &device_weight,
                    eps,
                };
                device
                    .step_norm(&mut residual, task, norm, &mut out)
                    .expect("it runs");
                let half = match pending {
                    0 => vec![0.0; width],
                    1 => added,
                    _ => normed(&added, &post, eps),
                };
                let sum: Vec<f32> = x.iter().zip(&half).map(|(x, half)| x + half).collect();
                let what = format!("{width}, {pending}");
                close(&residual.to_vec().expect("read"), &sum, 1e-4, &what);
                let found = out.values().to_vec().expect("read");
                close(&found, &normed(&sum, &weight, eps), 1e-3, &what);
            }
        }
    }
}

/// A product added to the residual stream, whose norm is applied by the products that read it: of one type, of several,
/// gated, and added again.
#[test]
fn products_apply_the_norm_of_the_product_before() {
    let eps = 1e-5;
    fn task(weight: &Buffer<f32>, eps: f32) -> RmsNorm<'_> {
        RmsNorm { weight, eps }
    }
    for device in devices() {
        let mut numbers = Numbers::new(26);
        for (kind, rows, cols) in
            (KINDS.map(|kind| (kind, 256, 512)).into_iter()).chain([(F16, 50, 35)])
        {
            let what = format!("{kind:?} of {rows}");
            let [residual, bias, norm] = [0; 3].map(|_| numbers.rows(rows));
            let x = numbers.rows(cols);
            let (weights, exact) = matrix(&device, &mut numbers, kind, rows, cols);
            let [mut stream, device_bias, weight] =
                [&residual, &bias, &norm].map(|row| device.copy_of(row).expect("memory"));
            let mut row = RowInputs::new(&device, rows).expect("memory");
            device
                .step_added(
                    (&weights, Some(&device_bias), &mut stream),
                    &inputs(&device, &x),
                    task(&weight, eps),
                    &mut row,
                )
                .expect("it runs");
            let products = product(&exact, &rounded(&x, kind));
            let sum: Vec<f32> = (products.iter().zip(&bias).zip(&residual))
                .map(|((x, bias), before)| x + bias + before)
                .collect();
            close(&stream.to_vec().expect("read"), &sum, 8e-3, &what);
            let normed = normed(&sum, &norm, eps);
            let next_kinds = if rows % 256 == 0 { KINDS } else { [F16; 13] };
            let first = KINDS.iter().position(|own| *own == kind).expect("a kind");
            for kinds in [[0, 0], [0, 1]]
                .map(|next| next.map(|n| next_kinds[(first + n) % next_kinds.len()]))
            {
                let [(a, exact_a), (b, exact_b)] =
                    kinds.map(|kind| matrix(&device, &mut numbers, kind, 32, rows));
                let [of_a, of_b] = [(&exact_a, kinds[0]), (&exact_b, kinds[1])]
                    .map(|(exact, kind)| product(exact, &rounded(&normed, kind)));
                let [mut out_a, mut out_b] =
                    [0; 2].map(|_| device.alloc_uninit(32).expect("memory"));
                let mut both = [(&a, None, &mut out_a), (&b, None, &mut out_b)];
                device
                    .step_products(&mut both, &row, false, None)
                    .expect("it runs");
                close(&out_a.to_vec().expect("read"), &of_a, 2e-2, &what);
                close(&out_b.to_vec().expect("read"), &of_b, 2e-2, &what);
                let mut gated = RowInputs::new(&device, 32).expect("memory");
                device
                    .step_gated(Activation::Silu, &a, &b, &row, &mut gated)
                    .expect("it runs");
                let expected: Vec<f32> = (of_a.iter().zip(&of_b))
                    .map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up)
                    .collect();
                close(
                    &gated.values().to_vec().expect("read"),
                    &expected,
                    4e-2,
                    &what,
                );
                let [mut stream, weight] =
                    [0; 2].map(|_| device.copy_of(&[1.0; 32]).expect("memory"));
                let mut last = RowInputs::new(&device, 32).expect("memory");
                device
                    .step_added((&a, None, &mut stream), &row, task(&weight, eps), &mut last)
                    .expect("it runs");
                let expected: Vec<f32> = of_a.iter().map(|x| x + 1.0).collect();
                close(&stream.to_vec().expect("read"), &expected, 2e-2, &what);
            }
        }
    }
}

#[test]
fn top_k_is_descending_with_nan_first() {
    for device in devices() {
        let mut numbers = Numbers::new(25);
        for (count, most) in [(5, 8), (2048, 1), (5000, 40), (9000, 64)] {
            let mut x = numbers.rows(count);
            // Equal numbers, far apart.
            let (first, last) = (x[0], count - 1);
            x[last] = first;
            let mut scratch = Candidates::new(&device, count).expect("memory");
            let mut found = |x: &[f32]| {
                let x = device.copy_of(x).expect("memory");
                let [mut values, mut places] =
                    [0; 2].map(|_| device.alloc_uninit::<u32>(most).expect("memory"));
                device
                    .largest(&x, most, &mut scratch, &mut values, &mut places)
                    .expect("it runs");
                let values = values.to_vec().expect("read");
                let values: Vec<f32> = values.into_iter().map(f32::from_bits).collect();
                (values, places.to_vec().expect("read"))
            };
            let mut order: Vec<u32> = (0..count as u32).collect();
            order.sort_by(|a, b| x[*b as usize].total_cmp(&x[*a as usize]).then(a.cmp(b)));
            let found_count = most.min(count);
            let (values, places) = found(&x);
            assert_eq!(
                places[..found_count],
                order[..found_count],
                "{most} of {count}"
            );
            let expected: Vec<f32> = order[..found_count]
                .iter()
                .map(|i| x[*i as usize])
                .collect();
            assert_eq!(values[..found_count], expected);
            assert!(
                values[found_count..]
                    .iter()
                    .all(|x| *x == f32::NEG_INFINITY)
            );
            x[count / 2] = f32::NAN;
            let (values, places) = found(&x);
            assert!(values[0].is_nan() && places[0] as usize == count / 2);
        }
    }
}

#[test]
fn a_captured_graph_replays_and_cannot_allocate() {
    let (device, meter) = fault_injecting(&devices()[0], 1 << 20);
    struct Work {
        x: Buffer<f32>,
        y: Buffer<f32>,
    }
    let work = Work {
        x: device.copy_of(&[1.0, 2.0]).expect("memory"),
        y: device.copy_of(&[0.5, 0.25]).expect("memory"),
    };
    let x = work.x.share(0..2);
    let launched = meter.launches();
    let sum = CapturedGraph::new(&device, work, |device, work| {
        assert!(
            device.alloc_uninit::<f32>(1).is_err(),
            "memory is taken before"
        );
        device.add(&mut work.x, &work.y, 2)
    });
    let sum = sum.expect("recorded");
    assert_eq!(meter.launches(), launched, "nothing ran yet");
    assert_eq!(x.to_vec().expect("read"), [1.0, 2.0]);
    for _ in 0..2 {
        sum.run().expect("it runs");
    }
    assert_eq!(x.to_vec().expect("read"), [2.0, 2.5]);
    assert_eq!((meter.launches(), meter.runs()), (launched + 2, 2));
    drop(sum.into_work());
    // A failed capture leaves the device usable.
    let refused = CapturedGraph::new(&device, (), |device, ()| {
        device.alloc_uninit::<f32>(1).map(drop)
    });
    assert!(refused.is_err());
    device
        .alloc_uninit::<f32>(1)
        .expect("not recording any more");
}
