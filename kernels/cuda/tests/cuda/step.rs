//! Decode step of one token in few launches: products with every type of weights, norms and top-k. Attention in few
//! launches against the separate launches.

use crate::support::*;
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device as Cpu, Tensor};
use half::f16;
use kept_cuda::{
    Activation, Angles, Buffer, Candidates, CapturedGraph, DecodeScratch, Device, GpuCache, Heads,
    LayerCapacity, NewToken, RowInputs, RowKind, RowPositions, StepHeads, Weights, fault_injecting,
};
use kept_kernels::{CacheType, HeadShape, Pairing, RowStore, Scale};

use GgmlDType::*;

const KINDS: [GgmlDType; 13] = [
    F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K,
];

/// Random weights of a type on a device, and their dequantised values.
fn matrix(
    device: &Device,
    numbers: &mut Numbers,
    kind: GgmlDType,
    (rows, cols): (usize, usize),
) -> (Weights, Vec<f32>) {
    let weights = Tensor::from_vec(numbers.rows(rows * cols), (rows, cols), &Cpu::Cpu);
    let quantised = QTensor::quantize(&weights.expect("a tensor"), kind).expect("quantised");
    let exact = quantised.dequantize(&Cpu::Cpu).expect("numbers");
    let exact = exact.flatten_all().expect("flat").to_vec1::<f32>();
    let blocks = quantised.data().expect("bytes");
    let there = Weights::new(device, kind, (rows, cols), &blocks).expect("memory");
    (there, exact.expect("numbers"))
}

