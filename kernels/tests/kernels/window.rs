//! Window scores against the reference, at every SIMD level of the machine.

use crate::support::{GROUPS, Random, assert_close, shape, sinks};
use kept_kernels::{
    Normalise, PrefillAttention, Scale, SimdLevel, Stop, Stopped, WindowScores, prefill_attention,
    reference, window_maxima, window_scores, window_scores_among,
};

#[test]
fn equals_the_reference_over_a_grid_of_shapes() {
    let mut random = Random::fresh();
    for group in GROUPS {
        for (window, tokens) in [
            (1, 1),
            (1, 65),
            (4, 24),
            (7, 64),
            (8, 600),
            (16, 16),
            (32, 1100),
            (33, 200),
            (64, 130),
            (150, 150),
        ] {
            // Heads of 256 (Gemma) in the small shapes only: the reference is slow.
            let wide = (group < 3 && tokens < 300).then_some(256);
            for head_dim in [32, 80, 128].into_iter().chain(wide) {
                let shape = shape(2, group, head_dim);
                let queries = random.normal(window * shape.q_heads * head_dim);
                let keys = random.store(&[tokens, tokens + 3], head_dim);
                let row_weights = random.normal(window);
                for normalise in [Normalise::All, Normalise::Prefix] {
                    let row_weights = (tokens % 2 == 0).then_some(&row_weights[..]);
                    let scale = Scale {
                        factor: 1.7 / (head_dim as f32).sqrt(),
                        cap: (window % 3 == 1).then_some(1.5),
                        sinks: (window % 2 == 0).then(|| sinks(shape)),
                    };
                    let task = WindowScores {
                        shape,
                        scale,
                        queries: &queries,
                        keys: &keys,
                        tokens,
                        normalise,
                        row_weights,
                        log_sum_exp: &[],
                    };
                    let mut expected = vec![f32::NAN; shape.q_heads * tokens];
                    reference::window_scores(&task, &mut expected);
                    for level in SimdLevel::available() {
                        let mut out = vec![f32::NAN; expected.len()];
                        level
                            .with(|| window_scores(&task, &mut out, &Stop::new()))
                            .unwrap();
                        let what = format!(
                            "{level:?} {shape:?} window {window} of {tokens} {normalise:?}"
                        );
                        assert_close(&out, &expected, 1e-5, &what);
                    }
                    // All columns, and a range with unaligned boundaries.
                    for columns in [0..tokens, tokens / 3..tokens - tokens / 4] {
                        let mut expected = vec![f32::NAN; shape.q_heads * columns.len()];
                        reference::window_maxima(&task, columns.clone(), &mut expected);
                        for level in SimdLevel::available() {
                            let mut out = vec![f32::NAN; expected.len()];
                            level
                                .with(|| {
                                    window_maxima(&task, columns.clone(), &mut out, &Stop::new())
                                })
                                .unwrap();
                            let what = format!(
                                "maxima {level:?} {shape:?} window {window} of {tokens} {normalise:?} {columns:?}"
                            );
                            assert_close(&out, &expected, 1e-5, &what);
                        }
                    }
                }
            }
        }
    }
}

/// Without row weights the scores of a head are the mean of probability rows, so they sum to 1.
#[test]
fn scores_of_a_head_sum_to_one() {
    let mut random = Random::fresh();
    let (shape, tokens) = (shape(1, 3, 64), 3000);
    let queries = random.normal(32 * 3 * 64);
    let keys = random.store(&[tokens], 64);
    let (normalise, row_weights) = (Normalise::All, None);
    let task = WindowScores {
        shape,
        scale: 0.3.into(),
        queries: &queries,
        keys: &keys,
        tokens,
        normalise,
        row_weights,
        log_sum_exp: &[],
    };
    let mut out = vec![f32::NAN; 3 * tokens];
    window_scores(&task, &mut out, &Stop::new()).unwrap();
    for head in out.chunks(tokens) {
        assert_close(&[head.iter().sum()], &[1.0], 1e-5, "sum");
    }
    let stop = Stop::new();
    stop.request();
    assert_eq!(window_scores(&task, &mut out, &stop), Err(Stopped));
    assert_eq!(
        window_maxima(&task, 0..tokens, &mut out, &stop),
        Err(Stopped)
    );
}

