//! Prefill attention of a chunk: the kernel's source against the CPU reference.

use crate::support::*;
use kept_cuda::{AttentionScratch, PrefillAttention};
use kept_kernels::{HeadShape, Scale, reference};

struct Case {
    shape: HeadShape,
    rows: usize,
    first: usize,
    window: Option<usize>,
    scale: Scale<'static>,
}

fn check(case: &Case, seed: u64) {
    let &Case {
        shape,
        rows,
        first,
        window,
        scale,
    } = case;
    for device in devices() {
        let mut numbers = Numbers::new(seed);
        let tokens = first + rows;
        let (host_keys, keys) = layer(&device, &mut numbers, &shape, tokens + 7);
        let (host_values, values) = layer(&device, &mut numbers, &shape, tokens + 7);
        let host_queries = numbers.rows(rows * shape.q_heads * shape.head_dim);
        let queries = queries(&device, &host_queries);
        let mut expected = vec![0.0; host_queries.len()];
        let mut expected_sums = vec![0.0; shape.q_heads * rows];
        let task = kept_kernels::PrefillAttention {
            shape,
            scale,
            window,
            queries: &host_queries,
            first,
            keys: &host_keys,
            values: &host_values,
        };
        reference::prefill_attention(&task, &mut expected, Some(&mut expected_sums));

        let mut scratch = AttentionScratch::new(&device, shape).expect("memory");
        let mut out = device.alloc_uninit(expected.len()).expect("memory");
        let mut sums = device.alloc_uninit(expected_sums.len()).expect("memory");
        let task = PrefillAttention {
            shape,
            scale,
            window,
            queries: &queries,
            rows,
            first,
            keys: &keys,
            values: &values,
        };
        device
            .prefill_attention(&task, &mut scratch, &mut out, Some(&mut sums))
            .expect("it runs");
        let what = format!("{shape:?}, {rows} rows from {first}, window {window:?}, {scale:?}");
        close(&out.to_vec().expect("read"), &expected, 2e-3, &what);
        close(&sums.to_vec().expect("read"), &expected_sums, 2e-3, &what);
    }
}

fn plain(shape: &HeadShape) -> Scale<'static> {
    Scale::from(1.0 / (shape.head_dim as f32).sqrt())
}

#[test]
fn every_head_size_matches_the_reference() {
    for (i, shape) in shapes().into_iter().enumerate() {
        // One row; less than a tile; more than one tile of rows and of keys, with partial tiles.
        for (rows, first) in [(1, 0), (5, 60), (70, 0), (66, 130)] {
            let scale = plain(&shape);
            let case = Case {
                shape,
                rows,
                first,
                window: None,
                scale,
            };
            check(&case, i as u64);
        }
    }
}

#[test]
fn sliding_windows_and_caps_match_the_reference() {
    let shape = shapes()[0];
    for window in [1, 17, 64, 200] {
        let scale = Scale {
            factor: 2.0,
            cap: Some(3.0),
            sinks: None,
        };
        let case = Case {
            shape,
            rows: 70,
            first: 90,
            window: Some(window),
            scale,
        };
        check(&case, window as u64);
    }
}

#[test]
fn split_keys_match_the_reference() {
    let shape = HeadShape::new(2, 1, 64);
    for (rows, first) in [(3, 1500), (64, 1000), (1, 2047)] {
        let case = Case {
            shape,
            rows,
            first,
            window: None,
            scale: 1.0.into(),
        };
        check(&case, rows as u64);
        // Most splits contain no key that a row attends to.
        let case = Case {
            window: Some(100),
            ..case
        };
        check(&case, 3);
    }
}

#[test]
fn large_logits_do_not_overflow() {
    let shape = shapes()[0];
    check(
        &Case {
            shape,
            rows: 20,
            first: 100,
            window: None,
            scale: 300.0.into(),
        },
        9,
    );
}