/// A row on the device, quantised for weights that need it.
fn inputs(device: &Device, x: &[f32]) -> RowInputs {
    let mut row = RowInputs::new(device, x.len()).expect("memory");
    row.numbers_mut().write(0, x).expect("written");
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
fn three_matrices_of_any_kinds_are_multiplied_at_once() {
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
                let (there, exact) = matrix(&device, &mut numbers, kind, (rows, cols));
                let (bias, before) = (numbers.rows(rows), numbers.rows(rows));
                let products = product(&exact, &rounded(&x, kind));
                let expected: Vec<f32> = (products.iter().zip(&bias).zip(&before))
                    .map(|((x, bias), before)| x + bias + before)
                    .collect();
                let bias = device.copy_of(&bias).expect("memory");
                (
                    there,
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
                .step_products(&mut products, &row, (true, None))
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
fn matrices_of_one_kind_have_their_own_kernel() {
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
                        let (there, exact) = matrix(&device, &mut numbers, kind, (rows, cols));
                        let expected = product(&exact, &rounded(&x, kind));
                        (there, device.alloc_uninit(rows).expect("memory"), expected)
                    })
                    .collect();
                let mut products: Vec<_> = (all.iter_mut())
                    .map(|(weights, out, _)| (&*weights, None, out))
                    .collect();
                device
                    .step_products(&mut products, &row, (false, None))
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
fn a_product_replaces_and_is_capped() {
    for device in devices() {
        let mut numbers = Numbers::new(22);
        let (weights, exact) = matrix(&device, &mut numbers, F16, (70, 33));
        let x = numbers.rows(33);
        let row = inputs(&device, &x);
        let mut out = device.alloc_uninit(70).expect("memory");
        let cap = 1.5f32;
        device
            .step_products(&mut [(&weights, None, &mut out)], &row, (false, Some(cap)))
            .expect("it runs");
        let capped = |x: &f32| cap * (x / cap).tanh();
        let expected: Vec<f32> = product(&exact, &x).iter().map(capped).collect();
        close(&out.to_vec().expect("read"), &expected, 1e-3, "capped");
    }
}

#[test]
fn a_feed_forward_is_activated_and_rounded_on_the_spot() {
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
            let (gate, exact_gate) = matrix(&device, &mut numbers, kinds[0], (rows, cols));
            let (up, exact_up) = matrix(&device, &mut numbers, kinds[1], (rows, cols));
            let mut out = RowInputs::new(&device, rows).expect("memory");
            device
                .step_gated(activation, (&gate, &up), &row, &mut out)
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
            let found = out.numbers().to_vec().expect("read");
            close(&found, &expected, 2e-2, &format!("{activation:?}"));
            // The quantised result is the input of the next product.
            let (next, exact) = matrix(&device, &mut numbers, Q5_1, (4, 64));
            let mut narrow = RowInputs::new(&device, 64).expect("memory");
            narrow
                .numbers_mut()
                .write(0, &found[..64])
                .expect("written");
            device.step_inputs(&mut narrow).expect("it runs");
            let mut of_next = [0, 1].map(|_| device.alloc_uninit(4).expect("memory"));
            for (row, out) in [&out, &narrow].into_iter().zip(&mut of_next) {
                device
                    .step_products(&mut [(&next, None, out)], row, (false, None))
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
fn a_norm_adds_what_is_pending_before() {
    let eps = 1e-5;
    for device in devices() {
        let mut numbers = Numbers::new(24);
        // 50 is not a multiple of a run, 1600 needs more than one round of the block.
        for width in [50, 1600] {
            for pending in 0..3 {
                let [x, added, post, weight] = [0; 4].map(|_| numbers.rows(width));
                let [there, post_there, weight_there] =
                    [&added, &post, &weight].map(|row| device.copy_of(row).expect("memory"));
                let mut residual = device.copy_of(&x).expect("memory");
                let mut out = RowInputs::new(&device, width).expect("memory");
                let task = match pending {
                    0 => None,
                    1 => Some((&there, None)),
                    _ => Some((&there, Some(&post_there))),
                };
                device
                    .step_norm(&mut residual, task, (&weight_there, eps), &mut out)
                    .expect("it runs");
                let half = match pending {
                    0 => vec![0.0; width],
                    1 => added,
                    _ => normed(&added, &post, eps),
                };
                let sum: Vec<f32> = x.iter().zip(&half).map(|(x, half)| x + half).collect();
                let what = format!("{width}, {pending}");
                close(&residual.to_vec().expect("read"), &sum, 1e-4, &what);
                let found = out.numbers().to_vec().expect("read");
                close(&found, &normed(&sum, &weight, eps), 1e-3, &what);
            }
        }
    }
}

#[test]
fn the_largest_come_in_their_order_and_nan_before_them() {
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
                    .largest(&x, most, &mut scratch, (&mut values, &mut places))
                    .expect("it runs");
                let values = values.to_vec().expect("read");
                let values: Vec<f32> = values.into_iter().map(f32::from_bits).collect();
                (values, places.to_vec().expect("read"))
            };
            let mut order: Vec<u32> = (0..count as u32).collect();
            order.sort_by(|a, b| x[*b as usize].total_cmp(&x[*a as usize]).then(a.cmp(b)));
            let there = most.min(count);
            let (values, places) = found(&x);
            assert_eq!(places[..there], order[..there], "{most} of {count}");
            let expected: Vec<f32> = order[..there].iter().map(|i| x[*i as usize]).collect();
            assert_eq!(values[..there], expected);
            assert!(values[there..].iter().all(|x| *x == f32::NEG_INFINITY));
            x[count / 2] = f32::NAN;
            let (values, places) = found(&x);
            assert!(values[0].is_nan() && places[0] as usize == count / 2);
        }
    }
}

/// Two caches with the same rows.
struct Twins {
    shape: HeadShape,
    caches: [GpuCache; 2],
    capacity: usize,
    /// The host's store: places, and rows as uploaded.
    store: RowStore,
}

impl Twins {
    fn new(device: &Device, shape: HeadShape, kind: RowKind, capacity: usize) -> Self {
        let mixed = kind != RowKind::F16;
        let (capacities, narrow) = if mixed {
            (vec![capacity; shape.kv_heads], capacity / 2)
        } else {
            (vec![capacity; shape.kv_heads], capacity)
        };
        let narrow = vec![narrow; shape.kv_heads];
        let stored = match kind {
            RowKind::F16 => CacheType::F16,
            RowKind::Q8_0 => CacheType::Q8_0,
            RowKind::Q4_0 => CacheType::Q4_0,
        };
        let mut store = RowStore::stored(stored, shape.head_dim, &capacities, &narrow, mixed);
        if mixed {
            let order: Vec<usize> = (0..capacity).map(|i| (7 * i + 2) % capacity).collect();
            (0..shape.kv_heads).for_each(|head| store.arrange(head, &order));
        }
        let layer = LayerCapacity {
            capacities,
            kind,
            narrow,
            ranked: false,
            entries: 0,
        };
        let cache = || GpuCache::new(device, shape, std::slice::from_ref(&layer)).expect("memory");
        Self {
            shape,
            caches: [cache(), cache()],
            capacity,
            store,
        }
    }
}

/// A token in separate launches and in one step: same rows in the cache, same attention, same best slots.
#[test]
fn heads_and_attention_in_two_launches_are_those_in_single_steps() {
    for device in devices() {
        for shape in shapes() {
            for kind in [RowKind::F16, RowKind::Q8_0, RowKind::Q4_0] {
                twins(&device, shape, kind);
            }
        }
    }
}

fn twins(device: &Device, shape: HeadShape, kind: RowKind) {
    let (dim, positions, capacity) = (shape.head_dim, 700, 600);
    let name = format!("{shape:?}, {kind:?} on {}", device.facts().name);
    let mut numbers = Numbers::new(26);
    let table = device
        .copy_of(&numbers.rows(positions * dim / 4))
        .expect("memory");
    let other = device
        .copy_of(&numbers.rows(positions * dim / 4))
        .expect("memory");
    let angles = Angles {
        cos: &table,
        sin: &other,
        rope_dim: dim / 2,
        pairing: Pairing::Halves,
    };
    let norms = [0; 2].map(|_| device.copy_of(&numbers.rows(dim)).expect("memory"));
    let scale = Scale {
        factor: 0.3,
        cap: Some(4.0),
    };
    let mut twins = Twins::new(device, shape, kind, capacity);
    let mut layers = twins.caches[1].step_layers(positions);
    let mut scratches = [true, false]
        .map(|looks| DecodeScratch::new(device, shape, twins.capacity, looks).expect("memory"));
    let q_width = shape.q_heads * dim;
    let mut queries: Buffer<f16> = device.alloc_uninit(q_width).expect("memory");
    let mut step_queries: Buffer<f16> = device.alloc_uninit(q_width).expect("memory");
    let mut out = device.alloc_uninit(q_width).expect("memory");
    let mut step_out = RowInputs::new(device, q_width).expect("memory");
    let mut best = device.alloc_uninit(2 * shape.q_heads).expect("memory");
    let mut step_best = device
        .alloc_uninit::<u32>(2 * shape.q_heads)
        .expect("memory");
    // Heads of different lengths, and rows at places that differ from their slots; the earlier rows are random.
    let mut rows: Vec<usize> = (0..shape.kv_heads).map(|head| 1 + 3 * head).collect();
    fill(&mut twins, &vec![0; rows.len()], &rows, &mut numbers);
    for token in 0..6 {
        // More rows than one split takes.
        if token == 4 {
            let before = std::mem::replace(&mut rows, vec![400; shape.kv_heads]);
            // The newest slot of each head was still empty.
            let before: Vec<usize> = before.iter().map(|rows| rows - 1).collect();
            fill(&mut twins, &before, &rows, &mut numbers);
        }
        let [q, k, v] = [shape.q_heads, shape.kv_heads, shape.kv_heads]
            .map(|heads| device.copy_of(&numbers.rows(heads * dim)).expect("memory"));
        let target = |(head, rows): (usize, &usize)| twins.store.place(head, rows - 1);
        let targets: Vec<usize> = rows.iter().enumerate().map(target).collect();
        let place = 17 + 90 * token;
        for cache in &mut twins.caches {
            let told = NewToken {
                rows: &rows,
                targets: &targets,
                aged: &[],
                query_positions: None,
                entries: None,
            };
            cache.stage_token(0, &told);
        }
        twins.caches[1].stage_position(place);
        for cache in &mut twins.caches {
            cache.send().expect("sent");
            cache.write_places(0, &twins.store).expect("written");
        }
        let one = &mut twins.caches[0];
        let heads = |projected, heads, norm| Heads {
            projected,
            rows: 1,
            heads,
            dim,
            bias: None,
            norm,
            angles: Some(angles),
            places: RowPositions::From(place),
        };
        let [q_norm, k_norm] = norms.each_ref().map(|norm| Some((norm, 1e-6)));
        device
            .ready_queries(&heads(&q, shape.q_heads, q_norm), &mut queries)
            .expect("queries");
        let [keys, values] = one.new_rows();
        device
            .ready_rows(&heads(&k, shape.kv_heads, k_norm), 0, keys)
            .expect("keys");
        let raw = Heads {
            angles: None,
            ..heads(&v, shape.kv_heads, None)
        };
        device.ready_rows(&raw, 0, values).expect("values");
        one.append(0).expect("appended");
        one.attend(0, (scale, &mut queries), None, &mut scratches[0], &mut out)
            .expect("attention");
        let probabilities = (scratches[0].probabilities(), twins.capacity);
        one.best(0, probabilities, false, &mut best).expect("best");

        let heads = StepHeads {
            q: &q,
            k: &k,
            v: &v,
            q_norm: Some(&norms[0]),
            k_norm: Some(&norms[1]),
            eps: 1e-6,
            angles: Some(angles),
        };
        layers[0]
            .put(device, &heads, &mut step_queries)
            .expect("heads");
        let results = (&mut step_out, &mut step_best);
        layers[0]
            .attend(device, (scale, &step_queries), &mut scratches[1], results)
            .expect("attention");
        let found = step_out.numbers().to_vec().expect("read");
        close(&found, &out.to_vec().expect("read"), 2e-5, &name);
        let step_best = step_best.to_vec().expect("read");
        let step_best: Vec<f32> = step_best.into_iter().map(f32::from_bits).collect();
        close(&step_best, &best.to_vec().expect("read"), 2e-5, &name);
        for rows in &mut rows {
            *rows += 1;
        }
    }
}

/// Random rows `from[h]..to[h]` of each head, the same in both caches.
fn fill(twins: &mut Twins, from: &[usize], to: &[usize], numbers: &mut Numbers) {
    for (head, (&from, &to)) in from.iter().zip(to).enumerate() {
        for row in from..to {
            let numbers = numbers.rows(twins.shape.head_dim);
            twins.store.write(head, row, &numbers);
        }
        for cache in &mut twins.caches {
            let stores = (&twins.store, &twins.store);
            cache
                .write_rows((0, head), from..to, stores)
                .expect("written");
        }
    }
}

#[test]
fn a_recording_runs_again_and_can_take_no_memory() {
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