/// A given log-sum-exp is used as it is, a missing one is computed: for no row, some rows, all rows, and more rows than
/// the window has.
#[test]
fn scores_start_from_a_log_sum_exp_that_is_known() {
    let mut random = Random::fresh();
    let (shape, tokens, window) = (shape(2, 3, 64), 700, 40);
    let width = shape.q_heads * shape.head_dim;
    let queries = random.normal(tokens * width);
    let (keys, values) = (
        random.store(&[tokens, tokens], 64),
        random.store(&[tokens, tokens], 64),
    );
    let scale = Scale {
        factor: 0.2,
        cap: Some(4.0),
        // Among the logits, so that keys and sinks both matter.
        sinks: Some(&[0.0, 1.0, -1.0, 2.0, 0.5, 1.5]),
    };
    for known in [0, 1, 17, window, 100, tokens] {
        let rows = tokens - known..tokens;
        let mut log_sum_exp = vec![f32::NAN; shape.q_heads * known];
        if known > 0 {
            let attention = PrefillAttention {
                shape,
                scale,
                window: None,
                queries: &queries[rows.start * width..],
                first: rows.start,
                keys: &keys,
                values: &values,
            };
            let mut out = vec![f32::NAN; known * width];
            prefill_attention(&attention, &mut out, Some(&mut log_sum_exp), &Stop::new()).unwrap();
        }
        for normalise in [Normalise::All, Normalise::Prefix] {
            let scores = |log_sum_exp: &[f32]| {
                let task = WindowScores {
                    shape,
                    scale,
                    queries: &queries[(tokens - window) * width..],
                    keys: &keys,
                    tokens,
                    normalise,
                    row_weights: None,
                    log_sum_exp,
                };
                let mut out = vec![f32::NAN; shape.q_heads * tokens];
                window_scores(&task, &mut out, &Stop::new()).unwrap();
                out
            };
            let measured = scores(&[]);
            let what = format!("{known} of {window} rows known, {normalise:?}");
            assert_close(&scores(&log_sum_exp), &measured, 1e-5, &what);
            // The given log-sum-exp is used: doubling the sum halves the probability.
            let twice: Vec<f32> = log_sum_exp.iter().map(|l| l + 2f32.ln()).collect();
            let total = |scores: &[f32]| scores.iter().sum::<f32>() / shape.q_heads as f32;
            let without = known.max(window) - known;
            if normalise == Normalise::Prefix || without == window {
                assert_eq!(scores(&twice), measured, "{what}");
            } else if without == 0 {
                assert_close(
                    &[total(&scores(&twice))],
                    &[total(&measured) / 2.0],
                    1e-5,
                    &what,
                );
            }
        }
    }
}

/// With `candidates`, the selected keys get bit for bit the scores that they get among all keys, and the others get 0.
#[test]
fn some_keys_score_what_they_score_among_all() {
    let mut random = Random::fresh();
    for (group, head_dim, window, tokens) in [(1, 64, 4, 90), (7, 64, 70, 1300), (3, 20, 33, 400)] {
        let shape = shape(2, group, head_dim);
        let queries = random.normal(window * shape.q_heads * head_dim);
        let keys = random.store(&[tokens, tokens + 1], head_dim);
        let row_weights = random.normal(window);
        let task = WindowScores {
            shape,
            scale: 0.3.into(),
            queries: &queries,
            keys: &keys,
            tokens,
            normalise: Normalise::All,
            row_weights: Some(&row_weights),
            log_sum_exp: &[],
        };
        let before = tokens - window;
        for some in [0, 1, before / 3, before] {
            let mut candidates = random.permutation(before)[..some].to_vec();
            candidates.sort_unstable();
            for level in SimdLevel::available() {
                let (mut all, mut out) = (vec![f32::NAN; shape.q_heads * tokens], Vec::new());
                out.clone_from(&all);
                level.with(|| {
                    window_scores(&task, &mut all, &Stop::new()).unwrap();
                    window_scores_among(&task, &candidates, &mut out, &Stop::new()).unwrap();
                });
                for (out, all) in out.chunks_exact(tokens).zip(all.chunks_exact(tokens)) {
                    for (key, (found, score)) in out.iter().zip(all).enumerate() {
                        let expected = match candidates.binary_search(&(key as u32)) {
                            Ok(_) => *score,
                            Err(_) => 0.0,
                        };
                        assert_eq!(*found, expected, "{level:?} {shape:?} {some}: key {key}");
                    }
                }
            }
        }
    }
}
