//! Window scores against the reference, at every SIMD level of the machine.

mod support;

use kept_kernels::{
    Normalise, Scale, SimdLevel, Stop, Stopped, WindowScores, reference, window_maxima,
    window_scores,
};
use support::{GROUPS, Random, assert_close, shape};

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
            // Gemma's heads of 256 in the small shapes only: the reference is slow.
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
                    };
                    let task = WindowScores {
                        shape,
                        scale,
                        queries: &queries,
                        keys: &keys,
                        tokens,
                        normalise,
                        row_weights,
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
                    // All columns, and some that begin and end nowhere in particular.
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

/// Without row weights each head's scores are the mean of probability rows, so they sum to 1.
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
