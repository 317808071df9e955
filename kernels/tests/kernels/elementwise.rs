//! Row-wise operations against the reference, and rows written into stores.

use crate::support::{Random, assert_close};
use kept_kernels::{
    Pairing, RowStore, SimdLevel, add_assign, argmax, gelu_mul, reference, rms_norm,
    rms_norm_in_place, rotate, sigmoid_mul, silu, silu_mul, soft_cap, swiglu_clamped, unrotate,
};

#[test]
fn norms_and_gates_equal_the_reference() {
    let mut random = Random::fresh();
    for (rows, width) in [(1, 1), (1, 63), (3, 64), (2, 1000), (40, 2048)] {
        let (x, up, weight) = (
            random.normal(rows * width),
            random.normal(rows * width),
            random.normal(width),
        );
        let wide: Vec<f32> = x.iter().map(|x| x * 60.0).collect();
        let mut expected = vec![f32::NAN; x.len()];
        reference::rms_norm(&x, &weight, 1e-5, &mut expected);
        let mut gated = wide.clone();
        reference::silu_mul(&mut gated, &up);
        let (mut gelu, mut capped) = (wide.clone(), wide.clone());
        reference::gelu_mul(&mut gelu, &up);
        reference::soft_cap(&mut capped, 30.0);
        let mut sigmoid = up.clone();
        reference::sigmoid_mul(&mut sigmoid, &wide);
        // Of both signs and beyond the bounds.
        let (tall, mut clamped) = (
            up.iter().map(|x| x * 9.0).collect::<Vec<f32>>(),
            wide.iter().map(|x| x / 9.0).collect::<Vec<f32>>(),
        );
        let narrow = clamped.clone();
        reference::swiglu_clamped(&mut clamped, &tall);
        for level in SimdLevel::available() {
            level.with(|| {
                let mut out = vec![f32::NAN; x.len()];
                rms_norm(&x, &weight, 1e-5, &mut out);
                assert_close(
                    &out,
                    &expected,
                    2e-6,
                    &format!("{level:?} norm {rows} x {width}"),
                );
                let mut in_place = x.clone();
                rms_norm_in_place(&mut in_place, &weight, 1e-5);
                assert_eq!(in_place, out, "{level:?} norm in place");
                let mut gate = wide.clone();
                gelu_mul(&mut gate, &up);
                assert_close(
                    &gate,
                    &gelu,
                    2e-6,
                    &format!("{level:?} gelu {rows} x {width}"),
                );
                let mut x = up.clone();
                sigmoid_mul(&mut x, &wide);
                let what = format!("{level:?} sigmoid {rows} x {width}");
                assert_close(&x, &sigmoid, 2e-6, &what);
                let mut gate = narrow.clone();
                swiglu_clamped(&mut gate, &tall);
                assert_close(
                    &gate,
                    &clamped,
                    4e-6,
                    &format!("{level:?} clamped {rows} x {width}"),
                );
                let mut logits = wide.clone();
                soft_cap(&mut logits, 30.0);
                assert_close(
                    &logits,
                    &capped,
                    1e-5,
                    &format!("{level:?} cap {rows} x {width}"),
                );
                let mut gate = wide.clone();
                silu_mul(&mut gate, &up);
                assert_close(
                    &gate,
                    &gated,
                    2e-6,
                    &format!("{level:?} silu {rows} x {width}"),
                );
                let mut alone = wide.clone();
                silu(&mut alone);
                alone.iter_mut().zip(&up).for_each(|(x, up)| *x *= up);
                assert_close(&alone, &gated, 2e-6, &format!("{level:?} silu alone"));
            });
        }
    }
}

