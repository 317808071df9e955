//! Prefill attention against the reference, at every SIMD level of the machine.

use crate::support::{GROUPS, HEAD_DIMS, Random, assert_close, shape, sinks};
use kept_kernels::{
    PrefillAttention, Scale, SimdLevel, Stop, Stopped, prefill_attention, reference,
};

/// Tolerance of the outputs when the last row sees `keys` keys. AMX, used from 1,024 keys on, multiplies numbers with
/// 16 bits of precision.
fn exactness(level: SimdLevel, keys: usize) -> f32 {
    match level {
        // A logit of 6 is off by at most 6 * 2^-15, if the errors of all its products have the same sign.
        SimdLevel::Amx if keys > 1024 => 2e-4,
        _ => 1e-5,
    }
}

#[test]
fn equals_the_reference_over_a_grid_of_shapes() {
    let mut random = Random::fresh();
    for group in GROUPS {
        for head_dim in HEAD_DIMS {
            for (first, rows) in [
                (0, 1),
                (0, 17),
                (0, 130),
                (63, 1),
                (64, 5),
                (61, 70),
                (127, 2),
                (1024, 1),
                (1087, 17),
                (1019, 9),
            ] {
                let shape = shape(2, group, head_dim);
                let queries = random.normal(rows * shape.q_heads * head_dim);
                let keys = random.store(&[first + rows, first + rows + 3], head_dim);
                let values = random.store(&[first + rows + 1, first + rows], head_dim);
                let task = PrefillAttention {
                    shape,
                    scale: (1.7 / (head_dim as f32).sqrt()).into(),
                    window: None,
                    queries: &queries,
                    first,
                    keys: &keys,
                    values: &values,
                };
                let mut expected = vec![f32::NAN; queries.len()];
                let mut expected_lse = vec![f32::NAN; shape.q_heads * rows];
                reference::prefill_attention(&task, &mut expected, Some(&mut expected_lse));
                for level in SimdLevel::available() {
                    let what = format!("{level:?} {shape:?} first {first} rows {rows}");
                    let mut out = vec![f32::NAN; queries.len()];
                    let mut lse = vec![f32::NAN; expected_lse.len()];
                    level
                        .with(|| prefill_attention(&task, &mut out, Some(&mut lse), &Stop::new()))
                        .unwrap();
                    assert_close(&out, &expected, exactness(level, first + rows), &what);
                    assert_close(&lse, &expected_lse, exactness(level, first + rows), &what);
                }
            }
        }
    }
}

/// Gemma's sliding windows and soft caps, alone and together: windows shorter and longer than a tile, effective caps.
#[test]
fn windows_and_caps_equal_the_reference() {
    let mut random = Random::fresh();
    for (group, head_dim) in [(1, 64), (2, 256), (7, 80), (3, 20)] {
        for (first, rows) in [(0, 1), (63, 70), (200, 1), (130, 90), (1090, 40)] {
            for window in [
                None,
                Some(1),
                Some(63),
                Some(64),
                Some(65),
                Some(1000),
                Some(1025),
            ] {
                for (cap, sunk) in [(None, false), (Some(2.0), false), (None, true)] {
                    let shape = shape(2, group, head_dim);
                    let queries = random.normal(rows * shape.q_heads * head_dim);
                    let keys = random.store(&[first + rows, first + rows + 3], head_dim);
                    let values = random.store(&[first + rows + 1, first + rows], head_dim);
                    let factor = 3.0 / (head_dim as f32).sqrt();
                    let task = PrefillAttention {
                        shape,
                        scale: Scale {
                            factor,
                            cap,
                            sinks: sunk.then(|| sinks(shape)),
                        },
                        window,
                        queries: &queries,
                        first,
                        keys: &keys,
                        values: &values,
                    };
                    let mut expected = vec![f32::NAN; queries.len()];
                    let mut expected_lse = vec![f32::NAN; shape.q_heads * rows];
                    reference::prefill_attention(&task, &mut expected, Some(&mut expected_lse));
                    for level in SimdLevel::available() {
                        let what = format!(
                            "{level:?} {shape:?} first {first} rows {rows} window {window:?} cap {cap:?} sinks {sunk}"
                        );
                        let mut out = vec![f32::NAN; queries.len()];
                        let mut lse = vec![f32::NAN; expected_lse.len()];
                        level
                            .with(|| {
                                prefill_attention(&task, &mut out, Some(&mut lse), &Stop::new())
                            })
                            .unwrap();
                        // Logits three times as large have errors three times as large.
                        let tolerance = 3.0 * exactness(level, first + rows);
                        assert_close(&out, &expected, tolerance, &what);
                        assert_close(&lse, &expected_lse, tolerance, &what);
                    }
                }
            }
        }
    }
}

