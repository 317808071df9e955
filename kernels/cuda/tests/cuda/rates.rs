//! Peak rates of a GPU are measured by running kernels.

use crate::support::*;
use kept_cuda::RatesOf;
use kept_kernels::HeadShape;

#[test]
fn copies_products_and_attention_are_measured() {
    // On a GPU the benchmark's amount of work; in the emulator just enough to run.
    for device in devices() {
        let little = RatesOf {
            copied: 4096,
            rounds: 2,
            shape: HeadShape::new(2, 1, 64),
            before: 64,
            rows: 70,
        };
        let emulated = device.properties().name.starts_with("emulated");
        let of = if emulated { little } else { RatesOf::GPU };
        let rates = device.rates(&of).expect("it runs");
        for rate in [rates.copy, rates.to_gpu, rates.matrix, rates.attention] {
            assert!(rate.is_finite() && rate > 0.0, "{rates:?}");
        }
        // Attention cannot be faster than matrix products.
        assert!(emulated || rates.attention < rates.matrix, "{rates:?}");
    }
}