#[test]
fn silu_of_extreme_gates_is_finite_and_nan_stays() {
    for level in SimdLevel::available() {
        let mut gate = [-1000.0, -90.0, -87.0, 0.0, 90.0, 1000.0, f32::MAX, f32::NAN].repeat(4);
        level.with(|| silu_mul(&mut gate, &[1.0; 32]));
        assert!(
            gate[0].abs() < 1e-30 && gate[1].abs() < 1e-30 && gate[2].abs() < 1e-30,
            "{gate:?}"
        );
        assert_eq!(&gate[3..7], &[0.0, 90.0, 1000.0, f32::MAX], "{level:?}");
        assert!(gate[7].is_nan(), "{level:?}");
    }
}

#[test]
fn gelu_and_cap_of_extreme_numbers_are_finite_and_nan_stays() {
    let numbers = [-1e30, -1000.0, -90.0, 0.0, 90.0, 1000.0, 1e30, f32::NAN].repeat(4);
    for level in SimdLevel::available() {
        let (mut gate, mut logits) = (numbers.clone(), numbers.clone());
        level.with(|| {
            let mut clamped = numbers.clone();
            swiglu_clamped(&mut clamped, &[0.0; 32]);
            assert!(clamped[..3].iter().all(|x| x.abs() < 1e-6), "{clamped:?}");
            assert!(clamped[4..7].iter().all(|x| (x - 7.0).abs() < 1e-3));
            assert!(clamped[7].is_nan(), "{level:?}");
            gelu_mul(&mut gate, &[1.0; 32]);
            soft_cap(&mut logits, 30.0);
        });
        assert!(gate[..3].iter().all(|x| x.abs() < 1e-6), "{gate:?}");
        assert_eq!(&gate[3..7], &[0.0, 90.0, 1000.0, 1e30], "{level:?}");
        assert_close(&logits[..2], &[-30.0; 2], 1e-6, "low");
        assert_close(&logits[5..7], &[30.0; 2], 1e-6, "high");
        assert!(gate[7].is_nan() && logits[7].is_nan(), "{level:?}");
    }
}

#[test]
fn rotation_equals_the_reference_and_is_undone() {
    let mut random = Random::fresh();
    for (rows, heads, head_dim, rope_dim) in [
        (1, 1, 2, 2),
        (5, 3, 64, 64),
        (7, 2, 80, 32),
        (300, 4, 128, 128),
    ] {
        for pairing in [Pairing::Neighbours, Pairing::Halves] {
            let x = random.normal(rows * heads * head_dim);
            let (cos, sin) = random.angles(rows, rope_dim / 2);
            let mut expected = x.clone();
            reference::rotate(&mut expected, heads, head_dim, &cos, &sin, pairing);
            let mut turned = x.clone();
            rotate(&mut turned, heads, head_dim, &cos, &sin, pairing);
            assert_close(&turned, &expected, 1e-6, "rotate");
            unrotate(&mut turned, heads, head_dim, &cos, &sin, pairing);
            assert_close(&turned, &x, 1e-6, "unrotate");
        }
    }
}

#[test]
fn argmax_takes_the_lowest_of_equals_and_never_nan() {
    assert_eq!(argmax(&[1.0, 3.0, 3.0, 2.0]), 1);
    assert_eq!(argmax(&[f32::NAN, -1.0, f32::NAN, 0.5]), 3);
    assert_eq!(argmax(&[f32::NEG_INFINITY]), 0);
    let mut x = vec![1.0, 2.0];
    add_assign(&mut x, &[0.5, -2.0]);
    assert_eq!(x, [1.5, 0.0]);
}

#[test]
fn rows_are_written_by_chunk() {
    let mut store = RowStore::new(2, &[3, 4]);
    // [rows 2, kv_heads 2, head_dim 2]
    store.copy_in(1, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    assert_eq!(store.head(0), [0.0, 0.0, 1.0, 2.0, 5.0, 6.0]);
    assert_eq!(store.head(1), [0.0, 0.0, 3.0, 4.0, 7.0, 8.0, 0.0, 0.0]);
    assert_eq!(
        (store.first_row(1), store.capacity(1), store.bytes()),
        (3, 4, 56)
    );
}