#[test]
fn chunks_give_the_same_bits_as_the_whole() {
    let mut random = Random::fresh();
    let shape = shape(2, 3, 64);
    let tokens = 1150;
    let width = shape.q_heads * shape.head_dim;
    let queries = random.normal(tokens * width);
    let (keys, values) = (
        random.store(&[tokens; 2], 64),
        random.store(&[tokens; 2], 64),
    );
    for level in SimdLevel::available() {
        level.with(|| {
            let run = |first: usize, end: usize| {
                let task = PrefillAttention {
                    shape,
                    scale: 0.2.into(),
                    window: None,
                    queries: &queries[first * width..end * width],
                    first,
                    keys: &keys,
                    values: &values,
                };
                let mut out = vec![f32::NAN; (end - first) * width];
                prefill_attention(&task, &mut out, None, &Stop::new()).unwrap();
                out
            };
            let chunks: Vec<f32> = [(0, 1), (1, 64), (64, 200), (200, 1000), (1000, 1150)]
                .into_iter()
                .flat_map(|(first, end)| run(first, end))
                .collect();
            assert_eq!(run(0, tokens), chunks, "{level:?}");
        });
    }
}

#[test]
fn large_logits_stay_finite() {
    let mut random = Random::fresh();
    let shape = shape(1, 2, 32);
    let queries: Vec<f32> = random.normal(80 * 64).iter().map(|x| x * 100.0).collect();
    let (keys, values) = (random.store(&[80], 32), random.store(&[80], 32));
    let task = PrefillAttention {
        shape,
        scale: 1.0.into(),
        window: None,
        queries: &queries,
        first: 0,
        keys: &keys,
        values: &values,
    };
    let mut expected = vec![f32::NAN; queries.len()];
    reference::prefill_attention(&task, &mut expected, None);
    for level in SimdLevel::available() {
        let mut out = vec![f32::NAN; queries.len()];
        level
            .with(|| prefill_attention(&task, &mut out, None, &Stop::new()))
            .unwrap();
        // Logits near 1000 are themselves exact to 1e-4 only.
        assert_close(
            &out,
            &expected,
            100.0 * exactness(level, 80),
            &format!("{level:?}"),
        );
    }
}

/// A stop requested before the call leaves the outputs unchanged: no item starts.
#[test]
fn stops_before_the_first_tile() {
    let mut random = Random::fresh();
    let shape = shape(1, 1, 32);
    let queries = random.normal(64 * 32);
    let (keys, values) = (random.store(&[64], 32), random.store(&[64], 32));
    let task = PrefillAttention {
        shape,
        scale: 1.0.into(),
        window: None,
        queries: &queries,
        first: 0,
        keys: &keys,
        values: &values,
    };
    let mut out = vec![7.0; queries.len()];
    let stop = Stop::new();
    stop.clone().request();
    assert_eq!(
        prefill_attention(&task, &mut out, None, &stop),
        Err(Stopped)
    );
    assert!(out.iter().all(|&x| x == 7.0));
}
